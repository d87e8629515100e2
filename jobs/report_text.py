"""The split report as plain text for a terminal, readable at 80 to 120 columns, without colour.

Steps run down and devices across, at most eight devices to a block, so that 64 stay readable. A
device that got nothing of a batch shows "idle"; a number that was not measured shows "-", and the
notes at the end say why.
"""

import io
from collections.abc import Callable, Iterator, Sequence

from rich import box
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from jobs.measures import Timing
from jobs.plan import Pattern
from jobs.report import Report

MIN_WIDTH = 80
INDENT = 2
#: Devices beside each other in the table of splits: the first of these that fits.
ACROSS = (8, 4, 2, 1)
COLUMN_GAP = 3
LONGEST_NAME = 20

NOT_MEASURED = "-"
IDLE = "idle"


def render(report: Report, width: int = 100) -> str:
    """The whole report as text of at most `width` columns (at least 80), which ends with a newline."""
    console = Console(file=io.StringIO(), width=max(width, MIN_WIDTH), color_system=None, force_terminal=False)
    with console.capture() as captured:
        for paragraph in _header(report):
            console.print(_text(paragraph))
        for title, section in _SECTIONS:
            parts = list(section(report, console.width - INDENT))
            if parts:
                console.print()
                console.print(Text(title))
            for part in parts:
                console.print(Padding(_text(part) if isinstance(part, str) else part, (0, 0, 0, INDENT)))
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def _header(report: Report) -> Iterator[str]:
    end = "final" if report.final else "so far"
    yield f"Split report of job {report.job_id}, attempt {report.attempt}, {end}"
    count = len(report.devices)
    kind = f"virtual {report.device_kind}" if report.virtual else report.device_kind
    nodes = ", ".join(sorted({device.node for device in report.devices}))
    yield f"strategy {report.strategy}, {count} {kind} {'device' if count == 1 else 'devices'} on {nodes}"


def _splits(report: Report, width: int) -> Iterator[RenderableType]:
    if not report.patterns:
        yield "no step has been seen"
    kept = [pattern for pattern in report.patterns if pattern.rows is not None]
    if kept:
        yield from _split_tables(kept, len(report.devices), width)
    if any(pattern.shapes_vary for pattern in kept):
        yield "* the shapes differ between these steps"
    for pattern in report.patterns:
        if pattern.rows is None:
            yield f"{_count(pattern.steps)} more steps, divided in further ways"


def _split_tables(patterns: Sequence[Pattern], devices: int, width: int) -> Iterator[RenderableType]:
    """The devices in as few blocks as the width allows."""
    for across in ACROSS:
        blocks = [range(start, min(start + across, devices)) for start in range(0, devices, across)]
        tables = [_split_cells(patterns, block) for block in blocks]
        if across == ACROSS[-1] or all(_width(cells) <= width for cells in tables):
            break
    for place, cells in enumerate(tables):
        if place:
            yield ""
        table = _table(cells[0][:1], cells[0][1:])
        for row in cells[1:]:
            table.add_row(*map(_text, row))
        yield table


def _split_cells(patterns: Sequence[Pattern], devices: range) -> list[list[str]]:
    cells = [["phase", "steps", "from-to", "batch", *map(str, devices)]]
    for pattern in patterns:
        rows = pattern.rows or ()
        cells.append(
            [
                _short(f"{pattern.phase} {pattern.module}".rstrip()) + (" *" if pattern.shapes_vary else ""),
                _count(pattern.steps),
                f"{_count(pattern.first_step)}-{_count(pattern.last_step)}",
                _count(pattern.batch_rows),
                *(IDLE if rows[device] == 0 else _count(rows[device]) for device in devices),
            ]
        )
    return cells


def _width(cells: Sequence[Sequence[str]]) -> int:
    return sum(max(map(len, column)) + COLUMN_GAP for column in zip(*cells, strict=True)) - COLUMN_GAP


def _devices(report: Report, width: int) -> Iterator[RenderableType]:
    table = _table(["device", "id"], ["rows", "share", "steps", "idle", "ms/row", "peak memory"])
    for device, measures in zip(report.devices, report.per_device, strict=True):
        table.add_row(
            str(device.device),
            _text(_short(device.id)),
            _count(measures.rows),
            NOT_MEASURED if measures.share is None else f"{measures.share:.1%}",
            _count(measures.steps),
            _count(measures.idle_steps),
            _number(measures.ms_per_row),
            _bytes(measures.memory_peak_bytes),
        )
    yield table


