"""What an attempt tells the world while it runs: logs, metrics, progress, and the split report."""

import contextlib
import os
import time
from pathlib import Path
from time import monotonic

import msgspec
import structlog

from jobs.files import paths
from jobs.files.checkpoints import METRICS, REPORT, Verified
from jobs.files.log_file import StreamName
from jobs.model.spec import JobSpec, RecipeProgram
from jobs.protocol import names
from jobs.protocol.records import AnyRecord, Metric, Step
from jobs.splits.report import Report, encode
from jobs.store import AttemptId
from jobs.support import failpoints
from workers.supervisor.report.aggregator import Aggregator
from workers.supervisor.telemetry.log_relay import Relay
from workers.supervisor.telemetry.output_tail import Tails
from workers.supervisor.telemetry.progress import Progress
from workers.supervisor.telemetry.script_progress import ScriptProgress
from workers.supervisor.telemetry.shipper import Shipper

log = structlog.get_logger(__name__)

PROGRESS_SECONDS = 0.25
REPORT_SECONDS = 1.0
#: Steps of one process that are added to the report at once.
MAX_STEPS_TOGETHER = 1024
#: Snapshots in the telemetry Redis; the files in storage are kept.
SNAPSHOT_TTL = 86_400
#: The same for a report whose file is written: readers turn to that, but for those that are about to look here.
WRITTEN_TTL = 5
#: How long the end of an attempt waits for the telemetry Redis, and how long its supervisor does afterwards.
SEAL_SECONDS = 1.0
SHIP_SECONDS = 10.0


