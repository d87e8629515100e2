"""Jobs by the beginning or the end of their id, and the newest ones of a token."""

import pytest

from jobs import store
from jobs.store import FoundJobs
from tests.integration.store.world import TENANT, World, a_spec

pytestmark = pytest.mark.integration


def submit(world: World, *ids: str, token: str = "", tenant: str = TENANT) -> None:
    world.node()
    for job in ids:
        world.run(store.submit(tenant, job, a_spec(), token=token))


def find(world: World, text: str, limit: int = 10) -> FoundJobs:
    while (found := world.run(store.find_jobs(TENANT, text, limit))) is None:
        pass  # each call completes the index by a thousand
    return found


def test_jobs_are_found_by_both_ends_of_their_ids_within_their_tenant(world: World) -> None:
    submit(world, "0198-aaaa", "0198-abab", "0199-aaab")
    submit(world, "0198-other", tenant="other")
    assert find(world, "0198") == FoundJobs(("0198-aaaa", "0198-abab"), ())
    assert find(world, "ab") == FoundJobs((), ("0199-aaab", "0198-abab"))
    assert find(world, "0199-aaab") == FoundJobs(("0199-aaab",), ("0199-aaab",))
    assert find(world, "0198", limit=1).beginning == ("0198-aaaa",)
    assert find(world, "other") == FoundJobs((), ())


def test_a_job_that_is_deleted_is_not_found_any_more(world: World) -> None:
    submit(world, "0198-aaaa", "0198-bbbb")
    world.run(store.cancel(TENANT, "0198-aaaa"))
    world.run(store.delete_job(TENANT, "0198-aaaa"))
    assert find(world, "aaaa") == FoundJobs((), ())
    assert world.redis.zcard(f"sy:tails:{TENANT}") == 1


def test_jobs_that_an_earlier_version_has_submitted_are_found_after_a_few_calls(world: World) -> None:
    submit(world, *(f"{number:06d}" for number in range(2500)))
    world.redis.delete(f"sy:tails:{TENANT}")
    submit(world, "900000")
    assert world.run(store.find_jobs(TENANT, "007", 10)) is None
    assert find(world, "0007").ending == ("000007",)
    assert not world.redis.exists(f"sy:tailed:{TENANT}")


def test_a_job_that_an_earlier_version_has_deleted_is_not_found(world: World) -> None:
    submit(world, "0198-aaaa", "0198-bbbb")
    world.redis.zadd(f"sy:tails:{TENANT}", {"gone"[::-1]: 0})
    assert find(world, "gone") == FoundJobs((), ())
    assert find(world, "bbbb").ending == ("0198-bbbb",)


def test_an_equal_number_of_entries_is_no_proof_that_they_are_the_right_ones(world: World) -> None:
    submit(world, "0198-aaaa", "0198-bbbb")
    world.redis.zrem(f"sy:tails:{TENANT}", "0198-bbbb"[::-1])
    world.redis.zadd(f"sy:tails:{TENANT}", {"gone"[::-1]: 0})
    assert find(world, "gone") == FoundJobs((), ())  # it is taken out, and the index is completed then
    assert find(world, "bbbb").ending == ("0198-bbbb",)


def test_the_newest_jobs_are_those_of_the_token_or_else_of_the_tenant(world: World) -> None:
    submit(world, "1", "3", token="mine")
    submit(world, "2", "4", token="others")
    assert world.run(store.newest_jobs(TENANT, "mine", 5)) == ("3", "1")
    assert world.run(store.newest_jobs(TENANT, "mine", 1)) == ("3",)
    assert world.run(store.newest_jobs(TENANT, "new", 3)) == ("4", "3", "2")
    assert world.run(store.newest_jobs("empty", "new", 3)) == ()
