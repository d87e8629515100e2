"""One attempt, from lease to end. Read `supervise` first: it is the whole story, in five stages.

A supervisor is a process of its own, forked from the warm forkserver, one per attempt. It belongs to no worker:
restarting or killing the Celery worker does not touch it. If it dies itself, the kernel kills its ranks (parent-death
signal), and the node agent finds its lock free, sweeps what is left, and gives the job back to the queue.

The order of the stages is fixed, because each one protects the next:

1. own the attempt: own session, log and lock; adopt orphans. No credential, no connection and no thread yet;
2. fork the ranks, in a box that was made ahead: the rendezvous port is bound before them, so that no other job can
   take it. They build what they can from the spec, and wait. Forking comes before threads and credentials, so ranks
   inherit neither;
3. claim the attempt: read the credentials, connect, claim. A claim that is refused ends the ranks unstarted;
4. run it: unpack the job's own code, serve the rendezvous store, open the telemetry and the checkpoints, start the
   ranks, and monitor them until they are dead;
5. end it: sweep what is left of its processes, complete its files, write how it ended and give the devices back. Where
   files are carried, the devices are given back first, and the end waits until the files are where they belong.
"""

import contextlib
import os
import signal
import socket
import sys
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from time import monotonic

import structlog

from jobs import store
from jobs.model.device_history import AttemptMarks
from jobs.model.state import StateReason, SupervisorCommand
from jobs.scheduling.scheduler import backoff_seconds
from jobs.store.client import RedisStore
from shardyard.contract.errors import Unavailable
from workers.rank import handle
from workers.rank.handle import RankHandle, await_death
from workers.runtime.launch import PRIVATE_STORE, AttemptConfig, AttemptDirectory
from workers.sandbox.box.box import Box, BoxFailed
from workers.supervisor import rendezvous, working_dir
from workers.supervisor.attempt_run import AttemptRun
from workers.supervisor.carriage import open_carriage
from workers.supervisor.checkpoints.resume import StartInterrupted
from workers.supervisor.ending.device_marks import mark_devices
from workers.supervisor.ending.outcome import LEASE_LOST, AttemptOutcome
from workers.supervisor.gang.followers import FollowerGone
from workers.supervisor.gang.outcomes import outcome_of_failed_part
from workers.supervisor.gang.part_run import PartInterrupted, PartRun
from workers.supervisor.lease import LeaseHolder
from workers.supervisor.limits.full_disk import review_failed_start
from workers.supervisor.link.admission import LinkListener
from workers.supervisor.link.errors import LinkFailure, NotJoined
from workers.supervisor.main_thread_watch import START_SECONDS
from workers.supervisor.process_setup import SupervisorCredentials, own_attempt, read_credentials
from workers.supervisor.process_sweep import describe_survivors, sweep_attempt
from workers.supervisor.working_dir import BundleUnusable

log = structlog.get_logger(__name__)

#: How long ranks that never started may take to die of SIGKILL, before the sweep looks for them.
KILL_SECONDS = 5.0
#: The outcome of an attempt that is interrupted before its ranks have started.
_INTERRUPTED = {
    SupervisorCommand.CANCEL: AttemptOutcome(StateReason.CANCELLED_BY_USER, "cancelled before it started"),
    SupervisorCommand.STOP: AttemptOutcome(StateReason.SERVICE_STOPPED, "the service was stopped"),
    SupervisorCommand.LOST: LEASE_LOST,
}


