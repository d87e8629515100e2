"""Groups of jobs in the store."""

import pytest

from jobs import store
from jobs.model.quota import Quota
from jobs.model.state import JobState, StateReason
from jobs.model.trace_context import JobTrace
from jobs.store import ArchiveOutcome, JobFilter, groups
from jobs.store.accounts import quotas
from shardyard.contract.errors import IdempotencyConflict, NotFound, OverQuota, TooLargeForPool
from tests.integration.store.invariants import violations
from tests.integration.store.world import TENANT, World, a_spec

pytestmark = pytest.mark.integration


def run_to_its_end(world: World, job: str, reason: StateReason = StateReason.COMPLETED) -> None:
    attempt = world.claim(job)
    assert world.mark(attempt)
    assert world.finish(attempt, reason)
    assert world.release(attempt) > 0


def submit(world: World, devices: list[int], concurrent: int = 1) -> tuple[str, list[str]]:
    group, call = world.new_group(devices, concurrent=concurrent)
    assert world.run(call).created
    return group, list(world.children(group).values())


@pytest.mark.parametrize("end", [StateReason.COMPLETED, StateReason.RANK_FAILED])
def test_jobs_of_a_group_run_one_after_another_however_each_ends(world: World, end: StateReason) -> None:
    world.node(devices=4)
    _, jobs = submit(world, [1, 2, 1])
    for place, job in enumerate(jobs):
        assert world.dispatch() == [job]
        waiting = jobs[place + 1 :]
        assert {world.job(later).reason for later in waiting} <= {StateReason.WAITING_FOR_TURN}
        run_to_its_end(world, job, end)
    assert world.dispatch() == []


def test_so_many_jobs_of_a_group_have_devices_at_a_time(world: World) -> None:
    world.node(devices=8)
    _, jobs = submit(world, [1] * 5, concurrent=2)
    assert world.dispatch() == jobs[:2]
    run_to_its_end(world, jobs[1])
    assert world.dispatch() == [jobs[2]]
    assert violations(world.redis) == []


def test_a_turn_passes_on_from_a_job_that_is_cancelled_while_it_waits_for_devices(world: World) -> None:
    world.node(devices=1)
    _, jobs = submit(world, [1, 1, 1])
    world.run(store.cancel(TENANT, jobs[1]))
    world.run(store.cancel(TENANT, jobs[0]))
    assert world.dispatch() == [jobs[2]]


def test_a_job_that_waits_for_its_turn_can_be_suspended_and_resumed(world: World) -> None:
    world.node(devices=1)
    _, jobs = submit(world, [1, 1])
    world.dispatch()
    world.run(store.suspend(TENANT, jobs[1]))
    run_to_its_end(world, jobs[0])
    assert world.dispatch() == []
    world.run(store.resume(TENANT, jobs[1]))
    assert world.dispatch() == [jobs[1]]


def test_the_same_submit_makes_no_job_twice_by_its_id_and_by_its_key(world: World) -> None:
    world.node()
    _, call = world.new_group([1, 1])
    assert [world.run(call).created for _ in range(3)] == [True] * 3
    about = groups.NewGroup("00000000a", "sweep", "", {}, {}, 1)
    first = groups.submit_group(
        TENANT, about, [groups.NewChild(0, "00000000b", a_spec(), JobTrace())], idempotency_key="key", digest="one"
    )
    assert world.run(first) == groups.SubmittedGroup("00000000a", True)
    other = groups.NewGroup("00000000c", "sweep", "", {}, {}, 1)
    children = [groups.NewChild(0, "00000000d", a_spec(), JobTrace())]
    again = groups.submit_group(TENANT, other, children, idempotency_key="key", digest="one")
    assert world.run(again) == groups.SubmittedGroup("00000000a", False)
    with pytest.raises(IdempotencyConflict):
        world.run(groups.submit_group(TENANT, other, children, idempotency_key="key", digest="other"))
    assert world.run(store.count_jobs(TENANT))[JobState.QUEUED] == 3


def test_a_group_is_stored_whole_or_not_at_all(world: World) -> None:
    world.node(devices=2)
    _, call = world.new_group([1, 2, 3])
    with pytest.raises(TooLargeForPool):
        world.run(call)
    world.run(quotas.set_quota(TENANT, "", Quota(jobs=2)))
    _, call = world.new_group([1, 1, 1])
    with pytest.raises(OverQuota):
        world.run(call)
    assert world.run(groups.list_groups(TENANT, "sweep")).groups == ()
    assert world.run(store.count_jobs(TENANT))[JobState.QUEUED] == 0


