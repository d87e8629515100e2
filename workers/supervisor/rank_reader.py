"""Reads what ranks send, and keeps of it what the limits of the attempt leave room for: their records, which go to the
monitor one by one, and their output, which goes to the logs. Values of secrets are taken out of both here."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from time import monotonic

import structlog

from jobs.protocol.packets import SingleRecord, StepBatch, batch_steps
from workers.rank.handle import OutputPipe, RankHandle
from workers.supervisor.event_loop import EventLoop, read_waiting
from workers.supervisor.limits.limit_watch import LimitWatch
from workers.supervisor.limits.record_bounds import bound_record
from workers.supervisor.link.messages import MAX_TAIL_BYTES
from workers.supervisor.rank_activity import RankActivity
from workers.supervisor.redaction import SecretRedactor
from workers.supervisor.telemetry.publisher import TelemetryPublisher

log = structlog.get_logger(__name__)

OnRecord = Callable[[RankHandle, StepBatch | SingleRecord], None]


class RankReader:
    """`on_record` takes each record, and `on_corrupt` what is wrong with a channel that is not read any more."""

    def __init__(
        self,
        loop: EventLoop,
        publisher: TelemetryPublisher,
        activity: RankActivity,
        limits: LimitWatch,
        *,
        on_record: OnRecord,
        on_corrupt: Callable[[RankHandle, str], None],
        redactor: SecretRedactor | None = None,
    ) -> None:
        self._loop = loop
        self._publisher = publisher
        self.activity = activity
        self.limits = limits
        self._on_record = on_record
        self._on_corrupt = on_corrupt
        self._redactor = redactor

    def watch_rank(self, rank: RankHandle) -> None:
        self.redact_records([rank])
        self._loop.register_input(rank.channel, partial(self._read_records, rank))
        for output in rank.outputs:
            self._loop.register_input(output.fd, partial(self.read_output, rank, output))

    def redact_records(self, ranks: Iterable[RankHandle]) -> None:
        """Take values of secrets out of what these ranks will send."""
        if self._redactor is not None:
            for rank in ranks:
                rank.decoder.clean = self._redactor.clean_packet

    def read_output(self, rank: RankHandle, output: OutputPipe) -> None:
        # A rank sends what it has recorded before it prints a traceback, and the log has them in this order.
        if self._loop.watches(rank.channel):
            self._read_records(rank)
        self.take_output(rank, output, self._loop.read_ready(output.fd))

    def drain_records(self, rank: RankHandle) -> None:
        """Read the records that a rank had written before it died."""
        for data in self._loop.read_rest(rank.channel):
            self.take_records(rank, data)

    def read_rest(self, ranks: Sequence[RankHandle]) -> None:
        """Read the pipes of dead ranks as far as they are ready: a grandchild that keeps one open is not waited for.
        Those of other nodes have none here."""
        for rank in ranks:
            self.drain_records(rank)
            for output in rank.outputs:
                for data in read_waiting(output.fd) if output.fd >= 0 else ():
                    self.take_output(rank, output, data)
                if self._redactor is not None:
                    self._keep_output(rank, output, self._redactor.end_output(output.fd))

    def _read_records(self, rank: RankHandle) -> None:
        self.take_records(rank, self._loop.read_ready(rank.channel))

    def take_output(self, rank: RankHandle, output: OutputPipe, data: bytes) -> None:
        if not data:
            return
        rank.printed_at = monotonic()
        if self._redactor is not None:
            data = self._redactor.clean_output(output.fd, data)
        self._keep_output(rank, output, data)

    def _keep_output(self, rank: RankHandle, output: OutputPipe, data: bytes) -> None:
        if output.stream == "stderr":
            rank.stderr_tail = (rank.stderr_tail + data)[-MAX_TAIL_BYTES:]
        kept = self.limits.log.add(len(data))
        if kept:
            step = self.activity.next_step(rank.number)
            self._publisher.add_output(output.device, output.stream, rank.number, data[:kept], step)

    def take_records(self, rank: RankHandle, data: bytes) -> None:
        """Take bytes of a rank's channel."""
        if not self.limits.records.add(len(data)):
            return  # the attempt is being ended for what its records take; the pipe is only emptied
        try:
            for packet in rank.decoder.feed(data):
                for record in batch_steps(packet):
                    self._on_record(rank, bound_record(record))
        except ValueError as error:
            log.error("channel_corrupt", rank=rank.number, error=str(error)[:500])
            self._loop.unregister(rank.channel)
            self._on_corrupt(rank, str(error)[:500])
