"""Following one job: a live view in a terminal, plain lines in a pipe. Both are fed by the job's events."""

import contextlib
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from shardyard import formatting
from shardyard.cli.common import STATE_STYLES, make_console, print_json, state_text
from shardyard.cli.live.device_table import RowRates, device_rows, draw_devices
from shardyard.cli.status import error_text, progress_text, result_text, state_and_reason
from shardyard.client import Client, endpoints, events, operations
from shardyard.client.report import SplitReport
from shardyard.contract.errors import NotFound, ShardyardError, Unavailable
from shardyard.contract.report import Finding, describe_cost
from shardyard.contract.responses import JobStatus, Progress

PLAIN_SECONDS = 2.0
#: What a shell reports for a command that Ctrl-C ended.
INTERRUPTED = 130
REFRESHES_PER_SECOND = 4
BAR_WIDTH = 30
NARROW_BAR_WIDTH = 14
#: Columns from which on a terminal has room for the wide one.
WIDE = 100
#: Lines of the program that a live view shows, and how many it asks for of each device at first.
LOG_LINES = 6
TAIL = 5
MAX_FINDINGS = 4
#: Lines of a terminal that are neither devices nor log lines.
OTHER_LINES = 5
#: What a program prints itself, as against what the service says of it.
PRINTED = "stdout,stderr"
#: The newest of these are shown below the bars; shard lines say what the bars show.
SHOWN = "stdout,stderr,service"


class QuietView:
    """A view that shows nothing. The other views override what they show."""

    #: Every line is shown, so none may be passed over; None: lines do not matter; a number: so many from before.
    lines_from: int | None = None
    prints_lines = False
    #: The streams whose lines it shows, as the service takes them.
    streams = SHOWN

    def __init__(self, console: Console) -> None:
        self.console = console
        self.said: set[str] = set()  # findings that were printed already

    def status(self, status: JobStatus) -> None:
        """The newest status of the job."""

    def progress(self, progress: Progress) -> None:
        """New progress."""

    def report(self, report: SplitReport) -> None:
        """The newest split report."""

    def split(self, event: events.SplitSeen) -> None:
        """A new way to divide a batch."""

    def finding(self, finding: Finding) -> None:
        """A new finding."""

    def line(self, device: int, stream: str, line: str) -> None:
        """A new line of output of a device."""

    def remark(self, words: str) -> None:
        """A message about the connection to the service."""

    def close(self) -> None:
        """The end of the view."""


class PlainView(QuietView):
    """A line for each change of state or reason, and one for progress every few seconds; on request every line."""

    def __init__(self, console: Console, *, prints_lines: bool = False) -> None:
        super().__init__(console)
        self.prints_lines = prints_lines
        self._name = ""
        self._shown = ""
        self._next = 0.0

    def status(self, status: JobStatus) -> None:
        self._name = formatting.single_line(status.name)
        line = formatting.single_line(f"{status.name}: {state_and_reason(status)}")
        if line != self._shown:
            self._shown = line
            self.remark(line)
        if status.progress is not None and not status.ended:
            self.progress(status.progress)

    def progress(self, progress: Progress) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + PLAIN_SECONDS
            self.remark(f"{self._name}: {progress_text(progress)}")

    def split(self, event: events.SplitSeen) -> None:
        pattern = event.pattern
        if pattern.rows and pattern.batch_rows is not None and len(pattern.rows) > 1 and not self.prints_lines:
            shards = " ".join("-" if rows is None else str(rows) for rows in pattern.rows)
            self.remark(
                f"{self._name}: {pattern.phase}: {formatting.count_noun(pattern.batch_rows, 'row')} as {shards}"
            )

    def finding(self, finding: Finding) -> None:
        words = finding_words(finding)
        if words not in self.said and finding.severity != "info":
            self.said.add(words)
            self.remark(words)

    def line(self, device: int, stream: str, line: str) -> None:
        print(formatting.log_line(device, line), file=self.console.file)  # rich is slow, and there may be a million

    def remark(self, words: str) -> None:
        self.console.print(words, markup=False, soft_wrap=True)


