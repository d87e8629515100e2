"""Relay and shipper against a real server: nothing is lost or doubled, whatever happens to Redis."""

import signal
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import cast

import pytest
import redis

from jobs.files import metric_file, paths
from jobs.files.frame_file import Frame, FrameKind, parse_frame
from jobs.files.log_page import LogRow, read_chunk, read_page
from jobs.protocol import names
from jobs.protocol.records import MetricSample
from tests.support.servers.redis_server import RedisServer, redis_server
from tests.support.timing import once_below
from workers.supervisor.telemetry.log_relay import LogRelay
from workers.supervisor.telemetry.metric_relay import MetricRelay
from workers.supervisor.telemetry.shipper import SEALED_SECONDS, StreamShipper

pytestmark = pytest.mark.integration

KEY = names.log_stream("t", "j", 1, 0)
DEADLINE = 60.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path / "redis", appendonly="yes", appendfsync="everysec") as running:
        yield running


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        try:
            if condition():
                return
        except redis.ConnectionError:
            pass
        time.sleep(0.02)
    raise AssertionError(f"not within {DEADLINE} s: {what}")


def entries(server: RedisServer, key: str = KEY) -> list[tuple[str, Frame, bytes]]:
    with server.client() as client:
        found = cast("list[tuple[bytes, dict[bytes, bytes]]]", client.xrange(key))
        return [(name.decode(), parse_frame(fields[b"f"])[0], fields[b"f"]) for name, fields in found]


def last_in_redis(server: RedisServer) -> int:
    found = entries(server)
    return found[-1][1].last if found else 0


def lines_in_redis(server: RedisServer) -> list[LogRow]:
    return [line for _, _, raw in entries(server) for line in read_chunk(raw).lines]


def lines_on_disk(attempt: Path) -> list[LogRow]:
    page = read_page(paths.log_file(attempt, 0), limit=1_000_000, max_bytes=1 << 30)
    while page.next < page.last:
        more = read_page(paths.log_file(attempt, 0), page.next, limit=1_000_000, max_bytes=1 << 30)
        more.lines[:0] = page.lines
        page = more
    return page.lines


def write(relay: LogRelay, first: int, count: int) -> None:
    for n in range(first, first + count):
        relay.add_output(0, "stdout", 0, b"line %d\n" % n, n)


def test_what_is_on_the_disk_is_in_the_stream_and_ends_with_the_seal(tmp_path: Path, server: RedisServer) -> None:
    shipper = StreamShipper(server.url, "t", "j", 1)
    relay = LogRelay(tmp_path / "a", 1, shipper)
    write(relay, 1, 1234)
    metrics = MetricRelay(tmp_path / "a", shipper)
    metrics.add_point(MetricSample(-1, "loss", 0, 0.5, 1.0))
    shipper.put_blob(names.report_key("t", "j", 1), b"old", 60)
    shipper.put_blob(names.report_key("t", "j", 1), b"report", 60)
    relay.close()
    metrics.close()
    assert shipper.close(DEADLINE) == []
    assert lines_in_redis(server) == lines_on_disk(tmp_path / "a")
    found = entries(server)
    assert [name for name, _, _ in found] == [frame.id for _, frame, _ in found]
    assert (found[-1][0], found[-1][1].kind) == ("1234-1", FrameKind.SEAL)
    with server.client() as client:
        assert 0 < client.ttl(KEY) <= SEALED_SECONDS
        assert 0 < client.ttl(names.metric_stream("t", "j", 1)) <= SEALED_SECONDS
        assert client.get(names.report_key("t", "j", 1)) == b"report"
    (_, _, chunk), *_ = entries(server, names.metric_stream("t", "j", 1))
    assert metric_file.read_frame(chunk)[1][0].values == [0.5]


def test_the_first_line_is_in_redis_within_a_tenth_of_a_second(tmp_path: Path, server: RedisServer) -> None:
    attempts = count(1)
    once_below(0.1, lambda: _first_line(tmp_path, server, next(attempts)), 20)


def _first_line(directory: Path, server: RedisServer, attempt: int) -> float:
    """Seconds until the first line of an attempt is in Redis."""
    shipper = StreamShipper(server.url, "t", "j", attempt)
    shipper.put_blob(f"warm-{attempt}", b"", 60)
    relay = LogRelay(directory / str(attempt), 1, shipper)
    key = names.log_stream("t", "j", attempt, 0)
    with server.client() as client:
        until(lambda: client.exists(f"warm-{attempt}") == 1, "connected")
        written = time.monotonic()
        write(relay, 1, 1)
        until(lambda: client.exists(key) == 1, "the first line")
        took = time.monotonic() - written
        assert SEALED_SECONDS < client.ttl(key) <= 3600, "a rank may be silent for long"
    relay.close()
    assert shipper.close(DEADLINE) == []
    return took


@pytest.mark.parametrize("loses_everything", [False, True])
def test_a_redis_that_is_killed_and_started_again_has_no_gap_and_no_repeat(
    tmp_path: Path, loses_everything: bool
) -> None:
    appendonly = "no" if loses_everything else "yes"
    with redis_server(tmp_path / "redis", appendonly=appendonly) as server:
        shipper = StreamShipper(server.url, "t", "j", 1)
        relay = LogRelay(tmp_path / "a", 1, shipper)
        write(relay, 1, 5000)
        until(lambda: last_in_redis(server) > 4000, "lines before the kill")
        server.kill()
        took: list[float] = []
        for first in range(5001, 10_001, 100):
            begun = time.monotonic()
            write(relay, first, 100)
            took.append(time.monotonic() - begun)
        server.start()
        write(relay, 10_001, 500)
        relay.close()
        assert shipper.close(DEADLINE) == []
        assert sorted(took)[-3] < 1.0, "nobody waits for Redis"  # two of fifty may have waited for the machine
        written = lines_on_disk(tmp_path / "a")
        assert [line.seq for line in written] == list(range(1, 10_501))
        assert lines_in_redis(server) == written
        assert entries(server)[-1][0] == "10500-1"


