"""The main loop of a follower: passes on the records of its ranks to the leader, and carries out what that orders.

It decides nothing about the attempt, but for one thing: ranks whose leader is not heard of, or whose lease is lost, are
killed. The leader does the same with its own when it does not hear of this node.
"""

import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import monotonic

import msgspec
import structlog

from jobs.model.state import SupervisorCommand
from jobs.protocol.packets import DESCENDANT_PACKET_BYTES, AnyRecord, SingleRecord, StepBatch, encode_packets
from jobs.protocol.records import Outcome, Returned
from workers.rank.handle import OutputPipe, RankHandle
from workers.runtime.launch import AttemptConfig, AttemptDirectory
from workers.runtime.stacks import STACKS_SIGNAL
from workers.sandbox.cgroup import read_record
from workers.supervisor.descendants import DescendantServer
from workers.supervisor.ending.oom import watch_oom_kills
from workers.supervisor.ending.outcome import AttemptOutcome
from workers.supervisor.event_loop import EventLoop, read_waiting
from workers.supervisor.gang.block_pace import CleanPacket, RecordRelay
from workers.supervisor.gang.followers import bearable_silence
from workers.supervisor.gang.part_logs import PartLogs
from workers.supervisor.lease import LeaseHolder
from workers.supervisor.limits.breach import outcome_of_breach
from workers.supervisor.limits.limit_watch import LimitWatch
from workers.supervisor.link.connection import Link
from workers.supervisor.link.errors import LinkClosed
from workers.supervisor.link.messages import (
    BlockSize,
    CallsRequest,
    DescendantBytes,
    DescendantEnded,
    HardwareSamples,
    Message,
    Over,
    PartFailed,
    RankCommand,
    RankCorrupt,
    RankEnded,
    RankSignal,
    RankTail,
    ShowProfile,
)
from workers.supervisor.telemetry.hardware_relay import SampleForwarder

log = structlog.get_logger(__name__)

TICK_SECONDS = 0.1
#: Share of the lease without a renewal after which the ranks are killed.
FENCE = 0.75
#: Ranks are read no further while so much waits for the leader.
MAX_WAITING_BYTES = 4 * 1024 * 1024
#: So long after ranks were asked for their stacks, what they write to stderr goes to the leader, which waits as long.
STACKS_SECONDS = 3.0
#: What SIGKILL has not ended after this is left to the sweep.
KILL_SECONDS = 10.0


