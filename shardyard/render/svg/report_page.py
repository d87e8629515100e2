"""A split report as one HTML file without requests and scripts, which can be sent by mail and printed.

It shows the findings, then the split as a picture, then its cost.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from shardyard.contract.report import (
    DeviceMeasures,
    Finding,
    NodeMeasures,
    Report,
    ReportDevice,
    Timing,
    describe_cost,
    fields_by_reason,
    time_parts,
    weight_lines,
)
from shardyard.render.hardware_cells import CAPTION, hardware_cells, hardware_remarks
from shardyard.render.svg import bar_chart, line_chart
from shardyard.render.svg.bar_chart import BarChart
from shardyard.render.svg.captions import REHEARSAL, describe_verdicts, kind_of, what_it_is
from shardyard.render.svg.heat_map import draw_heat_map
from shardyard.render.svg.highlights import slow_device
from shardyard.render.svg.line_chart import MetricCurve
from shardyard.render.svg.markup import Markup, element, join_markup
from shardyard.render.svg.page_css import page_sheet
from shardyard.render.svg.palette import IDLE, MEASURES, NOT_MEASURED, OUTPUT, SLOW, By
from shardyard.render.svg.svg import PictureFrame
from shardyard.render.text_tables import NOT_MEASURED as DASH
from shardyard.render.text_tables import (
    describe_rates,
    format_bytes,
    format_count,
    format_flop,
    format_indexes,
    format_measure,
    format_share,
)

#: What a browser may do with the page: show it.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

NOT_FINAL = "The attempt has not ended: this is what it has done so far."

#: Findings before the split, so that both are seen without scrolling.
MAX_FINDINGS_ON_TOP = 2

#: Rows of the table of devices; more devices are counted.
MAX_TABLE = 256


@dataclass(frozen=True, slots=True)
class ReportContext:
    """Facts about the job beside its report. `spec` is JSON to show; `output_device` is where DataParallel gathers,
    `None` if that is not known."""

    name: str = ""
    state: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    spec: str = ""
    output_device: int | None = None
    curves: Sequence[MetricCurve] = ()


NOTHING = ReportContext()


def report_page(report: Report, about: ReportContext = NOTHING, by: By = "rows") -> str:
    """The whole document. `by`: the map that is seen first; the others are a click away."""
    sections = (
        _page_header(report, about),
        _findings_section(report),
        _maps_section(report, about, by),
        _more_findings(report),
        _balance_tiles(report),
        _weights_section(report),
        _nodes_section(report),
        _devices_section(report, about),
        *_bar_sections(report, about),
        _hardware_section(report),
        _curves_section(about),
        _plan_section(report),
        _spec_section(about),
        _notes_section(report),
    )
    return html_document(f"Split of {about.name or report.job_id}", join_markup(part for part in sections if part))


def html_document(title: str, body: Markup) -> str:
    """An HTML document of the page's style around `body`."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", title),
        element("style", Markup(page_sheet())),
    )
    footer = element("footer", "Made by Shardyard. Times are in milliseconds unless stated otherwise.")
    return f"<!DOCTYPE html>\n{element('html', head, element('body', element('main', body), footer), lang='en')}\n"


# -- words -----------------------------------------------------------------------------------------


def _page_header(report: Report, about: ReportContext) -> Markup:
    facts = [_header_fact("", what_it_is(report)), _header_fact("job", report.job_id)]
    if about.state:
        facts.insert(0, _header_fact("", about.state, strong=True))
    nodes = sorted({device.node for device in report.devices})
    facts.append(_header_fact("on", ", ".join(nodes[:4]) + (f" and {len(nodes) - 4} more" if len(nodes) > 4 else "")))
    if report.resumed is not None:
        facts.append(_header_fact("went on from step", f"{report.resumed.step:,} of attempt {report.resumed.attempt}"))
    labels = (element("span", f"{key}={value}", dir="auto") for key, value in about.labels.items())
    return element(
        "header",
        element("p", "Split report", class_="kicker"),
        element("h1", about.name or f"Job {report.job_id}", dir="auto"),
        element("p", *facts, class_="facts"),
        element("p", *labels, class_="labels") if about.labels else None,
        element("p", report.verdict, class_="verdict") if report.verdict else None,
        element("p", REHEARSAL, class_="banner") if report.rehearsal else None,
        None if report.final else element("p", NOT_FINAL, class_="banner"),
    )


