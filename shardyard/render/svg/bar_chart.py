"""Stacked bars as SVG: where the time of each device goes, DataParallel's primitives, and memory."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from shardyard.contract.report import DeviceMeasures, Report, Timing, has_whole_times
from shardyard.render.svg.chart_css import part_class
from shardyard.render.svg.highlights import slow_device
from shardyard.render.svg.markup import Markup, element, join_markup, text_width, wrap_text
from shardyard.render.svg.palette import IDLE, MEMORY, NOT_MEASURED, OUTPUT, PRIMITIVES, SLOW, TIMES, BarPart
from shardyard.render.svg.svg import PictureFrame, label_text, svg_document
from shardyard.render.text_tables import format_bytes, format_measure

#: Bars of one picture; of more devices, those with the longest.
MAX_BARS = 64
_TYPICAL = "each part by its p50, so that slow first steps do not count"
_BAR = 22.0
_STEP = 28.0


@dataclass(frozen=True, slots=True)
class ChartBar:
    """`parts`: what it is made of, how much of it, and more for the pointer. `marks`: words behind its name, each with
    how it is drawn. `whole`: how long it could be (memory of the device). `missing`: what to say where nothing was
    measured."""

    name: str
    parts: tuple[tuple[BarPart, float, str], ...]
    marks: tuple[tuple[str, str], ...] = ()
    whole: float | None = None
    missing: str = ""

    @property
    def total(self) -> float:
        return sum(amount for _, amount, _ in self.parts)


@dataclass(frozen=True, slots=True)
class BarChart:
    title: str
    bars: tuple[ChartBar, ...]
    parts: tuple[BarPart, ...]
    show: Callable[[float], str]
    remarks: tuple[str, ...]


# -- what the bars say -----------------------------------------------------------------------------


def primitives_chart(report: Report) -> BarChart:
    """Time in each of DataParallel's four steps of a typical batch: one bar."""
    found = report.primitives
    title = "DataParallel's primitives in a typical step"
    if found is None:
        return BarChart(title, (), PRIMITIVES, _format_ms, (_missing_reason(report, "primitives"),))
    amounts = tuple(_typical_part(part, getattr(found, part.field)) for part in PRIMITIVES)
    return BarChart(title, (ChartBar("", amounts),), PRIMITIVES, _format_ms, (_TYPICAL,))


def times_chart(report: Report, output_device: int | None = None) -> BarChart:
    """Where the wall time of each device went. Of a report of an earlier version, a typical step is drawn: its totals
    are those of the measured steps alone."""
    whole = has_whole_times(report)
    part_of = _whole_part if whole else _typical_part
    known = [part for part in TIMES if any(getattr(one, part.field) is not None for one in report.per_device)]
    bars, slow = [], slow_device(report)
    for one in report.per_device:
        parts = tuple(part_of(part, timing) for part in known if (timing := getattr(one, part.field)) is not None)
        bars.append(
            ChartBar(f"device {one.device}", parts, _bar_marks(report, one, slow, output_device), missing=NOT_MEASURED)
        )
    remarks = [_TYPICAL] if known and not whole else []
    for part in TIMES:
        note = report.notes.get(f"per_device.{part.field}")
        if part not in known:
            remarks.append(f"{part.name} is not drawn: {note or NOT_MEASURED}")
        elif note is not None:
            remarks.append(f"{part.name}: {note}")
    title = "Where each device's time went" if whole else "Time of each device in a typical step"
    return BarChart(title, tuple(bars) if known else (), tuple(known), _format_ms, tuple(remarks))


def memory_chart(report: Report, output_device: int | None = None) -> BarChart:
    """The most memory that each device held, out of what it has."""
    title = "Peak memory of each device"
    if all(one.memory_peak_bytes is None for one in report.per_device):
        return BarChart(title, (), (MEMORY,), _format_bytes, (_missing_reason(report, "per_device.memory_peak_bytes"),))
    bars, slow = [], slow_device(report)
    for device, one in zip(report.devices, report.per_device, strict=True):
        peak = one.memory_peak_bytes
        parts = ((MEMORY, float(peak), ""),) if peak is not None else ()
        whole = float(device.memory_total_bytes) if device.memory_total_bytes else None
        marks = _bar_marks(report, one, slow, output_device)
        bars.append(ChartBar(f"device {one.device}", parts, marks, whole, NOT_MEASURED))
    remarks = []
    skew = report.balance.output_device_memory_skew
    if skew is not None:
        where = "the output device" if output_device is None else f"device {output_device}, which gathers the outputs,"
        remarks.append(f"{where} held {format_measure(skew)} times as much as the others (their median)")
    note = report.notes.get("per_device.memory_peak_bytes")
    return BarChart(title, tuple(bars), (MEMORY,), _format_bytes, (*remarks, *([note] if note else [])))


def _bar_marks(
    report: Report, one: DeviceMeasures, slow: int | None, output: int | None
) -> tuple[tuple[str, str], ...]:
    found = []
    if one.steps and one.idle_steps == one.steps:
        found.append((IDLE, IDLE))
    if slow == one.device:
        found.append((SLOW, SLOW))
    if output == one.device and report.strategy == "dp" and len(report.devices) > 1:
        found.append((OUTPUT, OUTPUT))
    return tuple(found)


def _missing_reason(report: Report, field: str) -> str:
    return f"{NOT_MEASURED}: {report.notes.get(field, 'the report does not say why')}"


def _typical_part(part: BarPart, timing: Timing) -> tuple[BarPart, float, str]:
    more = f"p95 {_format_ms(timing.p95)}, {_format_ms(timing.total)} in all measured steps"
    return part, timing.p50, more


