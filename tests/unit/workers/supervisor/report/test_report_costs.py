"""The report's times, memory and balance: the right device and the right cause are named."""

import math
from typing import Any

import pytest

from jobs.protocol.records import PrimitiveTimes
from shardyard.contract.report import Balance, Report
from tests.support.samples.record_streams import aggregator, run, split, step
from tests.support.samples.specs import make_spec

STEPS = 5


def ddp(rows: tuple[int, ...], **per_rank: list[Any]) -> Report:
    """Ranks with so many rows a step; `per_rank` has each rank's value of a field of its steps."""
    told = aggregator(make_spec("ddp", len(rows), max(rows)), None)
    for rank, count in enumerate(rows):
        told.add_record(rank, split(0, [rank], [count]))
        for number in range(STEPS):
            fields = {name: values[rank] for name, values in per_rank.items()}
            told.add_record(rank, step(number, [0], [count], **fields))
        told.rank_ended(rank)
    return told.make_report(final=False)


def balance_of(**per_rank: list[Any]) -> Balance:
    return ddp((10, 10), **per_rank).balance


# -- times -----------------------------------------------------------------------------------------


def test_times_are_summed_exactly_and_ranked_within_one_percent() -> None:
    told = aggregator(make_spec("ddp", 1, 4), None)
    told.add_record(0, split(0, [0], [4]))
    for number in range(100):
        told.add_record(0, step(number, [0], [4], forward_ms=(number + 1.0,), comm_ms=2.0))
    device = told.make_report(final=False).per_device[0]

    assert device.forward_ms is not None
    assert device.comm_ms is not None
    assert device.forward_ms.total == 5050
    assert device.forward_ms.p50 == pytest.approx(50, rel=0.01)
    assert device.forward_ms.p95 == pytest.approx(95, rel=0.01)
    assert (device.comm_ms.total, device.comm_ms.p50) == (200, 2)


def test_cost_of_a_row_tells_a_slow_device_from_one_with_more_rows() -> None:
    fast, slow = ddp((20, 10), forward_ms=[(2.0,), (2.0,)], backward_ms=[(4.0,), (4.0,)]).per_device

    assert (fast.ms_per_row, slow.ms_per_row) == (0.3, 0.6)


def test_a_backward_that_is_sampled_does_not_distort_the_cost_of_a_row() -> None:
    told = aggregator(make_spec("ddp", 1, 10), None)
    told.add_record(0, split(0, [0], [10]))
    for number in range(10):
        backward_ms = (2.0,) if number == 3 else (None,)
        told.add_record(0, step(number, [0], [10], backward_ms=backward_ms, whole_backward_ms=5.0))
    report = told.make_report(final=False)

    assert report.per_device[0].ms_per_row == pytest.approx(0.1 + 0.2)
    assert report.notes["per_device.backward_ms"] == "measured in 1 of 10 steps, and the total is an estimate for all"
    assert "from the 7 of 10 steps" in report.notes["balance.wasted_device_seconds"]


def test_a_time_that_cannot_be_is_taken_as_not_measured() -> None:
    told = aggregator(make_spec("ddp", 1, 10), None)
    told.add_record(0, split(0, [0], [10]))
    told.add_record(0, step(0, [0], [10], forward_ms=(-1.0,), backward_ms=(math.nan,), data_wait_ms=math.inf))
    device = told.make_report(final=False).per_device[0]

    assert (device.forward_ms, device.backward_ms, device.data_wait_ms, device.ms_per_row) == (None,) * 4


def test_the_four_primitives_are_timed_under_dp() -> None:
    told = aggregator(make_spec("dp", 2, 4), None)
    told.add_record(0, split(0, [0, 1], [2, 2]))
    for number in range(4):
        told.add_record(0, step(number, [0], [2, 2], primitives=PrimitiveTimes(1.0, 2.0, 3.0, 4.0)))
    report = told.make_report(final=False)

    assert report.primitives is not None
    totals = [getattr(report.primitives, field).total for field in report.primitives.__struct_fields__]
    assert totals == [4, 8, 12, 16]


# -- balance ---------------------------------------------------------------------------------------


def test_a_device_that_gets_more_rows_is_slowest_because_of_rows() -> None:
    balance = ddp((30, 10)).balance

    assert balance.slowest_device == 0
    assert balance.cause == "rows"
    assert balance.rows_max_over_mean == 1.5
    assert balance.time_max_over_mean == pytest.approx(1.5, rel=0.01)


def test_a_device_that_is_slow_with_the_same_rows_is_slowest_because_of_compute() -> None:
    balance = balance_of(forward_ms=[(1.0,), (9.0,)], backward_ms=[(1.0,), (9.0,)], step_ms=[20.0, 20.0])

    assert balance.slowest_device == 1
    assert balance.cause == "compute"
    assert balance.time_max_over_mean == pytest.approx(1.8, rel=0.01)
    assert balance.wasted_device_seconds == pytest.approx(STEPS * 16 / 1000)


