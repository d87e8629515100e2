"""Following one job: a live view in a terminal, plain lines in a pipe."""

import contextlib
import time

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from jobs.errors import NotFound, ShardyardError, Unavailable
from shardyard import text
from shardyard.cli.common import STATE_STYLES, state_text
from shardyard.cli.status import error_text, progress_text, result_text, state_and_reason
from shardyard.client import Client, calls
from shardyard.client.models import JobStatus, Progress

POLL_SECONDS = 0.25
#: Bounds what one poll may bring; most views show only the last line of each device anyway.
LINES_PER_POLL = 200
#: The same for a view that prints every line, in pages of so many lines.
PRINTED_PER_PAGE = 1000
PAGES_PER_POLL = 5
#: A service that restarts is back well within this time.
PATIENCE_SECONDS = 120.0
PLAIN_SECONDS = 2.0
REFRESHES_PER_SECOND = 8
BAR_WIDTH = 30
#: Where a job's own files lie among its artifacts, beside what the service writes.
KEPT = "artifacts/"
MAX_DEVICE_ROWS = 16


class QuietView:
    """Shows nothing. The other views override what they show."""

    shows_lines = False
    #: Every line is shown, so none may be passed over.
    prints_lines = False

    def __init__(self, console: Console) -> None:
        self.console = console

    def status(self, status: JobStatus) -> None:
        """The newest status of the job."""

    def line(self, device: int, line: str) -> None:
        """A device has printed a line."""

    def remark(self, words: str) -> None:
        """Something about the watching itself."""

    def close(self) -> None:
        """The watching ends."""


class PlainView(QuietView):
    """A line for each change of state or reason, and one for progress every few seconds; on request every line."""

    def __init__(self, console: Console, *, prints_lines: bool = False) -> None:
        super().__init__(console)
        self.shows_lines = self.prints_lines = prints_lines
        self._shown = ""
        self._next = 0.0

    def status(self, status: JobStatus) -> None:
        line = f"{status.name}: {state_and_reason(status)}"
        if line != self._shown:
            self._shown = line
            self.remark(line)
        elif status.progress and time.monotonic() >= self._next:
            self._next = time.monotonic() + PLAIN_SECONDS
            self.remark(f"{status.name}: {progress_text(status.progress)}")

    def line(self, device: int, line: str) -> None:
        self.console.out(f"{device}| {line}", highlight=False)

    def remark(self, words: str) -> None:
        self.console.print(words, markup=False, soft_wrap=True)


class LiveView(QuietView):
    """One bar for the job, one row for each of its devices, drawn over themselves; on request every line above it."""

    shows_lines = True

    def __init__(self, console: Console, *, prints_lines: bool = False) -> None:
        super().__init__(console)
        self.prints_lines = prints_lines
        self._status: JobStatus | None = None
        self._progress: Progress | None = None
        self._lines: dict[int, str] = {}
        self._remark = ""
        self._live = Live(console=console, refresh_per_second=REFRESHES_PER_SECOND, get_renderable=self._draw)
        self._live.start()

    def status(self, status: JobStatus) -> None:
        self._status = status
        self._progress = status.progress or self._progress
        self._remark = ""

    def line(self, device: int, line: str) -> None:
        if self.prints_lines:
            self.console.out(f"{device}| {line}", highlight=False)
        else:
            self._lines[device] = line

    def remark(self, words: str) -> None:
        self._remark = words

    def close(self) -> None:
        self._remark = ""
        self._live.stop()

    def _draw(self) -> Group:
        if self._status is None:
            return Group(Text(self._remark or "waiting for the job", style="dim"))
        parts: list[RenderableType] = [
            _headline(self._status),
            self._bar(self._status),
        ]
        if not self.prints_lines:
            parts.append(self._devices(device_labels(self._status)))
        if self._remark:
            parts.append(Text(self._remark, style="yellow"))
        return Group(*parts)

    def _bar(self, status: JobStatus) -> Table:
        fraction = 1.0 if status.state == "succeeded" else (self._progress and self._progress.fraction) or 0.0
        style = STATE_STYLES[status.state]
        bar = ProgressBar(100, fraction * 100, width=BAR_WIDTH, complete_style=style, finished_style=style)
        row = Table.grid(padding=(0, 1))
        row.add_row(bar, f"{fraction:4.0%}", Text(progress_text(self._progress) if self._progress else ""))
        return row

    def _devices(self, labels: list[str]) -> Table:
        rows = Table.grid(padding=(0, 2))
        rows.add_column(justify="right", style="bold", no_wrap=True)
        rows.add_column(no_wrap=True, overflow="ellipsis")
        for device, label in list(enumerate(labels))[:MAX_DEVICE_ROWS]:
            rows.add_row(label, Text(self._lines.get(device, ""), style="dim"))
        if len(labels) > MAX_DEVICE_ROWS:
            rows.add_row("", Text(f"and {len(labels) - MAX_DEVICE_ROWS} more devices", style="dim"))
        return rows