def _whole_part(part: BarPart, timing: Timing) -> tuple[BarPart, float, str]:
    error = f" give or take {_format_ms(timing.error)}" if timing.error else ""
    measured = f"measured in {timing.measured_steps:,} steps{error}"
    return part, timing.total, f"typically {_format_ms(timing.p50)}, p95 {_format_ms(timing.p95)}, {measured}"


def _format_ms(value: float) -> str:
    return f"{format_measure(value / 1000)} s" if value >= 10_000 else f"{format_measure(value)} ms"


def _format_bytes(value: float) -> str:
    return format_bytes(round(value))


# -- drawing them ----------------------------------------------------------------------------------


def draw_bars(chart: BarChart, frame: PictureFrame) -> Markup:
    """The chart as an SVG document for a page; without bars it has only its remarks."""
    shown, remarks = _longest_bars(chart.bars), list(chart.remarks)
    if len(shown) < len(chart.bars):
        remarks.insert(0, f"the {len(shown)} devices with the most, of {len(chart.bars):,}")
    label = max((_name_width(bar) + 10 for bar in shown if bar.name), default=2.0)
    value = max((text_width(chart.show(bar.total), 12) for bar in shown), default=0.0) + 12
    total = 336.0 if frame.narrow else 816.0
    room = total - label - value - 4
    top = max((max(bar.total, bar.whole or 0.0) for bar in shown), default=0.0)
    parts: list[Markup] = []
    y = 2.0
    for bar in shown:
        parts.append(_draw_bar(bar, chart, y, label, room, top, frame))
        y += _STEP
    if shown and len(chart.parts) > 1:
        drawn, y = _draw_legend(chart, y + 4, total)
        parts.append(drawn)
    for remark in remarks:
        for words in wrap_text(remark, 11.5, total, 6):
            y += 15
            parts.append(label_text(words, 2, y, "muted small"))
    return svg_document(parts, total, y + 6, chart.title, " ".join(_describe_bars(chart)), frame)


def _longest_bars(bars: Sequence[ChartBar]) -> list[ChartBar]:
    if len(bars) <= MAX_BARS:
        return list(bars)
    ranked = sorted(range(len(bars)), key=lambda place: (-bars[place].total, place))[:MAX_BARS]
    return [bars[place] for place in sorted(ranked)]


def _name_width(bar: ChartBar) -> float:
    return text_width(bar.name, 12) + sum(text_width(words, 11.5) + 6 for words, _ in bar.marks)


def _draw_bar(
    bar: ChartBar, chart: BarChart, y: float, label: float, room: float, top: float, frame: PictureFrame
) -> Markup:
    middle = y + _BAR / 2 + 4
    parts = [label_text(bar.name, 2, middle, "")]
    x = 2 + text_width(bar.name, 12) + 6
    for words, mark in bar.marks:
        parts.append(label_text(words, x, middle, f"strong small {mark}-word"))
        x += text_width(words, 11.5) + 6
    if not bar.parts:
        parts.append(label_text(bar.missing, label, middle, "muted"))
        return element("g", *parts)
    if bar.whole is not None:
        parts.append(element("rect", class_="track", x=label, y=y, width=room * bar.whole / top, height=_BAR, rx=3))
    x = label
    for part, amount, more in bar.parts:
        wide = room * amount / top if top else 0.0
        parts.append(_draw_segment(part, amount, more, bar, chart, x, y, wide, frame))
        x += wide
    after = label + room * max(bar.total, bar.whole or 0.0) / top if top else label
    words = chart.show(bar.total)
    if bar.whole is not None:
        parts.append(element("title", f"{bar.name}: {words} of {chart.show(bar.whole)}"))
    parts.append(label_text(words, after + 6, middle, ""))
    return element("g", *parts)


def _draw_segment(
    part: BarPart,
    amount: float,
    more: str,
    bar: ChartBar,
    chart: BarChart,
    x: float,
    y: float,
    wide: float,
    frame: PictureFrame,
) -> Markup:
    share = f"{100 * amount / bar.total:.0f}%" if bar.total else "0%"
    said = (bar.name, f"{part.name} {chart.show(amount)}", share, more)
    tip = ", ".join(words for words in said if words)
    inside = [element("title", tip)] if not frame.narrow else []
    inside.append(element("rect", x=x, y=y, width=max(0.0, wide - 1), height=_BAR))
    for words in (f"{part.name} {share}", share):
        if len(bar.parts) > 1 and text_width(words, 11) + 8 <= wide:
            inside.append(label_text(words, x + wide / 2, y + _BAR / 2 + 4, "mid small"))
            break
    return element("g", *inside, class_=part_class(part))


def _draw_legend(chart: BarChart, y: float, room: float) -> tuple[Markup, float]:
    x, parts = 2.0, []
    for part in chart.parts:
        wide = 18 + text_width(part.name, 11) + 16
        if x > 2 and x + wide > room:
            x, y = 2.0, y + 18
        parts.append(element("rect", class_=part_class(part), x=x, y=y, width=12, height=12, rx=2))
        parts.append(label_text(part.name, x + 17, y + 10, "muted small"))
        x += wide
    return join_markup(parts), y + 14


def _describe_bars(chart: BarChart) -> Iterator[str]:
    for bar in chart.bars[:8]:
        if bar.parts:
            amounts = ", ".join(f"{part.name} {chart.show(amount)}" for part, amount, _ in bar.parts)
            yield f"{bar.name}: {amounts}." if bar.name else f"{amounts}."
        else:
            yield f"{bar.name}: {bar.missing}."
    for remark in chart.remarks:
        yield remark + "."
