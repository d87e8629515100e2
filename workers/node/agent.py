"""Looks after one node: registers it, sends its heartbeat, starts supervisors, and proves deaths.

There is one agent per worker. It owns no attempt: a supervisor that it started goes on without it, and an agent that
comes back finds every attempt again by what that left in the state directory (`AttemptDirectory`). It runs the parts
that do the work:

    registration.py     announces the node
    heartbeat.py        keeps it alive, and learns which attempts hold devices here (held_attempts.py)
    launcher.py         starts a supervisor for an attempt
    attempt_reaper.py   ends attempts whose supervisor is dead
    janitor.py          clears orphaned directories and tests devices in quarantine, in a thread of its own
    disks/              keeps room on the disks, in a thread of its own
    carrying/           carries what dead supervisors have left, in a thread of its own, where storage is not mounted
    hardware/           samples the devices of attempts once a second, in a thread of its own
"""

import fcntl
import os
import shutil
import signal
import threading
import time
import uuid
from collections.abc import Callable
from time import monotonic

import structlog

from jobs import store
from jobs.files import identity
from jobs.scheduling.hints import HintSender
from jobs.scheduling.scheduler import JobScheduler
from jobs.storage.remote import RemoteError
from jobs.store import AttemptId
from jobs.store.client import RedisStore
from jobs.support.outage_log import CONTROL_REDIS
from shardyard.contract.errors import FormatMismatch, NotFound, Unavailable, UnboxedNodes
from workers.carrier.access import access_of
from workers.node.attempt_reaper import AttemptReaper
from workers.node.carrying.leftovers import LeftoverCarrier
from workers.node.config import NodeConfig
from workers.node.disks.watch import DiskWatch
from workers.node.forkserver import ForkFailed, ForkServer
from workers.node.hardware.sampler import HardwareSampler
from workers.node.heartbeat import NodeHeartbeat
from workers.node.held_attempts import HeldAttempts
from workers.node.janitor import Janitor
from workers.node.launcher import AttemptLauncher
from workers.node.registration import BlockOver, NodeTaken, register_node
from workers.sandbox import check

log = structlog.get_logger(__name__)

#: How long attempts that are stopped with the worker have to end, beside the time to save their checkpoints.
STOP_ATTEMPTS_SECONDS = 15.0
#: How often the agent checks the attempts of its node; the heartbeat itself is rarer.
POLL_SECONDS = 1.0
#: How often a worker that drains checks whether it may leave.
DRAIN_POLL_SECONDS = 0.2
RECOVER_SECONDS = 5.0
#: A hint is sent again every few seconds; if an attempt waits longer than two of them, its hints do not arrive here.
LOST_HINT_SECONDS = 2.5 * store.RESEND_SECONDS


