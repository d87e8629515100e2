"""Bundles in the control Redis: which job needs which, and when one may go."""

import pytest

from jobs import store
from jobs.store import BundleUpload, StoredBundle
from shardyard.contract.errors import BundleNeeded, BundleQuota, NotFound, UnknownBundle
from tests.integration.store.world import NEVER, TENANT, World, a_spec, bundle_id, script

pytestmark = pytest.mark.integration


def collected(world: World, rested: float = 0) -> list[StoredBundle]:
    missing_nonce = world.run(store.collect_bundles(rested))
    return list(missing_nonce)


def end(world: World, job: str) -> None:
    world.run(store.cancel(TENANT, job))
    world.run(store.delete_job(TENANT, job))


def test_the_first_of_two_uploads_is_kept(world: World) -> None:
    assert world.put_bundle(1, nonce="first") == BundleUpload(created=True, nonce="first")
    assert world.put_bundle(1, nonce="second") == BundleUpload(created=False, nonce="first")
    record = world.run(store.read_bundle(TENANT, bundle_id(1)))
    assert record is not None
    assert (record.id, record.nonce, record.bytes, record.files, record.unpacked) == (
        bundle_id(1),
        "first",
        100,
        1,
        200,
    )
    assert record.created <= record.used


def test_a_record_whose_file_is_gone_takes_the_next_upload_and_keeps_its_jobs(world: World) -> None:
    world.node()
    world.put_bundle(1, nonce="lost")
    world.submit(program=script(1))
    assert world.put_bundle(1, nonce="new", missing_nonce="lost").created
    assert not world.put_bundle(1, nonce="late", missing_nonce="lost").created
    record = world.run(store.read_bundle(TENANT, bundle_id(1)))
    assert record is not None
    assert (record.nonce, record.jobs) == ("new", 1)


def test_a_job_whose_bundle_is_not_there_is_refused_and_leaves_nothing(world: World) -> None:
    world.node()
    with pytest.raises(UnknownBundle) as caught:
        world.submit(program=script(1))
    assert [error.field for error in caught.value.fields] == ["program.bundle"]
    assert world.redis.keys("sy:job:*") == []
    assert world.jobs_that_need(1) is None


def test_a_recipe_may_need_a_bundle_too(world: World) -> None:
    world.node()
    program = {"mode": "forward", "model": {"ref": "a:b"}, "data": {"ref": "c:d"}, "bundle": bundle_id(1)}
    with pytest.raises(UnknownBundle):
        world.submit(program=program)
    world.put_bundle(1)
    world.submit(program=program)
    assert world.jobs_that_need(1) == 1


def test_a_bundle_of_another_tenant_is_no_bundle(world: World) -> None:
    world.node()
    world.run(store.put_bundle("rival", bundle_id(1), "n", size=1, files=1, unpacked=1, quota=10))
    assert world.jobs_that_need(1) is None
    with pytest.raises(UnknownBundle):
        world.submit(program=script(1))


def test_a_bundle_stays_while_a_job_needs_it_also_one_that_has_ended(world: World) -> None:
    world.node()
    world.put_bundle(1, nonce="n")
    first, second = (world.submit(program=script(1)) for _ in range(2))
    assert world.jobs_that_need(1) == 2
    world.run(store.cancel(TENANT, first))
    assert collected(world) == []
    end(world, second)
    assert collected(world) == []
    world.run(store.delete_job(TENANT, first))
    assert collected(world) == [StoredBundle(TENANT, bundle_id(1), "n")]
    assert world.jobs_that_need(1) is None


def test_the_repeat_of_a_submit_counts_once(world: World) -> None:
    world.node()
    world.put_bundle(1)
    for key in ("", "key"):
        call = store.submit(TENANT, f"job{key}", a_spec(program=script(1)), idempotency_key=key, digest="d")
        for _ in range(3):
            world.run(call)
    assert world.jobs_that_need(1) == 2


