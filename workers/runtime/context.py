"""The context of a rank, and its two outputs: records and printed lines. Does not import torch."""

import contextlib
import io
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TextIO, cast

from jobs.protocol import packets
from jobs.protocol.packets import AnyRecord
from jobs.protocol.records import Step
from workers.runtime.ordered_pipe import OrderedPipe, WaitBudget
from workers.runtime.profile_request import NO_REQUEST, RequestBytes

FLUSH_SECONDS = 0.2
#: The first packets follow each other closely, twice as far apart each time: news of a start should not wait.
FIRST_FLUSH_SECONDS = 0.005
#: Records that may wait for the pipe. Beyond this the trainer waits: the supervisor always drains.
MAX_PENDING = 16_384
#: Records in one packet, below `packets.MAX_PACKET_RECORDS`.
MAX_IN_PACKET = 2_048
#: While there is nothing to send, what its thread does before it packs is done as often.
IDLE_SECONDS = 0.5
CLOSE_SECONDS = 5.0
#: Exit code of a rank whose records cannot be sent.
EXIT_RECORDS_LOST = 97


class RejectedByWorker(Exception):
    """The spec names something that cannot be imported, built, or put together here."""


class StopTraining(Exception):
    """The rank was told to stop; the current step is complete."""


@dataclass(frozen=True, slots=True)
class RankDevice:
    """One device of the lease: `logical` is its index there, `id` its UUID, or "cpu:3" for a virtual one; `first` is
    the index of the first device of its node."""

    logical: int
    kind: Literal["cpu", "cuda"]
    id: str
    first: int = 0

    @property
    def position(self) -> int:
        """Its index among the devices of its node, by which CUDA knows it."""
        return self.logical - self.first


class RecordSink(Protocol):
    def emit(self, record: AnyRecord) -> None:
        """Take one record. Costs microseconds, and may wait when the reader is far behind."""


def innermost_sink(sink: RecordSink) -> RecordSink:
    """The sink that takes what is no concern of those around it."""
    inner: RecordSink = getattr(sink, "inner", sink)
    return inner


class NullSink:
    """Nobody listens."""

    def emit(self, record: AnyRecord) -> None:
        pass


class ChannelSink:
    """Sends records down a pipe from a small thread: those after a rest at once, the others packed every 200 ms.

    `emit` only appends. A reader that has gone (EPIPE) turns the sink off without a word, since a
    rank must not fail because nobody watches it.
    """

    PACKET_BYTES = packets.RANK_PACKET_BYTES

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._pending: list[AnyRecord] = []
        self._writing = False
        self._off = False
        self._closed = False
        self._stepped = False
        self._send_now = threading.Event()
        self._changed = threading.Condition()
        self.is_idle = False  # nothing is on its way, and the thread sleeps until something is
        self.before_send: list[Callable[[], object]] = []  # what its thread does before it packs; they may emit
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
        self._thread.start()

    def emit(self, record: AnyRecord) -> None:
        if self._off:
            return
        self._pending.append(record)
        if self.is_idle:
            self.is_idle = False  # once is enough: to wake a thread costs more than everything else here
            self._wake.set()
        if not self._stepped and isinstance(record, Step):
            self._stepped = True  # of the first step people hear at once
            self._send_now.set()
        if len(self._pending) >= MAX_PENDING:
            self._wait_for_room()

    def flush(self, timeout: float = CLOSE_SECONDS) -> bool:
        """Wait until everything emitted so far is written; False when `timeout` seconds were not enough."""
        self._send_now.set()
        self._wake.set()
        with self._changed:
            return self._changed.wait_for(lambda: self._off or not (self._pending or self._writing), timeout)

    def close(self, timeout: float = CLOSE_SECONDS) -> bool:
        """Flush, end the thread, and take nothing more. The descriptor stays open: its owner closes it."""
        done = self.flush(timeout)
        self._closed = True
        self._send_now.set()
        self._wake.set()
        self._thread.join(timeout)
        self._off = True
        return done

    def abandon(self) -> None:
        """Take nothing more and send nothing more: for the copy of a sink that a forked child has, whose thread
        is not there and whose locks may be held by nobody. The pipe is the parent's."""
        self._off = self._closed = True
        self._pending = []
        self.before_send = []
        self._send_now, self._wake, self._changed = threading.Event(), threading.Event(), threading.Condition()

    def _wait_for_room(self) -> None:
        if threading.current_thread() is self._thread:
            return  # it is the one that makes room
        # No deadline: either the supervisor drains the pipe, or it is dead, which ends the rank too.
        self._send_now.set()
        with self._changed:
            self._changed.wait_for(lambda: self._off or len(self._pending) < MAX_PENDING)

    def _run(self) -> None:
        try:
            self._send_loop()
        except BaseException:  # noqa: BLE001  (whatever it is)
            # Without this thread the rank cannot report its end, and would soon block: it must end instead of hanging.
            sys.stderr.write("the rank's records cannot be sent\n" + traceback.format_exc())
            with contextlib.suppress(OSError):
                sys.stderr.flush()
            os._exit(EXIT_RECORDS_LOST)

    def _send_loop(self) -> None:
        pause = FIRST_FLUSH_SECONDS
        while not self._closed:
            if not self._send_pending():
                self._await_records()
                self._send_pending()
            if self._send_now.wait(min(pause, _until_flush())):
                self._send_now.clear()
            pause = min(2 * pause, FLUSH_SECONDS)
        self._send_pending()

    def _await_records(self) -> None:
        """Sleep until there is something to send: only where a whole pause has brought nothing, since to be woken for
        a single record costs the program, and the supervisor, as much as many records at once."""
        self.is_idle = True
        self._run_before_send()
        while not (self._pending or self._wake.wait(IDLE_SECONDS)):
            self._run_before_send()
        self.is_idle = False
        self._wake.clear()

    def _send_pending(self) -> bool:
        """Write what is pending now, in packets; whether there was anything. A record appended meanwhile stays for the
        next round."""
        self._run_before_send()
        sent = bool(self._pending)
        while self._pending and not self._off:
            self._writing = True
            batch = self._pending[:MAX_IN_PACKET]
            del self._pending[: len(batch)]
            for packet in packets.encode_packets(batch, self.PACKET_BYTES):
                self._write_packet(packet)
            self._writing = False
            with self._changed:
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()
        return sent

    def _run_before_send(self) -> None:
        for chore in self.before_send:
            chore()

    def _write_packet(self, packet: bytes) -> None:
        view = memoryview(packet)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError:
            self._off = True
            self._pending.clear()


