"""One attempt, from lease to end. Read `supervise` first: it is the whole story, in order.

A supervisor is a process of its own, forked from the warm forkserver, one per attempt. It belongs to
no worker: restarting or killing the Celery worker does not touch it. If it dies itself, the kernel
kills its ranks (parent-death signal), and the node agent finds its lock free, sweeps what is left,
and gives the job back to the queue.

The order of a start is fixed, because each step protects the next:

1. own session, own log, own lock; adopt orphans. No credential, no connection, no thread yet;
2. bind the rendezvous port, so that no other job can take it;
3. fork the ranks, which make what they can of the spec, and wait. Forking comes before threads and secrets, so ranks
   inherit neither;
4. read the credentials, connect, claim. A claim that is refused ends the ranks unstarted;
5. unpack the job's own code, serve the rendezvous store, start the telemetry, and tell the ranks to go; before the
   telemetry where the job brings no code and saves nothing, since there is nothing more to tell them.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import signal
import socket
import sys
import threading
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from time import monotonic
from typing import Any

import structlog

from jobs import store
from jobs.files import paths
from jobs.model.catalogue import rows_of
from jobs.model.spec import JobSpec, RecipeProgram
from jobs.model.state import Order, Reason
from jobs.protocol.records import Note
from jobs.scheduling.scheduler import backoff_seconds
from jobs.splits.plan import predict_splits
from jobs.store.client import RedisStore
from jobs.support.logging_config import configure
from shardyard.contract.errors import Unavailable
from workers.rank import handle
from workers.rank.handle import RankHandle, await_death
from workers.rank.process import name_process
from workers.runtime.launch import AttemptConfig, AttemptDirectory, StartMessage, WorkingDirectory
from workers.supervisor import descendants, working_dir
from workers.supervisor.checkpoints import directories, resume, writer
from workers.supervisor.checkpoints.resume import StartInterrupted
from workers.supervisor.checkpoints.writer import AttemptCheckpoints, CheckpointWriter
from workers.supervisor.lease import LeaseHolder
from workers.supervisor.outcome import LEASE_LOST, AttemptOutcome
from workers.supervisor.process_status import read_start_time
from workers.supervisor.process_sweep import sweep_attempt
from workers.supervisor.rank_monitor import RankMonitor
from workers.supervisor.report.aggregator import LeasedDevice
from workers.supervisor.report.recipe_aggregator import RecipeAggregator
from workers.supervisor.report.script_aggregator import ScriptAggregator
from workers.supervisor.telemetry.log_relay import Relay
from workers.supervisor.telemetry.publisher import TelemetryPublisher
from workers.supervisor.telemetry.shipper import Shipper
from workers.supervisor.working_dir import BundleUnusable

log = structlog.get_logger(__name__)

PR_SET_CHILD_SUBREAPER = 36
CREDENTIALS_SECONDS = 10.0
KILL_SECONDS = 5.0
#: How an attempt ends that is told to before its ranks may go.
_INTERRUPTED = {
    Order.CANCEL: AttemptOutcome(Reason.CANCELLED_BY_USER, "cancelled before it started"),
    Order.STOP: AttemptOutcome(Reason.SERVICE_STOPPED, "the service was stopped"),
    Order.LOST: LEASE_LOST,
}
#: How long the end of a successful attempt waits for a disk that refuses its report, and how often that is tried.
DISK_SECONDS = 30.0
DISK_RETRY_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Credentials:
    """What only the supervisor may know, never its ranks."""

    control_url: str
    telemetry_url: str


def supervise(launch: AttemptConfig, credentials: Connection) -> None:
    """Run one attempt to its end. Ranks are dead, and their devices released or quarantined, when it returns."""
    marks = AttemptDirectory.of(launch.state_dir, launch.attempt)
    _take(marks, launch)
    rendezvous = _listen(launch.address) if launch.distributed else None
    port = rendezvous.getsockname()[1] if rendezvous is not None else None
    ranks = handle.fork_ranks(launch, port)

    spec = launch.spec
    secrets = _read(credentials)
    lifeline = LeaseHolder(RedisStore.from_url(secrets.control_url), launch.attempt, launch.node, launch.beat_seconds)
    if not _claim(lifeline):
        if not _discard(ranks, marks, launch):
            marks.remove()
        return

    publisher: TelemetryPublisher | None = None
    try:
        place = working_dir.prepare_workplace(launch, spec)
        meeting = _serve_store(launch, rendezvous) if rendezvous is not None else None
        told_more = place is not None or writer.checkpoint_settings(spec) is not None
        if not told_more:  # the ranks need not wait for the files that their records go to
            _go(ranks, StartMessage(None))
        publisher = _open_publisher(launch, spec, secrets)
        listener = _listen_to_children(place, publisher) if place is not None else None
        if place is not None:
            working_dir.hand_to_ranks(launch, place)
            place = replace(place, resume=resume.resume_script(launch, spec, lifeline, publisher))
        saving = _prepare_saving(launch, spec, lifeline, publisher)
    except Exception as error:  # noqa: BLE001  (told to whoever asks for the job)
        survivors = _discard(ranks, marks, launch)
        if publisher is not None:
            publisher.seal()
        _tell(lifeline, launch, marks, _unstarted(error), survivors)
        return
    requirements = place is not None and place.requirements
    monitor = RankMonitor(
        launch, ranks, lifeline, publisher, requirements=requirements, listener=listener, checkpoints=saving
    )
    if told_more:
        _go(ranks, StartMessage(place) if saving is None else StartMessage(place, saving.place.drafts, saving.resume))
    ending = monitor.run()
    del meeting

    survivors = sweep_attempt(marks, launch.attempt)
    if saving is not None:
        _finish_saving(saving, publisher)  # the ranks' files go with the rest of the attempt
    working_dir.close_attempt(launch.storage, launch.attempt)
    if saving is not None and ending.reason is Reason.COMPLETED:
        _publish_weights(saving)
    ending = _seal(publisher, lifeline, ending)  # whoever sees the end finds the whole log and the final report
    _tell(lifeline, launch, marks, ending, survivors)
    publisher.close()


def main(launch: AttemptConfig, credentials: Connection) -> None:
    """Entry point in the forked process, once that is a leader. Leaves with `os._exit`: the forkserver's exit handlers
    are not ours."""
    code = 1
    try:
        supervise(launch, credentials)
        code = 0
    except Unavailable as error:
        log.error("gave_up_on_redis", error=str(error))
    except BlockingIOError:
        log.info("supervised_already")  # a hint came twice; the other supervisor holds the lock
    except BaseException as error:
        log.exception("supervisor_failed")
        with contextlib.suppress(Exception):
            _refuse(launch, credentials, error)
    finally:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(code)  # ranks that are left die by their parent-death signal


# -- 1: becoming a process of its own ----------------------------------------------------------------


def become_leader(keep: int) -> None:
    """What needs no attempt: own session, orphans adopted, all descriptors closed but `keep` and the usual three."""
    os.setsid()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # its orders come through Redis; a stray Ctrl-C ends nothing
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    _close_all_but(keep)
    configure("INFO", libraries="WARNING")  # which is what ranks begin with


def _take(marks: AttemptDirectory, launch: AttemptConfig) -> None:
    """Open the attempt's log and lock."""
    name_process("sy-supervisor")
    marks.create()
    null, output = os.open(os.devnull, os.O_RDONLY), os.open(marks.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for source, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(output)
    structlog.contextvars.bind_contextvars(attempt=str(launch.attempt))
    lock = os.open(marks.supervisor_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held by this process alone, until it dies
    marks.session.write_text(f"{os.getpid()} {read_start_time(os.getpid())}")


def _close_all_but(keep: int) -> None:
    for fd in [int(name) for name in os.listdir("/proc/self/fd")]:
        if fd > 2 and fd != keep:
            with contextlib.suppress(OSError):
                os.close(fd)


# -- 2: rendezvous -----------------------------------------------------------------------------------


def _listen(address: str) -> socket.socket:
    """A listening socket on a free port of the node's address, and no other: by itself the store would
    listen on every interface."""
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    listener.bind((address, 0))
    listener.listen(1024)
    return listener


def _serve_store(launch: AttemptConfig, listener: socket.socket) -> object:
    """The store through which the ranks find each other, on the socket that was bound before."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    host, port = listener.getsockname()[:2]
    return TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())


# -- 4: claim ----------------------------------------------------------------------------------------


def _read(credentials: Connection) -> Credentials:
    """The credentials from the worker's pipe.

    Raises:
        EOFError: the worker died before it wrote them.
    """
    if not credentials.poll(CREDENTIALS_SECONDS):
        raise EOFError("no credentials came")
    secrets = Credentials(**json.loads(credentials.recv_bytes()))
    credentials.close()
    return secrets


def _claim(lifeline: LeaseHolder) -> bool:
    claim = lifeline.claim()
    if not claim.granted:
        log.info("claim_refused", why=claim.refused)
    return claim.granted


def _refuse(launch: AttemptConfig, credentials: Connection, error: BaseException) -> None:
    """Say why an attempt cannot be started here, if it is not claimed yet: the ranks die with this process."""
    if credentials.closed:
        return
    message = f"its supervisor could not start: {type(error).__name__}: {error}"
    RedisStore.from_url(_read(credentials).control_url).run(
        store.refuse(launch.attempt, launch.node, Reason.START_FAILED, message, backoff_seconds=backoff_seconds())
    )


def _unstarted(error: Exception) -> AttemptOutcome:
    """Why ranks that wait may never go: their code cannot be had, or the service has failed."""
    if isinstance(error, BundleUnusable):
        return AttemptOutcome(Reason.REJECTED_BY_WORKER, str(error))
    if isinstance(error, StartInterrupted):
        return _INTERRUPTED[error.order]
    log.error("start_failed", exc_info=error)
    return AttemptOutcome(Reason.START_FAILED, f"the supervisor cannot start its ranks: {error}")


def _go(ranks: list[RankHandle], orders: StartMessage) -> None:
    for rank in ranks:
        rank.go(orders)


def _discard(ranks: list[RankHandle], marks: AttemptDirectory, launch: AttemptConfig) -> dict[int, str]:
    """End ranks of an attempt that comes to nothing. Returns what would not die, as `sweep` does."""
    for rank in ranks:
        rank.kill(signal.SIGKILL)
    deadline = monotonic() + KILL_SECONDS
    while (alive := [rank for rank in ranks if not rank.reap()]) and monotonic() < deadline:
        await_death(alive, deadline - monotonic())
    return _clear(marks, launch)


def _clear(marks: AttemptDirectory, launch: AttemptConfig) -> dict[int, str]:
    """Prove that the attempt's processes are dead, and take back what they had. Returns what `sweep` does."""
    survivors = sweep_attempt(marks, launch.attempt)
    working_dir.close_attempt(launch.storage, launch.attempt)
    return survivors


# -- checkpoints -------------------------------------------------------------------------------------


def _prepare_saving(
    launch: AttemptConfig, spec: JobSpec, lifeline: LeaseHolder, publisher: TelemetryPublisher
) -> AttemptCheckpoints | None:
    """Make room for checkpoints, where the job asks for them, and choose the one to begin with.

    Raises:
        Interrupted, NoAnswer, Unavailable, OSError: the ranks cannot be started.
    """
    wanted = writer.checkpoint_settings(spec)
    if wanted is None:
        return None
    place = directories.directories_of(launch)
    directories.prepare_directories(launch, place)
    found = resume.choose_checkpoint(place, lifeline, publisher)
    if found is not None:
        publisher.resume_from(found)
    keeper = CheckpointWriter(launch, place, wanted.keep, lifeline, publisher.dump_state, found)
    readable = directories.make_readable(launch, place, found) if found is not None else None
    return AttemptCheckpoints(wanted, place, keeper, found, readable)


def _finish_saving(saving: AttemptCheckpoints, publisher: TelemetryPublisher) -> None:
    saving.keeper.close()
    saving.tell(publisher)


def _publish_weights(saving: AttemptCheckpoints) -> None:
    final = saving.keeper.final  # weights of an earlier step would be taken for the last ones
    if final is not None:
        try:
            directories.publish_weights(saving.place, final)
        except OSError as error:
            log.warning("weights_not_published", error=str(error))


# -- 5: telemetry ------------------------------------------------------------------------------------


def _listen_to_children(place: WorkingDirectory, publisher: TelemetryPublisher) -> socket.socket | None:
    """Where processes that the job's own code starts can report; without it, the job runs all the same."""
    try:
        return descendants.open_listener(place.socket)
    except OSError as error:  # the system's temporary directory may have a name that is too long for a socket
        publisher.add_record(
            0, Note(descendants.NOTE_FIELD, f"processes that the script starts cannot be followed: {error}")
        )
        return None


def _open_publisher(launch: AttemptConfig, spec: JobSpec, secrets: Credentials) -> TelemetryPublisher:
    attempt = launch.attempt
    directory = paths.attempt_dir(launch.storage, attempt.tenant, attempt.job, attempt.number)
    shipper = Shipper(secrets.telemetry_url, attempt.tenant, attempt.job, attempt.number)
    relay = Relay(directory, len(launch.devices), shipper)
    prediction = predict_splits(spec, *rows_of(spec))
    lease = [
        LeasedDevice(index, device.id, launch.node, device.kind, device.name, device.memory_total_bytes)
        for index, device in enumerate(launch.devices)
    ]
    kind = RecipeAggregator if isinstance(spec.program, RecipeProgram) else ScriptAggregator
    aggregator = kind(attempt.job, attempt.number, spec, lease, prediction)
    return TelemetryPublisher(directory, attempt, relay, shipper, aggregator, spec)


# -- the end -----------------------------------------------------------------------------------------


def _seal(publisher: TelemetryPublisher, lifeline: LeaseHolder, ending: AttemptOutcome) -> AttemptOutcome:
    """Complete the files. An attempt that has succeeded waits a while for a disk that is full, unless it is wanted to
    end; without its report it has failed, so that nobody takes half of what it was to leave for all of it."""
    completed = ending.reason is Reason.COMPLETED
    deadline = monotonic() + (DISK_SECONDS if completed else 0)
    while (why := publisher.write_final_report()) and monotonic() < deadline and lifeline.order is Order.GO:
        threading.Event().wait(DISK_RETRY_SECONDS)
    publisher.seal()
    if not why or not completed:
        return ending
    message = f"every rank ended well, but the storage directory refused the report: {why}"
    return AttemptOutcome(Reason.STORAGE_FAILED, message, result=ending.result)


def _tell(
    lifeline: LeaseHolder,
    launch: AttemptConfig,
    marks: AttemptDirectory,
    ending: AttemptOutcome,
    survivors: dict[int, str],
) -> None:
    """Write the end, and give the devices back: but for `survivors`, every process of the attempt is proven dead."""
    bad = _quarantine(launch, survivors)
    end = ending.reason, ending.message, ending.error, ending.result
    if lifeline.finish(*end, backoff_seconds(), bad, keep=marks.untold):
        log.info("attempt_over", reason=ending.reason, message=ending.message)
    else:
        log.warning("lease_lost", ending=ending.reason, message=ending.message)
        lifeline.release_devices(bad)
    if not survivors:
        marks.remove()


def _quarantine(launch: AttemptConfig, survivors: dict[int, str]) -> dict[int, str]:
    """A process that will not die may still use any of the attempt's devices."""
    if not survivors:
        return {}
    who: Any = "; ".join(f"process {pid} ({command})" for pid, command in survivors.items())
    log.error("devices_quarantined", survivors=survivors)
    return {device.index: f"would not die after {launch.attempt}: {who}" for device in launch.devices}
