"""Findings about a split: the problem as text and numbers, and the setting that solves it.

`lint` reads patterns, and does not mind whether they were planned or observed. Only the main phase
(train, or forward in forward mode) is looked at: an evaluation has no gradient and is a small part
of a run. A suggestion is never a guess: each candidate is planned first and offered only when the
finding is gone from its plan and the run still has a batch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, cast

import msgspec

from jobs.model.spec import JobSpec, RecipeProgram
from jobs.splits.norm_problems import NormFacts, one_row_problem, small_shard_problem
from jobs.splits.plan import Rows, epoch_steps, predict_splits
from jobs.splits.problems import SplitProblem
from jobs.splits.row_weights import weigh_rows
from shardyard.contract.report import Finding, Pattern, Severity, describe_rows

#: How many batch sizes (multiples of the devices) on either side of the user's are tried.
_NEIGHBOURS = 16
#: How many smaller counts of devices are tried.
_MAX_FEWER = 64
_MAX_BATCH_SIZE = 1_000_000
_BATCH_SIZE = "program.data.batch_size"
_DROP_LAST = "program.data.drop_last"
_UNEVEN = "program.data.uneven"
_WEIGHTS = "parallelism.weights"
_DEVICES = "resources.devices"
_NODES = "resources.nodes"
_STRAGGLER = "program.straggler"


#: What weights are for: devices get unequal numbers of rows.
_RAGGED = frozenset({"ragged-batch", "ragged-last-batch"})
#: Changes of one kind that are tried: one for each number of devices would be very many for a large job.
MAX_TRIED = 64
#: Dotted path in the spec -> new value; `None` means: leave the field out.
_Change = Mapping[str, Any]


def lint_splits(
    spec: JobSpec, patterns: Sequence[Pattern], rows: int | None, norms: NormFacts | None = None
) -> list[Finding]:
    """Findings about `patterns` of a job with `spec` over `rows` rows of training data (`None`: unknown), whose model
    has `norms`, where these are known."""
    if not isinstance(spec.program, RecipeProgram):
        return []
    return [
        Finding(
            problem.code,
            problem.severity,
            problem.message,
            _suggest_change(spec, rows, problem.code, norms),
            numbers=problem.numbers,
        )
        for problem in _find_problems(spec, patterns, rows, norms)
    ]


# -- finding problems ------------------------------------------------------------------------------


def _find_problems(
    spec: JobSpec, patterns: Sequence[Pattern], rows: int | None, norms: NormFacts | None
) -> list[SplitProblem]:
    split = _countable_patterns(patterns)
    found: list[SplitProblem] = []
    if spec.parallelism.strategy == "dp" and spec.resources.devices > 1 and split:
        split = _single_batches(spec, split, rows)
        largest = max(sum(counts) for _, counts in split)
        full = next(counts for _, counts in split if sum(counts) == largest)
        smaller = [counts for _, counts in split if sum(counts) < largest]
        problems = data_parallel_problems(full, smaller, spec.resources.devices)
        wanted = _RAGGED if spec.parallelism.weights is not None else frozenset[str]()
        found += [problem for problem in problems if problem.code not in wanted]
    if spec.distributed and not spec.weighs_ranks and not _adds_up_losses(spec):
        found += rank_problems(patterns)
    if norms is not None and spec.recipe.mode == "train":
        found += _of_norm_layers(spec, _countable_patterns(patterns), rows, norms)
    if rows is not None:
        found += _of_the_data_set(spec, rows)
    if _ddp_would_fit(spec):
        found.append(
            SplitProblem(
                "ddp-would-fit-better",
                "info",
                f"DataParallel copies the model to {spec.resources.devices} devices and gathers the outputs on one "
                "in every step; under ddp each device keeps its copy and only gradients travel",
            )
        )
    return found


def _adds_up_losses(spec: JobSpec) -> bool:
    """Whether the loss of a batch is the sum of its rows' losses, so that all rows weigh the same."""
    loss = spec.recipe.loss
    return loss is not None and loss.args.get("reduction") == "sum"


_Split = list[tuple[Pattern, Rows]]


def _countable_patterns(patterns: Sequence[Pattern]) -> _Split:
    """The patterns of the main phase, with the rows of each device where all of these are known."""
    main = [(pattern, tuple(pattern.rows or ())) for pattern in patterns if pattern.phase != "eval"]
    return [(pattern, cast(Rows, counts)) for pattern, counts in main if None not in counts and any(counts)]