def _times(report: Report, width: int) -> Iterator[RenderableType]:
    table = _table(["device"], ["forward", "backward", "data wait", "communication"])
    for device in report.per_device:
        times = (device.forward_ms, device.backward_ms, device.data_wait_ms, device.comm_ms)
        if any(timing is not None for timing in times):
            table.add_row(str(device.device), *map(_spread, times))
    if table.row_count:
        yield table


def _primitives(report: Report, width: int) -> Iterator[RenderableType]:
    if report.primitives is None:
        return
    table = _table(["primitive"], ["p50", "p95", "total"])
    for field in report.primitives.__struct_fields__:
        timing: Timing = getattr(report.primitives, field)
        table.add_row(field.removesuffix("_ms"), _number(timing.p50), _number(timing.p95), _number(timing.total))
    yield table


def _balance(report: Report, width: int) -> Iterator[RenderableType]:
    balance = report.balance
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    lines = (
        ("rows, most over mean", _number(balance.rows_max_over_mean)),
        ("time, most over mean", _number(balance.time_max_over_mean)),
        ("slowest device", _count(balance.slowest_device)),
        ("main cause of lost time", balance.cause or NOT_MEASURED),
        ("steps of idle devices", _count(balance.idle_device_steps)),
        ("device seconds spent waiting for the slowest", _number(balance.wasted_device_seconds)),
        ("memory, output device over the others", _number(balance.output_device_memory_skew)),
    )
    for name, value in lines:
        table.add_row(name, value)
    yield table


def _prediction(report: Report, width: int) -> Iterator[RenderableType]:
    verdict = {True: "the splits are those that were planned", False: "the splits are not those that were planned"}
    if report.prediction.matches is not None:
        yield verdict[report.prediction.matches]
    for difference in report.prediction.differences:
        yield f"- {difference}"


def _findings(report: Report, width: int) -> Iterator[RenderableType]:
    if not report.findings:
        yield "none"
    for finding in report.findings:
        yield f"[{finding.severity}] {finding.code}: {finding.message}"
        yield Padding(_text(f"-> {finding.suggestion}"), (0, 0, 0, INDENT))


def _notes(report: Report, width: int) -> Iterator[RenderableType]:
    for field, reason in sorted(report.notes.items()):
        yield f"{field}: {reason}"


_SECTIONS: tuple[tuple[str, Callable[[Report, int], Iterator[RenderableType]]], ...] = (
    ("Splits: rows of each device", _splits),
    ("Devices", _devices),
    ("Times per step in ms, p50 / p95", _times),
    ("DataParallel's primitives in ms", _primitives),
    ("Balance", _balance),
    ("Plan", _prediction),
    ("Findings", _findings),
    ("Notes", _notes),
)


# -- cells -----------------------------------------------------------------------------------------


def _table(names: Sequence[str], numbers: Sequence[str]) -> Table:
    """A table with names first, which fold where space is short, then numbers, which do not."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False)
    for name in names:
        table.add_column(name, overflow="fold")
    for number in numbers:
        table.add_column(number, justify="right", no_wrap=True)
    return table


def _text(words: str) -> Text:
    """Text as it is: no markup, and nothing that a terminal would obey."""
    return Text("".join(letter if letter.isprintable() else "?" for letter in words))


def _short(name: str) -> str:
    """A long dotted path keeps its end, which tells it apart."""
    return name if len(name) <= LONGEST_NAME else "..." + name[3 - LONGEST_NAME :]


def _count(value: int | None) -> str:
    return NOT_MEASURED if value is None else f"{value:,}"


def _number(value: float | None) -> str:
    """Three digits that mean something: 12,346 or 123 or 12.3 or 1.23 or 0.012."""
    if value is None:
        return NOT_MEASURED
    if 0 < value < 0.0005:
        return "<0.001"
    digits = next((digits for limit, digits in ((100, 0), (10, 1), (1, 2)) if value >= limit), 3)
    return f"{value:,.{digits}f}" if value else "0"


def _spread(timing: Timing | None) -> str:
    return NOT_MEASURED if timing is None else f"{_number(timing.p50)} / {_number(timing.p95)}"


def _bytes(value: int | None) -> str:
    if value is None:
        return NOT_MEASURED
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    scale = min(max(0, (value.bit_length() - 1) // 10), len(units) - 1)
    return f"{_number(value / 1024**scale)} {units[scale]}"