def test_a_rank_that_waits_for_its_data_makes_input_the_cause_and_the_others_wait() -> None:
    balance = balance_of(data_wait_ms=[0.0, 40.0], step_ms=[43.0, 43.0])

    assert (balance.cause, balance.slowest_device) == ("input", 1)
    assert balance.time_max_over_mean == pytest.approx(43 / 23)
    assert balance.wasted_device_seconds == pytest.approx(STEPS * 40 / 1000)


def test_communication_that_even_the_slowest_rank_spends_is_a_cause() -> None:
    assert balance_of(comm_ms=[20.0, 21.0], step_ms=[25.0, 25.0]).cause == "communication"


def test_waiting_for_a_slow_rank_is_not_taken_for_communication() -> None:
    """The fast rank's all-reduce lasts as long as the slow one computes; the slow one's is short."""
    balance = balance_of(
        forward_ms=[(1.0,), (1.0,)], backward_ms=[(0.4,), (50.9,)], comm_ms=[52.2, 1.8], step_ms=[55.0, 55.0]
    )

    assert (balance.cause, balance.slowest_device) == ("compute", 1)


def test_small_differences_have_no_cause() -> None:
    assert balance_of(forward_ms=[(1.0,), (1.05,)], step_ms=[4.0, 4.0]).cause == "none"


def test_a_balance_needs_the_time_of_every_device() -> None:
    report = ddp((10, 10), forward_ms=[(1.0,), (None,)])

    assert report.balance.time_max_over_mean is None
    assert report.balance.cause is None
    assert report.balance.wasted_device_seconds is None
    assert report.balance.rows_max_over_mean == 1.0
    assert "every device was measured" in report.notes["balance.cause"]


def test_idle_devices_wait_for_the_whole_step() -> None:
    told = aggregator(make_spec("dp", 4, 2), None)
    told.add_record(0, split(0, range(4), [1, 1, 0, 0]))
    times: dict[str, Any] = {"forward_ms": (3.0, 3.0, None, None), "backward_ms": (7.0, 7.0, None, None)}
    told.add_record(0, step(0, [0], [1, 1, 0, 0], **times))
    balance = told.make_report(final=False).balance

    assert balance.wasted_device_seconds == pytest.approx(2 * 10 / 1000)
    assert balance.time_max_over_mean == pytest.approx(2.0, rel=0.01)
    assert (balance.cause, balance.idle_device_steps) == ("rows", 2)


def test_virtual_shards_that_ran_in_turn_are_reckoned_as_if_at_once() -> None:
    """Four shards of 3 ms in a step of 12 ms: an input wait of 1 ms is a tenth and more of 3 ms, not of 12."""
    fields: dict[str, Any] = {"step_ms": 12.0, "data_wait_ms": 1.0, "backward_ms": (None,) * 4}
    causes = {}
    for kind in ("cpu", "cuda"):
        told = aggregator(make_spec("dp", 4, 4, mode="forward"), None, kind=kind)
        told.add_record(0, split(0, range(4), [1, 1, 1, 1], "forward"))
        told.add_record(0, step(0, [0], [1] * 4, "forward", forward_ms=(3.0,) * 4, **fields))
        report = told.make_report(final=False)
        causes[kind] = report.balance.cause
        assert (
            "computed as if the shards had run in parallel" in report.notes.get("balance.wasted_device_seconds", "")
        ) == (kind == "cpu")

    assert causes == {"cpu": "input", "cuda": "none"}


# -- memory ----------------------------------------------------------------------------------------


def cuda_report(output_device: int, *peaks: tuple[int | None, ...]) -> Report:
    spec = make_spec("dp", len(peaks[0]), 6, parallelism={"output_device": output_device})
    told = aggregator(spec, None, kind="cuda")
    rows = [2] * len(peaks[0])
    told.add_record(0, split(0, range(len(rows)), rows))
    for number, peak in enumerate(peaks):
        told.add_record(0, step(number, [0], rows, memory_peak_bytes=peak))
    return told.make_report(final=False)


def test_the_output_device_is_compared_with_the_median_of_the_others() -> None:
    report = cuda_report(1, (100, 300, 120, 80), (90, 310, 100, 100))

    assert [device.memory_peak_bytes for device in report.per_device] == [100, 310, 120, 100]
    assert report.balance.output_device_memory_skew == pytest.approx(3.1)


def test_a_peak_that_is_missing_leaves_no_skew_but_a_reason() -> None:
    report = cuda_report(0, (100, None))

    assert report.balance.output_device_memory_skew is None
    assert report.notes["balance.output_device_memory_skew"] == "no rank measured it"


def test_virtual_devices_have_no_skew() -> None:
    report = run(make_spec("dp", 3, 30), 90)[0].make_report(final=True)

    assert report.balance.output_device_memory_skew is None
    assert "virtual devices" in report.notes["balance.output_device_memory_skew"]
