"""How jobs, lists and plans show themselves in a notebook, and lists in a terminal. Names and messages are other
people's, and are escaped."""

import time
from collections.abc import Sequence
from datetime import datetime
from html import escape
from typing import TYPE_CHECKING, Any, Final

from shardyard.contract.plain_text import escape_unsafe
from shardyard.contract.responses import JobStatus, JobSummary, ListedJob, Plan
from shardyard.formatting import format_age, format_duration, format_number, seconds_between, short_id, single_line

if TYPE_CHECKING:
    from shardyard.client.report import SplitReport

#: Colours of states on a light and on a dark page alike; the word stands beside them.
_COLOURS: Final = {"queued": "#b45309", "succeeded": "#15803d", "failed": "#b91c1c", "cancelled": "#7e22ce"}
_RUNNING: Final = "#2f6bb3"
#: Rows of a table, and characters of a traceback, that a page shows.
MAX_ROWS = 200
MAX_TRACEBACK = 20_000
#: Columns of a terminal that a cell takes at most.
MAX_CELL = 48
#: Between two pictures of a job that is watched.
REDRAW_SECONDS = 0.5
#: Of a plan; of more devices the first ones stand for all.
MAX_DEVICES = 64


class SpecPlan(Plan, frozen=True, kw_only=True):
    """The predicted splits of one epoch, with findings. A notebook shows what each device would get."""

    def _repr_html_(self) -> str:
        rows = [
            {"phase": pattern.phase, "steps": pattern.steps, "batch": pattern.batch_rows}
            | {f"device {device}": count for device, count in enumerate((pattern.rows or ())[:MAX_DEVICES])}
            for pattern in self.patterns
        ]
        found = [f"<div>{escape(one.severity)}: {escape(one.message)}</div>" for one in self.findings]
        notes = [f"<div style='opacity:.75'>{escape(note)}</div>" for note in self.notes.values()]
        return "".join([render_table(rows), *found, *notes])


