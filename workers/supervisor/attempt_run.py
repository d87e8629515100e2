"""Everything that a supervisor opens for an attempt once it is claimed, opened and closed in one order."""

import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from time import monotonic
from typing import TypeVar

import structlog

from jobs.files import paths
from jobs.model.catalogue import rows_of
from jobs.model.parts import ranks_of_part
from jobs.model.records import DeviceRecord
from jobs.model.spec import RecipeProgram
from jobs.model.state import StateReason, SupervisorCommand
from jobs.protocol.records import Note
from jobs.splits.device_marks import DeviceTimes
from jobs.splits.plan import predict_splits
from jobs.support.logging_config import clean_log_lines
from shardyard.contract.report import describe_bytes
from shardyard.formatting import count_noun
from workers.rank.handle import RankHandle
from workers.runtime.disk_ledger import DiskVerdict
from workers.runtime.launch import AttemptConfig, AttemptDirectory, StartMessage, WorkingDirectory
from workers.sandbox.box.box import Box
from workers.sandbox.cgroup import read_record
from workers.supervisor import descendants, rendezvous, working_dir
from workers.supervisor.carriage import AttemptCarriage
from workers.supervisor.checkpoints import directories, resume
from workers.supervisor.checkpoints.resume import StartInterrupted
from workers.supervisor.checkpoints.writer import AttemptCheckpoints, CheckpointWriter, checkpoint_settings
from workers.supervisor.ending.exports import export_metrics
from workers.supervisor.ending.outcome import LEASE_LOST, AttemptOutcome, may_have_timed_out, name_hang
from workers.supervisor.ending.pending_end import PendingCheckpoint
from workers.supervisor.gang.clocks import describe_clocks
from workers.supervisor.gang.followers import Followers
from workers.supervisor.gang.interfaces import variables_of_node
from workers.supervisor.gang.outcomes import review_disks, review_lost_part
from workers.supervisor.hangs.diagnosis import find_hang
from workers.supervisor.hangs.flight_dumps import read_dumps
from workers.supervisor.lease import LeaseHolder
from workers.supervisor.limits.disk_cleanup import remove_newest_files
from workers.supervisor.limits.disk_room import DiskRoom
from workers.supervisor.limits.full_disk import review_failure
from workers.supervisor.limits.limit_watch import open_limit_watch
from workers.supervisor.link.admission import ExpectedPart, LinkListener
from workers.supervisor.link.errors import JoinInterrupted
from workers.supervisor.link.messages import Start
from workers.supervisor.main_thread_watch import END_SECONDS
from workers.supervisor.rank_monitor import RankMonitor
from workers.supervisor.redaction import SecretRedactor
from workers.supervisor.report.leased_devices import LeasedDevice
from workers.supervisor.report.recipe_aggregator import RecipeAggregator
from workers.supervisor.report.script_aggregator import ScriptAggregator
from workers.supervisor.telemetry.hardware_relay import write_sampled_ranks
from workers.supervisor.telemetry.publisher import TelemetryPublisher
from workers.supervisor.telemetry.shipper import StreamShipper
from workers.supervisor.user_files.collection import COPY_SECONDS, HURRIED_SECONDS, keep_files

T = TypeVar("T")

#: Ends that do not wait for files to be carried: the user wants no more of them, or they do not count.
_NOT_AWAITED = (StateReason.CANCELLED_BY_USER, LEASE_LOST.reason)

log = structlog.get_logger(__name__)

#: How long the end of a successful attempt waits for a disk that refuses its report, and how often that is tried.
DISK_SECONDS = 30.0
DISK_RETRY_SECONDS = 0.5
#: Under which name the report's notes say what was not kept of a script's files.
FILES_NOTE = "files"
#: And about the metrics as files of other tools.
EXPORT_NOTE = "export"
#: And what they say of clocks.
CLOCKS_NOTE = "clocks"
#: And of nodes that are one machine.
NODES_NOTE = "per_node"


