"""A tenant that takes all it can get, beside a small one: what must hold however fast the machine is.

How long the small tenant's requests take beside such a one is for `benchmarks/greedy_tenant.py`.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from jobs import store
from jobs.model.state import StateReason
from jobs.store.accounts.tokens import Scope
from tests.integration.api.conftest import Api
from tests.support.samples.job_records import a_spec_body

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

DEVICES = 4
NODE = "host-a"
PLAN = a_spec_body(1024)


async def submit_many(api: Api, headers: dict[str, str], count: int) -> list[str]:
    """Jobs of the highest priority that the tenant may have, sixteen submits at a time."""
    refused = await api.client.post("/v1/jobs", json=a_spec_body() | {"priority": 1}, headers=headers)
    assert refused.status_code == 403, refused.text
    jobs: list[str] = []
    for begin in range(0, count, 16):
        some = min(16, count - begin)
        jobs += await asyncio.gather(*(api.submit(headers=headers, priority=0) for _ in range(some)))
    return jobs


@asynccontextmanager
async def greedy_requests(
    api: Api, headers: dict[str, str], jobs: Sequence[str], each: int
) -> AsyncIterator[Counter[int]]:
    """So many clients of each kind, which begin anew whenever they are answered. The answers by their status."""
    answers: Counter[int] = Counter()

    async def get(path: str) -> int:
        return (await api.client.get(path, headers=headers)).status_code

    async def plan() -> int:
        return (await api.client.post("/v1/plan", json=PLAN, headers=headers | {"Accept": "text/plain"})).status_code

    async def go_on(ask: Callable[[], Awaitable[int]]) -> None:
        while True:
            answers[await ask()] += 1
            await asyncio.sleep(0)

    kinds: list[Callable[[], Awaitable[int]]] = [
        lambda: get(f"/v1/jobs/{jobs[-1]}?wait=30"),
        lambda: get("/v1/jobs?limit=200&search=nothing"),
        lambda: get(f"/v1/jobs/{jobs[-1]}/explain"),
        lambda: get(f"/v1/jobs/{jobs[0]}/metrics"),
        plan,
    ]
    tasks = [asyncio.create_task(go_on(kind)) for kind in kinds for _ in range(each)]
    try:
        yield answers
    finally:
        for task in tasks:
            task.cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert [each for each in found if not isinstance(each, asyncio.CancelledError)] == []


def free_one_device(api: Api) -> None:
    """An attempt of the greedy tenant ends."""
    ref = next(iter(api.control.client.smembers("sy:leases")))
    assert isinstance(ref, bytes)
    attempt = store.AttemptId.parse(ref.decode())
    assert api.control.run(store.claim(attempt, "c", NODE)).granted
    assert api.control.run(store.finish(attempt, "c", StateReason.COMPLETED, "", node=NODE))


async def until_started(api: Api, job: str, headers: dict[str, str]) -> None:
    async with asyncio.timeout(60):
        while (await api.get(f"/v1/jobs/{job}", headers=headers))["state"] == "queued":
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("jobs", "clients"), [(24, 2), pytest.param(2000, 24, marks=pytest.mark.slow)], ids=["quick", "thousands"]
)
async def test_a_greedy_tenant_neither_shuts_out_nor_delays_a_small_one(api: Api, jobs: int, clients: int) -> None:
    """Each request of the small one is answered, and its first job gets the first device that is free again."""
    api.node(devices=DEVICES, node=NODE)
    greedy, small = (api.token(Scope.READ, Scope.SUBMIT, tenant=tenant) for tenant in ("greedy", "small"))
    theirs = await submit_many(api, greedy, jobs)
    async with asyncio.timeout(60):
        while api.control.client.scard("sy:leases") < DEVICES:
            await asyncio.sleep(0.01)
    async with greedy_requests(api, greedy, theirs, clients) as answers:
        mine = await api.submit(headers=small)
        second = await api.submit(headers=small)
        status = await api.get(f"/v1/jobs/{mine}", headers=small)
        assert (status["state"], status["queue_position"]) == ("queued", 1)
        found = await api.get(f"/v1/jobs/{mine}/explain", headers=small)
        assert found["ahead"] == {"own": 0, "others": []}
        free_one_device(api)
        await until_started(api, mine, small)
        for _ in range(10):
            await api.get("/v1/jobs?limit=50", headers=small)
            await api.get(f"/v1/jobs/{second}", headers=small)
            plan = await api.client.post("/v1/plan", json=a_spec_body(2), headers=small)
            assert plan.status_code == 200, plan.text
    assert answers[200] > 0
    assert not set(answers) - {200, 429}, answers
