"""`python -m workers.node.worker_monitor`: keeps one node's worker running, and is fit to be a container's first
process.

    worker dies                  started again, after a pause that grows; running attempts do not notice
    SIGTERM, SIGINT              passed on to the worker, whose end is then ours; a second one kills it, or where it
                                 drains (--drain) is passed on as well, and has it leave at once
    any other child dies         reaped: supervisors outlive the worker and become children of this process

On a node of a block (--in-block) SIGUSR2 means SIGTERM, a repeat of either changes nothing, the end of --lifetime is as
SIGTERM, and a worker that leaves by itself in good order is not started again.

A worker that has never stayed up has wrong settings rather than bad luck. Trying it again would only
hide that, so after a few times its exit code is ours. Once it has stayed up, attempts may be running
that would die with this process, so it is never given up.

Signals are blocked and read one by one: no handler runs, and as first process of a container we get
even those that the kernel would not give to a first process without a handler.
"""

import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import structlog
from pydantic import ValidationError

from jobs.scheduling.celery_config import celery_config
from jobs.support.logging_config import configure_logging
from workers.node import environments, shutdown
from workers.node.block.allocation import allocation_of, read_settings
from workers.node.devices import discover_devices
from workers.node.shutdown import MAX_DRAIN_SECONDS, ShutdownOptions
from workers.runtime.process_control import adopt_orphans, ask_for_death_signal
from workers.sandbox import run_as

log = structlog.get_logger("workers.node.worker_monitor")

#: A worker that lived this long stayed up.
STEADY_SECONDS = 30.0
#: Quick deaths in a row before a worker that never stayed up is given up.
MAX_FALSE_STARTS = 5
FIRST_PAUSE_SECONDS = 0.5
MAX_PAUSE_SECONDS = 15.0
#: The worker brings its attempts back to the queue in this time, beside what they may take to save.
STOP_SECONDS = 30.0
#: A worker that drains leaves in this time when it is asked again.
HURRY_SECONDS = 10.0

