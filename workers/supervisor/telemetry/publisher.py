"""Publishes what an attempt sends while it runs: logs, metrics, progress, and the split report."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from time import monotonic
from typing import Any

import structlog

from jobs.files import paths
from jobs.files.checkpoints import METRICS, REPORT, VerifiedCheckpoint
from jobs.files.log_file import StreamName
from jobs.model.spec import JobSpec
from jobs.protocol import names
from jobs.protocol.packets import SingleRecord, StepBatch
from jobs.protocol.records import Note, Step
from jobs.splits.device_marks import DeviceTimes
from jobs.store import AttemptId
from workers.supervisor.redaction import SecretRedactor
from workers.supervisor.report.aggregator import Aggregator
from workers.supervisor.report.step_blocks import StepBlock
from workers.supervisor.telemetry.hardware_relay import HardwareRelay
from workers.supervisor.telemetry.log_relay import LogRelay
from workers.supervisor.telemetry.metric_relay import MetricRelay
from workers.supervisor.telemetry.progress_publisher import ProgressPublisher
from workers.supervisor.telemetry.report_publisher import FindingListener, ReportPublisher, ignore_findings
from workers.supervisor.telemetry.shipper import StreamShipper

log = structlog.get_logger(__name__)

#: How long the end of an attempt waits for the telemetry Redis, and how long its supervisor does afterwards.
SEAL_SECONDS = 1.0
SHIP_SECONDS = 10.0


class TelemetryPublisher:
    """Passes output and records to the relays, the progress and the report. Used by the supervisor's loop alone."""

    def __init__(
        self,
        directory: Path,
        attempt: AttemptId,
        devices: int,
        shipper: StreamShipper,
        aggregator: Aggregator,
        spec: JobSpec,
        samples: Path,
        redactor: SecretRedactor | None = None,
        on_warnings: FindingListener = ignore_findings,
    ) -> None:
        """`devices`: how many this node has, whose logs are written here. `samples` is the file in which the node
        writes those of the attempt's hardware. `redactor` cleans what the service itself says of the attempt: what
        ranks send comes clean. `on_warnings` is as in `ReportPublisher`.

        Raises:
            OSError: the attempt's directory cannot be made.
        """
        key = attempt.tenant, attempt.job, attempt.number
        self._logs = LogRelay(directory, devices, shipper)
        self._metrics = MetricRelay(directory, shipper)
        self._shipper = shipper
        self._redactor = redactor
        self._progress = ProgressPublisher(spec, shipper, names.progress_key(*key))
        self._hardware = HardwareRelay(samples, shipper, names.hardware_key(*key), paths.hardware_file(directory))
        file = paths.report_file(directory)
        self._report = ReportPublisher(aggregator, shipper, names.report_key(*key), file, on_warnings)

    def add_output(self, device: int, stream: StreamName, rank: int, data: bytes, step: int | None) -> None:
        """Take bytes that a rank has printed."""
        self._logs.add_output(device, stream, rank, data, step)
        self._progress.add_output(device, stream, rank, data)

    def log_line(self, text: str) -> None:
        """Write a line of the service's own to the first device's log."""
        text = text if self._redactor is None else self._redactor.clean_text(text)
        self._logs.add_line(0, "service", 0, text, None)

    def add_record(self, rank: int, record: StepBatch | SingleRecord, source: int = 0) -> None:
        """Take a record, or a batch of steps, of a rank's own process (`source` 0) or of one that descends from it."""
        if isinstance(record, StepBatch):
            self.add_metrics(rank, record, source)
            self.add_steps(rank, record.steps, source)
        else:
            if self._redactor is not None and isinstance(record, Note):
                record = Note(record.field, self._redactor.clean_text(record.reason))
            self._progress.add_record(rank, record, source)
            self._report.add_record(rank, record, source)

    def add_metrics(self, rank: int, batch: StepBatch, source: int = 0) -> None:
        """Take the points of metrics in a batch."""
        for metric in batch.metrics:
            self._metrics.add_point(metric)
        self._report.add_metrics(batch.metrics)
        self._progress.add_metrics(rank, batch.metrics, source)

    def add_steps(self, rank: int, steps: Sequence[Step | StepBlock], source: int = 0) -> None:
        """Take steps of one process, some of them in blocks."""
        for is_block, alike in groupby(steps, key=lambda step: isinstance(step, StepBlock)):
            pieces: list[Any] = list(alike)
            each = [block.last for block in pieces for _ in range(block.count)] if is_block else pieces
            self._progress.add_steps(rank, each, source)
            add = self._report.add_blocks if is_block else self._report.add_steps
            self._logs.add_shard_lines(rank, add(rank, pieces, source))

    def rank_ended(self, rank: int) -> None:
        """Note that a rank has ended, and everything it sent was added."""
        self._report.rank_ended(rank)

    def source_ended(self, rank: int, source: int) -> None:
        """Note that a process that descends from a rank has ended, and everything it sent was added."""
        self._report.source_ended(rank, source)

    def dump_state(self) -> tuple[bytes | None, tuple[Path, int]]:
        """For a checkpoint: the state of the report (None where a fault prevents it), and the metrics' file with its
        length. Both hold all that was added up to now.

        Raises:
            OSError: the disk has no room for all metrics yet.
        """
        return self._report.dump_state(), self._metrics.flush()

    def flush_metrics(self) -> Path:
        """The metrics' file, with all that was added up to now.

        Raises:
            OSError: the disk has no room for all of them yet.
        """
        return self._metrics.flush()[0]

    def resume_from(self, found: VerifiedCheckpoint) -> None:
        """Go on from a checkpoint, before anything is added: with its report, its metrics and its steps."""
        step = found.manifest.step
        self._progress.resume_from(step, found.manifest.epoch)
        try:
            self._report.load_state((found.directory / REPORT).read_bytes())
        except (OSError, ValueError) as error:
            self.log_line(f"the split report begins at step {step}: the earlier part cannot be read ({error})")
        try:
            self._metrics.start_from(found.directory / METRICS)
        except OSError as error:
            self.log_line(f"the metrics begin at step {step}: earlier ones cannot be read ({error})")

    @property
    def metric_bytes(self) -> int:
        """What the points of metrics take on disk."""
        return self._metrics.kept_bytes

    def next_deadline(self) -> float | None:
        """When `flush_due` has something to do, by the wall clock."""
        deadlines = self._logs.next_deadline(), self._metrics.next_deadline()
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def flush_due(self, now: float) -> None:
        """Write and publish what is due; `now` is the wall clock, which decides about logs and metrics only."""
        self._logs.flush_due(now)
        self._metrics.flush_due(now)
        self._progress.publish_if_due(monotonic())
        self._add_samples()
        self._report.publish_if_due(monotonic())

    def write_final_report(self) -> str:
        """Write the final report; nothing is added from now on. May be called again.

        Returns the error of the disk that refused it; "" when it is written, or the fault is in the report itself.
        """
        self._add_samples(at_once=True)
        refused = self._report.write_final(self._progress.last_line())
        self._hardware.save()
        return refused

    def add_part_samples(self, part: int, data: bytes) -> None:
        """Take what another node has sampled of the hardware of its part, as `SampleForwarder` sends it."""
        self._hardware.add_part(part, data)

    def _add_samples(self, *, at_once: bool = False) -> None:
        samples = self._hardware.poll(monotonic(), at_once=at_once)
        if samples is not None:
            self._report.add_samples(samples)

    @property
    def device_times(self) -> DeviceTimes | None:
        """The final report with the attempt's own times, once it was made."""
        return self._report.device_times

    def seal(self) -> None:
        """Complete the logs and metrics, and send them to the telemetry Redis unless it is away. A full disk raises
        nothing: what could not be written is named in the supervisor's log."""
        self._logs.close()
        self._metrics.close()
        self._progress.publish()
        self._shipper.close(SEAL_SECONDS)

    def close(self) -> None:
        """Wait, for a while, until the telemetry Redis has the rest; the files have it in any case."""
        for left in self._shipper.close(SHIP_SECONDS):
            log.warning("not_shipped", what=left)
