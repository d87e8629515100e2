"""Makes the dictionary that packed jobs are compressed with: `python -m tools.train_dictionary FILE`.

What finished jobs have in common is in it: names of fields, what a spec says where its author said nothing, names of
the catalogue, words of tracebacks. It is trained on made-up jobs, with all recipes of the catalogue and with scripts. A
dictionary in use is never replaced, since nothing packed with it could be read then: a new one is a new file.
"""

import itertools
import json
import random
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import zstandard

from jobs.model import catalogue, spec
from jobs.model.spec import JobSpec
from jobs.model.state import Reason
from jobs.store.compact import Snapshot, plain
from shardyard.contract.errors import ShardyardError

SAMPLES = 4_000
BYTES = 12_288
DICTIONARY_ID = 1

_WORDS = ("train", "main", "run", "baseline", "resnet", "bert", "sweep", "finetune", "ablation", "debug", "final")
_KEYS = ("team", "project", "experiment", "owner", "user", "sweep", "stage", "dataset", "model", "run", "example")
_FLAGS = ("epochs", "batch-size", "lr", "learning-rate", "seed", "data", "data-dir", "output", "config", "model")
_ERRORS = (
    "RuntimeError: mat1 and mat2 shapes cannot be multiplied (32x64 and 128x10)",
    "ValueError: Expected input batch_size (32) to match target batch_size (30).",
    "FileNotFoundError: [Errno 2] No such file or directory: '/data/train.npz'",
    "ModuleNotFoundError: No module named 'transformers'",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
)


def main() -> None:
    chance = random.Random(1)  # noqa: S311 - no secret
    samples: list[bytes | bytearray | memoryview] = [
        plain(_job(chance, wanted)) for wanted in itertools.islice(_specs(chance), SAMPLES)
    ]
    found = zstandard.train_dictionary(BYTES, samples, dict_id=DICTIONARY_ID)
    Path(sys.argv[1]).write_bytes(found.as_bytes())


def _specs(chance: random.Random) -> Iterator[JobSpec]:
    while True:
        program = _script(chance) if chance.random() < 0.35 else _recipe(chance)
        devices = chance.choice((1, 1, 2, 2, 2, 4, 8))
        strategy = chance.choice(("dp", "ddp", "ddp", "fsdp")) if devices > 1 else "single"
        body: dict[str, Any] = {"program": program, "resources": {"devices": devices}}
        body["parallelism"] = {"strategy": strategy}
        if chance.random() < 0.9:
            body["name"] = _name(chance)
        body["labels"] = {key: _name(chance) for key in chance.sample(_KEYS, chance.choice((0, 1, 2, 2, 3)))}
        if chance.random() < 0.5:
            body["limits"] = {"wall_seconds": chance.choice((600, 3600, 86400)), "max_retries": chance.randrange(4)}
        try:
            yield spec.parse(json.dumps(body))
        except ShardyardError:
            continue  # a combination that cannot be


def _recipe(chance: random.Random) -> dict[str, Any]:
    known = catalogue.load()

    def component(group: str) -> dict[str, Any]:
        ref = chance.choice(sorted(known[group]))
        properties = known[group][ref]["args"].get("properties", {})
        args = {name: _value(chance, properties[name]) for name in properties if chance.random() < 0.6}
        return {"ref": ref, "args": args}

    program: dict[str, Any] = {"kind": "recipe", "model": component("models"), "loss": component("losses")}
    program["data"] = component("data") | {"batch_size": 2 ** chance.randrange(3, 10), "shuffle": chance.random() < 0.7}
    program["optimizer"] = component("optimizers")
    program |= {"epochs": chance.randrange(1, 100), "seed": chance.randrange(2**31)}
    if chance.random() < 0.3:
        program["scheduler"] = component("schedulers")
    if chance.random() < 0.3:
        program["evaluate"] = {"data": {"ref": "digits", "args": {"split": "test"}, "batch_size": 128}}
    if chance.random() < 0.3:
        program["checkpoint"] = {"every_steps": chance.choice((100, 200, 1000))}
    return program


