"""How finished jobs leave Redis for the disk, and what happens when that is cut off or meets somebody else."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from api.background import retention
from api.data import archive
from jobs import store
from jobs.files import paths
from jobs.model.state import JobState, StateReason
from jobs.store import ArchiveOutcome, JobFilter
from jobs.store.call import Call, T
from jobs.store.client import RedisStore
from jobs.support import failpoints
from shardyard.contract.errors import IdempotencyConflict, NotFound
from tests.integration.store.world import NEVER, TENANT, World, a_spec, bundle_id, script

pytestmark = pytest.mark.integration


def sweep(world: World, storage: Path, retention_seconds: float = 1e-6, archive_seconds: float = 0) -> bool:
    return retention.sweep_finished_jobs(world.store, storage, retention_seconds, archive_seconds)


def finished(world: World) -> str:
    attempt = world.running()
    world.finish_and_release(attempt)
    return attempt.job


def read(storage: Path, job: str) -> archive.ArchivedJob:
    found = archive.read_job(storage, TENANT, job)
    assert found is not None
    return found


def listed(storage: Path, chosen: JobFilter | None = None, limit: int = 50) -> list[str]:
    """Ids of all pages."""
    found: list[str] = []
    after: str | None = ""
    while after is not None:
        page = archive.read_page(storage, TENANT, chosen or JobFilter(), after=after, limit=limit)
        found += [job.id for job in page.jobs]
        after = page.next_id
    return found


def test_an_archive_call_that_is_repeated_since_its_reply_was_lost_is_told_the_same(world: World) -> None:
    world.node()
    job = finished(world)
    version = world.job(job).version
    for _ in range(2):
        assert world.run(store.archive_job(TENANT, job, version)) is ArchiveOutcome.DONE
    assert world.run(store.archive_job(TENANT, job, version + 1)) is ArchiveOutcome.MISSING


def test_a_finished_job_goes_to_disk_as_it_was_and_leaves_no_key(world: World, tmp_path: Path) -> None:
    world.node()
    before = set(world.redis.keys("*"))
    job = finished(world)
    record, spec = world.job(job), world.run(store.read_job(TENANT, job)).spec
    attempts = world.history(job)
    assert not sweep(world, tmp_path)
    with pytest.raises(NotFound):
        world.job(job)
    note = f"sy:archived:{TENANT}/{job}"
    of_devices = set(world.redis.keys("sy:history:*"))
    left = {b"sy:seq", b"sy:named", b"sy:changes", b"sy:use:default", note.encode()}
    assert set(world.redis.keys("*")) - before - of_devices == left
    assert 0 < world.redis.ttl(note) <= store.ARCHIVED_SECONDS
    found = read(tmp_path, job)
    assert found.record.archived
    assert not record.archived
    kept = {name: getattr(found.record, name) for name in record.__struct_fields__ if name != "archived"}
    assert kept == {name: getattr(record, name) for name in kept}
    assert found.attempts == attempts
    assert found.to_view().spec == spec


def test_jobs_wait_for_their_time_and_jobs_that_have_not_ended_stay(world: World, tmp_path: Path) -> None:
    world.node()
    young, running, queued = finished(world), world.running(), world.submit(4)
    sweep(world, tmp_path, NEVER)
    assert world.state(young) is JobState.SUCCEEDED
    sweep(world, tmp_path)
    assert (world.state(queued), world.state(running.job)) == (JobState.QUEUED, JobState.RUNNING)
    assert listed(tmp_path) == [young]


def test_without_a_policy_nothing_is_archived(world: World, tmp_path: Path) -> None:
    world.node()
    job = finished(world)
    sweep(world, tmp_path, 0)
    assert world.state(job) is JobState.SUCCEEDED


@pytest.mark.parametrize(
    "reason", [StateReason.COMPLETED, StateReason.CODE_ERROR, StateReason.WALL_LIMIT, StateReason.CANCELLED_BY_USER]
)
def test_however_a_job_ended_it_is_archived(world: World, tmp_path: Path, reason: StateReason) -> None:
    world.node()
    attempt = world.running()
    assert world.finish(attempt, reason)
    assert world.release(attempt) > 0
    sweep(world, tmp_path)
    assert read(tmp_path, attempt.job).record.reason is reason


def test_every_attempt_is_archived_with_its_reason(world: World, tmp_path: Path) -> None:
    world.node()
    second = world.again(world.running(retries=1), StateReason.RANK_FAILED)
    assert world.finish(second, StateReason.CODE_ERROR)
    assert world.release(second) > 0
    sweep(world, tmp_path)
    attempts = read(tmp_path, second.job).attempts
    assert [(attempt.number, attempt.reason) for attempt in attempts] == [
        (1, StateReason.RANK_FAILED),
        (2, StateReason.CODE_ERROR),
    ]


def test_a_key_goes_on_naming_its_job_until_that_is_deleted(world: World, tmp_path: Path) -> None:
    world.node()
    world.run(store.submit(TENANT, "a", a_spec(), idempotency_key="k", digest="d"))
    world.run(store.cancel(TENANT, "a"))
    sweep(world, tmp_path)
    again = world.run(store.submit(TENANT, "b", a_spec(), idempotency_key="k", digest="d"))
    assert (again.job, again.created) == ("a", False)
    with pytest.raises(IdempotencyConflict):
        world.run(store.submit(TENANT, "b", a_spec(), idempotency_key="k", digest="other"))
    assert world.redis.ttl(f"sy:idem:{TENANT}/k") > 0
    retention.delete_archived_job(world.store, tmp_path, TENANT, "a")
    assert world.run(store.submit(TENANT, "b", a_spec(), idempotency_key="k", digest="d")).created


def test_the_key_of_a_deleted_job_that_another_job_took_is_left_to_it(world: World) -> None:
    world.node()
    world.run(store.submit(TENANT, "a", a_spec(), idempotency_key="k", digest="d"))
    world.run(store.free_idempotency_key(TENANT, "k", "another"))
    assert not world.run(store.submit(TENANT, "b", a_spec(), idempotency_key="k", digest="d")).created


def test_an_archived_job_needs_its_bundle_no_more(world: World, tmp_path: Path) -> None:
    world.node()
    world.put_bundle(1)
    job = world.submit(program=script(1))
    world.run(store.cancel(TENANT, job))
    assert world.jobs_that_need(1) == 1
    sweep(world, tmp_path)
    assert world.jobs_that_need(1) == 0
    assert read(tmp_path, job).to_view().spec.program.bundle == bundle_id(1)


def test_redis_forgets_only_what_was_written(world: World, tmp_path: Path) -> None:
    world.node()
    job = finished(world)
    found = world.run(store.snapshot(TENANT, job))
    assert found is not None
    assert world.run(store.archive_job(TENANT, job, found.version - 1)) is ArchiveOutcome.CHANGED
    assert world.state(job) is JobState.SUCCEEDED
    assert world.run(store.archive_job(TENANT, "no such job", 1)) is ArchiveOutcome.MISSING
    running = world.running()
    assert world.run(store.snapshot(TENANT, running.job)) is None
    assert world.run(store.archive_job(TENANT, running.job, world.job(running.job).version)) is ArchiveOutcome.CHANGED


class DeletesFirst(RedisStore):
    """A user deletes each job between its way to disk and its way out of Redis."""

    def run(self, call: Call[T]) -> T:
        if str(call.command[1]).startswith("archive_job_"):
            tenant, _, job = str(call.command[3]).partition("/")
            super().run(store.delete_job(tenant, job))
        return super().run(call)


def test_a_job_that_is_deleted_meanwhile_does_not_come_back(world: World, tmp_path: Path) -> None:
    world.node()
    job = finished(world)
    retention.sweep_finished_jobs(DeletesFirst(world.redis), tmp_path, 1e-6, 0)
    assert archive.read_job(tmp_path, TENANT, job) is None
    assert listed(tmp_path) == []


CUT_OFF = """
import sys
from pathlib import Path
from api.background import retention
from jobs.store.client import RedisStore
retention.sweep_finished_jobs(RedisStore.from_url(sys.argv[1]), Path(sys.argv[2]), 1e-6, 0)
"""


@pytest.mark.parametrize("place", ["archive.written", "archive.synced"])
def test_a_process_killed_in_between_loses_nothing_and_the_next_finishes_its_work(
    world: World, server_url: str, tmp_path: Path, place: str
) -> None:
    world.node()
    job = finished(world)
    environment = os.environ | {failpoints.VARIABLE: f"{place}:kill"}
    killed = subprocess.run([sys.executable, "-c", CUT_OFF, server_url, str(tmp_path)], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert world.state(job) is JobState.SUCCEEDED
    sweep(world, tmp_path)
    assert listed(tmp_path) == [job]
    assert read(tmp_path, job).record.state is JobState.SUCCEEDED


def test_a_disk_that_refuses_leaves_the_job_in_redis(world: World, tmp_path: Path) -> None:
    world.node()
    job = finished(world)
    directory = paths.archive_file(tmp_path, TENANT, job).parent
    directory.parent.mkdir(parents=True)
    directory.write_text("in the way")
    with pytest.raises(OSError):
        sweep(world, tmp_path)
    assert world.state(job) is JobState.SUCCEEDED


def test_one_process_archives_at_a_time(world: World, tmp_path: Path) -> None:
    world.node()
    job = finished(world)
    paths.archive_dir(tmp_path).mkdir()
    with (paths.archive_dir(tmp_path) / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert not sweep(world, tmp_path)
        assert world.state(job) is JobState.SUCCEEDED
    sweep(world, tmp_path)
    assert listed(tmp_path) == [job]


def test_a_record_that_is_damaged_is_said_to_be_and_hides_no_other(world: World, tmp_path: Path) -> None:
    world.node()
    jobs = [finished(world) for _ in range(3)]
    sweep(world, tmp_path)
    paths.archive_file(tmp_path, TENANT, jobs[0]).write_text("{")
    newer = paths.archive_file(tmp_path, TENANT, jobs[1])
    newer.write_text(json.dumps(json.loads(newer.read_text()) | {"format": 2}))
    for job in jobs[:2]:
        with pytest.raises(NotFound, match="damaged, or was written by a newer"):
            archive.read_job(tmp_path, TENANT, job)
    assert listed(tmp_path) == jobs[2:]


def test_lists_of_the_archive_have_every_job_once_newest_first(world: World, tmp_path: Path) -> None:
    world.node()
    made = [
        world.submit(name=f"job-{number % 3}", labels={"team": str(number % 2)}, pool="default") for number in range(9)
    ]
    for job in made:
        world.run(store.cancel(TENANT, job))
    sweep(world, tmp_path)
    newest = made[::-1]
    assert [listed(tmp_path, limit=limit) for limit in (1, 2, 9, 50)] == [newest] * 4
    assert listed(tmp_path, JobFilter(name="job-1"), limit=1) == newest[1::3]
    assert listed(tmp_path, JobFilter(label=("team", "0")), limit=2) == newest[::2]
    assert listed(tmp_path, JobFilter(state=JobState.SUCCEEDED)) == []
    assert listed(tmp_path, JobFilter(state=JobState.CANCELLED, pool="default"), limit=4) == newest
    assert archive.read_page(tmp_path, "other", JobFilter()).jobs == ()


def test_a_page_that_finds_nothing_stops_and_says_where(world: World, tmp_path: Path) -> None:
    world.node()
    job = finished(world)
    sweep(world, tmp_path)
    body = paths.archive_file(tmp_path, TENANT, job).read_bytes()
    for number in range(archive.MAX_SCANNED):
        paths.archive_file(tmp_path, TENANT, f"000000000-{number:06d}").write_bytes(body)
    page = archive.read_page(tmp_path, TENANT, JobFilter(name="nobody"))
    assert page.jobs == ()
    assert page.next_id is not None
    assert archive.read_page(tmp_path, TENANT, JobFilter(name="nobody"), after=page.next_id).next_id is None


def test_archived_jobs_go_with_their_files_when_they_are_old_enough(world: World, tmp_path: Path) -> None:
    world.node()
    old, young = finished(world), finished(world)
    sweep(world, tmp_path)
    for job in (old, young):
        paths.attempt_dir(tmp_path, TENANT, job, 1).mkdir(parents=True)
    before = time.time() - 100
    os.utime(paths.archive_file(tmp_path, TENANT, old), (before, before))
    sweep(world, tmp_path, archive_seconds=50)
    assert listed(tmp_path) == [young]
    assert [paths.job_dir(tmp_path, TENANT, job).exists() for job in (old, young)] == [False, True]


def test_more_than_one_call_finds_are_all_archived(world: World, tmp_path: Path) -> None:
    world.node()
    jobs = [world.submit() for _ in range(retention.CHUNK + 5)]
    for job in jobs:
        world.run(store.cancel(TENANT, job))
    while sweep(world, tmp_path):
        pass
    assert len(listed(tmp_path)) == len(jobs)