def _header_fact(name: str, value: str, *, strong: bool = False) -> Markup:
    shown = element("b" if strong else "span", value, dir="auto")
    return element("span", f"{name} " if name else None, shown)


def _findings_section(report: Report) -> Markup:
    found = [finding_box(finding) for finding in _by_weight(report)]
    if not found:
        found = [element("p", "Nothing was found that should be changed.", class_="muted")]
    more = len(found) - MAX_FINDINGS_ON_TOP
    below = element("p", f"{more} more below the split", class_="muted") if more > 0 else None
    return page_section("Findings", *verdict_lines(report), *found[:MAX_FINDINGS_ON_TOP], below)


def verdict_lines(report: Report) -> list[Markup]:
    return [element("p", words, class_=f"verdict {kind_of(words)}") for words in describe_verdicts(report)]


def _more_findings(report: Report) -> Markup | None:
    rest = _by_weight(report)[MAX_FINDINGS_ON_TOP:]
    return page_section("More findings", *map(finding_box, rest)) if rest else None


def _by_weight(report: Report) -> list[Finding]:
    return sorted(report.findings, key=lambda one: (one.severity != "warning", -(one.cost_device_seconds or 0.0)))


def finding_box(finding: Finding) -> Markup:
    cost = describe_cost(finding)
    return element(
        "div",
        element("span", element("b", finding.severity), " ", finding.code, class_="code"),
        element("p", finding.message, dir="auto"),
        element("p", cost, class_="muted") if cost else None,
        element("p", element("b", "What to change: "), finding.suggestion, class_="change", dir="auto"),
        class_="finding warning" if finding.severity == "warning" else "finding",
    )


def _plan_section(report: Report) -> Markup | None:
    told = {True: "The splits are those that were planned.", False: "The splits are not those that were planned."}
    if report.prediction.matches is None:
        return None
    differences = (element("li", words, dir="auto") for words in report.prediction.differences)
    listed = element("ul", *differences) if report.prediction.differences else None
    return page_section("Plan", element("p", told[report.prediction.matches]), listed)


def _spec_section(about: ReportContext) -> Markup | None:
    return page_section("Job spec", element("pre", about.spec, dir="auto")) if about.spec else None


def _notes_section(report: Report) -> Markup | None:
    if not report.notes:
        return None
    rows = (
        element("tr", element("td", reason, dir="auto"), element("td", element("code", ", ".join(fields))))
        for reason, fields in fields_by_reason(report.notes).items()
    )
    return page_section("Notes", element("table", element("tbody", *rows), class_="notes"))


# -- pictures --------------------------------------------------------------------------------------


def _maps_section(report: Report, about: ReportContext, by: By) -> Markup:
    switch: list[Markup] = []
    maps: list[Markup] = []
    for one in MEASURES:
        switch.append(
            element("input", type="radio", name="by", id=f"by-{one}", value=one, class_="by", checked=one == by)
        )
        switch.append(element("label", one, for_=f"by-{one}", class_="by"))
        maps.append(element("div", _draw_map(report, about, one), class_=f"map by-{one}"))
    legend = element("legend", "What the cells show")
    return page_section("The split", element("fieldset", legend, *switch, element("div", *maps, class_="maps")))


def _draw_map(report: Report, about: ReportContext, by: By) -> Markup:
    return both_widths(
        f"map-{by}",
        MEASURES[by][0],
        lambda frame: draw_heat_map(report, by, name=about.name, output_device=about.output_device, frame=frame),
    )


def both_widths(ids: str, name: str, draw: Callable[[PictureFrame], Markup], *, half: bool = False) -> Markup:
    """A picture for a screen, which scrolls sideways where it must, and one for a telephone; one of them is shown.
    With `half` of a page, it is always the one for a telephone."""
    scrolls = {"tabindex": "0", "role": "group", "aria_label": name}
    narrow = draw(PictureFrame(False, True, f"{ids}-n"))
    if half:
        return element("div", narrow, class_="scroll", **scrolls)
    wide = element("div", draw(PictureFrame(False, False, ids)), class_="scroll wide", **scrolls)
    return join_markup([wide, element("div", narrow, class_="scroll narrow")])


