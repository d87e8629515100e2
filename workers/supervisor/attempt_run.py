"""Everything that a supervisor opens for an attempt once it is claimed, opened and closed in one order."""

import socket
import threading
from dataclasses import replace
from time import monotonic

import structlog

from jobs.files import paths
from jobs.model.catalogue import rows_of
from jobs.model.spec import RecipeProgram
from jobs.model.state import StateReason, SupervisorCommand
from jobs.protocol.records import Note
from jobs.splits.device_marks import DeviceTimes
from jobs.splits.plan import predict_splits
from workers.rank.handle import RankHandle
from workers.runtime.launch import AttemptConfig, AttemptDirectory, StartMessage, WorkingDirectory
from workers.supervisor import descendants, rendezvous, working_dir
from workers.supervisor.checkpoints import directories, resume
from workers.supervisor.checkpoints.writer import AttemptCheckpoints, CheckpointWriter, checkpoint_settings
from workers.supervisor.ending.outcome import AttemptOutcome, may_have_timed_out, name_hang
from workers.supervisor.hangs.diagnosis import find_hang
from workers.supervisor.hangs.flight_dumps import read_dumps
from workers.supervisor.lease import LeaseHolder
from workers.supervisor.rank_monitor import RankMonitor
from workers.supervisor.report.aggregator import LeasedDevice
from workers.supervisor.report.recipe_aggregator import RecipeAggregator
from workers.supervisor.report.script_aggregator import ScriptAggregator
from workers.supervisor.telemetry.hardware_relay import write_sampled_ranks
from workers.supervisor.telemetry.publisher import TelemetryPublisher
from workers.supervisor.telemetry.shipper import StreamShipper
from workers.supervisor.user_files.collection import COPY_SECONDS, HURRIED_SECONDS, keep_files

log = structlog.get_logger(__name__)

#: How long the end of a successful attempt waits for a disk that refuses its report, and how often that is tried.
DISK_SECONDS = 30.0
DISK_RETRY_SECONDS = 0.5
#: Under which name the report's notes say what was not kept of a script's files.
FILES_NOTE = "files"


class AttemptRun:
    """The claimed attempt: `open` starts its ranks, `monitor_ranks` returns when they are dead, `close` completes its
    files, `await_shipping` is last. `abort` undoes an `open` that has failed. What the job does not need stays None."""

    def __init__(self, config: AttemptConfig, lease: LeaseHolder, ranks: list[RankHandle]) -> None:
        self._config = config
        self._lease = lease
        self._ranks = ranks
        self._working_directory: WorkingDirectory | None = None
        self._rendezvous_store: object | None = None
        self._publisher: TelemetryPublisher | None = None
        self._listener: socket.socket | None = None
        self._checkpoints: AttemptCheckpoints | None = None

    def open(self, port: socket.socket | None, telemetry_url: str) -> None:
        """Open what the attempt needs, in this order, and tell the ranks to start as soon as their start message is
        complete. A job without code and checkpoints of its own does not wait for the telemetry.

        Raises:
            BundleUnusable, StartInterrupted, StorageTimeout, Unavailable, OSError: the ranks cannot be started.
        """
        config = self._config
        self._working_directory = working_dir.prepare_working_directory(config, config.spec)
        self._rendezvous_store = rendezvous.serve_store(port) if port is not None else None
        is_complete = self._working_directory is None and checkpoint_settings(config.spec) is None
        if is_complete:
            self._start_ranks(StartMessage(None))
        self._publisher = _open_publisher(config, telemetry_url)
        if self._working_directory is not None:
            self._listener = _listen_to_descendants(self._working_directory, self._publisher)
            working_dir.hand_to_ranks(config, self._working_directory)
            resumed = resume.resume_script(config, config.spec, self._lease, self._publisher)
            self._working_directory = replace(self._working_directory, resume=resumed)
        self._checkpoints = _open_checkpoints(config, self._lease, self._publisher)
        if not is_complete:
            self._start_ranks(self._start_message())

    def monitor_ranks(self) -> AttemptOutcome:
        """Run until all ranks are dead, or would not die."""
        assert self._publisher is not None
        write_sampled_ranks(self._config, self._ranks)
        outcome = RankMonitor(
            self._config,
            self._ranks,
            self._lease,
            self._publisher,
            requirements=self._working_directory is not None and self._working_directory.requirements,
            listener=self._listener,
            checkpoints=self._checkpoints,
        ).run()
        self._rendezvous_store = None
        return outcome

    def close(self, outcome: AttemptOutcome) -> AttemptOutcome:
        """Complete the files, once the attempt's processes are dead. Returns the outcome, which is another one where
        the disk refuses the report of an attempt that has succeeded."""
        assert self._publisher is not None
        if self._checkpoints is not None:
            self._checkpoints.writer.close()
            self._checkpoints.report_to(self._publisher)
        working_dir.reclaim_storage(self._config.storage, self._config.attempt)  # with the drafts of the checkpoints
        outcome = self._explain_hang(self._publisher, outcome)
        self._keep_files(self._publisher)
        if self._checkpoints is not None and outcome.reason is StateReason.COMPLETED:
            _publish_weights(self._checkpoints)
        return self._seal_telemetry(self._publisher, outcome)

    @property
    def device_times(self) -> DeviceTimes | None:
        """What is known of the devices' speed, once `close` has made the final report."""
        return None if self._publisher is None else self._publisher.device_times

    def abort(self) -> None:
        """Complete the log of an attempt that could not be opened."""
        if self._publisher is not None:
            self._publisher.seal()

    def await_shipping(self) -> None:
        """Wait, for a while, until the telemetry Redis has everything."""
        assert self._publisher is not None
        self._publisher.close()

    def _start_ranks(self, message: StartMessage) -> None:
        for rank in self._ranks:
            rank.start_program(message)

    def _start_message(self) -> StartMessage:
        if self._checkpoints is None:
            return StartMessage(self._working_directory)
        return StartMessage(
            self._working_directory, self._checkpoints.directories.drafts, self._checkpoints.resume_directory
        )

    def _explain_hang(self, publisher: TelemetryPublisher, outcome: AttemptOutcome) -> AttemptOutcome:
        """Name the ranks that a collective of NCCL had waited for, where it timed out and ranks have left a dump."""
        directory = self._working_directory
        if directory is None or not may_have_timed_out(outcome):
            return outcome
        hang = find_hang(read_dumps(directory.output), str(directory.root))
        if hang is None:
            return outcome
        publisher.log_line(hang.message)
        return name_hang(outcome, hang.message)

    def _keep_files(self, publisher: TelemetryPublisher) -> None:
        """Keep what a script has left in its working directory, and say in the log and the report what was not kept."""
        began, config = monotonic(), self._config

        def is_time_up() -> bool:
            is_hurried = self._lease.command in (SupervisorCommand.STOP, SupervisorCommand.LOST)
            return monotonic() - began > (HURRIED_SECONDS if is_hurried else COPY_SECONDS)

        directory = AttemptDirectory.of(config.state_dir, config.attempt)
        record = keep_files(directory, config.storage, config.attempt, is_time_up)
        for group in record.left_out if record is not None else ():
            publisher.add_record(0, Note(FILES_NOTE, group.message))
            publisher.log_line(group.message)

    def _seal_telemetry(self, publisher: TelemetryPublisher, outcome: AttemptOutcome) -> AttemptOutcome:
        """Write the final report and seal the logs. An attempt that has succeeded waits a while for a full disk, unless
        it is to stop; without its report it has failed, since a part of its results must not be taken for the whole."""
        completed = outcome.reason is StateReason.COMPLETED
        deadline = monotonic() + (DISK_SECONDS if completed else 0)
        while (
            (why := publisher.write_final_report())
            and monotonic() < deadline
            and self._lease.command is SupervisorCommand.GO
        ):
            threading.Event().wait(DISK_RETRY_SECONDS)
        publisher.seal()
        if not why or not completed:
            return outcome
        message = f"every rank succeeded, but the storage directory refused the report: {why}"
        return AttemptOutcome(StateReason.STORAGE_FAILED, message, result=outcome.result)


