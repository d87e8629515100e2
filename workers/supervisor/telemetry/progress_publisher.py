"""Publishes how far an attempt is: the status's `progress`, at most four times a second."""

from collections.abc import Sequence

import msgspec
import structlog

from jobs.files.log_file import StreamName
from jobs.model.spec import JobSpec, RecipeProgram
from jobs.protocol.packets import SingleRecord
from jobs.protocol.records import MetricSample, Step
from workers.supervisor.telemetry.output_tail import OutputTails
from workers.supervisor.telemetry.progress import RecipeProgress
from workers.supervisor.telemetry.script_progress import ScriptProgress
from workers.supervisor.telemetry.shipper import StreamShipper

log = structlog.get_logger(__name__)

PROGRESS_SECONDS = 0.25
PROGRESS_TTL = 86_400


class ProgressPublisher:
    """Feeds the progress of a recipe or a script, and publishes it as `key` in the telemetry Redis."""

    def __init__(self, spec: JobSpec, shipper: StreamShipper, key: str) -> None:
        recipe = isinstance(spec.program, RecipeProgram)
        self._progress: RecipeProgress | ScriptProgress = (
            RecipeProgress(spec.world_size) if recipe else ScriptProgress()
        )
        self._output_tail = None if recipe else OutputTails()  # a script prints what a recipe sends as records
        self._shipper = shipper
        self._key = key
        self._changed = False  # since it was last published
        self._publish_after = 0.0
        self._published = b"null"
        self._has_failed = False

    def resume_from(self, step: int, epoch: int) -> None:
        """Begin after so many steps of a recipe, in an epoch that is counted from 0."""
        if isinstance(self._progress, RecipeProgress):
            self._progress.resume_from(step, epoch)

    def add_output(self, device: int, stream: StreamName, rank: int, data: bytes) -> None:
        if self._output_tail is not None:
            self._output_tail.add_output(device, stream, rank, data)
            self._changed = True

    def add_record(self, rank: int, record: SingleRecord, source: int) -> None:
        self._changed = self._progress.add_record(rank, record, source) or self._changed

    def add_metrics(self, rank: int, metrics: Sequence[MetricSample], source: int) -> None:
        for metric in metrics:
            self._changed = self._progress.add_record(rank, metric, source) or self._changed

    def add_steps(self, rank: int, steps: Sequence[Step], source: int) -> None:
        self._changed = self._progress.add_steps(rank, steps, source) or self._changed

    def last_line(self) -> str:
        """The last line that a script has printed, "" of a recipe."""
        return self._output_tail.last_line() if self._output_tail is not None else ""

    def publish_if_due(self, now: float) -> None:
        """Publish where something has changed; `now` is monotonic."""
        if self._changed and now >= self._publish_after:
            self._changed, self._publish_after = False, now + PROGRESS_SECONDS
            self.publish()

    def publish(self) -> None:
        """Publish the progress, unless it is as it was. What a program prints and says of itself may make no sense."""
        try:
            self._publish()
        except (ArithmeticError, ValueError) as error:
            if not self._has_failed:
                self._has_failed = True
                log.warning("progress_not_published", error=str(error))

    def _publish(self) -> None:
        if self._output_tail is not None and isinstance(self._progress, ScriptProgress):
            self._progress.set_bars(self._output_tail.open_bars())
        body = msgspec.json.encode(self._progress.make_status())
        if body not in (b"null", self._published):
            self._published = body
            self._shipper.put_blob(self._key, body, PROGRESS_TTL)
