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
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from time import monotonic

import structlog

from jobs import store
from jobs.model.device_history import AttemptMarks
from jobs.model.state import StateReason, SupervisorCommand
from jobs.scheduling.backoff import backoff_seconds
from jobs.store.client import RedisStore
from shardyard.contract.errors import Unavailable
from workers.rank import handle
from workers.rank.handle import RankHandle, await_death
from workers.runtime.launch import PRIVATE_STORE, AttemptConfig, AttemptDirectory
from workers.sandbox.box.box import Box, BoxFailed
from workers.supervisor import rendezvous, working_dir
from workers.supervisor.attempt_run import AttemptRun
from workers.supervisor.carriage import AttemptCarriage, open_carriage
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


@dataclass(frozen=True, slots=True)
class ForkedAttempt:
    """An attempt on this node whose ranks wait for their start. `port`: of the rendezvous, if this node serves it."""

    config: AttemptConfig
    directory: AttemptDirectory
    box: Box | None
    ranks: list[RankHandle]
    port: socket.socket | None


@dataclass(frozen=True, slots=True)
class ClaimedAttempt:
    """What an attempt has once it is claimed: its lease, the credentials, where its followers join, and how its files
    reach a storage that is not mounted."""

    lease: LeaseHolder
    credentials: SupervisorCredentials
    listener: LinkListener | None
    carriage: AttemptCarriage | None


def supervise(config: AttemptConfig, credentials_pipe: Connection, box: Box | BoxFailed | None) -> None:
    """Run one attempt to its end. Ranks are dead, and their devices released or quarantined, when it returns. `box`:
    the attempt's, or why it could not be made; None where this node gives its jobs none.

    Raises:
        BoxFailed: there is no box, where there should be one.
    """
    directory = own_attempt(config)
    attempt = fork_waiting_ranks(config, directory, box)
    claimed = claim_attempt(attempt, credentials_pipe)
    if claimed is None:
        return
    if config.part:
        follow_leader(attempt, claimed)
        return
    run = AttemptRun(
        attempt.config,
        claimed.lease,
        attempt.ranks,
        attempt.box,
        claimed.credentials.secrets,
        claimed.listener,
        claimed.carriage,
    )
    try:
        run.open(attempt.port, claimed.credentials.telemetry_url)
    except Exception as error:  # noqa: BLE001  (the job's status shows it)
        end_unstarted(attempt, claimed.lease, run, error)
    else:
        end_attempt(attempt, claimed.lease, run, run.monitor_ranks())


def main(config: AttemptConfig, credentials_pipe: Connection, box: Box | BoxFailed | None) -> None:
    """Entry point in the forked process, once it has a session. Leaves with `os._exit`: the forkserver's exit handlers
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


def fork_waiting_ranks(
    config: AttemptConfig, directory: AttemptDirectory, box: Box | BoxFailed | None
) -> ForkedAttempt:
    """Bind the rendezvous port, where the ranks need one from this node, and fork them.

    Raises:
        BoxFailed: there is no box, where there should be one.
    """
    if isinstance(box, BoxFailed):
        raise box
    config = box.begin(config) if box is not None else replace(config, network="host")
    if not config.is_distributed or config.part:
        return ForkedAttempt(config, directory, box, handle.fork_ranks(config, None, box), None)
    if box is not None and not box.has_own_network and not config.is_gang:
        box.make_directory(os.path.dirname(PRIVATE_STORE))
    port = (box.listen if box is not None and box.has_own_network else rendezvous.bind_port)(config.address)
    ranks = handle.fork_ranks(config, port.getsockname()[1], box)
    return ForkedAttempt(config, directory, box, ranks, port)


# -- 3: claim the attempt --------------------------------------------------------------------------------


def claim_attempt(attempt: ForkedAttempt, credentials_pipe: Connection) -> ClaimedAttempt | None:
    """Read the credentials, connect, and claim this node's part. None if that is refused: the ranks are dead then."""
    config = attempt.config
    credentials = read_credentials(credentials_pipe)
    control = RedisStore.from_url(credentials.control_url)
    lease = LeaseHolder(control, config.attempt, config.node, config.beat_seconds)
    listener = LinkListener(config.address, config.attempt) if config.is_gang and config.part == 0 else None
    lease.main_thread.on_overdue = partial(kill_ranks, attempt.ranks)
    lease.main_thread.expect_within(START_SECONDS)
    claim = lease.claim("" if listener is None else listener.endpoint)
    if claim.granted:
        return ClaimedAttempt(lease, credentials, listener, open_carriage(config, credentials.storage))
    log.info("claim_refused", why=claim.refused)
    if not discard_ranks(attempt):
        attempt.directory.remove()
    return None


def refuse_attempt(config: AttemptConfig, credentials_pipe: Connection, error: BaseException) -> None:
    """Write why an attempt cannot be started here, if it is not claimed yet. Its ranks die with this process."""
    if credentials_pipe.closed:
        return
    message = f"its supervisor could not start: {type(error).__name__}: {error}"
    refused = review_failed_start(config, AttemptOutcome(StateReason.START_FAILED, message))
    RedisStore.from_url(read_credentials(credentials_pipe).control_url).run(
        store.refuse(config.attempt, config.node, refused.reason, refused.message, backoff_seconds=backoff_seconds())
    )


