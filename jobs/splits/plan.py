"""What a spec will do to its batches, worked out before anything runs: pure arithmetic, no torch.

Three rules of PyTorch decide every split that has no weights, and the tests hold each against torch itself:

- DataParallel scatters with `torch.chunk`: shards of ceil(rows / devices), so the last one may be
  smaller and later devices may get nothing (`chunk`).
- DistributedSampler gives every rank the same number of rows: it repeats the first rows as padding,
  or drops the tail when `drop_last` is set (`sampler_rows`).
- DataLoader cuts what it is given into batches of `batch_size` and keeps the smaller rest, unless
  `drop_last` is set (`batches`).

With `parallelism.weights` rows are divided in proportion to them, and with `program.data.uneven` ranks do otherwise
with rows that do not divide among them: `shardyard.contract.row_shares` has the arithmetic, which ranks use as well.

One optimizer step reads `accumulate_steps` batches, and what it has when the epoch ends (`grouped`).

Evaluation under ddp is sharded without padding, so that no row counts twice in a metric: rank r gets
the rows r, r + ranks, r + 2 * ranks, ... (`strided_rows`).
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from jobs.model.spec import JobSpec, RecipeProgram
from shardyard.contract.report import Pattern, describe_rows
from shardyard.contract.row_shares import RowDeal, divide_rows

#: Rows of one split, one number per leased device, those of all nodes in their order.
Rows = tuple[int, ...]
#: A split, and how many batches in a row are divided that way.
Run = tuple[Rows, int]

_NO_SHAPES: Final = "shapes are known once the model has run"
_SCRIPT: Final = "how a script uses its data is known only when it runs"
_UNKNOWN_ROWS: Final = "the size of the data set is known only when it is loaded; this is the split of one full step"


class Prediction(msgspec.Struct, frozen=True):
    """The splits of one epoch (with one evaluation, where there is one) and of the whole run.

    `planned` is False for a script: nothing can be said before it runs.
    """

    train_rows: int | None
    eval_rows: int | None
    epoch: tuple[Pattern, ...]
    run: tuple[Pattern, ...]
    notes: dict[str, str]
    planned: bool = True


# -- the arithmetic of torch -----------------------------------------------------------------------


def chunk_rows(rows: int, devices: int) -> Rows:
    """Rows of each device when a batch is scattered as `torch.chunk` does it, 0 for idle devices.

    Raises:
        ValueError: `rows` is negative, or there is no device.
    """
    if rows < 0 or devices < 1:
        raise ValueError(f"cannot divide {rows} rows among {devices} devices")
    if not rows:
        return (0,) * devices
    size = _divide_up(rows, devices)
    full, rest = divmod(rows, size)
    used = (size,) * full + (rest,) * bool(rest)
    return used + (0,) * (devices - len(used))


def sampler_rows(rows: int, ranks: int, drop_last: bool) -> int:
    """Rows that DistributedSampler gives to each rank: padded up, or cut down when `drop_last`."""
    return rows // ranks if drop_last else _divide_up(rows, ranks)


def strided_rows(rows: int, ranks: int) -> Rows:
    """Rows of each rank when rank r takes every `ranks`-th row from row r on, without padding."""
    each, more = divmod(rows, ranks)
    return (each + 1,) * more + (each,) * (ranks - more)


def loader_batches(rows: int, batch_size: int, drop_last: bool) -> list[tuple[int, int]]:
    """Batches that a DataLoader yields in one pass, as (rows of the batch, how many of them)."""
    full, rest = divmod(rows, batch_size)
    cut = [(batch_size, full), (0 if drop_last else rest, 1)]
    return [(size, count) for size, count in cut if size and count]


def accumulate_batches(runs: Sequence[Run], size: int) -> list[Run]:
    """Splits of single batches, in order, as the splits of steps that read `size` batches each, added up device by
    device. The last step reads what is left."""
    if size == 1:
        return list(runs)
    steps: list[Run] = []
    open_rows, missing = (0,) * (len(runs[0][0]) if runs else 0), size
    for rows, count in runs:
        first = min(count, missing) if missing < size else 0
        whole, rest = divmod(count - first, size)
        if first:
            open_rows, missing = _add_rows(open_rows, rows, first), missing - first
        if missing == 0:
            steps.append((open_rows, 1))
            open_rows, missing = (0,) * len(rows), size
        if whole:
            steps.append((_add_rows(open_rows, rows, size), whole))
        if rest:
            open_rows, missing = _add_rows(open_rows, rows, rest), size - rest
    return [*steps, (open_rows, 1)] if missing < size else steps


def _add_rows(rows: Rows, more: Rows, times: int) -> Rows:
    return tuple(have + times * got for have, got in zip(rows, more, strict=True))


def _divide_up(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


# -- one pass over a data set ----------------------------------------------------------------------


def epoch_steps(spec: JobSpec, rows: int) -> list[Run]:
    """The splits of one epoch over `rows` rows of training data, step by step, in order."""
    return accumulate_batches(epoch_batches(spec, rows), spec.recipe.accumulate_steps)


def epoch_batches(spec: JobSpec, rows: int) -> list[Run]:
    """As `train_pass`, batch by batch: several make one step when gradients are accumulated."""
    data = spec.recipe.data
    if spec.distributed:
        deal = deal_rows(spec, rows)
        cut = loader_batches(deal.read, deal.batch_rows, data.drop_last)
        return [(divide_rows(size, deal.weights), count) for size, count in cut]
    return [(_scatter_rows(spec, size), count) for size, count in loader_batches(rows, data.batch_size, data.drop_last)]


def deal_rows(spec: JobSpec, rows: int) -> RowDeal:
    """How the sampler of a recipe deals `rows` rows to ranks, each epoch."""
    data, ranks = spec.recipe.data, spec.world_size
    return RowDeal(
        rows, data.batch_size * ranks, spec.weights or (1.0,) * ranks, data.uneven or "pad", drop_last=data.drop_last
    )


def _scatter_rows(spec: JobSpec, rows: int) -> Rows:
    """What DataParallel makes of a batch."""
    return chunk_rows(rows, spec.all_devices) if spec.weights is None else divide_rows(rows, spec.weights)


def evaluation_batches(spec: JobSpec, rows: int, batch_size: int) -> list[Run]:
    """The splits of one evaluation over `rows` rows, in order. Ranks may run out at different batches."""
    devices = spec.all_devices
    if not spec.distributed:
        return [(_scatter_rows(spec, size), count) for size, count in loader_batches(rows, batch_size, drop_last=False)]
    shards = strided_rows(rows, devices)
    full = min(shards) // batch_size
    rest = [
        (tuple(max(0, min(batch_size, shard - step * batch_size)) for shard in shards), 1)
        for step in range(full, _divide_up(max(shards), batch_size))
    ]
    return [((batch_size,) * devices, full), *rest] if full else rest


# -- a whole job -----------------------------------------------------------------------------------


def predict_splits(spec: JobSpec, train_rows: int | None, eval_rows: int | None = None) -> Prediction:
    """The splits that `spec` will give over data sets of so many rows.

    `None` for a row count means that only the worker can know it: the answer then has the split of
    one full batch, without step counts. `max_steps` cuts the last epoch short; an evaluation that is
    due after that epoch still takes place.
    """
    if not isinstance(spec.program, RecipeProgram):
        return Prediction(None, None, (), (), {"patterns": _SCRIPT, "rows": _SCRIPT}, planned=False)
    main = "train" if spec.recipe.mode == "train" else "forward"
    evaluate = spec.recipe.evaluate
    train_runs = None if train_rows is None else epoch_steps(spec, train_rows)
    per_epoch = None if train_runs is None else sum(count for _, count in train_runs)
    one = _phase_patterns(spec, main, train_runs, passes=1)
    run = _phase_patterns(spec, main, train_runs, passes=spec.recipe.epochs)
    if evaluate is not None:
        eval_runs = None if eval_rows is None else evaluation_batches(spec, eval_rows, evaluate.data.batch_size)
        one += _phase_patterns(spec, "eval", eval_runs, passes=1)
        evaluations = _count_evaluations(spec.recipe, per_epoch)
        if evaluations is None:
            once = _phase_patterns(spec, "eval", eval_runs, passes=1)
            run += [msgspec.structs.replace(pattern, steps=None, last_step=None) for pattern in once]
        elif evaluations:
            run += _phase_patterns(spec, "eval", eval_runs, passes=evaluations)
    notes = _prediction_notes(spec, train_rows, eval_rows)
    return Prediction(train_rows, eval_rows, tuple(one), tuple(run), notes)


def rows_unplannable(spec: JobSpec) -> str | None:
    """Why the rows of a shard cannot be worked out for this spec; `None` when they can."""
    if spec.parallelism.strategy == "dp" and spec.parallelism.dim != 0:
        dim = spec.parallelism.dim
        return f"the batch is split along dimension {dim}, whose size is known only when the data is loaded"
    if spec.parallelism.weights == "auto":
        return "the devices' weights are measured before the first step"
    if spec.parallelism.strategy == "single" and spec.resources.devices > 1:
        return "modules are placed on several devices, and each batch passes through them whole"
    return None


def _count_evaluations(program: RecipeProgram, steps_per_epoch: int | None) -> int | None:
    """Evaluations of the whole run; `None` when it depends on an unknown number of steps."""
    if program.evaluate is None:
        return 0
    epochs = program.epochs
    if program.max_steps is not None:
        if steps_per_epoch is None:
            return None
        epochs = min(epochs, _divide_up(program.max_steps, steps_per_epoch)) if steps_per_epoch else epochs
    return epochs // program.evaluate.every_epochs


def _phase_patterns(spec: JobSpec, phase: str, runs: list[Run] | None, passes: int) -> list[Pattern]:
    if runs is None:
        return [_make_pattern(spec, phase, _full_batch(spec, phase), None, 0, None)]
    limit = None if phase == "eval" else spec.recipe.max_steps
    length = sum(count for _, count in runs)
    total = passes * length if limit is None else min(passes * length, limit)
    patterns = []
    start = 0
    for rows, count in runs:
        whole, rest = divmod(total, length)
        partial = max(0, min(count, rest - start))
        steps = whole * count + partial
        last = whole * length + start + partial if partial else (whole - 1) * length + start + count
        if steps:
            patterns.append(_make_pattern(spec, phase, rows, steps, start, last - 1))
        start += count
    return _merge_without_rows(patterns)


def _full_batch(spec: JobSpec, phase: str) -> Rows:
    evaluate, devices = spec.recipe.evaluate, spec.all_devices
    size = evaluate.data.batch_size if phase == "eval" and evaluate else spec.recipe.data.batch_size
    times = 1 if phase == "eval" else spec.recipe.accumulate_steps
    if not spec.distributed:
        rows = _scatter_rows(spec, size)
    else:  # an evaluation is divided evenly
        rows = (size,) * devices if phase == "eval" else divide_rows(size * devices, deal_rows(spec, 0).weights)
    return tuple(times * count for count in rows)


def _make_pattern(
    spec: JobSpec, phase: str, rows: Rows, steps: int | None, first_step: int | None, last_step: int | None
) -> Pattern:
    known = rows_unplannable(spec) is None
    return Pattern(
        phase=phase,
        module=spec.parallelism.module or "",
        batch_rows=sum(rows) if known else None,
        rows=rows if known else None,
        shapes_vary=None,
        input_shapes=None,
        output_shapes=None,
        steps=steps,
        first_step=first_step,
        last_step=last_step,
    )


def _merge_without_rows(patterns: list[Pattern]) -> list[Pattern]:
    """Patterns whose rows are unknown share one key, so they are one pattern."""
    if len(patterns) < 2 or patterns[0].rows is not None:
        return patterns
    return [
        msgspec.structs.replace(
            patterns[0],
            steps=sum(pattern.steps or 0 for pattern in patterns),
            last_step=max(pattern.last_step or 0 for pattern in patterns),
        )
    ]


def _prediction_notes(spec: JobSpec, train_rows: int | None, eval_rows: int | None) -> dict[str, str]:
    notes = {f"patterns.{field}": _NO_SHAPES for field in ("shapes_vary", "input_shapes", "output_shapes")}
    unplannable = rows_unplannable(spec)
    if unplannable is not None:
        notes |= {"patterns.rows": unplannable, "patterns.batch_rows": unplannable}
    missing = {"program.data": train_rows is None}
    missing["program.evaluate.data"] = spec.recipe.evaluate is not None and eval_rows is None
    unknown = [name for name, is_missing in missing.items() if is_missing]
    if unknown:
        notes["patterns.steps"] = notes["patterns.last_step"] = f"{' and '.join(unknown)}: {_UNKNOWN_ROWS}"
    if train_rows is None:
        notes["rows"] = _UNKNOWN_ROWS
    elif spec.recipe.data.uneven is not None:
        notes["program.data.uneven"] = _describe_bias(deal_rows(spec, train_rows))
    return notes


def _describe_bias(deal: RowDeal) -> str:
    """What becomes of rows that do not divide among the ranks, and which rows weigh more or less for it."""
    if deal.uneven == "weigh":
        last = describe_rows(deal.counts(deal.batches - 1)) if deal.batches else "no"
        return f"each of {deal.rows} rows is read once and weighs the same; the last step has {last} rows"
    if deal.read == deal.rows:
        return f"{deal.rows} rows divide among {len(deal.weights)} ranks: each is read once and weighs the same"
    if deal.uneven == "drop":
        return (
            f"{deal.rows - deal.read} of {deal.rows} rows are left out of every epoch, and weigh nothing in it: the "
            "last ones, of a new order each epoch if rows are shuffled"
        )
    return (
        f"{deal.read - deal.rows} of {deal.read} rows are repeats: the first ones of the epoch's order, which weigh "
        "more in it than others"
    )
