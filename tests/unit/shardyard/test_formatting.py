from datetime import UTC, datetime, timedelta

import pytest

from shardyard import formatting


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (None, "-"),
        (0.0421, "0.04 s"),
        (12.34, "12.3 s"),
        (59.99, "1 min 00 s"),
        (125, "2 min 05 s"),
        (3599.9, "1 h 00 min"),
        (11_220, "3 h 07 min"),
        (187_200, "2 d 04 h"),
    ],
)
def test_a_duration_is_written_in_the_unit_that_fits(seconds: float | None, expected: str) -> None:
    assert formatting.format_duration(seconds) == expected


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([], "-"),
        (["cpu:0"], "cpu:0"),
        (["cuda:0", "cuda:1", "cuda:2", "cuda:3", "cuda:6"], "cuda:0-3,6"),
        (["cuda:6", "cuda:0", "cuda:1"], "cuda:0-1,6"),
        (["cuda:1", "cpu:0", "device:7", "strange"], "cuda:1 cpu:0 device:7 strange"),
    ],
)
def test_device_names_are_shortened_to_runs(labels: list[str], expected: str) -> None:
    assert formatting.device_names(labels) == expected


@pytest.mark.parametrize(
    ("count", "expected"), [(None, "-"), (0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 40, "3.0 TiB")]
)
def test_bytes_are_written_in_the_unit_that_fits(count: int | None, expected: str) -> None:
    assert formatting.byte_count(count) == expected


@pytest.mark.parametrize(
    ("value", "expected"), [(None, "-"), (0.123456, "0.1235"), (9182.5, "9182"), (123456.7, "123,457"), (1.0, "1")]
)
def test_a_number_keeps_four_significant_digits(value: float | None, expected: str) -> None:
    assert formatting.format_number(value) == expected


def test_time_between_runs_to_now_while_there_is_no_end() -> None:
    now = datetime(2026, 1, 2, 3, 4, 10, tzinfo=UTC)
    start = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert formatting.seconds_between(start, None, now) == 5
    assert formatting.seconds_between(start, start + timedelta(milliseconds=250), now) == 0.25
    assert formatting.seconds_between(None, None, now) is None


def test_a_count_of_one_has_no_plural() -> None:
    assert (formatting.count_noun(1, "device"), formatting.count_noun(3, "device")) == ("1 device", "3 devices")