def _open_publisher(config: AttemptConfig, telemetry_url: str) -> TelemetryPublisher:
    attempt, spec = config.attempt, config.spec
    directory = paths.attempt_dir(config.storage, attempt.tenant, attempt.job, attempt.number)
    shipper = StreamShipper(telemetry_url, attempt.tenant, attempt.job, attempt.number)
    prediction = predict_splits(spec, *rows_of(spec))
    lease = [
        LeasedDevice(index, device.id, config.node, device.kind, device.name, device.memory_total_bytes)
        for index, device in enumerate(config.devices)
    ]
    kind = RecipeAggregator if isinstance(spec.program, RecipeProgram) else ScriptAggregator
    aggregator = kind(attempt.job, attempt.number, spec, lease, prediction)
    samples = AttemptDirectory.of(config.state_dir, attempt).hardware
    return TelemetryPublisher(directory, attempt, len(config.devices), shipper, aggregator, spec, samples)


def _listen_to_descendants(workplace: WorkingDirectory, publisher: TelemetryPublisher) -> socket.socket | None:
    """The socket to which processes that the job's own code starts report; the job runs without it if need be."""
    try:
        return descendants.open_listener(workplace.socket)
    except OSError as error:  # the system's temporary directory may have a name that is too long for a socket
        reason = f"processes that the script starts cannot be followed: {error}"
        publisher.add_record(0, Note(descendants.NOTE_FIELD, reason))
        return None


def _open_checkpoints(
    config: AttemptConfig, lease: LeaseHolder, publisher: TelemetryPublisher
) -> AttemptCheckpoints | None:
    """Make room for checkpoints, where the job asks for them, and choose the one to resume from.

    Raises:
        StartInterrupted, StorageTimeout, Unavailable, OSError: the ranks cannot be started.
    """
    settings = checkpoint_settings(config.spec)
    if settings is None:
        return None
    locations = directories.directories_of(config)
    directories.prepare_directories(config, locations)
    found = resume.choose_checkpoint(locations, lease, publisher)
    if found is not None:
        publisher.resume_from(found)
    writer = CheckpointWriter(config, locations, settings.keep, lease, publisher.dump_state, found)
    readable = directories.make_readable(config, locations, found) if found is not None else None
    return AttemptCheckpoints(settings, locations, writer, found, readable)


def _publish_weights(checkpoints: AttemptCheckpoints) -> None:
    final = checkpoints.writer.final_directory  # weights of an earlier step would be taken for the last ones
    if final is not None:
        try:
            directories.publish_weights(checkpoints.directories, final)
        except OSError as error:
            log.warning("weights_not_published", error=str(error))
