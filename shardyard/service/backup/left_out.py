"""What a back-up leaves out: counted by its cause, with the names of the first ones."""

from typing import Final, Literal

import msgspec

from shardyard.contract.plain_text import escape_unsafe

Cause = Literal["link", "socket", "pipe", "device", "unreadable", "vanished", "changed", "name", "count", "deadline"]

#: Entries of one directory for a program's files that are looked at: a program may make them as fast as they are read.
MAX_ENTRIES: Final = 1_000_000
#: Names of each cause that the manifest has, and that the screen shows.
MAX_NAMES: Final = 100
SHOWN_NAMES: Final = 3
#: How much of a path is kept, from both its ends.
_SHOWN_PATH: Final = 200

_WHY: Final[dict[Cause, str]] = {
    "link": "a symbolic link; links are not followed",
    "socket": "a socket, which has no contents",
    "pipe": "a pipe, which has no contents",
    "device": "a device",
    "unreadable": "cannot be read",
    "vanished": "removed or moved while the back-up was made",
    "changed": "replaced by something else while the back-up was made",
    "name": "the disk of the back-up takes no such name, or no file of this size",
    "count": f"more than {MAX_ENTRIES:,} entries in one directory of a job; the rest is not in the back-up",
    "deadline": "there was no time left; give a longer --deadline",
}


class LeftOutEntries(msgspec.Struct, kw_only=True):
    """Entries of the storage directory that a back-up does not hold, for one cause. `first` are the paths of the first
    ones, escaped where they cannot be shown."""

    cause: str
    why: str
    entries: int = 0
    first: list[str] = []


class LeftOutCounter:
    """Counts what one back-up leaves out."""

    def __init__(self) -> None:
        self._by_cause: dict[Cause, LeftOutEntries] = {}

    def add(self, cause: Cause, names: list[str]) -> None:
        """Count an entry; `names` lead to it from the storage directory."""
        if cause not in self._by_cause:
            self._by_cause[cause] = LeftOutEntries(cause=cause, why=_WHY[cause])
        counted = self._by_cause[cause]
        counted.entries += 1
        if len(counted.first) < MAX_NAMES:
            counted.first.append(show_path(names))

    def list_causes(self) -> list[LeftOutEntries]:
        return list(self._by_cause.values())


def show_path(names: list[str]) -> str:
    """A path as text: the middle of a long one is left out."""
    path = escape_unsafe("/".join(names))
    if len(path) <= _SHOWN_PATH:
        return path
    return f"{path[: _SHOWN_PATH // 2]}...{path[-_SHOWN_PATH // 2 :]}"


def describe_left_out(left_out: LeftOutEntries) -> str:
    """One line for the screen."""
    shown = left_out.first[:SHOWN_NAMES]
    more = left_out.entries - len(shown)
    return f"left out: {', '.join(shown)}{f' and {more:,} more' if more else ''}: {left_out.why}"