def _bar_sections(report: Report, about: ReportContext) -> Iterator[Markup]:
    if report.strategy == "dp":
        yield chart_section("primitives", bar_chart.primitives_chart(report))
    yield chart_section("times", bar_chart.times_chart(report, about.output_device))
    yield chart_section("memory", bar_chart.memory_chart(report, about.output_device))


def chart_section(ids: str, chart: BarChart, *, half: bool = False) -> Markup:
    """The bars of a chart, or the reason why there are none."""
    if not chart.bars:
        return page_section(chart.title, *(element("p", words, class_="muted") for words in chart.remarks))
    return page_section(
        chart.title, both_widths(ids, chart.title, lambda frame: bar_chart.draw_bars(chart, frame), half=half)
    )


def _curves_section(about: ReportContext) -> Markup | None:
    shown, left = line_chart.group_curves(about.curves)
    if not shown:
        return None
    drawn = (
        line_chart.draw_curves(same, PictureFrame(False, False, f"curve{place}")) for place, same in enumerate(shown)
    )
    return page_section("Metrics", element("div", *drawn, class_="charts"), element("p", left) if left else None)


# -- numbers ---------------------------------------------------------------------------------------


def _balance_tiles(report: Report) -> Markup:
    balance = report.balance
    tiles = (
        ("rows, most over mean", format_measure(balance.rows_max_over_mean), "rows_max_over_mean"),
        ("time, most over mean", format_measure(balance.time_max_over_mean), "time_max_over_mean"),
        ("what costs most", balance.cause or DASH, "cause"),
        ("steps of idle devices", format_count(balance.idle_device_steps), "idle_device_steps"),
        ("device time spent waiting", _seconds_text(balance.wasted_device_seconds), "wasted_device_seconds"),
    )
    return element("dl", *(_balance_tile(report, *tile) for tile in tiles), class_="tiles")


def _seconds_text(value: float | None) -> str:
    return DASH if value is None else f"{format_measure(value)} s"


def _balance_tile(report: Report, name: str, value: str, path: str) -> Markup:
    if value == DASH:
        note = report.notes.get(f"balance.{path}")
        shown = element("dd", NOT_MEASURED + (f": {note}" if note else ""), class_="none")
    else:
        shown = element("dd", value)
    return element("div", element("dt", name), shown)


def _weights_section(report: Report) -> Markup | None:
    if report.weights is None:
        return None
    note = report.notes.get("weights.gradient")
    words = [*weight_lines(report.weights), *([note] if note else [])]
    return page_section("Weights", element("ul", *(element("li", line) for line in words)))


def _nodes_section(report: Report) -> Markup | None:
    """What each node's devices got and cost together, where there are several nodes."""
    if not report.per_node:
        return None
    names = ("devices", "rows", "share", "steps", "wall", "data wait", "work", "communication", "slowest device")
    head = [_head_cell("node"), *(_head_cell(name, "n") for name in names)]
    rows = [
        element("tr", _body_cell(node.node), *(_body_cell(words, "n") for words in _node_cells(node)))
        for node in report.per_node[:MAX_TABLE]
    ]
    more, slowest = len(report.per_node) - len(rows), report.balance.slowest_node
    return page_section(
        "Nodes",
        element("p", "The others wait most for ", element("b", slowest, dir="auto"), ".") if slowest else None,
        scrolled_table("Nodes", head, rows),
        element("p", f"and {more:,} more nodes", class_="muted") if more > 0 else None,
    )


def _node_cells(node: NodeMeasures) -> Iterator[str]:
    parts = time_parts(node)
    whole = node.wall_ms or sum(parts.values())
    work = [parts[name] for name in ("forward_ms", "backward_ms", "optimizer_ms") if name in parts]
    times = parts.get("data_wait_ms"), sum(work) if work else None, parts.get("comm_ms")
    yield format_indexes(node.devices)
    yield format_count(node.rows)
    yield format_share(node.share)
    yield format_count(node.steps)
    yield DASH if node.wall_ms is None else f"{format_measure(node.wall_ms / 1000)} s"
    yield from (DASH if time is None or not whole else f"{time / whole:.0%}" for time in times)
    yield format_count(node.slowest_device)