def test_a_cancel_ends_all_that_has_not_ended_and_nothing_comes_after_it(world: World) -> None:
    world.node(devices=4)
    group, jobs = submit(world, [1] * 4, concurrent=2)
    world.dispatch()
    run_to_its_end(world, jobs[0])
    world.claim(jobs[1])
    world.run(groups.cancel_group(TENANT, group, "sweep"))
    assert world.dispatch() == []
    assert [world.state(job) for job in jobs] == ["succeeded", "starting", "cancelled", "cancelled"]
    assert world.job(jobs[1]).cancel_requested
    assert not world.run(world.more_children(group, [1], first=4))
    with pytest.raises(NotFound):
        world.run(groups.cancel_group(TENANT, group, "comparison"))


def test_a_job_that_was_added_already_is_not_added_again(world: World) -> None:
    world.node(devices=4)
    group, jobs = submit(world, [1])
    assert world.run(world.more_children(group, [1, 1], first=0))
    assert next(iter(world.children(group).values())) == jobs[0]
    assert len(world.children(group)) == 2


def test_groups_are_listed_newest_first_with_the_states_of_their_jobs(world: World) -> None:
    world.node(devices=1)
    (first, jobs), (second, _) = submit(world, [1, 1]), submit(world, [1])
    world.run(store.cancel(TENANT, jobs[0]))
    page = world.run(groups.list_groups(TENANT, "sweep", limit=1))
    assert ([one.record.id for one in page.groups], page.next_id, page.total) == ([second], second, 2)
    page = world.run(groups.list_groups(TENANT, "sweep", after=second))
    assert [(one.record.id, one.counts) for one in page.groups] == [
        (first, {JobState.CANCELLED: 1, JobState.QUEUED: 1})
    ]
    assert world.run(groups.list_groups(TENANT, "comparison")).groups == ()
    assert world.run(groups.list_groups("acme", "sweep")).groups == ()


def test_jobs_of_one_group_are_listed_and_counted(world: World) -> None:
    world.node(devices=1)
    world.submit()
    group, jobs = submit(world, [1, 1, 1])
    world.submit()
    for limit in (1, 2, 50):
        found: list[str] = []
        after: str | None = ""
        while after is not None:
            page = world.run(store.list_jobs(TENANT, JobFilter(group=group), after=after, limit=limit))
            found += [row.id for row in page.jobs]
            after = page.next_id
        assert found == jobs[::-1]
    assert {row.group for row in page.jobs} == {group}
    queued = JobFilter(state=JobState.QUEUED, group=group)
    assert world.run(store.count_matching(TENANT, queued)).number == 3
    assert world.run(store.cancel_many(TENANT, queued, after="z")).cancelled == 3


def test_a_group_is_forgotten_with_the_last_of_its_jobs(world: World) -> None:
    world.node(devices=1)
    group, jobs = submit(world, [1, 1])
    world.run(groups.cancel_group(TENANT, group, "sweep"))
    found = world.run(store.snapshot(TENANT, jobs[0]))
    assert found is not None
    assert world.run(store.archive_job(TENANT, jobs[0], found.version)) is ArchiveOutcome.DONE
    (gone, kept) = world.run(groups.read_group(TENANT, group, "sweep")).children
    assert (gone.row, kept.row and kept.row.id) == (None, jobs[1])
    world.run(store.delete_job(TENANT, jobs[1]))
    assert world.children(group) == {}
    assert [key for key in world.redis.keys("sy:*") if b"group" in key] == []


def test_a_turn_that_nobody_gave_back_is_found(world: World) -> None:
    """A supervisor of an earlier version ends its job, and knows nothing of groups."""
    world.node(devices=2)
    group, jobs = submit(world, [1, 1])
    world.dispatch()
    run_to_its_end(world, jobs[0])
    ref = f"{TENANT}/{group}"
    world.redis.sadd(f"sy:active:{ref}", f"{TENANT}/{jobs[0]}")
    world.redis.zadd("sy:turns_due", {ref: 1})  # it is time to look again
    assert world.dispatch() == [jobs[1]]


def test_jobs_of_a_group_run_on_one_node_that_fits_the_widest_of_them(world: World) -> None:
    for name, devices in (("n1", 2), ("n2", 4), ("n3", 8)):
        world.node(name, devices)
    _, jobs = submit(world, [1, 4, 2])
    for job in jobs:
        assert world.dispatch() == [job]
        assert world.job(job).node == "n2"
        attempt = world.claim(job)
        assert world.finish(attempt)
        assert world.release(attempt, node="n2") > 0


def test_a_job_of_a_group_does_not_wait_for_the_node_of_the_others(world: World) -> None:
    world.node("n1", 2)
    world.node("n2", 4)
    _, jobs = submit(world, [2, 2])
    assert world.dispatch() == jobs[:1]
    assert world.job(jobs[0]).node == "n1"
    world.finish_and_release(world.claim(jobs[0]))
    other = world.submit(2)
    world.run(store.drain_node("n1"))
    assert sorted(world.dispatch()) == sorted([jobs[1], other])
    assert world.job(jobs[1]).node == "n2"
