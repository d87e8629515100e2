"""What the dashboard needs of lists and logs: progress and places without a request for each job, and search."""

import asyncio
from typing import Any

import msgspec
import pytest

from jobs import store
from jobs.files import paths
from jobs.files.log_file import LineRun, LogWriter
from jobs.protocol import names
from shardyard.contract.responses import Progress
from tests.integration.api.conftest import Api

pytestmark = [pytest.mark.integration, pytest.mark.anyio]


async def listed(api: Api, query: str = "") -> list[Any]:
    """All jobs, newest first, however many pages they come in."""
    found: list[Any] = []
    cursor = ""
    while True:
        page = await api.get(f"/v1/jobs?{query}&limit=3" + (f"&cursor={cursor}" if cursor else ""))
        found += page["jobs"]
        if page["next"] is None:
            return found
        cursor = page["next"]


async def running(api: Api, job: str) -> None:
    while (await api.get(f"/v1/jobs/{job}"))["state"] != "starting":
        await asyncio.sleep(0.01)
    name = store.AttemptId("default", job, 1)
    assert api.control.run(store.claim(name, "c", "host-a")).granted
    assert api.control.run(store.record_milestone(name, "c", "running"))


async def test_a_list_has_the_progress_of_those_that_run_and_the_place_of_those_that_wait(api: Api) -> None:
    api.node(devices=4)
    first = await api.submit(4)
    await running(api, first)
    waiting = [await api.submit(2) for _ in range(2)]
    progress = msgspec.structs.asdict(Progress(step=3, steps=10, fraction=0.3))
    api.control.client.set(names.progress_key("default", first, 1), '{"step":3,"steps":10,"fraction":0.3}')
    jobs = {job["id"]: job for job in await listed(api)}
    assert (jobs[first]["progress"], jobs[first]["queue_position"]) == (progress, None)
    assert [(jobs[job]["progress"], jobs[job]["queue_position"]) for job in waiting] == [(None, 1), (None, 2)]
    assert jobs[waiting[1]]["reason"]["message"] == "needs 2 in pool default: 0 of 4 free, 1 job ahead"


@pytest.mark.parametrize("words", ["NIGHT", "team=vis", "straße"])
async def test_jobs_are_found_by_a_part_of_their_name_or_of_a_label(api: Api, words: str) -> None:
    api.node()
    wanted = [await api.submit(name=f"the night run {n}, Strasse Straße", labels={"team": "vision"}) for n in range(5)]
    for n in range(5):
        await api.submit(name=f"another {n}", labels={"team": "text"})
    assert [job["id"] for job in await listed(api, f"search={words}")] == wanted[::-1]


async def test_a_job_is_found_by_a_part_of_its_id_and_only_by_who_may_see_it(api: Api) -> None:
    api.node()
    job = await api.submit()
    assert [one["id"] for one in await listed(api, f"search={job[-12:]}")] == [job]
    assert [one["id"] for one in await listed(api, f"search={job[-12:]}&state=failed")] == []
    await api.client.post("/v1/jobs/cancel", json={"all": True})
    assert await listed(api, "search=nothing-has-this") == []


async def test_a_search_answers_before_it_has_gone_through_all_jobs(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.jobs.service.SEARCH_PAGES", 2)
    monkeypatch.setattr("api.jobs.service.SEARCH_JOBS", 2)
    api.node()
    oldest = await api.submit(name="needle")
    for n in range(6):
        await api.submit(name=f"hay {n}")
    page = await api.get("/v1/jobs?search=needle")
    assert page["jobs"] == []
    assert page["next"] is not None
    assert [job["id"] for job in await listed(api, "search=needle")] == [oldest]


async def test_a_log_is_searched_as_a_whole_and_read_from_any_line(api: Api) -> None:
    api.node()
    job = await api.submit()
    await running(api, job)
    file = paths.log_file(paths.attempt_dir(api.storage, "default", job, 1), 0)
    file.parent.mkdir(parents=True)
    writer = LogWriter(file)
    for first in range(0, 5000, 100):
        lines = [b"a \x1b[1mNee\x1b[0mdle" if n == 4321 else b"hay %d" % n for n in range(first, first + 100)]
        writer.append([LineRun("stdout", 0, None, 1.0, 0, lines)])
    writer.close()
    found = await api.get(f"/v1/jobs/{job}/logs?search=nEEdle")
    assert [(line["seq"], line["text"]) for line in found["lines"]] == [(4322, "a Needle")]
    page = await api.get(f"/v1/jobs/{job}/logs?device=0&from_line=4320&limit=3")
    assert [line["seq"] for line in page["lines"]] == [4320, 4321, 4322]
    page = await api.get(f"/v1/jobs/{job}/logs?device=0&after={page['next']}&from_line=1&limit=1")
    assert [line["seq"] for line in page["lines"]] == [4323]


async def test_a_list_that_comes_whole_says_how_many_it_has(api: Api) -> None:
    api.node(devices=2)
    api.node(devices=1, node="host-b", pool="other")
    job = await api.submit()
    await running(api, job)
    paths_and_totals = {
        "/v1/pools": 2,
        "/v1/nodes": 2,
        "/v1/devices/use": 3,
        "/v1/tokens": 0,
        "/v1/quota": 2,
        "/v1/shares": 1,
        f"/v1/jobs/{job}/attempts": 1,
        f"/v1/jobs/{job}/artifacts": 0,
    }
    for path, total in paths_and_totals.items():
        answer = await api.get(path)
        (found,) = (value for name, value in answer.items() if isinstance(value, list) and name != "left_out")
        assert (answer["total"], len(found)) == (total, total), path
    columns = await api.get("/v1/jobs/columns")
    assert columns["total"] == len(columns["columns"]) > 0
