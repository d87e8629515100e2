import asyncio
import time
from typing import Any

import pytest

from api.data.change_notifier import ChangeNotifier
from api.jobs.service import JobService
from jobs.store.client import AsyncRedisStore
from shardyard.contract.errors import Unavailable
from tests.integration.api.conftest import Api
from tests.integration.api.jobs.test_jobs import until_state
from tests.support.samples.job_records import JOB

pytestmark = [pytest.mark.integration, pytest.mark.anyio]


def changes(api: Api) -> ChangeNotifier:
    found: ChangeNotifier = api.app.state.services[JobService]._changes
    return found


async def until_waiting(api: Api, count: int) -> None:
    deadline = time.monotonic() + 60
    while changes(api).waiting_count != count:
        assert time.monotonic() < deadline, f"{changes(api).waiting_count} requests wait, not {count}"
        await asyncio.sleep(0.005)


async def a_waiting_job(api: Api) -> str:
    """A job that stays queued, because another one has all devices."""
    api.node(devices=1)
    await until_state(api, await api.submit(), "starting")
    return await api.submit()


async def test_an_answer_is_held_until_the_status_changes(api: Api) -> None:
    job = await a_waiting_job(api)
    held = asyncio.create_task(api.client.get(f"/v1/jobs/{job}?wait=30"))
    await until_waiting(api, 1)
    begun = time.monotonic()
    await api.client.post(f"/v1/jobs/{job}/cancel")
    answer = await held
    assert time.monotonic() - begun < 20
    assert (answer.status_code, answer.json()["state"]) == (200, "cancelled")


