"""The logs of a part that does not lead: its own host writes them, so nothing that is printed goes to another one.

What its ranks print, and the lines about their shards, are appended to the files of its devices in the shared storage
and shipped to the telemetry Redis, as the leader does with its own. The leader gets records, and the end of what a rank
has written to stderr when that ends.
"""

import time

from jobs.files import paths
from jobs.protocol.packets import SingleRecord, StepBatch
from jobs.protocol.records import BatchSplit
from workers.rank.handle import OutputPipe, RankHandle
from workers.runtime.launch import AttemptConfig
from workers.supervisor.limits.log_meter import LogMeter
from workers.supervisor.link.messages import MAX_TAIL_BYTES
from workers.supervisor.rank_activity import RankActivity
from workers.supervisor.redaction import SecretRedactor
from workers.supervisor.report.process_state import SplitTable
from workers.supervisor.report.shard_lines import ShardLinePrinter
from workers.supervisor.telemetry.log_relay import LogRelay
from workers.supervisor.telemetry.publisher import SEAL_SECONDS, SHIP_SECONDS
from workers.supervisor.telemetry.shipper import StreamShipper

#: Processes beside the ranks whose shards are told apart.
MAX_DESCENDANTS = 256


class PartLogs:
    """Used by the loop of one follower."""

    def __init__(
        self, config: AttemptConfig, telemetry_url: str, meter: LogMeter, redactor: SecretRedactor | None
    ) -> None:
        """`meter` counts what the ranks print. `redactor`: where the job has secrets.

        Raises:
            OSError: the attempt's directory cannot be made.
        """
        attempt, spec = config.attempt, config.spec
        directory = paths.dir_of_attempt(config.storage, attempt)
        self._shipper = StreamShipper(telemetry_url, attempt.tenant, attempt.job, attempt.number)
        self._logs = LogRelay(directory, len(config.devices), self._shipper, first=config.first_device)
        self._meter = meter
        self._redactor = redactor
        self._world_size = config.world_size
        self._activity = RankActivity(config.world_size, 0)
        self._printer = ShardLinePrinter(spec.observe, spec.parallelism.dim)
        self._splits: dict[tuple[int, int], SplitTable] = {}

    def resume_from(self, step: int) -> None:
        """Begin after so many steps."""
        self._activity = RankActivity(self._world_size, step)

    def add_output(self, rank: RankHandle, output: OutputPipe, data: bytes) -> None:
        if self._redactor is not None:
            data = self._redactor.clean_output(output.fd, data)
        self._keep(rank, output, data)

    def end_output(self, rank: RankHandle, output: OutputPipe) -> None:
        """A rank is dead, and prints nothing any more."""
        if self._redactor is not None:
            self._keep(rank, output, self._redactor.end_output(output.fd))

    def _keep(self, rank: RankHandle, output: OutputPipe, data: bytes) -> None:
        if output.stream == "stderr":
            rank.stderr_tail = (rank.stderr_tail + data)[-MAX_TAIL_BYTES:]
        kept = self._meter.add(len(data))
        if kept:
            step = self._activity.next_step(rank.number)
            self._logs.add_output(output.device, output.stream, rank.number, data[:kept], step)

    def add_record(self, rank: int, record: StepBatch | SingleRecord, source: int = 0) -> None:
        """Take what a process has sent: how its batches were divided is in the log, and where it is."""
        process = rank, source
        if process not in self._splits and len(self._splits) >= MAX_DESCENDANTS:
            return
        splits = self._splits.setdefault(process, SplitTable())
        if isinstance(record, BatchSplit):
            splits.put(record)
        elif isinstance(record, StepBatch):
            for step in record.steps:
                known = [split for split in map(splits.get, step.splits) if split is not None]
                self._logs.add_shard_lines(rank, self._printer.lines(rank, [step], known))
        self._activity.add_record(rank, record)

    def seconds_to_deadline(self, longest: float) -> float:
        """How long the loop may sleep before `flush_due` has something to do."""
        deadline = self._logs.next_deadline()
        return longest if deadline is None else min(longest, max(0.0, deadline - time.time()))

    def flush_due(self) -> None:
        self._logs.flush_due(time.time())

    def seal(self) -> None:
        """Complete the files, and send them to the telemetry Redis unless it is away."""
        self._logs.close()
        self._shipper.close(SEAL_SECONDS)

    def await_shipping(self) -> None:
        """Wait, for a while, until the telemetry Redis has everything; the files have it in any case."""
        self._shipper.close(SHIP_SECONDS)