class AttemptRun:
    """The claimed attempt: `open` starts its ranks, `monitor_ranks` returns when they are dead, `close` completes its
    files, `await_shipping` is last. `abort` undoes an `open` that has failed. What the job does not need stays None."""

    def __init__(
        self,
        config: AttemptConfig,
        lease: LeaseHolder,
        ranks: list[RankHandle],
        box: Box | None,
        secrets: Mapping[str, str],
        link_listener: LinkListener | None = None,
        carriage: AttemptCarriage | None = None,
    ) -> None:
        """`secrets` are values of environment variables, which go to the ranks and nowhere else. `link_listener`: where
        the attempt's parts on other nodes join. `carriage`: where the storage is not mounted."""
        self._config = config
        self._lease = lease
        self._ranks = ranks
        self._link_listener = link_listener
        self._carriage = carriage
        self._followers: Followers | None = None
        self._box = box
        self._secrets = secrets
        self._redactor = _make_redactor(config.spec.secrets, secrets)
        self._working_directory: WorkingDirectory | None = None
        self._rendezvous_store: object | None = None
        self._publisher: TelemetryPublisher | None = None
        self._listener: socket.socket | None = None
        self._checkpoints: AttemptCheckpoints | None = None
        self._room: DiskRoom | None = None

    def open(self, port: socket.socket | None, telemetry_url: str) -> None:
        """Open what the attempt needs, in this order, and tell the ranks to start as soon as their start message is
        complete. A job without code and checkpoints of its own does not wait for the telemetry.

        Raises:
            BundleUnusable, StartInterrupted, StorageTimeout, Unavailable, OSError: the ranks cannot be started.
            NotJoined, FollowerGone: a part on another node is missing.
        """
        config = self._config
        self._room = DiskRoom(config)
        if self._carriage is not None:
            self._carriage.fetch_bundle(config.spec.program.bundle, self._lease.find_bundle_nonce)
        self._working_directory = working_dir.prepare_working_directory(config, config.spec, self._box)
        variables: dict[str, str] = {}
        if port is not None:
            address = port.getsockname()[:2]
            self._serve_rendezvous(port)
            if config.is_gang:
                variables = variables_of_node(config.address, *address)
        if self._link_listener is not None:
            self._followers = self._admit_followers(self._link_listener)
            self._ranks = [*self._ranks, *self._followers.ranks]
            self._followers.await_devices()
        is_complete = self._working_directory is None and checkpoint_settings(config.spec) is None
        if is_complete:
            self._start_ranks(StartMessage(None, rendezvous=variables))
        self._publisher = _open_publisher(config, self.devices, telemetry_url, self._redactor, self._lease)
        if self._working_directory is not None:
            self._listener = _listen_to_descendants(self._working_directory, self._publisher, self._box)
            working_dir.hand_to_ranks(config, self._working_directory, self._box)
            resumed = resume.resume_script(config, config.spec, self._lease, self._publisher, self._carriage)
            if resumed is not None:
                if self._box is not None:
                    self._box.bind(resumed.directory, writable=False)
                self._working_directory = replace(
                    self._working_directory, resume=resumed.directory, resumed_attempt=resumed.attempt
                )
        self._checkpoints = self._open_checkpoints(self._publisher)
        if not is_complete:
            self._start_ranks(replace(self._start_message(), rendezvous=variables))

    def monitor_ranks(self) -> AttemptOutcome:
        """Run until all ranks are dead, or would not die."""
        publisher = self._publisher
        assert publisher is not None
        write_sampled_ranks(self._config, self._ranks[: len(self._config.ranks)])
        cgroup = read_record(AttemptDirectory.of(self._config.state_dir, self._config.attempt).cgroup)
        own = self._own_directories()
        assert self._room is not None
        limits = open_limit_watch(
            self._config.limits, own, cgroup, lambda: publisher.metric_bytes, self._room, len(self._config.devices)
        )
        outcome = RankMonitor(
            self._config,
            self._ranks,
            self._lease,
            publisher,
            requirements=self._working_directory is not None and self._working_directory.requirements,
            listener=self._listener,
            checkpoints=self._checkpoints,
            limits=limits,
            redactor=self._redactor,
            followers=self._followers,
            carriage=self._carriage,
        ).run()
        self._lease.main_thread.expect_within(END_SECONDS)
        self._rendezvous_store = None
        lost = self._followers.lost_part if self._followers is not None else None
        return outcome if lost is None else review_lost_part(self._config, outcome, lost, self._lease)

    def close(self, outcome: AttemptOutcome) -> AttemptOutcome:
        """Complete the files, once the attempt's processes are dead. Returns the outcome, which is another one where
        the disk refuses the report of an attempt that has succeeded."""
        assert self._publisher is not None
        if self._followers is not None:
            self._followers.await_sweep()
            if clocks := describe_clocks(self._config.node, self._followers.clock_offsets):
                self._publisher.add_record(0, Note(CLOCKS_NOTE, clocks))
        if self._checkpoints is not None:
            self._checkpoints.writer.close()
            self._checkpoints.report_to(self._publisher)
        assert self._room is not None
        outcome = review_failure(self._config, outcome, self._room)
        if self._followers is not None:
            outcome = review_disks(outcome, self._followers.swept)
        verdict = self._room.verdict
        if verdict is not None:
            self._remove_newest_files(self._publisher, verdict)
        working_dir.reclaim_storage(self._config.storage, self._config.attempt)  # with the drafts of the checkpoints
        outcome = self._explain_hang(self._publisher, outcome)
        if verdict is None:
            self._keep_files(self._publisher)
        if self._checkpoints is not None and outcome.reason is StateReason.COMPLETED:
            _publish_weights(self._checkpoints)
        if verdict is None:
            self._export_metrics(self._publisher)
        outcome = self._seal_telemetry(self._publisher, outcome)
        return AttemptOutcome(outcome.reason, *self.redact((outcome.message, outcome.error, outcome.result)))

    def is_delivered(self, outcome: AttemptOutcome) -> bool:
        """Wait, for a while, until the files and the newest checkpoint are where others read them. False: the end has
        to wait for them, unless the user or another attempt does not."""
        if self._carriage is None or outcome.reason in _NOT_AWAITED:
            return True
        return self._carriage.finish() and self.pending_checkpoint is None

    @property
    def pending_checkpoint(self) -> PendingCheckpoint | None:
        """The newest checkpoint of the attempt, where it is not at the storage yet."""
        return self._checkpoints.writer.pending_checkpoint if self._checkpoints is not None else None

    @property
    def is_carried(self) -> bool:
        """Whether its files go to a storage that is not mounted here."""
        return self._carriage is not None

    def redact(self, value: T) -> T:
        """The same text, or mapping or tuple of texts, without values of the job's secrets."""
        return value if self._redactor is None else self._redactor.clean_tree(value)

    @property
    def devices(self) -> dict[int, tuple[DeviceRecord, ...]]:
        """Those of each part: of all of them once `open` has heard of the followers'."""
        own = {self._config.part: self._config.devices}
        return own if self._followers is None else own | self._followers.devices

    @property
    def device_times(self) -> DeviceTimes | None:
        """What is known of the devices' speed, once `close` has made the final report."""
        return None if self._publisher is None else self._publisher.device_times

    def abort(self) -> None:
        """Complete the log of an attempt that could not be opened."""
        if self._publisher is not None:
            self._publisher.seal()

    def dismiss_followers(self, reason: str) -> None:
        """The end of the attempt is written: the parts on other nodes leave."""
        if self._followers is not None:
            self._followers.end(reason)

    def await_shipping(self) -> None:
        """Wait, for a while, until the telemetry Redis has everything."""
        assert self._publisher is not None
        self._publisher.close()

    def _serve_rendezvous(self, port: socket.socket) -> None:
        if self._box is not None and self._box.has_own_network:
            self._box.serve_store(port)
        else:
            self._rendezvous_store = rendezvous.serve_store(port)

    def _own_directories(self) -> list[Path]:
        """Where the ranks write to the disk. In a box, temporary files are in memory."""
        own, saved = self._working_directory, self._checkpoints
        directories = [saved.directories.drafts] if saved is not None else []
        if own is not None:
            directories += [own.root, own.output]
        return directories if own is None or self._box is not None else [*directories, own.temporary]

    def _admit_followers(self, listener: LinkListener) -> Followers:
        config, lease = self._config, self._lease
        expected = {
            part: ExpectedPart(node, len(ranks_of_part(part, len(config.devices), config.strategy)))
            for part, node in enumerate(config.parts)
            if part != config.part
        }
        deadline = monotonic() + config.join_seconds
        try:
            links = listener.admit(expected, deadline, lambda: lease.command is not SupervisorCommand.GO)
        except JoinInterrupted as error:
            raise StartInterrupted(lease.command) from error
        finally:
            listener.close()
        return Followers(config, links)

    def _start_ranks(self, message: StartMessage) -> None:
        for rank in self._ranks:
            rank.start_program(message)
        if self._followers is not None:
            self._followers.start_ranks(_start_of_parts(message, self._checkpoints))

    def _open_checkpoints(self, publisher: TelemetryPublisher) -> AttemptCheckpoints | None:
        """Make room for checkpoints, where the job asks for them, and choose the one to resume from.

        Raises:
            StartInterrupted, StorageTimeout, Unavailable, OSError: the ranks cannot be started.
        """
        config = self._config
        settings = checkpoint_settings(config.spec)
        if settings is None:
            return None
        locations = directories.directories_of(config)
        directories.prepare_directories(config, locations, self._box)
        found = resume.choose_checkpoint(locations, self._lease, publisher, self._carriage)
        if found is not None:
            publisher.resume_from(found)
        others = [] if self._followers is None else self._followers.draft_sources(locations.attempt)
        writer = CheckpointWriter(
            config, locations, settings.keep, self._lease, publisher.dump_state, found, others, self._carriage
        )
        readable = directories.make_readable(config, locations, found, self._box) if found is not None else None
        return AttemptCheckpoints(settings, locations, writer, found, readable)

    def _start_message(self) -> StartMessage:
        if self._checkpoints is None:
            return StartMessage(self._working_directory, secrets=self._secrets)
        drafts, resumed = self._checkpoints.directories.drafts, self._checkpoints.resume_directory
        return StartMessage(self._working_directory, drafts, resumed, self._secrets)

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

    def _remove_newest_files(self, publisher: TelemetryPublisher, verdict: DiskVerdict) -> None:
        """Make room again on a disk that this attempt has filled: what it wrote meanwhile goes, and nothing is kept of
        its working directory."""
        stored = paths.dir_of_attempt(self._config.storage, self._config.attempt)
        removed = remove_newest_files(paths.artifacts_dir(stored.absolute()), verdict.since)
        message = (
            f"the attempt has filled a disk: the files of its working directory are not kept, and of those in "
            f"SHARDYARD_OUTPUT_DIR {count_noun(removed.files, 'file')} ({describe_bytes(removed.bytes)}) that it "
            f"wrote in the last {time.time() - verdict.since:.0f} s were removed"
        )
        publisher.add_record(0, Note(FILES_NOTE, message))
        publisher.log_line(message)

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

    def _export_metrics(self, publisher: TelemetryPublisher) -> None:
        """Not where the service stops, or another attempt goes on: that one has these metrics too."""
        config = self._config
        if not config.spec.program.export or self._lease.command in (SupervisorCommand.STOP, SupervisorCommand.LOST):
            return
        try:
            problems = export_metrics(config.spec, config.attempt, config.storage, publisher.flush_metrics())
            for problem in problems:
                publisher.add_record(0, Note(EXPORT_NOTE, problem))
                publisher.log_line(problem)
        except OSError as error:
            publisher.log_line(f"program.export: the metrics were not exported: {error}")

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
        assert self._room is not None
        refused = AttemptOutcome(StateReason.STORAGE_FAILED, message, result=outcome.result)
        return review_failure(self._config, refused, self._room)


