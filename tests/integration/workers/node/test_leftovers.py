"""What a node's agent does with attempts whose supervisor is gone, and whose files are not all at the remote: a real
Redis, and a directory in the place of the remote."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from jobs import store
from jobs.files import paths, user_files
from jobs.files.checkpoints import FORMAT, MANIFEST, CheckpointManifest, ManifestFile
from jobs.model.settings import Settings
from jobs.model.state import JobState, StateReason
from jobs.storage.remote import DigestMismatch, RemoteError, RemoteRefused, RemoteUnavailable, UnknownFile
from jobs.support import failpoints
from tests.integration.store.invariants import violations
from tests.integration.store.world import World
from tests.support.servers.redis_server import running_redis
from tests.support.unreliable_storage import UnreliableStorage
from workers.carrier import journal
from workers.carrier.journal import CarryJournal, carried_attempts
from workers.node.attempt_reaper import AttemptReaper
from workers.node.carrying import leftovers, refusals
from workers.node.carrying.leftovers import LeftoverCarrier
from workers.node.config import NodeConfig
from workers.node.held_attempts import HeldAttempts
from workers.runtime.launch import AttemptDirectory
from workers.supervisor.ending.pending_end import PendingCheckpoint, PendingEnd, save_pending_end

pytestmark = pytest.mark.integration

AWAY = RemoteUnavailable("away")
SAID_BY_S3 = (
    "Generic S3 error: Error performing PUT http://127.0.0.1:1/bucket/x in 3 ms - Server returned non-2xx status code: "
    '400 Bad Request: <?xml version="1.0"?>\n<Error><Code>InvalidArgument</Code>\n<Message>no < there</Message></Error>'
)


@pytest.fixture(scope="module")
def server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_redis(tmp_path_factory.mktemp("store")) as url:
        yield url


class Node(World):
    """A node with one running attempt, whose supervisor has just left with files to carry."""

    def __init__(self, url: str, directory: Path) -> None:
        super().__init__(url)
        self.redis.flushall()
        self.away = directory / "remote"
        self.away.mkdir()
        self.remote = UnreliableStorage(self.away)
        where = Path(f"file://{self.away}")
        settings = Settings(redis_url=url, storage=where, state_dir=directory, node="n1", beat_seconds=0.001)
        self.config = NodeConfig(settings, ())
        self.node(devices=1)
        self.left = self.running()
        self.directory = AttemptDirectory.of(self.config.state_dir, self.left)
        self.files = paths.attempt_dir(self.config.storage, self.left.tenant, self.left.job, self.left.number)
        self.files.mkdir(parents=True)
        paths.report_file(self.files).write_bytes(b"{}")
        CarryJournal.of(self.config.state_dir, self.left)
        self.carrier = self.restarted()

    def restarted(self) -> LeftoverCarrier:
        """As another worker's."""
        return LeftoverCarrier(self.config, self.store, lambda: (), self.remote)

    def saved_checkpoint(self, step: int) -> PendingCheckpoint:
        """One that is on the node's disk."""
        body = b"weights"
        files = {"rank-0.pt": ManifestFile(len(body), hashlib.sha256(body).hexdigest())}
        manifest = CheckpointManifest(
            format=FORMAT, step=step, epoch=0, attempt=1, world_size=1, strategy="single", files=files
        ).encode()
        directory = paths.checkpoint_dir(self.config.storage, self.left.tenant, self.left.job, step, 1)
        directory.mkdir(parents=True)
        (directory / "rank-0.pt").write_bytes(body)
        (directory / MANIFEST).write_bytes(manifest)
        return PendingCheckpoint(step, 0, hashlib.sha256(manifest).hexdigest())

    def leave_end(
        self,
        reason: StateReason = StateReason.COMPLETED,
        checkpoint: PendingCheckpoint | None = None,
        message: str = "",
    ) -> None:
        """As a supervisor does for which the remote was away too long."""
        assert self.run(store.hand_back(self.left, "c", "n1", {}))
        self.directory.create()
        save_pending_end(self.directory.pending_end, PendingEnd("c", reason, message, checkpoint=checkpoint))

    def beats(self) -> int:
        return int(self.redis.hget(f"sy:attempt:{self.left}", "beat") or 0)

    def arrived(self) -> bytes | None:
        attempt = paths.attempt_dir(self.away, self.left.tenant, self.left.job, self.left.number)
        report = paths.report_file(attempt)
        return report.read_bytes() if report.exists() else None

    def is_cleared(self) -> bool:
        waiting = list(carried_attempts(self.config.state_dir))
        return not (waiting or self.files.exists() or self.directory.directory.exists())


@pytest.fixture
def node(server_url: str, tmp_path: Path) -> Iterator[Node]:
    node = Node(server_url, tmp_path)
    yield node
    try:
        assert violations(node.redis) == []
    finally:
        node.store.close()


def test_an_end_is_told_when_its_files_have_arrived_and_not_before(node: Node) -> None:
    node.leave_end()
    node.remote.fault = AWAY
    assert not node.carrier.carry_round()
    assert node.state(node.left.job) is JobState.RUNNING
    node.remote.fault = None
    assert node.carrier.carry_round()
    assert (node.state(node.left.job), node.arrived()) == (JobState.SUCCEEDED, b"{}")
    assert node.is_cleared()


