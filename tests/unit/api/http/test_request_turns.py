"""Turns of tenants, on a loop of their own."""

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest

from api.http import request_turns
from api.http.request_turns import TURNS, RequestTurns, end_turn
from shardyard.contract.errors import RateLimited

Request = MutableMapping[str, Any]


async def _begin(turns: RequestTurns, tenant: str, count: int) -> list[tuple[Request, asyncio.Task[None]]]:
    requests: list[Request] = [{} for _ in range(count)]
    begun = [(one, asyncio.create_task(turns.take_turn(tenant, one))) for one in requests]
    await _settle()
    return begun


async def _settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def _in_hand(begun: list[tuple[Request, asyncio.Task[None]]]) -> int:
    return sum(task.done() for _, task in begun)


def test_a_tenant_that_is_alone_has_as_many_turns_as_it_has_requests() -> None:
    async def check() -> None:
        assert _in_hand(await _begin(RequestTurns(), "greedy", 50)) == 50

    asyncio.run(check())


def test_beside_another_one_a_tenant_has_a_few_and_the_others_follow_in_order() -> None:
    async def check() -> None:
        turns = RequestTurns()
        await _begin(turns, "small", 1)
        begun = await _begin(turns, "greedy", TURNS + 3)
        assert [task.done() for _, task in begun] == [True] * TURNS + [False] * 3
        end_turn(begun[0][0])
        await _settle()
        assert [task.done() for _, task in begun] == [True] * (TURNS + 1) + [False] * 2
        for _, task in begun:
            task.cancel()

    asyncio.run(check())


def test_what_a_tenant_began_alone_is_finished_before_more_of_it_begins() -> None:
    async def check() -> None:
        turns = RequestTurns()
        early = await _begin(turns, "greedy", 10)
        small = await _begin(turns, "small", 1)
        assert _in_hand(small) == 1
        late = await _begin(turns, "greedy", 1)
        for ended, (request, _) in enumerate(early, start=1):
            end_turn(request)
            await _settle()
            assert _in_hand(late) == (10 - ended < TURNS), ended

    asyncio.run(check())


def test_one_that_waits_for_something_else_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_turns, "TURN_SECONDS", 0.01)

    async def check() -> None:
        turns = RequestTurns()
        await _begin(turns, "small", 1)
        begun = await _begin(turns, "slow line", 4 * TURNS)
        async with asyncio.timeout(20):
            await asyncio.gather(*(task for _, task in begun))

    asyncio.run(check())


def test_clients_that_hang_up_while_they_wait_take_no_turn() -> None:
    async def check() -> None:
        turns = RequestTurns()
        await _begin(turns, "small", 1)
        begun = await _begin(turns, "greedy", TURNS + 2)
        begun[TURNS][1].cancel()
        await _settle()
        end_turn(begun[0][0])
        end_turn(begun[0][0])  # a second time changes nothing
        await _settle()
        assert [task.done() for _, task in begun] == [True] * (TURNS + 2)
        late = await _begin(turns, "greedy", 1)
        assert not _in_hand(late)
        late[0][1].cancel()

    asyncio.run(check())


def test_one_whose_turn_came_as_it_hung_up_passes_it_on() -> None:
    async def check() -> None:
        turns = RequestTurns()
        await _begin(turns, "small", 1)
        begun = await _begin(turns, "greedy", TURNS + 2)
        end_turn(begun[0][0])
        begun[TURNS][1].cancel()  # in the same round of the loop
        await _settle()
        assert begun[TURNS + 1][1].done()

    asyncio.run(check())


def test_very_many_that_wait_and_very_long_waits_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_turns, "MAX_WAITING", 3)
    monkeypatch.setattr(request_turns, "WAIT_SECONDS", 0.05)

    async def check() -> None:
        turns = RequestTurns()
        await _begin(turns, "small", 1)
        begun = await _begin(turns, "greedy", TURNS + 4)
        with pytest.raises(RateLimited, match="already waiting") as refused:
            await begun[-1][1]
        assert refused.value.retry_after == 1
        async with asyncio.timeout(20):
            ends = await asyncio.gather(*(task for _, task in begun), return_exceptions=True)
        assert [type(end) for end in ends] == [type(None)] * TURNS + [RateLimited] * 4

    asyncio.run(check())
