import asyncio

import pytest

from api.background.periodic_sweeps import (
    PeriodicSweep,
    convert_packed_jobs,
    run_periodically,
    sweep_storage,
    verify_storage,
    watch_scheduler,
)
from jobs.files.identity import StorageMismatch
from shardyard.contract.errors import Unavailable


def test_the_process_ends_when_its_scheduler_has_died() -> None:
    alive = iter([True, True, False])
    ended: list[bool] = []
    asyncio.run(watch_scheduler(lambda: next(alive), lambda: ended.append(True), seconds=0))
    assert ended == [True]


def test_storage_is_proven_as_soon_as_redis_answers() -> None:
    answers = iter([Unavailable("away"), Unavailable("away"), None])
    ended: list[bool] = []

    def prove() -> None:
        error = next(answers)
        if error is not None:
            raise error

    asyncio.run(verify_storage(prove, lambda: ended.append(True), seconds=0))
    assert ended == []
    assert next(answers, "none left") == "none left"


def test_the_process_ends_when_its_storage_is_another_one() -> None:
    ended: list[bool] = []

    def prove() -> None:
        raise StorageMismatch("not the same")

    asyncio.run(verify_storage(prove, lambda: ended.append(True), seconds=0))
    assert ended == [True]


def test_nothing_is_removed_from_a_storage_that_is_not_ours() -> None:
    def prove() -> None:
        raise StorageMismatch("another")

    def sweep() -> None:
        raise AssertionError

    ended: list[bool] = []

    async def convert() -> None:
        raise AssertionError

    asyncio.run(sweep_storage(prove, convert, [PeriodicSweep("bundles", sweep, 0)], lambda: ended.append(True)))
    assert ended == [True]


def test_requests_are_served_when_packed_jobs_are_converted_and_they_are_looked_for_again() -> None:
    errors = [Unavailable("away"), None, None, ValueError("a bug")]
    seen: list[str] = []

    def convert() -> None:
        error = errors.pop(0)
        if error is not None:
            raise error
        seen.append("converted")

    asyncio.run(convert_packed_jobs(convert, lambda: seen.append("ready"), lambda: seen.append("process ended"), 0, 0))
    assert seen == ["converted", "ready", "converted", "ready", "process ended"]


def test_storage_is_looked_through_again_after_a_time_that_failed() -> None:
    errors = [Unavailable("away"), PermissionError("closed")]
    swept: list[bool] = []

    def sweep() -> None:
        if errors:
            raise errors.pop()
        swept.append(True)
        if len(swept) == 3:
            raise EOFError

    with pytest.raises(EOFError):
        asyncio.run(run_periodically(PeriodicSweep("bundles", sweep, 0)))
    assert len(swept) == 3


def test_there_is_no_pause_while_there_is_more_to_do() -> None:
    left = [True, True, False]

    def sweep() -> bool:
        return left.pop(0)

    async def look() -> None:
        async with asyncio.timeout(10):
            sweeping = asyncio.create_task(run_periodically(PeriodicSweep("jobs", sweep, 3600)))
            while left:
                await asyncio.sleep(0)
            sweeping.cancel()

    asyncio.run(look())
