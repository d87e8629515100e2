"""How files of ranks become a checkpoint: a real Redis and a real disk, and this test in place of the ranks."""

import hashlib
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from jobs.files import checkpoints, paths
from jobs.files.checkpoints import CheckpointPointer, VerifiedCheckpoint
from jobs.model.state import StateReason
from jobs.protocol.records import Saved, SavedFile
from jobs.store.client import RedisStore
from jobs.support import failpoints
from tests.integration.store.world import TENANT, World
from tests.integration.workers.service import eventually
from tests.support.samples.attempts import a_launch
from tests.support.servers.redis_server import RedisServer, redis_server
from workers.runtime.launch import AttemptConfig, RankAccount
from workers.supervisor.checkpoints import directories
from workers.supervisor.checkpoints.directories import CheckpointDirectories
from workers.supervisor.checkpoints.writer import CheckpointWriter
from workers.supervisor.lease import LeaseHolder

pytestmark = pytest.mark.integration

NOBODY = RankAccount(20_000, 20_000, (), "nobody")
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another account")


#: Whose threads are to end with the test.
_beating: list[LeaseHolder] = []


@dataclass
class Attempt:
    """One claimed attempt, its lease, and what its ranks would write."""

    world: World
    url: str
    storage: Path
    account: RankAccount | None = None
    keep: int = 2
    state: bytes = b"state of the report"
    points: bytes = b""
    launch: AttemptConfig = field(init=False)
    lease: LeaseHolder = field(init=False)
    place: CheckpointDirectories = field(init=False)
    found: VerifiedCheckpoint | None = None

    def __post_init__(self) -> None:
        self.world.node(devices=1)
        job = self.world.submit()
        assert self.world.dispatch() == [job]
        self._launch(job)

    def _launch(self, job: str) -> None:
        attempt = self.world.attempt(job)
        spec = a_launch(strategy="single").spec
        self.launch = AttemptConfig(
            attempt, spec, "n1", "127.0.0.1", (), 1, self.storage / "state", self.storage, 120, 5, 3,
            account=self.account,
        )  # fmt: skip
        self.lease = LeaseHolder(RedisStore.from_url(self.url), attempt, "n1", 5)
        _beating.append(self.lease)
        assert self.lease.claim().granted
        self.place = directories.directories_of(self.launch)
        directories.prepare_directories(self.launch, self.place, None)
        self.metrics = paths.metrics_file(self.place.attempt)

    def next(self) -> None:
        """The same job in a new attempt, whatever its supervisor thinks."""
        attempt = self.launch.attempt
        assert self.world.finish(attempt, StateReason.SERVICE_STOPPED, by=self.lease._claimant)
        assert self.world.release(attempt) > 0
        assert self.world.dispatch() == [attempt.job]
        self._launch(attempt.job)

    def writer(self) -> CheckpointWriter:
        return CheckpointWriter(self.launch, self.place, self.keep, self.lease, self._cut, self.found)

    def _cut(self) -> tuple[bytes | None, tuple[Path, int]]:
        self.metrics.write_bytes(self.points + b"what comes after the cut")
        return self.state, (self.metrics, len(self.points))

    def draft(self, step: int, name: str = "rank-0.pt", body: bytes = b"weights") -> Path:
        path = self.place.drafts / str(step) / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(body)
        if self.account is not None:
            for one in (path.parent, path):
                os.chown(one, self.account.uid, self.account.gid)
        return path

    def save(self, step: int, body: bytes = b"weights") -> Saved:
        """What a rank says that has written its part."""
        self.draft(step, body=body)
        return said(step, body=body)

    @property
    def pointer(self) -> CheckpointPointer | None:
        found = self.world.job(self.launch.attempt.job).checkpoint
        return None if found is None else CheckpointPointer(found["step"], found["attempt"], found["sha256"])

    @property
    def pointed(self) -> tuple[int, int] | None:
        return None if self.pointer is None else (self.pointer.step, self.pointer.attempt)

    def resumable(self) -> VerifiedCheckpoint | None:
        """What a new attempt would begin with."""
        for one in checkpoints.order_candidates(checkpoints.list_checkpoints(self.place.kept), self.pointer):
            with suppress(checkpoints.DamagedCheckpoint):
                return checkpoints.verify_checkpoint(one.directory)
        return None

    def kept(self) -> list[int]:
        return [one.step for one in checkpoints.list_checkpoints(self.place.kept)]


