"""Jobs that an earlier version has packed are as they were, after the upgrade.

`packed_jobs.json` has keys of a control Redis that the code of commit 415330d left, as `store.dump_keys` gives them,
and what that code read there: four packed jobs, one that has ended and is not packed yet, and one that waits.
"""

import base64
import json
import threading
from importlib.resources import files
from typing import Any

import msgspec
import pytest

from jobs import store
from jobs.model.state import JobState
from jobs.store import JobFilter, shares
from jobs.store.packed_jobs import PackedJobConverter
from shardyard.contract.errors import JobFinished
from tests.integration.store.world import TENANT, World, a_spec

TWICE, FAILED, CANCELLED, NOT_PACKED, WAITING, KEYED = (f"000000{n:03d}" for n in (1, 2, 3, 4, 5, 900))
LEFT = json.loads((files("tests.integration.store.jobs") / "packed_jobs.json").read_text())
QUARTER = 900 * 10**6


@pytest.fixture
def left(world: World) -> World:
    """The store as the earlier version left it."""
    for name, kind, _, encoded in LEFT["entries"]:
        values = [base64.b64decode(value) for value in encoded]
        pairs = dict(zip(values[::2], values[1::2], strict=False))
        match kind:
            case "string":
                world.redis.set(name, values[0])
            case "hash":
                world.redis.hset(name, mapping=pairs)  # type: ignore[arg-type]
            case "set":
                world.redis.sadd(name, *values)
            case "zset":
                world.redis.zadd(name, {member: float(score) for member, score in pairs.items()})
    assert len(packed(world)) == 4
    world.redis.sadd("sy:pools", "default")
    world.run(shares.settle_shares())  # as the scheduler does every few seconds
    world.redis.srem("sy:pools", "default")
    return world


def packed(world: World) -> list[Any]:
    return list(world.redis.scan_iter(match="sy:packed:*", count=1000))


def shown(world: World, job: str) -> dict[str, Any]:
    view = world.run(store.read_job(TENANT, job))
    found = {"record": view.record, "spec": msgspec.Raw(view.spec.as_json), "attempts": world.history(job)}
    decoded = msgspec.json.decode(msgspec.json.encode(found), type=dict[str, Any])
    for part in (decoded["record"], *decoded["attempts"]):
        assert not part.pop("network", None)  # the earlier version knew of none, nor of what follows
        for name in ("start_after", "suspended", "preemptions", "group"):
            assert not part.pop(name, None)
        assert part.pop("nodes", 1) == 1  # nor of jobs on several nodes
        assert not part.pop("followers", None)
        part.pop("token", None)  # which the earlier version read for lists alone
        assert not any(part.pop("trace", {}).values())
    return decoded


def test_every_job_reads_as_the_earlier_version_read_it(left: World) -> None:
    assert PackedJobConverter(left.store).convert() == 4
    assert packed(left) == []
    assert {job: shown(left, job) for job in LEFT["shown"]} == LEFT["shown"]


def test_lists_and_filters_find_the_jobs(left: World) -> None:
    PackedJobConverter(left.store).convert()

    def found(**chosen: Any) -> list[str]:
        return [job.id for job in left.run(store.list_jobs(TENANT, JobFilter(**chosen))).jobs]

    assert found() == [KEYED, WAITING, NOT_PACKED, CANCELLED, FAILED, TWICE]
    assert found(state=JobState.FAILED) == [FAILED]
    assert found(label=("team", "vision")) == [TWICE]
    assert found(name="keyed") == [KEYED]


def test_the_jobs_end_as_all_others_do(left: World) -> None:
    PackedJobConverter(left.store).convert()
    again = store.submit(TENANT, "000000901", a_spec(), idempotency_key="key", digest="digest")
    assert left.run(again) == store.SubmitReply(KEYED, created=False)
    assert left.jobs_that_need(1) == 1
    left.run(store.delete_job(TENANT, KEYED))
    assert left.jobs_that_need(1) == 0
    assert left.redis.exists("sy:idem:default/key") == 0
    with pytest.raises(JobFinished):
        left.run(store.cancel(TENANT, FAILED))
    snapshot = left.run(store.snapshot(TENANT, TWICE))
    assert snapshot is not None
    assert left.run(store.archive_job(TENANT, TWICE, snapshot.version)) is store.ArchiveOutcome.DONE
    assert left.redis.keys(f"sy:*:{TENANT}/{TWICE}*") == [f"sy:archived:{TENANT}/{TWICE}".encode()]


def test_a_conversion_that_was_cut_off_goes_on_and_two_at_once_do_no_harm(left: World) -> None:
    left.redis.rename(f"sy:packed:{TENANT}/{TWICE}", "put aside")
    PackedJobConverter(left.store).convert()
    left.redis.rename("put aside", f"sy:packed:{TENANT}/{TWICE}")
    threads = [threading.Thread(target=PackedJobConverter(left.store).convert) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {job: shown(left, job) for job in LEFT["shown"]} == LEFT["shown"]


def test_an_earlier_version_packs_nothing_while_it_runs_beside_this_one(left: World) -> None:
    """It waits for a quarter of an hour from the time in `sy:packs`, which it sets when it is missing."""
    converter = PackedJobConverter(left.store)
    converter.convert()
    assert now(left) - held(left) < QUARTER / 2
    assert converter.convert() == 0
    assert left.redis.exists("sy:packs") == 0
    left.redis.set("sy:packs", now(left) - QUARTER)  # as an API of that version does that still runs
    assert converter.convert() == 0
    assert left.redis.exists("sy:packs") == 0


def now(world: World) -> int:
    seconds, microseconds = world.redis.time()
    return int(seconds * 10**6 + microseconds)


def held(world: World) -> int:
    since = world.redis.get("sy:packs")
    assert isinstance(since, bytes)
    return int(since)


def test_jobs_that_were_packed_at_the_last_moment_are_converted_by_the_next_call(left: World) -> None:
    late = left.redis.get(f"sy:packed:{TENANT}/{TWICE}")
    assert isinstance(late, bytes)
    converter = PackedJobConverter(left.store)
    converter.convert()
    left.redis.delete(f"sy:job:{TENANT}/{TWICE}")
    left.redis.set(f"sy:packed:{TENANT}/{TWICE}", late)
    assert converter.convert() == 1
    assert shown(left, TWICE) == LEFT["shown"][TWICE]


def test_a_store_that_no_earlier_version_has_packed_is_left_alone(world: World) -> None:
    before = world.redis.dbsize()
    assert PackedJobConverter(world.store).convert() == 0
    assert world.redis.dbsize() == before


def test_a_damaged_job_does_not_keep_the_others_from_being_converted(left: World) -> None:
    for name in (b"layout", b"body"):
        data = {b"layout": b"\x00\x03\x91\xa12", b"body": b"\x00\x03\x91\xa11"}[name]
        left.redis.set(b"sy:packed:default/" + name, data)
    assert PackedJobConverter(left.store).convert() == 4
    assert len(packed(left)) == 2
    left.redis.delete(*packed(left))
