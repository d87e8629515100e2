"""Finds problems in how a script evaluates: rows that count twice, and ranks that do the same work or wait.

An evaluation is a whole pass over a DataLoader in which a model was called and nothing was trained.
"""

from collections.abc import Iterator, Sequence

from jobs.protocol.probe_records import Loaded
from jobs.splits.device_sums import measured
from jobs.splits.plan import sampler_rows
from shardyard.contract.report import Finding, Severity
from workers.supervisor.report.findings.common_passes import CommonPass, are_grouped
from workers.supervisor.report.process_state import ProcessState
from workers.supervisor.report.script_observations import ScriptObservations, count_of, name_ranks

#: Ranks that wait for less in all are not worth a word.
LEAST_WAIT_SECONDS = 10.0
#: A pause is a wait for an evaluation if that fills so much of it.
FILLED = 0.5
#: From this share of the devices' time on it is a warning.
WARNING_SHARE = 0.10
ADD_UP = "add the counts up with all_reduce()"


# -- rows that count twice -------------------------------------------------------------------------


def find_rows_counted_twice(seen: ScriptObservations) -> Iterator[Finding]:
    """`evaluation-counts-twice`: a DistributedSampler repeats rows, so that all ranks have equally many."""
    load = _find_padded_evaluation(seen)
    if load is None or _may_be_cut_off(seen) or not _adds_up(seen):
        return
    rows, ranks, twice = load.dataset_rows or 0, load.replicas or 1, _repeated_rows(load)
    yield Finding(
        "evaluation-counts-twice",
        "warning",
        f"{ranks} ranks evaluate {load.rows:,} rows each, and the data set has {rows:,}: {_count_twice(twice)} in what "
        "the ranks add up",
        "evaluate Subset(dataset, range(rank, len(dataset), world_size)) on each rank, which repeats no row; call "
        "model.module there, since ranks then have different numbers of batches",
        numbers={"rows": float(rows), "rows_twice": float(twice), "ranks": float(ranks)},
    )


def remarks_on_evaluation(seen: ScriptObservations) -> Iterator[str]:
    """What could not be told about rows that a sampler has repeated."""
    load = _find_padded_evaluation(seen)
    if load is not None and _may_be_cut_off(seen):
        yield (
            f"of {load.dataset_rows:,} rows that were evaluated {count_of(_repeated_rows(load), 'was', 'were')} read "
            "twice: whether they count twice could not be told, since the script gathers tensors and may cut them off"
        )


def _find_padded_evaluation(seen: ScriptObservations) -> Loaded | None:
    """The latest evaluation with repeated rows. Only at the end is it known what else the script has called."""
    if not seen.final or any(process.activity is None for process in seen.workers):
        return None
    evaluations = (one for process in seen.workers for one in reversed(process.passes.evaluations))
    return next((one for one in evaluations if _is_padded(one)), None)


def _is_padded(load: Loaded) -> bool:
    """Whether torch's own sampler has given a rank more rows than it needs."""
    rows, ranks = load.dataset_rows or 0, load.replicas or 1
    if load.sampler_number is None or not rows or ranks < 2:
        return False
    return _repeated_rows(load) > 0 and load.rows == sampler_rows(rows, ranks, drop_last=False)


def _repeated_rows(load: Loaded) -> int:
    return (load.rows or 0) * (load.replicas or 1) - (load.dataset_rows or 0)


def _may_be_cut_off(seen: ScriptObservations) -> bool:
    """Whether the ranks bring their outputs together, and may leave out the rows at the end."""
    return any(process.activity is not None and process.activity.gathers for process in seen.workers)


def _adds_up(seen: ScriptObservations) -> bool:
    """Whether the ranks add up what they have counted: otherwise each has a metric of its own."""
    return any(process.activity is not None and process.activity.evaluation_sums for process in seen.workers)


def _count_twice(rows: int) -> str:
    return f"{rows:,} {'row counts' if rows == 1 else 'rows count'} twice"


# -- ranks that do the same, or nothing ------------------------------------------------------------


