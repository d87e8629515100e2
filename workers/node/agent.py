"""What a node does besides running attempts: it registers, beats, starts supervisors, and proves deaths.

One agent per worker. It owns no attempt: a supervisor that it started goes on without it, and an
agent that comes back finds every attempt again by what that left in the state directory (`AttemptDirectory`).
"""

import fcntl
import math
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from time import monotonic
from types import MappingProxyType

import structlog

from jobs import store
from jobs.files import identity
from jobs.model.records import DeviceRecord, NodeInfo
from jobs.model.settings import Settings
from jobs.model.spec import DISTRIBUTED, JobSpec, ScriptProgram
from jobs.model.state import AttemptState, Reason, State
from jobs.scheduling.hints import HintSender
from jobs.scheduling.scheduler import Scheduler, backoff_seconds
from jobs.store import AttemptId
from jobs.store.client import RedisStore
from shardyard.contract.errors import FormatMismatch, NotFound, Unavailable, UnreadableSpec
from workers.node import environments
from workers.node.forkserver import ForkFailed, ForkServer
from workers.node.janitor import Janitor, clear, culprits, left_behind
from workers.runtime.launch import AttemptConfig, AttemptDirectory
from workers.sandbox import check
from workers.sandbox.run_as import Accounts
from workers.supervisor import pending_end, working_dir
from workers.supervisor.process_sweep import is_supervisor_dead, sweep_attempt

log = structlog.get_logger(__name__)

#: How long attempts that are stopped with the worker have to end, beside the time to save their checkpoints.
STOP_ATTEMPTS_SECONDS = 15.0
#: How often the agent looks at the attempts of its node; the beat itself is rarer.
LOOK_SECONDS = 1.0
#: How often a worker that drains looks whether it may leave.
DRAIN_LOOK_SECONDS = 0.2
#: A supervisor that still holds devices this many leases after its attempt has ended is stuck, and is killed.
STUCK_LEASES = 2


RECOVER_SECONDS = 5.0
#: A hint is sent again every few seconds; an attempt that waits longer than two of them here was not heard of.
UNHEARD_SECONDS = 2.5 * store.RESEND_SECONDS

_REFUSALS = {
    store.Registration.TAKEN: "node {node!r} is alive elsewhere; give this worker another name with SHARDYARD_NODE",
    store.Registration.STRANDED: "node {node!r} holds devices of attempts whose traces another state directory has; "
    "start it with that SHARDYARD_STATE_DIR, or have the operator forget the node (DELETE /v1/nodes/{node})",
}


class NodeTaken(Exception):
    """Another worker serves this node already."""


