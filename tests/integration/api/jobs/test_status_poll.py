"""A status poll is answered as the framework answers it: each request here is made without and with a query."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from jobs.store.accounts.tokens import Scope
from tests.integration.api.conftest import Api

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

MISSING = "01a20068-c239-74a0-8d25-1b0c0c0c0c0c"


async def both_ways(api: Api, path: str, headers: dict[str, str]) -> list[tuple[int, bytes, dict[str, str]]]:
    named = headers | {"X-Request-ID": "the-same"}
    answers = [await api.client.get(f"/v1/jobs/{path}{query}", headers=named) for query in ("", "?wait=0")]
    return [(answer.status_code, answer.content, dict(answer.headers)) for answer in answers]


async def test_a_poll_is_answered_as_the_framework_answers_it(api: Api) -> None:
    api.node()
    job = await api.submit(devices=4)
    waiting = await api.submit(devices=4)
    api.run_to_end(job)
    tag = (await api.client.get(f"/v1/jobs/{job}")).headers["etag"]
    for path, headers, status in (
        (job, {}, 200),
        (waiting, {}, 200),
        (job, {"If-None-Match": tag}, 304),
        (job, {"If-None-Match": 'W/"0.other"'}, 200),
        (job, api.token(Scope.READ, tenant="acme"), 404),
        (job, {"Authorization": "Basic x"}, 401),
        (job, {"Host": "elsewhere.example"}, 400),
        (MISSING, {}, 404),
        ("no-id", {}, 404),
        ("%2e%2e", {}, 404),
    ):
        poll, other = await both_ways(api, path, headers)
        assert poll[0] == status, (path, headers)
        assert poll == other


async def test_a_bug_is_answered_alike_and_both_are_counted_under_their_route(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: Any) -> None:
        raise RuntimeError("a secret")

    monkeypatch.setattr("api.jobs.service.JobService.read_tagged_status", broken)
    with capture_logs():  # it takes seconds to print them in colours
        poll, other = await both_ways(api, MISSING, {})
    assert poll == other
    assert poll[0] == 500
    assert b"secret" not in poll[1]
    counted = (await api.client.get("/metrics")).text
    assert 'shardyard_requests_total{method="GET",route="/v1/jobs/{job}",status="500"} 2.0' in counted
