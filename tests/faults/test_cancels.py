"""Rows 20 and 21: cancels that race with everything, and ten thousand of them at once."""

import random
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from jobs import store
from jobs.model.state import TERMINAL, JobState, StateReason
from jobs.store import JobFilter
from tests.faults.inject import processes
from tests.faults.scene.checker import Footprint
from tests.faults.scene.site import Site
from tests.integration.workers.service import TENANT, eventually

pytestmark = [pytest.mark.integration, pytest.mark.faults]

#: Seconds after its submit at which a job may be cancelled: it starts in a few tenths, and ends in about one.
MOMENTS = (0.0, 1.6)
MANY = 10_000


@pytest.mark.parametrize("seed", [1, 2])
def test_row_20_a_cancel_that_races_with_start_finish_and_retry_ends_the_job_once(site: Site, seed: int) -> None:
    site.allow(losses={StateReason.SUPERVISOR_LOST})
    chance = random.Random(seed)

    def race(number: int) -> str:
        fault = "raise_error" if number % 3 == 0 else ""  # then it is tried again
        job = site.post("single", 1, steps=4, seconds=0.05, fault=fault, limits={"max_retries": 2})
        threading.Event().wait(moments[number])
        if number % 4 == 1 and (supervisor := _supervisor(site, job)):
            processes.kill(supervisor)
        site.caller.insist("POST", f"/v1/jobs/{job}/cancel")
        return job

    moments = [chance.uniform(*MOMENTS) for _ in range(12)]
    with ThreadPoolExecutor(4) as threads:
        jobs = list(threads.map(race, range(len(moments))))
    site.all_ended(jobs, 60)
    versions = {job: site.job(job).version for job in jobs}
    site.dispatch_jobs()
    eventually(lambda: not site.node().held, "the devices are free")
    assert {job: site.job(job).version for job in jobs} == versions


def _supervisor(site: Site, job: str) -> int | None:
    found = processes.supervisors(site.state_dir)
    return next((pid for attempt, pid in found.items() if f".{job}." in attempt), None)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_row_21_ten_thousand_waiting_jobs_are_cancelled_in_seconds_while_others_are_served(site: Site) -> None:
    blocker = site.running("dp", 8)
    waiting = site.spec("dp", 8, steps=1)
    for number in range(MANY):
        site.run(store.submit(TENANT, f"00000000-0000-7000-8000-{number:012d}", waiting))
    before = Footprint.of(site.api.pid, site.server.client())
    took: list[float] = []
    done = threading.Event()

    def others() -> None:
        while not done.is_set():
            began = time.monotonic()
            assert site.caller.call("GET", "/v1/jobs", params={"limit": 1}).status_code == 200
            took.append(time.monotonic() - began)
            done.wait(0.02)

    other = threading.Thread(target=others)
    other.start()
    try:
        began, cancelled = time.monotonic(), 0
        complete = False
        while not complete:
            answer = site.caller.call("POST", "/v1/jobs/cancel", json={"state": "queued"}).json()
            cancelled, complete = cancelled + answer["cancelled"], answer["complete"]
        seconds = time.monotonic() - began
    finally:
        done.set()
        other.join(30)
    assert cancelled == MANY
    assert seconds < 30
    assert statistics.quantiles(took, n=100)[98] < 1.0
    site.cancel(blocker)
    site.finished(blocker)
    site.dispatch_jobs()
    assert site.run(store.list_jobs(TENANT, JobFilter(JobState.STARTING))).jobs == ()
    counts = site.run(store.count_jobs(TENANT))
    assert sum(count for state, count in counts.items() if state not in TERMINAL) == 0
    assert not Footprint.of(site.api.pid, site.server.client()).grown(before)
