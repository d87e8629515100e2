"""Two split reports side by side as one HTML file, for DataParallel against DistributedDataParallel."""

from collections.abc import Sequence

from shardyard.contract.report import Report, Timing
from shardyard.contract.report_diff import ReportDiff, ValuePair, compare_reports
from shardyard.render.svg import bar_chart
from shardyard.render.svg.captions import REHEARSAL, what_it_is
from shardyard.render.svg.heat_map import draw_heat_map
from shardyard.render.svg.markup import Markup, element, join_markup
from shardyard.render.svg.report_page import (
    ReportContext,
    both_widths,
    chart_section,
    finding_box,
    html_document,
    page_section,
    scrolled_table,
    verdict_lines,
)
from shardyard.render.text_tables import format_bytes, format_count, format_flop, format_measure, format_share

#: Lines of the table of differences: the name of a number, where it is in the comparison.
_BALANCE = (
    ("rows, most over mean", "rows_max_over_mean"),
    ("time, most over mean", "time_max_over_mean"),
    ("what costs most", "cause"),
    ("slowest device", "slowest_device"),
    ("steps of idle devices", "idle_device_steps"),
    ("device time spent waiting, s", "wasted_device_seconds"),
    ("memory, output device over the others", "output_device_memory_skew"),
)
_DEVICE = (
    ("rows", "rows"),
    ("ms per row", "ms_per_row"),
    ("rows/s", "rows_per_second"),
    ("tokens/s", "tokens_per_second"),
    ("FLOP a step", "flop_per_step"),
    ("FLOP/s", "flop_per_second"),
    ("MFU", "mfu"),
    ("forward, p50 ms", "forward_ms"),
    ("backward, p50 ms", "backward_ms"),
    ("data wait, p50 ms", "data_wait_ms"),
    ("communication, p50 ms", "comm_ms"),
    ("peak memory", "memory_peak_bytes"),
)
#: Of all devices together, where one of the two is known.
_TOGETHER = (
    ("rows/s", "rows_per_second"),
    ("tokens/s", "tokens_per_second"),
    ("FLOP a step", "flop_per_step"),
    ("FLOP/s", "flop_per_second"),
    ("MFU", "mfu"),
)
#: How numbers are shown that are no counts, times or bytes.
_SHOWN = {"flop_per_step": format_flop, "flop_per_second": format_flop, "mfu": format_share}
#: Devices in the table of differences.
_MOST = 64


def comparison_page(this: tuple[Report, ReportContext], against: tuple[Report, ReportContext]) -> str:
    """The whole document: what differs in numbers, then each report's findings, split and times beside the other's."""
    found = compare_reports(this[0], against[0])
    names = [_side_name(*side) for side in (this, against)]
    body = join_markup(
        [
            element(
                "header",
                element("p", "Two split reports side by side", class_="kicker"),
                element("h1", names[0], " and ", names[1], dir="auto"),
            ),
            element("div", _side_section("a", *this), _side_section("b", *against), class_="sides"),
            _balance_section(found, names),
            _device_section(found, names),
        ]
    )
    return html_document(f"{names[0]} and {names[1]}", body)


def _side_name(report: Report, about: ReportContext) -> str:
    return about.name or f"job {report.job_id}"


def _side_section(ids: str, report: Report, about: ReportContext) -> Markup:
    """The narrow pictures serve for every width: each side has half the page."""
    findings = [finding_box(finding) for finding in report.findings]
    drawn = both_widths(
        f"{ids}-map",
        "Rows of each device",
        lambda frame: draw_heat_map(report, output_device=about.output_device, frame=frame),
        half=True,
    )
    charts = [bar_chart.primitives_chart(report)] if report.strategy == "dp" else []
    charts.append(bar_chart.times_chart(report, about.output_device))
    return element(
        "section",
        element("h2", _side_name(report, about), dir="auto"),
        element("p", what_it_is(report), class_="muted"),
        element("p", f"job {report.job_id}", class_="muted"),
        element("p", REHEARSAL, class_="banner") if report.rehearsal else None,
        drawn,
        *verdict_lines(report),
        *(findings or [element("p", "Nothing was found that should be changed.", class_="muted")]),
        *(chart_section(f"{ids}-chart{place}", chart, half=True) for place, chart in enumerate(charts)),
    )


def _balance_section(found: ReportDiff, names: Sequence[str]) -> Markup:
    rows = [
        _pair_row([f"{name}, all devices"], pair, field)
        for name, field in _TOGETHER
        if (pair := getattr(found.throughput, field)).this is not None or pair.against is not None
    ]
    rows += [_pair_row([name], getattr(found.balance, field), field) for name, field in _BALANCE]
    return page_section("Balance and throughput", _pair_table(["number"], names, rows))


def _device_section(found: ReportDiff, names: Sequence[str]) -> Markup:
    rows = [
        _pair_row([name if not place else "", str(device.device)], pair, field)
        for name, field in _DEVICE
        for place, device in enumerate(found.per_device[:_MOST])
        if (pair := getattr(device, field)).this is not None or pair.against is not None
    ]
    return page_section("Devices", _pair_table(["number", "device"], names, rows))


def _pair_table(first: Sequence[str], names: Sequence[str], rows: Sequence[Markup]) -> Markup:
    heads = [element("th", name, scope="col") for name in first]
    heads += [element("th", name, class_="n", scope="col", dir="auto") for name in (*names, "ratio")]
    return scrolled_table("Numbers side by side", heads, rows)


def _pair_row(first: Sequence[str], pair: ValuePair, field: str) -> Markup:
    cells = [element("td", words) for words in first]
    ratio = "" if pair.ratio is None else format_measure(pair.ratio)
    both = (_value_text(pair.this, field), _value_text(pair.against, field))
    cells += [element("td", words, class_="n") for words in (*both, ratio)]
    return element("tr", *cells)


def _value_text(value: int | float | str | Timing | None, field: str) -> str:
    if isinstance(value, Timing):
        return format_measure(value.p50)
    if isinstance(value, str):
        return value
    if field in _SHOWN:
        return _SHOWN[field](value).rstrip()
    if isinstance(value, float):
        return format_measure(value)
    return format_bytes(value) if value is not None and value >= 1 << 20 else format_count(value)
