"""A part of an attempt on a node that does not lead, from claim to end. The story of its leader is
`workers.supervisor.main:supervise`; what both say to each other, `workers.supervisor.link.messages`.

    join        ask the store where the leader listens, connect, and say which devices are here
    open        unpack the job's own code, and make room for its part of checkpoints
    run_ranks   when the leader has heard of all: start the ranks, and pass on what they send until they are dead
    close       nothing of the attempt is left: say so, wait until it has ended, and give the devices back

Whatever goes wrong before the ranks start is told to the leader, which ends the attempt.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic, sleep

import msgspec
import structlog

from jobs.files import checkpoints
from jobs.files.checkpoints import DamagedCheckpoint
from jobs.model.state import StateReason, SupervisorCommand
from jobs.store import AttemptId
from workers.rank.handle import RankHandle
from workers.runtime.launch import AttemptConfig, AttemptDirectory, StartMessage, WorkingDirectory
from workers.sandbox.box.box import Box
from workers.sandbox.cgroup import read_record
from workers.supervisor import descendants, main_thread_watch, working_dir
from workers.supervisor.carriage import PART_FLUSH_SECONDS, AttemptCarriage
from workers.supervisor.checkpoints import directories, script_resume
from workers.supervisor.checkpoints.writer import checkpoint_settings
from workers.supervisor.descendants import DescendantServer
from workers.supervisor.ending.outcome import AttemptOutcome
from workers.supervisor.gang.interfaces import variables_of_node
from workers.supervisor.gang.part_logs import PartLogs
from workers.supervisor.gang.rank_relay import RankRelay, failure_of
from workers.supervisor.lease import LeaseHolder
from workers.supervisor.limits.disk_room import DiskRoom
from workers.supervisor.limits.full_disk import await_breach, review_failed_start
from workers.supervisor.limits.limit_watch import open_limit_watch
from workers.supervisor.link.connection import Link
from workers.supervisor.link.errors import LinkClosed
from workers.supervisor.link.joining import connect
from workers.supervisor.link.messages import Joined, Over, PartHello, PartSwept, Start, this_version
from workers.supervisor.redaction import SecretRedactor
from workers.supervisor.telemetry.hardware_relay import write_sampled_ranks
from workers.supervisor.working_dir import BundleUnusable

log = structlog.get_logger(__name__)

#: How long the leader may take to end the attempt in the store, once all ranks are dead: it keeps files before.
END_SECONDS = 180.0
#: How many leases long devices are offered to a store that has not heard of the end yet, beside what a leader has that
#: stands still: where its host is gone, the end comes with its lease, or with the next one if that host watched leases.
#: A part that leaves before ends the attempt, and nobody could say then why its supervisor is gone.
RELEASE_LEASES, RELEASE_POLL_SECONDS = 3.0, 0.25
_POLL_SECONDS = 0.005


class PartInterrupted(Exception):
    """The attempt ended before the ranks of this part could start."""


class PartRun:
    def __init__(
        self,
        config: AttemptConfig,
        lease: LeaseHolder,
        ranks: list[RankHandle],
        box: Box | None,
        secrets: Mapping[str, str],
        telemetry_url: str,
        carriage: AttemptCarriage | None = None,
    ) -> None:
        """`secrets` are values of environment variables, which go to the ranks and nowhere else. `telemetry_url`: of
        the Redis that gets the logs. `carriage`: where the storage is not mounted."""
        self._config = config
        self._lease = lease
        self._ranks = ranks
        self._box = box
        self._secrets = secrets
        self._telemetry_url = telemetry_url
        self._carriage = carriage
        self._logs: PartLogs | None = None
        self._deadline = monotonic() + config.join_seconds
        self._link: Link | None = None
        self._relay: RankRelay | None = None
        self._room: DiskRoom | None = None

    def join(self) -> None:
        """Connect to the leader.

        Raises:
            PartInterrupted: the attempt ended meanwhile, or the leader cannot be reached.
            Unavailable: Redis did not answer.
        """
        config = self._config
        endpoint = self._lease.await_link(self._deadline, self._is_interrupted)
        if not endpoint:
            raise PartInterrupted("the leader has not said where it listens")
        hello = PartHello(
            str(config.attempt), config.node, config.address, config.part, len(config.ranks), this_version()
        )
        self._link = connect(endpoint, hello, self._deadline, self._is_interrupted)
        uid = -1 if config.account is None else config.account.uid
        self._link.send(Joined(msgspec.json.encode(config.devices), uid, config.target is not None))

    def run_ranks(self) -> None:
        """Run the ranks once the leader says so, until they are dead, or would not die. What prevents the start is told
        to the leader.

        Raises:
            PartInterrupted: the leader has ended the attempt, or is not heard of any more.
        """
        assert self._link is not None
        try:
            self._room = room = DiskRoom(self._config)
            if self._carriage is not None:
                self._carriage.fetch_bundle(self._config.spec.program.bundle, self._lease.find_bundle_nonce)
            working = working_dir.prepare_working_directory(self._config, self._config.spec, self._box)
            drafts = self._make_drafts()
            if working is not None:
                working_dir.hand_to_ranks(self._config, working, self._box)
            relay = self._open_relay(self._link, room, working)
            start = self._await_start(self._link)
            message = self._start_message(start, working, drafts)
        except (BundleUnusable, OSError, DamagedCheckpoint) as error:
            self._tell_failure(self._link, error)
            raise PartInterrupted(str(error)) from error
        self._relay = relay
        write_sampled_ranks(self._config, self._ranks)
        for rank in self._ranks:
            rank.start_program(message)
        relay.run()
        self._lease.main_thread.expect_within(main_thread_watch.END_SECONDS)

    def close(self, survivors: Mapping[int, str], quarantine: dict[int, str]) -> bool:
        """Say that nothing of the attempt is left here but `survivors`, and give the devices back once it has ended.
        False: that is not known yet, and the node's agent gives them back."""
        if self._logs is not None:
            self._logs.seal()
        if self._carriage is not None:
            self._carriage.finish(PART_FLUSH_SECONDS)  # what is left is the agent's to carry
        if self._link is not None and self._relay is not None:
            self._relay.send(self._describe_sweep(len(survivors)))
            self._relay.await_end(END_SECONDS)
        if self._link is not None:
            self._link.close()
        if self._logs is not None:
            self._logs.await_shipping()
        lease = self._config.lease_seconds
        deadline = monotonic() + main_thread_watch.loop_seconds(lease) + RELEASE_LEASES * lease
        while not self._lease.release_devices(quarantine):
            if monotonic() > deadline:
                return False
            sleep(RELEASE_POLL_SECONDS)
        return True

    def _describe_sweep(self, survivors: int) -> PartSwept:
        if self._room is None or not self._room.was_low:
            return PartSwept(survivors)
        breach = await_breach(self._room)
        return PartSwept(survivors, True, failure_of(breach, urgent=True) if breach is not None else None)

    # -- before the ranks start --------------------------------------------------------------------------

    def _is_interrupted(self) -> bool:
        return self._lease.command is SupervisorCommand.LOST

    def _make_drafts(self) -> directories.CheckpointDirectories | None:
        if checkpoint_settings(self._config.spec) is None:
            return None
        locations = directories.directories_of(self._config)
        directories.prepare_drafts(self._config, locations, self._box)
        return locations

    def _await_start(self, link: Link) -> Start:
        """The leader has its own deadlines, and ends the attempt where another part does not come. It may be silent for
        long, while it verifies a checkpoint: if it is lost, so is the lease."""
        while not self._is_interrupted():
            try:
                for message in link.receive():
                    match message:
                        case Start():
                            return message
                        case Over(reason):
                            raise PartInterrupted(reason)
                link.beat_if_due(monotonic())
                link.flush()
            except LinkClosed as error:
                raise PartInterrupted(str(error)) from error
            sleep(_POLL_SECONDS)
        raise PartInterrupted("the lease is lost")

    def _start_message(
        self, start: Start, working: WorkingDirectory | None, drafts: directories.CheckpointDirectories | None
    ) -> StartMessage:
        config = self._config
        resume = None
        if start.resume and drafts is not None:
            if self._carriage is not None:
                self._carriage.fetch_checkpoint(drafts.kept / start.resume)
            found = checkpoints.read_checkpoint(drafts.kept / start.resume, start.resume_sha256)
            if self._logs is not None:
                self._logs.resume_from(found.manifest.step)
            resume = directories.make_readable(config, drafts, found, self._box)
        elif start.resume and working is not None:
            saved_by = int(start.resume)
            working = replace(working, resume=self._copy_script_checkpoint(saved_by), resumed_attempt=saved_by)
        variables = variables_of_node(config.address, start.master_address, start.master_port)
        return StartMessage(working, drafts.drafts if drafts is not None else None, resume, self._secrets, variables)

    def _copy_script_checkpoint(self, saved_by: int) -> Path:
        """A copy of the checkpoint that the leader's ranks resume from, too: the newest whole one of that attempt."""
        attempt, into = self._config.attempt, AttemptDirectory.of(self._config.state_dir, self._config.attempt).resume
        before = AttemptId(attempt.tenant, attempt.job, saved_by + 1)
        storage = self._config.storage
        if self._carriage is not None:
            storage = self._carriage.fetch_script_checkpoints(before)
        search = script_resume.copy_newest_checkpoint(storage, before, into)
        if self._carriage is not None:
            self._carriage.discard_fetched()
        if search.found is None or search.found.attempt != saved_by:
            raise DamagedCheckpoint(f"the checkpoint of attempt {saved_by} cannot be read on node {self._config.node}")
        copied = Path(os.path.realpath(search.found.directory))
        if self._box is not None:
            self._box.bind(copied, writable=False)
        return copied

    def _tell_failure(self, link: Link, error: Exception) -> None:
        rejected = isinstance(error, BundleUnusable)
        reason = StateReason.REJECTED_BY_WORKER if rejected else StateReason.START_FAILED
        message = f"node {self._config.node}: {error}"
        log.error("part_not_started", error=str(error))
        try:
            outcome = review_failed_start(self._config, AttemptOutcome(reason, message))
            link.send(failure_of(outcome, urgent=True))
            self._await_start(link)  # it is told that the attempt is over
        except (LinkClosed, PartInterrupted):
            return

    def _open_relay(self, link: Link, room: DiskRoom, working: WorkingDirectory | None) -> RankRelay:
        config = self._config
        cgroup = read_record(AttemptDirectory.of(config.state_dir, config.attempt).cgroup)
        own = [] if working is None else [working.root, working.output]
        if working is not None and self._box is None:
            own.append(working.temporary)
        limits = open_limit_watch(config.limits, own, cgroup, lambda: 0, room, len(config.devices))
        redactor = self._make_redactor()
        self._logs = PartLogs(config, self._telemetry_url, limits.log, redactor)
        clean = None if redactor is None else redactor.clean_packet
        relay = RankRelay(config, self._ranks, self._lease, link, limits, self._logs, clean)
        if working is not None:
            try:
                path = working.socket
                listener = self._box.listen(str(path)) if self._box is not None else descendants.open_listener(path)
            except OSError as error:
                log.warning("descendants_not_followed", error=str(error))
                return relay
            uid = None if config.account is None else config.account.uid
            pids = {rank.pid: rank.number for rank in self._ranks}
            relay.follow_descendants(partial(DescendantServer, listener, pids, uid=uid, redactor=redactor))
        return relay

    def _make_redactor(self) -> SecretRedactor | None:
        names = self._config.spec.secrets
        return SecretRedactor({names[one]: value for one, value in self._secrets.items()}) if self._secrets else None
