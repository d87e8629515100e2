"""Rows 13, 14, 15 and 16: submits that are cut off or come fifty at once, hints, and dispatchers that race."""

import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from jobs import store
from jobs.model.state import JobState
from jobs.store import AttemptId
from tests.faults.scene.checker import Evidence, violations
from tests.faults.scene.journal import SERVER_OPTIONS
from tests.faults.scene.site import TOKEN, Api, Site
from tests.integration.store.world import World
from tests.integration.workers.service import TENANT
from tests.support.servers.redis_server import RedisServer, redis_server

pytestmark = [pytest.mark.integration, pytest.mark.faults]


@pytest.mark.parametrize("place", ["before_store", pytest.param("after_store", marks=pytest.mark.slow), "before_reply"])
def test_row_13_an_api_that_is_killed_in_a_submit_and_asked_again_has_one_job(site: Site, place: str) -> None:
    key, body = uuid.uuid4().hex, site.body()
    victim = Api(site.directory, site.api.environment)
    victim.start(SHARDYARD_FAILPOINT=f"submit.{place}:kill")
    try:
        with pytest.raises(httpx.HTTPError):
            httpx.post(
                f"{victim.url}/v1/jobs",
                json=body,
                headers={"Authorization": f"Bearer {TOKEN}", "Idempotency-Key": key},
                timeout=30,
            )
        assert victim.process is not None
        assert victim.process.wait(60) == -9
    finally:
        victim.close()
    answer = site.caller.call("POST", "/v1/jobs", key=key, json=body)
    assert answer.status_code == (201 if place == "before_store" else 200)
    job = answer.json()["id"]
    jobs = site.caller.call("GET", "/v1/jobs", params={"limit": 100}).json()["jobs"]
    assert [found["id"] for found in jobs if found["id"] >= job] == [job]
    assert site.finished(job).state is JobState.SUCCEEDED


def test_row_14_fifty_submits_at_once_with_one_key_make_one_job(site: Site) -> None:
    key, body, barrier = uuid.uuid4().hex, site.body(), threading.Barrier(50)

    def submit(_: int) -> tuple[int, str]:
        barrier.wait(60)
        answer = site.caller.insist("POST", "/v1/jobs", key=key, json=body)
        return answer.status_code, answer.json()["id"]

    with ThreadPoolExecutor(50) as threads:
        answers = list(threads.map(submit, range(50)))
    assert Counter(status for status, _ in answers) == {201: 1, 200: 49}
    (job,) = {job for _, job in answers}
    assert site.finished(job).state is JobState.SUCCEEDED


@pytest.mark.slow
def test_row_15_a_hint_that_comes_100_times_one_that_is_lost_and_one_that_is_stale(site: Site) -> None:
    job = site.post("single", 1, steps=30, seconds=0.02)
    site.reaches(job, JobState.RUNNING)
    for _ in range(99):
        site.send(store.Hint(site.settings.node, site.attempt(job)))
    for stale in (AttemptId(TENANT, job, 9), AttemptId(TENANT, "no-such-job", 1)):
        site.send(store.Hint(site.settings.node, stale))
    assert site.finished(job).attempt == 1
    site.send(store.Hint(site.settings.node, site.attempt(job)))
    lost = site.enqueue("single")
    site.run(store.dispatch(site.settings.hold_seconds, 2.0))  # its hint is taken, and never sent
    assert site.finished(lost).attempt == 1
    assert site.job(job).attempt == 1


#: Dispatches until the queue is empty, once the barrier (a key that the test sets) is up.
DISPATCHER = """
import sys, time
from jobs import store
from jobs.store.client import RedisStore
control = RedisStore.from_url(sys.argv[1])
while not control.client.exists("barrier"):
    time.sleep(0.001)
while not control.client.exists("over"):
    for attempt in control.run(store.dispatch(60)).created:
        print(attempt)
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path / "redis", **SERVER_OPTIONS | {"appendfsync": "no"}) as server:
        yield server


@pytest.mark.slow
def test_row_16_two_dispatchers_and_a_thousand_jobs_never_lease_a_device_twice(
    server: RedisServer, tmp_path: Path
) -> None:
    world = World(server.url)
    for number in range(4):
        world.node(f"n{number}", 8)
    jobs = [world.submit(1 + number % 3) for number in range(1000)]
    command = [sys.executable, "-c", DISPATCHER, server.url]
    dispatchers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    world.redis.set("barrier", 1)
    while world.run(store.count_jobs(TENANT))[JobState.SUCCEEDED] < len(jobs):
        for attempt, _ in world.run(store.read_heartbeats()).leases:
            world.claim(attempt.job)
            assert world.mark(attempt)
            world.finish_and_release(attempt)
    world.redis.set("over", 1)
    made = Counter(line for one in dispatchers for line in one.communicate(timeout=60)[0].split())
    assert made == Counter(f"{TENANT}/{job}/1" for job in jobs)
    evidence = Evidence(world.redis, tmp_path / "redis", tmp_path, tmp_path, acked=tuple(jobs))
    assert violations(evidence) == []
    world.store.close()
