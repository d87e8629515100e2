"""One tenant cannot stop the API for others: by holding the event loop, taking all threads, or filling Redis."""

import asyncio
import gc
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial

import pytest

from api.data import file_threads, memory_guard
from api.data.file_threads import AttemptStorage
from api.http.tenant_slots import TenantSlots, current_tenant
from api.jobs.service import JobService
from jobs import store
from jobs.files import paths
from jobs.files.metric_file import MetricWriter
from jobs.model.state import StateReason
from jobs.protocol.records import MetricSample
from shardyard.contract.errors import TooManyReads
from tests.integration.api.conftest import Api
from tests.support.samples.job_records import a_spec_body

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

DEADLINE = 60.0
#: On a fast machine all are below 0.01. It is the loop's own processor time, which other processes do not change.
MOST_SECONDS = 0.02


@asynccontextmanager
async def longest_hold() -> AsyncIterator[list[float]]:
    """The longest that the event loop computed without serving others, in its thread's processor time; in the list
    after the block. No garbage is collected within it: what all tests have left would be counted."""
    holds = [0.0]

    async def probe() -> None:
        before = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            holds[0] = max(holds[0], now - before)
            before = time.thread_time()

    task = asyncio.create_task(probe())
    await asyncio.sleep(0)
    holds[0] = 0.0
    gc.disable()
    try:
        yield holds
    finally:
        gc.enable()
        task.cancel()


def forged_outcome(api: Api, job: str) -> None:
    """A job whose program has chosen as large a message, error and result as the store takes."""
    attempt = store.AttemptId("default", job, 1)
    assert api.control.run(store.claim(attempt, "c", "host-a")).granted
    error = {"rank": 0, "message": "m" * 100_000, "traceback": "t" * 10_000_000}
    said = "x" * 10_000_000
    assert api.control.run(store.finish(attempt, "c", StateReason.CODE_ERROR, said, error=error, result={"r": said}))
    api.control.run(store.release("host-a", attempt, {}))


async def test_no_hostile_input_holds_the_event_loop(api: Api) -> None:
    api.node(devices=16)
    jobs = [await api.submit() for _ in range(16)]
    api.control.run(store.dispatch(60))
    directory = paths.attempt_dir(api.storage, "default", jobs[0], 1)
    directory.mkdir(parents=True)
    writer = MetricWriter(paths.metrics_file(directory))
    for step in range(1, 11):
        writer.append([MetricSample(-1, f"series {number:04}", step, 0.5, 1.5) for number in range(4000)])
    writer.close()
    for job in jobs:
        forged_outcome(api, job)
    plan = a_spec_body(1024)
    asked = {
        "a plan": partial(api.client.post, "/v1/plan", json=plan),
        "a plan as text": partial(api.client.post, "/v1/plan", json=plan, headers={"Accept": "text/plain"}),
        "metrics": partial(api.client.get, f"/v1/jobs/{jobs[0]}/metrics"),
        "metrics in buckets": partial(api.client.get, f"/v1/jobs/{jobs[0]}/metrics?points=10000"),
        "a list": partial(api.client.get, "/v1/jobs?limit=200"),
        "a status": partial(api.client.get, f"/v1/jobs/{jobs[0]}"),
        "attempts": partial(api.client.get, f"/v1/jobs/{jobs[0]}/attempts"),
    }
    too_long, sizes = {}, {}
    for name, ask in asked.items():
        await ask()  # what is imported at first is not measured
        async with longest_hold() as hold:
            answer = await ask()
        assert answer.status_code == 200, (name, answer.text[:500])
        sizes[name] = len(answer.content)
        if hold[0] > MOST_SECONDS:
            too_long[name] = hold[0]
    assert too_long == {}
    assert sizes["a list"] < 16 * 8_000
    assert sizes["a plan as text"] < 4_000, "devices in words, not a table"
    assert sizes["metrics"] < 8_000_000


@contextmanager
def tenant_of_request(tenant: str) -> Iterator[None]:
    before = current_tenant.set(tenant)
    try:
        yield
    finally:
        current_tenant.reset(before)


async def test_one_tenant_never_has_all_threads_and_is_refused_when_too_much_waits(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_threads, "MAX_WAITING", 3)
    storage, go, begun = AttemptStorage(api.storage), threading.Event(), threading.Semaphore(0)

    def work() -> None:
        begun.release()
        assert go.wait(DEADLINE)

    with tenant_of_request("greedy"):
        held = [asyncio.create_task(storage.run_in_thread(work)) for _ in range(file_threads.THREADS_OF_TENANT + 3)]
        for _ in range(file_threads.THREADS_OF_TENANT):
            assert await asyncio.to_thread(begun.acquire, timeout=DEADLINE)
        with pytest.raises(TooManyReads):
            await storage.run_in_thread(work)
    with tenant_of_request("acme"):
        assert await asyncio.wait_for(storage.run_in_thread(lambda: 5), DEADLINE) == 5
    go.set()
    await asyncio.gather(*held)


async def test_a_full_control_redis_refuses_what_is_new_and_nothing_else(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_guard, "LOOK_SECONDS", 0.0)
    api.node()
    running, waiting = await api.submit(), await api.submit()
    api.control.run(store.dispatch(60))
    redis = api.control.client
    used = int(redis.info("memory")["used_memory"])
    redis.config_set("maxmemory", used + 4096)
    try:
        for _ in range(2):
            refused = await api.client.post("/v1/jobs", json=a_spec_body())
            assert (refused.status_code, refused.json()["code"]) == (503, "store_full")
            assert int(refused.headers["retry-after"]) == memory_guard.RETRY_SECONDS
            redis.config_set("maxmemory", used // 2)  # all used up, and more
        assert (await api.client.get("/v1/jobs")).status_code == 200
        assert (await api.client.post(f"/v1/jobs/{waiting}/cancel")).status_code == 202
        assert (await api.client.delete(f"/v1/jobs/{waiting}")).status_code == 204
        api.run_to_end(running)
        assert (await api.get(f"/v1/jobs/{running}"))["state"] == "succeeded"
    finally:
        redis.config_set("maxmemory", 0)
    await api.submit()


async def test_requests_that_wait_have_so_many_places_for_a_tenant(api: Api) -> None:
    api.node()
    waiting = api.app.state.services[JobService]._waiting = TenantSlots(1, 1, 0, 0)
    job = await api.submit()
    held = asyncio.create_task(api.client.get(f"/v1/jobs/{job}?wait=30"))
    async with asyncio.timeout(DEADLINE):
        while not waiting.held_count:
            await asyncio.sleep(0)
    refused = await api.client.get(f"/v1/jobs/{job}?wait=30")
    assert (refused.status_code, refused.json()["code"]) == (429, "too_many_reads")
    assert (await api.client.get(f"/v1/jobs/{job}")).status_code == 200, "without `wait` it is answered at once"
    await api.client.post(f"/v1/jobs/{job}/cancel")
    assert (await held).status_code == 200
    assert waiting.held_count == 0
