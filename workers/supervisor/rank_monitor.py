"""The loop of a supervisor: reads its ranks until the last one is dead, and says how the attempt ended.

Single-threaded: one selector over the ranks' pipes and pidfds, and a clock. What is read goes to the
relay (logs, metrics), the report's aggregator and the progress. Whatever ends one rank ends the
others: SIGTERM, a grace, SIGKILL.
"""

import array
import fcntl
import os
import selectors
import signal
import socket
import termios
import time
from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from time import monotonic

import structlog

from jobs.model.spec import JobSpec, ScriptProgram
from jobs.model.state import Order, Reason
from jobs.protocol.records import (
    Began,
    Loaded,
    Note,
    Outcome,
    Paused,
    Progress,
    RankUp,
    Result,
    Returned,
    Saved,
    SingleRecord,
    StepBatch,
    batch_steps,
)
from workers.rank.handle import OutputPipe, RankHandle, await_death, has_working_children
from workers.runtime.launch import AttemptConfig
from workers.runtime.stacks import STACKS_SIGNAL
from workers.supervisor import error_hints
from workers.supervisor import outcome as verdict
from workers.supervisor.checkpoints.coordinator import CheckpointCoordinator
from workers.supervisor.checkpoints.writer import AttemptCheckpoints
from workers.supervisor.descendants import NOTE_FIELD, DescendantServer, seconds_of_descendants
from workers.supervisor.lease import LeaseHolder
from workers.supervisor.oom import count_oom_kills
from workers.supervisor.outcome import LEASE_LOST, AttemptOutcome
from workers.supervisor.stall_detector import StallDetector, is_dying, is_stopped
from workers.supervisor.telemetry.publisher import TelemetryPublisher

log = structlog.get_logger(__name__)

READ_BYTES = 256 * 1024
#: Phases whose steps are the job's progress.
MAIN_PHASES = ("train", "forward")
#: Where a rank itself did nothing: what the programs that it started may compute without a word of it in the report.
UNSEEN_SECONDS = 1.0
UNSEEN = (
    "no forward and no step was seen, while programs that the script started computed for {:.1f} s: if they trained, "
    "they ran with an environment of their own or in another Python, where the probe does not follow"
)
#: The longest sleep of the loop: how late an order, a deadline or a lost lease may be noticed.
TICK_SECONDS = 0.1
#: A rank that was told to leave and is still there after this is killed; the attempt has succeeded all the same.
LEAVE_SECONDS = 2.0
KILL_SECONDS = 10.0
#: A rank whose work is done is killed when its exit handlers take longer, or its threads once all others are done:
#: it hangs. Python itself would wait for ever. Processes that it has started are work, for which there is no limit.
TEARDOWN_SECONDS = 120.0
#: The same where its program has failed, for which the other ranks wait.
FAILED_TEARDOWN_SECONDS = 10.0
#: How much of the end of a rank's stderr is looked at for its last line.
LAST_WORDS_BYTES = 2048
#: A rank must be up this soon after it was told to go.
START_SECONDS = 120.0
#: What a rank cannot send without getting on.
SIGNS = (StepBatch, Began, Loaded, Progress, Saved)
#: How long the stacks of a run that has stalled may take to arrive.
STACKS_SECONDS = 1.0
#: The death of a rank that is dying may show this much later than the broken connection that it gave its peers.
DEATH_SECONDS = 2.0
#: Share of the lease without a beat after which the supervisor ends its own ranks.
FENCE = 0.75


class _Phase(Enum):
    WORKING = auto()
    LEAVING = auto()  # every rank has reported success and was told to leave
    ENDING = auto()  # SIGTERM was sent
    KILLING = auto()  # SIGKILL was sent


