"""The audit log: entries are appended to files before the answers of their requests are sent.

So an entry survives the end of the process. It is on disk a second later at most: a machine that loses its power may
lose the entries of one second. The event loop appends to a file that is open, which takes microseconds; a thread opens
and syncs files, and appends while one is being opened or synced, or when appending was slow lately. Entries that cannot
be written wait in memory, and once too many wait, nothing is changed any more.
"""

import asyncio
import json
import math
import operator
import os
import queue
import secrets
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from enum import IntEnum
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import structlog

from jobs.files import audit_files
from shardyard.contract.audit import AuditEntry
from shardyard.contract.errors import Unavailable
from shardyard.contract.plain_text import escape_unsafe
from shardyard.contract.responses import at as format_time

log = structlog.get_logger(__name__)

MAX_FILE_BYTES: Final = 4 * 1024 * 1024
SYNC_SECONDS: Final = 1.0
RETRY_SECONDS: Final = 1.0
#: An append that takes longer would hold up all requests: for a while the thread does it.
SLOW_SECONDS: Final = 0.02
SLOW_FOR_SECONDS: Final = 60.0
#: Entries that may wait while they cannot be written.
MAX_WAITING: Final = 1000
#: How long an answer waits for its entry while the disk is slow.
WRITE_SECONDS: Final = 5.0
#: Characters of a text in an entry, items of a list or an object, and levels of them.
MAX_TEXT, MAX_ITEMS, MAX_DEPTH = 300, 32, 3


class _WaitingEntry(NamedTuple):
    """An entry that is not written yet, and whom to tell when it is."""

    day: str
    line: bytes
    written: "asyncio.Future[None]"


class _Order(IntEnum):
    """What the thread is told beside entries."""

    SYNC = 1
    CLOSE = 2