class Publisher:
    """Used by the supervisor's loop alone. A fault in the report never ends a run: it is logged, and the
    report stays as it was."""

    def __init__(
        self,
        directory: Path,
        attempt: AttemptId,
        relay: Relay,
        shipper: Shipper,
        reporter: Aggregator,
        spec: JobSpec,
    ) -> None:
        self._directory = directory
        self._relay = relay
        self._shipper = shipper
        self._report = reporter
        recipe = isinstance(spec.program, RecipeProgram)
        self._progress: Progress | ScriptProgress = Progress(spec.world_size) if recipe else ScriptProgress()
        self._tails = None if recipe else Tails()  # a script says in words what a recipe says in records
        self._progress_key = names.progress_key(attempt.tenant, attempt.job, attempt.number)
        self._report_key = names.report_key(attempt.tenant, attempt.job, attempt.number)
        self._stepped = self._changed = False  # since progress, and since the report, were last published
        self._progress_after = self._report_after = 0.0
        self._published: bytes | None = None
        self._sender = 0, 0  # rank and source of the steps that wait
        self._steps: list[Step] = []
        self._failures: set[str] = set()
        self._final: bytes | None = None  # the report as it is in the end

    def output(self, device: int, stream: StreamName, rank: int, data: bytes, step: int | None) -> None:
        self._relay.output(device, stream, rank, data, step)
        if self._tails is not None:
            self._tails.output(device, stream, rank, data)
            self._stepped = True

    def say(self, text: str) -> None:
        """A line of the service's own, in the first device's log."""
        self._relay.line(0, "service", 0, text, None)

    def record(self, rank: int, record: AnyRecord, source: int = 0) -> None:
        """A record of a rank's own process, or of one that descends from it: each of these has a `source` number.

        Steps, which are most of the records, wait until `on_time` or another kind of record, and are taken together.
        """
        self._changed = True
        if isinstance(record, Step):
            if self._sender != (rank, source) or len(self._steps) >= MAX_STEPS_TOGETHER:
                self._take_steps()
                self._sender = rank, source
            self._steps.append(record)
            return
        if isinstance(record, Metric):
            self._relay.metric(record)
            self._stepped = self._progress.feed(rank, record, source) or self._stepped
            return
        self._take_steps()
        stepped = self._progress.feed(rank, record, source)
        try:
            for line in self._report.feed(rank, record, source):
                self._relay.line(line.device, "shard", rank, line.text, line.step)
        except Exception:  # noqa: BLE001  (logged there, once)
            self._report_failed(type(record).__name__)
        self._stepped = self._stepped or stepped

    def _take_steps(self) -> None:
        steps, self._steps = self._steps, []
        if not steps:
            return
        rank, source = self._sender
        self._stepped = self._progress.feed_steps(rank, steps, source) or self._stepped
        try:
            self._relay.shards(rank, self._report.feed_steps(rank, steps, source))
        except Exception:  # noqa: BLE001  (logged there, once)
            self._report_failed("Step")

    def rank_ended(self, rank: int) -> None:
        self._take_steps()
        try:
            self._report.rank_ended(rank)
        except Exception:  # noqa: BLE001  (logged there, once)
            self._report_failed("end of a rank")

    def source_ended(self, rank: int, source: int) -> None:
        """A process that descends from a rank has ended, and everything it sent was recorded."""
        self._take_steps()
        try:
            self._report.source_ended(rank, source)
        except Exception:  # noqa: BLE001  (logged there, once)
            self._report_failed("end of a process")

    def cut(self) -> tuple[bytes | None, tuple[Path, int]]:
        """The state of the report, None where a fault in it forbids that, and the metrics' file with its length: all
        that was recorded up to now."""
        self._take_steps()
        try:
            state = self._report.dump()
        except Exception:  # noqa: BLE001  (logged there, once)
            self._report_failed("cut")
            state = None
        return state, self._relay.cut_metrics()

    def resume(self, found: Verified) -> None:
        """Go on from a checkpoint, before anything is recorded: its report, its metrics, its steps."""
        if isinstance(self._progress, Progress):
            self._progress.resume(found.manifest.step, found.manifest.epoch)
        try:
            self._report.load((found.directory / REPORT).read_bytes())
        except (OSError, ValueError) as error:
            self.say(f"the split report begins at step {found.manifest.step}: what was before cannot be read ({error})")
        try:
            self._relay.begin_metrics_with(found.directory / METRICS)
        except OSError as error:
            self.say(f"the metrics begin at step {found.manifest.step}: earlier ones cannot be read ({error})")

    def deadline(self) -> float | None:
        """When `on_time` has something to do, by the wall clock."""
        return self._relay.deadline()

    def on_time(self, now: float) -> None:
        """Write what is due; `now` is the wall clock, which decides only about log chunks."""
        self._take_steps()
        self._relay.flush(now)
        tick = monotonic()
        if self._stepped and tick >= self._progress_after:
            self._stepped, self._progress_after = False, tick + PROGRESS_SECONDS
            self._publish_progress()
        if self._changed and tick >= self._report_after:
            self._changed, self._report_after = False, tick + REPORT_SECONDS
            self._publish_report()

    def write_report(self) -> str:
        """Write the final report, for the telemetry Redis too: nothing is recorded from now on. May be called again.

        Returns what the disk said that refused it; "" when it is written, or the fault is in the report itself.
        """
        try:
            if self._final is None:
                self._final = encode(self._snapshot(final=True))
                self._shipper.put(self._report_key, self._final, SNAPSHOT_TTL)
            write_atomically(paths.report_file(self._directory), self._final)
            self._shipper.put(self._report_key, self._final, WRITTEN_TTL)
        except OSError as error:
            if "disk" not in self._failures:
                self._failures.add("disk")
                log.error("report_not_written", error=str(error))
            return error.strerror or str(error)
        except Exception:  # noqa: BLE001  (logged there, once)
            self._report_failed("final report")
        return ""

    def seal(self) -> None:
        """Complete the logs and metrics; then the telemetry Redis has all of it too, unless that is away. Never raises
        for a full disk: what could not be written is said in the supervisor's log."""
        self._relay.close()
        self._publish_progress()
        self._shipper.close(SEAL_SECONDS)

    def close(self) -> None:
        """Wait, for a while, until the telemetry Redis has the rest; the files have it in any case."""
        for left in self._shipper.close(SHIP_SECONDS):
            log.warning("not_shipped", what=left)

    def _snapshot(self, *, final: bool) -> Report:
        self._take_steps()
        last_line = self._tails.last_line() if final and self._tails is not None else ""
        return self._report.snapshot(final, last_line, time.time())

    def _publish_report(self) -> None:
        try:
            self._shipper.put(self._report_key, encode(self._snapshot(final=False)), SNAPSHOT_TTL)
        except Exception:  # noqa: BLE001  (logged there, once)
            self._report_failed("snapshot")

    def _report_failed(self, where: str) -> None:
        """Log the exception at hand, once for each place: a fault may come with every record."""
        if where not in self._failures:
            self._failures.add(where)
            log.exception("report_failed", at=where)

    def _publish_progress(self) -> None:
        if self._tails is not None and isinstance(self._progress, ScriptProgress):
            self._progress.draw(self._tails.bars())
        body = msgspec.json.encode(self._progress.snapshot())
        if body not in (b"null", self._published):
            self._published = body
            self._shipper.put(self._progress_key, body, SNAPSHOT_TTL)


def write_atomically(path: Path, body: bytes) -> None:
    """Replace a file so that a reader sees the old or the new one, whatever happens in between.

    Raises:
        OSError: the disk refuses.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(body)
            file.flush()
            failpoints.reach("report.written")
            os.fsync(file.fileno())
        failpoints.reach("report.synced")
        temporary.rename(path)
        failpoints.reach("report.renamed")
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
