"""The cells of a heat map: devices across, patterns or measures down; `shardyard.render.svg.heat_map` draws them.

With more than 64 devices, those that are alike share a column; of very many patterns, those with most steps are drawn.
A sentence says what is left out.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Literal

from shardyard.contract.report import DeviceMeasures, Pattern, Report, ReportDevice
from shardyard.render.svg.highlights import slow_device
from shardyard.render.svg.palette import IDLE, LEVELS, NOT_MEASURED, OUTPUT, SLOW, By
from shardyard.render.text_tables import NOT_MEASURED as DASH
from shardyard.render.text_tables import format_bytes, format_count, format_measure

#: Columns of a picture; more devices share them.
MAX_COLUMNS = 64
#: Patterns that are drawn: of as many columns as stand beside each other, and of more, which are drawn in blocks.
MAX_LINES = 24
MAX_LINES_IN_BLOCKS = 12

Kind = Literal["value", "idle", "unknown"]


@dataclass(frozen=True, slots=True)
class MapCell:
    """`level` is the step of the colour scale; "idle" is hatched, "unknown" empty. `tip` is for the pointer."""

    words: str
    kind: Kind
    level: int
    tip: str


@dataclass(frozen=True, slots=True)
class MapColumn:
    """`marks` are (words, how they are drawn): "idle" and "1/4" below it, "slow", "output"."""

    title: str
    lines: tuple[str, ...]
    marks: tuple[tuple[str, str], ...]
    slow: bool
    tip: str


@dataclass(frozen=True, slots=True)
class MapLine:
    title: str
    words: str
    cells: tuple[MapCell, ...]


@dataclass(frozen=True, slots=True)
class MapGrid:
    """`scale` says what the lightest and the darkest colour mean, `remarks` what is not drawn and why."""

    columns: tuple[MapColumn, ...]
    lines: tuple[MapLine, ...]
    scale: tuple[str, str]
    remarks: tuple[str, ...]


def make_map_grid(
    report: Report, by: By, output_device: int | None = None, *, most: int = MAX_LINES, columns: int = MAX_COLUMNS
) -> MapGrid:
    """The heat map of a report. `output_device`: where DataParallel gathers, if that is known. Of more devices than
    `columns`, those beside each other that are alike share one; where they are still more than `MAX_COLUMNS`, they
    share columns of equal size."""
    shown = _most_frequent(report, most)
    if output_device is not None and (report.strategy != "dp" or len(report.devices) < 2):
        output_device = None
    slow = slow_device(report)
    groups = _column_groups(report, shown if by == "rows" else (), columns, {slow, output_device})
    heads = tuple(_make_column(report, group, slow, output_device) for group in groups)
    lines, scale, remarks = _by_rows(report, groups, shown) if by == "rows" else _by_measure(report, groups, by)
    if any(len(group) > 1 for group in groups):
        remarks = ["a column with two numbers stands for all devices from the one to the other", *remarks]
    return MapGrid(heads, tuple(lines), scale, tuple(remarks))


def _column_groups(report: Report, shown: Sequence[Pattern], columns: int, alone: set[int | None]) -> list[range]:
    """Places of the devices that share a column."""
    count = len(report.devices)
    if count <= columns:
        return [range(place, place + 1) for place in range(count)]
    groups: list[range] = []
    last: object = None
    for place, (device, cost) in enumerate(zip(report.devices, report.per_device, strict=True)):
        number = device.device
        looks = (cost.idle_steps, [_rows_of(pattern, number) for pattern in shown], number if number in alone else -1)
        if groups and looks == last and shown:
            groups[-1] = range(groups[-1].start, place + 1)
        else:
            groups.append(range(place, place + 1))
        last = looks
    if len(groups) <= MAX_COLUMNS:
        return groups
    across = -(-count // MAX_COLUMNS)
    return [range(start, min(start + across, count)) for start in range(0, count, across)]


def _rows_of(pattern: Pattern, device: int) -> int | None:
    rows = pattern.rows or ()
    return rows[device] if device < len(rows) else None


# -- columns ---------------------------------------------------------------------------------------


def _make_column(report: Report, group: range, slowest: int | None, output_device: int | None) -> MapColumn:
    devices = [report.devices[place] for place in group]
    numbers = {device.device for device in devices}
    slow = slowest in numbers
    marks: list[tuple[str, str]] = []
    idle = [report.per_device[place] for place in group if report.per_device[place].idle_steps]
    if idle:
        marks += [(words, IDLE) for words in _idle_marks(idle, len(devices))]
    if slow:
        marks.append((SLOW, SLOW))
    if output_device in numbers:
        marks.append((OUTPUT, OUTPUT))
    first, last = devices[0], devices[-1]
    if len(devices) > 1:
        return MapColumn(f"{first.device}-{last.device}", (), tuple(marks), slow, "")
    ranks = len({device.rank for device in report.devices}) > 1
    lines = (_short_id(first.id), *([f"rank {first.rank}"] if ranks else []))
    return MapColumn(str(first.device), lines, tuple(marks), slow, device_tip(first))


def _idle_marks(idle: Sequence[DeviceMeasures], devices: int) -> tuple[str, ...]:
    """The word, and below it in how many of its steps; of devices that differ, how many are idle at all."""
    one = idle[0]
    if len(idle) < devices or any((other.idle_steps, other.steps) != (one.idle_steps, one.steps) for other in idle):
        return (f"{len(idle)} {IDLE}",)
    if one.idle_steps == one.steps:
        return IDLE, "always"
    if one.steps < 1000:
        return IDLE, f"{one.idle_steps}/{one.steps}"
    return IDLE, f"{max(0.1, 100 * one.idle_steps / one.steps):.1f}%"


def device_tip(device: ReportDevice) -> str:
    return f"device {device.device}: {device.id}, {device.name}, on {device.node}, rank {device.rank}"


def _short_id(name: str) -> str:
    """A short name that distinguishes a device: `cpu:3`, or the first digits of a GPU's UUID."""
    return name[4:10] if name.startswith("GPU-") else name


