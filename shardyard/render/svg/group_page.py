"""Reports of comparisons and sweeps as one HTML file, and their loss curves on top of each other as SVG."""

from collections.abc import Sequence

from shardyard.contract.groups import ComparisonReport, CurvePoint, SweepReport
from shardyard.render.group_text import (
    VARIANT_COLUMNS,
    best_trial,
    describe_left_out,
    describe_length,
    describe_recommendation,
    describe_search,
    describe_values,
    failed_trials,
    failed_variants,
    ranked_trials,
    trial_cells,
    trial_columns,
    variant_cells,
    variant_name,
)
from shardyard.render.svg.line_chart import MAX_CURVES, MetricCurve, draw_curves
from shardyard.render.svg.markup import Markup, element, join_markup
from shardyard.render.svg.report_page import both_widths, html_document, page_section, scrolled_table
from shardyard.render.svg.svg import PictureFrame
from shardyard.render.text_tables import format_measure

#: Trials in the table of a page.
_MOST = 200
_NO_CURVES = "No job has reported its loss yet."


def draw_comparison(report: ComparisonReport) -> str:
    return _draw(_variant_curves(report))


def draw_sweep(report: SweepReport) -> str:
    return _draw(_trial_curves(report))


def comparison_report_page(report: ComparisonReport) -> str:
    title = f"Comparison {report.name}"
    rows = [[variant_name(one), one.state, *variant_cells(one)] for one in report.variants]
    about = f"{describe_length(report)}; {report.state}"
    said = [element("p", words, class_="verdict") for words in describe_recommendation(report)]
    left = [describe_left_out(one) for one in report.left_out]
    body = join_markup(
        [
            _header("A spec under several strategies", title, about, report.id),
            page_section("Recommendation", *said),
            page_section("Variants", _table(["variant", "state"], VARIANT_COLUMNS, rows)),
            _curves_section(_variant_curves(report)),
            *_lists({"Not succeeded": failed_variants(report), "Left out": left, "Notes": report.notes}),
        ]
    )
    return html_document(title, body)


def sweep_report_page(report: SweepReport) -> str:
    title = f"Sweep {report.name}"
    rows = [[str(one.number), one.state, *trial_cells(report, one)] for one in ranked_trials(report)[:_MOST]]
    best = best_trial(report)
    words = "No trial has ended with a value yet."
    if best is not None:
        words = f"Trial {best.number}: {report.metric} {format_measure(best.value)} with {describe_values(best)}"
    about = f"{describe_search(report)}; {report.state}"
    body = join_markup(
        [
            _header("A spec with several values", title, about, report.id),
            page_section("Best", element("p", words, class_="verdict")),
            page_section("Trials", _table(["trial", "state"], trial_columns(report), rows)),
            _curves_section(_trial_curves(report)),
            *_lists({"Not succeeded": failed_trials(report), "Notes": report.notes}),
        ]
    )
    return html_document(title, body)


def _header(kicker: str, title: str, about: str, group: str) -> Markup:
    return element(
        "header",
        element("p", kicker, class_="kicker"),
        element("h1", title, dir="auto"),
        element("p", about, class_="muted"),
        element("p", group, class_="muted"),
    )


def _table(names: Sequence[str], numbers: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    heads = [element("th", name, scope="col") for name in names]
    heads += [element("th", name, class_="n", scope="col", dir="auto") for name in numbers]
    lines = [
        element(
            "tr",
            *(element("td", cell, dir="auto") for cell in cells[: len(names)]),
            *(element("td", cell, class_="n") for cell in cells[len(names) :]),
        )
        for cells in rows
    ]
    return scrolled_table("Numbers of the jobs", heads, lines)


def _lists(sections: dict[str, list[str]]) -> list[Markup]:
    return [
        page_section(title, *(element("p", words, dir="auto", class_="muted") for words in lines))
        for title, lines in sections.items()
        if lines
    ]


def _variant_curves(report: ComparisonReport) -> list[MetricCurve]:
    return [_curve(variant_name(one), one.number, one.curve) for one in report.variants]


def _trial_curves(report: SweepReport) -> list[MetricCurve]:
    """Of the best."""
    return [_curve(f"trial {one.number}", one.number, one.curve) for one in ranked_trials(report)]


def _curve(label: str, number: int, points: Sequence[CurvePoint]) -> MetricCurve:
    return MetricCurve("loss", number, tuple((point.step, point.value) for point in points), label)


def _known(curves: Sequence[MetricCurve]) -> list[MetricCurve]:
    return [curve for curve in curves if any(value is not None for _, value in curve.points)][:MAX_CURVES]


def _curves_section(curves: Sequence[MetricCurve]) -> Markup:
    shown = _known(curves)
    if not shown:
        return page_section("Loss", element("p", _NO_CURVES, class_="muted"))
    drawn = both_widths("loss", "Loss of the jobs", lambda frame: draw_curves(shown, frame), half=True)
    more = len(curves) - len(shown)
    left = element("p", f"{more} more are not drawn.", class_="muted") if more else None
    return page_section("Loss", drawn, left)


def _draw(curves: Sequence[MetricCurve]) -> str:
    shown = _known(curves) or [MetricCurve("loss", -1, ((0, 0.0),), _NO_CURVES)]
    return str(draw_curves(shown, PictureFrame(True, False, "loss")))
