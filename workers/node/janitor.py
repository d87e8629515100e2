"""Cleans up a node once a minute: remains of attempts that no other process removes, and devices in quarantine.

It has a separate thread, since a round may take a minute, and the node must send heartbeats meanwhile.
"""

import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import structlog

from jobs import store
from jobs.model.records import DeviceRecord
from jobs.store import AttemptId, QuarantinedDevice
from jobs.store.client import RedisStore
from jobs.support.outage_log import CONTROL_REDIS
from shardyard.contract.errors import Unavailable
from workers.carrier.journal import is_carried
from workers.node.device_check import DeviceChecker
from workers.runtime.launch import AttemptDirectory
from workers.supervisor import working_dir
from workers.supervisor.ending import pending_end
from workers.supervisor.process_sweep import describe_survivors, is_supervisor_dead, sweep_attempt
from workers.supervisor.user_files.collection import keep_files_of_dead_supervisor

log = structlog.get_logger(__name__)

ROUND_SECONDS = 60.0
#: Directories that are cleared, and devices that are tried, in one round. What is left has its turn in the next.
MAX_CLEARED = 16
MAX_TESTED = 8
SWEEP_SECONDS = 1.0


class Janitor:
    def __init__(
        self,
        node: str,
        devices: tuple[DeviceRecord, ...],
        state_dir: Path,
        storage: Path,
        control: RedisStore,
        holding: Callable[[], Collection[AttemptId]],
    ) -> None:
        """`state_dir` is the node's own; `holding` returns the attempts that have devices here, which the agent
        handles."""
        self._node = node
        self._devices = {device.index: device for device in devices}
        self._state_dir = state_dir
        self._storage = storage
        self._store = control
        self._holding = holding
        self._checker = DeviceChecker()
        self._orphans_before: set[AttemptId] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rounds", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Begin no further round. One that is under way is not waited for: it may stop anywhere."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(ROUND_SECONDS):
            try:
                self.clear_orphans()
                self.test_devices()
            except Unavailable as error:
                CONTROL_REDIS.note_failure(error)
            except Exception:
                log.exception("round_failed")

    def clear_orphans(self) -> None:
        """Clear what supervisors left that were killed after they gave their devices back. An attempt that is just
        being started looks the same for a moment, so it must do so in two rounds."""
        held = set(self._holding())
        left = {attempt for attempt in orphaned_attempts(self._state_dir) if attempt not in held}
        for attempt in sorted(left & self._orphans_before, key=str)[:MAX_CLEARED]:
            directory = AttemptDirectory.of(self._state_dir, attempt)
            if directory.pending_end.exists() and is_carried(self._state_dir, attempt):
                continue  # it is reported when its files are at the storage
            pending_end.report_pending_end(self._store, attempt, directory.pending_end)
            clear_orphan(self._state_dir, self._storage, attempt, SWEEP_SECONDS)
        self._orphans_before = left

    def test_devices(self) -> None:
        """Bring devices back whose quarantine is over: nothing is left of the attempt, and they can compute."""
        found = [
            one
            for one in self._store.run(store.list_quarantined(self._node))
            if one.why.by == "sweep" and one.device in self._devices
        ]
        swept: dict[str, str] = {}
        for one in sorted(found, key=lambda one: one.why.checked or 0)[:MAX_TESTED]:
            attempt = one.why.attempt
            if attempt not in swept:
                swept[attempt] = self._survivors_of(AttemptId.parse(attempt))
            wrong = swept[attempt] or self._checker.find_fault(self._devices[one.device])
            self._update_quarantine(one, wrong)

    def _survivors_of(self, attempt: AttemptId) -> str:
        survivors = clear_orphan(self._state_dir, self._storage, attempt, SWEEP_SECONDS)
        return f"would not die after {attempt}: {describe_survivors(survivors)}" if survivors else ""

    def _update_quarantine(self, found: QuarantinedDevice, wrong: str) -> None:
        if wrong:
            log.warning("device_stays_in_quarantine", device=found.device, why=wrong)
            self._store.run(store.retain_quarantine(self._node, found, wrong))
        elif self._store.run(store.unquarantine_proven(self._node, found)):
            log.info("device_is_back", device=found.device, was=found.why.reason)


def orphaned_attempts(state_dir: Path) -> Iterator[AttemptId]:
    """Attempts that have a directory, and no supervisor that lives."""
    for directory in (state_dir / "attempts").glob("*.*.*"):
        tenant, job, number = directory.name.rsplit(".", 2)
        if number.isdecimal() and is_supervisor_dead(AttemptDirectory(directory)):
            yield AttemptId(tenant, job, int(number))


def clear_orphan(state_dir: Path, storage: Path, attempt: AttemptId, seconds: float = 5.0) -> dict[int, str]:
    """Sweep what a dead supervisor has left. Its traces go, unless its end is still to be told, or something would not
    die within `seconds`: that is returned, as `sweep` does."""
    directory = AttemptDirectory.of(state_dir, attempt)
    survivors = sweep_attempt(directory, attempt, seconds)
    working_dir.reclaim_storage(storage, attempt)
    keep_files_of_dead_supervisor(directory, storage, attempt)
    if not survivors and not directory.pending_end.exists():
        directory.remove()
    return survivors
