"""The short ways answer as the framework does: each request here is made on both, a query sends it the long way."""

import asyncio
import json
import re
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from api import fast_path
from jobs import store
from jobs.store.tokens import Scope
from tests.integration.api.conftest import Api
from tests.unit.api.records import a_spec_body

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

LONG = "?this-way=long"
#: What differs from one job to the next.
OF_ONE_JOB = re.compile(rb"[0-9a-f]{8}-[0-9a-f-]{27}|\d{4}-\d\d-\d\dT[\d:.]+Z|\"queue_position\":\d+|\d+ jobs? ahead")


def seen(answer: httpx.Response) -> tuple[int, bytes, dict[str, str]]:
    """All of an answer but what differs from one job to the next."""
    headers = {name: value for name, value in answer.headers.items() if name not in ("etag", "content-length")}
    headers["location"] = re.sub(r"[0-9a-f-]{36}", "", headers.get("location", ""))
    return answer.status_code, OF_ONE_JOB.sub(b"", answer.content), headers


def used(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each request from now on took a short way."""
    taken: list[bool] = []
    find = fast_path._way

    def way(scope: Any) -> Any:
        found = find(scope)
        taken.append(found is not None)
        return found

    monkeypatch.setattr(fast_path, "_way", way)
    return taken


SPEC = a_spec_body()


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (SPEC, {}, 201),
        (SPEC, {"Idempotency-Key": "a key"}, 201),
        (SPEC, {"Idempotency-Key": "k\x01"}, 422),
        (SPEC, {"Authorization": ""}, 401),
        (SPEC, {"Authorization": "Bearer sy_0011223344556677_wrong"}, 401),
        (SPEC, {"Host": "elsewhere.example"}, 400),
        ({**SPEC, "pool": "none"}, {}, 422),
        ({**SPEC, "colour": "red"}, {}, 422),
        ({"program": {"kind": "recipe"}}, {}, 422),
    ],
)
async def test_a_submit_is_answered_alike_on_both_ways(
    api: Api, monkeypatch: pytest.MonkeyPatch, body: Any, headers: dict[str, str], status: int
) -> None:
    api.node()
    api.control.run(store.drain_node("host-a"))  # so that both jobs wait for the same
    taken = used(monkeypatch)
    text = json.dumps(body)
    short = await api.client.post("/v1/jobs", content=text, headers=headers)
    again = {
        name: value + " again" if name == "Idempotency-Key" and status == 201 else value
        for name, value in headers.items()
    }
    long = await api.client.post(f"/v1/jobs{LONG}", content=text, headers=again)
    assert short.status_code == status, short.text
    assert seen(short) == seen(long)
    assert taken in ([True, False], [])  # a host that is not ours comes to neither


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"{" + b" " * 2_000_000 + b"}"])
async def test_a_body_that_is_no_spec_is_refused_alike_on_both_ways(api: Api, content: bytes) -> None:
    short, long = [await api.client.post(f"/v1/jobs{way}", content=content) for way in ("", LONG)]
    assert short.status_code in (400, 413, 422)
    assert seen(short) == seen(long)


async def test_a_job_is_shown_alike_on_both_ways_and_so_is_what_is_none(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.node()
    job = await api.submit()
    taken = used(monkeypatch)
    theirs = api.token(Scope.READ, tenant="acme")
    missing = "01a20068-c239-74a0-8d25-1b0c0c0c0c0c"
    for path, headers, status in (
        (f"/v1/jobs/{job}", {}, 200),
        (f"/v1/jobs/{job}", theirs, 404),
        (f"/v1/jobs/{job}", {"Authorization": "Basic x"}, 401),
        (f"/v1/jobs/{missing}", {}, 404),
        ("/v1/jobs/no-id", {}, 404),
        ("/v1/jobs/%2e%2e", {}, 404),
    ):
        short = await api.client.get(path, headers=headers)
        long = await api.client.get(path + LONG, headers=headers)
        assert short.status_code == status, path
        assert seen(short) == seen(long)
        assert short.headers.get("etag") == long.headers.get("etag")
    tag = (await api.client.get(f"/v1/jobs/{job}")).headers["etag"]
    known = [await api.client.get(f"/v1/jobs/{job}{way}", headers={"If-None-Match": tag}) for way in ("", LONG)]
    assert [answer.status_code for answer in known] == [304, 304]
    assert seen(known[0]) == seen(known[1])
    assert taken == [True, False] * 6 + [True, True, False]


async def test_a_list_is_answered_alike_on_both_ways(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    api.node()
    for _ in range(3):
        await api.submit()
    while (await api.client.get("/v1/jobs?state=queued")).json()["jobs"]:  # they change while they are compared
        await asyncio.sleep(0.01)
    cursor = (await api.client.get("/v1/jobs?limit=1")).json()["next"]
    taken = used(monkeypatch)
    for query in (
        "",
        "limit=2",
        f"limit=1&cursor={cursor}",
        f"cursor={cursor}&state=starting",
        "state=failed",
        "cursor=zz",
    ):
        short = await api.client.get(f"/v1/jobs?{query}")
        long = await api.client.get(f"/v1/jobs?{query}&this-way=long")
        assert short.status_code == (400 if query == "cursor=zz" else 200), query
        assert seen(short) == seen(long)
    assert taken == [True, False] * 6


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=201", "limit=1&limit=2", "state=none", "name=a", "limit", "cursor=", "limit=+5", "limit=%31"],
)
async def test_a_list_with_a_query_that_is_not_plain_goes_the_long_way(
    api: Api, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    taken = used(monkeypatch)
    await api.client.get(f"/v1/jobs?{query}")
    assert taken == [False]


async def test_a_bug_is_answered_alike_on_both_ways_and_counted(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    api.node()
    job = await api.submit()

    async def broken(*_: Any) -> None:
        raise RuntimeError("a secret")

    monkeypatch.setattr("api.jobs.service.Jobs.shown", broken)
    with capture_logs():  # it takes seconds to print them in colours
        short, long = [await api.client.get(f"/v1/jobs/{job}{way}") for way in ("", LONG)]
    assert (short.status_code, short.json()["code"]) == (500, "internal_error")
    assert seen(short) == seen(long)
    assert "secret" not in short.text
    counted = (await api.client.get("/metrics")).text
    assert 'shardyard_requests_total{method="GET",route="/v1/jobs/{job}",status="500"} 2.0' in counted


async def test_a_token_that_may_only_read_submits_on_neither_way(api: Api) -> None:
    api.node()
    reader = api.token(Scope.READ)
    for way in ("", LONG):
        refused = await api.client.post(f"/v1/jobs{way}", json=SPEC, headers=reader)
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")


async def test_requests_on_both_ways_are_counted_under_their_route(api: Api) -> None:
    api.node()
    for way in ("", LONG):
        job = (await api.client.post(f"/v1/jobs{way}", json=SPEC)).json()["id"]
        await api.client.get(f"/v1/jobs/{job}{way}")
    counted = (await api.client.get("/metrics")).text
    assert 'shardyard_requests_total{method="POST",route="/v1/jobs",status="201"} 2.0' in counted
    assert 'shardyard_requests_total{method="GET",route="/v1/jobs/{job}",status="200"} 2.0' in counted


async def test_a_session_of_a_browser_needs_its_origin_on_the_short_way_too(api: Api) -> None:
    api.node()
    text = api.token(Scope.SUBMIT)["Authorization"].removeprefix("Bearer ")
    origin = {"Origin": "http://localhost", "Host": "localhost"}
    signed_in = await api.client.post("/v1/sign-in", json={"token": text}, headers=origin)
    cookie = {"Cookie": signed_in.headers["set-cookie"].partition(";")[0], "Host": "localhost"}
    del api.client.headers["authorization"]
    for way in ("", LONG):
        from_elsewhere = await api.client.post(
            f"/v1/jobs{way}", json=SPEC, headers=cookie | {"Origin": "http://evil.example"}
        )
        assert from_elsewhere.status_code == 403
        assert (await api.client.post(f"/v1/jobs{way}", json=SPEC, headers=cookie | origin)).status_code == 201