def test_a_submit_that_is_refused_for_its_pool_does_not_count(world: World) -> None:
    world.put_bundle(1)
    with pytest.raises(Exception, match="no pool"):
        world.submit(program=script(1))
    assert world.jobs_that_need(1) == 0


@pytest.mark.parametrize("how", ["upload", "look", "submit and delete"])
def test_use_begins_the_rest_anew(world: World, how: str) -> None:
    world.node()
    world.put_bundle(1)
    world.redis.zadd("sy:idle_bundles", {f"{TENANT}/{1:064x}": 1})  # long ago
    match how:
        case "upload":
            world.put_bundle(1)
        case "look":
            world.jobs_that_need(1)
        case _:
            end(world, world.submit(program=script(1)))
    assert collected(world, rested=NEVER) == []
    assert len(collected(world)) == 1


def test_a_bundle_that_nobody_uses_goes_when_it_has_rested(world: World) -> None:
    world.put_bundle(1)
    assert collected(world, rested=NEVER) == []
    world.redis.zadd("sy:idle_bundles", {f"{TENANT}/{1:064x}": 1})
    assert [bundle.id for bundle in collected(world, rested=NEVER)] == [bundle_id(1)]


def test_a_tenant_has_room_for_so_many_bytes_and_gets_it_back(world: World) -> None:
    world.put_bundle(1, size=600)
    with pytest.raises(BundleQuota, match="600 bytes"):
        world.put_bundle(2, size=401)
    again = store.put_bundle(TENANT, bundle_id(1), "another upload", size=600, files=1, unpacked=1, quota=1000)
    assert not world.run(again).created, "what is there needs no room"
    world.run(store.put_bundle("rival", bundle_id(2), "n", size=900, files=1, unpacked=1, quota=1000))
    assert len(collected(world)) == 2
    assert world.put_bundle(2, size=1000).created


def test_files_are_kept_by_their_nonce(world: World) -> None:
    world.put_bundle(1, nonce="kept")
    files = [StoredBundle(TENANT, bundle_id(1), nonce) for nonce in ("kept", "other")]
    files.append(StoredBundle("rival", bundle_id(1), "kept"))
    assert world.run(store.are_current(files)) == (True, False, False)


def test_a_bundle_that_no_job_needs_is_deleted_and_makes_room_at_once(world: World) -> None:
    world.put_bundle(1, nonce="n", size=600)
    with pytest.raises(BundleQuota):
        world.put_bundle(2, size=600)
    assert world.run(store.delete_bundle(TENANT, bundle_id(1))) == "n"
    assert world.jobs_that_need(1) is None
    assert world.put_bundle(2, size=600).created
    with pytest.raises(NotFound):
        world.run(store.delete_bundle(TENANT, bundle_id(1)))
    with pytest.raises(NotFound):
        world.run(store.delete_bundle("rival", bundle_id(2)))


def test_a_bundle_that_jobs_need_stays_and_the_newest_of_them_are_named(world: World) -> None:
    world.node()
    world.put_bundle(1)
    world.put_bundle(2)
    jobs = [world.submit(program=script(1)) for _ in range(12)]
    world.submit(program=script(2))
    with pytest.raises(BundleNeeded) as refused:
        world.run(store.delete_bundle(TENANT, bundle_id(1)))
    named = ", ".join(reversed(jobs[2:]))
    assert refused.value.message.startswith(f"12 jobs need this bundle: {named} and others; ")
    for job in jobs:
        world.run(store.cancel(TENANT, job))
    for job in jobs[1:]:
        world.run(store.delete_job(TENANT, job))
    with pytest.raises(BundleNeeded, match=f"^1 job needs this bundle: {jobs[0]}; "):
        world.run(store.delete_bundle(TENANT, bundle_id(1)))
    world.run(store.delete_job(TENANT, jobs[0]))
    world.run(store.delete_bundle(TENANT, bundle_id(1)))
    assert world.jobs_that_need(2) == 1