# -- rows of each pattern --------------------------------------------------------------------------


def _most_frequent(report: Report, most: int) -> list[Pattern]:
    """The patterns with most steps, in the report's order."""
    known = [pattern for pattern in report.patterns if pattern.rows is not None]
    ranked = sorted(range(len(known)), key=lambda place: (-(known[place].steps or 0), place))
    return [known[place] for place in sorted(ranked[:most])]


def _by_rows(
    report: Report, groups: Sequence[range], shown: Sequence[Pattern]
) -> tuple[list[MapLine], tuple[str, str], list[str]]:
    top: dict[str, int] = {}
    for pattern in shown:
        largest = max((rows for rows in pattern.rows or () if rows is not None), default=0)
        top[pattern.phase] = max(top.get(pattern.phase, 0), largest)
    lines = [_pattern_line(report, pattern, groups, top[pattern.phase]) for pattern in shown]
    if len(set(top.values())) > 1:
        scale = "fewer", "most rows (" + ", ".join(f"{phase} {rows:,}" for phase, rows in top.items()) + ")"
    else:
        scale = "fewer", f"{max(top.values(), default=0):,} rows"
    return lines, scale, list(_row_remarks(report, shown))


def _row_remarks(report: Report, shown: Sequence[Pattern]) -> Iterator[str]:
    if not report.patterns:
        yield "no step has been seen"
    drawn = set(map(id, shown))
    rest = [pattern for pattern in report.patterns if pattern.rows is not None and id(pattern) not in drawn]
    if rest:
        steps = sum(pattern.steps or 0 for pattern in rest)
        idle = sum(pattern.steps or 0 for pattern in rest if 0 in (pattern.rows or ()))
        left = f"in {idle:,} of these some device got nothing" if idle else "in none of these a device was idle"
        yield f"{len(rest):,} rarer ways to divide a batch are not drawn: {steps:,} steps, {left}"
    for pattern in report.patterns:
        if pattern.rows is None:
            yield f"{format_count(pattern.steps)} more steps were divided in further ways"
    if any(pattern.shapes_vary for pattern in shown):
        yield "* the shapes differ between these steps"
    if any(rows is None for pattern in shown for rows in pattern.rows or ()):
        yield f"{DASH} rows could not be counted: {report.notes.get('patterns.rows', NOT_MEASURED)}"


def _pattern_line(report: Report, pattern: Pattern, groups: Sequence[range], top: int) -> MapLine:
    title = f"{pattern.phase}, {'rows unknown' if pattern.batch_rows is None else f'{pattern.batch_rows:,} rows'}"
    where = f"{pattern.module}: {_steps_text(pattern)}" if pattern.module else _steps_text(pattern)
    cells = (_rows_cell(report, pattern, group, top) for group in groups)
    return MapLine(title + (" *" if pattern.shapes_vary else ""), where, tuple(cells))


def _steps_text(pattern: Pattern) -> str:
    if pattern.first_step is None or pattern.last_step is None:
        return f"{format_count(pattern.steps)} steps"
    if pattern.steps == 1:
        return f"step {pattern.first_step:,}"
    return f"{format_count(pattern.steps)} steps, {pattern.first_step:,}-{pattern.last_step:,}"


def _rows_cell(report: Report, pattern: Pattern, group: range, top: int) -> MapCell:
    devices = [report.devices[place].device for place in group]
    rows = [_rows_of(pattern, device) for device in devices]
    tip = _rows_tip(pattern, devices[0], rows[0]) if len(devices) == 1 else _group_tip(devices, rows)
    known = [one for one in rows if one is not None]
    idle = known.count(0)
    if not known:
        return MapCell(DASH, "unknown", 0, tip)
    if idle:
        return MapCell(IDLE if idle == len(rows) else f"{idle} {IDLE}", "idle", 0, tip)
    least, largest = min(known), max(known)
    words = short_count(largest) if least == largest else f"{short_count(least)}-{short_count(largest)}"
    return MapCell(words, "value", colour_level(largest, top), tip)


