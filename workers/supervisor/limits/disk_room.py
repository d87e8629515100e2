"""What an attempt shares with its node about the disks that it writes to: how much it has there, and whether it must
end because it has filled one of them."""

import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic

from jobs.files import paths
from jobs.support.disk_space import read_spaces
from workers.runtime import disk_ledger
from workers.runtime.disk_ledger import DiskUsage, DiskVerdict
from workers.runtime.launch import AttemptConfig, AttemptDirectory
from workers.supervisor.limits.breach import LimitBreach, LimitName, describe_amount
from workers.supervisor.limits.tree_walk import TreeUsage

#: Below this level the node wants to know soon who grows.
NEAR_LEVEL = 2.0
#: A disk that was low so recently may be why a program has failed.
RECENT_SECONDS = 60.0
_ADVICE = (
    "Write less, keep fewer checkpoints, and remove what is no longer needed while the job runs; or ask the operator "
    "to make room."
)


class DiskRoom:
    """Two threads use it: the disk's meter reports, the supervisor's loop asks `check`, as of all meters."""

    def __init__(self, config: AttemptConfig) -> None:
        """Raises OSError where the page cannot be written: there is no room for the attempt."""
        self._ledger = AttemptDirectory.of(config.state_dir, config.attempt).disk_ledger
        self._config = config
        self._attempt_dir = paths.dir_of_attempt(config.storage, config.attempt)
        self._low_at = -math.inf
        disk_ledger.create_ledger(self._ledger)

    def look(self) -> bool:
        """Read the disks; whether one of them has little room left."""
        level = _lowest_level(self._config)
        if level < 1:
            self._low_at = monotonic()
        return level < NEAR_LEVEL

    @property
    def was_low(self) -> bool:
        """Whether a disk is low, or was a short while ago."""
        self.look()
        return monotonic() - self._low_at < RECENT_SECONDS

    def report(self, usage: TreeUsage) -> None:
        """Tell the node what the attempt has: what was found below its own directories, and its log."""
        total = TreeUsage(bytes_on=dict(usage.bytes_on), entries_on=dict(usage.entries_on))
        for file in self._own_files():
            with suppress(OSError):
                total.add(file.stat())
        with suppress(OSError):
            disk_ledger.write_usage(self._ledger, DiskUsage(total.bytes_on, total.entries_on))

    def _own_files(self) -> Sequence[Path]:
        """What this process writes for the ranks."""
        with suppress(OSError):
            return [*paths.logs_dir(self._attempt_dir).iterdir(), paths.metrics_file(self._attempt_dir)]
        return []

    @property
    def verdict(self) -> DiskVerdict | None:
        return disk_ledger.read_verdict(self._ledger)

    def check(self, now: float, *, at_once: bool = False) -> LimitBreach | None:
        verdict = self.verdict
        return None if verdict is None else breach_of_verdict(verdict)

    def close(self) -> None:
        pass


def is_disk_low(config: AttemptConfig) -> bool:
    """Whether a disk that an attempt needs has less than the service keeps for itself."""
    return _lowest_level(config) < 1


def _lowest_level(config: AttemptConfig) -> float:
    spaces = read_spaces({"storage": config.storage, "state": config.state_dir}, config.reserve_bytes)
    return min((space.level for space in spaces), default=math.inf)


def breach_of_verdict(verdict: DiskVerdict) -> LimitBreach:
    """What an attempt that has filled a disk is told: it may have had as much as leaves the service its reserve."""
    limit: LimitName = "files" if verdict.counts_files else "disk"
    grown, left = (describe_amount(limit, number) for number in (verdict.grown, verdict.free))
    return LimitBreach(
        limit,
        verdict.used,
        max(0, verdict.used - (verdict.reserve - verdict.free)),
        advice=_ADVICE,
        sentence=f"it has filled the disk of the service's {verdict.disk}, which had {left} left: it grew by {grown} "
        f"in {verdict.seconds:.0f} s",
    )
