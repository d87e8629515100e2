"""What an attempt has on each file system, and whether it must end because of that.

It is a page in the attempt's directory in which its supervisor and the node's agent write to each other. A full disk
takes no new file, and that is when the page counts: so it is written when the attempt begins, and overwritten in place
from then on. The supervisor has the first half, for what the attempt has, and the agent the other, for its verdict.
"""

import os
from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T")

_HALF = 2048
_SUPERVISORS, _AGENTS = 0, _HALF


class DiskUsage(msgspec.Struct, frozen=True):
    """Bytes, and files, that an attempt has in its directories on each file system, by the file system's number
    (`st_dev`). The layout grows at the end."""

    bytes: dict[int, int] = {}
    files: dict[int, int] = {}


class DiskVerdict(msgspec.Struct, frozen=True):
    """The attempt has grown most on a file system that is low: it must end. Numbers are bytes, or files where files are
    what is short. The layout grows at the end."""

    disk: str  # what lies there
    used: int  # what the attempt had there
    grown: int  # of that, in the last `seconds`
    seconds: float
    free: int
    reserve: int
    counts_files: bool = False
    since: float = 0.0  # seconds since the epoch: what it wrote from then on is its growth


def create_ledger(path: Path) -> None:
    """Write a page of an attempt that has nothing, unless there is one. Raises OSError."""
    if not path.exists():
        path.write_bytes(msgspec.json.encode(DiskUsage()).ljust(2 * _HALF))


def write_usage(path: Path, usage: DiskUsage) -> None:
    """Raises OSError."""
    _write_half(path, _SUPERVISORS, msgspec.json.encode(usage))


def read_usage(path: Path) -> DiskUsage | None:
    """None where there is no page that can be read now: the attempt begins or ends, or the page is being written."""
    return _read_half(path, _SUPERVISORS, DiskUsage)


def write_verdict(path: Path, verdict: DiskVerdict) -> None:
    """Raises OSError."""
    _write_half(path, _AGENTS, msgspec.json.encode(verdict))


def read_verdict(path: Path) -> DiskVerdict | None:
    """None while there is none."""
    return _read_half(path, _AGENTS, DiskVerdict)


def _write_half(path: Path, offset: int, body: bytes) -> None:
    page = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.pwrite(page, body.ljust(_HALF)[:_HALF], offset)
    finally:
        os.close(page)


def _read_half(path: Path, offset: int, kind: type[T]) -> T | None:
    try:
        page = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return msgspec.json.decode(os.pread(page, _HALF, offset), type=kind)
    except (OSError, msgspec.MsgspecError):  # blank, or half written: it is read again soon
        return None
    finally:
        os.close(page)