_STOP_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT})
_BLOCK_SIGNALS = _STOP_SIGNALS | {signal.SIGUSR2}


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How patient a keeper is, in seconds."""

    steady_seconds: float = STEADY_SECONDS
    first_pause: float = FIRST_PAUSE_SECONDS
    max_pause: float = MAX_PAUSE_SECONDS
    stop_seconds: float = STOP_SECONDS  # from a stop until the worker is killed
    hurry_seconds: float = 0.0  # from a second stop, which is passed on too; 0: it kills the worker
    in_block: bool = False
    lifetime: float | None = None  # from the beginning until the worker is stopped

    @property
    def stop_signals(self) -> frozenset[signal.Signals]:
        return _BLOCK_SIGNALS if self.in_block else _STOP_SIGNALS

    @property
    def watched_signals(self) -> frozenset[signal.Signals]:
        return self.stop_signals | {signal.SIGCHLD}


def keep_running(command: Sequence[str], policy: RestartPolicy = RestartPolicy()) -> int:
    """Run `command` again and again until SIGTERM or SIGINT; its last exit code (128 + n: killed by signal n)."""
    signal.pthread_sigmask(signal.SIG_BLOCK, policy.watched_signals)
    adopt_orphans()
    false_starts, steady = 0, False
    over_at = None if policy.lifetime is None else time.monotonic() + policy.lifetime
    while True:
        began = time.monotonic()
        pid = _start_worker(command, policy)
        stopping, code = _wait_for_end(pid, policy, over_at)
        if stopping or (policy.in_block and code == 0):
            return code
        lived = time.monotonic() - began
        steady = steady or lived >= policy.steady_seconds
        false_starts = 0 if lived >= policy.steady_seconds else false_starts + 1
        if not steady and false_starts >= MAX_FALSE_STARTS:
            log.error("worker_does_not_start", times=false_starts, exit_code=code)
            return code or 1
        pause = min(policy.first_pause * 2 ** min(false_starts, 10), policy.max_pause)
        log.warning("worker_died", pid=pid, exit_code=code, lived_seconds=round(lived, 1), again_in_seconds=pause)
        if _stopped_within(pause, policy):
            return 0


def _start_worker(command: Sequence[str], policy: RestartPolicy) -> int:
    """Start the worker in a session of its own, so that a terminal's Ctrl-C reaches it once, through us. In a block
    SIGUSR2 ends neither it nor anything that it starts: some engines send it to all processes of a node."""
    keeper = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        ask_for_death_signal(signal.SIGTERM)
        if os.getppid() == keeper:  # it may have died before we asked
            if policy.in_block:
                signal.signal(signal.SIGUSR2, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, policy.watched_signals)
            os.execv(command[0], list(command))  # noqa: S606
    finally:
        os._exit(127)


def _wait_for_end(worker: int, policy: RestartPolicy, over_at: float | None) -> tuple[bool, int]:
    """Wait for the worker's end, and reap other children that die. At the time `over_at` it is stopped.

    Returns:
        whether we were asked to stop, and the worker's exit code.
    """
    patience = [policy.stop_seconds]  # one entry for each stop that is passed on
    patience += [policy.hurry_seconds] if policy.hurry_seconds else []
    deadline: float | None = None
    while True:
        ended = _reap_children()
        if worker in ended:
            return deadline is not None, _exit_code(ended[worker])
        until = over_at if deadline is None else deadline
        number = _next_signal(None if until is None else until - time.monotonic(), policy)
        is_asked = number in policy.stop_signals or (number is None and deadline is None)
        if is_asked and policy.in_block and deadline is not None:
            continue  # engines say it more than once
        if is_asked and patience:
            deadline = time.monotonic() + patience.pop(0)
            os.kill(worker, signal.SIGTERM)
        elif is_asked or number is None:  # asked again, or the time is over
            log.warning("worker_killed", pid=worker)
            os.kill(worker, signal.SIGKILL)
            return True, _exit_code(os.waitpid(worker, 0)[1])


def _stopped_within(seconds: float, policy: RestartPolicy) -> bool:
    """Wait, and reap; True as soon as we are asked to stop."""
    deadline = time.monotonic() + seconds
    while (number := _next_signal(deadline - time.monotonic(), policy)) is not None:
        _reap_children()
        if number in policy.stop_signals:
            return True
    return False


def _next_signal(seconds: float | None, policy: RestartPolicy) -> int | None:
    """The next signal; None after `seconds`."""
    if seconds is None:
        return signal.sigwait(policy.watched_signals)
    received = signal.sigtimedwait(policy.watched_signals, max(0.0, seconds))
    return None if received is None else received.si_signo


def _reap_children() -> dict[int, int]:
    """Wait statuses of all children that have ended, by process id."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = status


def _exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def policy_for(how: ShutdownOptions, checkpoint_seconds: float) -> RestartPolicy:
    """How patient to be with a worker that leaves in this way. Attempts that it stops may save their checkpoints."""
    if not how.drain:
        return RestartPolicy(stop_seconds=STOP_SECONDS + checkpoint_seconds)
    seconds = MAX_DRAIN_SECONDS if how.drain_seconds is None else how.drain_seconds
    return RestartPolicy(
        stop_seconds=seconds + checkpoint_seconds + STOP_SECONDS,
        hurry_seconds=HURRY_SECONDS,
        in_block=how.in_block,
        lifetime=how.lifetime,
    )


def main() -> int:
    how = shutdown.parse_options()
    configure_logging("INFO")
    try:
        settings = read_settings()
        configure_logging(settings.log_level)
        celery_config(settings)
        run_as.choose_accounts(settings.run_as, discover_devices(settings.devices, allocation_of(settings)))
        environments.find_environments(settings.environments)
    except (ValidationError, ValueError) as error:
        log.error("cannot_start", error=str(error))
        return 2
    # -P: a directory called `jobs` or `workers` in the working directory must not shadow ours.
    policy = policy_for(how, settings.checkpoint_seconds)
    return keep_running((sys.executable, "-P", "-m", "workers", *sys.argv[1:]), policy)


if __name__ == "__main__":
    sys.exit(main())
