"""Back-ups of a service with a Redis of its own, and what becomes of them."""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from api.background import retention
from api.data import archive
from jobs import store
from jobs.files import identity as storage_proof
from jobs.model.state import JobState, StateReason, SupervisorCommand
from jobs.store import JobFilter
from jobs.store.accounts import tenant_secrets, tokens
from jobs.store.client import RedisStore
from jobs.support import secret_keys
from shardyard.contract.errors import InvalidRequest
from shardyard.service.backup import manifest
from shardyard.service.backup.creation import make_backup
from shardyard.service.backup.file_list import EnteredDirectory, LeftDirectories, StoredFile, read_file_list
from shardyard.service.backup.manifest import BackupManifest
from shardyard.service.backup.refusals import BackupError
from shardyard.service.backup.restore import restore_outside
from shardyard.service.backup.secret_notice import describe_secrets, find_unreadable_secrets
from shardyard.service.backup.source import BackupSource
from tests.integration.store.invariants import violations
from tests.integration.store.world import TENANT, World, a_spec, script
from tests.support.servers.redis_server import running_redis

pytestmark = pytest.mark.integration

KEY_FILE = Path("/etc/shardyard/secret-key")  # as the manifest names it; a back-up does not look for it


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    with (
        running_redis(tmp_path_factory.mktemp("first")) as first,
        running_redis(tmp_path_factory.mktemp("second")) as second,
    ):
        yield first, second


@dataclass
class Place:
    """A service: its Redis with what is in it, and its storage."""

    world: World
    storage: Path

    def write(self, path: str, text: str = "text") -> Path:
        file = self.storage / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def files(self) -> dict[str, str]:
        every = (path for path in self.storage.rglob("*") if path.is_file() and ".lock" not in path.name)
        return {str(path.relative_to(self.storage)): path.read_text() for path in every}


@pytest.fixture
def place(urls: tuple[str, str], tmp_path: Path) -> Iterator[Place]:
    """One that is used, with a node of four devices."""
    world = World(urls[0])
    world.redis.flushall()
    storage_proof.prove_storage(world.store, tmp_path / "storage")
    world.node()
    yield Place(world, tmp_path / "storage")
    world.store.close()


@pytest.fixture
def other(urls: tuple[str, str], tmp_path: Path) -> Iterator[Place]:
    """An empty one."""
    world = World(urls[1])
    world.redis.flushall()
    yield Place(world, tmp_path / "other")
    world.store.close()


def make(place: Place, destination: Path) -> BackupManifest:
    return make_backup(BackupSource(place.world.store, place.storage, None, KEY_FILE), destination)


def keys(control: RedisStore) -> dict[bytes, tuple[str, list[bytes]]]:
    return {entry.key: (entry.kind, sorted(entry.values)) for entry in control.run(store.dump_keys())}


def test_everything_is_as_it_was_in_the_service_that_is_restored(place: Place, other: Place, tmp_path: Path) -> None:
    world = place.world
    world.put_bundle(1)
    old = world.running()
    world.finish_and_release(old)
    place.write(f"jobs/{TENANT}/{old.job}/1/logs/device-0.log", "a line")
    retention.sweep_finished_jobs(world.store, place.storage, 1e-6, 0)
    ended = world.running()
    world.finish_and_release(ended)
    place.write(f"jobs/{TENANT}/{ended.job}/1/report.json", "{}")
    place.write(f"bundles/{TENANT}/{1:064x}.{1:032x}.zip", "zip")
    world.run(store.submit(TENANT, "keyed", a_spec(4), idempotency_key="k", digest="d"))
    queued = [world.submit(4, priority=priority, program=script(1)) for priority in (0, 5, -5)]
    _, token = tokens.issue_token(TENANT, (tokens.Scope.READ,), "ana", created=1, expires=None)
    world.run(tokens.put_token(token))

    key, left = f"sy:idem:{TENANT}/k", world.redis.pttl(f"sy:idem:{TENANT}/k")
    made = make(place, tmp_path / "copy")
    assert made.jobs == {"succeeded": 1, "queued": 4}
    assert restore_outside(tmp_path / "copy", other.world.store, other.storage) == made
    assert keys(other.world.store) == keys(world.store)
    assert other.files() == place.files()
    assert violations(other.world.redis) == []
    storage_proof.prove_storage(other.world.store, other.storage)

    assert other.world.state(ended.job) is JobState.SUCCEEDED
    assert [job.id for job in archive.read_page(other.storage, TENANT, JobFilter()).jobs] == [old.job]
    assert other.world.run(tokens.read_token(token.id)) == token
    assert 0 < other.world.redis.pttl(key) <= left
    other.world.node(devices=16)
    assert other.world.dispatch() == [queued[1], "keyed", queued[0], queued[2]]
    assert other.world.run(store.submit(TENANT, "twice", a_spec(4), idempotency_key="k", digest="d")).job == "keyed"


