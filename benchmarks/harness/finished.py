"""Finished jobs, in Redis as the product leaves them: by its own calls, with its own reports.

The specs differ as those of people who try things out do: models, batch sizes, rates, seeds, names, labels, recipes and
scripts. Calls go in pipelines, so that thousands of jobs take seconds; what each call does is what it always does.
"""

import json
import random
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import redis
import uuid_utils

from jobs import store
from jobs.model.catalogue import rows_of
from jobs.model.records import DeviceRecord, NodeInfo
from jobs.model.spec import JobSpec
from jobs.model.spec_rules import parse_spec
from jobs.model.state import StateReason
from jobs.protocol.packets import AnyRecord, batch_steps
from jobs.protocol.records import BatchSplit, DeviceInfo, MetricSample, Outcome, Outline, Step
from jobs.splits.plan import predict_splits
from jobs.store import AttemptId, Call
from workers.supervisor.report.leased_devices import LeasedDevice
from workers.supervisor.report.recipe_aggregator import RecipeAggregator
from workers.supervisor.telemetry.publisher import TelemetryPublisher
from workers.supervisor.telemetry.shipper import StreamShipper

T = TypeVar("T")

TENANT = "default"
BUNDLE = "sha256:" + "5eed" * 16
NODES = 16
DEVICES_PER_NODE = 64
#: Jobs that are on their way at once: the nodes have devices for so many of eight.
BATCH = NODES * DEVICES_PER_NODE // 8
ROWS = 1437  # of the digits to train on


# -- specs -------------------------------------------------------------------------------------------


def specs(count: int, devices: int = 2, seed: int = 7) -> Iterator[JobSpec]:
    """Different ones, the same for the same seed. Three of four are recipes, as `docs/spec.md` has them."""
    chance = random.Random(seed)
    for number in range(count):
        make, strategy = ((_digits, "ddp"), (_mlp, "ddp"), (_layers, "dp"), (_script, "ddp"))[number % 4]
        body = make(chance) | {
            "resources": {"devices": devices},
            "parallelism": {"strategy": strategy if devices > 1 else "single"},
        }
        team, sweep = chance.choice(("vision", "speech", "ranking", "robotics")), f"sweep-{chance.randrange(400)}"
        yield parse_spec(json.dumps(body | {"labels": {"team": team, "sweep": sweep}}))


def recipe_specs(count: int, devices: int = 2) -> Iterator[JobSpec]:
    """The recipes among such specs."""
    return islice((each for each in specs(2 * count, devices) if each.program.kind == "recipe"), count)


def _digits(chance: random.Random) -> dict[str, Any]:
    rate, channels = round(10 ** chance.uniform(-4, -1), 5), chance.choice((8, 16, 24, 32))
    return {
        "name": f"digits-cnn-lr{rate}",
        "program": {
            "kind": "recipe",
            "model": {"ref": "digits_cnn", "args": {"channels": channels, "dropout": round(chance.random() / 2, 2)}},
            "data": {"ref": "digits", "args": {"split": "train"}, "batch_size": 32, "shuffle": True},
            "loss": {"ref": "cross_entropy"},
            "optimizer": {"ref": "sgd", "args": {"lr": rate, "momentum": 0.9}},
            "epochs": chance.randrange(1, 30),
            "seed": chance.randrange(2**31),
        },
        "limits": {"wall_seconds": 600},
    }


def _mlp(chance: random.Random) -> dict[str, Any]:
    hidden, rate = chance.choice(([512, 512], [256], [1024, 512, 256])), round(10 ** chance.uniform(-5, -2), 6)
    return {
        "name": f"mlp-{'x'.join(map(str, hidden))}-{chance.randrange(10_000)}",
        "priority": chance.choice((0, 0, 10)),
        "program": {
            "kind": "recipe",
            "model": {"ref": "mlp", "args": {"hidden": hidden}},
            "data": {"ref": "digits", "args": {"split": "train"}, "batch_size": 64, "shuffle": True},
            "loss": {"ref": "cross_entropy"},
            "optimizer": {"ref": "adamw", "args": {"lr": rate}},
            "scheduler": {"ref": "cosine_annealing_lr", "args": {"T_max": 4}, "every": "epoch"},
            "clip_grad_norm": 1.0,
            "epochs": 4,
            "seed": chance.randrange(2**31),
            "evaluate": {"data": {"ref": "digits", "args": {"split": "test"}, "batch_size": 120}},
        },
    }


