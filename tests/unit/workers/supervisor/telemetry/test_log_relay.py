"""The relay of logs without a Redis: when it writes chunks, and what it does when the disk refuses."""

from pathlib import Path

import pytest

from jobs.files import paths
from jobs.files.frame_file import FrameKind, FrameReader
from jobs.files.log_file import MAX_LINE_BYTES, REDRAWN, UNENDED, read_seal
from jobs.files.log_page import LogFilePage, clean_for_display, read_page
from tests.support.disks import largest_file
from workers.supervisor.report.shard_lines import ShardLine
from workers.supervisor.telemetry.log_relay import (
    CHUNK_LINES,
    CHUNK_SECONDS,
    MAX_CHUNK_LINES,
    REDRAW_SECONDS,
    LogRelay,
)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def relay(tmp_path: Path, clock: Clock) -> LogRelay:
    return LogRelay(tmp_path, 2, None, clock)


def page(tmp_path: Path, device: int = 0) -> LogFilePage:
    return read_page(paths.log_file(tmp_path, device), limit=100_000)


def texts(tmp_path: Path, device: int = 0) -> list[bytes]:
    return [line.text for line in page(tmp_path, device).lines]


def chunk_sizes(tmp_path: Path) -> list[int]:
    with FrameReader(paths.log_file(tmp_path, 0)) as reader:
        return [f.last - f.first + 1 for f in reader.forward(reader.first()) if f.kind == FrameKind.DATA]


def test_the_first_line_of_a_device_is_written_at_once(tmp_path: Path, relay: LogRelay) -> None:
    relay.add_output(0, "stdout", 0, b"first\n", None)
    relay.add_output(1, "stderr", 1, b"also first\n", None)
    assert (texts(tmp_path), texts(tmp_path, 1)) == ([b"first"], [b"also first"])
    assert relay.next_deadline() is None


def test_a_line_has_the_time_when_it_was_read_however_long_it_waits(
    tmp_path: Path, relay: LogRelay, clock: Clock
) -> None:
    relay.add_output(0, "stdout", 0, b"first\n", None)
    for second, text in enumerate((b"second\n", b"third\n", b"no end")):
        clock.now = 100.0 + second
        relay.add_output(0, "stdout", 0, text, None)
    clock.now = 200.0
    relay.close()
    assert [(line.at, line.text) for line in page(tmp_path).lines[1:]] == [
        (100.0, b"second"),
        (101.0, b"third"),
        (102.0, b"no end"),
    ]


def test_later_lines_wait_for_the_deadline(tmp_path: Path, relay: LogRelay, clock: Clock) -> None:
    relay.add_output(0, "stdout", 0, b"first\nsecond\n", None)
    relay.add_output(0, "stdout", 0, b"third\n", 5)
    assert len(texts(tmp_path)) == 2  # both of the first read
    deadline = relay.next_deadline()
    assert deadline == clock.now + CHUNK_SECONDS
    relay.flush_due(deadline - 0.01)
    assert len(texts(tmp_path)) == 2
    relay.flush_due(deadline)
    assert texts(tmp_path) == [b"first", b"second", b"third"]
    assert page(tmp_path).lines[2].step == 5
    assert relay.next_deadline() is None


def test_a_chunk_is_written_when_it_has_enough_lines_and_never_grows_too_long(tmp_path: Path, relay: LogRelay) -> None:
    relay.add_output(0, "stdout", 0, b"first\n", None)
    for _ in range(CHUNK_LINES):
        relay.add_output(0, "stdout", 0, b"x\n", None)
    relay.add_output(0, "stdout", 0, b"\n" * 1200, None)
    assert chunk_sizes(tmp_path) == [1, CHUNK_LINES, MAX_CHUNK_LINES, MAX_CHUNK_LINES, 200]


def test_the_shard_lines_of_many_steps_stay_together(tmp_path: Path, relay: LogRelay) -> None:
    steps = range(MAX_CHUNK_LINES)
    lines = [ShardLine(0, step, "train", f"{what} {step}") for step in steps for what in ("in", "out")]
    relay.add_shard_lines(1, lines[:2])
    relay.add_shard_lines(1, lines[2:])
    found = page(tmp_path).lines
    assert [(line.stream, line.rank, line.step, line.text) for line in found] == [
        ("shard", 1, line.step, line.text.encode()) for line in lines
    ]
    assert chunk_sizes(tmp_path) == [2, MAX_CHUNK_LINES, MAX_CHUNK_LINES - 2]


def test_shard_lines_of_a_packet_do_not_wait(tmp_path: Path, relay: LogRelay) -> None:
    relay.add_shard_lines(0, [ShardLine(0, 0, "train", "first")])
    relay.add_shard_lines(0, [ShardLine(0, 1, "train", "second")])
    assert texts(tmp_path) == [b"first", b"second"]
    assert relay.next_deadline() is None


