"""Lists of jobs, by keyset."""

import time

import pytest

from jobs import store
from jobs.model.state import JobState
from jobs.store import JobFilter
from tests.integration.store.world import TENANT, World, a_spec

pytestmark = pytest.mark.integration

MANY = 3000


def read_all(world: World, chosen: JobFilter, limit: int) -> list[str]:
    found: list[str] = []
    after: str | None = ""
    while after is not None:
        page = world.run(store.list_jobs(TENANT, chosen, after=after, limit=limit))
        assert len(page.jobs) <= limit
        assert page.next_id != after, "a page must make progress"
        found += [record.id for record in page.jobs]
        after = page.next_id
    return found


def fill(world: World) -> list[str]:
    """Jobs of two pools and three labels, newest first; every seventh is cancelled."""
    world.node("n1", 1, pool="a")
    world.node("n2", 1, pool="b")
    ids = [f"{number:06d}" for number in range(MANY)]
    specs = {
        (pool, label): a_spec(pool=pool, labels={"team": str(label)}, name=f"job-{label}")
        for pool in "ab"
        for label in range(3)
    }
    with world.redis.pipeline(transaction=False) as pipe:
        for number, job in enumerate(ids):
            call = store.submit(TENANT, job, specs["ab"[number % 2], number % 3])
            pipe.execute_command(*call.command)  # type: ignore[no-untyped-call]
        pipe.execute()
    for job in ids[::7]:
        world.run(store.cancel(TENANT, job))
    return ids[::-1]


def test_pages_show_every_job_once_newest_first_under_any_filter(world: World) -> None:
    ids = fill(world)
    number = {job: int(job) for job in ids}
    assert read_all(world, JobFilter(), 199) == read_all(world, JobFilter(), 200) == ids
    assert read_all(world, JobFilter(state=JobState.CANCELLED), 50) == [job for job in ids if number[job] % 7 == 0]
    assert read_all(world, JobFilter(state=JobState.RUNNING), 50) == []
    assert read_all(world, JobFilter(pool="a"), 1000) == [job for job in ids if number[job] % 2 == 0]
    assert read_all(world, JobFilter(label=("team", "1")), 333) == [job for job in ids if number[job] % 3 == 1]
    assert read_all(world, JobFilter(name="job-2"), 77) == [job for job in ids if number[job] % 3 == 2]
    both = JobFilter(state=JobState.QUEUED, pool="b", label=("team", "0"), name="job-0")
    assert read_all(world, both, 10) == [job for job in ids if number[job] % 6 == 3 and number[job] % 7]
    for nothing in (JobFilter(label=("team", "9")), JobFilter(label=("other", "1")), JobFilter(pool="c")):
        assert read_all(world, nothing, 10) == []


def test_a_rare_filter_gives_short_pages_that_still_make_progress(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store.job_lists, "MAX_SCANNED", 250)
    ids = fill(world)
    rare = JobFilter(label=("rare", "yes"))
    world.run(store.submit(TENANT, "000000-rare", a_spec(pool="a", labels={"rare": "yes"})))
    first = world.run(store.list_jobs(TENANT, rare, limit=10))
    assert first.jobs == ()
    assert first.next_id == ids[249]
    assert read_all(world, rare, 10) == ["000000-rare"]


def test_jobs_of_a_rare_name_are_found_at_once_by_their_index(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store.job_lists, "MAX_SCANNED", 10)
    fill(world)
    for job in ("000000-rare", "001000-rare", "002000-rare"):
        world.run(store.submit(TENANT, job, a_spec(pool="a", name="rare: schöne 你好")))
    world.run(store.cancel(TENANT, "001000-rare"))
    rare = JobFilter(name="rare: schöne 你好")
    first = world.run(store.list_jobs(TENANT, rare, limit=2))
    assert [job.id for job in first.jobs] == ["002000-rare", "001000-rare"]
    rest = world.run(store.list_jobs(TENANT, rare, after=first.next_id or "", limit=2))
    assert [job.id for job in rest.jobs] == ["000000-rare"]
    assert rest.next_id is None
    waiting = world.run(store.list_jobs(TENANT, JobFilter(state=JobState.QUEUED, name=rare.name)))
    assert [job.id for job in waiting.jobs] == ["002000-rare", "000000-rare"]
    assert world.run(store.list_jobs("other", rare)).jobs == ()


def test_names_whose_digests_begin_alike_are_told_apart(world: World) -> None:
    world.node()
    alike = ["name-6243", "name-49735"]  # c61b8db1 begins the SHA-1 of both
    jobs = [world.submit(name=name) for name in alike]
    for job, name in zip(jobs, alike, strict=True):
        assert [found.id for found in world.run(store.list_jobs(TENANT, JobFilter(name=name))).jobs] == [job]


def test_jobs_that_an_earlier_version_has_submitted_are_found_by_name(world: World) -> None:
    """Their entries are missing in the index, as those of jobs that it submits while both versions run."""
    ids = fill(world)
    world.redis.delete("sy:names:default", "sy:named")
    world.run(store.submit(TENANT, "003000", a_spec(pool="a", name="job-2")))
    since = world.redis.get("sy:named")
    assert isinstance(since, bytes)
    assert int(since.replace(b"-", b""), 16) / 1000 == pytest.approx(time.time() + 900, abs=60)
    world.run(store.submit(TENANT, "f", a_spec(pool="a", name="job-2")))  # long after that
    wanted = ["f", "003000", *(job for job in ids if int(job) % 3 == 2)]
    assert read_all(world, JobFilter(name="job-2"), 77) == wanted
    assert read_all(world, JobFilter(name="job-2"), 1) == wanted


def test_a_page_goes_on_where_it_stopped_although_jobs_came_and_went(world: World) -> None:
    world.node()
    old = [world.submit() for _ in range(10)]
    page = world.run(store.list_jobs(TENANT, JobFilter(), limit=4))
    assert page.next_id is not None
    world.submit()
    for gone in (page.next_id, old[4]):
        world.run(store.cancel(TENANT, gone))
        world.run(store.delete_job(TENANT, gone))
    rest = world.run(store.list_jobs(TENANT, JobFilter(), after=page.next_id, limit=100))
    assert [record.id for record in rest.jobs] == [job for job in old[5::-1] if job != old[4]]
    assert rest.next_id is None


def test_a_page_tells_what_the_first_of_its_jobs_that_wait_do_wait_behind(world: World) -> None:
    world.node("n1", 2)
    world.node("n2", 1, pool="b")
    running = world.running(2)
    waiting = [world.submit(2), world.submit(1), world.submit(1, pool="b"), world.submit(2, priority=5)]
    found = world.run(store.list_jobs(TENANT, JobFilter(), max_queues=3))
    assert [job.id for job in found.jobs] == [*reversed(waiting), running.job]
    assert list(found.queues) == waiting[:0:-1]
    assert found.queues == {job: world.run(store.read_job(TENANT, job)).queue for job in waiting[1:]}
    assert world.run(store.list_jobs(TENANT, JobFilter())).queues == {}
