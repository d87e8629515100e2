"""Serves the socket of an attempt through which processes that descend from its ranks send their records.

A script may start processes of its own: by `mp.spawn`, by fork, by running itself again. The probe follows into them
(`workers.probe.descendants`), and each one that has steps to report connects here. Used by the supervisor's loop
alone; nothing in here waits.

A process that connects must be a living descendant of the supervisor. It receives one byte when it is admitted, and
another when the attempt is to end. It sends a hello, and then what a rank's channel carries. A connection that breaks
these rules is closed, and a note of the report says so.
"""

import os
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import structlog

from jobs.protocol.packets import DESCENDANT_PACKET_BYTES, PacketDecoder, SingleRecord, StepBatch, batch_steps
from jobs.protocol.records import Hello, Note, Outcome, Paused, RankUp, Result, Returned, Saved
from workers.runtime.process_status import parent_of
from workers.supervisor.limits.record_bounds import bound_record
from workers.supervisor.redaction import SecretRedactor

log = structlog.get_logger(__name__)

READ_BYTES = 256 * 1024
#: Connections at one time, and in the whole attempt: each source leaves a trace in the report.
MAX_LIVE = 128
MAX_SOURCES = 1024
#: Connections that are accepted before other descriptors are read again.
MAX_ACCEPTED = 16
#: Reads of one connection at the end: more than its buffer can hold, and still not for ever.
MAX_READS = 64
#: Refused connections that are logged.
MAX_LOGGED = 100
#: Generations between a rank and the process that connects.
MAX_DEPTH = 64
ADMITTED, STOPPING = b"+", b"S"
#: The report's path for notes about descendants.
NOTE_FIELD = "per_device"
#: Records that only a rank itself may send.
_RANK_ONLY_RECORDS = (RankUp, Returned, Outcome, Result, Paused, Saved, Hello)
_CREDENTIALS = struct.Struct("3i")


@dataclass(slots=True)
class _DescendantConnection:
    """One connection. `source` is its number, `rank` the rank that it descends from."""

    connection: socket.socket
    pid: int
    source: int
    found: int | None  # the rank that it was seen to descend from; None: its parents are gone
    rank: int | None = None  # None before its hello
    decoder: PacketDecoder = field(default_factory=lambda: PacketDecoder(DESCENDANT_PACKET_BYTES))


