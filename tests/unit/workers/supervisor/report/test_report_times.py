"""Where a device's time goes: parts of its wall time, and what the run would take with devices that are alike."""

from collections.abc import Sequence

import msgspec
import pytest

from jobs.protocol.records import Outcome, PrimitiveTimes, ProgramBegan, Returned
from shardyard.contract.report import Report, has_whole_times, time_parts
from shardyard.contract.report_diff import compare_reports
from shardyard.render.report_text import render_report
from tests.support.samples.record_streams import aggregator, split, step
from tests.support.samples.specs import make_spec
from tests.support.samples.timed_streams import Plant, ddp_run
from tests.support.svg_reading import of_earlier_version
from workers.supervisor.report.recipe_aggregator import RecipeAggregator

STEPS = 100
#: What every rank does besides: the optimizer, its own code between two steps, and what comes before the first one.
OPTIMIZER_MS, LOOP_MS, START_MS = 1.0, 2.0, 200.0


def ddp_report(
    rows: Sequence[int] = (10, 10),
    input_ms: Sequence[float] = (0.0, 0.0),
    row_ms: Sequence[float] = (1.0, 1.0),
    *,
    measure_every: int = 1,
) -> Report:
    """A run whose ranks wait in backward until the slowest one has computed it; of some steps only its whole is
    known."""
    ranks = range(len(rows))
    told = aggregator(make_spec("ddp", len(rows), max(rows)), None)
    busy = [wait + count * each for wait, count, each in zip(input_ms, rows, row_ms, strict=True)]
    cycle_ms = max(busy) + OPTIMIZER_MS + LOOP_MS
    for rank in ranks:
        told.add_record(rank, ProgramBegan(1000.0))
        told.add_record(rank, split(0, [rank], [rows[rank]]))
    for number in range(STEPS):
        for rank in ranks:
            computed, waited = rows[rank] * row_ms[rank], max(busy) - busy[rank]
            is_measured = number < 10 or number % measure_every == 0
            told.add_record(
                rank,
                step(
                    number,
                    [0],
                    [rows[rank]],
                    data_wait_ms=input_ms[rank],
                    step_ms=cycle_ms - LOOP_MS - input_ms[rank],
                    forward_ms=(computed / 3,),
                    backward_ms=(computed * 2 / 3 if is_measured else None,),
                    comm_ms=waited if is_measured else None,
                    whole_backward_ms=computed * 2 / 3 + waited,
                    optimizer_ms=OPTIMIZER_MS,
                    cycle_ms=cycle_ms if number else None,
                ),
            )
    ended = 1000.0 + (START_MS + STEPS * cycle_ms) / 1000
    for rank in ranks:
        told.add_record(rank, Returned(Outcome(rank, 0), "threads", ended))
        told.add_record(rank, Outcome(rank, 0))
        told.rank_ended(rank)
    return told.make_report(final=True)