def test_what_ran_is_queued_again_and_what_was_cancelled_is_not(place: Place, other: Place, tmp_path: Path) -> None:
    world = place.world
    running, claimed, doomed = world.running(), world.claimed(), world.running()
    leased = world.submit()
    assert leased in world.dispatch()
    world.run(store.cancel(TENANT, doomed.job))
    make(place, tmp_path / "copy")
    restore_outside(tmp_path / "copy", other.world.store, other.storage)

    assert violations(other.world.redis) == []
    for job in (running.job, claimed.job, leased):
        record = other.world.job(job)
        assert (record.state, record.reason, record.retries) == (JobState.QUEUED, StateReason.SERVICE_STOPPED, 0)
        assert other.world.history(job)[0].reason is StateReason.SERVICE_STOPPED
    assert other.world.state(doomed.job) is JobState.CANCELLED
    assert other.world.run(store.renew_lease(running, "c")) is SupervisorCommand.LOST, (
        "a supervisor of the old service has no say here"
    )
    other.world.node("elsewhere")
    assert set(other.world.dispatch()) == {running.job, claimed.job, leased}
    assert other.world.job(running.job).attempt == 2
    assert world.state(running.job) is JobState.RUNNING, "the service itself goes on"


def test_jobs_that_wait_before_they_try_again_still_do(place: Place, other: Place, tmp_path: Path) -> None:
    attempt = place.world.running(retries=1)
    call = store.finish(attempt, "c", StateReason.RANK_FAILED, "", backoff_seconds=60)
    assert place.world.run(call)
    make(place, tmp_path / "copy")
    restore_outside(tmp_path / "copy", other.world.store, other.storage)
    assert other.world.job(attempt.job).reason is StateReason.BACKING_OFF
    assert violations(other.world.redis) == []


def test_files_that_redis_did_not_know_of_are_left_out(place: Place, tmp_path: Path) -> None:
    attempt = place.world.running()
    job = f"jobs/{TENANT}/{attempt.job}"
    saved = f"{job}/checkpoints/000000000007"
    for path in (f"{job}/1/logs/device-0.log", f"{job}/1/artifacts/.hidden", f"{saved}-1/weights"):
        place.write(path)
    later = [f"{job}/2/metrics.bin", f"jobs/{TENANT}/later/1/report.json", f"{saved}-2/weights"]
    later += [f"{job}/1/drafts/9/weights", f"{job}/checkpoints/.000000000009-1.part/weights"]
    drafts = [f"bundles/{TENANT}/.{1:032x}.part", f"archive/{TENANT}/000000/.x.part", "archive/.lock"]
    for path in (*later, *drafts):
        place.write(path)
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (place.storage / job / "1/artifacts/link").symlink_to(secret)
    os.mkfifo(place.storage / job / "1/artifacts/pipe")
    made = make(place, tmp_path / "copy")
    assert listed_paths(tmp_path / "copy") == {
        ".shardyard-storage",
        f"{job}/1/logs/device-0.log",
        f"{job}/1/artifacts/.hidden",
        f"{saved}-1/weights",
    }
    left_out = {found.cause: found.first for found in made.left_out}
    assert left_out == {"link": [f"{job}/1/artifacts/link"], "pipe": [f"{job}/1/artifacts/pipe"]}
    assert json.loads((tmp_path / "copy" / manifest.MANIFEST).read_text())["left_out"][0]["entries"] == 1


def listed_paths(copy: Path) -> set[str]:
    """Paths of the files that a back-up has of the storage directory, of which each must be there."""
    here: list[str] = []
    found = set()
    with (copy / manifest.FILE_LIST).open("rb") as file:
        for step in read_file_list(file):
            match step:
                case EnteredDirectory(name=name):
                    here.append(name)
                case LeftDirectories(levels=levels):
                    del here[-levels:]
                case StoredFile(name=name):
                    found.add("/".join([*here, name]))
    assert found == {
        str(path.relative_to(copy / "storage")) for path in (copy / "storage").rglob("*") if path.is_file()
    }
    return found


def put_secrets(place: Place, key_file: Path, *names: str) -> None:
    secret_keys.create_key_file(key_file)
    keys = secret_keys.read_keys(key_file)
    for tenant in (TENANT, "acme"):
        for name in names:
            sealed = secret_keys.encrypt_secret(keys, tenant, name, "hf_Zq7wvT4mB2nXk8")
            place.world.run(tenant_secrets.put_secret(tenant, name, sealed))


