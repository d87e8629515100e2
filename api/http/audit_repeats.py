"""What may arrive without end (refused tokens, refused scopes, downloads) gets one audit entry a minute for each caller
and object; the others are counted. So a flood neither fills the disk nor hides what else was done."""

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

from shardyard.contract.audit import AuditEntry

WINDOW_SECONDS: Final = 60.0
#: Different ones within a minute; those beyond are counted together, by action.
MAX_KINDS: Final = 120
_OTHERS: Final = "others"


@dataclass(slots=True)
class _Repeats:
    entry: AuditEntry
    count: int = 0


class RepeatGuard:
    """Decides which of many like entries are written. Used by the event loop alone."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until = 0.0
        self._known: dict[Hashable, _Repeats] = {}

    def admits(self, entry: AuditEntry, key: Hashable) -> bool:
        """Whether the entry is to be written; else it is counted. `key` is what it has in common with others."""
        if key not in self._known and len(self._known) >= MAX_KINDS:
            key = (_OTHERS, entry.action)
        known = self._known.get(key)
        if known is not None:
            known.count += 1
            return False
        if not self._known:
            self._until = self._clock() + WINDOW_SECONDS
        self._known[key] = _Repeats(entry)
        return True

    def take_due(self, *, at_once: bool = False) -> list[tuple[AuditEntry, int]]:
        """What was counted in a minute that is over: the entry that was written, and how many more there were."""
        if self._clock() < self._until and not at_once:
            return []
        counted = [(known.entry, known.count) for known in self._known.values() if known.count]
        self._known = {}
        return counted