def said(step: int, name: str = "rank-0.pt", body: bytes = b"weights") -> Saved:
    return Saved(0, step, 0, (SavedFile(name, len(body), hashlib.sha256(body).hexdigest()),))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis"), appendonly="yes", appendfsync="always") as server:
        yield server


@pytest.fixture
def world(server: RedisServer) -> Iterator[World]:
    world = World(server.url)
    world.redis.flushall()
    yield world
    while _beating:
        _beating.pop()._requests.put(None)
    world.store.close()


@pytest.fixture
def attempt(world: World, server: RedisServer, tmp_path: Path) -> Attempt:
    return Attempt(world, server.url, tmp_path / "storage")


def test_a_checkpoint_has_what_the_ranks_and_the_supervisor_know_at_the_cut_and_older_ones_go(attempt: Attempt) -> None:
    writer = attempt.writer()
    for step in (10, 20, 30):
        attempt.points += b"."
        eventually(lambda: writer.has_room, "room")
        writer.write_checkpoint([attempt.save(step, body=b"%d" % step)])
    writer.close()
    assert attempt.kept() == [30, 20]
    assert attempt.pointer is not None
    directory = paths.checkpoint_dir(attempt.storage, TENANT, attempt.launch.attempt.job, 30, 1)
    found = checkpoints.verify_checkpoint(directory, attempt.pointer.sha256)
    contents = {name: (found.directory / name).read_bytes() for name in found.manifest.files}
    assert contents == {"rank-0.pt": b"30", "report.state": attempt.state, "metrics.bin": b"..."}
    assert [line.text.split(" saved")[0] for line in writer.take_messages()] == [
        f"checkpoint of step {n}" for n in (10, 20, 30)
    ]
    assert os.listdir(attempt.place.drafts) == []
    assert writer.final_directory == found.directory


