"""The two ways out of a rank: records, and printed lines."""

import os
import select
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import pytest

from jobs.protocol.packets import AnyRecord, PacketDecoder
from jobs.protocol.records import Note, Step
from workers.runtime import context
from workers.runtime.context import ChannelSink, DeviceStreams

Pipe = tuple[int, int]


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    ends = os.pipe()
    yield ends
    for fd in ends:
        try:
            os.close(fd)
        except OSError:
            continue


def note(number: int) -> Note:
    return Note("field", str(number))


class Reader(threading.Thread):
    """Drains a pipe until its end, and keeps the records."""

    def __init__(self, fd: int) -> None:
        super().__init__(daemon=True)
        self._fd = fd
        self.records: list[AnyRecord] = []
        self.packets = 0

    def run(self) -> None:
        decoder = PacketDecoder()
        while data := os.read(self._fd, 1 << 16):
            self.records += chain.from_iterable(decoder.feed(data))
            self.packets += 1


def decoded(data: bytes) -> list[AnyRecord]:
    return list(chain.from_iterable(PacketDecoder().feed(data)))


# -- ChannelSink -----------------------------------------------------------------------------------


def test_the_first_record_is_sent_at_once(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "FLUSH_SECONDS", 60)
    sink = ChannelSink(pipe[1])
    sink.emit(note(1))
    assert decoded(os.read(pipe[0], 4096)) == [note(1)]
    sink.close()


def test_the_first_step_is_sent_at_once_however_far_apart_packets_are(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "FIRST_FLUSH_SECONDS", 60)
    sink = ChannelSink(pipe[1])
    sink.emit(note(1))
    assert decoded(os.read(pipe[0], 4096)) == [note(1)]
    step = Step(0, 0, "train", (0,), at=1.0, step_ms=1.0)
    sink.emit(step)
    assert select.select([pipe[0]], [], [], 60)[0], "it waits for the next packet"
    assert decoded(os.read(pipe[0], 4096)) == [step]
    sink.close()


def test_what_comes_without_a_rest_goes_into_one_packet_for_each_pause(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "FLUSH_SECONDS", 0.02)
    sink = ChannelSink(pipe[1])
    sink.before_send.append(lambda: sink.emit(note(0)))  # there is something whenever the thread looks
    sink.emit(note(0))
    sizes = []
    for _ in range(5):
        head = os.read(pipe[0], 4)
        sizes.append(len(decoded(head + os.read(pipe[0], int.from_bytes(head)))))
        assert not sink.is_idle, "to be woken costs the program more than a record does"
    sink.before_send.clear()
    sink.close()
    assert sizes == [2, 1, 1, 1, 1]


def test_ranks_of_a_host_send_at_the_same_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "FLUSH_SECONDS", 0.25)
    ends = []
    for now in (1000.01, 1000.2499, 1000.25):
        monkeypatch.setattr("workers.runtime.context.time.time", lambda now=now: now)
        ends.append(round(now + context._until_flush(), 6))
    assert ends == [1000.25, 1000.25, 1000.5]


def test_records_arrive_in_order_and_packed(pipe: Pipe) -> None:
    sink, reader = ChannelSink(pipe[1]), Reader(pipe[0])
    reader.start()
    sent = [note(number) for number in range(30_000)]
    for record in sent:
        sink.emit(record)
    assert sink.close()
    os.close(pipe[1])
    reader.join(60)
    assert reader.records == sent
    assert reader.packets < 1_000


def test_flush_waits_until_everything_is_written(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "FLUSH_SECONDS", 60)
    sink = ChannelSink(pipe[1])
    for number in range(100):
        sink.emit(note(number))
    assert sink.flush()
    assert len(decoded(os.read(pipe[0], 1 << 16))) == 100
    sink.close()


