"""The main loop of a supervisor: reads its ranks until the last one is dead, and returns how the attempt ended.

Single-threaded: one selector over the ranks' pipes and pidfds, and a clock. What is read (`RankReader`) goes to the
publisher (logs, metrics, report, progress) and to those that decide here:

    AttemptEnd      the phase of the attempt, its outcome, the rank that failed first: a state machine without processes
    StopSequence    carries the end out: checkpoint, SIGTERM, grace, SIGKILL
    RankActivity, StallReporter, TeardownTimer
                    whether the ranks make progress, and whether they exit when their work is done
    LimitWatch      whether they use more than they may
    SaveWatch       the checkpoints that they save

Whatever ends one rank ends the others.
"""

import os
import signal
import socket
import time
from functools import partial
from time import monotonic

import structlog

from jobs.model.spec import ScriptProgram
from jobs.model.state import StateReason, SupervisorCommand
from jobs.protocol.packets import SingleRecord, StepBatch
from jobs.protocol.records import (
    CallsMade,
    Note,
    Outcome,
    Paused,
    ProfileBegin,
    ProfileEnd,
    ProfilePart,
    RankUp,
    Result,
    Returned,
    Saved,
)
from workers.rank.handle import RankHandle, await_death
from workers.runtime.launch import AttemptConfig
from workers.supervisor.carriage import AttemptCarriage
from workers.supervisor.checkpoints.save_watch import SaveWatch
from workers.supervisor.checkpoints.writer import AttemptCheckpoints
from workers.supervisor.descendants import NOTE_FIELD, DescendantServer
from workers.supervisor.ending.attempt_end import START_SECONDS, AttemptEnd, EndPhase, RankFailure
from workers.supervisor.ending.outcome import LEASE_LOST, AttemptOutcome, FailureClassifier, name_hang
from workers.supervisor.ending.training_hints import is_collective_timeout, may_have_lost_peer
from workers.supervisor.event_loop import EventLoop
from workers.supervisor.gang.followers import FollowerEvents, Followers, LostPart
from workers.supervisor.gang.outcomes import outcome_of_failed_part, outcome_of_lost_part
from workers.supervisor.hangs.diagnosis import Hang
from workers.supervisor.hangs.inquiry import HangInquiry
from workers.supervisor.lease import LeaseHolder
from workers.supervisor.limits.limit_watch import LimitWatch
from workers.supervisor.link.messages import PartFailed
from workers.supervisor.profile_collector import ProfileCollector
from workers.supervisor.rank_activity import RankActivity
from workers.supervisor.rank_reader import RankReader
from workers.supervisor.redaction import SecretRedactor
from workers.supervisor.report.step_blocks import StepBlock
from workers.supervisor.stall_detector import StallDetector, StallReporter
from workers.supervisor.stop_sequence import StopSequence
from workers.supervisor.stop_signal import is_stop_signalled
from workers.supervisor.teardown import TeardownTimer
from workers.supervisor.telemetry.publisher import TelemetryPublisher

log = structlog.get_logger(__name__)

#: Processor time that the programs which a rank has started may use unseen, before a note in the report says so.
UNSEEN_SECONDS = 1.0
UNSEEN = (
    "no forward and no step was seen, while programs that the script started computed for {:.1f} s: if they trained, "
    "they ran with an environment of their own or in another Python, where the probe does not follow"
)
#: What a block of steps counts for among the records of an attempt: about its size.
BLOCK_BYTES = 200
#: The longest sleep of the loop: how late an order, a deadline or a lost lease may be noticed.
TICK_SECONDS = 0.1
#: The death of a rank that is dying may be visible this much later than the broken connection that it gave its peers,
#: here or by the word of its own supervisor.
DEATH_SECONDS = 2.0
#: Share of the lease without a renewal after which the supervisor kills its own ranks.
FENCE = 0.75


STOPPED = AttemptOutcome(StateReason.SERVICE_STOPPED, "the service was stopped")