# -- a part that follows ---------------------------------------------------------------------------------


def follow_leader(attempt: ForkedAttempt, claimed: ClaimedAttempt) -> None:
    """Run a part of an attempt to its end; what becomes of the attempt is the leader's to say."""
    credentials = claimed.credentials
    part = PartRun(
        attempt.config,
        claimed.lease,
        attempt.ranks,
        attempt.box,
        credentials.secrets,
        credentials.telemetry_url,
        claimed.carriage,
    )
    try:
        part.join()
        part.run_ranks()
    except (PartInterrupted, LinkFailure, Unavailable) as error:
        log.warning("part_ended_early", why=str(error))
        survivors = discard_ranks(attempt)
    else:
        survivors = sweep_processes(attempt)
    if part.close(survivors, devices_to_quarantine(attempt.config, survivors)) and not survivors:
        attempt.directory.remove()


# -- 5: end the attempt ----------------------------------------------------------------------------------


def end_attempt(attempt: ForkedAttempt, lease: LeaseHolder, run: AttemptRun, outcome: AttemptOutcome) -> None:
    """Sweep an attempt whose ranks are dead, complete its files, and write how it ended."""
    survivors = run.redact(sweep_processes(attempt))
    if run.is_carried:
        lease.hand_back_devices(devices_to_quarantine(attempt.config, survivors))
    outcome = run.close(outcome)  # before the end is written: a client that sees it finds the whole log and report
    marks = mark_devices(attempt.config, run.devices, run.device_times, outcome)
    deliver_end(attempt, lease, run, outcome, survivors, marks)
    run.dismiss_followers(outcome.reason)
    run.await_shipping()


def end_unstarted(attempt: ForkedAttempt, lease: LeaseHolder, run: AttemptRun, error: Exception) -> None:
    """End an attempt that could not be opened, whose ranks wait for a start that does not come."""
    survivors = discard_ranks(attempt)
    run.abort()
    if isinstance(error, NotJoined):
        abandon(attempt, lease, error, survivors)
    else:
        outcome = review_failed_start(attempt.config, outcome_of_failed_start(error))
        if run.is_carried:
            lease.hand_back_devices(devices_to_quarantine(attempt.config, survivors))
        deliver_end(attempt, lease, run, outcome, survivors)
    run.dismiss_followers("not started")


def abandon(attempt: ForkedAttempt, lease: LeaseHolder, why: NotJoined, survivors: dict[int, str]) -> None:
    """Send the attempt back to the queue at nobody's cost, since a part of it has not joined."""
    missing = next(iter(why.missing.values()))
    lease.abandon(missing, str(why), backoff_seconds(), devices_to_quarantine(attempt.config, survivors))
    if not survivors:
        attempt.directory.remove()


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


def discard_ranks(attempt: ForkedAttempt) -> dict[int, str]:
    """End ranks that must not run. Returns the processes that would not die, as `sweep_attempt` does."""
    kill_ranks(attempt.ranks)
    deadline = monotonic() + KILL_SECONDS
    while (alive := [rank for rank in attempt.ranks if not rank.reap()]) and monotonic() < deadline:
        await_death(alive, deadline - monotonic())
    survivors = sweep_processes(attempt)
    if attempt.config.part == 0:
        working_dir.reclaim_storage(attempt.config.storage, attempt.config.attempt)
    return survivors


def kill_ranks(ranks: list[RankHandle]) -> None:
    """Kill those that live; from any thread."""
    for rank in ranks:
        rank.kill(signal.SIGKILL)


def sweep_processes(attempt: ForkedAttempt) -> dict[int, str]:
    """Kill what is left of the attempt, with its box. Returns the processes that would not die."""
    if attempt.box is not None:
        attempt.box.destroy()
    survivors = sweep_attempt(attempt.directory, attempt.config.attempt)
    if attempt.box is not None and not survivors:
        attempt.box.release()
    return survivors


def deliver_end(
    attempt: ForkedAttempt,
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
        pending = attempt.directory.pending_end
        try:
            lease.leave_end(outcome, backoff_seconds(), measured, run.pending_checkpoint, pending)
        except OSError as error:
            log.error("end_not_kept", error=str(error))  # so it cannot wait
        else:
            log.warning("end_waits_for_files", reason=outcome.reason, message=outcome.message)
            return
    quarantine = devices_to_quarantine(attempt.config, survivors)
    end = outcome.reason, outcome.message, outcome.error, outcome.result
    if lease.finish(*end, backoff_seconds(), quarantine, measured, pending_file=attempt.directory.pending_end):
        log.info("attempt_over", reason=outcome.reason, message=outcome.message)
    else:
        log.warning("lease_lost", ending=outcome.reason, message=outcome.message)
        lease.release_devices(quarantine)
    if not survivors:
        attempt.directory.remove()


def devices_to_quarantine(config: AttemptConfig, survivors: dict[int, str]) -> dict[int, str]:
    """Why each device of the attempt cannot be given back: a process that does not die may still use any of them."""
    if not survivors:
        return {}
    log.error("devices_quarantined", survivors=survivors)
    reason = f"would not die after {config.attempt}: {describe_survivors(survivors)}"
    return {device.index: reason for device in config.devices}
