"""Lists the processes of an attempt: what descends from its supervisor.

A supervisor adopts orphans, so no process leaves its tree, whatever it does. Walking the tree costs as much as the
attempt has threads, however many processes the host has.
"""

import contextlib
import os
from collections.abc import Iterator


def list_descendants(ancestor: int) -> Iterator[int]:
    """Processes below a process, those that have ended and are not reaped yet among them."""
    waiting = [ancestor]
    seen = {ancestor}
    while waiting:
        for child in _children_of(waiting.pop()):
            if child not in seen:
                seen.add(child)
                waiting.append(child)
                yield child


def _children_of(pid: int) -> Iterator[int]:
    """Those of all its threads; none where it has ended meanwhile."""
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb", buffering=0) as file:
                yield from map(int, file.read().split())
