"""Small segments are joined so that a row is short and no byte is written often, however a file grows."""

import math
import random

import pytest

from jobs.storage.objects import MAX_SMALL, SEGMENT_BYTES, Segment, choose_joined

KIB = 1024


def grow(pieces: list[int]) -> tuple[list[Segment], int]:
    """The row that these appends make, and the bytes that were written for it."""
    row: list[Segment] = []
    written = 0
    for piece in pieces:
        end = row[-1][1] if row else 0
        row.append((end, end + piece))
        written += piece
        if joined := choose_joined(row):
            begins, ends = joined[0][0], joined[-1][1]
            row = [*row[: -len(joined)], (begins, ends)]
            written += ends - begins
    return row, written


@pytest.mark.parametrize("size", [60, 5 * KIB, 100 * KIB, 1024 * KIB, SEGMENT_BYTES])
def test_a_row_has_few_small_segments_and_each_byte_was_written_few_times(size: int) -> None:
    pieces = [size] * min(20_000, 64 * SEGMENT_BYTES // size)
    row, written = grow(pieces)
    total = sum(pieces)
    small = [one for one in row if one[1] - one[0] < SEGMENT_BYTES]
    assert len(small) < MAX_SMALL
    assert written / total <= 2 + math.log2(max(2, min(total, SEGMENT_BYTES) / size))
    assert [one[0] for one in row] == [0, *(one[1] for one in row[:-1])]


def test_a_log_that_grows_by_bursts_stays_a_short_row() -> None:
    numbers = random.Random(1)
    pieces = [numbers.choice((10, 300, 40 * KIB, 900 * KIB, SEGMENT_BYTES)) for _ in range(3000)]
    row, written = grow(pieces)
    assert len(row) < MAX_SMALL * (1 + sum(pieces) // SEGMENT_BYTES)
    assert written < 3 * sum(pieces)


def test_few_small_segments_are_left_alone() -> None:
    assert choose_joined([(0, 10), (10, 20)]) == ()
    assert choose_joined([]) == ()