def find_repeated_evaluations(seen: ScriptObservations) -> Iterator[Finding]:
    """`evaluation-on-every-rank`: each rank evaluates all rows of a data set that they could share."""
    workers = list({process.rank: process for process in seen.workers}.values())
    if not are_grouped(workers) or not _hold_one_model(workers):
        return
    shared = next((one for one in _shared_evaluations(workers) if one.holds_same and _can_be_shared(one)), None)
    if shared is None:
        return
    load, ranks = next(iter(shared.loads.values())), len(workers)
    same = [one for process in workers for one in process.passes.evaluations if _key(one) == _key(load)]
    seconds = sum(measured(one.seconds) or 0.0 for one in same)
    cost = seconds * (ranks - 1) / ranks
    share = _share_of_run(cost, seen)
    yield Finding(
        "evaluation-on-every-rank",
        _severity(share),
        f"each of {ranks} ranks evaluates the same {load.rows:,} rows, all that the data set has: "
        f"{seconds:.3g} device-seconds so far, of which {seconds / ranks:.3g} would do",
        f"evaluate Subset(dataset, range(rank, len(dataset), world_size)) on each rank, and {ADD_UP}",
        numbers={"ranks": float(ranks), "rows": float(load.rows or 0), "seconds": round(seconds, 4)},
        cost_device_seconds=round(cost, 4),
        cost_share=share,
    )


def _hold_one_model(workers: Sequence[ProcessState]) -> bool:
    """Whether the ranks evaluate the same model, as far as that can be told."""
    return any(process.averages_gradients for process in workers) and not any(
        process.shares_tensors for process in workers
    )


def _can_be_shared(shared: CommonPass) -> bool:
    """Whether there is a batch for each rank."""
    return all(load.batches >= len(shared.loads) for load in shared.loads.values())


def _key(load: Loaded) -> tuple[int | None, int | None, int | None]:
    return load.digest, load.rows, load.dataset_rows


def _shared_evaluations(workers: Sequence[ProcessState]) -> Iterator[CommonPass]:
    """Evaluations of a whole data set that every rank has made."""
    if len(workers) < 2:
        return
    firsts = [{_key(one): one for one in reversed(process.passes.evaluations)} for process in workers]
    for key, load in firsts[0].items():
        is_whole = load.digest is not None and load.rows == load.dataset_rows and (load.replicas or 1) < 2
        if is_whole and all(key in others for others in firsts):
            loads = {process.rank: first[key] for process, first in zip(workers, firsts, strict=True)}
            yield CommonPass(loads, {one.rank: one.passes.contents_of(loads[one.rank]) for one in workers})


def find_evaluation_on_one_rank(seen: ScriptObservations) -> Iterator[Finding]:
    """`evaluation-on-one-rank`: one rank evaluates, and all others wait for it."""
    trainers = seen.trainers
    if len(trainers) < 2 or not are_grouped(trainers):
        return
    for process in trainers:
        others = [other for other in trainers if other is not process]
        waits = [_waited_for(other, process.passes.evaluations) for other in others]
        if min(waits) < LEAST_WAIT_SECONDS:
            continue
        cost = sum(waits)
        share = _share_of_run(cost, seen)
        who = name_ranks(sorted(other.rank for other in others))
        yield Finding(
            "evaluation-on-one-rank",
            _severity(share),
            f"{process.name} evaluates alone, and {who} waited {min(waits):,.1f} s "
            f"{'each ' if len(others) > 1 else ''}for it",
            f"evaluate Subset(dataset, range(rank, len(dataset), world_size)) on every rank, and {ADD_UP}",
            numbers={"rank": float(process.rank), "waited_seconds": round(min(waits), 4)},
            cost_device_seconds=round(cost, 4),
            cost_share=share,
        )
        return


def _waited_for(process: ProcessState, evaluations: Sequence[Loaded]) -> float:
    """Seconds of long pauses between the steps of a process that are filled by evaluations of another."""
    waited = 0.0
    for begin, end in process.pauses:
        overlaps = (min(end, one.began_at + one.seconds) - max(begin, one.began_at) for one in evaluations)
        filled = sum(overlap for overlap in overlaps if overlap > 0)
        waited += min(filled, end - begin) if filled >= FILLED * (end - begin) else 0.0
    return waited


def _share_of_run(seconds: float, seen: ScriptObservations) -> float | None:
    """The share of so many device-seconds in the time of all devices."""
    walls = [wall for process in seen.processes if (wall := process.wall_ms(seen.now)) is not None]
    whole = max(walls, default=0.0) * seen.devices / 1000
    return round(min(1.0, seconds / whole), 4) if whole else None


def _severity(share: float | None) -> Severity:
    return "warning" if share is not None and share >= WARNING_SHARE else "info"


CHECKS = (find_rows_counted_twice, find_repeated_evaluations, find_evaluation_on_one_rank)
CODES = frozenset({"evaluation-counts-twice", "evaluation-on-every-rank", "evaluation-on-one-rank"})