def _start_of_parts(message: StartMessage, checkpoints: AttemptCheckpoints | None) -> Start:
    """What the parts on other nodes need to start their ranks as `message` starts those of this one."""
    variables = message.rendezvous
    resume, sha256 = "", ""
    if checkpoints is not None and checkpoints.resumed is not None:
        resume, sha256 = checkpoints.resumed.directory.name, checkpoints.resumed.sha256
    elif message.working_directory is not None and message.working_directory.resumed_attempt:
        resume = str(message.working_directory.resumed_attempt)
    return Start(variables["MASTER_ADDR"], int(variables["MASTER_PORT"]), resume, sha256)


def _make_redactor(names: Mapping[str, str], secrets: Mapping[str, str]) -> SecretRedactor | None:
    """What keeps a job's secrets out of all that is shown of it, this process's own log too; None where it has none."""
    if not secrets:
        return None
    redactor = SecretRedactor({name: secrets[variable] for variable, name in names.items()})
    clean_log_lines(redactor.clean)
    return redactor


def _open_publisher(
    config: AttemptConfig,
    devices: Mapping[int, tuple[DeviceRecord, ...]],
    telemetry_url: str,
    redactor: SecretRedactor | None,
    holder: LeaseHolder,
) -> TelemetryPublisher:
    """`devices` are those of each part."""
    attempt, spec = config.attempt, config.spec
    directory = paths.dir_of_attempt(config.storage, attempt)
    shipper = StreamShipper(telemetry_url, attempt.tenant, attempt.job, attempt.number)
    prediction = predict_splits(spec, *rows_of(spec))
    placed = [(part, device) for part in sorted(devices) for device in devices[part]]
    lease = [
        LeasedDevice(index, device.id, _node_of(config, part), device.kind, device.name, device.memory_total_bytes)
        for index, (part, device) in enumerate(placed)
    ]
    kind = RecipeAggregator if isinstance(spec.program, RecipeProgram) else ScriptAggregator
    aggregator = kind(attempt.job, attempt.number, spec, lease, prediction)
    samples = AttemptDirectory.of(config.state_dir, attempt).hardware
    own = len(config.devices)  # each node writes the logs of its own
    publisher = TelemetryPublisher(
        directory, attempt, own, shipper, aggregator, spec, samples, redactor, holder.post_findings
    )
    if len(devices) > 1 and ip_address(config.address).is_loopback:
        reason = "the nodes are parts of one machine: they share its processors, memory and disks, and no cable is used"
        publisher.add_record(0, Note(NODES_NOTE, reason))
    return publisher


def _node_of(config: AttemptConfig, part: int) -> str:
    return config.parts[part] if config.parts else config.node


def _listen_to_descendants(
    workplace: WorkingDirectory, publisher: TelemetryPublisher, box: Box | None
) -> socket.socket | None:
    """The socket to which processes that the job's own code starts report; the job runs without it if need be."""
    try:
        return box.listen(str(workplace.socket)) if box is not None else descendants.open_listener(workplace.socket)
    except OSError as error:  # the system's temporary directory may have a name that is too long for a socket
        reason = f"processes that the script starts cannot be followed: {error}"
        publisher.add_record(0, Note(descendants.NOTE_FIELD, reason))
        return None


def _publish_weights(checkpoints: AttemptCheckpoints) -> None:
    final = checkpoints.writer.final_directory  # weights of an earlier step would be taken for the last ones
    if final is not None:
        try:
            directories.publish_weights(checkpoints.directories, final)
        except OSError as error:
            log.warning("weights_not_published", error=str(error))