def _devices_section(report: Report, about: ReportContext) -> Markup:
    rates = [rate for rate in _RATES if any(getattr(cost, rate[1]) is not None for cost in report.per_device)]
    names = ("rows", "share", "steps", "idle", "ms/row", *(rate[0] for rate in rates), "data wait, p50", "peak memory")
    ranks = len({device.rank for device in report.devices}) > 1
    head = [_head_cell("device"), _head_cell("mark"), *([_head_cell("rank", "n")] if ranks else [])]
    head += [*(_head_cell(name, "n") for name in names), _head_cell("id"), _head_cell("node")]
    slow = slow_device(report)
    rows = []
    for device, cost in list(zip(report.devices, report.per_device, strict=True))[:MAX_TABLE]:
        cells = [_body_cell(str(device.device)), element("td", *_table_marks(report, device, cost, slow, about))]
        cells += [_body_cell(str(device.rank), "n")] if ranks else []
        cells += [_body_cell(words, "n") for words in _cost_cells(cost, rates)]
        cells += [element("td", element("code", device.id), title=device.name), _body_cell(device.node)]
        rows.append(element("tr", *cells))
    more, together = len(report.devices) - len(rows), describe_rates(report)
    return page_section(
        "Devices",
        element("p", f"{together} together") if together else None,
        scrolled_table("Devices", head, rows),
        element("p", f"and {more:,} more devices", class_="muted") if more else None,
    )


def _hardware_section(report: Report) -> Markup | None:
    if not report.hardware:
        return None
    heads, *listed = hardware_cells(report.hardware[:MAX_TABLE])
    head = [_head_cell(words, "n") for words in heads]
    rows = [element("tr", *(_body_cell(words, "n") for words in cells)) for cells in listed]
    return page_section(
        "Hardware, sampled once a second",
        scrolled_table("Hardware", head, rows),
        *(element("p", words, class_="muted") for words in (CAPTION, *hardware_remarks(report.hardware[:MAX_TABLE]))),
    )


#: Columns of the table of devices that are there where some device has them: title, field, and how it is shown.
_Rate = tuple[str, str, Callable[[float | None], str]]
_RATES: tuple[_Rate, ...] = (
    ("rows/s", "rows_per_second", format_measure),
    ("tokens/s", "tokens_per_second", format_measure),
    ("FLOP/s", "flop_per_second", format_flop),
    ("MFU", "mfu", format_share),
)


def _cost_cells(cost: DeviceMeasures, rates: Sequence[_Rate]) -> tuple[str, ...]:
    return (
        format_count(cost.rows),
        DASH if cost.share is None else f"{cost.share:.1%}",
        format_count(cost.steps),
        format_count(cost.idle_steps),
        format_measure(cost.ms_per_row),
        *(show(getattr(cost, field)).rstrip() for _, field, show in rates),
        _median_text(cost.data_wait_ms),
        format_bytes(cost.memory_peak_bytes),
    )


def _median_text(timing: Timing | None) -> str:
    return DASH if timing is None else format_measure(timing.p50)


def _table_marks(
    report: Report, device: ReportDevice, cost: DeviceMeasures, slow: int | None, about: ReportContext
) -> Iterator[Markup]:
    if cost.idle_steps:
        yield element("span", IDLE, class_="mark idle")
    if device.device == slow:
        yield element("span", SLOW, class_="mark slow")
    if device.device == about.output_device and report.strategy == "dp" and len(report.devices) > 1:
        yield element("span", OUTPUT, class_="mark output")


def _head_cell(words: str, kind: str = "") -> Markup:
    return element("th", words, class_=kind or None, scope="col")


def _body_cell(words: str, kind: str = "") -> Markup:
    return element("td", words, class_=kind or None)


def scrolled_table(name: str, head: Sequence[Markup], rows: Sequence[Markup]) -> Markup:
    """A table that scrolls sideways where it is wider than the page; `name` is what a screen reader says."""
    table = element("table", element("thead", element("tr", *head)), element("tbody", *rows))
    return element("div", table, class_="scroll", tabindex="0", role="group", aria_label=name)


def page_section(title: str, *children: Markup | None) -> Markup:
    return element("section", element("h2", title), *children)
