"""Two split reports side by side as plain text for a terminal."""

from collections.abc import Callable, Iterator
from functools import partial

import msgspec
from rich.console import RenderableType

from shardyard.contract.report import Timing, describe_rows
from shardyard.contract.report_diff import ReportDiff, ReportSide, Value, ValuePair
from shardyard.render.text_tables import (
    NOT_MEASURED,
    describe_devices,
    finding_lines,
    format_bytes,
    format_count,
    format_flop,
    format_measure,
    format_share,
    hidden_note_lines,
    make_grid,
    note_lines,
    plain_text,
    render_page,
    shorten_name,
)

_COLUMNS = ("this", "against", "ratio")
_BYTES = "memory_peak_bytes"
_SHOWN = {"flop_per_step": format_flop, "flop_per_second": format_flop, "mfu": format_share}


def render_diff(diff: ReportDiff, width: int = 100, *, notes: bool = False) -> str:
    """Text of at most `width` columns (at least 80), which ends with a newline. Times are the p50 of one step. Without
    `notes`, one line tells how many there are."""
    sections = [(title, partial(section, diff)) for title, section in _SECTIONS]
    shown = note_lines if notes else hidden_note_lines
    return render_page(_header_lines(diff), [*sections, ("Notes", lambda _: shown(_all_notes(diff)))], width)


def _header_lines(diff: ReportDiff) -> Iterator[str]:
    yield "Two split reports side by side"
    yield f"this:    {_side_text(diff.this)}"
    yield f"against: {_side_text(diff.against)}"


def _side_text(side: ReportSide) -> str:
    prefix = "REHEARSAL on " if side.rehearsal else ""
    devices = describe_devices(side.devices, side.device_kind, virtual=side.virtual, prefix=prefix)
    resumed = "" if side.resumed is None else f", resumed after {format_count(side.resumed.step)} steps"
    so_far = "" if side.final else ", so far"
    return f"job {side.job_id}, attempt {side.attempt}{resumed}{so_far}: {side.strategy} on {devices}"


def _pattern_table(diff: ReportDiff, width: int) -> Iterator[RenderableType]:
    table = make_grid(["phase", "rows of each device"], ["batch", "steps of this", "of against"])
    for pattern in diff.patterns:
        phase = shorten_name(f"{pattern.phase} {pattern.module}".rstrip())
        steps = (format_count(pattern.this_steps), format_count(pattern.against_steps))
        rows = NOT_MEASURED if pattern.rows is None else describe_rows(pattern.rows)
        table.add_row(plain_text(phase), rows, format_count(pattern.batch_rows), *steps)
    if table.row_count:
        yield table


def _device_table(diff: ReportDiff, width: int) -> Iterator[RenderableType]:
    table = make_grid(["device", ""], _COLUMNS)
    for device in diff.per_device:
        first = str(device.device)
        for name in device.__struct_fields__[1:]:
            pair: ValuePair = getattr(device, name)
            if pair.this is not None or pair.against is not None:
                table.add_row(first, _field_title(name), *_pair_cells(pair, name))
                first = ""
    if table.row_count:
        yield table


def _field_table(pairs: msgspec.Struct | None, heading: str) -> Iterator[RenderableType]:
    if pairs is None:
        return
    table = make_grid([heading], _COLUMNS)
    for name in pairs.__struct_fields__:
        table.add_row(_field_title(name), *_pair_cells(getattr(pairs, name), name))
    yield table


def _known_fields(pairs: msgspec.Struct) -> Iterator[RenderableType]:
    """Without fields that neither side knows."""
    table = make_grid([""], _COLUMNS)
    for name in pairs.__struct_fields__:
        pair: ValuePair = getattr(pairs, name)
        if pair.this is not None or pair.against is not None:
            table.add_row(_field_title(name), *_pair_cells(pair, name))
    if table.row_count:
        yield table


def _finding_lines(diff: ReportDiff, width: int) -> Iterator[RenderableType]:
    found = diff.findings
    for side, findings in (("this", found.this_only), ("against", found.against_only)):
        if findings:
            yield f"{side} only:"
            yield from finding_lines(findings)
    if found.both:
        yield f"both: {', '.join(found.both)}"


def _all_notes(diff: ReportDiff) -> dict[str, str]:
    """Notes of both reports; one that both have is listed once."""
    both = {key: note for key, note in diff.notes.this.items() if diff.notes.against.get(key) == note}
    sides = (("this", diff.notes.this), ("against", diff.notes.against))
    return both | {f"{side}: {key}": note for side, notes in sides for key, note in notes.items() if key not in both}


_SECTIONS: tuple[tuple[str, Callable[[ReportDiff, int], Iterator[RenderableType]]], ...] = (
    ("Splits", _pattern_table),
    ("Throughput of all devices together", lambda diff, width: _known_fields(diff.throughput)),
    ("Devices, times in ms", _device_table),
    ("DataParallel's primitives in ms", lambda diff, width: _field_table(diff.primitives, "primitive")),
    ("Balance", lambda diff, width: _field_table(diff.balance, "")),
    ("Findings", _finding_lines),
)


_TITLES = {"flop_per_step": "FLOP per step", "flop_per_second": "FLOP per second", "mfu": "MFU"}


def _field_title(name: str) -> str:
    return _TITLES.get(name) or name.removesuffix("_ms").removesuffix("_bytes").replace("_", " ")


def _pair_cells(pair: ValuePair, name: str) -> tuple[str, str, str]:
    ratio = NOT_MEASURED if pair.ratio is None else f"{format_measure(pair.ratio)}x"
    return _value_text(pair.this, name), _value_text(pair.against, name), ratio


def _value_text(value: Value, name: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Timing):
        return format_measure(value.p50)
    if name in _SHOWN:
        return _SHOWN[name](value).rstrip()
    if isinstance(value, int):
        return format_bytes(value) if name == _BYTES else format_count(value)
    return format_measure(value)
