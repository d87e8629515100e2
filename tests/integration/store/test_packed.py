"""Jobs that have ended are packed, and nobody who reads them notices."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from api.background.compaction import Packing
from jobs import store
from jobs.model.state import Reason, State
from jobs.store import Archived, JobFilter, JobPage
from shardyard.contract.errors import JobFinished, NotFound, UnreadableSpec
from tests.integration.store.world import TENANT, World, a_spec, script

DAY = 86_400.0


def packed(world: World) -> list[str]:
    names: list[Any] = list(world.redis.keys("sy:packed:*"))
    return sorted(key.decode().rpartition("/")[2] for key in names)


def pack(world: World) -> None:
    packing = Packing(world.store, rest_seconds=0, upgrade_seconds=0)
    while packing.sweep():
        pass


def test_a_packed_job_that_is_known_is_not_unpacked_again(world: World, finished: str) -> None:
    running = world.run(store.read_job(TENANT, finished))
    pack(world)
    assert packed(world) == [finished]
    assert world.run(store.read_job(TENANT, finished, running)) is running
    stale = replace(running, record=msgspec.structs.replace(running.record, version=1))
    assert world.run(store.read_job(TENANT, finished, stale)).record.state is State.SUCCEEDED


@pytest.fixture
def finished(world: World) -> str:
    """A job that has ended after two attempts, with labels that need more than a byte, not packed yet."""
    world.node()
    labels = {"team": "vision", "greeting": "schöne 你好 " + "x" * 60}
    attempt = world.claim(_started(world, labels=labels, name="a-name"))
    assert world.mark(attempt)
    attempt = world.again(attempt, Reason.SERVICE_STOPPED)
    assert world.mark(attempt)
    world.run(store.commit_checkpoint(attempt, "c", step=7, epoch=1, sha256="5" * 64))
    world.run(store.finish(attempt, "c", Reason.COMPLETED, "", result={"loss": 0.25, "metrics": {"accuracy": 0.5}}))
    world.release(attempt)
    return attempt.job


def _started(world: World, **fields: Any) -> str:
    job = world.submit(2, **fields)
    assert world.dispatch() == [job]
    return job


def test_a_packed_job_reads_as_it_did_before(world: World, finished: str) -> None:
    reads: list[store.Call[Any]] = [
        store.read_job(TENANT, finished),
        store.attempts(TENANT, finished),
        store.records([(TENANT, finished)]),
        store.versions([(TENANT, finished)]),
        store.snapshot(TENANT, finished),
        store.page(TENANT, JobFilter()),
        store.page(TENANT, JobFilter(State.SUCCEEDED, "default", ("team", "vision"), "a-name")),
        store.page(TENANT, JobFilter(name="another")),
        store.count_jobs(TENANT),
    ]
    before = [_read(world, call) for call in reads]
    pack(world)
    assert packed(world) == [finished]
    assert world.redis.exists(f"sy:job:{TENANT}/{finished}", f"sy:spec:{TENANT}/{finished}") == 0
    assert world.redis.keys("sy:attempt:*") == []
    assert [_read(world, call) for call in reads] == before
    assert before[5].jobs[0].checkpoint is not None


def _read(world: World, call: store.Call[Any]) -> Any:
    """What it returns, with records in place of packed jobs."""
    found = world.run(call)
    return replace(found, jobs=found.records()) if isinstance(found, JobPage) else found


@pytest.mark.parametrize("value", ["plain", "", 'with "quotes"', "back\\slash", "a/b", "schöne 你好", '","other":"'])
def test_packed_jobs_are_found_by_any_value_of_a_label(world: World, value: str) -> None:
    world.node()
    jobs = [world.submit(labels={"team": text, "other": "x"}) for text in (value, value + "x", "x" + value)]
    for job in jobs:
        world.run(store.cancel(TENANT, job))
    pack(world)
    assert sorted(packed(world)) == sorted(jobs)
    found = world.run(store.page(TENANT, JobFilter(label=("team", value))))
    assert [job.id for job in found.jobs] == jobs[:1]


def test_only_jobs_that_have_ended_are_packed_and_the_others_go_on(world: World) -> None:
    world.node()
    ended, running, waiting = world.running(), world.running(), world.submit(4)
    world.finish_and_release(ended)
    pack(world)
    assert packed(world) == [ended.job]
    assert world.state(waiting) is State.QUEUED
    world.finish_and_release(running)
    pack(world)
    assert packed(world) == sorted([ended.job, running.job])


def test_a_page_has_packed_jobs_and_others_in_one_order(world: World) -> None:
    world.node(devices=8)
    jobs = [world.running() for _ in range(6)]
    for attempt in jobs[::2]:
        world.finish_and_release(attempt)
    pack(world)
    first = world.run(store.page(TENANT, JobFilter(), limit=4))
    rest = world.run(store.page(TENANT, JobFilter(), after=first.next_id or "", limit=4))
    assert [job.id for job in (*first.jobs, *rest.jobs)] == [attempt.job for attempt in reversed(jobs)]
    assert rest.next_id is None


def test_a_job_is_not_packed_before_it_has_rested(world: World) -> None:
    world.node()
    world.finish_and_release(world.running())
    Packing(world.store, rest_seconds=60, upgrade_seconds=0).sweep()
    assert packed(world) == []


def test_what_comes_later_is_packed_by_the_same_process(world: World) -> None:
    world.node()
    packing = Packing(world.store, rest_seconds=0, upgrade_seconds=0)
    first, second = world.running(), world.running()
    world.finish_and_release(first)
    packing.sweep()
    assert packed(world) == [first.job]
    world.finish_and_release(second)
    packing.sweep()
    assert packed(world) == sorted([first.job, second.job])


def test_more_jobs_than_one_call_hands_out_are_all_packed(world: World) -> None:
    world.node(devices=1)
    for _ in range(store.PACKED_AT_ONCE + 3):
        world.finish_and_release(world.running())
    Packing(world.store, rest_seconds=0, upgrade_seconds=0).sweep()
    assert len(packed(world)) == store.PACKED_AT_ONCE + 3


def test_jobs_that_ended_at_one_time_are_all_packed_though_no_call_hands_out_all_of_them(world: World) -> None:
    world.node()
    jobs = [world.submit() for _ in range(store.PACKED_AT_ONCE + 5)]
    packing = Packing(world.store, rest_seconds=0, upgrade_seconds=0)
    for job in jobs[:7]:
        world.run(store.cancel(TENANT, job))
    world.run(store.cancel_many(TENANT, JobFilter(State.QUEUED), after="~"))
    assert len(set(_times(world))) == 8
    packing.sweep()
    assert packed(world) == jobs


def _times(world: World) -> list[float]:
    """When each job has ended."""
    found: list[Any] = list(world.redis.zrange("sy:finished", 0, -1, withscores=True))
    return [score for _, score in found]


def test_what_ends_after_the_clock_was_set_back_is_packed(world: World) -> None:
    world.node()
    packing = Packing(world.store, rest_seconds=0, upgrade_seconds=0)
    first = world.running()
    world.finish_and_release(first)
    world.redis.zincrby("sy:finished", 3600e6, first.job_ref)  # when clocks were ahead
    packing._position = int(_times(world)[0])
    second = world.running()
    world.finish_and_release(second)
    packing.sweep()
    assert second.job in packed(world)


def test_a_store_that_an_earlier_version_has_used_is_not_packed_while_that_may_still_run(world: World) -> None:
    world.node()
    world.finish_and_release(world.running())
    Packing(world.store, rest_seconds=0, upgrade_seconds=60).sweep()
    assert packed(world) == []
    world.redis.decrby("sy:packs", 61 * 10**6)
    Packing(world.store, rest_seconds=0, upgrade_seconds=60).sweep()
    assert len(packed(world)) == 1


def test_a_store_that_was_empty_is_packed_at_once(world: World) -> None:
    packing = Packing(world.store, rest_seconds=0, upgrade_seconds=60)
    packing.sweep()
    world.node()
    world.finish_and_release(world.running())
    packing.sweep()
    assert len(packed(world)) == 1


def test_a_job_that_has_changed_since_it_was_read_is_left_as_it_is(world: World, finished: str) -> None:
    found = world.run(store.snapshot(TENANT, finished))
    assert found is not None
    assert world.run(store.put_packed([(f"{TENANT}/{finished}", found.version + 1, store.pack(found))])) == 0
    assert packed(world) == []


def test_a_late_word_of_a_supervisor_changes_nothing(world: World, finished: str) -> None:
    attempt = world.attempt(finished)
    pack(world)
    before = world.job(finished)
    assert not world.finish(attempt)
    assert not world.mark(attempt)
    assert not world.reap(attempt, beat=None)
    assert not world.run(store.claim(attempt, "c", "n1")).granted
    assert world.run(store.commit_checkpoint(attempt, "c", step=9, epoch=1, sha256="6" * 64)) == "lost"
    assert world.job(finished) == before


def test_a_packed_job_cannot_be_cancelled_and_a_cancelled_one_stays_so(world: World, finished: str) -> None:
    cancelled = world.submit(4)
    assert world.run(store.cancel(TENANT, cancelled)) == "cancelled"
    pack(world)
    with pytest.raises(JobFinished):
        world.run(store.cancel(TENANT, finished))
    assert world.run(store.cancel(TENANT, cancelled)) == "cancelled"


def test_a_packed_job_is_deleted_with_all_that_names_it(world: World) -> None:
    world.node()
    world.put_bundle(1)
    call = store.submit(TENANT, "000000001", a_spec(program=script(1)), idempotency_key="k", digest="d")
    world.run(call)
    assert world.dispatch() == ["000000001"]
    world.finish_and_release(world.claim("000000001"))
    pack(world)
    assert world.run(replace_id(call, "000000002")).job == "000000001"
    assert world.jobs_that_need(1) == 1
    world.run(store.delete(TENANT, "000000001"))
    assert world.jobs_that_need(1) == 0
    with pytest.raises(NotFound):
        world.job("000000001")
    assert world.redis.keys("sy:*:default/000000001*") == []
    assert world.redis.keys("sy:idem:*") == []


def replace_id(call: store.Call[store.Submitted], job: str) -> store.Call[store.Submitted]:
    return replace(call, command=(*call.command[:4], job, *call.command[5:]))


def test_a_packed_job_is_archived(world: World, finished: str) -> None:
    pack(world)
    found = world.run(store.snapshot(TENANT, finished))
    assert found is not None
    assert world.run(store.archive(TENANT, finished, found.version + 1)) is Archived.CHANGED
    assert world.run(store.archive(TENANT, finished, found.version)) is Archived.DONE
    assert packed(world) == []


def test_a_job_that_another_version_packed_in_another_way_says_so(world: World, finished: str) -> None:
    pack(world)
    key = f"sy:packed:{TENANT}/{finished}"
    data = world.redis.get(key)
    assert isinstance(data, bytes)
    other = data.replace(b"\xa11\xa1", b"\xa12\xa1", 1)
    assert other != data
    with pytest.raises(UnreadableSpec, match="layout 2"):
        store.unpack(other)
