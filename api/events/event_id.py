"""Ids of events: positions of readers in a stream. They carry no rights, so they need no signature."""

import zlib
from dataclasses import dataclass

import msgspec

from api.http import cursors
from shardyard.contract.errors import MalformedCursor
from shardyard.contract.stream_events import EventName

#: Numbers of devices and lines that an id may name.
MAX_DEVICES = 4096


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One event on its way to one reader; `id` is the position behind it."""

    name: EventName
    data: str
    id: str


class ReaderPosition(msgspec.Struct, array_like=True):
    """What a reader of one job has been sent: everything up to here, and nothing beyond.

    `state`, `progress` and `report` are checksums of what was sent last. Of the attempt's patterns so many were sent,
    of its findings those with these checksums, of its points so many over all series, and of each device's lines those
    up to a number.
    """

    attempt: int
    state: int = 0
    progress: int = 0
    report: int = 0
    patterns: int = 0
    findings: tuple[int, ...] = ()
    points: int = 0
    lines: dict[int, int] = {}
    ended: bool = False

    def at_attempt(self, number: int) -> "ReaderPosition":
        """The start of another attempt: lines of the same devices, from the first one."""
        return ReaderPosition(number, self.state, lines=dict.fromkeys(self.lines, 0))


def encode_position(position: ReaderPosition) -> str:
    return cursors.encode_text(msgspec.msgpack.encode(position))


def decode_position(text: str) -> ReaderPosition | None:
    """The position that an id stands for; `None` for an id that is not one of ours."""
    try:
        found = msgspec.msgpack.decode(cursors.decode_text(text), type=ReaderPosition)
    except (MalformedCursor, msgspec.MsgspecError, RecursionError):
        return None
    numbers = (found.attempt, found.patterns, found.points, *found.lines, *found.lines.values())
    return found if len(found.lines) <= MAX_DEVICES and all(0 <= number < 2**63 for number in numbers) else None


def nonzero_checksum(content: bytes) -> int:
    """Never 0, which stands for nothing at all."""
    return zlib.crc32(content) or 1