class LiveCard:
    """A job below the cell of a notebook, drawn anew in its place."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._drawn = 0.0

    def is_due(self, event: object) -> bool:
        """Whether the card is to be drawn for an event: for a change of state at once, for others now and then."""
        is_change = type(event).__name__ in ("StateChanged", "Ended")
        return is_change or time.monotonic() - self._drawn >= REDRAW_SECONDS

    def show(self, known: JobSummary, report: "SplitReport | None") -> None:
        """Raises ImportError where IPython is not installed."""
        from IPython.display import HTML, display

        card = HTML(render_job_card(known, report))  # type: ignore[no-untyped-call]
        self._drawn = time.monotonic()
        if self._handle is None:
            self._handle = display(card, display_id=True)  # type: ignore[no-untyped-call]  # None outside of a notebook
        else:
            self._handle.update(card)


def render_job_card(known: JobSummary, report: "SplitReport | None") -> str:
    """A job: its state and why, how far it is or where it failed, what was found, and the picture of the split."""
    said = known.reason.message
    why = f"<span style='opacity:.75'>{escape('' if said == known.state else said)}</span>"
    parts = [f"<div><b>{escape(known.name)}</b> {_state(known.state)} {why}<br><code>{escape(known.id)}</code>"]
    progress = known.progress if isinstance(known, JobStatus) else None
    if progress is not None and not known.ended and progress.fraction is not None:
        parts.append(
            f"<br><progress max='1' value='{min(max(progress.fraction, 0.0), 1.0):.4f}'></progress> "
            f"{progress.fraction:.0%}"
        )
    if isinstance(known, JobStatus):
        parts += _render_result(known)
    if report is not None:
        warnings = [finding for finding in report.findings if finding.severity != "info"]
        parts += [f"<br>warning: {escape(finding.message)}" for finding in warnings]
        parts.append(f"<div style='margin-top:.5em;overflow-x:auto'>{report.svg()}</div>")
    return "".join([*parts, "</div>"])


def _render_result(status: JobStatus) -> list[str]:
    if status.state == "failed" and status.error:
        told = str(status.error.get("traceback") or status.error.get("message") or "").rstrip()
        advice = status.error.get("advice")
        shown = escape(escape_unsafe(told[-MAX_TRACEBACK:], keep="\t\n"))
        return [f"<pre style='margin:.5em 0;overflow-x:auto'>{shown}</pre>"] + (
            [f"<div>{escape(str(advice))}</div>"] if advice else []
        )
    numbers = {"loss": (status.result or {}).get("loss")} | ((status.result or {}).get("metrics") or {})
    known = [f"{escape(name)} {format_number(value)}" for name, value in numbers.items() if value is not None]
    return [f"<br>{', '.join(known)}"] if known else []


def render_jobs(jobs: Sequence[JobSummary], *, more: bool) -> str:
    """A list of jobs, a line for each."""
    return render_table(_describe_jobs(jobs)) + ("<div style='opacity:.75'>and more</div>" if more else "")


def format_jobs(jobs: Sequence[JobSummary], *, more: bool) -> str:
    """The same as text."""
    if not jobs:
        return "no jobs"
    return format_table(_describe_jobs(jobs)) + ("\nand more" if more else "")


def _describe_jobs(jobs: Sequence[JobSummary]) -> list[dict[str, Any]]:
    return [
        {
            "job": short_id(job.id),
            "name": job.name,
            "state": job.state,
            "outcome": "" if job.reason.message == job.state or job.state == "succeeded" else job.reason.message,
            "runs": f"{job.strategy} on {job.devices * job.nodes}",
            "progress": f"{job.progress.fraction:.0%}"
            if isinstance(job, ListedJob) and job.progress is not None and job.progress.fraction is not None
            else "",
            "age": format_age(seconds_between(job.created_at, None)),
            "took": ""
            if job.finished_at is None
            else format_duration(seconds_between(job.started_at, job.finished_at)),
        }
        for job in jobs
    ]


def render_table(rows: Sequence[dict[str, Any]]) -> str:
    """Rows as a table; the first `MAX_ROWS` of them."""
    if not rows:
        return "<div style='opacity:.75'>nothing</div>"
    columns = list(dict.fromkeys(name for row in rows[:MAX_ROWS] for name in row))
    head = "".join(f"<th style='text-align:left'>{escape(name)}</th>" for name in columns)
    body = "".join(
        f"<tr>{''.join(f'<td style=text-align:left>{_cell(name, row.get(name))}</td>' for name in columns)}</tr>"
        for row in rows[:MAX_ROWS]
    )
    more = f"<div style='opacity:.75'>and {len(rows) - MAX_ROWS} more</div>" if len(rows) > MAX_ROWS else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def format_table(rows: Sequence[dict[str, Any]]) -> str:
    """Rows as lines of text, in columns; a column in which no row has anything is left out. What is longer than
    `MAX_CELL` is cut."""
    from rich.cells import cell_len, set_cell_size

    names = list(dict.fromkeys(name for row in rows for name in row if row[name] not in (None, "")))
    table = [names, *([single_line(_text_of(row.get(name))) for name in names] for row in rows)]
    cells = [
        [text if cell_len(text) <= MAX_CELL else set_cell_size(text, MAX_CELL - 1) + "…" for text in line]
        for line in table
    ]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(map(set_cell_size, line, widths)) for line in cells]
    return "\n".join(line.rstrip() for line in lines)


def _cell(name: str, value: Any) -> str:
    return _state(str(value)) if name == "state" and value is not None else escape(_text_of(value))


def _text_of(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    return format_number(value) if isinstance(value, float) else str(value)


def _state(state: str) -> str:
    return f"<span style='color:{_COLOURS.get(state, _RUNNING)};font-weight:600'>{escape(state)}</span>"
