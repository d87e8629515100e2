"""Finds problems in how a script used its devices, and suggests what to change in the script.

Nothing can be planned for a script, so every finding follows from what its processes did. A suggestion with a number is
never a guess: it is made only where the arithmetic of torch (`jobs.splits.plan`) shows that the finding would be gone.
What the probe could not observe is no finding.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from jobs.protocol.probe_records import Loaded
from jobs.splits.lint import data_parallel_problems, nearest_sizes, rank_problems
from jobs.splits.plan import chunk_rows, loader_batches, sampler_rows
from shardyard.contract.report import Finding
from workers.supervisor.report.findings import data_findings, evaluation_findings
from workers.supervisor.report.findings.common_passes import CommonPass, are_grouped, find_common_pass, is_duplicated
from workers.supervisor.report.findings.gradient_findings import CHECKS as GRADIENT_CHECKS
from workers.supervisor.report.findings.gradient_findings import averages_as_equals
from workers.supervisor.report.process_state import ProcessState
from workers.supervisor.report.script_observations import (
    ScriptObservations,
    count_of,
    find_unfinished_steps,
    find_unmade_group,
    name_ranks,
)

#: Findings that only scripts have; the others are those of `jobs.splits.lint`.
CODES = frozenset(
    {
        *("no-work-done", "fewer-processes", "duplicated-work", "unsynchronised-ranks", "unfinished-step"),
        "unmade-group",
        *data_findings.CODES,
        *evaluation_findings.CODES,
    }
)
MAX_LINE = 200
#: Samplers that go over all rows of their data set, or over those of their rank.
DROPPING_SAMPLERS = frozenset({"SequentialSampler", "RandomSampler", "DistributedSampler"})


def find_problems(seen: ScriptObservations) -> list[Finding]:
    """All findings, the most important first."""
    checks = _CHECKS if seen.workers else (_no_work_done,)
    return [finding for check in (_never_finished, _group_never_made, *checks) for finding in check(seen)]


def _warning(code: str, message: str, suggestion: str) -> Finding:
    return Finding(code, "warning", message, suggestion)


# -- whether there was any work, and who did it ----------------------------------------------------


def _no_work_done(seen: ScriptObservations) -> Iterator[Finding]:
    """A script that looked for GPUs, found none and ended with 0 is the most dangerous success. Backwards without a
    module and an optimizer are work: a program may update its tensors by itself."""
    if not seen.succeeded or any(process.activity is None for process in seen.processes if process.source == 0):
        return
    if any(process.activity is not None and process.activity.backwards for process in seen.processes):
        return
    if seen.blind:
        yield Finding(
            "no-work-done",
            "info",
            f"the script exited with code 0; {seen.blind}",
            "if such a program did the training, train in the script itself, by multiprocessing, or in the same Python",
        )
        return
    printed = f'; the last line it printed: "{seen.last_line[:MAX_LINE]}"' if seen.last_line else ""
    suggestion = "check its log for why it ended: it may need arguments, or what its main block tests for was missing"
    if seen.virtual and not seen.spec.rehearsal:
        suggestion = (
            "if it expects GPUs, there are none here: submit it with program.rehearse set to true, or to a pool that "
            "has GPUs; otherwise check its log for why it ended"
        )
    yield _warning(
        "no-work-done",
        f"the script exited with code 0, but no forward pass and no optimizer step was observed{printed}",
        suggestion,
    )


def _fewer_processes(seen: ScriptObservations) -> Iterator[Finding]:
    groups = [process.group.world_size for process in seen.processes if process.group is not None]
    asked = max([seen.devices if seen.spec.distributed else 1, *groups])
    working = {process.rank for process in seen.workers}
    over = {process.rank for process in seen.processes if seen.final or process.ended}
    missing = [rank for rank in range(asked) if rank not in working and (rank in over or seen.final)]
    if missing:
        yield _warning(
            "fewer-processes",
            f"{asked} processes were requested and {len(working)} worked: "
            f"{name_ranks(missing)} ran no forward and no step",
            f"check rank {missing[0]}'s log for why it had nothing to do, "
            f"or request {count_of(len(working), 'device')}",
        )
    elif seen.spec.distributed and groups and max(groups) < seen.devices:
        yield _warning(
            "fewer-processes",
            f"{seen.devices} processes were started, but the script's process group has {max(groups)}: "
            "they do not work together",
            "call init_process_group() without a rank and a world_size, so that it takes them from the environment",
        )


def _idle_all_along(seen: ScriptObservations) -> Iterator[Finding]:
    """Devices of one process that no forward has used. Processes of a script that share virtual devices use the
    cores of all of them."""
    if seen.spec.distributed or len({process.rank for process in seen.workers}) > 1:
        return
    if seen.virtual and not seen.spec.rehearsal and sum(process.trained for process in seen.workers) > 1:
        return
    used = {place for splits in seen.divided.values() for rows in splits for place, count in enumerate(rows) if count}
    if seen.devices > 1 and used and all(len(rows) == 1 for splits in seen.divided.values() for rows in splits):
        yield _warning(
            "idle-devices",
            f"{seen.devices} devices were leased, but every forward that was observed ran on one of them",
            _use_of_devices(seen),
        )


def _use_of_devices(seen: ScriptObservations) -> str:
    wrapped = any(kind == "DataParallel" for process in seen.processes for kind, _ in process.wrapped)
    if wrapped and seen.virtual and not seen.spec.rehearsal:
        return (
            "DataParallel does not divide batches without GPUs: submit the script with program.rehearse set to true, "
            "or to a pool that has GPUs"
        )
    return (
        'wrap the model in nn.DataParallel, or use DistributedDataParallel under strategy "ddp", or ask for 1 device; '
        "modules that the script itself puts on other devices (model parallelism) are not observed"
    )


# -- the same work twice, or ranks that drift apart ------------------------------------------------


def _same_or_apart(seen: ScriptObservations) -> Iterator[Finding]:
    """Several ranks trained: on the same rows, or on their own without anything that keeps their models alike."""
    trainers = seen.trainers
    if len(trainers) < 2 or any(process.shares_tensors for process in trainers):
        return
    shared, grouped = find_common_pass(trainers), are_grouped(trainers)
    if shared is not None and is_duplicated(shared):
        yield _duplicated_work(shared, grouped)
    elif not _kept_alike(trainers) and not _why_untold(trainers, shared):
        how = "each on a part of the data of its own" if shared is not None and shared.sharded else "each by itself"
        yield _warning(
            "unsynchronised-ranks",
            f"{len(trainers)} ranks trained, {how}, and nothing averaged their gradients: their models drift apart",
            "wrap the model in DistributedDataParallel on every rank, or average the gradients with all_reduce "
            "before each optimizer step",
        )


def _kept_alike(trainers: Sequence[ProcessState]) -> bool:
    """Whether something may keep the models alike: a wrapper, or reductions of the script's own. So it is where
    nobody has counted them."""
    return any(process.activity is None or process.averages_gradients for process in trainers)


def _why_untold(trainers: Sequence[ProcessState], shared: CommonPass | None) -> str:
    """Why it cannot be told whether ranks in a process group should have averaged their gradients; "" where it can."""
    if not are_grouped(trainers):
        return ""
    if any(process.exchanges_tensors for process in trainers):
        return "they exchange tensors in other ways than by adding them up"
    if shared is None:
        return "no DataLoader was seen that all of them trained on"
    return "" if shared.sharded else "it is not known which rows each of them read"


def remarks_on_averages(seen: ScriptObservations) -> Iterator[str]:
    """What could not be told about ranks that train and average nothing."""
    trainers = seen.trainers
    if len(trainers) < 2 or any(process.shares_tensors for process in trainers) or _kept_alike(trainers):
        return
    shared = find_common_pass(trainers)
    why = _why_untold(trainers, shared)
    if why and not (shared is not None and is_duplicated(shared)):
        yield (
            f"{len(trainers)} ranks trained, and nothing that averages their gradients was seen: whether it should be "
            f"could not be told, since {why}"
        )


def _duplicated_work(shared: CommonPass, grouped: bool) -> Finding:
    ranks = len(shared.loads)
    if shared.holds_same is None:
        return Finding(
            "duplicated-work",
            "info",
            f"{ranks} ranks went over rows of the same numbers, {shared.processed:,} in one pass; whether these are "
            "the same rows is not known: each rank may have data of its own, or change its rows at random",
            "if all ranks read the same data, give the DataLoader sampler=DistributedSampler(dataset) and "
            "shuffle=False, and call the sampler's set_epoch in every epoch",
        )
    rows = f"{shared.processed:,} rows were processed in one pass, {shared.distinct:,} of them distinct"
    if grouped:
        return _warning(
            "duplicated-work",
            f"{ranks} ranks went over the same rows: {rows}",
            "give the DataLoader sampler=DistributedSampler(dataset) and shuffle=False, and call the sampler's "
            "set_epoch in every epoch; ranks that share one model's tensors need the same rows, and nothing "
            "is wrong there",
        )
    return _warning(
        "duplicated-work",
        f"{ranks} processes without a process group trained side by side over the same rows: {rows}",
        "call torch.distributed.init_process_group(), wrap the model in DistributedDataParallel and give the "
        'DataLoader a DistributedSampler; or ask for 1 device under strategy "single"',
    )


# -- how batches were divided ----------------------------------------------------------------------


def _under_data_parallel(seen: ScriptObservations) -> Iterator[Finding]:
    """The first finding of each kind, over all modules that were wrapped."""
    found: dict[str, Finding] = {}
    for module, splits in sorted(seen.divided.items()):
        divided = sorted((rows for rows in splits if len(rows) > 1 and any(rows)), key=sum, reverse=True)
        if not divided:
            continue
        full = divided[0]
        smaller = [rows for rows in divided if sum(rows) < sum(full)]
        loads = [one for process in seen.processes for one in process.passes.latest.values()]
        load = next((one for one in reversed(loads) if one.batch_size == sum(full)), None)
        ends = load is not None and load.rows is not None and load.complete
        last = ends and load is not None and smaller[:1] and sum(smaller[0]) == (load.rows or 0) % sum(full)
        which = ("the last batch", "the others have") if last else ("a batch", "the largest has")
        for problem in data_parallel_problems(full, smaller, len(full), which):
            where = f" (module {module})" if module else ""
            suggestion = _better_batches(problem.code, full, load if ends else None, load is not None)
            found.setdefault(problem.code, Finding(problem.code, problem.severity, problem.message + where, suggestion))
        if seen.phase == "train":
            found.setdefault("ddp-would-fit-better", _ddp_would_fit(full))
    yield from found.values()


def _better_batches(code: str, full: Sequence[int], load: Loaded | None, by_loader: bool) -> str:
    """`load` is a whole pass over the DataLoader, where one was seen."""
    size, devices = sum(full), len(full)
    if tuple(full) != chunk_rows(size, devices):
        return "the devices did not get equal shards along the first dimension, so no batch size can be worked out"
    rows = load.rows if load is not None else None
    subject = "change batch_size in your DataLoader to" if by_loader else "make the model's batches of"
    if code != "ragged-last-batch" or rows is not None:
        fits = _fitting_sizes(size, devices, rows, lambda other: _is_even(other, devices, rows, drop_last=False))
        if fits:
            return f"{subject} {' or '.join(map(str, fits))}"
    if not by_loader:
        return "make every batch size a multiple of the number of devices"
    if _is_even(size, devices, rows, drop_last=True):
        return "pass drop_last=True to your DataLoader" + _describe_dropped(size, rows)
    fits = _fitting_sizes(size, devices, rows, lambda other: _is_even(other, devices, rows, drop_last=True))
    if fits:
        return f"{subject} {' or '.join(map(str, fits))} and pass drop_last=True"
    fewer = next((n for n in range(devices - 1, 0, -1) if _is_even(size, n, rows, drop_last=False)), None)
    return f"ask for {count_of(fewer, 'device')}" if fewer is not None else "use batches of at least one row a device"


def _describe_dropped(size: int, rows: int | None) -> str:
    if rows is None or not rows % size:
        return ""
    return f", which leaves {rows % size:,} of {rows:,} rows out of every pass"


def _fitting_sizes(size: int, devices: int, rows: int | None, fits: Callable[[int], bool]) -> list[int]:
    """The two nearest batch sizes that fit, in order."""
    return sorted(islice(filter(fits, nearest_sizes(size, devices, rows)), 2))


def _is_even(size: int, devices: int, rows: int | None, *, drop_last: bool) -> bool:
    """Whether every device gets equally many rows of every batch of a pass."""
    cut = [size] if rows is None else [batch for batch, _ in loader_batches(rows, size, drop_last)]
    return bool(cut) and all(len(set(chunk_rows(batch, devices))) == 1 for batch in cut)


def _ddp_would_fit(full: Sequence[int]) -> Finding:
    devices = len(full)
    return Finding(
        "ddp-would-fit-better",
        "info",
        f"DataParallel copies the model to {devices} devices and gathers the outputs on one in every step; under "
        "DistributedDataParallel each device keeps its copy and only gradients travel",
        f"wrap the model in DistributedDataParallel, batch {max(1, round(sum(full) / devices))} rows on each rank "
        'with a DistributedSampler, and submit it with strategy "ddp"',
    )


def _among_ranks(seen: ScriptObservations) -> Iterator[Finding]:
    """Ranks whose gradients are averaged as equals although their row counts differ."""
    if len(seen.trainers) < 2 or not any(process.averages_gradients for process in seen.trainers):
        return
    for problem in rank_problems(seen.patterns) if averages_as_equals(seen) else ():
        suggestion = _equal_ranks(seen.trainers)
        yield Finding(problem.code, problem.severity, problem.message, suggestion, numbers=problem.numbers)


def _equal_ranks(trainers: Sequence[ProcessState]) -> str:
    shared = find_common_pass(trainers)
    if shared is not None and all(load.complete and load.batch_size for load in shared.loads.values()):
        full = {((load.rows or 0) // (load.batch_size or 1), load.batch_size) for load in shared.loads.values()}
        if len(full) == 1 and next(iter(full))[0]:
            return "pass drop_last=True to your DataLoader: every rank then has the same full batches"
    return "weight each rank's loss by its rows times ranks over the rows of the whole batch"


def _sampler_padding(seen: ScriptObservations) -> Iterator[Finding]:
    for load in (one for process in seen.trainers for one in reversed(process.passes.latest.values())):
        rows, ranks, read = load.dataset_rows or 0, load.replicas or 1, load.rows or 0
        repeated = read * ranks - rows
        is_padded = rows and ranks > 1 and repeated > 0 and read == sampler_rows(rows, ranks, drop_last=False)
        if not (load.trained and load.complete and is_padded):
            continue
        yield Finding(
            "sampler-padding",
            "info",
            f"{ranks} ranks of {read:,} rows read {read * ranks:,} rows of {rows:,}: "
            f"{repeated:,} {'is a repeat' if repeated == 1 else 'are repeats'}, in every pass",
            _without_padding(rows, ranks, load.sampler),
        )
        return


def _dropped_rows(seen: ScriptObservations) -> Iterator[Finding]:
    """`drop_last`, of the loader or of the sampler, as the numbers of a whole pass show it."""
    for load in (one for process in seen.trainers for one in reversed(process.passes.latest.values())):
        rows, ranks, read, size = load.dataset_rows or 0, load.replicas or 1, load.rows or 0, load.batch_size or 0
        if not (load.trained and load.complete and rows and read and size and load.sampler in DROPPING_SAMPLERS):
            continue
        each = sampler_rows(rows, ranks, drop_last=False)
        dropping = {rows // ranks, rows // ranks // size * size, each // size * size}
        left = rows - read * ranks
        if left <= 0 or read not in dropping or load.batches != -(-read // size):
            continue
        every = f" over {ranks} ranks" if ranks > 1 else ""
        fits = _fitting_sizes(size, 1, rows, lambda other, part=each: part % other == 0)  # type: ignore[misc]
        suggestion = f"change batch_size in your DataLoader to {' or '.join(map(str, fits))}, or leave drop_last out"
        yield Finding(
            "dropped-rows",
            "info",
            f"drop_last leaves {left:,} of {rows:,} rows out of every pass{every}",
            suggestion if fits and rows % ranks == 0 else "leave drop_last out where every row counts",
        )
        return


def _without_padding(rows: int, ranks: int, sampler: str) -> str:
    left = count_of(rows % ranks, "row")
    dropping = f"pass drop_last=True to the DistributedSampler, which leaves {left} out of each pass"
    if sampler != "DistributedSampler":
        dropping = (
            f"have what shares the rows out among ranks repeat none, or leave {left} out of each pass (for accelerate: "
            "even_batches=False, or drop_last=True in the DataLoader)"
        )
    fewer = next((n for n in range(ranks - 1, 1, -1) if rows % n == 0), None)
    return dropping if fewer is None else f"{dropping}, or ask for {fewer} devices"


# -- a step that never came back -------------------------------------------------------------------


def _never_finished(seen: ScriptObservations) -> Iterator[Finding]:
    for one in find_unfinished_steps(seen):
        if one.long:
            yield _warning(
                "unfinished-step",
                str(one),
                f"check the last lines in the log of {name_ranks(one.behind or one.ranks)}: a step that does not end "
                "often waits for a collective that another rank never calls, or for a lock",
            )


def _group_never_made(seen: ScriptObservations) -> Iterator[Finding]:
    group = find_unmade_group(seen)
    if group is None:
        return
    waited = f"{name_ranks(group.ranks)} waited {group.seconds:,.0f} s in init_process_group() until the end"
    if group.missing:
        yield _warning(
            "unmade-group",
            f"{waited}; {name_ranks(group.missing)} never called it",
            f"check the log of {name_ranks(group.missing)}: every rank must call init_process_group()",
        )
    else:
        yield _warning(
            "unmade-group",
            f"{waited}, where more ranks are expected, or another address",
            "call init_process_group() without a rank, a world_size and an address, so that it takes them from the "
            "environment",
        )


_Check = Callable[[ScriptObservations], Iterator[Finding]]
_CHECKS: tuple[_Check, ...] = (
    _fewer_processes,
    _same_or_apart,
    _idle_all_along,
    _under_data_parallel,
    _among_ranks,
    *GRADIENT_CHECKS,
    _sampler_padding,
    _dropped_rows,
    *data_findings.CHECKS,
    *evaluation_findings.CHECKS,
)
