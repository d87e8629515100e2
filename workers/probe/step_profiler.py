"""Records a Kineto trace of a few steps of a running rank when its supervisor asks for one.

The thread that trains starts and stops the profiler, each time between two steps: whoever ends a step compares
`request[NUMBER]` with `seen`, and calls `on_step` where they differ. That is all that a step costs while no profile is
wanted. Another thread compresses the trace and sends it in parts. No error reaches the program.
"""

import os
import resource
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.protocol.profiles import MAX_GROWTH_BYTES, MAX_TRACE_BYTES, RECORD_SECONDS
from jobs.protocol.records import ProfileBegin, ProfileEnd, ProfilePart
from workers.runtime.context import ChannelSink, RankContext, innermost_sink
from workers.runtime.profile_request import NO_REQUEST, NUMBER, STEPS

#: Compressed bytes in one record, and bytes of the trace that are compressed at a time.
PART_BYTES, READ_BYTES = 256 * 1024, 1024 * 1024
#: How long one part may wait for the pipe.
FLUSH_SECONDS = 30.0
#: How long the end of the program waits for a trace that is being sent.
JOIN_SECONDS = 20.0
#: While a profile is being recorded, every end of a step counts.
_EVERY_STEP = -1
OWN_PROFILER = "the program is recording a profile of its own"


@dataclass(slots=True)
class _Recording:
    number: int
    wanted: int
    profiler: Any
    thread: int
    began: float
    memory: int
    steps: int = 0


class StepProfiler:
    """The profiler of one rank. In a process that descends from the rank it does nothing."""

    __slots__ = ("_pid", "_recording", "_sender", "_sink", "request", "seen")

    def __init__(self, context: RankContext) -> None:
        self.request = context.profile_request
        self.seen = 0
        self._sink = innermost_sink(context.sink)
        self._pid = os.getpid()
        self._recording: _Recording | None = None
        self._sender: threading.Thread | None = None

    def on_step(self) -> None:
        """A step has ended, and a profile is wanted, or is being recorded. Never raises."""
        if os.getpid() != self._pid:
            self.request, self.seen, self._recording = NO_REQUEST, 0, None
            return
        recording = self._recording
        if recording is None:
            self._begin(self.request[NUMBER], self.request[STEPS])
        elif threading.get_ident() == recording.thread:
            recording.steps += 1
            if recording.steps >= recording.wanted or _is_over_limits(recording):
                self._end(recording)

    def finish(self) -> None:
        """The program has ended: send what has been recorded."""
        if os.getpid() != self._pid:
            return
        if self._recording is not None and self._recording.thread == threading.get_ident():
            self._end(self._recording)
        if self._sender is not None:
            self._sender.join(JOIN_SECONDS)

    def _begin(self, number: int, wanted: int) -> None:
        self.seen = number
        if not number:
            return
        try:
            profiler = _start_profiler()
        except Exception as error:  # noqa: BLE001  (whatever it is, it must not reach the program)
            self._sink.emit(ProfileEnd(number, 0, 0.0, _describe_error(error)))
            return
        now, memory = time.perf_counter(), _resident_bytes()
        self._recording = _Recording(number, wanted, profiler, threading.get_ident(), now, memory)
        self.seen = _EVERY_STEP
        self._sink.emit(ProfileBegin(number))

    def _end(self, recording: _Recording) -> None:
        seconds = time.perf_counter() - recording.began
        self._recording, self.seen = None, recording.number
        try:
            recording.profiler.stop()
        except Exception as error:  # noqa: BLE001
            self._sink.emit(ProfileEnd(recording.number, 0, seconds, _describe_error(error)))
            return
        self._sender = threading.Thread(target=self._send_trace, args=(recording, seconds), name="profile", daemon=True)
        self._sender.start()

    def _send_trace(self, recording: _Recording, seconds: float) -> None:
        error = ""
        try:
            with tempfile.TemporaryDirectory(prefix="profile-") as directory:
                trace = Path(directory) / "trace.json"
                recording.profiler.export_chrome_trace(str(trace))
                recording.profiler = None  # it holds every event
                self._send_parts(recording.number, trace)
        except Exception as failed:  # noqa: BLE001
            error = _describe_error(failed)
        self._sink.emit(ProfileEnd(recording.number, recording.steps, seconds, error))

    def _send_parts(self, number: int, trace: Path) -> None:
        sent = 0
        for part in _compress(trace):
            sent += len(part)
            if sent > MAX_TRACE_BYTES:
                raise ValueError(f"the trace is larger than {MAX_TRACE_BYTES:,} bytes; profile fewer steps")
            self._sink.emit(ProfilePart(number, part))
            if isinstance(self._sink, ChannelSink):
                self._sink.flush(FLUSH_SECONDS)  # one part at a time: a packet has a limit, and memory, too


def _start_profiler() -> Any:
    """
    Raises:
        RuntimeError: another profiler is running.
    """
    torch: Any = sys.modules["torch"]
    if torch.autograd._profiler_enabled():
        raise RuntimeError(OWN_PROFILER)
    kinds = torch.profiler.ProfilerActivity
    activities = [kinds.CPU, kinds.CUDA] if torch.cuda.is_initialized() else [kinds.CPU]
    profiler = torch.profiler.profile(activities=activities, **_thread_options(torch))
    is_quiet = "KINETO_LOG_LEVEL" in os.environ
    if not is_quiet:
        os.environ["KINETO_LOG_LEVEL"] = "99"  # it would print a line into the program's log
    try:
        profiler.start()
    finally:
        if not is_quiet:
            del os.environ["KINETO_LOG_LEVEL"]
    return profiler


def _thread_options(torch: Any) -> dict[str, Any]:
    """Record the threads of DataParallel, too, as far as this version of torch can."""
    try:
        return {"experimental_config": torch._C._profiler._ExperimentalConfig(profile_all_threads=True)}
    except (AttributeError, TypeError):
        return {}


def _compress(trace: Path) -> Iterator[bytes]:
    """A file as gzip, in parts."""
    packer = zlib.compressobj(6, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    waiting = bytearray()
    with trace.open("rb") as file:
        while data := file.read(READ_BYTES):
            waiting += packer.compress(data)
            while len(waiting) >= PART_BYTES:
                yield bytes(waiting[:PART_BYTES])
                del waiting[:PART_BYTES]
    waiting += packer.flush()
    for begin in range(0, len(waiting), PART_BYTES):
        yield bytes(waiting[begin : begin + PART_BYTES])


def _is_over_limits(recording: _Recording) -> bool:
    if time.perf_counter() - recording.began > RECORD_SECONDS:
        return True
    return _resident_bytes() - recording.memory > MAX_GROWTH_BYTES


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 0


def _describe_error(error: Exception) -> str:
    return (str(error) if isinstance(error, (RuntimeError, ValueError)) else f"{type(error).__name__}: {error}")[:500]
