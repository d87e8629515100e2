"""Record streams as ranks send them, for tests of the report."""

from collections.abc import Iterator, Sequence
from typing import Any

from jobs.model.spec import JobSpec
from jobs.protocol.packets import AnyRecord
from jobs.protocol.records import BatchSplit, Outcome, Step
from jobs.splits.plan import Run, epoch_steps, evaluation_batches, predict_splits
from workers.supervisor.report.leased_devices import LeasedDevice
from workers.supervisor.report.recipe_aggregator import RecipeAggregator
from workers.supervisor.report.shard_lines import ShardLine

FORWARD_MS_PER_ROW = 0.1
BACKWARD_MS_PER_ROW = 0.2


def lease(devices: int, kind: str = "cpu") -> list[LeasedDevice]:
    return [LeasedDevice(n, f"{kind}:{n}", "host-a", kind, "a device") for n in range(devices)]


def aggregator(
    spec: JobSpec,
    rows: int | None,
    eval_rows: int | None = None,
    kind: str = "cpu",
    leased: Sequence[LeasedDevice] | None = None,
) -> RecipeAggregator:
    leased = lease(spec.resources.devices, kind) if leased is None else leased
    return RecipeAggregator("job-1", 1, spec, leased, predict_splits(spec, rows, eval_rows))


def split(
    number: int, devices: Sequence[int], rows: Sequence[int], phase: str = "train", module: str = ""
) -> BatchSplit:
    """A split of vectors with 5 features into outputs with 2."""
    return BatchSplit(
        id=number,
        phase=phase,
        module=module,
        batch_rows=sum(rows),
        devices=tuple(devices),
        rows=tuple(rows),
        input_shapes=tuple((count, 5) if count else None for count in rows),
        output_shapes=tuple((count, 2) if count else None for count in rows),
    )


def step(number: int, splits: Sequence[int], rows: Sequence[int], phase: str = "train", **fields: Any) -> Step:
    """A step in which every row costs the same, unless `fields` say otherwise."""
    measured: dict[str, Any] = {
        "epoch": 0,
        "at": 0.0,
        "step_ms": sum(rows) * (FORWARD_MS_PER_ROW + BACKWARD_MS_PER_ROW) + 1,
        "data_wait_ms": 0.05,
        "forward_ms": tuple(count * FORWARD_MS_PER_ROW if count else None for count in rows),
        "backward_ms": tuple(count * BACKWARD_MS_PER_ROW if count else None for count in rows),
    }
    return Step(step=number, phase=phase, splits=tuple(splits), **(measured | fields))


def rank_stream(spec: JobSpec, rank: int, rows: int, eval_rows: int | None = None) -> Iterator[AnyRecord]:
    """What one rank sends over a whole run, as the spec asks for it, up to its outcome."""
    main = "train" if spec.recipe.mode == "train" else "forward"
    numbers: dict[tuple[str, tuple[int, ...]], int] = {}
    counts = {main: 0, "eval": 0}
    for epoch in range(spec.recipe.epochs):
        passes: list[tuple[str, list[Run]]] = [(main, epoch_steps(spec, rows))]
        if spec.recipe.evaluate is not None and eval_rows is not None:
            passes.append(("eval", evaluation_batches(spec, eval_rows, spec.recipe.evaluate.data.batch_size)))
        for phase, runs in passes:
            for shards, times in runs:
                devices = [rank] if spec.world_size > 1 else list(range(spec.resources.devices))
                mine = tuple(shards[device] for device in devices)
                for _ in range(times if any(mine) else 0):
                    if (phase, mine) not in numbers:
                        numbers[phase, mine] = len(numbers)
                        yield split(numbers[phase, mine], devices, mine, phase, spec.parallelism.module or "")
                    yield step(counts[phase], [numbers[phase, mine]], mine, phase, epoch=epoch)
                    counts[phase] += 1
    yield Outcome(rank, 0)


def run(
    spec: JobSpec, rows: int, eval_rows: int | None = None, kind: str = "cpu"
) -> tuple[RecipeAggregator, list[ShardLine]]:
    """A whole run, rank after rank: as far apart as pipes can be read."""
    told = aggregator(spec, rows, eval_rows, kind)
    lines: list[ShardLine] = []
    for rank in range(spec.world_size):
        for record in rank_stream(spec, rank, rows, eval_rows):
            lines += told.add_record(rank, record)
        told.rank_ended(rank)
    return told, lines
