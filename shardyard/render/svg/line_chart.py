"""Curves of metrics as SVG, one chart for each name and one line for each device."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from shardyard.render.svg.chart_css import part_class
from shardyard.render.svg.markup import Markup, coordinate, element, fit_text, text_width
from shardyard.render.svg.palette import TIMES
from shardyard.render.svg.svg import PictureFrame, label_text, svg_document

#: The colours of curves: those of the parts of time, but for the first and the last, too pale for a line.
_COLOURS = TIMES[1:-1]
#: Charts of one page, lines of one chart, points of one line.
MAX_CHARTS = 6
MAX_CURVES = 8
MAX_POINTS = 500

_WIDE, _HIGH = 392.0, 190.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 56.0, 12.0, 26.0, 22.0


@dataclass(frozen=True, slots=True)
class MetricCurve:
    """A metric of one device (-1: of the job as a whole). `points` are (step, value) in order; a value that is no
    finite number leaves a gap. `label` names its owner where that is no device."""

    name: str
    device: int
    points: tuple[tuple[float, float | None], ...]
    label: str = ""


def group_curves(curves: Sequence[MetricCurve]) -> tuple[list[list[MetricCurve]], str]:
    """Curves of one name together, at most `MAX_CHARTS` of at most `MAX_CURVES`; and what is left out, in words."""
    by_name: dict[str, list[MetricCurve]] = {}
    for curve in sorted(curves, key=lambda one: one.name != "loss"):  # what most look for first
        if any(_known_points(curve)):
            by_name.setdefault(curve.name, []).append(curve)
    shown = [sorted(same, key=lambda one: one.device)[:MAX_CURVES] for same in list(by_name.values())[:MAX_CHARTS]]
    left = sum(map(len, by_name.values())) - sum(map(len, shown))
    return shown, f"{left:,} more series are not drawn" if left else ""


def draw_curves(curves: Sequence[MetricCurve], frame: PictureFrame) -> Markup:
    """One chart of curves that have the same name."""
    known = [point for curve in curves for point in _known_points(curve)]
    first, last = min(step for step, _ in known), max(step for step, _ in known)
    ticks = _axis_ticks(min(value for _, value in known), max(value for _, value in known))
    low, high = ticks[0], ticks[-1]
    right, bottom = _WIDE - _RIGHT, _HIGH - _BOTTOM

    def at(step: float, value: float) -> tuple[float, float]:
        along = (step - first) / (last - first) if last > first else 0.5
        return _LEFT + along * (right - _LEFT), bottom - (value - low) / (high - low) * (bottom - _TOP)

    parts = [label_text(fit_text(curves[0].name, 13, _WIDE - 8), 2, 13, "strong")]
    for tick in ticks:
        _, y = at(first, tick)
        parts.append(element("line", class_="rule", x1=_LEFT, x2=right, y1=y, y2=y))
        parts.append(label_text(_tick_words(tick), _LEFT - 6, y + 4, "end muted small"))
    parts.append(label_text(f"step {first:,.0f}", _LEFT, _HIGH - 6, "muted small"))
    parts.append(label_text(f"{last:,.0f}", right, _HIGH - 6, "end muted small"))
    for place, curve in enumerate(curves):
        drawn = " ".join(_path_commands(curve, at))
        dash = "5 3" if place >= len(_COLOURS) else None
        tip = element("title", f"{curve.name}, {_curve_owner(curve)}")
        kind = part_class(_COLOURS[place % len(_COLOURS)])
        dot = " dot" if len(list(_known_points(curve))) == 1 else ""
        parts.append(element("path", tip, class_=f"curve {kind}{dot}", d=drawn, stroke_dasharray=dash))
    parts += _draw_keys(curves, right)
    return svg_document(parts, _WIDE, _HIGH, curves[0].name, " ".join(_describe_curves(curves)), frame)


def _draw_keys(curves: Sequence[MetricCurve], right: float) -> Iterator[Markup]:
    """A legend from the right, if there is more than one line."""
    if len(curves) < 2:
        return
    x = right
    for place, curve in reversed(list(enumerate(curves))):
        name = curve.label or ("job" if curve.device < 0 else str(curve.device))
        x -= text_width(name, 10.5)
        yield label_text(name, x, 13, "muted small")
        x -= 18
        kind, dash = part_class(_COLOURS[place % len(_COLOURS)]), "5 3" if place >= len(_COLOURS) else None
        yield element("path", class_=f"curve {kind}", d=f"M{x:.1f} 9h14", stroke_dasharray=dash)
        x -= 6


def _path_commands(curve: MetricCurve, at: Callable[[float, float], tuple[float, float]]) -> Iterator[str]:
    pen = "M"
    for step, value in curve.points[:MAX_POINTS]:
        if value is None or not math.isfinite(value):
            pen = "M"
            continue
        x, y = at(step, value)
        yield f"{pen}{coordinate(x)} {coordinate(y)}"
        if pen == "M":
            yield "h0.1"  # a point between two gaps is seen too
        pen = "L"


def _known_points(curve: MetricCurve) -> Iterator[tuple[float, float]]:
    for step, value in curve.points[:MAX_POINTS]:
        if value is not None and math.isfinite(value):
            yield step, value


def _axis_ticks(low: float, high: float) -> list[float]:
    """Three to six round numbers around both."""
    if high - low <= 1e-12 * max(1.0, abs(high)):
        low, high = low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2
    rough = (high - low) / 3
    scale = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * scale for factor in (1, 2, 5, 10) if factor * scale >= rough * 0.999)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [place * step for place in range(first, last + 1)]


def _tick_words(value: float) -> str:
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.4g}"


def _curve_owner(curve: MetricCurve) -> str:
    if curve.label:
        return curve.label
    return "the job" if curve.device < 0 else f"device {curve.device}"


def _describe_curves(curves: Sequence[MetricCurve]) -> Iterator[str]:
    for curve in curves:
        values = [value for _, value in _known_points(curve)]
        yield f"{_curve_owner(curve)}: from {values[0]:.4g} to {values[-1]:.4g}."
