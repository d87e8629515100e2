"""Limits on requests: who is refused, what answers say, and how few requests ask Redis."""

import asyncio
import re

import pytest

from jobs.model.settings import Settings
from jobs.store.accounts import rate_limits
from jobs.store.accounts.tokens import Scope
from tests.integration.api.conftest import Api, running

pytestmark = [pytest.mark.integration, pytest.mark.anyio]


def limited(settings: Settings, **limits: int) -> Settings:
    return settings.model_copy(update=limits)


async def send(api: Api, count: int, headers: dict[str, str]) -> list[int]:
    return [(await api.client.get("/v1/me", headers=headers)).status_code for _ in range(count)]


async def test_too_many_requests_of_a_token_are_refused_with_the_time_to_wait_and_others_are_served(
    settings: Settings,
) -> None:
    async with running(limited(settings, token_requests=60, tenant_requests=0)) as api:
        mine, other = api.token(Scope.READ), api.token(Scope.READ)
        codes = await send(api, 70, mine)
        assert codes[:61] == [200] * 61, "a minute's worth may come at once, and what the process gives without asking"
        assert codes[-1] == 429
        refused = await api.client.get("/v1/jobs/01980000-0000-7000-8000-000000000001", headers=mine)
        assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
        assert 1 <= int(refused.headers["retry-after"]) <= 2
        assert await send(api, 5, other) == [200] * 5


async def test_answers_say_how_many_requests_are_left(settings: Settings) -> None:
    async with running(limited(settings, token_requests=600, tenant_requests=1200)) as api:
        for _ in range(30):
            answer = await api.client.get("/v1/me")
        assert answer.headers["ratelimit-policy"] == '"token";q=600;w=60, "tenant";q=1200;w=60'
        found = re.fullmatch(r'"token";r=(\d+);t=(\d+)', answer.headers["ratelimit"])
        assert found is not None
        assert 560 <= int(found[1]) <= 600
        assert "ratelimit" not in (await api.client.get("/healthz")).headers


async def test_all_tokens_of_a_tenant_share_its_requests(settings: Settings) -> None:
    async with running(limited(settings, token_requests=0, tenant_requests=60)) as api:
        codes = [code for _ in range(8) for code in await send(api, 10, api.token(Scope.READ))]
        assert codes.count(200) <= 60 + 8 + 3
        assert await send(api, 5, api.token(Scope.READ, tenant="acme")) == [200] * 5


async def test_two_processes_count_together(settings: Settings) -> None:
    wanted = limited(settings, token_requests=60, tenant_requests=0)
    async with running(wanted) as one, running(wanted) as other:
        mine = one.token(Scope.READ)
        assert await send(one, 40, mine) == [200] * 40
        assert (await send(other, 40, mine)).count(200) <= 60 - 40 + 2 + 3


async def test_most_requests_ask_redis_for_nothing(api: Api) -> None:
    calls = 0
    take = rate_limits.take_requests

    def counted(*names: str | int, **more: int) -> object:
        nonlocal calls
        calls += 1
        return take(*names, **more)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(rate_limits, "take_requests", counted)
        answers = await asyncio.gather(*(api.client.get("/v1/me") for _ in range(300)))
    assert {answer.status_code for answer in answers} == {200}
    assert 2 <= calls <= 4


async def test_without_limits_answers_say_nothing_of_them(settings: Settings) -> None:
    async with running(limited(settings, token_requests=0, tenant_requests=0)) as api:
        answer = await api.client.get("/v1/me")
        assert answer.status_code == 200
        assert "ratelimit-policy" not in answer.headers