@pytest.mark.parametrize("measure_every", [1, 10])
def test_the_parts_of_a_rank_are_the_true_ones_and_add_up_to_its_wall_time(measure_every: int) -> None:
    report = ddp_report(input_ms=(0.0, 30.0), measure_every=measure_every)
    quick, slow = report.per_device

    for one in report.per_device:
        assert one.wall_ms == pytest.approx(START_MS + STEPS * 43.0)
        assert sum(time_parts(one).values()) == pytest.approx(one.wall_ms)
        assert time_parts(one)["other_ms"] == pytest.approx(START_MS + STEPS * LOOP_MS)
        assert time_parts(one)["optimizer_ms"] == pytest.approx(STEPS * OPTIMIZER_MS)
        assert time_parts(one)["forward_ms"] + time_parts(one)["backward_ms"] == pytest.approx(STEPS * 10.0)
    assert time_parts(quick)["comm_ms"] == pytest.approx(STEPS * 30.0)
    assert time_parts(slow)["data_wait_ms"] == pytest.approx(STEPS * 30.0)
    assert time_parts(slow)["comm_ms"] == pytest.approx(0.0, abs=0.1)
    assert report.balance.wasted_device_seconds == pytest.approx(STEPS * 30.0 / 1000)
    assert report.balance.slowest_device == 1
    assert report.balance.time_max_over_mean == pytest.approx(40 / 25)
    assert quick.comm_ms is not None
    assert quick.comm_ms.measured_steps == (STEPS if measure_every == 1 else 19)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"rows": (10, 20)}, "rows"),
        ({"row_ms": (1.0, 2.0)}, "compute"),
        ({"input_ms": (0.0, 10.0)}, "input"),
    ],
)
def test_what_if_predicts_the_run_in_which_the_slow_rank_is_like_the_other(
    change: dict[str, tuple[float, float]], cause: str
) -> None:
    slow = ddp_report(**change)  # type: ignore[arg-type]
    field, (one, other) = next(iter(change.items()))
    alike = int((one + other) / 2) if field == "rows" else one
    even = ddp_report(**{field: (alike, alike)})  # type: ignore[arg-type]

    assert slow.what_if is not None
    assert slow.per_device[0].wall_ms is not None
    assert even.per_device[0].wall_ms is not None
    assert slow.what_if.ratio == pytest.approx(slow.per_device[0].wall_ms / even.per_device[0].wall_ms, rel=0.01)
    assert slow.what_if.device == 1
    parts = {name: getattr(slow.what_if, name) for name in ("rows", "compute", "input", "other")}
    assert max(parts, key=lambda name: parts[name]) == cause
    assert sum(parts.values()) == pytest.approx(slow.what_if.ratio - 1, abs=1e-5)
    assert parts[cause] == pytest.approx(slow.what_if.ratio - 1, rel=0.01)
    assert slow.verdict.startswith("Device 1 holds the others up")


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("part", ["wait", "forward", "backward"])
def test_what_if_predicts_noisy_runs_without_their_straggler(part: str, ranks: int) -> None:
    planted, removed = (
        finished(ddp_run(ranks, 400, 7, plant)) for plant in (Plant(device=1, part=part, share=0.5), None)
    )
    true_ratio = (planted.per_device[0].wall_ms or 0.0) / (removed.per_device[0].wall_ms or 1.0)

    assert planted.what_if is not None
    assert removed.what_if is not None
    assert planted.what_if.ratio == pytest.approx(true_ratio, rel=0.05)
    assert planted.what_if.device == 1
    assert removed.what_if.ratio == pytest.approx(1.0, abs=0.05)


def finished(told: RecipeAggregator) -> Report:
    for rank in range(4):
        told.rank_ended(rank)
    return told.make_report(final=True)


def test_several_slow_ranks_are_all_taken_for_as_quick_as_the_rest() -> None:
    report = ddp_report(rows=(10,) * 4, input_ms=(0.0, 20.0, 30.0, 0.0), row_ms=(1.0,) * 4)
    even = ddp_report(rows=(10,) * 4, input_ms=(0.0,) * 4, row_ms=(1.0,) * 4)

    assert report.what_if is not None
    assert report.what_if.device == 2
    walls = [one.per_device[0].wall_ms or 0.0 for one in (report, even)]
    assert report.what_if.ratio == pytest.approx(walls[0] / walls[1], rel=0.01)


def test_ranks_that_are_alike_have_nothing_to_gain() -> None:
    report = ddp_report()

    assert report.what_if is not None
    assert report.what_if.ratio == pytest.approx(1.0)


def test_throughput_is_rows_by_the_clock_without_the_start() -> None:
    report = ddp_report(input_ms=(0.0, 30.0), measure_every=10)
    rates = [one.rows_per_second for one in report.per_device]
    assert rates == pytest.approx([1000 * (one.rows or 0) / (STEPS * 43.0) for one in report.per_device])
    assert report.rows_per_second == pytest.approx(sum(rate or 0 for rate in rates))
    in_turn = dp_report((10.0, 20.0))  # ten rows each
    assert in_turn.rows_per_second == pytest.approx(1000 * 20 / (30.0 + 3.0 + OPTIMIZER_MS + LOOP_MS), rel=1e-4)
    empty = aggregator(make_spec("dp", 2, 20), None).make_report(final=True)
    assert (empty.rows_per_second, "rows_per_second" in empty.notes) == (None, True)


