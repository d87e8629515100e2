"""The windows of a run in its report."""

import pytest

from shardyard.contract.report import Report, decode_report, encode_report
from tests.support.samples.job_records import a_spec
from tests.support.samples.record_streams import aggregator, rank_stream


def report_of(rows: int, *, devices: int = 3, final: bool = True) -> Report:
    """Of a pass over so many rows in batches of 30, under dp."""
    spec = a_spec(devices)
    told = aggregator(spec, rows)
    for record in rank_stream(spec, 0, rows):
        told.add_record(0, record)
    return told.make_report(final=final)


def test_a_final_report_has_the_times_of_its_steps_in_windows_of_ten() -> None:
    report = report_of(30 * 55)

    assert [(one.first_step, one.steps) for one in report.step_times] == [(10, 10), (20, 10), (30, 10), (40, 10)]
    for one in report.step_times:
        assert one.rows == 30
        assert one.step_ms == pytest.approx(30 * 0.3 + 1)
        assert one.time_max_over_mean == 1.0
    assert decode_report(encode_report(report)) == report


def test_a_report_of_a_running_job_has_none_and_a_long_run_has_no_more_than_forty() -> None:
    assert report_of(30 * 55, final=False).step_times == ()
    long = report_of(30 * 2000).step_times
    assert len(long) <= 40
    assert sum(one.steps for one in long) == 1990


def test_a_device_with_more_rows_is_above_the_mean_in_every_window() -> None:
    report = report_of(30 * 35, devices=4)
    assert [one.time_max_over_mean for one in report.step_times] == [pytest.approx(8 / 7.5, rel=0.01)] * 2