class Watch:
    def __init__(
        self,
        launch: AttemptConfig,
        spec: JobSpec,
        ranks: list[RankHandle],
        lifeline: LeaseHolder,
        out: TelemetryPublisher,
        *,
        requirements: bool = False,
        listener: socket.socket | None = None,
        saving: AttemptCheckpoints | None = None,
    ) -> None:
        """`requirements`: whether the job's bundle names packages that it needs. `listener`: where processes that
        descend from the ranks report; it is closed in the end. `saving`: where the job asks for checkpoints."""
        self._requirements = requirements
        self._launch = launch
        self._spec = spec
        self._ranks = ranks
        self._lifeline = lifeline
        self._out = out
        self._phase = _Phase.WORKING
        self._phase_ends = monotonic() + START_SECONDS
        self._wall_ends: float | None = None
        self._over_at = 0.0  # when the last rank so far was done
        self._ending: AttemptOutcome | None = None
        self._blamed: tuple[RankHandle, Outcome | None] | None = None  # who failed first
        self._result: Result | None = None
        self._saving = saving
        self._cuts = self._cuts_of(saving) if saving is not None else None
        self._stopped: AttemptOutcome | None = None  # what the ranks save for
        self._stop_ends = 0.0  # when they are no longer waited for
        self._steps = [saving.step if saving is not None else 0] * len(ranks)
        self._stepped = False
        self._working: set[int] = set()  # ranks that began a forward or took a step, or had it done
        self._watchdog = StallDetector(spec.limits.stall_seconds)
        self._stacks_asked: float | None = None  # when, for a stall
        self._kernel_kills = count_oom_kills()
        self._selector = selectors.DefaultSelector()
        self._children = self._listen_to_children(listener) if listener is not None else None

    def _cuts_of(self, saving: AttemptCheckpoints) -> CheckpointCoordinator:
        def say(rank: int, word: bytes) -> None:
            self._ranks[rank].tell(word)

        stall = self._spec.limits.stall_seconds
        return CheckpointCoordinator(
            len(self._ranks), saving.wanted.every_steps, saving.keeper, say, saving.step, stall
        )

    def _listen_to_children(self, listener: socket.socket) -> DescendantServer:
        return DescendantServer(
            listener,
            {rank.pid: rank.number for rank in self._ranks},
            watch=self._watch,
            unwatch=self._unwatch,
            record=self._record_of_child,
            ended=self._out.source_ended,
            uid=None if self._launch.account is None else self._launch.account.uid,
        )

    def run(self) -> AttemptOutcome:
        """Watch until every rank is dead. Their pipes are read to the end, or as far as they are ready:
        a grandchild that keeps one open does not keep the attempt."""
        for rank in self._ranks:
            self._watch(rank.pidfd, partial(self._dead, rank))
            self._watch(rank.channel, partial(self._records, rank))
            for output in rank.outputs:
                self._watch(output.fd, partial(self._output, rank, output))
        while any(rank.alive for rank in self._ranks) and not self._gave_up():
            for key, _ in self._selector.select(self._pause()):
                if key.fd in self._selector.get_map():  # an earlier event of this round may have closed it
                    key.data()
            self._on_time()
            self._bury_orphans()
            self._out.flush_due(time.time())
        return self._ended()

    # -- what happens to ranks -----------------------------------------------------------------------

    def _output(self, rank: RankHandle, output: OutputPipe) -> None:
        self._print(rank, output, self._read(output.fd))

    def _print(self, rank: RankHandle, output: OutputPipe, data: bytes) -> None:
        if data:  # of the step after the last that the rank has reported
            self._out.add_output(output.device, output.stream, rank.number, data, self._steps[rank.number])
        if data and output.stream == "stderr":
            rank.last_words = (rank.last_words + data)[-LAST_WORDS_BYTES:]

    def _records(self, rank: RankHandle) -> None:
        self._take(rank, self._read(rank.channel))

    def _take(self, rank: RankHandle, data: bytes) -> None:
        try:
            for packet in rank.decoder.feed(data):
                for record in batch_steps(packet):
                    self._record(rank, record)
        except ValueError as error:
            log.error("channel_corrupt", rank=rank.number, error=str(error))
            self._unwatch(rank.channel)
            self._fail(rank, Outcome(rank.number, 1, "code_error", f"the rank's channel is corrupt: {error}"))

    def _record(self, rank: RankHandle, record: StepBatch | SingleRecord) -> None:
        self._heed(record)
        if self._cuts is not None:
            for one in record.steps if isinstance(record, StepBatch) else (record,):
                self._cuts.on_record(rank.number, one, monotonic())
        match record:
            case Saved() | Paused():
                return
            case RankUp():
                self._up(rank)
            case StepBatch():
                self._stepped_to(rank.number, record)
            case Began():
                self._working.add(rank.number)
            case Result():
                self._result = record
            case Returned():
                self._returned(rank, record)
                return
            case Outcome():
                self._over(rank, record)
        self._out.add_record(rank.number, record)

    def _record_of_child(self, rank: int, record: StepBatch | SingleRecord, source: int) -> None:
        self._heed(record)
        match record:
            case Began():
                self._working.add(rank)
            case StepBatch():
                self._stepped_to(rank, record)
        self._out.add_record(rank, record, source)

    def _heed(self, record: StepBatch | SingleRecord) -> None:
        if isinstance(record, SIGNS):
            self._watchdog.sign(monotonic())

    def _stepped_to(self, rank: int, batch: StepBatch) -> None:
        last = next((step for step in reversed(batch.steps) if step.phase in MAIN_PHASES), None)
        if last is None:
            return
        self._steps[rank] = last.step + 1
        self._working.add(rank)
        if not self._stepped:
            self._stepped = True
            self._lifeline.record_milestone("first_step")

    def _up(self, rank: RankHandle) -> None:
        rank.up = True
        if self._wall_ends is None:
            self._wall_ends = monotonic() + self._spec.limits.wall_seconds
            self._watchdog.start(monotonic())
            self._lifeline.record_milestone("running")

    def _returned(self, rank: RankHandle, record: Returned) -> None:
        rank.returned, rank.returned_at = record, monotonic()
        if self._cuts is not None:
            self._cuts.rank_done(rank.number)
        if record.outcome.exit_code:
            self._blame(rank, record.outcome)  # whatever the others fail of next

    def _over(self, rank: RankHandle, outcome: Outcome) -> None:
        rank.outcome, self._over_at = outcome, monotonic()
        if outcome.exit_code:
            self._fail(rank, outcome)
        elif all(other.outcome is not None and other.outcome.exit_code == 0 for other in self._ranks):
            self._leave()
        if self._phase is _Phase.ENDING:
            rank.leave()

    def _dead(self, rank: RankHandle) -> None:
        spent = seconds_of_descendants(rank.pid)
        if not rank.reap():
            return
        self._unwatch(rank.pidfd)
        self._drain(rank)
        if self._children is not None:
            self._children.drain()  # they have sent what they had before the rank could know of their end
            if rank.number not in self._working and spent > UNSEEN_SECONDS:
                self._out.add_record(rank.number, Note(NOTE_FIELD, UNSEEN.format(spent)))
        self._out.rank_ended(rank.number)
        if rank.outcome is None and self._left_well(rank):
            outcome = Outcome(rank.number, 0)
            self._out.add_record(rank.number, outcome)
            self._over(rank, outcome)
        elif rank.outcome is None:
            self._fail(rank, None)

    def _left_well(self, rank: RankHandle) -> bool:
        """Whether a rank that said nothing of its end has succeeded all the same: a script may leave as it likes."""
        return rank.status == 0 and isinstance(self._spec.program, ScriptProgram)

    def _leave(self) -> None:
        if self._phase is _Phase.WORKING:
            self._enter(_Phase.LEAVING, LEAVE_SECONDS)
            self._ending = AttemptOutcome(Reason.COMPLETED)
            for rank in self._ranks:
                rank.leave()

    # -- ends ------------------------------------------------------------------------------------------

    def _fail(self, rank: RankHandle, outcome: Outcome | None) -> None:
        """A rank failed: by its own report, or (`outcome` None) it died without a word."""
        if self._stopped is not None and outcome is not None and outcome.kind == "stopped":
            self._end(self._stopped)
        elif self._phase is _Phase.WORKING:
            first, its = self._blame(rank, outcome)
            if first.outcome is not None and its is not None:
                its = first.outcome  # its exit handlers may have more to say
            self._end(self._failure(first, its))

    def _blame(self, rank: RankHandle, outcome: Outcome | None) -> tuple[RankHandle, Outcome | None]:
        """Who failed first, as far as that can be told, and is to be named in the end."""
        if self._blamed is None:
            # Peers of a dead rank report broken connections, perhaps before its death shows: look for it first.
            if outcome is not None:
                others = [other for other in self._ranks if other is not rank and other.alive]
                await_death([other for other in others if is_dying(other.pid)], DEATH_SECONDS)
            silent = next((r for r in self._ranks if r.reap() and not self._reported(r)), None)
            self._blamed = (rank, outcome) if silent is None else (silent, None)
        return self._blamed

    def _reported(self, rank: RankHandle) -> bool:
        """Whether a dead rank has said how it ended."""
        self._drain(rank)
        return rank.outcome is not None or self._left_well(rank)

    def _failure(self, rank: RankHandle, outcome: Outcome | None) -> AttemptOutcome:
        """The ending that a failed rank gives the attempt."""
        for output in rank.outputs:
            self._output(rank, output)
        ending = verdict.outcome_of_failed_rank(rank, outcome, starved=outcome is None and self._kernel_has_killed())
        if self._spec.program.bundle is None:
            return ending
        facts = error_hints.FailureContext(
            devices=len(self._launch.devices),
            device_kind=self._launch.devices[0].kind,
            strategy=self._launch.strategy,
            rehearsing=self._spec.rehearsal,
            requirements=self._requirements,
        )
        return verdict.with_advice(ending, outcome, facts)

    def _kernel_has_killed(self) -> bool:
        """Whether it has ended processes here for want of memory since this attempt began, as far as a file tells."""
        now = count_oom_kills()
        return now is not None and now != self._kernel_kills

    def _end(self, ending: AttemptOutcome, seconds: float = 0.0) -> None:
        """End all ranks; the first ending counts. They have the grace, or `seconds` where that is longer."""
        if self._phase in (_Phase.WORKING, _Phase.LEAVING):
            self._ending = ending
            self._enter(_Phase.ENDING, max(seconds, self._launch.grace_seconds))
            self._signal(signal.SIGTERM)
            if self._cuts is not None:
                self._cuts.release_all()
            if self._children is not None:
                self._children.send_stop()
            for rank in self._ranks:
                if rank.outcome is not None:
                    rank.leave()

    def _on_time(self) -> None:
        now = monotonic()
        self._look_after_checkpoints(now)
        order, fenced = self._lifeline.order, self._lifeline.seconds_since_renewal > FENCE * self._launch.lease_seconds
        if (order is Order.LOST or fenced) and self._phase is not _Phase.KILLING:
            silence = self._lifeline.seconds_since_renewal
            self._ending = (
                LEASE_LOST
                if order is Order.LOST
                else AttemptOutcome(Reason.LEASE_EXPIRED, f"no beat for {silence:.0f} s")
            )
            self._kill()
        elif self._phase is _Phase.WORKING:
            if order is Order.CANCEL:
                self._end(AttemptOutcome(Reason.CANCELLED_BY_USER, "cancelled while running"))
            elif order is Order.STOP or self._stopped is not None:  # ranks that heard of a stop cannot take it back
                self._stop(now, AttemptOutcome(Reason.SERVICE_STOPPED, "the service was stopped"))
            elif self._wall_ends is not None and now > self._wall_ends:
                limit = self._spec.limits.wall_seconds
                self._end(AttemptOutcome(Reason.WALL_LIMIT, f"ran longer than limits.wall_seconds ({limit:g} s)"))
            elif self._wall_ends is None and now > self._phase_ends:
                self._end(AttemptOutcome(Reason.START_FAILED, f"no rank was up within {START_SECONDS:g} s"))
            else:
                self._give_up_on_hanging(now)
                self._look_for_stall(now)
        elif now > self._phase_ends and self._phase is not _Phase.KILLING:
            self._kill()

    def _stop(self, now: float, ending: AttemptOutcome) -> None:
        """End the ranks; first they save what they have done, for which they have a while."""
        if self._cuts is None or not self._stepped:
            is_script = isinstance(self._spec.program, ScriptProgram)  # which may save when it hears of SIGTERM
            self._end(ending, self._launch.checkpoint_seconds if is_script else 0.0)
        elif self._stopped is None:
            self._stopped, self._stop_ends = ending, now + self._launch.checkpoint_seconds
            self._cuts.request_stop()
            self._signal(signal.SIGTERM)
        elif self._cuts.has_released or now > self._stop_ends:
            if not self._cuts.has_released:
                self._out.log_line(
                    f"the ranks could not save within {self._launch.checkpoint_seconds:g} s; they are ended"
                )
            self._end(ending)

    def _look_after_checkpoints(self, now: float) -> None:
        if self._cuts is None or self._saving is None:
            return
        self._cuts.on_tick(now)
        if self._cuts.is_saving:
            self._watchdog.hold(now)
        self._saving.tell(self._out)

    def _give_up_on_hanging(self, now: float) -> None:
        """Take ranks for done whose work is finished, but which do not come to an end."""
        for rank in self._ranks:
            if self._phase is _Phase.WORKING and self._hangs(rank, now):
                assert rank.returned is not None
                self._out.log_line(f"rank {rank.number} had finished its work and did not end; it was killed")
                rank.kill(signal.SIGKILL)
                self._over(rank, rank.returned.outcome)

    def _look_for_stall(self, now: float) -> None:
        """End a run in which no rank gets on. Its ranks show first where they are."""
        why = self._watchdog.stalled(now)
        if why is None:
            self._stacks_asked = None
        elif self._stacks_asked is None:
            self._stacks_asked = now
            self._out.log_line(f"{why}; the stacks of all ranks follow, in the log of each")
            self._signal(STACKS_SIGNAL)
        elif now - self._stacks_asked > STACKS_SECONDS and self._phase is _Phase.WORKING:
            for rank in self._ranks:
                if rank.outcome is None and is_stopped(rank.pid):
                    self._out.log_line(f"rank {rank.number} is stopped (SIGSTOP) and could show no stack")
            self._end(AttemptOutcome(Reason.STALLED, f"{why}; the stacks of all ranks are in the log"))

    def _hangs(self, rank: RankHandle, now: float) -> bool:
        if rank.returned is None or rank.outcome is not None:
            return False
        if rank.returned.outcome.exit_code:
            return now - rank.returned_at > FAILED_TEARDOWN_SECONDS
        if rank.returned.stage == "threads" and not self._is_last(rank):
            return False  # they may be its work
        if has_working_children(rank.pid):
            rank.returned_at = now  # it is still at work; when they have ended, it has its time
        return now - max(rank.returned_at, self._over_at) > TEARDOWN_SECONDS

    def _is_last(self, rank: RankHandle) -> bool:
        """Whether there are other ranks, and all of them are done."""
        return len(self._ranks) > 1 and all(other.outcome is not None for other in self._ranks if other is not rank)

    def _bury_orphans(self) -> None:
        """Take the exit status of the ranks' orphans, which the supervisor adopts, lest a long run collects zombies."""
        mine = {rank.pid for rank in self._ranks if rank.alive}
        try:
            while (dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and dead.si_pid not in mine:
                os.waitpid(dead.si_pid, 0)
        except ChildProcessError:
            return

    def _kill(self) -> None:
        self._enter(_Phase.KILLING, KILL_SECONDS)
        self._signal(signal.SIGKILL)

    def _gave_up(self) -> bool:
        """What SIGKILL does not end (a process stuck in the kernel) is left to the sweep, its device to quarantine."""
        return self._phase is _Phase.KILLING and monotonic() > self._phase_ends

    def _enter(self, phase: _Phase, seconds: float) -> None:
        self._phase = phase
        self._phase_ends = monotonic() + seconds

    def _signal(self, number: int) -> None:
        for rank in self._ranks:
            rank.kill(number)

    def _ended(self) -> AttemptOutcome:
        for rank in self._ranks:
            self._drain(rank)
            for output in rank.outputs:
                # What is there now and no more: a grandchild may go on writing.
                if waiting := _waiting(output.fd):
                    self._print(rank, output, os.read(output.fd, waiting))
        if self._children is not None:
            self._children.close()
        self._selector.close()
        ending = self._ending
        assert ending is not None
        if ending.reason is not Reason.COMPLETED or self._result is None:
            return ending
        return AttemptOutcome(Reason.COMPLETED, result={"loss": self._result.loss, "metrics": self._result.metrics})

    # -- pipes -----------------------------------------------------------------------------------------

    def _watch(self, fd: int, handle: Callable[[], object]) -> None:
        self._selector.register(fd, selectors.EVENT_READ, handle)

    def _unwatch(self, fd: int) -> None:
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def _read(self, fd: int, *, last: bool = False) -> bytes:
        """What is ready now; b"" at the end of the pipe, which is then no longer watched."""
        try:
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:
            if last:
                self._unwatch(fd)
            return b""
        if not data:
            self._unwatch(fd)
        return data

    def _drain(self, rank: RankHandle) -> None:
        """Read the records that a rank has written before it died."""
        while rank.channel in self._selector.get_map():
            data = self._read(rank.channel, last=True)
            if not data:
                return
            self._take(rank, data)

    def _pause(self) -> float:
        deadline = self._out.next_deadline()
        if deadline is None:
            return TICK_SECONDS
        return min(TICK_SECONDS, max(0.0, deadline - time.time()))


def _waiting(pipe: int) -> int:
    """Bytes that can be read from a pipe now."""
    count = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]
