"""Tables of splits, plans and reports as plain text, readable at 80 to 120 columns, without colour.

Steps run down and devices across, at most eight devices to a block, so that 64 stay readable. A
device that got nothing of a batch shows "idle"; a number that was not measured shows "-", and the
notes at the end say why.
"""

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from rich import box
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from shardyard.contract.plain_text import escape_unsafe
from shardyard.contract.report import Finding, Pattern, Report, Timing, describe_cost, fields_by_reason

MIN_WIDTH = 80
INDENT = 2
#: Devices beside each other in the table of splits: the first of these that fits.
ACROSS = (8, 4, 2, 1)
COLUMN_GAP = 3
LONGEST_NAME = 20
_MODULE = "module"

NOT_MEASURED = "-"
IDLE = "idle"

#: What stands under a title: given the columns that it may take, strings and tables. Without any, the title goes too.
Section = Callable[[int], Iterator[RenderableType]]


def render_page(paragraphs: Iterable[str], sections: Iterable[tuple[str, Section]], width: int) -> str:
    """Text of at most `width` columns (at least 80), which ends with a newline."""
    console = Console(file=io.StringIO(), width=max(width, MIN_WIDTH), color_system=None, force_terminal=False)
    with console.capture() as captured:
        for paragraph in paragraphs:
            console.print(plain_text(paragraph))
        for title, section in sections:
            parts = list(section(console.width - INDENT))
            if parts:
                console.print()
                console.print(Text(title))
            for part in parts:
                console.print(Padding(plain_text(part) if isinstance(part, str) else part, (0, 0, 0, INDENT)))
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


# -- what plans and reports have in common ---------------------------------------------------------


def split_tables(patterns: Sequence[Pattern], width: int) -> Iterator[RenderableType]:
    """Steps down and devices across, in as few blocks as the width allows. Every pattern must have its rows."""
    devices = len(patterns[0].rows or ())
    for across in ACROSS:
        blocks = [range(start, min(start + across, devices)) for start in range(0, devices, across)]
        tables = [_split_cells(patterns, block) for block in blocks]
        if across == ACROSS[-1] or all(table_width(cells) <= width for cells in tables):
            break
    for place, cells in enumerate(tables):
        if place:
            yield ""
        names = 1 + (cells[0][1] == _MODULE)
        table = make_grid(cells[0][:names], cells[0][names:])
        for row in cells[1:]:
            table.add_row(*map(plain_text, row))
        yield table


def _split_cells(patterns: Sequence[Pattern], devices: range) -> list[list[str]]:
    named = any(pattern.module for pattern in patterns)
    cells = [["phase", *([_MODULE] if named else []), "steps", "from-to", "batch", *map(str, devices)]]
    for pattern in patterns:
        rows = pattern.rows or ()
        cells.append(
            [
                pattern.phase + (" *" if pattern.shapes_vary else ""),
                *([shorten_name(pattern.module)] if named else []),
                format_count(pattern.steps),
                _step_range(pattern),
                format_count(pattern.batch_rows),
                *(IDLE if rows[device] == 0 else format_count(rows[device]) for device in devices),
            ]
        )
    return cells


def _step_range(pattern: Pattern) -> str:
    if pattern.first_step is None or pattern.last_step is None:
        return NOT_MEASURED
    return f"{format_count(pattern.first_step)}-{format_count(pattern.last_step)}"


def table_width(cells: Sequence[Sequence[str]]) -> int:
    """How wide a table of `make_grid` is."""
    return sum(max(map(len, column)) + COLUMN_GAP for column in zip(*cells, strict=True)) - COLUMN_GAP


def finding_lines(findings: Sequence[Finding]) -> Iterator[RenderableType]:
    if not findings:
        yield "none"
    for finding in findings:
        cost = describe_cost(finding)
        yield f"[{finding.severity}] {finding.code}: {finding.message}" + (f" ({cost})" if cost else "")
        yield Padding(plain_text(f"-> {finding.suggestion}"), (0, 0, 0, INDENT))


def note_lines(notes: Mapping[str, str]) -> Iterator[RenderableType]:
    """A line for each reason, with all fields that it is about."""
    for reason, fields in fields_by_reason(notes).items():
        yield f"{reason} ({', '.join(fields)})"


def hidden_note_lines(notes: Mapping[str, str]) -> Iterator[RenderableType]:
    """What stands in the place of notes that were not asked for."""
    if notes:
        yield f"{len(fields_by_reason(notes))} on numbers that are missing or count differently: --notes shows them"


# -- cells -----------------------------------------------------------------------------------------


def make_grid(names: Sequence[str], numbers: Sequence[str]) -> Table:
    """A table with names first, which fold where space is short, then numbers, which do not."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False)
    for name in names:
        table.add_column(name, overflow="fold")
    for number in numbers:
        table.add_column(number, justify="right", no_wrap=True)
    return table


def plain_text(words: str) -> Text:
    """Literal text: no markup, and control characters written out."""
    return Text(escape_unsafe(words))


def shorten_name(name: str) -> str:
    """A long dotted path is shortened at its beginning, since its end distinguishes it."""
    return name if len(name) <= LONGEST_NAME else "..." + name[3 - LONGEST_NAME :]


def describe_devices(count: int, kind: str, *, virtual: bool, prefix: str = "") -> str:
    """ "8 virtual cpu devices"."""
    return f"{count} {prefix}{'virtual ' if virtual else ''}{kind} {'device' if count == 1 else 'devices'}"


def format_indexes(indexes: Sequence[int]) -> str:
    """Devices in few characters: "0-3", "0, 2-4". They are in order."""
    runs: list[list[int]] = []
    for index in indexes:
        if runs and runs[-1][-1] == index - 1:
            runs[-1][1:] = [index]
        else:
            runs.append([index])
    return ", ".join("-".join(map(str, run)) for run in runs)


def format_count(value: int | None) -> str:
    return NOT_MEASURED if value is None else f"{value:,}"


def format_measure(value: float | None) -> str:
    """A number with three significant digits: 12,346 or 123 or 12.3 or 1.23 or 0.012."""
    if value is None:
        return NOT_MEASURED
    if 0 < value < 0.0005:
        return "<0.001"
    digits = next((digits for limit, digits in ((100, 0), (10, 1), (1, 2)) if value >= limit), 3)
    return f"{value:,.{digits}f}" if value else "0"


def format_flop(value: float | None) -> str:
    """Floating-point operations, before "FLOP": 2.10 T."""
    if value is None:
        return NOT_MEASURED
    for limit, unit in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{format_measure(value / limit)} {unit}"
    return f"{format_measure(value)} "


def format_share(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{value:.1%}"


def describe_rates(report: Report) -> str:
    """The work that all devices do in a second: "10,324 rows/s, 2.10 TFLOP/s, MFU 41.0%"; "" where it is not known."""
    known = (
        (report.rows_per_second, format_measure, "{} rows/s"),
        (report.tokens_per_second, format_measure, "{} tokens/s"),
        (report.flop_per_second, format_flop, "{}FLOP/s"),
        (report.mfu, format_share, "MFU {}"),
    )
    return ", ".join(words.format(show(value)) for value, show, words in known if value is not None)


def format_timing(timing: Timing | None) -> str:
    return NOT_MEASURED if timing is None else f"{format_measure(timing.p50)} / {format_measure(timing.p95)}"


def format_bytes(value: int | None) -> str:
    if value is None:
        return NOT_MEASURED
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    scale = min(max(0, (value.bit_length() - 1) // 10), len(units) - 1)
    return f"{format_measure(value / 1024**scale)} {units[scale]}"