def test_a_redis_that_refuses_writes_stops_nothing_and_gets_all_when_it_recovers(tmp_path: Path) -> None:
    noise = ["".join(chr(33 + (n * k) % 90) for k in range(7, 107)) for n in range(7919)]
    with redis_server(tmp_path / "redis", maxmemory="2mb", **{"maxmemory-policy": "noeviction"}) as server:
        shipper = StreamShipper(server.url, "t", "j", 1, window_bytes=64 * 1024 * 1024)
        relay = LogRelay(tmp_path / "a", 1, shipper)
        with server.client() as client:
            client.config_set("maxmemory", "1mb")  # less than an empty server needs
            with pytest.raises(redis.ResponseError, match="maxmemory"):
                client.set("x", b"1")
            for n, text in enumerate(noise):
                relay.add_output(0, "stdout", 0, f"{n} {text}\n".encode(), n)
            assert client.exists(KEY) == 0
            client.config_set("maxmemory", "0")
        until(lambda: last_in_redis(server) > 7000, "lines after the recovery")
        relay.close()
        assert shipper.close(DEADLINE) == []
        assert [line.seq for line in lines_in_redis(server)] == list(range(1, len(noise) + 1))


def test_a_redis_that_runs_full_in_the_middle_keeps_a_whole_prefix(tmp_path: Path, server: RedisServer) -> None:
    shipper = StreamShipper(server.url, "t", "j", 1)
    relay = LogRelay(tmp_path / "a", 1, shipper)
    write(relay, 1, 3000)
    until(lambda: last_in_redis(server) > 2000, "lines before")
    with server.client() as client:
        client.config_set("maxmemory", "1mb")
        write(relay, 3001, 3000)
        before = last_in_redis(server)
        assert [line.seq for line in lines_in_redis(server)] == list(range(1, before + 1))
        client.config_set("maxmemory", "0")
    relay.close()
    assert shipper.close(DEADLINE) == []
    assert [line.seq for line in lines_in_redis(server)] == list(range(1, 6001))


def test_a_redis_that_stalls_is_given_up_on_and_a_late_answer_doubles_nothing(
    tmp_path: Path, server: RedisServer
) -> None:
    shipper = StreamShipper(server.url, "t", "j", 1)
    relay = LogRelay(tmp_path / "a", 1, shipper)
    write(relay, 1, 100)
    until(lambda: last_in_redis(server) > 50, "lines before the stall")
    server.signal(signal.SIGSTOP)
    try:
        begun = time.monotonic()
        write(relay, 101, 5000)
        assert time.monotonic() - begun < 2.0
        time.sleep(2.5)  # longer than the shipper waits for an answer
    finally:
        server.signal(signal.SIGCONT)
    relay.close()
    assert shipper.close(DEADLINE) == []
    assert [line.seq for line in lines_in_redis(server)] == list(range(1, 5101))


def test_closing_without_redis_keeps_its_deadline_and_says_what_was_not_sent(
    tmp_path: Path, server: RedisServer
) -> None:
    server.kill()
    shipper = StreamShipper(server.url, "t", "j", 1)
    relay = LogRelay(tmp_path / "a", 1, shipper)
    write(relay, 1, 10)
    shipper.put_blob("blob", b"123", 60)
    relay.close()
    MetricRelay(tmp_path / "a", shipper).close()
    begun = time.monotonic()
    left = shipper.close(0.5)
    assert time.monotonic() - begun < 10
    assert len(left) == 3  # the log, the metrics' seal, the blob
    assert any(KEY in line for line in left)
    assert "blob: 3 bytes" in left
    assert len(lines_on_disk(tmp_path / "a")) == 10
    server.start()
    assert shipper.close(DEADLINE) == []  # or its thread would try for the rest of the tests


def test_a_file_that_cannot_be_read_does_not_hold_up_the_others(tmp_path: Path, server: RedisServer) -> None:
    shipper = StreamShipper(server.url, "t", "j", 1)
    relay = LogRelay(tmp_path / "a", 1, shipper)
    shipper.ship_log(7, tmp_path / "gone", 100)
    write(relay, 1, 3)
    relay.close()
    until(lambda: last_in_redis(server) == 4, "the lines and the seal")
    assert [names.log_stream("t", "j", 1, 7) in line for line in shipper.close(0.3)] == [True]
    shipper._streams.clear()  # or its thread would try for the rest of the tests
    assert shipper.close(DEADLINE) == []


def test_the_window_is_bounded_and_older_lines_are_left_to_the_file(tmp_path: Path, server: RedisServer) -> None:
    window = 128 * 1024
    shipper = StreamShipper(server.url, "t", "j", 1, window_bytes=window)
    relay = LogRelay(tmp_path / "a", 1, shipper)
    for n in range(20_000):
        relay.add_output(0, "stdout", 0, b"%d %s\n" % (n, bytes(33 + (n * k) % 90 for k in range(7, 107))), n)
    relay.close()
    assert shipper.close(DEADLINE) == []
    found = entries(server)
    assert paths.log_file(tmp_path / "a", 0).stat().st_size > 3 * window
    assert sum(len(raw) for _, _, raw in found) < 2 * window + 256 * 1024
    assert found[0][1].first > 1
    lines = lines_in_redis(server)
    assert [line.seq for line in lines] == list(range(found[0][1].first, 20_001))
    assert lines == lines_on_disk(tmp_path / "a")[-len(lines) :]