def _single_batches(spec: JobSpec, split: _Split, rows: int | None) -> _Split:
    """What one batch gives each device. A pattern adds up the batches of a step where gradients are accumulated, so
    there the plan of the single batches is taken."""
    if spec.recipe.accumulate_steps == 1:
        return split
    alone = change_spec(spec, {"program.accumulate_steps": None, "program.max_steps": None})
    return _countable_patterns(predict_splits(alone, rows).epoch) or split


def data_parallel_problems(
    full: Sequence[int],
    smaller: Sequence[Sequence[int]],
    devices: int,
    words: tuple[str, str] = ("the last batch", "the others have"),
) -> Iterator[SplitProblem]:
    """What is wrong with how DataParallel divides the largest batch, and smaller ones. `words` say what the smaller
    ones are, and what the largest is to them."""
    batch, (which, others) = sum(full), words
    if batch < devices:
        yield SplitProblem(
            "batch-smaller-than-devices",
            "warning",
            f"a batch of {batch} cannot give a row to each of {devices} devices: {describe_rows(full)}",
        )
    if 0 in full:
        yield _idle_problem(full, "a batch", "warning")
    elif (idle := next((counts for counts in smaller if 0 in counts), None)) is not None:
        yield _idle_problem(idle, which, "info")
    if 0 not in full and len(set(full)) > 1:
        yield SplitProblem(
            "ragged-batch",
            "info",
            f"a batch of {batch} does not divide evenly among {devices} devices: {describe_rows(full)}",
        )
    if (ragged := next((counts for counts in smaller if len(set(counts)) > 1), None)) is not None:
        yield SplitProblem(
            "ragged-last-batch",
            "info",
            f"{which} of {sum(ragged)} ({others} {batch}) does not divide evenly "
            f"among {devices} devices: {describe_rows(ragged)}",
        )


def _idle_problem(rows: Sequence[int], which: str, severity: Severity) -> SplitProblem:
    idle = rows.count(0)
    return SplitProblem(
        "idle-devices",
        severity,
        f"{idle} of {len(rows)} devices {'gets' if idle == 1 else 'get'} nothing of {which} of {sum(rows)}: "
        f"{describe_rows(rows)}",
    )


def rank_problems(patterns: Sequence[Pattern]) -> Iterator[SplitProblem]:
    """Ranks with other row counts in one step; a rank that had ended (0 rows) is not averaged."""
    unequal = [(pattern, counts) for pattern, counts in _countable_patterns(patterns) if len(set(counts) - {0}) > 1]
    if unequal and unequal[0][0].phase == "train":
        steps = sum(pattern.steps or 0 for pattern, _ in unequal)
        worst = max((weigh_rows(counts) for _, counts in unequal), key=lambda one: one.misplaced)
        yield SplitProblem(
            "uneven-mean-of-means",
            "warning",
            f"in {steps} {'step' if steps == 1 else 'steps'} the ranks had different numbers of rows "
            f"({describe_rows(worst.counts)}), but their gradients are averaged as equals: a row on the smallest rank "
            f"weighs {worst.ratio:.3g} times one on the largest, and {worst.misplaced:.0%} of the gradient's weight is "
            "on the wrong rows",
            worst.numbers(steps),
        )