def test_the_lease_is_renewed_while_the_remote_is_away(node: Node) -> None:
    node.leave_end()
    node.remote.fault = AWAY
    before = node.beats()
    node.carrier.carry_round()
    node.carrier.renew_leases()
    assert node.beats() == before + 1


def test_another_worker_goes_on_after_a_restart(node: Node) -> None:
    node.leave_end()
    node.remote.fault = AWAY
    node.carrier.carry_round()
    node.remote.fault = None
    assert node.restarted().carry_round()
    assert node.state(node.left.job) is JobState.SUCCEEDED


def test_a_worker_that_dies_before_it_tells_the_end_tells_it_after_its_restart(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.leave_end()
    monkeypatch.setattr(failpoints, "_armed", failpoints.parse_failpoints("carry.complete:error"))
    with pytest.raises(OSError, match="failpoint"):
        node.carrier.carry_round()
    assert (node.state(node.left.job), node.arrived()) == (JobState.RUNNING, b"{}")
    monkeypatch.undo()
    node.remote.calls.clear()
    assert node.restarted().carry_round()
    assert (node.state(node.left.job), node.remote.calls) == (JobState.SUCCEEDED, [])


def test_the_checkpoint_that_came_last_is_pointed_to_before_the_end_is_told(node: Node) -> None:
    """A drained job goes on from it elsewhere."""
    saved = node.saved_checkpoint(20)
    node.leave_end(StateReason.SERVICE_STOPPED, saved)
    assert node.carrier.carry_round()
    record = node.job(node.left.job)
    assert record.state is JobState.QUEUED
    assert record.checkpoint is not None
    assert (record.checkpoint["step"], record.checkpoint["sha256"]) == (20, saved.sha256)
    directory = paths.checkpoint_dir(node.away, node.left.tenant, node.left.job, 20, 1)
    assert hashlib.sha256((directory / MANIFEST).read_bytes()).hexdigest() == saved.sha256


def test_what_a_living_supervisor_carries_is_left_to_it(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.leave_end()
    monkeypatch.setattr(journal, "is_held", lambda *_: True)
    assert node.carrier.carry_round()
    assert (node.arrived(), node.state(node.left.job)) == (None, JobState.RUNNING)
    monkeypatch.undo()
    node.carrier.carry_round()
    assert node.state(node.left.job) is JobState.SUCCEEDED


def test_processes_that_were_not_swept_are_waited_for(node: Node) -> None:
    """The supervisor was killed: its ranks may write still, until the reaper has proof that they are dead."""
    node.directory.create()
    node.carrier.carry_round()
    assert node.arrived() is None
    node.directory.remove()
    node.carrier.carry_round()
    assert node.arrived() == b"{}"
    assert node.state(node.left.job) is JobState.RUNNING  # what becomes of it is the reaper's to say
    assert node.finish(node.left)
    assert node.release(node.left) == 1


def test_a_supervisor_that_is_killed_while_it_carries_loses_its_attempt_at_once(node: Node) -> None:
    """Its devices are free, so no heartbeat names the attempt; its files are carried after it."""
    assert node.run(store.hand_back(node.left, "c", "n1", {}))
    node.directory.create()
    AttemptReaper(node.config, node.store, HeldAttempts()).reap_silent_attempts()
    assert node.history(node.left.job)[0].reason is StateReason.SUPERVISOR_LOST
    assert node.state(node.left.job) is JobState.QUEUED
    node.carrier.carry_round()
    assert node.arrived() == b"{}"
    assert node.is_cleared()


def test_a_cancelled_job_waits_for_no_remote(node: Node) -> None:
    node.leave_end(StateReason.RANK_FAILED)
    node.remote.fault = AWAY
    node.run(store.cancel(node.left.tenant, node.left.job))
    node.carrier.renew_leases()
    node.carrier.carry_round()
    assert node.state(node.left.job) is JobState.CANCELLED
    node.remote.fault = None
    node.carrier.carry_round()
    assert node.arrived() == b"{}"


def test_an_attempt_that_was_lost_all_the_same_keeps_the_end_that_it_has(node: Node) -> None:
    node.leave_end()
    node.reap(node.left, heartbeat=None)
    node.carrier.renew_leases()
    assert node.carrier.carry_round()
    assert node.state(node.left.job) is JobState.QUEUED
    assert node.arrived() == b"{}"
    assert node.is_cleared()


def test_a_success_whose_files_do_not_arrive_within_a_day_is_none(node: Node) -> None:
    node.leave_end()
    node.remote.fault = AWAY
    long_ago = node.directory.pending_end.stat().st_mtime - leftovers.END_SECONDS - 1
    os.utime(node.directory.pending_end, (long_ago, long_ago))
    before = node.beats()
    node.carrier.renew_leases()
    assert node.beats() == before
    node.carrier.carry_round()
    assert node.history(node.left.job)[0].reason is StateReason.STORAGE_FAILED
    assert node.files.exists()  # they are carried when the remote is back
    node.remote.fault = None
    node.carrier.carry_round()
    assert node.arrived() == b"{}"


def test_files_that_are_refused_for_good_go_at_last(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.remote.fault = RemoteRefused("the job was deleted")
    assert node.finish(node.left)
    assert node.release(node.left) == 1
    node.carrier.carry_round()
    assert node.files.exists()
    monkeypatch.setattr(leftovers, "REFUSED_SECONDS", -1.0)
    node.carrier.carry_round()
    assert node.is_cleared()


# -- what the remote refuses ---------------------------------------------------------------------------


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is offered for a minute."""
    monkeypatch.setattr(refusals, "REFUSED_SECONDS", 0.0)


def refuse(node: Node, part: str, error: RemoteError) -> None:
    """Have the remote refuse paths with this in them."""

    def check(path: str) -> None:
        if part in path:
            raise type(error)(f"{path}: {error}")

    node.remote.before_call = check


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("kind", [RemoteError, RemoteRefused, UnknownFile, DigestMismatch])
def test_an_end_does_not_wait_for_a_file_that_is_refused_for_good(node: Node, kind: type[RemoteError]) -> None:
    for name in ("files/kept", "files/refused", "artifacts/kept"):
        file = node.files / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"weights")
    node.leave_end(message="every rank succeeded")
    refuse(node, "files/refused", kind(SAID_BY_S3))
    assert not node.carrier.carry_round()
    assert not node.carrier.carry_round()
    assert node.state(node.left.job) is JobState.RUNNING, "it was tried too seldom"
    assert not node.carrier.carry_round()
    assert node.restarted().carry_round()
    record = node.job(node.left.job)
    said = "files/refused was not kept: the storage refuses it (400 Bad Request: InvalidArgument no < there)"
    assert (record.state, record.message) == (JobState.SUCCEEDED, f"every rank succeeded; {said}")
    away = paths.attempt_dir(node.away, node.left.tenant, node.left.job, node.left.number)
    assert sorted(path.name for path in away.rglob("kept")) == ["kept", "kept"]
    found = user_files.read_record(away)
    assert found is not None
    assert [(one.reason, one.message, one.files, one.bytes) for one in found.left_out] == [("refused", said, 1, 7)]
    assert node.is_cleared()


def carry_in_vain(node: Node) -> None:
    """More rounds than a refusal takes to be for good, after which the end waits as before."""
    for _ in range(2 * refusals.REFUSED_TIMES):
        assert not node.carrier.carry_round()
    assert node.state(node.left.job) is JobState.RUNNING


@pytest.mark.usefixtures("soon")
def test_an_end_waits_where_nothing_of_the_node_is_taken(node: Node) -> None:
    node.leave_end()
    refuse(node, "", RemoteRefused("403: no such token"))
    with structlog.testing.capture_logs() as logged:
        carry_in_vain(node)
    said = [entry for entry in logged if entry["event"] == "storage_refuses_node"]
    assert [(one["log_level"], one["node"], "SHARDYARD_NODE_TOKEN" in one["advice"]) for one in said] == [
        ("error", "n1", True)
    ]
    node.remote.before_call = lambda path: None
    assert node.carrier.carry_round()
    assert (node.state(node.left.job), node.arrived()) == (JobState.SUCCEEDED, b"{}")


@pytest.mark.usefixtures("soon")
def test_an_end_waits_for_a_remote_that_is_only_away_for_one_file(node: Node) -> None:
    node.leave_end()
    refuse(node, "report", RemoteUnavailable("503"))
    carry_in_vain(node)


def test_what_is_refused_is_offered_for_a_while(node: Node) -> None:
    node.leave_end()
    refuse(node, "report", RemoteError("400"))
    carry_in_vain(node)


@pytest.mark.usefixtures("soon")
def test_a_checkpoint_that_is_refused_is_not_pointed_to(node: Node) -> None:
    node.leave_end(StateReason.SERVICE_STOPPED, node.saved_checkpoint(20))
    refuse(node, "/checkpoints/", RemoteError("413: too large"))
    for _ in range(refusals.REFUSED_TIMES):
        assert not node.carrier.carry_round()
    assert node.carrier.carry_round()
    record = node.job(node.left.job)
    assert (record.state, record.checkpoint) == (JobState.QUEUED, None)
    assert "checkpoint of step 20 was not kept" in node.history(node.left.job)[0].message


def test_checkpoints_stay_for_a_while_and_bundles_are_no_jobs(node: Node) -> None:
    node.leave_end()
    kept = paths.checkpoints_dir(node.config.storage, node.left.tenant, node.left.job)
    kept.mkdir()
    now = kept.parent.stat().st_mtime
    node.carrier.clear_jobs(now + 10 * leftovers.JOB_SECONDS)
    assert kept.exists()  # it has an attempt here
    node.carrier.carry_round()
    node.carrier.clear_jobs(now + leftovers.JOB_SECONDS / 2)
    assert kept.exists()
    node.carrier.clear_jobs(now + 10 * leftovers.JOB_SECONDS)
    assert not kept.parent.exists()