class LiveView(QuietView):
    """One bar for the job and one for each of its devices, drawn over themselves; on request every line above them."""

    def __init__(self, console: Console, *, prints_lines: bool = False) -> None:
        super().__init__(console)
        self.prints_lines = prints_lines
        self.lines_from = None if prints_lines else TAIL
        self._status: JobStatus | None = None
        self._progress: Progress | None = None
        self._report: SplitReport | None = None
        self._findings: dict[str, Finding] = {}
        self._pace = RowRates()
        self._lines: deque[tuple[int, str]] = deque(maxlen=LOG_LINES)
        self._remark = ""
        self._closed = False
        self._live = Live(console=console, refresh_per_second=REFRESHES_PER_SECOND, get_renderable=self._draw_view)
        self._live.start()

    def status(self, status: JobStatus) -> None:
        if self._status is not None and status.attempt != self._status.attempt:
            self._report, self._findings = None, {}
        self._status = status
        self._progress = status.progress or self._progress
        self._remark = ""

    def progress(self, progress: Progress) -> None:
        self._progress = progress
        self._remark = ""

    def report(self, report: SplitReport) -> None:
        self._report = report
        self._pace.take(report)
        self._findings = {finding_words(finding): finding for finding in report.findings}

    def finding(self, finding: Finding) -> None:
        self._findings.setdefault(finding_words(finding), finding)

    def line(self, device: int, stream: str, line: str) -> None:
        if self.prints_lines:
            self.console.out(f"{device}| {line}", highlight=False)
        elif line.strip():
            self._lines.append((device, line))

    def remark(self, words: str) -> None:
        self._remark = words

    def close(self) -> None:
        self._remark, self._closed = "", True
        self._live.stop()

    def _draw_view(self) -> Group:
        if self._status is None:
            return Group(Text(self._remark or "waiting for the job", style="dim"))
        size = self.console.size
        findings = sorted(self._findings.values(), key=lambda one: one.severity == "info")[:MAX_FINDINGS]
        labels = device_labels(self._status)
        parts: list[RenderableType] = [_headline_text(self._status), self._draw_bar(self._status)]
        if labels:
            shown_lines = 0 if self.prints_lines else len(self._lines)
            height = size.height - OTHER_LINES - shown_lines - (0 if self._closed else len(findings))
            parts.append(draw_devices(device_rows(labels, self._report, self._pace.rates), size.width, max(3, height)))
        if not self.prints_lines:
            parts += [_log_line(device, line) for device, line in list(self._lines)]
        if not self._closed:  # then they are printed below, in full
            parts += [_finding_line(finding) for finding in findings]
        if self._remark:
            parts.append(Text(self._remark, style="yellow", no_wrap=True, overflow="ellipsis"))
        return Group(*parts)

    def _draw_bar(self, status: JobStatus) -> Table:
        known = self._progress.fraction if self._progress is not None else None
        fraction = 1.0 if status.state == "succeeded" else known or 0.0
        style = STATE_STYLES.get(status.state, "")
        width = BAR_WIDTH if self.console.width >= WIDE else NARROW_BAR_WIDTH
        bar = ProgressBar(100, fraction * 100, width=width, complete_style=style, finished_style=style)
        words = progress_text(self._progress) if self._progress else ""
        row = Table.grid(padding=(0, 1), expand=True)
        row.add_column(width=width)
        row.add_column(width=4)
        row.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
        row.add_row(bar, f"{fraction:4.0%}", Text(words))
        return row


def finding_words(finding: Finding) -> str:
    cost = describe_cost(finding)
    return formatting.single_line(f"{finding.severity}: {finding.message}" + (f" ({cost})" if cost else ""))