def test_names_are_on_disk_from_the_storage_down_to_the_checkpoint(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def record(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", record)
    directories.prepare_directories(attempt.launch, attempt.place, None)
    writer = attempt.writer()
    writer.write_checkpoint([attempt.save(10)])
    writer.close()
    kept = attempt.place.kept
    way = [str(path) for path in (kept, kept.parent, kept.parent.parent, attempt.storage / "jobs", attempt.storage)]
    assert set(way) <= set(synced)


@pytest.mark.parametrize("place", ["written", "synced", "renamed", "committed"])
def test_a_supervisor_that_is_killed_anywhere_leaves_a_checkpoint_to_go_on_from(attempt: Attempt, place: str) -> None:
    first = attempt.writer()
    first.write_checkpoint([attempt.save(10)])
    first.close()
    child = os.fork()
    if child == 0:
        try:
            failpoints._armed.update(failpoints.parse_failpoints(f"checkpoint.{place}:kill"))
            lease = LeaseHolder(RedisStore.from_url(attempt.url), attempt.launch.attempt, "n1", 5)
            lease._claimant = attempt.lease._claimant
            second = replacing_writer(attempt, lease)
            second.write_checkpoint([attempt.save(20)])
            second.close()
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    found = attempt.resumable()
    assert found is not None
    assert found.manifest.step == (20 if place == "committed" else 10)
    attempt.next()
    assert all(not name.startswith(".") for name in os.listdir(attempt.place.kept))  # nothing half done stays
    attempt.found = found
    after = attempt.writer()
    after.write_checkpoint([attempt.save(30)])
    after.close()
    assert attempt.pointer is not None
    assert (attempt.pointer.step, attempt.pointer.attempt) == (30, 2)


def replacing_writer(attempt: Attempt, lease: LeaseHolder) -> CheckpointWriter:
    return CheckpointWriter(attempt.launch, attempt.place, attempt.keep, lease, attempt._cut, None)


@pytest.mark.parametrize("place", ["written", "synced", "renamed"])
def test_a_disk_that_refuses_costs_one_checkpoint_and_says_so(
    attempt: Attempt, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failpoints, "_armed", failpoints.parse_failpoints(f"checkpoint.{place}:error@1"))
    writer = attempt.writer()
    writer.write_checkpoint([attempt.save(10)])
    eventually(lambda: writer._messages._messages, "a line")
    writer.write_checkpoint([attempt.save(20)])
    writer.close()
    missed, saved = writer.take_messages()
    assert (missed.text, missed.failed) == (
        "checkpoint of step 10 could not be saved: Input/output error; training continues", True
    )  # fmt: skip
    assert (saved.text.startswith("checkpoint of step 20 saved in"), saved.failed) == (True, False)
    assert attempt.pointer is not None
    assert attempt.pointer.step == 20


def test_weights_of_an_earlier_step_are_not_taken_for_those_of_the_last(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = attempt.writer()
    writer.write_checkpoint([attempt.save(10)])
    eventually(lambda: writer.final_directory, "the checkpoint")
    monkeypatch.setattr(failpoints, "_armed", failpoints.parse_failpoints("checkpoint.written:error"))
    writer.write_checkpoint([attempt.save(20)])
    writer.close()
    assert writer.final_directory is None
    writer.skip_checkpoint(30, "the ranks' disk is full")
    assert writer.final_directory is None


def test_a_redis_that_is_away_delays_the_pointer_and_nothing_else(attempt: Attempt, server: RedisServer) -> None:
    writer = attempt.writer()
    writer.write_checkpoint([attempt.save(10)])
    eventually(lambda: writer._messages._messages, "the first pointer")
    server.kill()
    writer.write_checkpoint([attempt.save(20)])
    on_disk = "checkpoint of step 20 is on disk; it counts when the control Redis answers again"
    eventually(lambda: on_disk in [line.text for line in writer.take_messages()], "a line that says so")
    for step in (30, 40, 50):
        eventually(lambda: writer.has_room, "room while Redis is away")
        writer.write_checkpoint([attempt.save(step)])
    newest_and_what_may_count = [50, 40, 20, 10]  # the commit of 20 may have taken effect, for all that is known
    eventually(lambda: attempt.kept() == newest_and_what_may_count, "the last one is on disk")
    server.start()
    writer.close()
    assert attempt.pointed == (50, 1)
    assert attempt.kept() == [50, 40]
    assert [line.text.split(" saved")[0] for line in writer.take_messages()][-1] == "checkpoint of step 50"


def test_a_redis_that_does_not_answer_holds_up_no_rank(attempt: Attempt, server: RedisServer) -> None:
    writer = attempt.writer()
    server.signal(signal.SIGSTOP)
    try:
        for step in (10, 20, 30, 40):
            eventually(lambda: writer.has_room, "room, long before a call on Redis is given up", 5)
            writer.write_checkpoint([attempt.save(step)])
        eventually(lambda: attempt.kept()[:2] == [40, 30], "the last one is on disk", 5)
    finally:
        server.signal(signal.SIGCONT)
    writer.close()
    assert attempt.pointed == (40, 1)
    assert attempt.kept() == [40, 30]


def test_a_supervisor_that_has_lost_its_lease_points_to_nothing_and_removes_nothing(attempt: Attempt) -> None:
    writer = attempt.writer()
    writer.write_checkpoint([attempt.save(10)])
    eventually(lambda: attempt.pointer, "the first pointer")
    old, draft = attempt.place, attempt.save(20)
    attempt.next()  # sweeps the drafts of the attempt that it takes for dead
    attempt.found = attempt.resumable()
    after = attempt.writer()
    after.write_checkpoint([attempt.save(15)])
    eventually(lambda: attempt.pointed == (15, 2), "the pointer of the next attempt")
    (old.drafts / "20").mkdir(parents=True)
    (old.drafts / "20" / "rank-0.pt").write_bytes(b"weights")
    writer.write_checkpoint([draft])
    writer.close()
    assert attempt.kept() == [20, 15, 10]
    assert attempt.pointed == (15, 2)
    after.write_checkpoint([attempt.save(18)])
    after.close()
    assert attempt.kept() == [18, 15]  # what it left beyond that went


# -- what hostile ranks leave ------------------------------------------------------------------------


def _link(attempt: Attempt, secret: Path) -> None:
    attempt.draft(10).unlink()
    (attempt.place.drafts / "10" / "rank-0.pt").symlink_to(secret)


def _hard_link(attempt: Attempt, secret: Path) -> None:
    attempt.draft(10).unlink()
    os.link(secret, attempt.place.drafts / "10" / "rank-0.pt")


def _second_name(attempt: Attempt, secret: Path) -> None:
    os.link(attempt.draft(10), attempt.place.drafts / "mine")


def _pipe(attempt: Attempt, secret: Path) -> None:
    attempt.draft(10).unlink()
    os.mkfifo(attempt.place.drafts / "10" / "rank-0.pt")


def _directory(attempt: Attempt, secret: Path) -> None:
    attempt.draft(10).unlink()
    (attempt.place.drafts / "10" / "rank-0.pt").mkdir()


def _nothing(attempt: Attempt, secret: Path) -> None:
    attempt.draft(10).unlink()


def _no_directory(attempt: Attempt, secret: Path) -> None:
    return


def _link_to_directory(attempt: Attempt, secret: Path) -> None:
    (secret.parent / "rank-0.pt").write_bytes(b"weights")
    (attempt.place.drafts / "10").symlink_to(secret.parent)


def _another_size(attempt: Attempt, secret: Path) -> None:
    attempt.draft(10, body=b"weights and more")


@pytest.mark.parametrize(
    "leave",
    [_link, _hard_link, _second_name, _pipe, _directory, _nothing, _no_directory, _link_to_directory, _another_size],
)
@pytest.mark.parametrize("account", [None, pytest.param(NOBODY, marks=ROOT)])
def test_what_is_no_plain_file_of_the_ranks_own_is_not_taken_over(
    world: World,
    server: RedisServer,
    tmp_path: Path,
    account: RankAccount | None,
    leave: Callable[[Attempt, Path], None],
) -> None:
    attempt = Attempt(world, server.url, tmp_path / "storage", account)
    secret = tmp_path / "secret" / "file"
    secret.parent.mkdir()
    secret.write_bytes(b"weights")
    secret.chmod(0o600)
    before = secret.stat()
    leave(attempt, secret)
    writer = attempt.writer()
    writer.write_checkpoint([said(10)])
    writer.close()
    (line,) = writer.take_messages()
    assert line.failed, line
    assert attempt.kept() == []
    assert attempt.pointer is None
    after = secret.stat()
    assert (after.st_uid, after.st_mode, secret.read_bytes()) == (before.st_uid, before.st_mode, b"weights")
    assert sorted(os.listdir(attempt.place.kept)) == []


@ROOT
def test_what_is_taken_over_is_the_services_and_the_next_attempts_account_can_read_its_own_and_no_more(
    world: World, server: RedisServer
) -> None:
    from tests.integration.workers.places import a_place

    with a_place() as place:
        attempt = Attempt(world, server.url, place / "storage", NOBODY)
        attempt.storage.chmod(0o711)
        writer = attempt.writer()
        opened = attempt.draft(10).open("r+b")  # by a rank that keeps it open
        writer.write_checkpoint([said(10)])
        writer.close()
        found = attempt.resumable()
        assert found is not None
        for path in (found.directory, *found.directory.iterdir()):
            assert path.stat().st_uid == 0
            assert not path.stat().st_mode & 0o022
        attempt.next()
        attempt.account = NOBODY
        readable = directories.make_readable(attempt.launch, attempt.place, found, None)
        reached = as_account(
            NOBODY,
            [
                lambda: (readable / "rank-0.pt").read_bytes() == b"weights",
                lambda: (readable / "rank-0.pt").open("r+b"),
                lambda: (found.directory / "rank-0.pt").read_bytes(),
                lambda: os.listdir(attempt.place.kept),
                lambda: (readable / "report.state").read_bytes(),
                lambda: (attempt.place.drafts / "5").mkdir(),
            ],
        )
        assert reached == [True, False, False, False, False, True]
        other = as_account(replace(NOBODY, uid=20_001), [lambda: (readable / "rank-0.pt").read_bytes()])
        assert other == [False]
        directories.remove_drafts(attempt.place.attempt)
        assert checkpoints.verify_checkpoint(found.directory) == found  # its own names are there still
        opened.write(b"WEIGHTS")
        opened.close()
        with pytest.raises(
            checkpoints.DamagedCheckpoint
        ):  # it spoils what its own job may resume from, and nothing else
            checkpoints.verify_checkpoint(found.directory)


def as_account(account: RankAccount, tries: list[Callable[[], object]]) -> list[bool]:
    """Which of these an account can do."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(account.gid, account.gid, account.gid)
            os.setresuid(account.uid, account.uid, account.uid)
            for each in tries:
                try:
                    done = bool(each() is not False)
                except OSError:
                    done = False
                os.write(writer, b"1" if done else b"0")
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with open(reader, "rb") as file:
        return [byte == ord("1") for byte in file.read()]
