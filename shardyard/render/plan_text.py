"""A plan as plain text for a terminal: what each device would get of every batch, before anything runs."""

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import RenderableType

from shardyard.contract.report import describe_rows
from shardyard.contract.responses import Plan
from shardyard.render.text_tables import finding_lines, format_count, note_lines, render_page, split_tables

#: Of more devices, a plan says in words what they get: tables of them are large, and take long to lay out.
MAX_COLUMNS = 64


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """The job of a plan. `devices` are those of each node. `predictable` is false for a script, whose splits are known
    only when it runs."""

    name: str | None
    strategy: str
    devices: int
    predictable: bool
    nodes: int = 1


def render_plan(plan: Plan, job: PlannedJob, width: int = 100) -> str:
    """The plan of one epoch of a job."""

    def splits(width: int) -> Iterator[RenderableType]:
        known = [pattern for pattern in plan.patterns if pattern.rows is not None]
        if known and max(len(pattern.rows or ()) for pattern in known) > MAX_COLUMNS:
            for pattern in known:
                yield f"{pattern.phase}: {format_count(pattern.steps)} steps, each {describe_rows(pattern.rows or ())}"
        elif known:
            yield from split_tables(known, width)
        for pattern in plan.patterns:
            if pattern.rows is None:
                yield f"{pattern.phase}: {format_count(pattern.steps)} steps, whose rows of each device are not known"
        if not plan.patterns and job.predictable:
            yield "there is no batch at all"
        elif not plan.patterns:
            yield "not known before it runs: the report of the run will show what each device got"

    sections = (
        ("Splits of one epoch: rows of each device", splits),
        *([("Findings", lambda width: finding_lines(plan.findings))] if job.predictable else []),
        ("Notes", lambda width: note_lines(plan.notes)),
    )
    return render_page(_header_lines(plan, job), sections, width)


def _header_lines(plan: Plan, job: PlannedJob) -> Iterator[str]:
    yield f"Plan of {job.name}: nothing has run" if job.name else "Plan: nothing has run"
    size = "rows not known here" if plan.rows is None else f"{format_count(plan.rows)} rows"
    batch = "batch size not known here"
    if plan.batch_size is not None and plan.global_batch_size is not None:
        batch = f"batch size {format_count(plan.batch_size)}, {format_count(plan.global_batch_size)} over all"
    devices = f"{job.devices} {'device' if job.devices == 1 else 'devices'}"
    if job.nodes > 1:
        devices += f" on each of {job.nodes} nodes, {format_count(job.devices * job.nodes)} together"
    yield f"strategy {job.strategy}, {devices}; {size}, {batch}"
    if plan.step_ms is not None:
        yield f"a step would take about {plan.step_ms:.3g} ms on the slowest device: {plan.notes.get('step_ms', '')}"
