"""The command `top`: a live view of the jobs that have not ended, and of the devices that they hold.

What it asks of the service is bounded, however many jobs there are: a page of each state at the start
and after a gap, the nodes when they have changed, and the progress of the running jobs on the screen.
Everything else comes as events.
"""

import contextlib
import queue
import select
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from shardyard import formatting
from shardyard.cli.common import STATE_STYLES, Commands, NoColor, Token, Url, connect_client, make_console
from shardyard.cli.framework.completion import complete_pools
from shardyard.contract.errors import NotFound, ShardyardError, Unavailable

if TYPE_CHECKING:
    from shardyard.client import Client
    from shardyard.contract.fleet import NodeView, PoolView
    from shardyard.contract.responses import JobSummary, Progress

ACTIVE = ("running", "starting", "queued")
#: Jobs of each state that are fetched, and that are kept in all as they come.
FETCHED = 200
KEPT = 1000
#: Running jobs on the screen whose progress is asked for, and how often.
WITH_PROGRESS = 16
PROGRESS_SECONDS = 2.0
#: Nodes are asked for at most this often; a service that sends no events is asked for everything in this time.
FLEET_SECONDS = 1.0
POLL_SECONDS = 3.0
DRAW_SECONDS = 0.25
MAX_EVENTS = 10_000
#: From this many columns on there is room for ids.
WIDE = 118
BAR = 10
MAX_POOLS = 4
#: One letter stands for a running job among the devices.
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
FREE, QUARANTINED, OFFLINE, OTHERS, UNNAMED = "·", "x", "-", "#", "+"
_COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "bright_red")


class SortOrder(StrEnum):
    STATE = "state"
    CREATED = "created"
    NAME = "name"
    DEVICES = "devices"
    PRIORITY = "priority"


_ORDER: dict[SortOrder, Callable[["JobSummary"], Any]] = {
    SortOrder.STATE: lambda job: (ACTIVE.index(job.state) if job.state in ACTIVE else 9, job.id),
    SortOrder.CREATED: lambda job: job.id,
    SortOrder.NAME: lambda job: (job.name, job.id),
    SortOrder.DEVICES: lambda job: (-job.devices * job.nodes, job.id),
    SortOrder.PRIORITY: lambda job: (-job.priority, job.id),
}


@dataclass(frozen=True, slots=True)
class BoardFilter:
    """Which jobs to show; a filter that is None selects all."""

    state: str | None = None
    pool: str | None = None
    label: str | None = None
    name: str | None = None

    def has(self, job: "JobSummary") -> bool:
        key, _, value = (self.label or "").partition("=")
        return (
            self.state in (None, job.state)
            and self.pool in (None, job.pool)
            and self.name in (None, job.name)
            and (self.label is None or job.labels.get(key) == value)
        )


@dataclass(slots=True)
class ServiceBoard:
    """The current state of the service, as far as it is known here."""

    chosen: BoardFilter = field(default_factory=BoardFilter)
    jobs: dict[str, "JobSummary"] = field(default_factory=dict)
    progress: dict[str, "Progress"] = field(default_factory=dict)
    nodes: list["NodeView"] = field(default_factory=list)
    pools: list["PoolView"] = field(default_factory=list)
    remark: str = ""
    stale: bool = False  # events were missed: everything must be fetched again
    fleet_stale: bool = False

    def load(self, client: "Client") -> None:
        """Fetch everything again, with five requests."""
        from shardyard.client import endpoints

        found: dict[str, JobSummary] = {}
        filters = {"pool": self.chosen.pool, "label": self.chosen.label, "name": self.chosen.name}
        for state in ACTIVE if self.chosen.state is None else (self.chosen.state,):
            page = client.call(endpoints.list_jobs(state=state, limit=FETCHED, **filters))
            found |= {job.id: job for job in page.jobs}
        self.jobs, self.stale = found, False
        self.load_fleet(client)

    def load_fleet(self, client: "Client") -> None:
        self.nodes, self.pools, self.fleet_stale = client.nodes(), client.pools(), False

    def load_progress(self, client: "Client", shown: Sequence["JobSummary"]) -> None:
        """Fetch the progress of the running jobs on the screen."""
        from shardyard.client import endpoints

        running = [job for job in shown if job.state == "running"][:WITH_PROGRESS]
        found = {}
        for job in running:
            with contextlib.suppress(NotFound):
                progress = client.call(endpoints.get_job(job.id)).progress
                if progress is not None:
                    found[job.id] = progress
        self.progress = found

    def take(self, event: Any) -> None:
        """Apply an event."""
        from shardyard.client import events

        match event:
            case events.JobChanged():
                self._put_job(event.job)
            case events.JobGone():
                self.jobs.pop(event.job_id, None)
            case events.FleetChanged():
                self.fleet_stale = True
            case events.Resync():
                self.stale = True

    def _put_job(self, job: "JobSummary") -> None:
        ended = job.state not in ACTIVE and self.chosen.state is None
        if ended or not self.chosen.has(job):
            self.jobs.pop(job.id, None)
        elif job.id in self.jobs or len(self.jobs) < KEPT:
            self.jobs[job.id] = job
        self.fleet_stale = True  # free devices and waiting jobs of the pools have changed

    def sorted(self, by: SortOrder) -> list["JobSummary"]:
        return sorted(self.jobs.values(), key=_ORDER[by])


