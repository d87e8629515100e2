"""A table of a running job's devices for the terminal: the rows of the last batch, the speed, the share of waiting."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from shardyard import formatting

if TYPE_CHECKING:
    from shardyard.client.report import SplitReport
    from shardyard.contract.report import DeviceMeasures

IDLE, SLOW = "idle", "slow"
#: A colour is never the only mark: the word stands beside it.
MARK_STYLES = {IDLE: "bright_black", SLOW: "yellow"}
BAR_STYLE = "blue"
MAX_BAR = 24
MIN_BAR = 6
#: Columns of a cell where devices share a line.
CELL_COLUMNS = 26


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """One device: the rows of its last shard, rows a second, the share of its time in which it waits, and its marks."""

    label: str
    rows: int | None = None
    rate: float | None = None
    waits: float | None = None
    memory_bytes: int | None = None
    mark: str = ""
    remark: str = ""


@dataclass(slots=True)
class RowRates:
    """Rows a second of each device, from one report to the next."""

    _attempt: int = 0
    _at: float = 0.0
    _rows: dict[int, int] = field(default_factory=dict)
    rates: dict[int, float] = field(default_factory=dict)

    def take(self, report: "SplitReport", now: float | None = None) -> None:
        now = time.monotonic() if now is None else now
        rows = {one.device: one.rows for one in report.per_device if one.rows is not None}
        seconds = now - self._at
        if report.attempt != self._attempt:
            self.rates = {}
        elif seconds > 0 and any(rows.get(device, 0) > before for device, before in self._rows.items()):
            self.rates = {device: (count - self._rows.get(device, 0)) / seconds for device, count in rows.items()}
        elif seconds <= 0 or rows == self._rows:
            return  # no progress: the speed does not change
        self._attempt, self._at, self._rows = report.attempt, now, rows


def device_rows(labels: Sequence[str], report: "SplitReport | None", rates: dict[int, float]) -> list[DeviceRow]:
    """The measures of each leased device, in the lease's order; without a report, only its name."""
    if report is None:
        return [DeviceRow(label) for label in labels]
    from shardyard.render.svg.highlights import slow_device

    last = _last_shards(report)
    slow = slow_device(report.data)
    measured = {one.device: one for one in report.per_device}
    made = []
    for device, label in enumerate(labels):
        one = measured.get(device)
        rows = last[device] if device < len(last) else None
        mark = IDLE if rows == 0 else SLOW if device == slow else ""
        made.append(
            DeviceRow(
                label,
                rows,
                rates.get(device),
                None if one is None else _waiting_ms(one),
                None if one is None else one.memory_peak_bytes,
                mark,
                _idle_remark(one),
            )
        )
    return made


def _last_shards(report: "SplitReport") -> tuple[int | None, ...]:
    """Rows of each device in the newest batch of the phase that the report's numbers are about."""
    known = [one for one in report.patterns if one.rows is not None and one.last_step is not None]
    main = [one for one in known if one.phase in ("train", "forward")] or known
    newest = max(main, key=lambda one: one.last_step or 0, default=None)
    return () if newest is None else newest.rows or ()


def _waiting_ms(measures: "DeviceMeasures") -> float | None:
    """The part of a device's time in which it waited for data and for others."""
    from shardyard.contract.report import time_parts

    spent = time_parts(measures)
    whole = sum(spent.values())
    return (spent.get("data_wait_ms", 0.0) + spent.get("comm_ms", 0.0)) / whole if whole > 0 else None


def _idle_remark(measures: "DeviceMeasures | None") -> str:
    if measures is None or not measures.idle_steps:
        return ""
    return f"idle in {measures.idle_steps:,} of {measures.steps:,} steps"


# -- drawing ---------------------------------------------------------------------------------------


def draw_devices(rows: Sequence[DeviceRow], width: int, height: int) -> Table:
    """A line for each device while `height` lines are enough, else several to a line, marked ones first."""
    if len(rows) <= height:
        return _draw_lines(rows, width)
    return _draw_cells(rows, width, max(1, height))


def _draw_lines(rows: Sequence[DeviceRow], width: int) -> Table:
    top = max((row.rows or 0 for row in rows), default=0)
    names = max(len(row.label) for row in rows) if rows else 0
    with_memory = any(row.memory_bytes is not None for row in rows)
    fixed = names + 6 + 10 + 6 + (10 if with_memory else 0) + 24
    bar = max(MIN_BAR, min(MAX_BAR, width - fixed))
    table = Table.grid(padding=(0, 1))
    titles = ["", "", "rows", "rows/s", "waits", *(["memory"] if with_memory else []), ""]
    for title in titles:
        table.add_column(justify="right" if title else "left", no_wrap=True, overflow="ellipsis")
    table.add_row(*(Text(title, "dim") for title in titles))
    for row in rows:
        cells = [
            Text(row.label, "bold"),
            _draw_bar(row, top, bar),
            Text("-" if row.rows is None else f"{row.rows:,}"),
            Text("-" if row.rate is None else formatting.format_number(row.rate)),
            Text("-" if row.waits is None else f"{row.waits:.0%}"),
            *([Text(formatting.byte_count(row.memory_bytes))] if with_memory else []),
            _mark_text(row),
        ]
        table.add_row(*cells)
    return table


def _draw_cells(rows: Sequence[DeviceRow], width: int, height: int) -> Table:
    across = max(1, width // CELL_COLUMNS)
    room = across * height
    chosen = list(range(len(rows)))
    if len(rows) > room:
        room = across * max(1, height - 1)  # the last line says how many are not shown
        marked = [place for place in chosen if rows[place].mark]
        chosen = sorted((marked + [place for place in chosen if not rows[place].mark])[:room])
    top = max((row.rows or 0 for row in rows), default=0)
    table = Table.grid(padding=(0, 1))
    for _ in range(across):
        table.add_column(no_wrap=True, width=CELL_COLUMNS - 1)
    cells = [_draw_cell(rows[place], top) for place in chosen]
    for start in range(0, len(cells), across):
        table.add_row(*cells[start : start + across])
    if len(chosen) < len(rows):
        table.add_row(Text(f"and {len(rows) - len(chosen)} more devices", "dim"))
    return table


def _draw_cell(row: DeviceRow, top: int) -> Text:
    count = "-" if row.rows is None else f"{row.rows:,}"
    cell = Text(f"{row.label:<8} "[:9], "bold")
    return cell + _draw_bar(row, top, MIN_BAR) + Text(f" {count:>4} ") + Text(row.mark, MARK_STYLES.get(row.mark, ""))


def _draw_bar(row: DeviceRow, top: int, width: int) -> Text:
    """How many rows its last shard had, beside the largest one."""
    if row.rows is None or not top:
        return Text(" " * width)
    if row.rows == 0:
        return Text("/" * width, MARK_STYLES[IDLE])
    filled = max(1, round(row.rows / top * width))
    style = MARK_STYLES.get(row.mark, BAR_STYLE)
    return Text("█" * filled, style) + Text("░" * (width - filled), "dim")


def _mark_text(row: DeviceRow) -> Text:
    words = row.remark if row.mark == IDLE and row.remark else row.mark or row.remark
    return Text(words, MARK_STYLES.get(row.mark, "dim"))
