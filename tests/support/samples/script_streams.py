"""Records as the probe sends them from a script, for tests of its report."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from jobs.model.spec import JobSpec
from jobs.model.spec_rules import parse_spec
from jobs.protocol.packets import AnyRecord
from jobs.protocol.probe_records import Activity, Group, Loaded, Wrapped
from jobs.protocol.records import BatchSplit, Began, Outcome, Step
from jobs.splits.findings.time_findings import CODES as TIME_CODES
from jobs.splits.findings.uneven_work import CODES as WORK_CODES
from jobs.splits.lint import _REMEDIES
from jobs.splits.plan import predict_splits
from shardyard.contract.report import Finding, Report
from tests.support.samples.record_streams import lease, split, step
from workers.supervisor.report.findings.gradient_findings import CODES as GRADIENT_CODES
from workers.supervisor.report.findings.script_lint import CODES
from workers.supervisor.report.script_aggregator import ScriptAggregator

#: A number that stands for "these indices": equal ones mean the same rows.
SAME_ROWS = 1234


def script_spec(strategy: str = "single", devices: int = 1, **program: Any) -> JobSpec:
    body = {
        "resources": {"devices": devices},
        "parallelism": {"strategy": strategy},
        "program": {"kind": "script", "bundle": "sha256:" + "0" * 64, "entrypoint": "train.py", **program},
    }
    return parse_spec(json.dumps(body))


def told(strategy: str = "single", devices: int = 1, kind: str = "cpu", **program: Any) -> ScriptAggregator:
    spec = script_spec(strategy, devices, **program)
    return ScriptAggregator("job-1", 1, spec, lease(devices, kind), predict_splits(spec, None, None))


def feed(told: ScriptAggregator, records: Iterable[AnyRecord], rank: int = 0, source: int = 0) -> None:
    for record in records:
        told.add_record(rank, record, source)


def end(told: ScriptAggregator, ranks: int = 1, exit_code: int = 0) -> None:
    """Every rank says how it ended, and has."""
    for rank in range(ranks):
        told.add_record(rank, Outcome(rank, exit_code))
        told.rank_ended(rank)


def steps(
    batches: Sequence[Sequence[int]],
    devices: Sequence[int] = (0,),
    *,
    phase: str = "train",
    module: str = "",
    first: int = 0,
    first_id: int = 0,
    at: float = 0.0,
) -> list[BatchSplit | Step]:
    """A step for each batch, all ended `at`; a batch is the rows of each device."""
    numbers: dict[tuple[int, ...], int] = {}
    records: list[BatchSplit | Step] = []
    for place, rows in enumerate(map(tuple, batches)):
        if rows not in numbers:
            numbers[rows] = first_id + len(numbers)
            records.append(split(numbers[rows], devices, rows, phase, module))
        records.append(step(first + place, [numbers[rows]], rows, phase, at=at))
    return records


def loaded(
    rows: int,
    batch_size: int,
    dataset_rows: int,
    *,
    loader: int = 0,
    number: int = 0,
    digest: int | None = SAME_ROWS,
    shard: tuple[int, int] | None = None,
    complete: bool = True,
    batches: int | None = None,
    trained: bool = True,
    contents: tuple[tuple[int, ...], ...] = ((0, 10, 1), (1, 11, 1)),
    **seen: Any,
) -> Loaded:
    """A pass over a loader; `shard` is (which, of how many), `contents` has checksums of its first rows, and `seen`
    further fields."""
    replica, replicas = shard if shard is not None else (None, None)
    sampler = "RandomSampler" if shard is None else "DistributedSampler"
    counted = -(-rows // batch_size) if batches is None else batches
    return Loaded(
        *(
            loader,
            number,
            counted,
            rows,
            dataset_rows,
            batch_size,
            sampler,
            replicas,
            replica,
            digest,
            complete,
            trained,
            contents,
        ),
        **seen,
    )


def activity(forwards: int = 1, steps: int = 1, reductions: int = 0) -> Activity:
    return Activity(forwards, steps, steps, reductions)


IDLE = activity(0, 0)
DDP = Wrapped("DistributedDataParallel", "Net", (0,))


def report_on(ranks: Sequence[Iterable[AnyRecord]], strategy: str = "ddp", devices: int | None = None) -> Report:
    """The report of a script on what its ranks have sent, which have ended well."""
    script = told(strategy, len(ranks) if devices is None else devices)
    for rank, records in enumerate(ranks):
        feed(script, records, rank)
    end(script, len(ranks))
    return script.make_report(final=True)


def joined(rank: int, world_size: int) -> Group:
    return Group(rank, world_size, "gloo")


def began(number: int, at: float, phase: str = "train") -> Began:
    return Began(number, phase, at)


def findings(report: Report) -> dict[str, Finding]:
    known = CODES | TIME_CODES | WORK_CODES | GRADIENT_CODES | set(_REMEDIES)
    assert {finding.code for finding in report.findings} <= known
    return {finding.code: finding for finding in report.findings}


def rows_of(report: Report) -> list[int | None]:
    return [device.rows for device in report.per_device]


def counted(report: Report) -> dict[tuple[str, str, tuple[int | None, ...] | None], int | None]:
    """(phase, module, rows) of each pattern -> steps."""
    return {(pattern.phase, pattern.module, pattern.rows): pattern.steps for pattern in report.patterns}