def watch_job(
    client: Client, job: str, console: Console, *, quiet: bool = False, prints_lines: bool = False
) -> JobStatus:
    """Show a job until it has ended, and return its last status. Ctrl-C ends the watching, never the job.

    With `prints_lines`, what the program prints is shown line by line.

    Raises:
        Unavailable: the service was away for longer than `PATIENCE_SECONDS`.
    """
    kind = LiveView if console.is_terminal else PlainView
    with contextlib.closing(QuietView(console) if quiet else kind(console, prints_lines=prints_lines)) as view:
        status = _follow(client, job, view)
    if not quiet:
        print_end(status, console, with_traceback=not prints_lines)
    return status


def print_end(status: JobStatus, console: Console, *, with_traceback: bool = True) -> None:
    """How the job ended: a line, and for one that failed the reason, the traceback, and what may be done about it."""
    took = text.between(status.started_at, status.finished_at)
    line = _state(status)
    if took is not None:
        line.append(f" after {text.duration(took)}", style="default")
    if status.result:
        line.append(f": {result_text(status.result)}", style="default")
    console.print(line, soft_wrap=True)
    for words in _failure(status, with_traceback=with_traceback):
        console.print(words, markup=False, highlight=False, soft_wrap=True)


def _failure(status: JobStatus, *, with_traceback: bool) -> list[str]:
    """Why a job did not succeed, where it happened, and what may be done about it, as far as that is known."""
    if status.state == "succeeded":
        return []
    error = status.error or {}
    words = [status.reason.message, error_text(error) if error and with_traceback else "", error.get("advice")]
    return [each for each in dict.fromkeys(words) if each]


def print_afterwards(client: Client, job: str, console: Console) -> None:
    """What the split report warns of, and where there is more."""
    with contextlib.suppress(ShardyardError):  # no attempt has begun, or the report is not for this token
        for finding in client.call(calls.splits(job)).findings:
            if finding.severity != "info":
                words = f"{finding.severity}: {finding.message}"
                console.print(words, style="yellow", markup=False, highlight=False, soft_wrap=True)
        kept = [one for one in client.call(calls.artifacts(job)).artifacts if one.path.startswith(KEPT)]
        if kept:
            console.print(f"{text.plural(len(kept), 'file')} kept: shardyard artifacts {job}", style="dim")
    console.print(f"what each device got: shardyard splits {job}", style="dim", soft_wrap=True)


def device_labels(status: JobStatus) -> list[str]:
    """Names of the leased devices, in the order of their logical indexes."""
    return [label for place in status.placement for label in place.devices]


def _state(status: JobStatus) -> Text:
    """The state; of a rehearsal, whose devices only act as GPUs, never without saying so."""
    state = state_text(status.state)
    return state.append(" (REHEARSAL)", style="yellow") if status.rehearsal else state


def _headline(status: JobStatus) -> Text:
    line = Text.assemble((status.name, "bold"), "  ", _state(status))
    if status.state not in ("running", "succeeded"):
        line.append(f"  {status.reason.message}", style="dim")
    return line


def _follow(client: Client, job: str, view: QuietView) -> JobStatus:
    cursor: str | None = None
    attempt = 0
    seen = time.monotonic()
    while True:
        try:
            status = client.call(calls.job(job))
            if status.attempt != attempt:
                cursor, attempt = None, status.attempt
            if view.shows_lines:
                cursor = _new_lines(client, job, cursor, view, ended=status.ended)
            view.status(status)
            if status.ended:
                return status
            seen = time.monotonic()
        except Unavailable as error:
            if time.monotonic() - seen > PATIENCE_SECONDS:
                raise
            view.remark(f"{error.message}; trying again")
        time.sleep(POLL_SECONDS)


def _new_lines(client: Client, job: str, cursor: str | None, view: QuietView, *, ended: bool) -> str | None:
    """Show what the devices have printed since `cursor`; the cursor for the next time."""
    try:
        if view.prints_lines:
            return _all_new_lines(client, job, cursor, view, ended=ended)
        page = client.call(calls.logs(job, after=cursor, limit=LINES_PER_POLL))
    except NotFound:
        return None  # no attempt has begun
    for line in page.lines:
        if line.text.strip():
            view.line(line.device, line.text)
    return page.next or cursor


def _all_new_lines(client: Client, job: str, cursor: str | None, view: QuietView, *, ended: bool) -> str | None:
    """Print all new lines, or as many as one poll may bring: a program can print faster than anyone reads."""
    for _ in range(PAGES_PER_POLL):
        page = client.call(calls.logs(job, after=cursor, limit=PRINTED_PER_PAGE))
        for line in page.lines:
            if line.stream in ("stdout", "stderr"):
                view.line(line.device, line.text)
        cursor = page.next or cursor
        if not page.lines:
            return cursor
    if ended:
        view.remark(f"there are more lines than are shown here: shardyard logs {job}")
    return cursor