def _of_norm_layers(spec: JobSpec, split: _Split, rows: int | None, norms: NormFacts) -> Iterator[SplitProblem]:
    """What BatchNorm makes of single batches: those that are planned, too."""
    every, limit = spec.recipe.accumulate_steps, spec.recipe.max_steps
    alone = change_spec(spec, {"program.accumulate_steps": None, "program.max_steps": None})
    single = _countable_patterns(predict_splits(alone, rows).epoch) if rows is not None or every > 1 else split
    if not single:
        return
    full = max((counts for _, counts in single), key=sum)
    steps = [(None if one.first_step is None else one.first_step // every, counts) for one, counts in single]
    reached = [(step, counts) for step, counts in steps if step is None or limit is None or step < limit]
    hits = (one_row_problem(norms, counts, step) for step, counts in reached)
    yield from filter(None, (next(filter(None, hits), None), small_shard_problem(norms, full)))


def _of_the_data_set(spec: JobSpec, rows: int) -> Iterator[SplitProblem]:
    devices, data = spec.all_devices, spec.recipe.data
    used = sum(sum(shards) * times for shards, times in epoch_steps(spec, rows))
    if used < rows:
        setting = "drop_last" if data.drop_last else 'uneven "drop"'
        yield SplitProblem(
            "dropped-rows",
            "info" if used else "warning",
            f"{setting} leaves {rows - used} of {rows} rows out of every epoch"
            + ("" if used else ": there is no batch at all"),
        )
    elif used > rows:
        repeated = used - rows
        yield SplitProblem(
            "sampler-padding",
            "info",
            f"{devices} ranks of {used // devices} rows read {used} rows of {rows}: "
            f"{repeated} {'is a repeat' if repeated == 1 else 'are repeats'}, in every epoch",
        )


def _ddp_would_fit(spec: JobSpec) -> bool:
    how = spec.parallelism
    return how.strategy == "dp" and how.dim == 0 and spec.resources.devices > 1 and spec.recipe.mode == "train"


# -- suggesting a change ---------------------------------------------------------------------------


def _suggest_change(spec: JobSpec, rows: int | None, code: str, norms: NormFacts | None) -> str:
    for candidates in _REMEDIES[code]:
        tried = islice(candidates(spec, rows), MAX_TRIED)
        working = (change for change in tried if _change_helps(spec, change, rows, code, norms))
        best = list(islice(working, 2))
        if best:
            return _describe_changes(best) + _describe_dropped(spec, best[0], rows)
    return _WITHOUT_A_SETTING[code]


def _change_helps(spec: JobSpec, change: _Change, rows: int | None, code: str, norms: NormFacts | None) -> bool:
    """Whether the plan of the changed spec is free of a finding, and still has a batch."""
    if rows is None and code in _NEEDS_ROWS and _BATCH_SIZE in change:
        return False
    changed = change_spec(spec, change)
    plan = predict_splits(changed, rows).epoch
    if rows is not None and not any(pattern.steps for pattern in plan):
        return False
    return all(problem.code != code for problem in _find_problems(changed, plan, rows, norms))


def change_spec(spec: JobSpec, change: _Change) -> JobSpec:
    """The spec with some fields set (dotted path -> value) or left out (`None`)."""
    body = spec.model_dump(exclude_unset=True)
    for path, value in change.items():
        *parents, last = path.split(".")
        parent_fields = body
        for parent in parents:
            parent_fields = parent_fields.setdefault(parent, {})
        if value is None:
            parent_fields.pop(last, None)
        else:
            parent_fields[last] = value
    return JobSpec.model_validate(body)


def _describe_changes(changes: Sequence[_Change]) -> str:
    """The first change as a sentence, or two that are only batch sizes: "set program.data.batch_size to 24 or 32"."""
    first = changes[0]
    if len(changes) > 1 and list(first) == [_BATCH_SIZE] == list(changes[1]):
        sizes = sorted(change[_BATCH_SIZE] for change in changes)
        return f"set {_BATCH_SIZE} to {sizes[0]} or {sizes[1]}"
    kept = [f"{path} to {msgspec.json.encode(value).decode()}" for path, value in first.items() if value is not None]
    left_out = [path for path, value in first.items() if value is None]
    return f"set {' and '.join(kept)}" + (f", and leave out {', '.join(left_out)}" if left_out else "")


def _describe_dropped(spec: JobSpec, change: _Change, rows: int | None) -> str:
    """What a change costs that sets drop_last."""
    if rows is None or not change.get(_DROP_LAST):
        return ""
    used = sum(sum(shards) * times for shards, times in epoch_steps(change_spec(spec, change), rows))
    return f", which leaves {rows - used} of {rows} rows out of every epoch" if used < rows else ""


def _even_sizes(spec: JobSpec, rows: int | None) -> Iterator[_Change]:
    """Batch sizes that every device shares evenly, nearest first, up to the whole data set."""
    share = spec.resources.devices if spec.parallelism.strategy == "dp" else 1
    return ({_BATCH_SIZE: other} for other in nearest_sizes(spec.recipe.data.batch_size, share, rows))


def _any_sizes(spec: JobSpec, rows: int | None) -> Iterator[_Change]:
    return ({_BATCH_SIZE: other} for other in nearest_sizes(spec.recipe.data.batch_size, 1, rows))


def nearest_sizes(size: int, unit: int, rows: int | None) -> list[int]:
    """Multiples of `unit` from half to twice `size`, nearest first: further away, training itself would change."""
    middle = size // unit
    multiples = (unit * times for times in range(max(1, middle - _NEIGHBOURS), middle + _NEIGHBOURS + 1))
    largest = min(max(2 * size, unit), _MAX_BATCH_SIZE, _MAX_BATCH_SIZE if rows is None else rows)
    usable = [other for other in multiples if other != size and size / 2 <= other <= largest]
    return sorted(usable, key=lambda other: abs(other - size))


def _even_sizes_dropping(spec: JobSpec, rows: int | None) -> Iterator[_Change]:
    return ({**change, _DROP_LAST: True} for change in ({}, *_even_sizes(spec, rows)))


def _drop_last(spec: JobSpec, rows: int | None) -> Iterator[_Change]:
    if not spec.recipe.data.drop_last:
        yield {_DROP_LAST: True, **({_UNEVEN: None} if spec.recipe.data.uneven is not None else {})}


def _keep_last(spec: JobSpec, rows: int | None) -> Iterator[_Change]:
    if spec.recipe.data.drop_last:
        yield {_DROP_LAST: False}


def _weigh_ranks(spec: JobSpec, rows: int | None) -> Iterator[_Change]:
    """Each row once, and each with the same weight."""
    if spec.distributed and not spec.recipe.data.drop_last:
        yield {_UNEVEN: "weigh"}


def _fewer_devices(spec: JobSpec, rows: int | None) -> Iterator[_Change]:
    asked = spec.resources
    fewer = [
        (devices, nodes)
        for nodes in range(asked.nodes, 0, -1)
        for devices in range(asked.devices, 0, -1)
        if devices * nodes < spec.all_devices
    ]
    # As many as can be; of equally many, on as many nodes as they are asked for.
    fewer.sort(key=lambda one: one[0] * one[1], reverse=True)
    for devices, nodes in _thin_out(fewer):
        moved = spec.parallelism.output_device >= devices
        yield {
            **({_DEVICES: devices} if devices != asked.devices else {}),
            **({_NODES: nodes} if nodes != asked.nodes else {}),
            **({"parallelism.output_device": 0} if moved else {}),
            **({_WEIGHTS: None} if spec.weights is not None else {}),
            **({_STRAGGLER: None} if _slow_one(spec) >= devices * nodes else {}),
        }


def _thin_out(candidates: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The first of many, and some of the others at even distances: each is planned, which takes a while."""
    first, others = candidates[: _MAX_FEWER // 2], candidates[_MAX_FEWER // 2 :]
    return first + others[:: 1 + len(others) // (_MAX_FEWER // 2)]


def _slow_one(spec: JobSpec) -> int:
    """Index of the device or rank that is slow on purpose; -1 where there is none."""
    straggler = spec.recipe.straggler
    if straggler is None:
        return -1
    return max(-1 if index is None else index for index in (straggler.device, straggler.rank))


def _switch_to_ddp(spec: JobSpec, rows: int | None) -> Iterator[_Change]:
    """The same global batch, or the nearest one, with one DataLoader per rank."""
    how = spec.parallelism
    size = max(1, round(spec.recipe.data.batch_size / spec.resources.devices))
    only_dp = {"dim": how.dim, "output_device": how.output_device, "functional": how.functional}
    left_out = {f"parallelism.{field}": None for field, value in only_dp.items() if value}
    left_out |= {_STRAGGLER: None} if spec.recipe.straggler is not None else {}
    left_out |= {_WEIGHTS: None} if how.weights is not None and how.module is not None else {}
    change = {"parallelism.strategy": "ddp", _BATCH_SIZE: size, **left_out}
    yield change
    yield {**change, _DROP_LAST: False}


_Candidates = Callable[[JobSpec, int | None], Iterator[_Change]]

#: Candidates for each finding, group by group: the first group with one that helps is used.
_REMEDIES: dict[str, tuple[_Candidates, ...]] = {
    "batch-smaller-than-devices": (_even_sizes, _even_sizes_dropping, _fewer_devices),
    "idle-devices": (_even_sizes, _even_sizes_dropping, _fewer_devices),
    "ragged-batch": (_even_sizes, _even_sizes_dropping, _fewer_devices),
    "ragged-last-batch": (_even_sizes, _drop_last, _even_sizes_dropping, _fewer_devices),
    "sampler-padding": (_drop_last, _fewer_devices),
    "dropped-rows": (_even_sizes, _any_sizes, _keep_last, _weigh_ranks),
    "uneven-mean-of-means": (_drop_last,),
    "one-row-shard": (_drop_last, _even_sizes, _any_sizes, _fewer_devices),
    "batchnorm-small-shard": (),
    "ddp-would-fit-better": (_switch_to_ddp,),
}

#: Findings about the end of an epoch: without the number of rows, no batch size can be promised.
_NEEDS_ROWS = frozenset({"ragged-last-batch", "dropped-rows", "one-row-shard"})

_WITHOUT_A_SETTING = {
    **dict.fromkeys(_REMEDIES, "no setting near this one avoids it: the devices would have to divide the data set"),
    "batchnorm-small-shard": "give each device more rows (program.data.batch_size), or use nn.GroupNorm in the model",
    "uneven-mean-of-means": "weight each rank's loss by its rows times ranks over the rows of the whole batch",
}