def _value(chance: random.Random, schema: dict[str, Any]) -> Any:
    kinds = {
        "integer": 2 ** chance.randrange(1, 10),
        "number": round(10 ** chance.uniform(-5, 0), chance.randrange(2, 6)),
        "boolean": chance.random() < 0.5,
        "string": "train",
        "array": [2 ** chance.randrange(4, 11) for _ in range(chance.randrange(1, 4))],
    }
    if "enum" in schema:
        return chance.choice(schema["enum"])
    kind = schema.get("type", "number")
    return kinds.get(kind if isinstance(kind, str) else kind[0], 1)


def _script(chance: random.Random) -> dict[str, Any]:
    args = [[f"--{flag}", str(_value(chance, {}))] for flag in chance.sample(_FLAGS, chance.randrange(5))]
    return {
        "kind": "script",
        "bundle": f"sha256:{chance.randbytes(32).hex()}",
        "entrypoint": chance.choice(("train.py", "main.py", "src/train.py", "scripts/run.py", "examples/train.py")),
        "args": list(itertools.chain(*args)),
        "env": {"PYTHONHASHSEED": "0"} if chance.random() < 0.2 else {},
    }


def _name(chance: random.Random) -> str:
    return "-".join((*chance.sample(_WORDS, chance.randrange(1, 3)), str(chance.randrange(1000))))


def _job(chance: random.Random, wanted: JobSpec) -> Snapshot:
    """As the scripts leave one: the same names, in the same order."""
    created = 1_700_000_000_000_000 + chance.randrange(10**14)
    times = [created + chance.randrange(10**5) for _ in range(6)]
    leased = ",".join(str(n) for n in range(wanted.resources.devices))
    reason, message, error, result = _end(chance)
    node = f"{chance.choice(('gpu', 'node', 'host', 'worker', 'local'))}-{chance.randrange(64)}"
    times_of = {"started": times[1], "first_step": times[2]}
    job = {
        "devices": wanted.resources.devices, "priority": wanted.priority, "strategy": wanted.parallelism.strategy,
        "max_retries": wanted.limits.max_retries, "retries": 0, "losses": 0,
        "score": 3518437208883200 + chance.randrange(10**6), "created": created, "parent": "",
        "token": chance.randbytes(6).hex(), "reason": reason, "message": message, "node": node,
        "leased": leased, **times_of, "finished": times[5], "error": error, "result": result,
    }  # fmt: skip
    attempt = {
        "node": node, "leased": leased, "state": "ended", "beat": chance.randrange(1, 60), "created": times[3],
        "claimant": uuid.UUID(int=chance.getrandbits(128)).hex, "claimed": times[4], **times_of,
        "reason": reason, "message": message, "error": error, "ended": times[5],
    }  # fmt: skip
    spec_json = wanted.model_dump_json(exclude_none=True).encode()
    return Snapshot(_fields(job), spec_json, (_fields(attempt),))


def _end(chance: random.Random) -> tuple[str, str, str, str]:
    """Reason, message, error and result."""
    if chance.random() < 0.85:
        result = {"loss": chance.random(), "metrics": {"accuracy": chance.random()} if chance.random() < 0.6 else {}}
        return Reason.COMPLETED, "", "", msgspec.json.encode(result).decode()
    message = chance.choice(_ERRORS)
    lines = f'  File "train.py", line {chance.randrange(200)}, in <module>\n    main()\n'
    error = {"rank": chance.randrange(4), "exit_code": 1, "signal": None, "message": message}
    error["traceback"] = f"Traceback (most recent call last):\n{lines}{message}\n"
    return Reason.CODE_ERROR, message, msgspec.json.encode(error).decode(), ""


def _fields(values: dict[str, Any]) -> dict[bytes, bytes]:
    return {name.encode(): str(value).encode() for name, value in values.items()}


if __name__ == "__main__":
    main()