class Agent:
    def __init__(
        self,
        settings: Settings,
        devices: tuple[DeviceRecord, ...],
        control: RedisStore,
        courier: HintSender,
        reconnect: Callable[[], None],
        environments: Mapping[str, Path] = MappingProxyType({}),
        accounts: Accounts | None = None,
    ) -> None:
        """`reconnect` is called when hints do not arrive, though attempts wait here. `environments` are the Pythons
        that jobs may name, `accounts` those that their ranks run as; without, that is ours."""
        self._accounts = accounts
        self._environments = environments
        self._settings = settings
        self._node = settings.node
        self._devices = devices
        self._store = control
        self._state_dir = settings.state_dir.expanduser() / settings.node
        self._storage = settings.storage.expanduser()
        self._instance = uuid.uuid4().hex
        self._forkserver = ForkServer()
        self._scheduler = Scheduler(control, courier, settings, listen=False)
        self._holding: dict[AttemptId, AttemptState] = {}
        self._leased_since: dict[AttemptId, float] = {}
        self._ended_since: dict[AttemptId, float] = {}
        self._beaten = -math.inf  # when, by the monotonic clock
        self._beats = 0
        self._drain: int | None = None  # the number of a drain that has a deadline, while that is not over
        self._drain_ends = 0.0  # by the monotonic clock
        self._rounds = Janitor(
            settings.node, devices, self._state_dir, self._storage, control, lambda: list(self._holding)
        )
        self._reconnect = reconnect
        self._stop = threading.Event()
        self._unfit = threading.Event()
        self._thread = threading.Thread(target=self._run, name="agent", daemon=True)
        self._lock: int | None = None

    # -- life of the node ------------------------------------------------------------------------------

    def warm(self) -> None:
        """Take the node's lock and start the forkserver. Call it before the process has threads.

        Raises:
            NodeTaken: another worker on this host serves the node.
            NotConfined: ranks' accounts are not fit for it.
            ForkFailed: the forkserver does not come up.
        """
        self._state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = os.open(self._state_dir / "worker.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise NodeTaken(f"another worker on this host already serves node {self._node!r}") from error
        self._clear_away()
        if self._accounts is not None:
            check.check(self._accounts, self._settings, self._state_dir, self._environments, self._devices)
        seconds = self._forkserver.warm()
        log.info("forkserver_warm", seconds=round(seconds, 2))

    def _clear_away(self) -> None:
        """Sweep what dead supervisors have left, also of attempts that hold no device any more, which no beat names."""
        for attempt in left_behind(self._state_dir):
            log.warning(
                "supervisor_found_dead",
                attempt=str(attempt),
                last_words=_tail(AttemptDirectory.of(self._state_dir, attempt).log),
            )
            clear(self._state_dir, self._storage, attempt)

    def start(self) -> None:
        """Register the node and begin to look after it."""
        self._thread.start()
        self._scheduler.start()
        self._rounds.start()

    def drain(self, seconds: float | None, hurried: Callable[[], bool]) -> None:
        """Take no new work, and wait until nothing of this node is held by an attempt. After so many seconds, if there
        is a deadline, what still runs goes to other nodes. Returns sooner when `hurried`; attempts then go on."""
        if self._thread.ident is None:  # Celery was told to stop before it was ready
            return
        told = False
        while not told and not hurried():
            try:
                self._store.run(store.leave_node(self._node, deadline_seconds=seconds))
                told = True
            except (Unavailable, NotFound) as error:
                log.warning("drain_not_told", error=str(error))
                time.sleep(LOOK_SECONDS)
        since = self._beats
        log.info("worker_drains", deadline_seconds=seconds)
        # A beat may have been on its way when the node was told; the second one surely knows all that is held.
        while not hurried() and (self._beats < since + 2 or self._holding):
            self._beaten = -math.inf
            time.sleep(DRAIN_LOOK_SECONDS)
        log.info("worker_drained", left=[str(attempt) for attempt in self._holding])

    def stop(self, *, stop_attempts: bool) -> None:
        """Leave: no new work comes here. Attempts go on, unless `stop_attempts` sends their jobs back to
        the queue first."""
        self._stop.set()
        self._rounds.stop()
        if self._thread.ident is not None:  # Celery may be told to stop before it was ready
            self._thread.join(5)
            self._scheduler.stop()
        try:
            if stop_attempts:
                self._stop_attempts()
            self._store.run(store.take_down_node(self._node, None))
        except Unavailable as error:
            log.warning("left_without_telling", error=str(error))
        self._forkserver.close()

    def _stop_attempts(self) -> None:
        deadline = monotonic() + self._settings.checkpoint_seconds + STOP_ATTEMPTS_SECONDS
        while (live := self._store.run(store.stop_node(self._node))) and monotonic() < deadline:
            threading.Event().wait(0.1)
        if live:
            log.warning("attempts_still_live", count=live)

    def _run(self) -> None:
        registered = False
        while not self._stop.is_set():
            try:
                if self._unfit.is_set():
                    registered = False
                    self._recover()
                if not registered:
                    self._register()
                    registered, self._beaten = True, -math.inf
                if monotonic() - self._beaten >= self._settings.beat_seconds:
                    self._beaten = monotonic()
                    registered = self._beat()
                self._look_at_deadline()
                self._look_for_unheard()
                self._look_after_attempts()
                self._look_after_forkserver()
            except Unavailable as error:
                log.warning("control_redis_unavailable", error=str(error))
            except (NodeTaken, FormatMismatch, identity.StorageMismatch) as error:
                # Another worker has taken the node, or our files would be where nobody looks: this one must not go on.
                log.error("node_refused", why=str(error))
                os._exit(2)
            except Exception:
                log.exception("agent_failed")
            self._stop.wait(LOOK_SECONDS)

    def _register(self) -> None:
        identity.prove_storage(self._store, self._storage)
        info = NodeInfo(
            host=socket.gethostname(),
            cores=len(os.sched_getaffinity(0)),
            version=version("shardyard"),
            devices=self._devices,
            environments=tuple(sorted(self._environments)),
        )
        registered = self._store.run(
            store.register_node(
                self._node, self._instance, self._settings.pool, self._settings.node_address, info, home=self._home()
            )
        )
        if registered is not store.Registration.OK:
            raise NodeTaken(_REFUSALS[registered].format(node=self._node))
        log.info("node_registered", node=self._node, pool=self._settings.pool, devices=len(self._devices))

    def _home(self) -> str:
        """The nonce of the state directory: who has another one cannot prove deaths for this node."""
        path = self._state_dir / "home"
        if not path.exists():
            path.write_text(uuid.uuid4().hex)
        return path.read_text()

    def _recover(self) -> None:
        """Take no work until a new forkserver is up: a node that fails every start would use up every job."""
        self._store.run(store.take_down_node(self._node, None))
        try:
            log.info("forkserver_warm", seconds=round(self._forkserver.replace(), 2))
        except ForkFailed as error:
            log.error("forkserver_not_warm", why=str(error))
            self._stop.wait(RECOVER_SECONDS)
            raise
        self._unfit.clear()

    def _beat(self) -> bool:
        """Beat, and learn which attempts hold devices here. False: register again."""
        identity.check_storage(self._storage)  # before: without it this node must take no work
        beat = self._store.run(store.renew_node(self._node, self._instance, self._deadline()))
        if beat.standing is store.NodeStanding.REPLACED:
            raise NodeTaken(f"another worker registered as node {self._node!r}")
        self._holding = beat.holding
        self._leased_since = _since(self._leased_since, beat.holding, AttemptState.LEASED)
        self._ended_since = _since(self._ended_since, beat.holding, AttemptState.ENDED)
        self._take_deadline(beat.deadline)
        self._beats += 1
        return beat.standing is store.NodeStanding.OK

    def _deadline(self) -> store.DrainDeadline | None:
        """What is left of the time after which attempts here move to other nodes, because this one drains."""
        if self._drain is None:
            return None
        return store.DrainDeadline(self._drain, max(0.0, self._drain_ends - monotonic()))

    def _take_deadline(self, told: store.DrainDeadline | None) -> None:
        if told is None:
            self._drain = None
        elif told.drain != self._drain:
            self._drain, self._drain_ends = told.drain, monotonic() + told.seconds_left
            log.info("node_drains", seconds_left=round(told.seconds_left, 1))

    def _look_at_deadline(self) -> None:
        if self._drain is not None and monotonic() >= self._drain_ends:
            self._store.run(store.evict_node(self._node, self._drain))
            log.info("drain_deadline_over", attempts=[str(attempt) for attempt in self._holding])
            self._drain = None

    # -- attempts --------------------------------------------------------------------------------------

    def start_attempt(self, attempt: AttemptId) -> None:
        """Start a supervisor for an attempt that waits for one here. Harmless when repeated, late or wrong."""
        try:
            job = self._store.run(store.read_job(attempt.tenant, attempt.job))
        except NotFound:
            return
        except UnreadableSpec as error:
            self._refuse(attempt, Reason.REJECTED_BY_WORKER, error.message)
            return
        record = job.record
        if (record.attempt, record.state, record.node) != (attempt.number, State.STARTING, self._node):
            return
        try:
            identity.check_storage(self._storage)
        except (identity.StorageMismatch, OSError) as error:
            # The attempt would find no checkpoint, and leave its files where nobody looks. The agent ends of this, too.
            self._store.run(store.take_down_node(self._node, None))
            self._refuse(attempt, Reason.START_FAILED, str(error))
            return
        if max(record.leased) >= len(self._devices):
            why = f"device {max(record.leased)} is gone from node {self._node}"
            self._refuse(attempt, Reason.START_FAILED, why)
            return
        lease = tuple(self._devices[index] for index in record.leased)
        try:
            python = self._python(job.spec)
        except LookupError as error:
            self._refuse(attempt, Reason.REJECTED_BY_WORKER, str(error))
            return
        try:
            pid = self._forkserver.launch(
                self._launch(attempt, job.spec, lease, python),
                self._settings.control_url(),
                self._settings.telemetry(),
            )
        except ForkFailed as error:
            self._unfit.set()
            self._store.run(store.take_down_node(self._node, None))
            self._refuse(attempt, Reason.START_FAILED, str(error))
            return
        self._holding = {**self._holding, attempt: AttemptState.LEASED}
        log.info("supervisor_started", attempt=str(attempt), pid=pid)

    def _python(self, chosen: JobSpec) -> Path | None:
        """The Python in which ranks start cold; None: they are forked warm.

        Raises:
            LookupError: the spec names an environment that is not here.
        """
        if chosen.start == "warm":
            return None
        name = chosen.program.python if isinstance(chosen.program, ScriptProgram) else None
        return environments.choose(self._environments, name)

    def _launch(
        self, attempt: AttemptId, spec: JobSpec, lease: tuple[DeviceRecord, ...], python: Path | None
    ) -> AttemptConfig:
        distributed = spec.parallelism.strategy in DISTRIBUTED
        cores = len(os.sched_getaffinity(0))
        return AttemptConfig(
            attempt=attempt,
            spec=spec,
            node=self._node,
            address=self._settings.node_address,
            devices=lease,
            threads=1 if distributed else max(1, cores * len(lease) // len(self._devices)),
            state_dir=self._state_dir,
            storage=self._storage,
            lease_seconds=self._settings.lease_seconds,
            beat_seconds=self._settings.beat_seconds,
            grace_seconds=min(self._settings.grace_seconds, self._settings.lease_seconds / 12),
            checkpoint_seconds=self._settings.checkpoint_seconds,
            data_root=self._settings.data_root.expanduser() if self._settings.data_root is not None else None,
            python=python,
            account=self._accounts.of(device.index for device in lease) if self._accounts is not None else None,
            processes=self._settings.rank_processes,
        )

    def _refuse(self, attempt: AttemptId, reason: Reason, message: str) -> None:
        log.error("attempt_not_started", attempt=str(attempt), why=message)
        self._store.run(store.refuse(attempt, self._node, reason, message, backoff_seconds=backoff_seconds()))

    def _look_for_unheard(self) -> None:
        """Start attempts whose hints, sent again and again, have not reached this node: its consumer is deaf."""
        waited = {attempt: monotonic() - since for attempt, since in self._leased_since.items()}
        unheard = [attempt for attempt, seconds in waited.items() if seconds > UNHEARD_SECONDS]
        if not unheard:
            return
        log.error("hints_not_heard", attempts=[str(attempt) for attempt in unheard])
        self._reconnect()
        for attempt in unheard:
            del self._leased_since[attempt]
            self.start_attempt(attempt)

    def _look_after_attempts(self) -> None:
        """Find attempts here whose supervisor is dead, kill what is left of them, and free their devices."""
        for attempt, state in list(self._holding.items()):
            marks = AttemptDirectory.of(self._state_dir, attempt)
            if state is AttemptState.LEASED or not (is_supervisor_dead(marks) or self._is_stuck(attempt)):
                continue
            survivors = sweep_attempt(marks, attempt)
            working_dir.reclaim_storage(self._storage, attempt)
            pending_end.report_pending_end(self._store, attempt, marks.untold)
            lost = store.reap(
                attempt,
                Reason.SUPERVISOR_LOST,
                "its supervisor died",
                beat=None,
                backoff_seconds=backoff_seconds(),
            )
            if self._store.run(lost):
                log.warning("supervisor_lost", attempt=str(attempt), last_words=_tail(marks.log))
            bad = self._quarantined(survivors)
            if self._store.run(store.release(self._node, attempt, bad)) > 0 and not survivors:
                marks.remove()
            self._holding = {held: known for held, known in self._holding.items() if held != attempt}

    def _is_stuck(self, attempt: AttemptId) -> bool:
        """Whether an attempt ended long ago (its lease expired) and its supervisor, frozen perhaps, has not noticed."""
        since = self._ended_since.get(attempt)
        return since is not None and monotonic() - since > STUCK_LEASES * self._settings.lease_seconds

    def _look_after_forkserver(self) -> None:
        """A server that was killed is started again now, and not when a job waits for it."""
        if not self._forkserver.alive:
            log.warning("forkserver_lost")
            try:
                log.info("forkserver_warm", seconds=round(self._forkserver.warm(), 2))
            except ForkFailed as error:
                log.error("forkserver_not_warm", why=str(error))

    def _quarantined(self, survivors: dict[int, str]) -> dict[int, str]:
        if not survivors:
            return {}
        return {device.index: f"would not die: {culprits(survivors)}" for device in self._devices}


def _since(
    before: Mapping[AttemptId, float], holding: Mapping[AttemptId, AttemptState], state: AttemptState
) -> dict[AttemptId, float]:
    """Since when each attempt has been seen in `state`, by the monotonic clock."""
    return {attempt: before.get(attempt, monotonic()) for attempt, now in holding.items() if now is state}


def _tail(path: Path, size: int = 4096) -> str:
    """The end of a dead supervisor's log, which goes with its directory; "" when there is none."""
    try:
        return path.read_bytes()[-size:].decode(errors="replace")
    except OSError:
        return ""