class RankMonitor:
    def __init__(
        self,
        config: AttemptConfig,
        ranks: list[RankHandle],
        lease: LeaseHolder,
        publisher: TelemetryPublisher,
        *,
        requirements: bool = False,
        listener: socket.socket | None = None,
        checkpoints: AttemptCheckpoints | None = None,
        limits: LimitWatch | None = None,
        redactor: SecretRedactor | None = None,
        followers: Followers | None = None,
        carriage: AttemptCarriage | None = None,
    ) -> None:
        """`requirements`: whether the job's bundle names packages that it needs. `listener`: where processes that
        descend from the ranks report; it is closed in the end. `checkpoints`: where the job asks for them. `limits` are
        closed in the end. `redactor`: where the job has secrets. `followers`: where some of the ranks are on other
        nodes. `carriage`: where the storage is not mounted."""
        self._config = config
        self._ranks = ranks
        self._lease = lease
        self._publisher = publisher
        self._followers = followers
        self._loop = EventLoop()
        self._reader = RankReader(
            self._loop,
            publisher,
            RankActivity(len(ranks), checkpoints.first_step if checkpoints is not None else 0),
            limits or LimitWatch(),
            on_record=self._on_record,
            on_corrupt=self._on_corrupt_channel,
            redactor=redactor,
        )
        self._descendants = self._serve_descendants(listener, redactor) if listener is not None else None
        self._end = AttemptEnd(monotonic())
        log_line = publisher.log_line
        detector = StallDetector(config.spec.limits.stall_seconds)
        self._saves = SaveWatch(config, ranks, checkpoints, carriage, publisher, detector.excuse_silence)
        self._stop = StopSequence(self._end, config, ranks, self._saves.coordinator, self._descendants, log_line)
        self._stalls = StallReporter(detector, HangInquiry(config, ranks), log_line)
        self._teardown = TeardownTimer(ranks)
        self._failures = FailureClassifier(config, requirements=requirements)
        self._profiles = ProfileCollector(config, ranks, lease, log_line)

    def _serve_descendants(self, listener: socket.socket, redactor: SecretRedactor | None) -> DescendantServer:
        return DescendantServer(
            listener,
            {rank.pid: rank.number for rank in self._local_ranks},
            watch=self._loop.register_input,
            unwatch=self._loop.unregister,
            count=self._reader.limits.records.add,
            record=self._on_descendant_record,
            ended=self._publisher.source_ended,
            uid=None if self._config.account is None else self._config.account.uid,
            redactor=redactor,
        )

    @property
    def _local_ranks(self) -> list[RankHandle]:
        """Those that run on this node."""
        return self._ranks[: len(self._config.ranks)]

    def run(self) -> AttemptOutcome:
        """Run until every rank is dead. Their pipes are read to the end, or as far as they are ready: a grandchild that
        keeps one open does not keep the attempt running."""
        for rank in self._local_ranks:
            self._loop.register(rank.pidfd, partial(self._on_death, rank))
            self._reader.watch_rank(rank)
        if self._followers is not None:
            self._reader.redact_records(self._followers.ranks)
            self._followers.watch(self._loop, self._follower_events())
        while any(rank.is_alive for rank in self._ranks) and not self._end.has_given_up(monotonic()):
            self._loop.run_once(self._seconds_to_deadline())
            self._on_tick(monotonic())
            self._reap_orphans()
            self._publisher.flush_due(time.time())
        self._stalls.finish_asking(monotonic(), at_once=True)
        self._reader.read_rest(self._ranks)
        if self._descendants is not None:
            self._descendants.close()
        self._loop.close()
        self._profiles.close()
        self._reader.limits.close()
        self._end_over_limit(monotonic())
        outcome = self._unless_signalled(self._end.final_outcome())
        self._end_log(outcome)
        return outcome

    def _heed_stop_signal(self) -> None:
        """Where an engine has sent SIGTERM to all processes of this node, what ranks do of it is part of the stop."""
        if is_stop_signalled() and self._end.is_working:
            self._check_work(monotonic())

    def _unless_signalled(self, outcome: AttemptOutcome) -> AttemptOutcome:
        """The same, unless a rank was killed by the signal with which an engine ends a node that the attempt has: on
        another node, whose supervisor has no say in the outcome."""
        killed = (outcome.error or {}).get("signal") == signal.SIGTERM.name
        return STOPPED if killed and self._lease.command is SupervisorCommand.STOP else outcome

    def _seconds_to_deadline(self) -> float:
        deadline = self._publisher.next_deadline()
        return TICK_SECONDS if deadline is None else min(TICK_SECONDS, max(0.0, deadline - time.time()))

    def _end_log(self, outcome: AttemptOutcome) -> None:
        """Put the traceback of the rank that failed first at the end of the log, if other ranks, which failed because
        of it, have printed after it; and what to do about the failure, where that is known."""
        error = outcome.error or {}
        number, text = error.get("rank"), error.get("traceback")
        if text and any(rank.printed_at > self._ranks[number or 0].printed_at for rank in self._ranks):
            for line in (f"rank {number} failed first; its traceback again:", *text.splitlines()):
                self._publisher.log_line(line)
        if advice := error.get("advice"):
            self._publisher.log_line(f"what to do: {advice}")

    # -- what ranks send -------------------------------------------------------------------------------

    def _follower_events(self) -> FollowerEvents:
        return FollowerEvents(
            records=self._reader.take_records,
            block=self._on_block,
            corrupt=self._on_corrupt_channel,
            descendant=self._on_descendant_record,
            descendant_ended=self._publisher.source_ended,
            death=self._on_death,
            samples=self._publisher.add_part_samples,
            failure=self._on_part_failure,
            lost=self._on_part_lost,
        )

    def _on_record(self, rank: RankHandle, record: StepBatch | SingleRecord) -> None:
        self._heed_stop_signal()
        if not isinstance(record, StepBatch):
            self._flush_steps(rank)
        self._note_activity(rank.number, record)
        self._saves.on_record(rank.number, record)
        match record:
            case Saved() | Paused():
                return
            case CallsMade():
                self._stalls.inquiry.add_calls(rank.number, record)
                return
            case ProfileBegin() | ProfilePart() | ProfileEnd():
                self._profiles.on_record(rank.number, record)
                return
            case RankUp():
                self._on_rank_up(rank)
            case Result():
                self._end.result = record
            case Returned():
                self._on_program_end(rank, record)
            case Outcome():
                self._on_outcome(rank, record)
        if self._followers is not None and isinstance(record, StepBatch):
            self._publisher.add_metrics(rank.number, record)
            self._publisher.add_steps(rank.number, self._followers.own_steps.add(rank.number, record.steps))
        else:
            self._publisher.add_record(rank.number, record)

    def _flush_steps(self, rank: RankHandle) -> None:
        """Something else follows the steps of a rank: all of them are counted before."""
        if self._followers is not None:
            self._publisher.add_steps(rank.number, self._followers.own_steps.flush(rank.number))

    def _on_block(self, rank: RankHandle, block: StepBlock) -> None:
        """A rank of another node has taken so many steps."""
        self._reader.limits.records.add(BLOCK_BYTES)
        last = StepBatch([block.last])
        self._note_activity(rank.number, last)
        self._saves.on_record(rank.number, last)
        self._publisher.add_steps(rank.number, [block])

    def _on_descendant_record(self, rank: int, record: StepBatch | SingleRecord, source: int) -> None:
        self._note_activity(rank, record)
        self._publisher.add_record(rank, record, source)

    def _note_activity(self, rank: int, record: StepBatch | SingleRecord) -> None:
        self._stalls.detector.add_record(record, monotonic())
        if self._reader.activity.add_record(rank, record):
            self._lease.record_milestone("first_step")

    # -- what happens to ranks -------------------------------------------------------------------------

    def _on_rank_up(self, rank: RankHandle) -> None:
        rank.up = True
        now = monotonic()
        if self._end.start_wall_clock(now, self._config.spec.limits.wall_seconds):
            self._stalls.detector.start_clock(now)
            self._lease.record_milestone("running")

    def _on_program_end(self, rank: RankHandle, record: Returned) -> None:
        rank.returned, rank.returned_at = record, monotonic()
        self._saves.on_program_end(rank.number)
        if record.outcome.exit_code:
            self._find_first_failure(rank, record.outcome)  # what the other ranks fail of next is a consequence

    def _on_outcome(self, rank: RankHandle, outcome: Outcome) -> None:
        rank.outcome = outcome
        self._teardown.last_outcome_at = monotonic()
        if outcome.exit_code:
            self._on_failure(rank, outcome)
        elif all(other.outcome is not None and other.outcome.exit_code == 0 for other in self._ranks):
            self._stop.let_ranks_leave(monotonic())
        if self._end.phase is EndPhase.ENDING:
            rank.allow_exit()

    def _on_death(self, rank: RankHandle) -> None:
        if not rank.reap():
            return
        self._heed_stop_signal()
        self._loop.unregister(rank.pidfd)
        self._reader.drain_records(rank)
        self._flush_steps(rank)
        if self._descendants is not None:
            self._descendants.drain()  # they sent what they had before the rank could know that they ended
            if not self._reader.activity.has_worked(rank.number) and rank.children_seconds > UNSEEN_SECONDS:
                self._publisher.add_record(rank.number, Note(NOTE_FIELD, UNSEEN.format(rank.children_seconds)))
        self._profiles.on_rank_end(rank.number)
        self._publisher.rank_ended(rank.number)
        if rank.outcome is None and self._has_left_well(rank):
            outcome = Outcome(rank.number, 0)
            self._publisher.add_record(rank.number, outcome)
            self._on_outcome(rank, outcome)
        elif rank.outcome is None:
            self._on_failure(rank, None)

    def _has_left_well(self, rank: RankHandle) -> bool:
        """Whether a rank that died without a report has succeeded all the same: a script may exit as it likes."""
        return rank.status == 0 and isinstance(self._config.spec.program, ScriptProgram)

    def _on_part_failure(self, node: str, failure: PartFailed) -> None:
        """A part cannot go on: one of its limits was exceeded, say."""
        if self._end.is_working:
            log.warning("part_failed", node=node, why=failure.message)
            outcome = outcome_of_failed_part(failure)
            if failure.urgent:
                self._stop.kill_ranks(monotonic(), outcome)
            else:
                self._stop.terminate_ranks(outcome, monotonic())

    def _on_part_lost(self, lost: LostPart) -> None:
        if self._end.is_working:
            self._stop.terminate_ranks(outcome_of_lost_part(self._config, lost), monotonic())

    def _on_corrupt_channel(self, rank: RankHandle, why: str) -> None:
        self._on_failure(rank, Outcome(rank.number, 1, "code_error", f"the rank's channel is corrupt: {why}"))

    def _on_failure(self, rank: RankHandle, outcome: Outcome | None) -> None:
        """A rank failed: by its own report, or (`outcome` None) it died without one."""
        if self._stop.is_saving and outcome is not None and outcome.kind == "stopped":
            self._stop.terminate_stopped(monotonic())
        elif self._end.is_working and not self._stalls.is_asking:
            failure = self._find_first_failure(rank, outcome)
            if failure is None:
                return
            first, report = failure
            if report is not None and is_collective_timeout(report) and len(self._ranks) > 1:
                self._stalls.ask_then(partial(self._end_failed, first, report), monotonic())
            else:
                self._end_failed(first, report)

    def _end_failed(self, first: int, report: Outcome | None, hang: Hang | None = None) -> None:
        """End the attempt, since rank `first` has failed; `hang` says for which rank it had waited."""
        failed = self._ranks[first]
        if failed.outcome is not None and report is not None:
            report = failed.outcome  # its exit handlers may have added something
        if self._end_over_limit(monotonic(), at_once=True):
            return
        for output in failed.outputs if first in self._config.ranks else ():
            self._reader.read_output(failed, output)
        outcome = self._failures.classify_failure(failed, report)
        self._stop.terminate_ranks(outcome if hang is None else name_hang(outcome, hang.message), monotonic())

    def _find_first_failure(self, rank: RankHandle, outcome: Outcome | None) -> RankFailure | None:
        """The rank that failed first, as far as that can be known: the job's error names it. None where the attempt
        is ending for another cause by now: a part was lost, of which its peers knew before the supervisor."""
        if self._end.first_failure is not None:
            return self._end.first_failure
        # Peers of a dead rank report broken connections, perhaps before its death is visible: look for it first.
        if outcome is not None:
            others = [other for other in self._local_ranks if other is not rank and other.is_alive]
            await_death([other for other in others if other.is_dying], DEATH_SECONDS)
            if self._followers is not None and may_have_lost_peer(outcome):
                self._followers.await_deaths(DEATH_SECONDS)
                if not self._end.is_working:
                    return None
        silent = next((one for one in self._ranks if one.reap() and not self._has_reported(one)), None)
        failure = RankFailure(rank.number, outcome) if silent is None else RankFailure(silent.number, None)
        return self._end.keep_first_failure(failure)

    def _has_reported(self, rank: RankHandle) -> bool:
        """Whether a dead rank has reported how it ended."""
        self._reader.drain_records(rank)
        return rank.outcome is not None or self._has_left_well(rank)

    # -- what time brings --------------------------------------------------------------------------------

    def _on_tick(self, now: float) -> None:
        self._lease.main_thread.expect_tick(self._config.lease_seconds)
        if self._followers is not None:
            self._followers.on_tick(now, self._loop)
            for number, steps in self._followers.change_block_size().items():
                self._publisher.add_steps(number, steps)
        self._saves.on_tick(now)
        self._profiles.on_tick(now)
        self._stalls.finish_asking(now)
        self._end_over_limit(now)
        silence = self._lease.seconds_since_renewal
        if self._lease.command is SupervisorCommand.LOST:
            self._stop.kill_ranks(now, LEASE_LOST)
        elif silence > FENCE * self._config.lease_seconds:
            self._stop.kill_ranks(now, AttemptOutcome(StateReason.LEASE_EXPIRED, f"no heartbeat for {silence:.0f} s"))
        elif self._end.is_working:
            self._check_work(now)
        elif self._end.is_overdue(now):
            self._stop.kill_ranks(now)

    def _end_over_limit(self, now: float, *, at_once: bool = False) -> bool:
        """End the ranks where they use more than they may; whether they do. `at_once`: measure now."""
        breach = self._reader.limits.find_breach(now, at_once=at_once)
        if breach is not None:
            self._stop.end_over_limit(breach, now)
        return breach is not None

    def _check_work(self, now: float) -> None:
        command = self._lease.command
        if command is SupervisorCommand.CANCEL:
            self._stop.terminate_ranks(AttemptOutcome(StateReason.CANCELLED_BY_USER, "cancelled while running"), now)
        elif command is SupervisorCommand.STOP or self._stop.is_saving:
            self._stop.save_and_stop(STOPPED, now, has_stepped=self._reader.activity.has_stepped)
        elif self._end.is_overdue(now):
            self._stop.terminate_ranks(self._overdue_outcome(), now)
        else:
            self._end_hung_ranks(now)
            self._check_stall(now)

    def _overdue_outcome(self) -> AttemptOutcome:
        if not self._end.is_up:
            return AttemptOutcome(StateReason.START_FAILED, f"no rank was up within {START_SECONDS:g} s")
        seconds = self._config.spec.limits.wall_seconds
        return AttemptOutcome(StateReason.WALL_LIMIT, f"ran longer than limits.wall_seconds ({seconds:g} s)")

    def _end_hung_ranks(self, now: float) -> None:
        """Count ranks as done whose work is finished, but which do not exit."""
        for rank in self._teardown.find_hung_ranks(now):
            if self._end.is_working:
                assert rank.returned is not None
                self._publisher.log_line(f"rank {rank.number} had finished its work and did not end; it was killed")
                rank.kill(signal.SIGKILL)
                self._on_outcome(rank, rank.returned.outcome)

    def _check_stall(self, now: float) -> None:
        if self._end.is_working and (outcome := self._stalls.check_stall(now)) is not None:
            self._stop.terminate_ranks(outcome, now)

    def _reap_orphans(self) -> None:
        """Reap orphans of the ranks, which the supervisor adopts, so that a long run collects no zombies."""
        mine = {rank.pid for rank in self._local_ranks if rank.is_alive}
        try:
            while (dead := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and dead.si_pid not in mine:
                os.waitpid(dead.si_pid, 0)
        except ChildProcessError:
            return