async def test_a_change_is_told_at_once_and_not_at_the_next_look(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.data.change_notifier.COMPARE_SECONDS", 28.0)
    job = await a_waiting_job(api)
    others = [asyncio.create_task(api.client.get(f"/v1/jobs/{job}?wait=30")) for _ in range(2)]
    await until_waiting(api, 2)
    await asyncio.sleep(0.1)  # the task listens now
    held = asyncio.create_task(api.client.get(f"/v1/jobs/{job}?wait=30"))  # and this one comes while it does
    await until_waiting(api, 3)
    begun = time.monotonic()
    await api.client.post(f"/v1/jobs/{job}/cancel")
    answers = await asyncio.gather(held, *others)
    assert time.monotonic() - begun < 25
    assert {answer.json()["state"] for answer in answers} == {"cancelled"}


async def test_who_comes_while_others_wait_and_knows_an_older_version_is_answered_at_once(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.data.change_notifier.COMPARE_SECONDS", 28.0)
    job = await a_waiting_job(api)
    held = asyncio.create_task(api.client.get(f"/v1/jobs/{job}?wait=30"))
    await until_waiting(api, 1)
    await asyncio.sleep(0.1)  # the task listens now
    begun = time.monotonic()
    await changes(api).wait_for_change("default", job, 0, 30)
    assert time.monotonic() - begun < 25
    await api.client.post(f"/v1/jobs/{job}/cancel")
    await held


async def test_a_client_that_knows_an_older_version_is_answered_at_once(api: Api) -> None:
    job = await a_waiting_job(api)
    tag = (await api.client.get(f"/v1/jobs/{job}")).headers["etag"]
    await api.client.post(f"/v1/jobs/{job}/cancel")
    begun = time.monotonic()
    answer = await api.client.get(f"/v1/jobs/{job}?wait=30", headers={"If-None-Match": tag})
    assert (answer.status_code, answer.json()["state"]) == (200, "cancelled")
    assert time.monotonic() - begun < 20


async def test_when_nothing_changes_the_wait_ends_with_304(api: Api) -> None:
    job = await a_waiting_job(api)
    tag = (await api.client.get(f"/v1/jobs/{job}")).headers["etag"]
    begun = time.monotonic()
    answer = await api.client.get(f"/v1/jobs/{job}?wait=0.3", headers={"If-None-Match": tag})
    assert (answer.status_code, answer.headers["etag"]) == (304, tag)
    assert time.monotonic() - begun >= 0.3


async def test_a_job_that_has_ended_is_not_waited_for(api: Api) -> None:
    job = await a_waiting_job(api)
    tag = (await api.client.post(f"/v1/jobs/{job}/cancel")).headers.get("etag")
    assert tag is None
    begun = time.monotonic()
    assert (await api.get(f"/v1/jobs/{job}?wait=30"))["state"] == "cancelled"
    assert time.monotonic() - begun < 20


async def test_a_job_that_is_deleted_while_it_is_waited_for_is_not_found(api: Api) -> None:
    job = await a_waiting_job(api)
    held = asyncio.create_task(api.client.get(f"/v1/jobs/{job}?wait=30"))
    await until_waiting(api, 1)
    api.control.client.delete(f"sy:job:default/{job}")
    assert (await held).status_code == 404


@pytest.mark.parametrize("wait", ["-1", "61", "soon", "nan"])
async def test_a_wrong_wait_is_refused(api: Api, wait: str) -> None:
    answer = await api.client.get(f"/v1/jobs/{JOB}?wait={wait}")
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")


async def test_hundreds_wait_on_no_connection_of_their_own(api: Api) -> None:
    job = await a_waiting_job(api)
    before = len(api.control.client.client_list())
    held = [asyncio.create_task(api.client.get(f"/v1/jobs/{job}?wait=30")) for _ in range(300)]
    await until_waiting(api, 300)
    assert len(api.control.client.client_list()) <= before + 2  # one waits for changes of all
    calls, began = api.control.client.info("commandstats")["cmdstat_fcall"]["calls"], time.monotonic()
    await asyncio.sleep(0.5)
    asked = api.control.client.info("commandstats")["cmdstat_fcall"]["calls"] - calls
    assert asked < 100 * max(1, time.monotonic() - began)
    await api.client.post(f"/v1/jobs/{job}/cancel")
    assert {answer.json()["state"] for answer in await asyncio.gather(*held)} == {"cancelled"}
    assert changes(api).waiting_count == 0


async def test_a_client_that_hangs_up_frees_its_place(api: Api) -> None:
    job = await a_waiting_job(api)
    hung_up = asyncio.Event()
    asked = iter([{"type": "http.request", "body": b"", "more_body": False}])

    async def receive() -> dict[str, Any]:
        message = next(asked, None)
        if message is None:
            await hung_up.wait()
        return message or {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    sent: list[Any] = []
    headers = [(b"host", b"localhost"), (b"authorization", api.client.headers["authorization"].encode())]
    scope = {"type": "http", "method": "GET", "path": f"/v1/jobs/{job}", "query_string": b"wait=30", "headers": headers}
    asking = asyncio.create_task(api.app(scope | {"raw_path": b"", "root_path": "", "scheme": "http"}, receive, send))
    await until_waiting(api, 1)
    hung_up.set()
    await until_waiting(api, 0)
    await asyncio.wait_for(asking, 60)


async def test_when_the_process_is_about_to_end_everybody_is_answered(api: Api) -> None:
    job = await a_waiting_job(api)
    held = asyncio.create_task(api.client.get(f"/v1/jobs/{job}?wait=30"))
    await until_waiting(api, 1)
    changes(api).release_all()
    assert (await asyncio.wait_for(held, 20)).json()["state"] == "queued"
    assert (await asyncio.wait_for(api.client.get(f"/v1/jobs/{job}?wait=30"), 20)).status_code == 200


async def test_no_more_wait_than_there_is_room_for(api: Api) -> None:
    control: AsyncRedisStore = api.app.state.services[JobService]._store
    room = ChangeNotifier(control, most=1)
    first = asyncio.create_task(room.wait_for_change("default", JOB, 1, 30))
    while room.waiting_count == 0:
        await asyncio.sleep(0)
    with pytest.raises(Unavailable):
        await room.wait_for_change("default", JOB, 1, 30)
    await asyncio.wait_for(first, 20)  # there is no such job, which is a change