def watch_job(
    client: Client,
    job: str,
    console: Console,
    *,
    quiet: bool = False,
    prints_lines: bool = False,
    stream: str | None = None,
) -> JobStatus:
    """Show a job until it has ended, and return its last status. Ctrl-C ends the watching, never the job.

    With `prints_lines`, what the program prints is shown line by line; with `stream`, the lines of these streams.

    Raises:
        NotFound: there is no such job, or it was deleted meanwhile.
        Unavailable: the service was away for longer than the client waits for it.
    """
    if quiet:
        return client.run(operations.wait_for_end(job, None))
    kind = LiveView if console.is_terminal and not console.is_dumb_terminal else PlainView
    with contextlib.closing(kind(console, prints_lines=prints_lines or stream is not None)) as view:
        if view.prints_lines:
            view.streams = stream or PRINTED
        status = _feed_view(client, job, view)
    print_end(status, console, with_traceback=not (view.prints_lines and _wants_line("stderr", view.streams)))
    if status.attempt:
        print_afterwards(client, job, console, view.said)
    return status


def follow_until_end(
    client: Client, job: str, as_json: bool, *, prints_lines: bool = False, stream: str | None = None
) -> int:
    """Show a job until it has ended, and return the exit code for its end. Ctrl-C leaves it running."""
    out = make_console()
    try:
        status = watch_job(client, job, out, quiet=as_json, prints_lines=prints_lines, stream=stream)
    except KeyboardInterrupt:
        out.print("\nThe job continues.", soft_wrap=True)
        out.print(f"  shardyard watch {formatting.short_id(job)}    follows it again", soft_wrap=True)
        out.print(f"  shardyard cancel {formatting.short_id(job)}   ends it", soft_wrap=True)
        return INTERRUPTED
    if as_json:
        print_json(client.json(endpoints.get_job(job)))
    return 0 if status.state == "succeeded" else 1


def print_end(status: JobStatus, console: Console, *, with_traceback: bool = True) -> None:
    """Print how the job ended: a line, and after a failure the reason, the traceback and advice."""
    took = formatting.seconds_between(status.started_at, status.finished_at)
    line = _state_text(status)
    if took is not None:
        line.append(f" after {formatting.format_duration(took)}", style="default")
    if status.result and (numbers := result_text(status.result)):
        line.append(f": {numbers}", style="default")
    console.print(line, soft_wrap=True)
    for words in _failure_lines(status, with_traceback=with_traceback):
        console.print(words, markup=False, highlight=False, soft_wrap=True)


def _failure_lines(status: JobStatus, *, with_traceback: bool) -> list[str]:
    """Print why a job did not succeed, where it happened, and advice if there is any."""
    if status.state == "succeeded":
        return []
    error = status.error or {}
    words = [status.reason.message, error_text(error) if error and with_traceback else "", error.get("advice")]
    return [each for each in dict.fromkeys(words) if each]


def print_afterwards(client: Client, job: str, console: Console, said: Sequence[str] | set[str] = ()) -> None:
    """Print warnings of the split report that were not printed yet, and the commands that show more."""
    short = formatting.short_id(job)
    with contextlib.suppress(ShardyardError):  # no attempt has begun, or the report is not for this token
        for finding in client.call(endpoints.get_report(job)).findings:
            words = finding_words(finding)
            if finding.severity != "info" and words not in said:
                console.print(words, style="yellow", markup=False, highlight=False, soft_wrap=True)
        found = client.call(endpoints.list_artifacts(job))
        for left_out in found.left_out:
            console.print(left_out.message, style="yellow", markup=False, highlight=False, soft_wrap=True)
        kept = [one for one in found.artifacts if one.kind == "file"]
        if kept:
            console.print(f"{formatting.count_noun(len(kept), 'file')} kept: shardyard artifacts {short}", style="dim")
    console.print(f"what each device got: shardyard splits {short}", style="dim", soft_wrap=True)