def _layers(chance: random.Random) -> dict[str, Any]:
    features, rows = chance.randrange(3, 100), chance.randrange(100, 5000)
    return {
        "name": f"linear-{features}",
        "program": {
            "kind": "recipe",
            "model": {"ref": "linear", "args": {"in_features": features, "out_features": 2}},
            "data": {"ref": "random_vectors", "args": {"rows": rows, "features": features}, "batch_size": 30},
            "loss": {"ref": "cross_entropy"},
            "optimizer": {"ref": "sgd", "args": {"lr": round(chance.random(), 4)}},
            "seed": chance.randrange(2**31),
        },
    }


def _script(chance: random.Random) -> dict[str, Any]:
    rate = round(10 ** chance.uniform(-4, -1), 5)
    args = ["--epochs", str(chance.randrange(1, 90)), "--lr", str(rate), "--data", f"/data/set-{chance.randrange(50)}"]
    return {
        "name": f"train-{chance.randrange(100_000)}",
        "program": {
            "kind": "script",
            "bundle": BUNDLE,
            "entrypoint": "examples/train.py",
            "args": args,
            "env": {"SEED": str(chance.randrange(2**31))},
        },
        "limits": {"wall_seconds": 7200},
    }


# -- jobs, by the store's calls ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Made:
    job: str
    spec: JobSpec


class Maker:
    """Makes jobs that have ended, in a control Redis of the benchmark's own."""

    def __init__(self, control: "redis.Redis", *, keys: bool = False) -> None:
        """`keys`: each submit has an Idempotency-Key."""
        self._client = control
        self._keys = keys
        devices = tuple(DeviceRecord(n, "cpu", n, f"cpu:{n}", "virtual") for n in range(DEVICES_PER_NODE))
        info = NodeInfo(host="gpu-host", cores=64, version="1.0.0", devices=devices)
        self.run([store.register_node(name, "i", "default", "127.0.0.1", info, home="state") for name in _nodes()])
        self.run([store.put_bundle(TENANT, BUNDLE, "nonce", size=900, files=3, unpacked=2000, quota=10**9)])

    def finish(self, wanted: Sequence[JobSpec], token: str = "") -> list[Made]:
        """Submit each, and lead it to its end; one of ten fails."""
        made: list[Made] = []
        for start in range(0, len(wanted), BATCH):
            made += self._batch(wanted[start : start + BATCH], token)
        return made

    def _batch(self, wanted: Sequence[JobSpec], token: str) -> list[Made]:
        ids = [str(uuid_utils.uuid7()) for _ in wanted]
        self.run([self._submit(job, each, token) for job, each in zip(ids, wanted, strict=True)])
        attempts: list[AttemptId] = []
        while len(attempts) < len(ids):
            created = self.run([store.dispatch(30.0)])[0].created
            attempts += created
        nodes = self._nodes_of(attempts)
        order = {job: number for number, job in enumerate(ids)}
        who = {each: uuid.uuid4().hex for each in attempts}
        self.run([store.claim(each, who[each], nodes[each]) for each in attempts])
        self.run([store.record_milestone(each, who[each], "running") for each in attempts])
        self.run([store.record_milestone(each, who[each], "first_step") for each in attempts])
        self.run([_end(each, who[each], order[each.job]) for each in attempts])
        self.run([store.release(nodes[each], each, {}) for each in attempts])
        return [Made(job, each) for job, each in zip(ids, wanted, strict=True)]

    def _submit(self, job: str, wanted: JobSpec, token: str) -> Call[Any]:
        key = str(uuid.uuid4()) if self._keys else ""
        digest = uuid.uuid4().hex * 2
        return store.submit(TENANT, job, wanted, idempotency_key=key, digest=digest, token=token)

    def _nodes_of(self, attempts: Sequence[AttemptId]) -> dict[AttemptId, str]:
        (found,) = self.run([store.read_records([(each.tenant, each.job) for each in attempts])])
        return {each: str(record.node) for each, record in zip(attempts, found, strict=True) if record is not None}

    def run(self, calls: Sequence[Call[T]]) -> list[T]:
        """In one exchange; what each returned."""
        with self._client.pipeline(transaction=False) as pipe:
            for call in calls:
                pipe.execute_command(*call.command)  # type: ignore[no-untyped-call]
            return [call.decode(reply) for call, reply in zip(calls, pipe.execute(), strict=True)]