def test_a_shard_line_that_is_longer_than_a_line_may_be_comes_back_whole(tmp_path: Path, relay: LogRelay) -> None:
    text = "x" * (2 * MAX_LINE_BYTES + 1)
    relay.add_shard_lines(0, [ShardLine(0, 3, "train", "before"), ShardLine(0, 4, "train", text)])
    relay.close()
    before, *parts = page(tmp_path).lines
    assert (before.text, b"".join(part.text for part in parts).decode()) == (b"before", text)
    assert max(len(part.text) for part in parts) <= MAX_LINE_BYTES


def test_a_clock_that_is_set_back_delays_nothing(tmp_path: Path, relay: LogRelay, clock: Clock) -> None:
    relay.add_output(0, "stdout", 0, b"first\n", None)
    relay.add_output(0, "stdout", 0, b"second\n", None)
    relay.flush_due(clock.now - 3600)
    assert texts(tmp_path) == [b"first", b"second"]


def test_sources_of_one_device_do_not_mix_their_lines(tmp_path: Path, relay: LogRelay) -> None:
    relay.add_output(0, "stdout", 0, b"half a li", None)
    relay.add_output(0, "stderr", 0, b"warning\n", None)
    relay.add_output(0, "stdout", 1, b"other rank\n", None)
    relay.add_output(0, "stdout", 0, b"ne\n", None)
    relay.add_line(0, "shard", 0, "batch 30: 10 rows", 3)
    relay.close()
    assert [(line.stream, line.rank, line.text) for line in page(tmp_path).lines] == [
        ("stderr", 0, b"warning"),
        ("stdout", 1, b"other rank"),
        ("stdout", 0, b"half a line"),
        ("shard", 0, b"batch 30: 10 rows"),
    ]


def test_closing_writes_the_unfinished_lines_and_seals_every_device(tmp_path: Path, relay: LogRelay) -> None:
    relay.add_output(0, "stdout", 0, b"done\nno newline", None)
    relay.close()
    assert [(line.text, line.flags) for line in page(tmp_path).lines] == [(b"done", 0), (b"no newline", UNENDED)]
    for device in (0, 1):
        seal = read_seal(paths.log_file(tmp_path, device))
        assert seal is not None
        assert (seal.count, seal.dropped) == (2 * (device == 0), 0)


def test_a_progress_bar_is_a_line_a_second_and_keeps_its_bytes(tmp_path: Path, relay: LogRelay, clock: Clock) -> None:
    drawn = b""
    for tick in range(1000):  # 10 s at 100 redraws a second
        bar = b"\r%3d%%|%s|" % (tick // 10, b"#" * (tick // 100))
        drawn += bar
        relay.add_output(0, "stderr", 0, bar, None)
        clock.now += 0.01
        deadline = relay.next_deadline()
        if deadline is not None and deadline <= clock.now:
            relay.flush_due(clock.now)
    relay.add_output(0, "stderr", 0, b"\n", None)
    relay.close()
    lines = page(tmp_path).lines
    assert 9 <= len(lines) <= 11
    assert b"".join(line.text for line in lines) == drawn
    assert {line.flags for line in lines[:-1]} == {REDRAWN}
    assert clean_for_display(lines[0].text).strip().startswith("10%|")


def test_a_progress_bar_has_a_deadline_of_its_own(relay: LogRelay, clock: Clock) -> None:
    relay.add_output(0, "stderr", 0, b"\r 1%\r 2%", None)
    assert relay.next_deadline() == clock.now + REDRAW_SECONDS
    relay.add_output(0, "stderr", 0, b"\n", None)
    assert relay.next_deadline() is None


def test_a_full_disk_stops_nothing_and_the_log_says_what_is_missing(tmp_path: Path, relay: LogRelay) -> None:
    relay.add_output(0, "stdout", 0, b"before\n", None)
    with largest_file(paths.log_file(tmp_path, 0).stat().st_size + 60):
        for n in range(200):
            relay.add_output(0, "stdout", 0, b"lost %03d\n" % n, None)
        assert relay.dropped == 200
    relay.add_output(0, "stdout", 0, b"after\n", None)
    relay.close()
    found = page(tmp_path)
    assert [(line.seq, line.text) for line in found.lines] == [(1, b"before"), (202, b"after")]
    assert [(lost.first, lost.last, lost.bytes) for lost in found.dropped] == [(2, 201, 1600)]
    assert found.sealed


def test_a_disk_that_is_full_until_the_end_leaves_the_log_unsealed(tmp_path: Path, relay: LogRelay) -> None:
    relay.add_output(0, "stdout", 0, b"before\n", None)
    with largest_file(0):
        relay.add_output(0, "stdout", 0, b"lost\n", None)
        relay.close()
    assert texts(tmp_path) == [b"before"]
    assert not page(tmp_path).sealed
    assert relay.dropped == 1


def test_a_long_line_of_any_bytes_comes_back_whole(tmp_path: Path, relay: LogRelay) -> None:
    data = bytes(byte for byte in range(256) if byte != 10) * 4000
    relay.add_output(0, "stdout", 0, data + b"\nnext\n", None)
    relay.close()
    lines = page(tmp_path).lines
    assert b"".join(line.text for line in lines[:-1]) == data
    assert lines[-1].text == b"next"