def test_flush_gives_up_on_a_reader_that_does_not_read(pipe: Pipe) -> None:
    sink = ChannelSink(pipe[1])
    for number in range(10_000):
        sink.emit(Note("x" * 20, str(number)))
    assert not sink.flush(timeout=0.05)
    reader = Reader(pipe[0])
    reader.start()
    assert sink.close()  # or its thread would write to the next test's pipe, which gets the same number
    os.close(pipe[1])
    reader.join(60)  # nor may this one read from it


def test_a_full_buffer_makes_the_trainer_wait_and_loses_nothing(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "MAX_PENDING", 8)
    sink, reader = ChannelSink(pipe[1]), Reader(pipe[0])
    sent = [Note("x" * 200, str(number)) for number in range(2_000)]

    def train() -> None:
        for record in sent:
            sink.emit(record)

    trainer = threading.Thread(target=train, daemon=True)
    trainer.start()
    trainer.join(0.2)
    assert trainer.is_alive()
    reader.start()
    trainer.join(60)
    assert sink.close()
    os.close(pipe[1])
    reader.join(60)
    assert reader.records == sent


def test_a_reader_that_has_gone_turns_the_sink_off(pipe: Pipe) -> None:
    os.close(pipe[0])
    sink = ChannelSink(pipe[1])
    sink.emit(note(1))
    assert sink.flush()
    sink.emit(note(2))
    assert sink.close()


# -- DeviceStreams ---------------------------------------------------------------------------------


class Two:
    """The streams of two devices, over pipes."""

    def __init__(self) -> None:
        self.pipes = [os.pipe() for _ in range(4)]
        out, err, other_out, other_err = (write for _, write in self.pipes)
        self.streams = DeviceStreams([(out, err), (other_out, other_err)])

    @contextmanager
    def installed(self) -> Iterator[DeviceStreams]:
        before = sys.stdout, sys.stderr
        self.streams.install()
        try:
            yield self.streams
        finally:
            sys.stdout, sys.stderr = before

    def read(self, number: int) -> str:
        """What came out of pipe `number`: stdout and stderr of device 0, then of device 1."""
        os.set_blocking(self.pipes[number][0], False)
        try:
            return os.read(self.pipes[number][0], 4096).decode()
        except BlockingIOError:
            return ""

    def close(self) -> None:
        for ends in self.pipes:
            for fd in ends:
                os.close(fd)


@pytest.fixture
def two() -> Iterator[Two]:
    made = Two()
    yield made
    made.close()


def test_what_a_thread_prints_goes_to_the_device_it_is_bound_to(two: Two) -> None:
    def replica(streams: DeviceStreams) -> None:
        with streams.on(1):
            print("in the replica")
            print("trouble", file=sys.stderr)

    with two.installed() as streams:
        thread = threading.Thread(target=replica, args=(streams,))
        thread.start()
        thread.join()
        print("outside")
    assert [two.read(number) for number in range(4)] == ["outside\n", "", "in the replica\n", "trouble\n"]


def test_leaving_a_binding_gives_back_the_one_before(two: Two) -> None:
    with two.installed() as streams, streams.on(1):
        with streams.on(0):
            print("zero")
        print("one")
    assert (two.read(0), two.read(2)) == ("zero\n", "one\n")


def test_a_line_without_its_end_is_written_by_flush(two: Two) -> None:
    with two.installed() as streams:
        print("no end yet", end="")
        assert two.read(0) == ""
        streams.flush()
    assert two.read(0) == "no end yet"


def test_text_that_is_no_utf8_is_escaped_and_does_not_fail(two: Two) -> None:
    with two.installed():
        print("half \udce4")
    assert two.read(0) == "half \\udce4\n"


def test_the_router_is_a_stream_like_any_other(two: Two) -> None:
    with two.installed():
        terminal, encoding = sys.stdout.isatty(), sys.stdout.encoding
        sys.stdout.writelines(["a\n", "b\n"])
    assert (terminal, encoding) == (False, "utf-8")
    assert two.read(0) == "a\nb\n"