def _nodes() -> list[str]:
    return [f"gpu-host-{number}" for number in range(NODES)]


def _end(attempt: AttemptId, claimant: str, number: int) -> Call[bool]:
    if number % 10 == 9:
        said = "ValueError: Expected input batch_size (32) to match target batch_size (30)."
        error = {"rank": 1, "exit_code": 1, "kind": "code_error", "message": said, "traceback": _TRACEBACK}
        return store.finish(attempt, claimant, StateReason.CODE_ERROR, f"rank 1 failed: {said}", error=error)
    result = {"loss": 0.06 + number / 7919, "metrics": {"accuracy": 0.97 - number / 104729}}
    return store.finish(attempt, claimant, StateReason.COMPLETED, "", result=result)


_TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 61, in <module>
    main()
  File "train.py", line 48, in main
    loss = criterion(model(batch), target)
ValueError: Expected input batch_size (32) to match target batch_size (30).
"""


# -- reports, by the worker's own parts ----------------------------------------------------------------


def publish(telemetry: str, storage: Path, made: Made, patterns: int = 2) -> None:
    """What a supervisor leaves of an attempt of a recipe with so many patterns: files in `storage`, keys in the
    telemetry Redis, whose URL is given."""
    ship = StreamShipper(telemetry, TENANT, made.job, 1)
    directory = storage / made.job
    devices = made.spec.resources.devices
    lease = [LeasedDevice(n, f"cpu:{n}", "gpu-host-3", "cpu", "virtual") for n in range(devices)]
    aggregator = RecipeAggregator(made.job, 1, made.spec, lease, predict_splits(made.spec, *rows_of(made.spec)))
    attempt = AttemptId(TENANT, made.job, 1)
    publisher = TelemetryPublisher(directory, attempt, devices, ship, aggregator, made.spec, storage / "no samples")
    for rank in range(made.spec.world_size):
        for record in batch_steps(list(records(made.spec, rank, patterns))):
            publisher.add_record(rank, record)
    publisher.flush_due(0.0)
    publisher.write_final_report()
    publisher.seal()
    publisher.close()


def records(wanted: JobSpec, rank: int, patterns: int, steps: int = 20) -> Iterator[AnyRecord]:
    """What a rank of a job sends: batches of so many different sizes, each step with times of its own."""
    chance = random.Random(f"{wanted.labels} {rank}")
    mine = tuple(range(wanted.resources.devices)) if wanted.world_size == 1 else (rank,)
    for device in mine:
        yield DeviceInfo(device, "virtual")
    yield Outline(1, steps, steps, 32, ROWS)
    for number in range(patterns):
        yield _split(number, mine, 32 - number)
    for step in range(steps):
        yield _step(step, min(step, patterns - 1), len(mine), chance)
        if rank == 0:
            yield MetricSample(-1, "loss", step, chance.random(), 1.7e9 + step)
    yield Outcome(rank, 0)


def _split(number: int, devices: Sequence[int], rows: int) -> BatchSplit:
    share = rows // len(devices)
    each = tuple(share for _ in devices)
    return BatchSplit(
        number, "train", "", share * len(devices), tuple(devices), each, _shapes(each, 8), _shapes(each, 10)
    )


def _shapes(rows: Sequence[int], width: int) -> tuple[tuple[int, ...] | None, ...]:
    return tuple((count, width) for count in rows)


def _step(number: int, split: int, devices: int, chance: random.Random) -> Step:
    def measured(typical: float) -> float:
        return round(typical * chance.uniform(0.8, 1.6), 4)

    return Step(
        step=number,
        epoch=0,
        phase="train",
        splits=(split,),
        at=1.7e9 + number / 100,
        step_ms=measured(9),
        data_wait_ms=measured(0.3),
        forward_ms=tuple(measured(2) for _ in range(devices)),
        backward_ms=tuple(measured(4) for _ in range(devices)),
        comm_ms=measured(1.2) if devices == 1 else None,
    )