# -- drawing ---------------------------------------------------------------------------------------


def draw_board(board: ServiceBoard, by: SortOrder, width: int, height: int, now: datetime | None = None) -> Group:
    """The board, drawn in a number of columns and lines."""
    jobs = board.sorted(by)
    running = [job for job in jobs if job.placement]
    letters = {job.id: LETTERS[place] for place, job in enumerate(running[: len(LETTERS)])}
    head: list[RenderableType] = [*_pool_lines(board), *_node_lines(board, letters, max(2, height // 3))]
    room = max(1, height - len(head) - 3)
    more = _waiting_summary(board, jobs, room)
    parts = [*head, "", _job_table(board, jobs[:room], letters, width, now or datetime.now(UTC))]
    if more:
        parts.append(Text(more, "dim"))
    if board.remark:
        parts.append(Text(board.remark, "yellow", no_wrap=True, overflow="ellipsis"))
    return Group(*parts)


def visible_jobs(board: ServiceBoard, by: SortOrder, height: int) -> list["JobSummary"]:
    """The jobs that such a screen shows, about."""
    return board.sorted(by)[:height]


def _pool_lines(board: ServiceBoard) -> Iterator[Text]:
    for pool in board.pools[:MAX_POOLS]:
        used = round(BAR * pool.leased / pool.devices) if pool.devices else 0
        line = Text.assemble((f"{pool.name:<10.10} ", "bold"), ("█" * used, "blue"), ("░" * (BAR - used), "dim"))
        line.append(f" {pool.leased}/{pool.devices} leased, {pool.free} free")
        if pool.quarantined:
            line.append(f", {pool.quarantined} in quarantine", "red")
        line.append(f", {formatting.count_noun(pool.queued, 'job')} waiting", "yellow" if pool.queued else "dim")
        if pool.live_nodes < pool.nodes:
            line.append(f", {pool.nodes - pool.live_nodes} of {pool.nodes} nodes down", "red")
        yield line
    if len(board.pools) > MAX_POOLS:
        yield Text(f"and {len(board.pools) - MAX_POOLS} more pools", "dim")
    if not board.pools:
        yield Text("no pools: no worker has registered yet", "dim")


def _node_lines(board: ServiceBoard, letters: dict[str, str], most: int) -> Iterator[Text]:
    """A mark for each device: the letter of the job that holds it, or a sign for its state."""
    name = min(20, max((len(node.id) for node in board.nodes), default=0))
    for node in board.nodes[:most]:
        line = Text(f"{node.id:<{name}.{name}} ", "bold", no_wrap=True, overflow="ellipsis")
        for device in node.devices:
            mark = letters.get(device.job or "", UNNAMED) if device.state == "leased" else _MARKS.get(device.state, "?")
            if device.job == "another tenant":
                mark = OTHERS
            line.append(mark, _letter_style(mark))
        words = _node_words(node)
        if words:
            line.append(f"  {words}", "yellow")
        yield line
    if len(board.nodes) > most:
        yield Text(f"and {len(board.nodes) - most} more nodes", "dim")


_MARKS = {"free": FREE, "quarantined": QUARANTINED, "offline": OFFLINE}
_MARK_STYLES = {FREE: "dim", QUARANTINED: "red", OFFLINE: "red", OTHERS: "dim", UNNAMED: "cyan"}


def _letter_style(mark: str) -> str:
    if mark in _MARK_STYLES:
        return _MARK_STYLES[mark]
    return f"bold {_COLOURS[LETTERS.find(mark) % len(_COLOURS)]}"


def _node_words(node: "NodeView") -> str:
    words = [
        "" if node.alive else "down",
        "unboxed" if node.alive and node.unboxed else "",
        "disk low" if node.alive and node.low_disk is not None else "",
        "draining" if node.draining else "",
        "stopping" if node.stopping else "",
    ]
    quarantined = [device.label for device in node.devices if device.state == "quarantined"]
    if quarantined:
        words.append(f"quarantine: {formatting.device_names(quarantined)}")
    return ", ".join(filter(None, words))


def _job_table(
    board: ServiceBoard, jobs: Sequence["JobSummary"], letters: dict[str, str], width: int, now: datetime
) -> Table:
    wide = width >= WIDE
    table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    table.add_column("", width=1)
    if wide:
        table.add_column("JOB", width=36, no_wrap=True)
    table.add_column("NAME", width=24 if wide else 18, no_wrap=True, overflow="ellipsis")
    table.add_column("STATE", width=9, no_wrap=True)
    table.add_column("RUNS", width=12, no_wrap=True, overflow="ellipsis")
    table.add_column("TIME", width=11, no_wrap=True, justify="right")
    table.add_column("PROGRESS", ratio=1, no_wrap=True, overflow="ellipsis")
    for job in jobs:
        mark = letters.get(job.id, "")
        table.add_row(
            Text(mark, _letter_style(mark) if mark else ""),
            *([Text(job.id)] if wide else []),
            Text(formatting.single_line(job.name)),
            Text(job.state, STATE_STYLES.get(job.state, "")),
            Text(_describe_program(job)),
            Text(
                formatting.format_duration(
                    formatting.seconds_between(job.started_at or job.created_at, job.finished_at, now)
                )
            ),
            _how_far(job, board.progress.get(job.id)),
        )
    return table


def _describe_program(job: "JobSummary") -> str:
    """`ddp on 4`, or `ddp on 4x2` for 4 devices of each of two nodes."""
    return f"{job.strategy} on {job.devices}" + (f"x{job.nodes}" if job.nodes > 1 else "")


def _how_far(job: "JobSummary", progress: "Progress | None") -> Text:
    if job.state != "running" or progress is None:
        return Text("" if job.state == "running" else formatting.single_line(job.reason.message), "dim")
    words = Text()
    if progress.fraction is not None:
        filled = round(min(max(progress.fraction, 0.0), 1.0) * BAR)
        words += Text.assemble(("█" * filled, "blue"), ("░" * (BAR - filled), "dim"), f" {progress.fraction:4.0%}")
    if progress.rows_per_second:
        words.append(f" {formatting.format_number(progress.rows_per_second)} rows/s")
    if progress.eta_seconds:
        words.append(f" ETA {formatting.format_duration(progress.eta_seconds)}", "dim")
    return words


def _waiting_summary(board: ServiceBoard, jobs: Sequence["JobSummary"], room: int) -> str:
    """A line about jobs that the list does not show; the pools have the number of all waiting jobs."""
    hidden = jobs[room:]
    waiting = sum(pool.queued for pool in board.pools)
    known = sum(job.state == "queued" for job in jobs[:room])
    if board.chosen == BoardFilter() and waiting > known:
        others = sum(job.state != "queued" for job in hidden)
        words = f"and {formatting.count_noun(waiting - known, 'more job')} waiting"
        return words + (f", {others} running" if others else "")
    return f"and {formatting.count_noun(len(hidden), 'more job')}" if hidden else "" if jobs else "no jobs"


# -- the command -----------------------------------------------------------------------------------


def top_command(
    sort: Annotated[SortOrder, typer.Option(help="What the list is sorted by.")] = SortOrder.STATE,
    state: Annotated[str | None, typer.Option(help="Only jobs in this state.", show_default=False)] = None,
    pool: Annotated[
        str | None, typer.Option(help="Only jobs of this pool.", show_default=False, autocompletion=complete_pools)
    ] = None,
    label: Annotated[str | None, typer.Option(help="Only jobs with this label, key=value.", show_default=False)] = None,
    name: Annotated[str | None, typer.Option(help="Only jobs of this name.", show_default=False)] = None,
    no_color: NoColor = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Show jobs and devices live: which job holds which devices, progress, waiting jobs. In a pipe: once.

    Keys: s sorts by the next column, f shows only the next state, q quits.
    """
    board = ServiceBoard(BoardFilter(state, pool, label, name))
    out = make_console()
    with connect_client(url, token) as client:
        board.load(client)
        board.load_progress(client, visible_jobs(board, sort, out.height))
        if not out.is_terminal or out.is_dumb_terminal:
            out.print(draw_board(board, sort, out.width, FETCHED))
            return
        with contextlib.suppress(KeyboardInterrupt):
            _run_live(client, board, sort, out)


def _run_live(client: "Client", board: ServiceBoard, sort: SortOrder, out: Any) -> None:
    by = sort
    came: queue.Queue[Any] = queue.Queue(MAX_EVENTS)
    threading.Thread(target=_listen_events, args=(client, came), daemon=True, name="events").start()

    def screen() -> Group:
        return draw_board(board, by, out.size.width, out.size.height)

    next_progress = next_fleet = next_load = 0.0
    polls = False
    with _read_keys() as pressed, Live(console=out, screen=True, auto_refresh=False, get_renderable=screen) as live:
        while True:
            for event in _waiting_events(came):
                if isinstance(event, ShardyardError):
                    board.remark = f"{event.message}; trying again"
                    polls = polls or isinstance(event, NotFound)
                    board.stale = True
                else:
                    board.take(event)
            key = pressed()
            if key == "q":
                return
            if key == "s":
                order = list(SortOrder)
                by = order[(order.index(by) + 1) % len(order)]
            if key == "f":
                states = [None, *ACTIVE]
                place = states.index(board.chosen.state) if board.chosen.state in states else 0
                board.chosen = BoardFilter(states[(place + 1) % len(states)], *_filter_arguments(board.chosen))
                board.stale = True
            now = time.monotonic()
            try:
                if (board.stale or polls) and now >= next_load:
                    next_load = now + POLL_SECONDS if polls else now + FLEET_SECONDS
                    board.load(client)
                    board.remark = ""
                elif board.fleet_stale and now >= next_fleet:
                    next_fleet = now + FLEET_SECONDS
                    board.load_fleet(client)
                if now >= next_progress:
                    next_progress = now + PROGRESS_SECONDS
                    board.load_progress(client, visible_jobs(board, by, out.size.height))
            except Unavailable as error:
                board.remark, board.stale = f"{error.message}; trying again", True
            live.refresh()


def _filter_arguments(chosen: BoardFilter) -> tuple[str | None, str | None, str | None]:
    return chosen.pool, chosen.label, chosen.name


def _listen_events(client: "Client", came: "queue.Queue[Any]") -> None:
    """Queue events and outages of the service. Ends with the process, or with an error that is permanent."""
    from shardyard.client import operations

    try:
        for event in client.items(operations.service_events(away=came.put)):
            came.put(event)  # if drawing is too slow, so is reading, and the service sends a `resync`
    except ShardyardError as error:
        came.put(error)


def _waiting_events(came: "queue.Queue[Any]") -> Iterator[Any]:
    """The queued events, and those that arrive before the next drawing."""
    with contextlib.suppress(queue.Empty):
        yield came.get(timeout=DRAW_SECONDS)
        for _ in range(MAX_EVENTS):
            yield came.get_nowait()


@contextlib.contextmanager
def _read_keys() -> Iterator[Callable[[], str]]:
    """A function that returns the key that was pressed, without waiting; without a keyboard it always returns none."""
    if not sys.stdin.isatty():
        yield lambda: ""
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def pressed() -> str:
        ready, _, _ = select.select([descriptor], [], [], 0)
        return sys.stdin.read(1) if ready else ""

    try:
        tty.setcbreak(descriptor)
        yield pressed
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


COMMANDS: Commands = {"top": top_command}
