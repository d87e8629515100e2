"""Watches the disks that a node needs, and acts before they are full, in a thread of its own.

While a disk has less free space than the service keeps for itself, the node takes no work. Whichever attempt has made
it so must end: it gets a verdict in its ledger (`workers.runtime.disk_ledger`), and its supervisor ends it as
`resource_limit`. Where that does not help, or no attempt is to blame, there are two more steps: the node gives up its
ballast; and its attempts save what they have done, and go back to the queue until there is room.
"""

import threading
import time
from collections.abc import Callable, Collection
from time import monotonic

import structlog

from jobs import store
from jobs.files.service_disks import node_directories
from jobs.model.records import LowDisk
from jobs.store import AttemptId
from jobs.store.client import RedisStore
from jobs.support.disk_space import DiskSpace, LowDisks, read_spaces
from jobs.support.outage_log import CONTROL_REDIS
from shardyard.contract.errors import Unavailable
from workers.node.config import NodeConfig
from workers.node.disks.ballast import Ballast
from workers.node.disks.growth import Growth, GrowthHistory
from workers.runtime import disk_ledger
from workers.runtime.disk_ledger import DiskUsage, DiskVerdict
from workers.runtime.launch import AttemptDirectory

log = structlog.get_logger(__name__)

#: How often the disks are read.
WATCH_SECONDS = 0.25
#: Below this level the service itself is in danger.
DANGER_LEVEL = 0.5
#: How long an attempt that is to blame may take to end, with its files, before more is done.
VERDICT_SECONDS = 20.0
#: How often attempts that run on a nearly full disk are asked to go back to the queue.
RELIEVE_SECONDS = 5.0


class DiskWatch:
    """`low_disk` is the worst disk that is low; `report` is called when there is another one, or none any more."""

    def __init__(
        self,
        config: NodeConfig,
        control: RedisStore,
        instance: str,
        holding: Callable[[], Collection[AttemptId]],
        report: Callable[[], None],
    ) -> None:
        """`instance` is this worker; `holding` returns the attempts that have devices here."""
        self._config = config
        self._store = control
        self._instance = instance
        self._holding = holding
        self._report = report
        self._directories = node_directories(config.settings)
        self._low = LowDisks()
        self._history = GrowthHistory()
        self._ballast = Ballast(config.state_dir / "ballast", config.settings.nodes_here)
        self._blamed: tuple[AttemptDirectory, float] | None = None  # and until when it is waited for
        self._relieve_after = 0.0
        self._has_failed = False
        self._began = time.time()
        self.low_disk: LowDisk | None = None
        self._stop = threading.Event()

    def start(self) -> None:
        """Look once, and go on in a thread."""
        self._try_to_look()
        threading.Thread(target=self._run, name="disks", daemon=True).start()

    def stop(self) -> None:
        """Look no more. A look that is under way is not waited for: a disk may not answer."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(WATCH_SECONDS):
            self._try_to_look()

    def _try_to_look(self) -> None:
        try:
            self.look(monotonic())
            self._has_failed = False
        except Unavailable as error:
            CONTROL_REDIS.note_failure(error)
        except Exception:
            if not self._has_failed:  # once in a row: it may fail each time
                log.exception("disks_not_watched")
            self._has_failed = True

    def look(self, now: float) -> None:
        """Read all disks once, and do what that asks for; `now` is monotonic."""
        spaces = read_spaces(self._directories, self._config.settings.reserve_bytes)
        self._history.add(now, spaces, self._read_usages(now))
        low = self._low.update(spaces)
        self._set_low(low[0] if low else None)
        if low:
            self._relieve(low[0], now)
        for space in spaces:
            if space not in low and space.device == self._config.state_dir.stat().st_dev:
                self._ballast.restore(space)

    def _read_usages(self, now: float) -> dict[AttemptId, DiskUsage | None]:
        usages: dict[AttemptId, DiskUsage | None] = {}
        for attempt in self._holding():
            directory = self._directory(attempt)
            age = self._age_of(directory)
            if age is not None:
                self._history.begin_attempt(attempt, now - age)
            usages[attempt] = disk_ledger.read_usage(directory.disk_ledger)
        return usages

    def _age_of(self, directory: AttemptDirectory) -> float | None:
        """Seconds since an attempt has begun, if this worker was there: its mark is written once."""
        try:
            began = directory.session.stat().st_mtime
        except OSError:  # it is about to begin
            return None
        return max(0.0, time.time() - began) if began >= self._began else None

    def _directory(self, attempt: AttemptId) -> AttemptDirectory:
        return AttemptDirectory.of(self._config.state_dir, attempt)

    def _set_low(self, space: DiskSpace | None) -> None:
        before, self.low_disk = self.low_disk, None if space is None else _low_disk(space)
        if (before is None) != (space is None):
            if space is None:
                log.info("disk_has_room")
            else:
                log.warning("disk_low", disk=space.name, what=space.shortage)
            self._report()

    def _relieve(self, space: DiskSpace, now: float) -> None:
        """Do what makes room on a low disk, or at least lets the service live: one step at a time."""
        if self._is_verdict_pending(now):
            return
        found = self._history.find_grower(space, now)
        if found is not None:
            self._blame(*found, space, now)
        elif space.level < DANGER_LEVEL and self._ballast.is_on(space):
            self._ballast.release()
        elif space.level < DANGER_LEVEL and now > self._relieve_after and self._holding():
            self._relieve_after = now + RELIEVE_SECONDS
            relieve = store.relieve_node(self._config.node_id, self._instance, _low_disk(space))
            if asked := self._store.run(relieve):
                log.warning("attempts_sent_back", disk=space.name, what=space.shortage, attempts=asked)

    def _is_verdict_pending(self, now: float) -> bool:
        """Whether an attempt that was to blame has not ended yet. Once it has, only growth since then counts."""
        if self._blamed is None:
            return False
        directory, until = self._blamed
        if directory.directory.exists() and now < until:
            return True
        self._blamed = None
        self._history.restart()
        return False

    def _blame(self, attempt: AttemptId, growth: Growth, space: DiskSpace, now: float) -> None:
        directory = self._directory(attempt)
        verdict = DiskVerdict(
            disk=space.name,
            used=growth.used,
            grown=growth.grown,
            seconds=growth.seconds,
            free=space.free_files if space.lacks_files else space.free_bytes,
            reserve=space.reserve_files if space.lacks_files else space.reserve_bytes,
            counts_files=space.lacks_files,
            since=time.time() - growth.seconds,
        )
        self._blamed = directory, now + VERDICT_SECONDS
        log.warning("disk_filled_by", attempt=str(attempt), disk=space.name, what=space.shortage, grown=growth.grown)
        disk_ledger.write_verdict(directory.disk_ledger, verdict)


def _low_disk(space: DiskSpace) -> LowDisk:
    return LowDisk(space.name, space.free_bytes, space.reserve_bytes, space.free_files, space.reserve_files)