def test_a_back_up_says_how_many_secrets_it_has_and_which_key_it_lacks(place: Place, tmp_path: Path) -> None:
    assert make(place, tmp_path / "none").secrets is None
    put_secrets(place, tmp_path / "key", "hf", "wandb")
    made = make(place, tmp_path / "copy")
    assert json.loads((tmp_path / "copy" / manifest.MANIFEST).read_text())["secrets"] == {
        "count": 4,
        "key_file_left_out": str(KEY_FILE),
    }
    assert made.secrets is not None
    said = describe_secrets(made.secrets)
    assert said.startswith("4 secrets of users in it, encrypted. The key is not in it")
    assert str(KEY_FILE) in said


def test_a_restore_counts_the_secrets_that_the_key_there_does_not_decrypt(
    place: Place, other: Place, tmp_path: Path
) -> None:
    put_secrets(place, tmp_path / "key", "hf", "wandb")
    put_secrets(place, tmp_path / "newer", "wandb")  # two are encrypted with another key
    made = make(place, tmp_path / "copy")
    restore_outside(tmp_path / "copy", other.world.store, other.storage)
    for file, words in (
        ("key", "2 of 4 secrets cannot be read with {}, which lacks their key: put the file"),
        ("none", "4 of 4 secrets cannot be read with {}, which is not there: put the file"),
    ):
        said = find_unreadable_secrets(other.world.store, tmp_path / file, made)
        assert said is not None
        assert said.startswith(words.format(tmp_path / file))
        assert f"(it was {KEY_FILE}) there" in said
        assert "shardyard secret put NAME" in said
    (tmp_path / "newer").write_text((tmp_path / "newer").read_text() + (tmp_path / "key").read_text())
    assert find_unreadable_secrets(other.world.store, tmp_path / "newer", made) is None


def test_a_restore_without_secrets_asks_for_no_key(place: Place, other: Place, tmp_path: Path) -> None:
    made = make(place, tmp_path / "copy")
    restore_outside(tmp_path / "copy", other.world.store, other.storage)
    assert find_unreadable_secrets(other.world.store, tmp_path / "none", made) is None


def test_a_back_up_is_for_its_owner_only_and_keeps_times(place: Place, tmp_path: Path) -> None:
    file = place.write(f"bundles/{TENANT}/{1:064x}.{1:032x}.zip")
    before = time.time() - 1000
    os.utime(file, (before, before))
    make(place, tmp_path / "copy")
    copied = tmp_path / "copy" / "storage" / file.relative_to(place.storage)
    assert copied.stat().st_mtime == pytest.approx(before)
    assert (tmp_path / "copy").stat().st_mode & 0o077 == 0


def test_a_back_up_overwrites_nothing(place: Place, tmp_path: Path) -> None:
    make(place, tmp_path / "copy")
    with pytest.raises(InvalidRequest, match="not empty"):
        make(place, tmp_path / "copy")


def test_a_back_up_does_not_go_where_it_would_be_backed_up(place: Place) -> None:
    with pytest.raises(InvalidRequest, match="is in the storage directory"):
        make(place, place.storage / "jobs" / "copy")


def test_another_storage_directory_is_no_part_of_a_back_up(place: Place, other: Place, tmp_path: Path) -> None:
    with pytest.raises(BackupError, match="not the storage directory"):
        make_backup(BackupSource(place.world.store, tmp_path / "empty", None, KEY_FILE), tmp_path / "copy")
    with pytest.raises(BackupError, match="no service has used"):
        make(other, tmp_path / "copy2")


def test_what_a_restore_would_mix_with_is_refused(place: Place, other: Place, tmp_path: Path) -> None:
    make(place, tmp_path / "copy")
    with pytest.raises(InvalidRequest, match="holds a service already"):
        restore_outside(tmp_path / "copy", place.world.store, other.storage)
    other.write("something")
    with pytest.raises(InvalidRequest, match="not empty"):
        restore_outside(tmp_path / "copy", other.world.store, other.storage)
    assert other.world.redis.dbsize() == 0


def to_first_format(copy: Path, storage: Path) -> None:
    """Make of a back-up one of an earlier version: its manifest names all files, which have their own modes."""
    files = {name: list(entry) for name, entry in json.loads((copy / manifest.MANIFEST).read_text())["files"].items()}
    del files[manifest.FILE_LIST]
    for path in listed_paths(copy):
        (copy / "storage" / path).chmod((storage / path).stat().st_mode & 0o777)
        body = (storage / path).read_bytes()
        files[f"storage/{path}"] = [len(body), hashlib.sha256(body).hexdigest()]
    (copy / manifest.FILE_LIST).unlink()
    (copy / "shared").rmdir()
    (copy / manifest.MANIFEST).write_text(
        json.dumps({"format": 1, "version": "0.1.0", "made_at": 1.0, "jobs": {"queued": 1}, "files": files})
    )