class DeviceStreams:
    """Sends what a thread prints to the log of the device that the thread works for.

    `descriptors` has one (stdout, stderr) pair per device of this rank, in the order of
    `RankContext.devices`; the first pair is the process's own (1, 2), and threads that are bound to
    no device use it.
    """

    def __init__(self, descriptors: Sequence[tuple[int, int]]) -> None:
        self._bound = threading.local()
        budget = WaitBudget()
        pairs = (OrderedPipe.make_pair(out, err, budget) for out, err in descriptors)
        self._streams = [(_line_writer(out), _line_writer(err)) for out, err in pairs]

    def install(self) -> None:
        """Replace `sys.stdout` and `sys.stderr`."""
        sys.stdout = cast(TextIO, _ThreadStream(self, 0))
        sys.stderr = cast(TextIO, _ThreadStream(self, 1))

    @contextlib.contextmanager
    def on(self, index: int) -> Iterator[None]:
        """Bind the current thread to the device at `index` of this rank."""
        before = getattr(self._bound, "index", 0)
        self._bound.index = index
        try:
            yield
        finally:
            self._bound.index = before

    def current_stream(self, which: int) -> io.TextIOWrapper:
        """The stream of the current thread: 0 for stdout, 1 for stderr."""
        return self._streams[getattr(self._bound, "index", 0)][which]

    def flush(self) -> None:
        for pair in self._streams:
            for stream in pair:
                with contextlib.suppress(OSError):
                    stream.flush()


class _ThreadStream:
    """Looks like a text stream, and is the current thread's."""

    def __init__(self, streams: DeviceStreams, which: int) -> None:
        self._choose = streams.current_stream
        self._which = which

    def write(self, text: str) -> int:
        return self._choose(self._which).write(text)

    def __iter__(self) -> Iterator[str]:
        return iter(self._choose(self._which))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._choose(self._which), name)


def _line_writer(raw: io.FileIO) -> io.TextIOWrapper:
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", line_buffering=True, newline="\n"
    )


def _until_flush() -> float:
    """Seconds to the next moment for a packet. It is the same for all ranks of a host, which wait for each other in
    every step: so they are held up together, and the supervisor is woken once for all of them."""
    return FLUSH_SECONDS - time.time() % FLUSH_SECONDS


@dataclass(frozen=True, slots=True)
class CheckpointAccess:
    """Where a rank saves its part of a checkpoint, and what it begins with.

    A rank that has saved, or has paused, waits in `ask` for the supervisor's word: CONTINUE, SAVE or LEAVE. The end
    of the supervisor is LEAVE.
    """

    drafts: Path  # files of a checkpoint of n steps are written to <drafts>/<n>/, which the rank makes
    resume: Path | None  # a checkpoint whose files were verified; nothing is loaded without
    read_command: Callable[[], bytes]


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Which rank of an attempt a process is. `devices` are its own: the whole lease under single and dp, one device
    under ddp and fsdp."""

    rank: int
    world_size: int
    devices: tuple[RankDevice, ...]
    lease_size: int
    threads: int

    def place(self) -> "tuple[int, int, tuple[RankDevice, ...], int, int]":
        """The first arguments of anything that is a `RankPlace`, too."""
        return self.rank, self.world_size, self.devices, self.lease_size, self.threads


@dataclass(frozen=True, slots=True)
class RankContext(RankPlace):
    """What a rank is told about itself. `data_root` is the directory below which a job may read files."""

    sink: RecordSink
    streams: DeviceStreams | None = None
    stopping: Callable[[], bool] = lambda: False
    data_root: Path | None = None
    checkpoints: CheckpointAccess | None = None  # where the spec asks for them
    profile_request: RequestBytes = NO_REQUEST  # of its supervisor, which may ask at any time

    @property
    def device_kind(self) -> Literal["cpu", "cuda"]:
        return self.devices[0].kind