def supervise(config: AttemptConfig, credentials_pipe: Connection, box: Box | BoxFailed | None) -> None:
    """Run one attempt to its end. Ranks are dead, and their devices released or quarantined, when it returns. `box`:
    the attempt's, or why it could not be made; None where this node gives its jobs none.

    Raises:
        BoxFailed: there is no box, where there should be one.
    """
    directory = own_attempt(config)
    if isinstance(box, BoxFailed):
        raise box
    config = box.begin(config) if box is not None else replace(config, network="host")
    port, ranks = fork_waiting_ranks(config, box)
    credentials, lease = open_lease(config, credentials_pipe)
    listener = LinkListener(config.address, config.attempt) if config.is_gang and config.part == 0 else None
    lease.main_thread.on_overdue = partial(kill_ranks, ranks)
    lease.main_thread.expect_within(START_SECONDS)
    if not claim_attempt(lease, listener):
        if not discard_ranks(config, directory, ranks, box):
            directory.remove()
        return
    carriage = open_carriage(config, credentials.storage)
    if config.part:
        part = PartRun(config, lease, ranks, box, credentials.secrets, credentials.telemetry_url, carriage)
        follow_leader(config, directory, part, ranks, box)
        return

    run = AttemptRun(config, lease, ranks, box, credentials.secrets, listener, carriage)
    try:
        run.open(port, credentials.telemetry_url)
    except Exception as error:  # noqa: BLE001  (the job's status shows it)
        survivors = discard_ranks(config, directory, ranks, box)
        run.abort()
        if isinstance(error, NotJoined):
            abandon(config, directory, lease, error, survivors)
        else:
            outcome = review_failed_start(config, outcome_of_failed_start(error))
            if carriage is not None:
                lease.hand_back_devices(devices_to_quarantine(config, survivors))
            end_attempt(config, directory, lease, run, outcome, survivors)
        run.dismiss_followers("not started")
        return
    outcome = run.monitor_ranks()

    survivors = run.clean(sweep_processes(config, directory, box))
    if carriage is not None:
        lease.hand_back_devices(devices_to_quarantine(config, survivors))
    outcome = run.close(outcome)  # before the end is written: a client that sees it finds the whole log and report
    marks = mark_devices(config, run.devices, run.device_times, outcome)
    end_attempt(config, directory, lease, run, outcome, survivors, marks)
    run.dismiss_followers(outcome.reason)
    run.await_shipping()


def main(config: AttemptConfig, credentials_pipe: Connection, box: Box | BoxFailed | None) -> None:
    """Entry point in the forked process, once that is a leader. Leaves with `os._exit`: the forkserver's exit handlers
    are not ours."""
    code = 1
    try:
        supervise(config, credentials_pipe, box)
        code = 0
    except Unavailable as error:
        log.error("gave_up_on_redis", error=str(error))
    except BlockingIOError:
        log.info("supervised_already")  # a hint came twice; the other supervisor holds the lock
    except BaseException as error:
        log.exception("supervisor_failed")
        with contextlib.suppress(Exception):
            refuse_attempt(config, credentials_pipe, error)
    finally:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(code)  # ranks that are left die by their parent-death signal


# -- 2: fork the ranks -----------------------------------------------------------------------------------


def fork_waiting_ranks(config: AttemptConfig, box: Box | None) -> tuple[socket.socket | None, list[RankHandle]]:
    """Bind the rendezvous port, where the ranks need one from this node, and fork them."""
    if not config.is_distributed or config.part:
        return None, handle.fork_ranks(config, None, box)
    if box is not None and not box.has_own_network and not config.is_gang:
        box.make_directory(os.path.dirname(PRIVATE_STORE))
    port = (box.listen if box is not None and box.has_own_network else rendezvous.bind_port)(config.address)
    return port, handle.fork_ranks(config, port.getsockname()[1], box)


# -- 3: claim the attempt --------------------------------------------------------------------------------


def open_lease(config: AttemptConfig, credentials_pipe: Connection) -> tuple[SupervisorCredentials, LeaseHolder]:
    credentials = read_credentials(credentials_pipe)
    control = RedisStore.from_url(credentials.control_url)
    return credentials, LeaseHolder(control, config.attempt, config.node, config.beat_seconds)


def claim_attempt(lease: LeaseHolder, listener: LinkListener | None) -> bool:
    claim = lease.claim("" if listener is None else listener.endpoint)
    if not claim.granted:
        log.info("claim_refused", why=claim.refused)
    return claim.granted


def refuse_attempt(config: AttemptConfig, credentials_pipe: Connection, error: BaseException) -> None:
    """Write why an attempt cannot be started here, if it is not claimed yet. Its ranks die with this process."""
    if credentials_pipe.closed:
        return
    message = f"its supervisor could not start: {type(error).__name__}: {error}"
    refused = review_failed_start(config, AttemptOutcome(StateReason.START_FAILED, message))
    RedisStore.from_url(read_credentials(credentials_pipe).control_url).run(
        store.refuse(config.attempt, config.node, refused.reason, refused.message, backoff_seconds=backoff_seconds())
    )


# -- 4: a part that does not lead; an attempt that does not start ----------------------------------------


