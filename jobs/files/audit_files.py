"""The files of the audit: which there are, what a line is, and how pages of it are read.

    <storage>/audit/2026-11-23/<start>-<writer>.jsonl

Each API process writes files of its own, one after the other, and only appends. A line is an entry as JSON that begins
with its id, and lines are in the order of their ids. The id begins with the time in microseconds, so the files of
several processes are merged by it. `start` is the id of the first line.
"""

import heapq
import os
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec

from shardyard.contract.audit import AuditEntry

#: `{"id":"` before it.
_ID = slice(7, 32)
ID_PATTERN: Final = re.compile(r"[0-9]{16}-[0-9a-f]{8}")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
#: What one page looks through at most.
MAX_SEARCHED_BYTES: Final = 32 * 1024 * 1024
_decoder = msgspec.json.Decoder(AuditEntry)


def audit_dir(storage: Path) -> Path:
    return storage / "audit"


def day_of(microseconds: int) -> str:
    return datetime.fromtimestamp(microseconds // 1_000_000, UTC).strftime("%Y-%m-%d")


def make_id(microseconds: int, writer: str) -> str:
    """Of an entry; `writer` are eight hexadecimal digits of its process."""
    return f"{microseconds:016d}-{writer}"


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """Which entries: those of a tenant and a token ("": of all), with one of the actions (none: with any), from
    `since` until before `until`, both in microseconds. `after` is the id that the last page ended with. `oldest_first`:
    their order."""

    tenant: str = ""
    token: str = ""
    actions: frozenset[str] = frozenset()
    since: int = 0
    until: int = 10**16 - 1
    after: str = ""
    oldest_first: bool = False
    limit: int = 100

    def bounds(self) -> tuple[str, str]:
        """Ids are above the first and below the second."""
        low, high = f"{self.since:016d}", f"{self.until:016d}"
        if not self.after:
            return low, high
        return (max(low, self.after + "~"), high) if self.oldest_first else (low, min(high, self.after))

    def has(self, entry: AuditEntry) -> bool:
        return (
            self.tenant in ("", entry.tenant)
            and self.token in ("", entry.token)
            and (not self.actions or entry.action in self.actions)
        )


@dataclass(slots=True)
class _Search:
    """What one page has looked through; `last` is the id of the last line."""

    query: AuditQuery
    left: int = MAX_SEARCHED_BYTES
    last: str = ""
    lines: list[bytes] = field(default_factory=list)


def list_names(directory: Path) -> list[str]:
    """Names in a directory; none where there is none. Raises OSError."""
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []


def read_page(
    directory: Path,
    query: AuditQuery,
    names: Callable[[Path], list[str]] = list_names,
    bring: Callable[[Path], None] = lambda _: None,
) -> tuple[list[bytes], str | None]:
    """Lines that the query is for, and the id after which the next page begins; None: those were all. `names` lists a
    directory, and `bring` has the files of a day here before they are read.

    Raises:
        OSError: the storage does not answer.
    """
    search = _Search(query)
    for day in _days(names(directory), query):
        bring(directory / day)
        for line in heapq.merge(*_chains(directory / day, search), key=_id_of, reverse=not query.oldest_first):
            search.last = id_of(line)
            entry = _decode(line)
            if entry is not None and query.has(entry):
                search.lines.append(line)
            if len(search.lines) == query.limit or search.left <= 0:
                return search.lines, search.last
    return search.lines, None


def choose_old_days(names: Iterable[str], days: float, now: int) -> list[str]:
    """Which of these directories have entries that are older than so many days, by whole days."""
    oldest = day_of(now - int(timedelta(days=days) / timedelta(microseconds=1)))
    return [name for name in names if _DAY.fullmatch(name) and name < oldest]


def _days(names: Iterable[str], query: AuditQuery) -> list[str]:
    low, high = query.bounds()
    first, last = day_of(int(low[:16])), day_of(min(int(high[:16]), 253_402_300_799_000_000))
    days = sorted(name for name in names if _DAY.fullmatch(name) and first <= name <= last)
    return days if query.oldest_first else days[::-1]


def _chains(day: Path, search: _Search) -> list[Iterator[bytes]]:
    """The lines of each process that wrote on a day: its files follow each other."""
    chains: dict[str, list[Path]] = {}
    for path in sorted(day.glob("*.jsonl")):
        if ID_PATTERN.fullmatch(path.stem):
            chains.setdefault(path.stem.partition("-")[2], []).append(path)
    return [_read_chain(files, search) for files in chains.values()]


def _read_chain(files: list[Path], search: _Search) -> Iterator[bytes]:
    low, high = search.query.bounds()
    forward = search.query.oldest_first
    for number in range(len(files)) if forward else reversed(range(len(files))):
        follower = files[number + 1].stem if number + 1 < len(files) else "~"
        if follower <= low or files[number].stem >= high:
            continue
        with suppress(FileNotFoundError):  # its day was removed
            lines = _whole_lines(files[number].read_bytes())
            ids = [_id_of(line) for line in lines]
            wanted = lines[bisect_right(ids, low.encode()) : bisect_left(ids, high.encode())]
            for line in wanted if forward else reversed(wanted):
                search.left -= len(line)
                yield line


def _whole_lines(data: bytes) -> list[bytes]:
    """Without one that is cut off: a process was killed while it wrote, or a disk was full."""
    lines = data.split(b"\n")
    return [line for line in lines if line.startswith(b'{"id":"') and line.endswith(b"}")]


def id_of(line: bytes) -> str:
    """The id that a line begins with."""
    return line[_ID].decode()


def _id_of(line: bytes) -> bytes:
    return line[_ID]


def _decode(line: bytes) -> AuditEntry | None:
    try:
        return _decoder.decode(line)
    except msgspec.MsgspecError:
        return None
