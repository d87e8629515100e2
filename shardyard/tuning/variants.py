"""The spec of a recipe for each candidate: as a short job, and as the final choice."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shardyard.contract.errors import FieldError, InvalidRequest
from shardyard.contract.groups import ENDLESS_EPOCHS, set_strategy
from shardyard.tuning.candidates import STRATEGIES, Arm, Candidate, SearchSpace

#: What short runs leave out: it is not about the speed of steps, and nobody needs what it leaves.
_NOT_IN_SHORT_RUNS = ("evaluate", "checkpoint", "scheduler", "export")
STEPS = "accumulate_steps"
_EACH_RANK = ("ddp", "fsdp")
MAX_BATCH = 1_000_000
#: How often the rows of a step are doubled, where no sizes are given.
DOUBLINGS = 4


def check_tunable(spec: Mapping[str, Any]) -> None:
    """Raises InvalidRequest for what has no batch size that could be set, or no end that could be."""
    program, parallelism = spec.get("program"), spec.get("parallelism")
    if not isinstance(program, dict) or program.get("kind", "recipe") != "recipe":
        raise _refuse("program.kind", "only recipes can be tuned: a script decides its batch size itself")
    if not isinstance(program.get("data"), dict):
        raise _refuse("program.data", "required, but missing")
    if program.get("mode", "train") != "train":
        raise _refuse("program.mode", "only training can be tuned; leave it out")
    if _number(spec, "resources", "nodes", 1) > 1:
        raise _refuse("resources.nodes", "a search runs on one node; leave it out")
    if parallelism is not None and not isinstance(parallelism, dict):
        raise _refuse("parallelism", "an object, { ... }")
    if program.get("straggler"):
        raise _refuse("program.straggler", "a device that is slow on purpose decides the search; leave it out")


def rows_of_step(spec: Mapping[str, Any]) -> int:
    """Rows of one optimizer step of all ranks."""
    program, strategy = spec["program"], spec.get("parallelism", {}).get("strategy", "single")
    ranks = _number(spec, "resources", "devices", 1) if strategy in _EACH_RANK else 1
    return _number(program, "data", "batch_size", 32) * ranks * _number(spec, "program", STEPS, 1)


def make_space(
    spec: Mapping[str, Any],
    strategies: Sequence[str] = (),
    devices: Sequence[int] = (),
    sizes: Sequence[int] = (),
    dataset_rows: int | None = None,
) -> SearchSpace:
    """What there is to choose among. Without strategies: all; without devices: one, and as many as the spec has;
    without sizes: the rows of its step, doubled up to four times, as far as the data set has so many.

    Raises:
        InvalidRequest: the spec cannot be tuned, or there is nothing to choose.
    """
    check_tunable(spec)
    unknown = [name for name in strategies if name not in STRATEGIES]
    if unknown:
        raise InvalidRequest(f"--strategies {unknown[0]}: there are {', '.join(STRATEGIES)}")
    wanted = strategies or STRATEGIES
    counts = sorted(set(devices or (1, _number(spec, "resources", "devices", 1))))
    rows = sorted(set(sizes)) or _doubled(rows_of_step(spec), dataset_rows)
    found = {arm: tuple(_sizes_of(spec, arm, rows)) for arm in _arms(wanted, counts)}
    found = {arm: fitting for arm, fitting in found.items() if fitting}
    if sum(map(len, found.values())) < 2:
        raise InvalidRequest(
            f"there is nothing to choose among strategies {', '.join(wanted)}, devices {_join(counts)} and rows of a "
            f"step {_join(rows)}; give more of --strategies, --devices or --batch-sizes"
        )
    return SearchSpace(found)


def make_variant(spec: Mapping[str, Any], candidate: Candidate) -> dict[str, Any]:
    """The spec with the strategy, devices and batch size of a candidate."""
    made = copy.deepcopy(dict(spec))
    set_strategy(made, candidate.arm.strategy, candidate.arm.devices)
    made["program"]["data"]["batch_size"] = candidate.rows // _shares(spec, candidate.arm)
    return made


def make_trial_spec(spec: Mapping[str, Any], candidate: Candidate, steps: int, labels: Mapping[str, str]) -> Any:
    """The spec of a short job: so many steps, and nothing beside them."""
    made = make_variant(spec, candidate)
    made["program"] |= {"max_steps": steps, "epochs": ENDLESS_EPOCHS}
    for name in _NOT_IN_SHORT_RUNS:
        made["program"].pop(name, None)
    made["name"] = f"tune-{candidate.arm.strategy}-{candidate.arm.devices}x{candidate.rows}"
    made["labels"] = {**made.get("labels", {}), **labels}
    made["limits"] = {**made.get("limits", {}), "max_retries": 0}
    made["observe"] = "off"
    return made


def list_changes(spec: Mapping[str, Any], candidate: Candidate) -> list[str]:
    """What `--set` makes of a spec the one of a candidate."""
    made = make_variant(spec, candidate)
    dropped = sorted(set(spec.get("parallelism", {})) - set(made["parallelism"]))
    return [
        f"parallelism.strategy={candidate.arm.strategy}",
        *(f"parallelism.{name}=null" for name in dropped),
        f"resources.devices={candidate.arm.devices}",
        f"program.data.batch_size={made['program']['data']['batch_size']}",
    ]


def _arms(strategies: Sequence[str], devices: Sequence[int]) -> Iterator[Arm]:
    """`single` has one device, the others more."""
    for count in devices:
        for strategy in STRATEGIES:
            if strategy in strategies and (strategy == "single") == (count == 1):
                yield Arm(strategy, count)


def _sizes_of(spec: Mapping[str, Any], arm: Arm, rows: Sequence[int]) -> Iterator[int]:
    """Those that an arm can have: its ranks and accumulated batches are equally large."""
    shares = _shares(spec, arm)
    for size in rows:
        if size % shares == 0 and 0 < size // shares <= MAX_BATCH and size >= arm.devices:
            yield size


def _shares(spec: Mapping[str, Any], arm: Arm) -> int:
    """Of how many batches a step consists."""
    ranks = arm.devices if arm.strategy in _EACH_RANK else 1
    return ranks * _number(spec, "program", STEPS, 1)


def _doubled(first: int, dataset_rows: int | None) -> list[int]:
    sizes = [first * 2**times for times in range(DOUBLINGS + 1)]
    return [size for size in sizes if dataset_rows is None or size <= max(first, dataset_rows)]


def _number(spec: Mapping[str, Any], where: str, name: str, default: int) -> int:
    """A field of the spec. Raises InvalidRequest."""
    found = spec.get(where, {})
    value = found.get(name, default) if isinstance(found, dict) else found
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _refuse(f"{where}.{name}", "a whole number, at least 1")
    return value


def _refuse(field: str, message: str) -> InvalidRequest:
    return InvalidRequest("the spec cannot be tuned", fields=(FieldError(field, message),))


def _join(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
