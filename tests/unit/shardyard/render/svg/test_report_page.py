import math
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardyard.contract.report import Finding, Report
from shardyard.render.svg import bar_chart, line_chart
from shardyard.render.svg.comparison_page import comparison_page
from shardyard.render.svg.line_chart import MAX_CHARTS, MAX_CURVES, MetricCurve
from shardyard.render.svg.report_page import POLICY, ReportContext, report_page
from shardyard.render.svg.svg import PictureFrame
from tests.support.samples.timed_streams import node_run
from tests.support.svg_reading import SVG, changed, example, many, of_earlier_version, on_gpus, words

ABOUT = ReportContext(
    name="ten for eight",
    state="succeeded",
    labels={"team": "vision"},
    spec='{"resources": {"devices": 8}}',
    output_device=0,
    curves=[MetricCurve("loss", -1, tuple((step, math.exp(-step / 9)) for step in range(50)))],
)
#: Elements that HTML may leave without an end tag.
VOID = {"meta", "input", "rect", "line", "path"}


class Balanced(HTMLParser):
    """Follows HTML's own rules: which elements are open, and the text that is seen."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value) for name, value in attrs]
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in VOID, f"{tag} needs an end tag in HTML"
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "title", "desc"):
            self.seen.append(data)


def read(document: str) -> Balanced:
    """The document by HTML's rules, after it was read by XML's."""
    ET.fromstring(document)
    reader = Balanced()
    reader.feed(document)
    reader.close()
    assert reader.open == []
    return reader


def text_of(document: str) -> str:
    return "".join(read(document).seen)


def segments(drawn: str) -> list[tuple[str, ET.Element]]:
    """What the pointer finds, and the rectangle there."""
    groups = ET.fromstring(drawn).iter(f"{SVG}g")
    return [
        (tip.text or "", rect)
        for group in groups
        if (tip := group.find(f"{SVG}title")) is not None and (rect := group.find(f"{SVG}rect")) is not None
    ]


@pytest.mark.parametrize(
    "found", [example("three-of-thirty"), example("straggler-on-rank-1"), on_gpus(), many(1, 1), many(70, 30)]
)
def test_a_page_is_valid_asks_for_nothing_and_has_no_id_twice(found: Report) -> None:
    document = report_page(found, ABOUT)
    reader = read(document)
    ids = [value for _, name, value in reader.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert not [name for _, name, _ in reader.attributes if name in ("src", "href", "action") or name.startswith("on")]
    assert "<script" not in document
    assert set(re.findall(r"https?://[^\"' <]*", document)) == {"http://www.w3.org/2000/svg"}
    assert set(re.findall(r"url\(([^)]*)\)", document)) <= {f"#{one}" for one in ids}
    assert ("meta", "content", POLICY) in reader.attributes
    assert document == report_page(found, ABOUT)


def test_findings_come_first_with_what_to_change() -> None:
    said = text_of(report_page(example("ten-for-eight"), ABOUT))
    order = ["Idle: devices 5 to 7 in every step.", "3 of 8 devices get nothing of a batch of 10", "What to change: "]
    order += ["The split", "Devices", "DataParallel's primitives", "Where each device's time", "Job spec", "Notes"]
    places = [said.index(part) for part in order]
    assert places == sorted(places)


def test_the_split_is_seen_without_scrolling_past_many_findings_and_warnings_are_first() -> None:
    base = example("rows-on-8-devices")
    found = [Finding(f"code-{n}", "warning" if n == 4 else "info", f"message {n}", "do it") for n in range(5)]
    said = text_of(report_page(changed(base, findings=tuple(found))))
    order = ["message 4", "message 0", "3 more below the split", "The split", "More findings", "message 1", "message 3"]
    places = [said.index(part) for part in order]
    assert places == sorted(places)


def test_a_report_without_findings_says_so() -> None:
    assert "Nothing was found that should be changed." in text_of(report_page(example("wrapped-block")))


def test_a_live_report_says_that_it_is_not_the_end() -> None:
    live = changed(example("three-of-thirty"), final=False)
    assert "The attempt has not ended" in text_of(report_page(live))
    assert "The attempt has not ended" not in text_of(report_page(example("three-of-thirty")))


def test_a_rehearsal_says_that_times_are_not_those_of_gpus() -> None:
    assert "Rehearsal: the devices only acted as GPUs" in text_of(report_page(example("rehearsed-script")))


def test_what_was_not_measured_has_its_note_and_no_bar() -> None:
    said = text_of(report_page(example("three-of-thirty"), ABOUT))
    assert "not measured: virtual devices share the memory of the host" in said
    chart = bar_chart.memory_chart(on_gpus(), 0)
    assert [bool(bar.parts) for bar in chart.bars] == [True] * 7 + [False]
    assert "not measured" in words(bar_chart.draw_bars(chart, PictureFrame(heading=False)))


def test_memory_names_the_skew_of_the_output_device() -> None:
    chart = bar_chart.memory_chart(on_gpus(), 0)
    assert (
        chart.remarks[0] == "device 0, which gathers the outputs, held 4.44 times as much as the others (their median)"
    )


def test_times_of_ranks_are_stacked_and_say_what_they_include() -> None:
    chart = bar_chart.times_chart(example("two-ranks"))
    assert [part.name for part in chart.parts] == [
        *("data wait", "forward", "backward", "communication", "optimizer", "other")
    ]
    assert any("waiting for the slowest rank included" in remark for remark in chart.remarks)


def test_primitives_are_one_bar_of_four_parts() -> None:
    chart = bar_chart.primitives_chart(example("three-of-thirty"))
    assert [part.name for part, *_ in chart.bars[0].parts] == ["replicate", "scatter", "parallel_apply", "gather"]
    assert bar_chart.primitives_chart(example("two-ranks")).remarks == (
        'not measured: only strategy "dp" gathers on one device',
    )


def test_parts_are_as_long_as_they_took_in_all_steps_and_the_pointer_has_the_rest() -> None:
    drawn = bar_chart.draw_bars(bar_chart.times_chart(example("straggler-on-rank-1")), PictureFrame(heading=False))
    assert {"slow", "device 1"} <= set(words(drawn))
    one, wide = example("straggler-on-rank-1").per_device[1], widths_of_device_1(drawn)
    assert one.data_wait_ms is not None
    assert one.comm_ms is not None
    assert wide["data wait"] / wide["communication"] == pytest.approx(
        one.data_wait_ms.total / one.comm_ms.total, rel=0.05
    )
    (computed,) = (tip for tip, _ in segments(drawn) if tip.startswith("device 1, backward"))
    assert re.search(r"typically \S+ ms, p95 \S+ ms, measured in \d+ steps give or take \S+ ms$", computed)


def test_a_report_of_an_earlier_version_is_drawn_by_its_typical_step() -> None:
    """Its totals would make what was measured in some steps only too short."""
    chart = bar_chart.times_chart(of_earlier_version(example("straggler-on-rank-1")))
    assert chart.title == "Time of each device in a typical step"
    one, wide = (
        example("straggler-on-rank-1").per_device[1],
        widths_of_device_1(bar_chart.draw_bars(chart, PictureFrame(heading=False))),
    )
    assert one.data_wait_ms is not None
    assert one.comm_ms is not None
    assert wide["data wait"] / wide["communication"] == pytest.approx(one.data_wait_ms.p50 / one.comm_ms.p50, rel=0.05)


def widths_of_device_1(drawn: str) -> dict[str, float]:
    pieces = ((tip.split(", ")[1], rect) for tip, rect in segments(drawn) if tip.startswith("device 1,"))
    return {re.sub(r" [<\d].*", "", name): float(rect.get("width", "")) for name, rect in pieces}


def test_several_nodes_have_a_table_which_names_the_slowest() -> None:
    page = text_of(report_page(node_run(2, 2, 100, slow_node=1).make_report(final=False)))

    assert "The others wait most for host-1." in " ".join(page.split())
    assert "slowest device" in page
    assert "2-3" in page
    assert "The others wait most" not in text_of(report_page(node_run(1, 2, 100).make_report(final=False)))


def test_a_curve_leaves_a_gap_where_a_value_is_no_number() -> None:
    curve = MetricCurve("loss", -1, ((0, 1.0), (1, math.nan), (2, None), (3, math.inf), (4, 0.5), (5, 0.4)))
    drawn = line_chart.draw_curves([curve], PictureFrame(heading=False))
    (path,) = re.findall(r'<path class="curve[^>]* d="([^"]*)"', drawn)
    assert path.count("M") == 2
    assert "nan" not in drawn
    assert "inf" not in drawn


@pytest.mark.parametrize("values", [[0.0], [1.0, 1.0], [-3.0, 5.0], [1e-30, 2e-30], [1e300, -1e300], [5e-324, 0.0]])
def test_curves_of_any_size_stay_inside_their_chart(values: list[float]) -> None:
    drawn = line_chart.draw_curves([MetricCurve("x", 0, tuple(enumerate(values)))], PictureFrame(heading=False))
    for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", re.findall(r' d="(M[^"]*h0[^"]*)"', drawn)[0]):
        assert 0 <= float(x) <= 392
        assert 0 <= float(y) <= 190


def test_series_that_are_too_many_are_counted() -> None:
    many_curves = [
        MetricCurve(f"m{n}", d, ((0, 1.0), (1, 2.0))) for n in range(MAX_CHARTS + 2) for d in range(MAX_CURVES + 1)
    ]
    shown, left = line_chart.group_curves([*many_curves, MetricCurve("empty", 0, ((0, None),))])
    assert [len(same) for same in shown] == [MAX_CURVES] * MAX_CHARTS
    assert left == f"{len(many_curves) - MAX_CHARTS * MAX_CURVES} more series are not drawn"


def test_a_page_of_a_large_report_stays_small() -> None:
    assert len(report_page(many(64, 256), ABOUT)) < 800_000


def test_dp_and_ddp_stand_side_by_side() -> None:
    sides = (example("side-by-side-dp"), ReportContext("dp")), (example("side-by-side-ddp"), ReportContext("ddp"))
    document = comparison_page(*sides)
    reader = read(document)
    ids = [value for _, name, value in reader.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    said = "".join(reader.seen)
    assert {"replicate", "communication", "ratio"} <= set(reader.seen)
    assert "ddp-would-fit-better" in said
    assert document == comparison_page(*sides)


@settings(max_examples=25)
@given(st.text(), st.text())
def test_whatever_people_write_the_page_stays_well_formed(name: str, other: str) -> None:
    found = example("rows-on-2-devices")
    finding = Finding(name, "warning", name, other)
    about = ReportContext(name, other, {name: other}, other, 0, [MetricCurve(other, 0, ((0, 1.0), (1, 2.0)))])
    document = report_page(changed(found, notes={name: other}, findings=(finding,)), about)
    read(document)
    document.encode()


def test_hostile_names_are_text() -> None:
    evil = "</title></style></pre><script>alert(1)</script><img src=x onerror=alert(1)> ]]> \u202egnp.exe\x00\x1b[2J"
    found = changed(example("rows-on-8-devices"), notes={evil: evil})
    reader = read(report_page(found, ReportContext(evil, evil, {evil: evil}, evil)))
    assert not [one for one in reader.attributes if one[0] in ("script", "img")]
    assert not {"\u202e", "\x00", "\x1b"} & set("".join(reader.seen))
    assert "<img src=x onerror=alert(1)>" in "".join(reader.seen)