class Agent:
    def __init__(
        self, config: NodeConfig, control: RedisStore, hint_sender: HintSender, reconnect: Callable[[], None]
    ) -> None:
        """`reconnect` is called when hints do not arrive, though attempts wait here."""
        self._config = config
        self._store = control
        self._reconnect = reconnect
        self._held = HeldAttempts()
        self._forkserver = ForkServer(config.plan)
        self._launcher = AttemptLauncher(config, control, self._forkserver, self._held)
        instance = uuid.uuid4().hex
        self._disks = DiskWatch(config, control, instance, self._held.attempt_ids, lambda: self._heartbeat.send_soon())
        self._heartbeat = NodeHeartbeat(config, control, instance, self._held, lambda: self._disks.low_disk)
        self._reaper = AttemptReaper(config, control, self._held)
        self._scheduler = JobScheduler(control, hint_sender, config.settings, listen=False)
        self._janitor = Janitor(
            config.node_id, config.devices, config.state_dir, config.storage, control, self._held.attempt_ids
        )
        self._leftovers = LeftoverCarrier(config, control, self._held.attempt_ids)
        self._sampler = HardwareSampler(
            config.node_id, config.state_dir, config.settings.telemetry(), self._held.attempt_ids
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="agent", daemon=True)

    # -- life of the node ------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Take the node's lock and start the forkserver. Call it before the process has threads.

        Raises:
            NodeTaken: another worker on this host serves the node.
            NotConfined: in their box, or under their accounts, ranks can do too much or too little.
            ForkFailed: the forkserver does not come up.
            ValueError: SHARDYARD_STORAGE lacks something.
        """
        access_of(self._config.settings).open(self._config.target)
        state_dir = self._config.state_dir
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Open, and so locked, for as long as the process lives.
        lock = os.open(state_dir / "worker.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            node = self._config.node_id
            raise NodeTaken(f"another worker on this host already serves node {node!r}") from error
        self._reaper.clear_orphans()
        config = self._config
        if config.plan is not None:
            check.check_box(config.plan, config.accounts, config.settings, state_dir, config.environments)
        elif config.accounts is not None:
            check.check_accounts(config.accounts, config.settings, state_dir, config.environments, config.devices)
        log.info("forkserver_warm", seconds=round(self._forkserver.start_warm(), 2))

    def start(self) -> None:
        """Register the node and begin to look after it."""
        self._disks.start()  # first: the node says of its disks what it knows with its first heartbeat
        self._thread.start()
        self._scheduler.start()
        self._janitor.start()
        self._sampler.start()
        self._leftovers.start()

    def start_attempt(self, attempt: AttemptId) -> None:
        """Start a supervisor for an attempt that waits for one here. Harmless when repeated, late or wrong."""
        self._launcher.start_attempt(attempt)

    def drain(self, seconds: float | None, is_hurried: Callable[[], bool]) -> None:
        """Take no new work, and wait until no attempt holds a device of this node. After so many seconds, if there is
        a deadline, what still runs goes to other nodes. Returns sooner when `is_hurried`; attempts then go on."""
        if self._thread.ident is None:  # Celery was told to stop before it was ready
            return
        self._announce_drain(seconds, is_hurried)
        already_sent = self._heartbeat.count
        log.info("worker_drains", deadline_seconds=seconds)
        # A heartbeat may have been on its way when the drain began; the second one surely reports all that is held.
        while not is_hurried() and (self._heartbeat.count < already_sent + 2 or self._held):
            self._heartbeat.send_soon()
            time.sleep(DRAIN_POLL_SECONDS)
        log.info("worker_drained", left=[str(attempt) for attempt in self._held.attempt_ids()])

    def stop(self, *, stop_attempts: bool) -> None:
        """Leave: no new work comes here. Attempts go on, unless `stop_attempts` sends their jobs back to
        the queue first."""
        self._stop.set()
        self._janitor.stop()
        self._sampler.stop()
        self._leftovers.stop()
        self._disks.stop()
        if self._thread.ident is not None:  # Celery may be told to stop before it was ready
            self._thread.join(5)
            self._scheduler.stop()
        try:
            if stop_attempts:
                self._stop_attempts()
            self._leave_service()
        except Unavailable as error:
            log.warning("left_without_telling", error=str(error))
        self._forkserver.close()

    def _leave_service(self) -> None:
        """A node that is there for good stays known, and one of a block is forgotten with what it has on the disk,
        unless something still runs here."""
        config = self._config
        if not config.settings.block:
            self._store.run(store.take_down_node(config.node_id, None))
        elif self._store.run(store.leave_block(config.node_id, self._heartbeat.instance)):
            shutil.rmtree(config.state_dir, ignore_errors=True)

    def _announce_drain(self, seconds: float | None, is_hurried: Callable[[], bool]) -> None:
        while not is_hurried():
            try:
                self._store.run(store.leave_node(self._config.node_id, deadline_seconds=seconds))
                return
            except (Unavailable, NotFound) as error:
                log.warning("drain_not_told", error=str(error))
                time.sleep(POLL_SECONDS)

    def _stop_attempts(self) -> None:
        deadline = monotonic() + self._config.settings.checkpoint_seconds + STOP_ATTEMPTS_SECONDS
        while (live := self._store.run(store.stop_node(self._config.node_id))) and monotonic() < deadline:
            threading.Event().wait(0.1)
        if live:
            log.warning("attempts_still_live", count=live)

    # -- its thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        registered = False
        while not self._stop.is_set():
            try:
                if self._launcher.forkserver_failed.is_set():
                    registered = False
                    self._replace_forkserver()
                if not registered:
                    register_node(self._config, self._store, self._heartbeat.instance)
                    registered = True
                    self._heartbeat.send_soon()
                if self._heartbeat.is_due:
                    registered = self._heartbeat.send()
                self._heartbeat.enforce_drain_deadline()
                self._start_attempts_with_lost_hints()
                self._reaper.reap_lost_attempts()
                self._reaper.reap_silent_attempts()
                self._leftovers.renew_leases()
                CONTROL_REDIS.note_success()
                self._revive_forkserver()
                self._leave_if_idle()
            except Unavailable as error:
                CONTROL_REDIS.note_failure(error)
            except RemoteError as error:
                log.warning("storage_unavailable", error=str(error))
                self._stop.wait(RECOVER_SECONDS)
            except BlockOver as error:
                log.warning("block_over", why=str(error))
                os._exit(0)
            except (NodeTaken, FormatMismatch, UnboxedNodes, identity.StorageMismatch) as error:
                # Another worker has the node, the storage directory is a wrong one, or jobs of several tenants would
                # run without a box: this worker must end.
                log.error("node_refused", why=str(error))
                os._exit(2)
            except Exception:
                log.exception("agent_failed")
            self._stop.wait(POLL_SECONDS)

    def _leave_if_idle(self) -> None:
        """End the worker of a block's node that has had no work for long enough."""
        limit = self._config.idle_exit
        if limit is None or self._held.idle_seconds < limit:
            return
        if self._store.run(store.leave_idle_node(self._config.node_id)):
            log.info("node_idle", seconds=round(self._held.idle_seconds, 1))
            os.kill(os.getpid(), signal.SIGTERM)
        self._held.restart_idle_timer()
        self._heartbeat.send_soon()  # which tells of work that has just come, if it has

    def _replace_forkserver(self) -> None:
        """Take no work until a new forkserver is up: a node that fails every start would use up every job."""
        self._store.run(store.take_down_node(self._config.node_id, None))
        try:
            log.info("forkserver_warm", seconds=round(self._forkserver.restart_warm(), 2))
        except ForkFailed as error:
            log.error("forkserver_not_warm", why=str(error))
            self._stop.wait(RECOVER_SECONDS)
            raise
        self._launcher.forkserver_failed.clear()

    def _revive_forkserver(self) -> None:
        """Start a forkserver that was killed again now, rather than when a job waits for it."""
        if not self._forkserver.is_alive:
            log.warning("forkserver_lost")
            try:
                log.info("forkserver_warm", seconds=round(self._forkserver.start_warm(), 2))
            except ForkFailed as error:
                log.error("forkserver_not_warm", why=str(error))

    def _start_attempts_with_lost_hints(self) -> None:
        """Start attempts whose hints, sent again and again, have not reached this node, and have Celery reconnect."""
        waiting = self._held.leased_longer_than(LOST_HINT_SECONDS)
        if not waiting:
            return
        log.error("hints_not_heard", attempts=[str(attempt) for attempt in waiting])
        self._reconnect()
        for attempt in waiting:
            self._held.restart_lease_timer(attempt)
            self._launcher.start_attempt(attempt)
