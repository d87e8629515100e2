import msgspec
import pytest

from shardyard.contract.report import PrimitiveTimings, Report, Resumed, Timing
from shardyard.contract.report_diff import ValuePair, compare_reports
from shardyard.render.diff_text import render_diff
from tests.support.samples.record_streams import run
from tests.support.samples.specs import make_spec


def report_of(strategy: str, devices: int, batch_size: int, rows: int) -> Report:
    return run(make_spec(strategy, devices, batch_size), rows)[0].make_report(final=True)


@pytest.fixture(scope="module")
def dp() -> Report:
    timings = PrimitiveTimings(*(Timing(10.0 * place, 1.0 * place, 2.0 * place) for place in range(1, 5)))
    return msgspec.structs.replace(report_of("dp", 2, 30, 100), primitives=timings)


@pytest.fixture(scope="module")
def ddp() -> Report:
    return report_of("ddp", 2, 15, 100)


def test_a_report_beside_itself_differs_in_nothing(dp: Report) -> None:
    same = compare_reports(dp, dp)

    assert all(pattern.this_steps == pattern.against_steps for pattern in same.patterns)
    ratios = [getattr(device, name).ratio for device in same.per_device for name in ("rows", "steps", "share")]
    assert ratios == [1.0] * 6
    assert (same.findings.this_only, same.findings.against_only) == ((), ())
    assert same.findings.both == tuple(sorted({finding.code for finding in dp.findings}))


def test_that_one_side_was_resumed_is_said_of_it_and_is_no_difference(dp: Report) -> None:
    resumed = msgspec.structs.replace(dp, attempt=2, resumed=Resumed(step=2, attempt=1))
    found, same = compare_reports(resumed, dp), compare_reports(dp, dp)

    assert (found.this.resumed, found.against.resumed) == (Resumed(step=2, attempt=1), None)
    assert msgspec.structs.replace(found, this=same.this) == same
    lines = render_diff(found).splitlines()
    assert lines[1].startswith("this:    job job-1, attempt 2, resumed after 2 steps: dp on ")
    assert lines[2].startswith("against: job job-1, attempt 1: dp on ")


def test_patterns_of_both_meet_by_what_was_divided(dp: Report, ddp: Report) -> None:
    found = compare_reports(dp, ddp)

    steps = {pattern.rows: (pattern.this_steps, pattern.against_steps) for pattern in found.patterns}
    assert steps == {(15, 15): (3, 3), (5, 5): (1, 1)}
    other = compare_reports(dp, report_of("dp", 2, 10, 100))
    assert {pattern.rows: (pattern.this_steps, pattern.against_steps) for pattern in other.patterns} == {
        (15, 15): (3, 0),
        (5, 5): (1, 10),
    }


def test_what_one_side_does_not_have_is_none_and_has_no_ratio(dp: Report, ddp: Report) -> None:
    found = compare_reports(dp, ddp)

    assert found.primitives is not None
    assert found.primitives.scatter_ms.this is not None
    assert (found.primitives.scatter_ms.against, found.primitives.scatter_ms.ratio) == (None, None)
    assert compare_reports(ddp, ddp).primitives is None


def test_a_device_that_only_one_side_had_is_shown_too(dp: Report) -> None:
    found = compare_reports(dp, report_of("dp", 3, 30, 100))

    assert [device.device for device in found.per_device] == [0, 1, 2]
    assert found.per_device[2].rows == ValuePair(None, 32, None)
    assert (found.this.devices, found.against.devices) == (2, 3)


def test_a_ratio_of_times_is_that_of_their_medians_and_none_over_zero(dp: Report) -> None:
    first = dp.per_device[0]
    slow = msgspec.structs.replace(first, forward_ms=Timing(100, 9.0, 10.0), comm_ms=Timing(1, 1.0, 1.0))
    fast = msgspec.structs.replace(first, forward_ms=Timing(100, 3.0, 90.0), comm_ms=Timing(0, 0.0, 0.0))
    sides = [msgspec.structs.replace(dp, per_device=(device, *dp.per_device[1:])) for device in (slow, fast)]
    found = compare_reports(*sides).per_device[0]

    assert found.forward_ms.ratio == 3.0
    assert found.comm_ms.ratio is None


def test_the_slowest_device_is_a_name_and_not_a_quantity(dp: Report) -> None:
    assert compare_reports(dp, dp).balance.slowest_device.ratio is None


def test_findings_of_one_side_come_with_their_suggestions(dp: Report, ddp: Report) -> None:
    found = compare_reports(dp, ddp).findings

    assert "ddp-would-fit-better" in [finding.code for finding in found.this_only]
    assert "ddp-would-fit-better" not in found.both


@pytest.mark.parametrize("width", [80, 120])
def test_the_text_fits_and_names_both_sides(dp: Report, ddp: Report, width: int) -> None:
    text = render_diff(compare_reports(dp, ddp), width)

    assert "this:    job job-1, attempt 1: dp on 2 virtual cpu devices" in text
    assert "against: job job-1, attempt 1: ddp on 2 virtual cpu devices" in text
    assert "DataParallel's primitives in ms" in text
    assert "this only:" in text
    assert "None" not in text
    assert all(len(line) <= width for line in text.splitlines())
    rows = [line.split() for line in text.splitlines()]
    assert ["train", "15,", "15", "30", "3", "3"] in rows


def test_a_report_of_64_devices_stays_readable() -> None:
    wide = report_of("dp", 64, 130, 300)
    text = render_diff(compare_reports(wide, wide), 100)

    assert "43 x 3, 1, 20 x 0" in text
    assert all(len(line) <= 100 for line in text.splitlines())


def test_steps_of_more_rows_at_the_same_learning_rate_are_named_on_the_side_that_has_them(dp: Report) -> None:
    small, large = (
        msgspec.structs.replace(report_of("ddp", 2, size, 120), learning_rate=0.1, findings=()) for size in (15, 30)
    )
    found = compare_reports(large, small).findings

    (finding,) = found.this_only
    assert (finding.code, found.against_only) == ("global-batch-grew", ())
    assert "a step has 60 rows here and 30 in the other job, 2 times as many" in finding.message
    assert finding.numbers["linear_learning_rate"] == 0.2
    assert compare_reports(small, large).findings.against_only == (finding,)
    assert "global-batch-grew" in render_diff(compare_reports(large, small))


@pytest.mark.parametrize(("size", "rate"), [(15, 0.1), (20, 0.1), (30, 0.2), (30, None)])
def test_steps_that_are_alike_or_learning_rates_that_were_changed_are_right(size: int, rate: float | None) -> None:
    base = msgspec.structs.replace(report_of("ddp", 2, 15, 120), learning_rate=0.1, findings=())
    other = msgspec.structs.replace(report_of("ddp", 2, size, 120), learning_rate=rate, findings=())

    assert compare_reports(other, base).findings.this_only == ()
    assert compare_reports(base, other).findings.against_only == ()
