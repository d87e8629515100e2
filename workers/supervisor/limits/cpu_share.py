"""Lets an attempt with very many processes have only the processor time that others leave.

The kernel divides a core among the cgroups that want it, by their weights. But a group with hundreds of runnable
processes has some on every core, so it takes a good part of the core on which its neighbour's one thread runs. A fork
bomb forks for a while before it meets its limit of processes; until then its weight is the least.
"""

from collections.abc import Sequence
from pathlib import Path

#: Processes and threads for each device beyond which an attempt steps back; it is back below half of that.
CROWD = 256
#: Between two looks, which are one read.
LOOK_SECONDS = 0.25
#: The file of the weight under each version of cgroups, and the weight of an attempt that steps back.
_WEIGHTS = (("cpu.weight", 1), ("cpu.shares", 16))


class CpuShare:
    """`directories` are those of the attempt's cgroup, which has its usual weight by now."""

    def __init__(self, directories: Sequence[Path], devices: int) -> None:
        self._crowd = CROWD * devices
        self._count = next((path for one in directories if (path := one / "pids.current").exists()), None)
        self._weights = [
            (path, path.read_text(), str(least))
            for one in directories
            for name, least in _WEIGHTS
            if (path := one / name).exists()
        ]
        self._is_crowded = False
        self._look_at = 0.0

    def check(self, now: float, *, at_once: bool = False) -> None:
        """Set the weight that fits the number of processes; `now` is monotonic. No breach comes of this."""
        if self._count is None or (now < self._look_at and not at_once):
            return
        self._look_at = now + LOOK_SECONDS
        try:
            processes = int(self._count.read_text())
            is_crowded = processes > (self._crowd // 2 if self._is_crowded else self._crowd)
            if is_crowded != self._is_crowded:
                for path, usual, least in self._weights:
                    path.write_text(least if is_crowded else usual)
                self._is_crowded = is_crowded
        except OSError:  # the cgroup is gone, or its files are read-only
            self._count = None

    def close(self) -> None:
        pass