def _rows_tip(pattern: Pattern, device: int, rows: int | None) -> str:
    if rows == 0:
        return f"device {device}: {IDLE}, no rows of {format_count(pattern.batch_rows)}"
    parts = [f"device {device}: {'rows not known' if rows is None else f'{rows:,} rows'}"]
    for name, shapes in (("input", pattern.input_shapes), ("output", pattern.output_shapes)):
        shape = shapes[device] if shapes is not None and device < len(shapes) else None
        if shape is not None:
            parts.append(f"{name} {' x '.join(map(str, shape)) or 'scalar'}")
    return ", ".join(parts)


def _group_tip(devices: Sequence[int], rows: Sequence[int | None]) -> str:
    listed = [IDLE if one == 0 else format_count(one) for one in rows]
    said = f"{listed[0]} each" if len(set(listed)) == 1 else ", ".join(listed)
    return f"devices {devices[0]} to {devices[-1]}: {said}"


# -- measures of each device -----------------------------------------------------------------------

_Get = Callable[[DeviceMeasures], float | None]


#: A line of a heat map of measures: name, what it is, the report's field, and how to get and to show it.
_Measure = tuple[str, str, str, _Get, Callable[[float], str]]


def _timed_lines(name: str, field: str) -> Iterator[_Measure]:
    for title, quantile in ((name, "p50"), (f"{name}, p95", "p95")):
        get = partial(_read_quantile, field, quantile)
        yield title, f"{quantile} of a step, ms", field, get, format_measure


def _read_quantile(field: str, quantile: str, device: DeviceMeasures) -> float | None:
    timing = getattr(device, field)
    return None if timing is None else getattr(timing, quantile)


_PER_ROW: _Measure = "ms per row", "forward and backward", "ms_per_row", attrgetter("ms_per_row"), format_measure
_LINES: dict[By, tuple[_Measure, ...]] = {
    "time": (_PER_ROW, *_timed_lines("forward", "forward_ms"), *_timed_lines("backward", "backward_ms")),
    "wait": (*_timed_lines("data wait", "data_wait_ms"), *_timed_lines("communication", "comm_ms")),
    "memory": (
        (
            "peak memory",
            "the most held",
            "memory_peak_bytes",
            attrgetter("memory_peak_bytes"),
            lambda v: format_bytes(round(v)),
        ),
    ),
}


def _by_measure(report: Report, groups: Sequence[range], by: By) -> tuple[list[MapLine], tuple[str, str], list[str]]:
    lines: list[MapLine] = []
    remarks: dict[str, None] = {}
    for title, words, field, get, show in _LINES[by]:
        values = [get(device) for device in report.per_device]
        known = [value for value in values if value is not None]
        note = report.notes.get(f"per_device.{field}")
        if not known:
            remarks[f"{title.partition(',')[0]}: {note or NOT_MEASURED}"] = None
            continue
        if note is not None:
            remarks[f"{title.partition(',')[0]}: {note}"] = None
        cells = (_measure_cell(report, group, values, title, max(known), show, by == "time") for group in groups)
        lines.append(MapLine(title, words, tuple(cells)))
    return lines, ("less", "most of each line"), list(remarks)


def _measure_cell(
    report: Report,
    group: range,
    values: Sequence[float | None],
    title: str,
    top: float,
    show: Callable[[float], str],
    timed: bool,
) -> MapCell:
    """`timed`: it is the time of work, which a device that got no rows has none of."""
    devices = [report.devices[place].device for place in group]
    known = [value for place in group if (value := values[place]) is not None]
    costs = [report.per_device[place] for place in group]
    who = f"device {devices[0]}" if len(devices) == 1 else f"devices {devices[0]} to {devices[-1]}"
    if not known:
        if timed and all(cost.steps == cost.idle_steps > 0 for cost in costs):
            return MapCell(IDLE, "idle", 0, f"{who}: {IDLE} in every step")
        return MapCell(DASH, "unknown", 0, f"{who}: {title} {NOT_MEASURED}")
    least, largest = show(min(known)), show(max(known))
    words = least if least == largest else f"{least}-{largest}"
    return MapCell(words, "value", colour_level(max(known), top), f"{who}: {title} {words}")


def colour_level(value: float, top: float) -> int:
    """The step of the scale for a part of the largest value."""
    return max(0, min(LEVELS - 1, int(LEVELS * value / top))) if top > 0 else 0


def short_count(value: int) -> str:
    """A count in at most six characters: 12,800 or 1.23M."""
    for limit, unit in ((1_000_000_000, "G"), (1_000_000, "M"), (100_000, "k")):
        if value >= limit:
            scale = 1000 if unit == "k" else limit
            return f"{format_measure(value / scale)}{unit}"
    return f"{value:,}"