class DescendantServer:
    """`ranks` maps process ids to rank numbers. `watch` and `unwatch` are the loop's. `count` counts bytes of records,
    and says whether more may be read; `record` and `ended` take what comes: (rank, record, source) and (rank, source),
    with sources counted from 1.
    """

    def __init__(
        self,
        listener: socket.socket,
        ranks: Mapping[int, int],
        *,
        watch: Callable[[int, Callable[[], object]], None],
        unwatch: Callable[[int], None],
        count: Callable[[int], bool],
        record: Callable[[int, StepBatch | SingleRecord, int], None],
        ended: Callable[[int, int], None],
        uid: int | None = None,
        redactor: SecretRedactor | None = None,
    ) -> None:
        """`uid`: the ranks' account, where it is not that of this process. `redactor`: where the job has secrets."""
        self._redactor = redactor
        self._uid = os.getuid() if uid is None else uid
        self._listener = listener
        self._ranks = dict(ranks)
        self._register, self._unregister = watch, unwatch
        self._count_bytes = count
        self._on_record, self._on_source_ended = record, ended
        self._connections: dict[int, _DescendantConnection] = {}  # by descriptor
        self._sources = self._strangers = 0
        self._noted_reasons: set[str] = set()
        listener.setblocking(False)
        watch(listener.fileno(), self._accept_connections)

    @property
    def accepted_count(self) -> int:
        """Connections that were admitted so far."""
        return self._sources

    @property
    def open_count(self) -> int:
        return len(self._connections)

    def send_stop(self) -> None:
        """Tell all descendants that the attempt is to end."""
        for child in self._connections.values():
            _send_byte(child.connection, STOPPING)

    def drain(self) -> None:
        """Read what has been sent so far: a process that has ended has sent all that it had."""
        self._accept_connections()
        for child in list(self._connections.values()):
            for _ in range(MAX_READS):
                if not self._read_connection(child):
                    break

    def close(self) -> None:
        """Read the rest, and close every connection and the listener."""
        if self._listener.fileno() < 0:
            return
        self.drain()
        for child in list(self._connections.values()):
            self._close_connection(child)
        self._unregister(self._listener.fileno())
        self._listener.close()

    # -- admission -----------------------------------------------------------------------------------

    def _accept_connections(self) -> None:
        for _ in range(MAX_ACCEPTED):
            try:
                connection, _address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:  # no descriptors left: listening on would only spin
                log.error("children_unheard", error=str(error))
                self._unregister(self._listener.fileno())
                self._record_note(0, 0, f"processes that started from now on were not followed: {error}")
                return
            self._admit_connection(connection)

    def _admit_connection(self, connection: socket.socket) -> None:
        pid, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        known, rank = self._trace_lineage(pid) if uid == self._uid else (False, None)
        if not known:
            self._strangers += 1
            if self._strangers <= MAX_LOGGED:
                log.warning("stranger_refused", pid=pid, uid=uid)
            connection.close()
            return
        if len(self._connections) >= MAX_LIVE or self._sources >= MAX_SOURCES:
            connection.close()
            self._record_note(
                rank or 0,
                0,
                f"at most {MAX_LIVE} processes at a time, and {MAX_SOURCES} in all, are followed; others were not",
            )
            return
        connection.setblocking(False)
        self._sources += 1
        child = _DescendantConnection(connection, pid, self._sources, rank)
        child.decoder.clean = None if self._redactor is None else self._redactor.clean_packet
        self._connections[connection.fileno()] = child
        _send_byte(connection, ADMITTED)
        self._register(connection.fileno(), partial(self._read_connection, child))

    def _trace_lineage(self, pid: int) -> tuple[bool, int | None]:
        """Whether a process descends from this one, and from which rank; `None` where it was adopted since."""
        for _ in range(MAX_DEPTH):
            if pid in self._ranks:
                return True, self._ranks[pid]
            if pid == os.getpid():
                return True, None
            pid = parent_of(pid)
            if pid <= 1:
                break
        return False, None

    # -- reading ---------------------------------------------------------------------------------------

    def _read_connection(self, child: _DescendantConnection) -> bool:
        """Read what is there of one connection; False when there is no more now."""
        try:
            data = child.connection.recv(READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._close_connection(child)
            return False
        if not self._count_bytes(len(data)):
            return False  # the attempt is being ended for what its records take
        try:
            for packet in child.decoder.feed(data):
                for record in batch_steps(packet):
                    self._handle_record(child, bound_record(record))
        except ValueError as error:
            self._reject_connection(child, str(error))
            return False
        return True

    def _handle_record(self, child: _DescendantConnection, record: StepBatch | SingleRecord) -> None:
        """Raises ValueError where this record may not come now."""
        if child.rank is None:
            if not isinstance(record, Hello):
                raise ValueError(f"its first record was {_record_name(record)}, not Hello")
            child.rank = self._rank_of(child, record)
            return
        if isinstance(record, _RANK_ONLY_RECORDS):
            raise ValueError(f"{type(record).__name__} may come only from a rank")  # noqa: TRY004  (as of a bad packet)
        self._on_record(child.rank, record, child.source)

    def _rank_of(self, child: _DescendantConnection, hello: Hello) -> int:
        if child.found is not None:
            return child.found
        return hello.rank if hello.rank in self._ranks.values() else 0

    def _reject_connection(self, child: _DescendantConnection, why: str) -> None:
        log.warning("child_cut_off", pid=child.pid, why=why)
        rank = child.rank if child.rank is not None else child.found or 0
        self._record_note(
            rank, child.source, f"the records of process {child.pid} were no longer accepted: {why[:200]}"
        )
        self._close_connection(child)

    def _close_connection(self, child: _DescendantConnection) -> None:
        fd = child.connection.fileno()
        self._unregister(fd)
        del self._connections[fd]
        child.connection.close()
        if child.rank is not None:
            self._on_source_ended(child.rank, child.source)

    def _record_note(self, rank: int, source: int, reason: str) -> None:
        if reason not in self._noted_reasons and len(self._noted_reasons) < MAX_LIVE:
            self._noted_reasons.add(reason)
            self._on_record(rank, Note(NOTE_FIELD, reason), source)


def _record_name(record: StepBatch | SingleRecord) -> str:
    if isinstance(record, StepBatch):
        return "Step" if record.steps else "Metric"
    return type(record).__name__


def open_listener(path: Path) -> socket.socket:
    """A socket at `path`, which must be short: an address has 108 bytes."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    path.chmod(0o600)
    listener.listen(MAX_LIVE)
    return listener


def _send_byte(connection: socket.socket, byte: bytes) -> None:
    try:
        connection.send(byte, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    except OSError:
        return  # it has ended, or does not read
