"""A supervisor's loop with nothing in it but the socket of the children."""

import os
import selectors
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType

from jobs.protocol.packets import AnyRecord, SingleRecord, StepBatch, encode_packet
from jobs.protocol.records import Hello
from workers.supervisor.descendants import ADMITTED, DescendantServer, open_listener

DEADLINE_SECONDS = 60.0


class Listening:
    """Keeps what children send, and when their connections end. This process is rank 0, or what `ranks` says."""

    def __init__(self, ranks: Mapping[int, int] | None = None) -> None:
        self._directory = TemporaryDirectory(prefix="sy-")  # not pytest's: its paths are too long for a socket
        self.path = Path(self._directory.name) / "probe"
        self.records: list[tuple[int, int, AnyRecord]] = []
        self.ended: list[tuple[int, int]] = []
        self.callers: list[socket.socket] = []
        self._selector = selectors.DefaultSelector()
        self.children = DescendantServer(
            open_listener(self.path),
            {os.getpid(): 0} if ranks is None else ranks,
            watch=self._watch,
            unwatch=self._unwatch,
            count=lambda size: True,
            record=self._add_record,
            ended=lambda rank, source: self.ended.append((rank, source)),
        )

    def _add_record(self, rank: int, record: StepBatch | SingleRecord, source: int) -> None:
        records: list[AnyRecord] = [*record.steps, *record.metrics] if isinstance(record, StepBatch) else [record]
        self.records += [(rank, source, one) for one in records]

    def _watch(self, fd: int, handle: Callable[[], object]) -> None:
        self._selector.register(fd, selectors.EVENT_READ, handle)

    def _unwatch(self, fd: int) -> None:
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def __enter__(self) -> "Listening":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.children.close()
        for caller in self.callers:
            caller.close()
        self._selector.close()
        self._directory.cleanup()

    def until(self, happened: Callable[[], bool], seconds: float = DEADLINE_SECONDS) -> None:
        """Serve until something has happened.

        Raises:
            AssertionError: it did not within `seconds`.
        """
        deadline = time.monotonic() + seconds
        while not happened():
            assert time.monotonic() < deadline, f"not within {seconds:g} s; so far {self.records}"
            self.turn()

    def turn(self) -> None:
        for key, _ in self._selector.select(0.02):
            if key.fd in self._selector.get_map():
                key.data()

    def of(self, kind: type) -> list[AnyRecord]:
        return [record for _, _, record in self.records if isinstance(record, kind)]


class Caller:
    """One connection to the socket, by hand."""

    def __init__(self, listening: Listening) -> None:
        self._listening = listening
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(DEADLINE_SECONDS)
        listening.callers.append(self.socket)
        self.socket.connect(str(listening.path))

    def let_in(self) -> bool:
        """Serve until this caller has been let in, or turned away."""
        self.socket.setblocking(False)
        answer: list[bytes] = []

        def heard() -> bool:
            try:
                answer.append(self.socket.recv(1))
            except BlockingIOError:
                return False
            return True

        self._listening.until(heard)
        self.socket.settimeout(DEADLINE_SECONDS)
        return answer == [ADMITTED]

    def send(self, *records: AnyRecord) -> None:
        self.socket.sendall(encode_packet(records))

    def hello(self, rank: int = 0) -> None:
        self.send(Hello(os.getpid(), os.getppid(), "forked", rank))