def dp_report(ms: Sequence[float]) -> Report:
    """Virtual devices under dp, whose work one process does in turn."""
    told = aggregator(make_spec("dp", len(ms), 10 * len(ms)), None)
    devices, rows = range(len(ms)), [10] * len(ms)
    told.add_record(0, ProgramBegan(1000.0))
    told.add_record(0, split(0, devices, rows))
    cycle_ms = sum(ms) + 3.0 + OPTIMIZER_MS + LOOP_MS
    for number in range(STEPS):
        primitives = PrimitiveTimes(replicate_ms=1.0, scatter_ms=1.0, parallel_apply_ms=sum(ms) / 3, gather_ms=1.0)
        told.add_record(
            0,
            step(
                number,
                [0],
                rows,
                data_wait_ms=0.0,
                step_ms=cycle_ms - LOOP_MS,
                forward_ms=tuple(each / 3 for each in ms),
                backward_ms=tuple(each * 2 / 3 for each in ms),
                whole_backward_ms=sum(ms) * 2 / 3,
                primitives=primitives,
                optimizer_ms=OPTIMIZER_MS,
                cycle_ms=cycle_ms,
            ),
        )
    told.add_record(0, Returned(Outcome(0, 0), "threads", 1000.0 + STEPS * cycle_ms / 1000))
    told.add_record(0, Outcome(0, 0))
    told.rank_ended(0)
    return told.make_report(final=True)


def test_devices_that_work_in_turn_are_reckoned_as_if_they_worked_at_once() -> None:
    report = dp_report((10.0, 20.0, 30.0))

    for one, computed in zip(report.per_device, (10.0, 20.0, 30.0), strict=True):
        assert one.wall_ms == pytest.approx(STEPS * (30.0 + 3.0 + OPTIMIZER_MS + LOOP_MS))
        assert sum(time_parts(one).values()) == pytest.approx(one.wall_ms)
        assert time_parts(one)["comm_ms"] == pytest.approx(STEPS * (3.0 + 30.0 - computed))
        assert time_parts(one)["other_ms"] == pytest.approx(STEPS * LOOP_MS)
    assert report.what_if is not None
    assert report.what_if.ratio == pytest.approx(36 / 26)
    assert report.what_if.device == 2
    assert report.what_if.compute == pytest.approx(10 / 26, rel=1e-4)


# -- reports of earlier versions -------------------------------------------------------------------


def test_a_report_of_an_earlier_version_still_reads_and_says_what_its_times_are() -> None:
    report = of_earlier_version(ddp_report())
    text = render_report(report)

    assert not has_whole_times(report)
    assert "made by an earlier version: times are those of the measured steps alone" in text
    assert "Where each device's time went" not in text
    assert "Times per step in ms" in text
    assert "run time over that of devices that are alike" not in text


def test_times_of_an_earlier_version_are_not_compared_with_new_ones() -> None:
    new, old = ddp_report(), of_earlier_version(ddp_report())
    beside = compare_reports(new, old)
    (device, *_) = beside.per_device

    assert (device.forward_ms.ratio, device.ms_per_row.ratio) == (None, None)
    assert device.rows.ratio == 1.0
    assert (beside.balance.wasted_device_seconds.ratio, beside.balance.rows_max_over_mean.ratio) == (None, 1.0)
    assert "made by an earlier version" in beside.notes.against["times"]
    assert "times" not in beside.notes.this
    for pair in (new, new), (old, old):
        assert compare_reports(*pair).per_device[0].forward_ms.ratio == 1.0


def test_what_if_has_lines_only_where_there_is_one() -> None:
    report = ddp_report(input_ms=(0.0, 30.0))
    text = render_report(report)

    assert "run time over that of devices that are alike  3." in text
    assert "what device 1 adds to it" in text
    assert "devices that are alike" not in render_report(msgspec.structs.replace(report, what_if=None))