def follow_leader(
    config: AttemptConfig, directory: AttemptDirectory, part: PartRun, ranks: list[RankHandle], box: Box | None
) -> None:
    """Run a part of an attempt to its end; what becomes of the attempt is the leader's to say."""
    try:
        part.join()
        part.run_ranks()
    except (PartInterrupted, LinkFailure, Unavailable) as error:
        log.warning("part_ended_early", why=str(error))
        survivors = discard_ranks(config, directory, ranks, box)
    else:
        survivors = sweep_processes(config, directory, box)
    if part.close(survivors, devices_to_quarantine(config, survivors)) and not survivors:
        directory.remove()


def abandon(
    config: AttemptConfig, directory: AttemptDirectory, lease: LeaseHolder, why: NotJoined, survivors: dict[int, str]
) -> None:
    """Send the attempt back to the queue at nobody's cost, since a part of it has not joined."""
    missing = next(iter(why.missing.values()))
    lease.abandon(missing, str(why), backoff_seconds(), devices_to_quarantine(config, survivors))
    if not survivors:
        directory.remove()


def outcome_of_failed_start(error: Exception) -> AttemptOutcome:
    if isinstance(error, BundleUnusable):
        return AttemptOutcome(StateReason.REJECTED_BY_WORKER, str(error))
    if isinstance(error, StartInterrupted):
        return _INTERRUPTED[error.command]
    if isinstance(error, FollowerGone):
        lost = AttemptOutcome(StateReason.SUPERVISOR_LOST, str(error))
        return lost if error.failure is None else outcome_of_failed_part(error.failure)
    log.error("start_failed", exc_info=error)
    return AttemptOutcome(StateReason.START_FAILED, f"the supervisor cannot start its ranks: {error}")


def discard_ranks(
    config: AttemptConfig, directory: AttemptDirectory, ranks: list[RankHandle], box: Box | None
) -> dict[int, str]:
    """End ranks that must not run. Returns the processes that would not die, as `sweep_attempt` does."""
    kill_ranks(ranks)
    deadline = monotonic() + KILL_SECONDS
    while (alive := [rank for rank in ranks if not rank.reap()]) and monotonic() < deadline:
        await_death(alive, deadline - monotonic())
    survivors = sweep_processes(config, directory, box)
    if config.part == 0:
        working_dir.reclaim_storage(config.storage, config.attempt)
    return survivors


def kill_ranks(ranks: list[RankHandle]) -> None:
    """Kill those that live; from any thread."""
    for rank in ranks:
        rank.kill(signal.SIGKILL)


def sweep_processes(config: AttemptConfig, directory: AttemptDirectory, box: Box | None) -> dict[int, str]:
    """Kill what is left of the attempt, with its box. Returns the processes that would not die."""
    if box is not None:
        box.destroy()
    survivors = sweep_attempt(directory, config.attempt)
    if box is not None and not survivors:
        box.release()
    return survivors


# -- 5: end the attempt ----------------------------------------------------------------------------------


def end_attempt(
    config: AttemptConfig,
    directory: AttemptDirectory,
    lease: LeaseHolder,
    run: AttemptRun,
    outcome: AttemptOutcome,
    survivors: dict[int, str],
    measured: AttemptMarks | None = None,
) -> None:
    """Write how the attempt ended, as soon as its files are where others read them, and give the devices back: all its
    processes but `survivors` are proven dead. Where that takes long, leave both to the node's agent. `measured` goes
    into the devices' history."""
    if not run.is_delivered(outcome):
        try:
            lease.leave_end(outcome, backoff_seconds(), measured, run.pending_checkpoint, directory.pending_end)
        except OSError as error:
            log.error("end_not_kept", error=str(error))  # so it cannot wait
        else:
            log.warning("end_waits_for_files", reason=outcome.reason, message=outcome.message)
            return
    quarantine = devices_to_quarantine(config, survivors)
    end = outcome.reason, outcome.message, outcome.error, outcome.result
    if lease.finish(*end, backoff_seconds(), quarantine, measured, pending_file=directory.pending_end):
        log.info("attempt_over", reason=outcome.reason, message=outcome.message)
    else:
        log.warning("lease_lost", ending=outcome.reason, message=outcome.message)
        lease.release_devices(quarantine)
    if not survivors:
        directory.remove()


def devices_to_quarantine(config: AttemptConfig, survivors: dict[int, str]) -> dict[int, str]:
    """Why each device of the attempt cannot be given back: a process that does not die may still use any of them."""
    if not survivors:
        return {}
    log.error("devices_quarantined", survivors=survivors)
    reason = f"would not die after {config.attempt}: {describe_survivors(survivors)}"
    return {device.index: reason for device in config.devices}