class AuditLog:
    """Entries are added by the event loop. `start` and `close` belong to its application."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._writer = secrets.token_hex(4)
        self._last_at = 0
        self._added: queue.SimpleQueue[_WaitingEntry | _Order] = queue.SimpleQueue()
        self._waiting: list[_WaitingEntry] = []  # taken from there; of the thread
        self._handed_over = self._settled = 0  # entries: the first is the event loop's, the second the thread's
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self._file = _DayFile()
        self._file_lock = threading.Lock()
        self._is_synced = True
        self._slow_until = 0.0
        #: Why entries cannot be written; empty while they can.
        self.failure = ""

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Write and sync what waits. Entries that cannot be written are lost."""
        self._added.put(_Order.CLOSE)
        self._thread.join()

    @property
    def waiting(self) -> int:
        """Entries that are not written yet."""
        return self._handed_over - self._settled

    @property
    def is_full(self) -> bool:
        """Whether entries cannot be written, and as many wait as may wait."""
        return bool(self.failure) and self.waiting >= MAX_WAITING

    def require_room(self) -> None:
        """Raises:
        Unavailable: the log is full.
        """
        if self.is_full:
            raise Unavailable(
                f"the audit log cannot be written ({self.failure}), and nothing is changed without it; an operator has "
                "to make room on the storage, or repair it"
            )

    def add(self, entry: AuditEntry) -> "asyncio.Future[None] | None":
        """Have an entry written, with an id and a time of its own: it is, or the future is done when it is, when it
        cannot be now, or when that takes too long."""
        self._last_at = at = max(time.time_ns() // 1000, self._last_at + 1)
        line, day = encode_entry(entry, at, audit_files.make_id(at, self._writer)), audit_files.day_of(at)
        return None if self._append_at_once(day, line) else self._hand_over(day, line)

    def _append_at_once(self, day: str, line: bytes) -> bool:
        """Append a line here and now, if that cannot take long as far as is known."""
        started = time.monotonic()
        if self.failure or started < self._slow_until or not self._file_lock.acquire(blocking=False):
            return False
        try:
            if self.waiting or not self._file.is_ready(day):
                return False
            self._file.append(self._directory, day, (line,))
        except OSError:
            return False  # the thread will say why
        finally:
            self._file_lock.release()
        if time.monotonic() - started > SLOW_SECONDS:
            self._slow_until = started + SLOW_FOR_SECONDS
        if self._is_synced:
            self._is_synced = False
            self._added.put(_Order.SYNC)
        return True

    def _hand_over(self, day: str, line: bytes) -> "asyncio.Future[None]":
        """Have the thread append a line."""
        loop = asyncio.get_running_loop()
        written: asyncio.Future[None] = loop.create_future()
        if self.failure and self.waiting >= 2 * MAX_WAITING:  # those of requests that were under way
            log.error("audit_entry_lost", entry=line.decode())
            written.set_result(None)
            return written
        self._handed_over += 1
        self._added.put(_WaitingEntry(day, line, written))
        late = loop.call_later(WRITE_SECONDS, _finish, (written,))
        written.add_done_callback(lambda _: late.cancel())
        return written

    def _run(self) -> None:
        sync_at, order = math.inf, None
        while order is not _Order.CLOSE:
            order = self._take_added(RETRY_SECONDS if self.failure else sync_at - time.monotonic())
            if order is not None or self._waiting:
                sync_at = min(sync_at, time.monotonic() + SYNC_SECONDS)
            with self._file_lock:
                if self._waiting:
                    self._write_waiting()
                if order is _Order.CLOSE or time.monotonic() >= sync_at:
                    self._is_synced, sync_at = True, math.inf  # before: what is appended from now on asks again
                    self._file.sync()
        self._file.close()

    def _take_added(self, seconds: float) -> "_Order | None":
        """Wait for entries, for so long at most, and take all there are; the last order among them."""
        taken: list[_WaitingEntry | _Order] = []
        with suppress(queue.Empty):
            taken.append(self._added.get(timeout=None if seconds == math.inf else max(0.0, seconds)))
            while True:
                taken.append(self._added.get_nowait())
        self._waiting += [waiting for waiting in taken if isinstance(waiting, _WaitingEntry)]
        orders = [order for order in taken if isinstance(order, _Order)]
        return max(orders, default=None)

    def _write_waiting(self) -> None:
        """Write what it can of what waits, and take that out."""
        batch, done, failure = self._waiting, 0, ""
        try:
            for day, entries in groupby(batch, key=_day_of):
                try:
                    self._file.append(self._directory, day, [waiting.line for waiting in entries])
                finally:
                    done += self._file.appended
        except OSError as error:
            failure = error.strerror or type(error).__name__
        if failure != self.failure:
            if failure:
                log.error("audit_not_written", directory=str(self._directory), error=failure)
            else:
                log.warning("audit_written_again", directory=str(self._directory))
        self.failure = failure
        self._waiting = batch[done:]
        self._settled += done
        _resolve(batch)


_day_of = operator.attrgetter("day")


class _DayFile:
    """The file that this process appends to: a new one each day, and when it is full. Whoever uses it holds a lock."""

    def __init__(self) -> None:
        self._descriptor = -1
        self._day = ""
        self._bytes = 0
        self._is_torn = False
        self.appended = 0

    def is_ready(self, day: str) -> bool:
        """Whether a line of that day can be appended without another file being opened."""
        return self._descriptor >= 0 and day == self._day and self._bytes < MAX_FILE_BYTES

    def append(self, directory: Path, day: str, lines: Sequence[bytes]) -> None:
        """Append whole lines; `appended` are those that are in the file, also after an error. Raises OSError."""
        self.appended = 0
        if day != self._day or self._bytes >= MAX_FILE_BYTES:
            self.sync()
            self.close()
        if self._descriptor < 0:
            self._open(directory / day, lines[0])
            self._day = day
        data = b"\n" * self._is_torn + b"\n".join(lines) + b"\n"
        while data:
            count = os.write(self._descriptor, data)
            part, data = data[:count], data[count:]
            self._bytes += count
            self.appended += part.count(b"\n") - (self._is_torn and part.startswith(b"\n"))
            self._is_torn = not part.endswith(b"\n")

    def _open(self, directory: Path, first: bytes) -> None:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = directory / f"{audit_files.id_of(first)}.jsonl"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._descriptor = os.open(path, flags, 0o600)
        self._bytes = os.fstat(self._descriptor).st_size
        self._is_torn = False

    def sync(self) -> None:
        if self._descriptor >= 0:
            try:
                os.fdatasync(self._descriptor)
            except OSError as error:
                log.error("audit_not_synced", error=error.strerror)

    def close(self) -> None:
        if self._descriptor >= 0:
            with suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = -1


def _resolve(batch: Iterable[_WaitingEntry]) -> None:
    """Tell those who wait, in the thread of their loop; one that is closed waits for nothing."""
    futures = [waiting.written for waiting in batch if not waiting.written.done()]
    if futures:
        with suppress(RuntimeError):
            futures[0].get_loop().call_soon_threadsafe(_finish, futures)


def _finish(futures: "Iterable[asyncio.Future[None]]") -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


def encode_entry(entry: AuditEntry, at: int, identifier: str) -> bytes:
    """The line of an entry, which begins with its id. ASCII alone, and what a terminal would obey is written out."""
    named: dict[str, Any] = {"id": identifier, "at": format_time(at)}
    for name, value in msgspec.structs.asdict(entry).items():
        if name not in named and (value or name == "status"):
            named[name] = _clean(value)
    line = _encode(named)
    return line if line.isascii() else json.dumps(named, separators=(",", ":")).encode()


_encode = msgspec.json.Encoder().encode


def _clean(value: Any, depth: int = 0) -> Any:
    """A value of an entry within its limits, and without anything that a reader's terminal would obey."""
    if isinstance(value, bool | int | float | None):
        return value
    if isinstance(value, dict) and depth < MAX_DEPTH:
        items = list(value.items())[:MAX_ITEMS]
        return {_clean(str(name)): _clean(one, depth + 1) for name, one in items}
    if isinstance(value, list | tuple) and depth < MAX_DEPTH:
        return [_clean(one, depth + 1) for one in value[:MAX_ITEMS]]
    text = str(value)
    return escape_unsafe(text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…")
