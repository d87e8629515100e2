"""When a checkpoint counts whose storage is not mounted: a real Redis and a real disk, and a remote that fails."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from jobs.files import checkpoints
from jobs.storage.remote import RemoteUnavailable
from tests.integration.store.world import World
from tests.integration.workers.service import eventually
from tests.integration.workers.supervisor import test_checkpoint_writer
from tests.integration.workers.supervisor.test_checkpoint_writer import Attempt
from tests.support.servers.redis_server import running_redis
from tests.support.unreliable_storage import UnreliableStorage
from workers.carrier.checkpoints import CarriedCheckpoints
from workers.carrier.journal import CarryJournal
from workers.supervisor import carriage
from workers.supervisor.carriage import AttemptCarriage
from workers.supervisor.checkpoints import pointer
from workers.supervisor.checkpoints.writer import CheckpointWriter

pytestmark = pytest.mark.integration

AWAY = RemoteUnavailable("away")


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_redis(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture
def attempt(url: str, tmp_path: Path) -> Iterator[Attempt]:
    world = World(url)
    world.redis.flushall()
    yield Attempt(world, url, tmp_path / "storage")
    while test_checkpoint_writer._beating:
        lease = test_checkpoint_writer._beating.pop()
        lease._requests.put(None)
        lease._renewal_thread.join()
        lease._store.close()
    world.store.close()


#: Whose threads are to end with the test.
_opened: list[tuple[CheckpointWriter, AttemptCarriage]] = []


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[UnreliableStorage]:
    monkeypatch.setattr(pointer, "STORAGE_SECONDS", 0.05)
    (tmp_path / "remote").mkdir()
    remote = UnreliableStorage(tmp_path / "remote")
    yield remote
    remote.fault = None
    while _opened:
        writer, carried = _opened.pop()
        writer.close()
        assert carried.finish()


def writer_of(attempt: Attempt, remote: UnreliableStorage, **limits: int) -> CheckpointWriter:
    config = replace(attempt.launch, **limits)  # type: ignore[arg-type]
    carried = AttemptCarriage(config, remote)
    writer = CheckpointWriter(
        config, attempt.place, attempt.keep, attempt.lease, attempt._cut, attempt.found, (), carried
    )
    _opened.append((writer, carried))
    return writer


def step_of(attempt: Attempt) -> int:
    """That the job points to; 0: to none."""
    return attempt.pointer.step if attempt.pointer is not None else 0


def at_remote(attempt: Attempt, remote: UnreliableStorage) -> list[int]:
    stored = CarriedCheckpoints(remote, attempt.storage, attempt.launch.attempt).list_stored()
    return [one.step for one in stored]


def test_a_checkpoint_counts_when_the_next_node_can_read_it(
    attempt: Attempt, remote: UnreliableStorage, tmp_path: Path
) -> None:
    writer = writer_of(attempt, remote)
    writer.write_checkpoint([attempt.save(10)])
    writer.close()
    assert attempt.pointed == (10, 1)
    assert attempt.pointer is not None
    elsewhere = CarriedCheckpoints(remote, tmp_path / "another node", attempt.launch.attempt)
    (stored,) = elsewhere.list_stored()
    elsewhere.fetch(stored.directory)
    assert checkpoints.verify_checkpoint(stored.directory, attempt.pointer.sha256).manifest.step == 10


def test_training_goes_on_while_the_remote_is_away_and_the_newest_checkpoint_counts_then(
    attempt: Attempt, remote: UnreliableStorage
) -> None:
    remote.fault = AWAY
    writer = writer_of(attempt, remote)
    for step in (10, 20, 30):
        eventually(lambda: writer.has_room, "room")
        writer.write_checkpoint([attempt.save(step)])
    eventually(lambda: 30 in attempt.kept(), "it is on this disk")
    assert step_of(attempt) == 0
    # It is pending a moment later than it is on the disk.
    eventually(lambda: (one := writer.pending_checkpoint) is not None and one.step == 30, "it waits")
    remote.fault = None
    writer.close()
    assert (step_of(attempt), writer.pending_checkpoint) == (30, None)
    assert at_remote(attempt, remote)[0] == 30
    texts = [message.text for message in writer.take_messages()]
    assert any("is on disk; it counts when the storage answers again" in text for text in texts)


def test_an_end_leaves_a_checkpoint_that_the_remote_does_not_take(
    attempt: Attempt, remote: UnreliableStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pointer, "REFUSED_SECONDS", 0.1)
    remote.fault = AWAY
    writer = writer_of(attempt, remote)
    writer.write_checkpoint([attempt.save(10)])
    writer.close()
    assert writer.pending_checkpoint is not None
    assert (writer.pending_checkpoint.step, attempt.pointed) == (10, None)


def test_what_is_obsolete_goes_at_the_remote_too(attempt: Attempt, remote: UnreliableStorage) -> None:
    writer = writer_of(attempt, remote)
    for step in (10, 20, 30):
        writer.write_checkpoint([attempt.save(step)])
        eventually(lambda step=step: attempt.pointed == (step, 1), "it counts")  # type: ignore[misc]
    writer.close()
    assert at_remote(attempt, remote) == attempt.kept() == [30, 20]


def test_training_waits_with_its_checkpoint_while_too_much_is_to_be_carried(
    attempt: Attempt, remote: UnreliableStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carriage, "BACKLOG_SECONDS", 0.0)
    another = replace(attempt.launch.attempt, number=7)
    waiting = CarryJournal.of(attempt.launch.state_dir, another)
    writer = writer_of(attempt, remote, carry_bytes=1000)
    room = []
    for left in (1000, 1001, 1001, 999):
        waiting.write_backlog(left)
        room.append(writer.has_room)
    assert room == [True, False, False, True]
    (message,) = writer.take_messages()
    assert "SHARDYARD_CARRY_BYTES" in message.text
    writer.close()