def test_a_back_up_of_an_earlier_version_is_restored(place: Place, other: Place, tmp_path: Path) -> None:
    place.world.put_bundle(1)
    attempt = place.world.running()
    for path in (f"bundles/{TENANT}/{1:064x}.{1:032x}.zip", f"jobs/{TENANT}/{attempt.job}/1/artifacts/deep/er/file"):
        os.utime(place.write(path), (1000, 1000))
    place.write(f"jobs/{TENANT}/{attempt.job}/1/report.json").chmod(0o640)
    make(place, tmp_path / "copy")
    to_first_format(tmp_path / "copy", place.storage)
    made = restore_outside(tmp_path / "copy", other.world.store, other.storage)
    assert (made.format, made.stored, made.left_out) == (1, None, [])
    assert other.files() == place.files()
    for path in other.files():
        before, after = ((top / path).stat() for top in (place.storage, other.storage))
        assert (after.st_mtime_ns, after.st_mode) == (before.st_mtime_ns, before.st_mode)
    assert other.world.state(attempt.job) is JobState.QUEUED
    (tmp_path / "copy" / "storage" / f"jobs/{TENANT}/{attempt.job}/1/report.json").write_text("TEXT")
    other.world.redis.flushall()
    with pytest.raises(BackupError, match=r"report\.json is not what was saved"):
        restore_outside(tmp_path / "copy", other.world.store, tmp_path / "third")


def test_the_deadline_of_a_back_up_leaves_out_what_jobs_have_written(place: Place, tmp_path: Path) -> None:
    job = f"jobs/{TENANT}/{place.world.running().job}/1"
    place.write(f"{job}/artifacts/late")
    place.write(f"{job}/logs/device-0.log")
    source = BackupSource(place.world.store, place.storage, None, KEY_FILE)
    made = make_backup(source, tmp_path / "copy", deadline_seconds=0)
    assert listed_paths(tmp_path / "copy") == {".shardyard-storage", f"{job}/logs/device-0.log"}
    assert [(found.cause, found.first) for found in made.left_out] == [("deadline", [f"{job}/artifacts"])]


def damage_a_byte(copy: Path) -> None:
    file = copy / "storage" / "kept"
    file.write_bytes(b"TEXT")


def cut_off(copy: Path) -> None:
    (copy / "storage" / "kept").write_bytes(b"te")


def take_away(copy: Path) -> None:
    (copy / "storage" / "kept").unlink()


def damage_redis(copy: Path) -> None:
    body = bytearray((copy / manifest.CONTROL).read_bytes())
    body[-1] ^= 1
    (copy / manifest.CONTROL).write_bytes(body)


def unfinished(copy: Path) -> None:
    (copy / manifest.MANIFEST).unlink()


def no_json(copy: Path) -> None:
    (copy / manifest.MANIFEST).write_text("{")


def change_manifest(copy: Path, **fields: object) -> None:
    found = json.loads((copy / manifest.MANIFEST).read_text())
    (copy / manifest.MANIFEST).write_text(json.dumps(found | fields))


def damage_list(copy: Path) -> None:
    file = copy / manifest.FILE_LIST
    file.write_bytes(file.read_bytes()[:-1])


def newer(copy: Path) -> None:
    change_manifest(copy, format=3)


def leads_out_by_path(copy: Path) -> None:
    found = json.loads((copy / manifest.MANIFEST).read_text())["files"]
    change_manifest(copy, format=1, files=found | {"storage/../../outside": [4, "0" * 64]})


def leads_out(copy: Path) -> None:
    change_manifest(copy, files={"../../outside": [4, "0" * 64]})


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (damage_a_byte, "damaged: storage/kept"),
        (cut_off, "damaged: storage/kept"),
        (take_away, "not complete: storage/kept"),
        (damage_redis, "damaged: control"),
        (damage_list, "damaged: files.jsonl.zst"),
        (unfinished, "not a complete back-up"),
        (no_json, "cannot be read"),
        (newer, "format 3"),
        (leads_out, "not the manifest of a back-up"),
        (leads_out_by_path, "not the manifest of a back-up: it names"),
    ],
)
def test_a_back_up_that_is_not_whole_is_refused_and_leaves_nothing(
    place: Place, other: Place, tmp_path: Path, harm: Callable[[Path], None], words: str
) -> None:
    place.write("kept", "text")
    make(place, tmp_path / "copy")
    harm(tmp_path / "copy")
    with pytest.raises(BackupError, match=words):
        restore_outside(tmp_path / "copy", other.world.store, other.storage)
    assert not other.storage.exists() or os.listdir(other.storage) == []
    assert other.world.redis.dbsize() == 0