class RankRelay:
    """`over` is set once the leader has said that the attempt has ended, or cannot say so any more."""

    def __init__(
        self,
        config: AttemptConfig,
        ranks: list[RankHandle],
        lease: LeaseHolder,
        link: Link,
        limits: LimitWatch,
        logs: PartLogs,
        clean: CleanPacket | None = None,
    ) -> None:
        """`clean` takes values of secrets out of records."""
        self._config = config
        self._ranks = ranks
        self._lease = lease
        self._link = link
        self._limits = limits
        self._logs = logs
        self._records = {one.number: RecordRelay(one.number, self.send, self._take_record, clean) for one in ranks}
        self._loop = EventLoop()
        self._descendants: DescendantServer | None = None
        self._has_oom_kills = watch_oom_kills(read_record(AttemptDirectory.of(config.state_dir, config.attempt).cgroup))
        self._killed_at: float | None = None
        self._has_failed = False
        self._shows_stacks_until = 0.0  # monotonic: the leader wants to see what ranks print
        samples = AttemptDirectory.of(config.state_dir, config.attempt).hardware
        self._samples = SampleForwarder(samples, lambda data: self.send(HardwareSamples(data)))
        self.over: str | None = None

    def follow_descendants(self, make: Callable[..., DescendantServer]) -> None:
        """Hear processes that descend from the ranks, too."""
        self._descendants = make(
            watch=self._loop.register_input,
            unwatch=self._loop.unregister,
            count=lambda _: True,  # the leader counts
            record=self._send_descendant_record,
            ended=self._send_descendant_end,
        )

    def run(self) -> None:
        """Run until every rank is dead, or would not die."""
        for rank in self._ranks:
            self._loop.register(rank.pidfd, partial(self._on_death, rank))
            self._loop.register_input(rank.channel, partial(self._send_records, rank))
            for output in rank.outputs:
                self._loop.register_input(output.fd, partial(self._log_output, rank, output))
        self._loop.register(self._link.fileno(), self._receive)
        while any(rank.is_alive for rank in self._ranks) and not self._has_given_up():
            self._loop.holds_inputs = self._link.pending_bytes > MAX_WAITING_BYTES
            self._loop.run_once(self._logs.seconds_to_deadline(TICK_SECONDS))
            self._on_tick(monotonic())
            self._logs.flush_due()
        self._samples.forward_if_due(monotonic(), at_once=True)
        self._loop.unregister(self._link.fileno())
        if self._descendants is not None:
            self._descendants.close()
        self._loop.close()
        self._limits.close()

    def await_end(self, seconds: float) -> None:
        """Wait until the leader says that the attempt has ended."""
        deadline = monotonic() + seconds
        while self.over is None and monotonic() < deadline:
            self._receive()
            self._keep_link(monotonic())
            time.sleep(0.005)

    def send(self, message: Message) -> None:
        if self.over is None:
            with suppress(LinkClosed):  # which is found out when it is read: the leader may have said something before
                self._link.send(message)

    # -- what ranks send -------------------------------------------------------------------------------

    def _send_records(self, rank: RankHandle) -> None:
        self._add_records(rank, self._loop.read_ready(rank.channel))

    def _add_records(self, rank: RankHandle, data: bytes) -> None:
        relay = self._records.get(rank.number)
        if relay is None:
            return  # it has sent what were no records
        try:
            relay.add(data)
        except ValueError as error:
            log.error("channel_corrupt", rank=rank.number, error=str(error)[:500])
            del self._records[rank.number]
            self._loop.unregister(rank.channel)
            self.send(RankCorrupt(rank.number, str(error)[:500]))

    def _take_record(self, rank: int, record: StepBatch | SingleRecord) -> None:
        if isinstance(record, (Outcome, Returned)):
            self._send_tail(rank)
        self._logs.add_record(rank, record)

    def _send_tail(self, number: int) -> None:
        """Let the leader see the end of what a rank has printed, before it hears how it ended."""
        (rank,) = self._meant(number)
        for output in rank.outputs:
            if output.stream == "stderr" and self._loop.watches(output.fd):
                self._logs.add_output(rank, output, self._loop.read_ready(output.fd))
        if rank.stderr_tail:
            self.send(RankTail(number, rank.stderr_tail))

    def _log_output(self, rank: RankHandle, output: OutputPipe) -> None:
        if self._loop.watches(rank.channel):  # the log has records and lines in the order in which they were sent
            self._send_records(rank)
        self._logs.add_output(rank, output, self._loop.read_ready(output.fd))
        if output.stream == "stderr" and monotonic() < self._shows_stacks_until:
            self.send(RankTail(rank.number, rank.stderr_tail))

    def _send_descendant_record(self, rank: int, record: StepBatch | SingleRecord, source: int) -> None:
        self._logs.add_record(self._own(rank), record, source)
        records: list[AnyRecord] = [*record.steps, *record.metrics] if isinstance(record, StepBatch) else [record]
        for packet in encode_packets(records, DESCENDANT_PACKET_BYTES):
            self.send(DescendantBytes(self._own(rank), source, packet))

    def _send_descendant_end(self, rank: int, source: int) -> None:
        self.send(DescendantEnded(self._own(rank), source))

    def _own(self, rank: int) -> int:
        """The rank, where it is one of this node: what cannot be told from which one it comes counts for the first."""
        return rank if rank in self._config.ranks else self._config.ranks.start

    def _on_death(self, rank: RankHandle) -> None:
        if not rank.reap():
            return
        self._loop.unregister(rank.pidfd)
        for data in self._loop.read_rest(rank.channel):
            self._add_records(rank, data)
        if rank.number in self._records:
            self._records[rank.number].flush()
        if self._descendants is not None:
            self._descendants.drain()
        for output in rank.outputs:
            for data in read_waiting(output.fd):
                self._logs.add_output(rank, output, data)
            self._logs.end_output(rank, output)
        self._send_tail(rank.number)
        assert rank.status is not None
        self.send(RankEnded(rank.number, rank.status, rank.children_seconds, self._has_oom_kills()))

    # -- what the leader orders ------------------------------------------------------------------------

    def _receive(self) -> None:
        if self.over is not None:
            return
        try:
            for message in self._link.receive():
                self._carry_out(message)
        except LinkClosed as error:
            for message in self._link.receive_rest():
                self._carry_out(message)
            self._lose_leader(str(error))

    def _carry_out(self, message: Message) -> None:
        match message:
            case RankCommand(number, command):
                for rank in self._meant(number):
                    rank.send_command(command)
            case RankSignal(number, sent):
                for rank in self._meant(number):
                    rank.kill(sent)
                if sent == STACKS_SIGNAL:
                    self._shows_stacks_until = monotonic() + STACKS_SECONDS
                if sent == signal.SIGTERM and self._descendants is not None:
                    self._descendants.send_stop()
            case ShowProfile(number, steps):
                self._ranks[0].show_profile(number, steps)
            case CallsRequest(number):
                self._ranks[0].request_calls(number)
            case BlockSize(steps):
                for relay in self._records.values():
                    relay.set_size(steps)
            case Over(reason):
                self.over = reason

    def _meant(self, number: int | None) -> list[RankHandle]:
        return [rank for rank in self._ranks if number is None or rank.number == number]

    # -- what time brings --------------------------------------------------------------------------------

    def _on_tick(self, now: float) -> None:
        self._lease.main_thread.expect_tick(self._config.lease_seconds)
        self._keep_link(now)
        silence = self._lease.seconds_since_renewal
        if self.over is not None:
            self._kill_ranks(now, f"the attempt is over ({self.over})")
        elif self._lease.command is SupervisorCommand.LOST:
            self._kill_ranks(now, "the lease is lost")
        elif silence > FENCE * self._config.lease_seconds:
            self._kill_ranks(now, f"no heartbeat for {silence:.0f} s")
        self._check_limits(now)
        self._samples.forward_if_due(now)

    def _keep_link(self, now: float) -> None:
        if self.over is not None:
            return
        with suppress(LinkClosed):
            self._link.beat_if_due(now)
            self._link.flush()
        silence = self._link.seconds_since_heard
        if silence > bearable_silence(self._config):
            self._lose_leader(f"nothing was heard from the leader for {silence:.0f} s")

    def _check_limits(self, now: float) -> None:
        breach = self._limits.find_breach(now)
        if breach is None:
            return
        if not self._has_failed:
            self._has_failed = True
            self.send(failure_of(outcome_of_breach(breach), urgent=breach.is_urgent))
        if breach.is_urgent:
            self._kill_ranks(now, breach.message)

    def _lose_leader(self, why: str) -> None:
        if self.over is None:
            log.warning("leader_lost", why=why)
            self.over = why
            with suppress(OSError):
                self._loop.unregister(self._link.fileno())

    def _kill_ranks(self, now: float, why: str) -> None:
        if self._killed_at is None:
            log.warning("ranks_killed", why=why)
            self._killed_at = now
        for rank in self._ranks:
            rank.kill(signal.SIGKILL)

    def _has_given_up(self) -> bool:
        return self._killed_at is not None and monotonic() - self._killed_at > KILL_SECONDS


def failure_of(outcome: AttemptOutcome, *, urgent: bool) -> PartFailed:
    """What tells the leader that this part cannot go on. `urgent`: the other ranks are to end at once."""
    return PartFailed(outcome.reason, outcome.message, msgspec.json.encode(outcome.error), urgent)