def device_labels(status: JobStatus) -> list[str]:
    """Names of the leased devices, in the order of their logical indexes; with their nodes where these are several."""
    several = len(status.placement) > 1
    return [f"{place.node} {label}" if several else label for place in status.placement for label in place.devices]


def _state_text(status: JobStatus) -> Text:
    """The state, which always names a rehearsal, because its devices only act as GPUs."""
    state = state_text(status.state)
    return state.append(" (REHEARSAL)", style="yellow") if status.rehearsal else state


def _headline_text(status: JobStatus) -> Text:
    line = Text.assemble(
        (formatting.single_line(status.name), "bold"), "  ", _state_text(status), no_wrap=True, overflow="ellipsis"
    )
    if status.queue_position:
        line.append(f"  position {status.queue_position}", style="dim")
    if status.state not in ("running", "succeeded"):
        line.append(f"  {formatting.single_line(status.reason.message)}", style="dim")
    return line


def _log_line(device: int, line: str) -> Text:
    return Text(f"{device}| {formatting.single_line(line)}", "dim", no_wrap=True, overflow="ellipsis")


def _finding_line(finding: Finding) -> Text:
    style = "dim" if finding.severity == "info" else "yellow"
    return Text(finding_words(finding), style, no_wrap=True, overflow="ellipsis")


# -- the job's events ------------------------------------------------------------------------------


def _feed_view(client: Client, job: str, view: QuietView) -> JobStatus:
    """Feed a view until the job has ended; its last status."""
    view.status(client.call(endpoints.get_job(job)))
    seen = _LineFilter(view)

    def tell(error: ShardyardError) -> None:
        view.remark(f"{error.message}; trying again")

    stream = operations.follow_job(job, "all", tail=view.lines_from, away=tell, stream=view.streams)
    if not (view.prints_lines or view.lines_from):
        stream = operations.follow_job(job, away=tell)
    for event in client.items(stream):
        match event:
            case events.StateChanged() if not event.ended:  # the end is shown after everything else
                view.status(client.call(endpoints.get_job(job)))
            case events.Progressed():
                view.progress(event.progress)
            case events.ReportChanged():
                _show_report(client, job, view)
            case events.SplitSeen():
                view.split(event)
            case events.FindingMade():
                view.finding(event.finding)
            case events.LogLines():
                for line in event.lines:
                    seen.line(event.attempt, event.device, line)
            case events.Notice():
                view.remark(event.message or event.code)
            case events.Resync():
                _catch_up(client, job, view, seen, event)
    status = client.call(endpoints.get_job(job))
    _show_report(client, job, view)
    view.status(status)
    return status


class _LineFilter:
    """Shows each line of the program once, whether it comes as an event or from the log."""

    def __init__(self, view: QuietView) -> None:
        self._view = view
        self._last: dict[tuple[int, int], int] = {}  # by attempt and device

    def line(self, attempt: int, device: int, line: Any) -> None:
        if line.seq <= self._last.get((attempt, device), 0):
            return
        self._last[attempt, device] = line.seq
        if _wants_line(line.stream, self._view.streams):
            self._view.line(device, line.stream, line.text)


def _catch_up(client: Client, job: str, view: QuietView, seen: _LineFilter, event: events.Resync) -> None:
    """After missed events: fetch what must be printed completely; views of the current state update with the next
    events."""
    view.status(client.call(endpoints.get_job(job)))
    _show_report(client, job, view)
    if view.prints_lines:
        for page in client.items(operations.log_pages(job, after=event.logs_after, stream=view.streams)):
            for line in page.lines:
                seen.line(page.attempt, line.device, line)


def _wants_line(stream: str, streams: str) -> bool:
    """Whether a line is to be shown; a service of an earlier version sends the lines of all streams."""
    return streams == "all" or stream in streams.split(",")


def _show_report(client: Client, job: str, view: QuietView) -> None:
    with contextlib.suppress(NotFound, Unavailable):  # there is none yet, or the next event brings it
        view.report(client.call(endpoints.get_report(job)))
