"""What HTTP promises of every route: methods, parameters, media types, compression, and ids of requests."""

import gzip
import json
from collections.abc import Callable
from typing import Any

import pytest
import structlog
import zstandard

from api.http import problems
from jobs.files import paths
from jobs.support.logging_config import current_request
from tests.integration.api.conftest import Api
from tests.support.samples.job_records import a_spec_body

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

GETS = (
    "/healthz",
    "/readyz",
    "/openapi.json",
    "/docs",
    "/help/",
    "/",
    "/metrics",
    "/v1/jobs",
    "/v1/pools",
    "/v1/nodes",
    "/v1/me",
)


@pytest.mark.parametrize("path", GETS)
async def test_head_answers_as_get_does_wherever_that_is(api: Api, path: str) -> None:
    api.node()
    get, head = await api.client.get(path), await api.client.head(path)
    assert head.status_code == get.status_code
    assert head.headers["content-type"] == get.headers["content-type"]


async def test_head_of_a_stream_ends(api: Api) -> None:
    api.node()
    job = await api.submit()
    for path in ("/v1/events", f"/v1/jobs/{job}/events"):
        head = await api.client.head(path)
        assert (head.status_code, head.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")


async def test_head_of_a_file_has_its_length_and_opens_nothing_twice(api: Api) -> None:
    api.node()
    job = await api.submit()
    directory = paths.artifacts_dir(paths.attempt_dir(api.storage, "default", job, 1))
    directory.mkdir(parents=True)
    (directory / "weights").write_bytes(b"x" * 100_000)
    while (await api.get(f"/v1/jobs/{job}"))["attempt"] == 0:
        pass
    path = f"/v1/jobs/{job}/artifacts/artifacts/weights"
    head = await api.client.head(path)
    assert (head.status_code, head.headers["content-length"], head.content) == (200, "100000", b"")
    part = await api.client.head(path, headers={"Range": "bytes=0-9"})
    assert (part.status_code, part.headers["content-range"]) == (206, "bytes 0-9/100000")


async def test_head_does_not_sign_anybody_in(api: Api) -> None:
    assert (await api.client.head("/v1/sign-in/oidc/callback")).status_code == 405


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/jobs", "GET, HEAD, OPTIONS, POST"),
        ("PUT", "/v1/jobs/resolve", "DELETE, GET, HEAD, OPTIONS"),
        ("PATCH", "/v1/pools/default", "GET, HEAD, OPTIONS, PUT"),
        ("POST", "/v1/sign-in/oidc/callback", "GET, OPTIONS"),
        ("POST", "/v1/nodes/a/devices/0/quarantine/x", None),
    ],
)
async def test_allow_has_the_methods_of_all_routes_of_a_path(
    api: Api, method: str, path: str, allowed: str | None
) -> None:
    answer = await api.client.request(method, path)
    assert answer.headers.get("allow") == allowed
    assert answer.status_code == (404 if allowed is None else 405)
    asked = await api.client.options(path)
    assert (asked.status_code, asked.headers.get("allow")) == (404 if allowed is None else 204, allowed)


async def test_options_tells_nobody_what_there_is_and_lets_no_other_page_in(api: Api) -> None:
    api.node()
    ours, unknown = await api.submit(), "019a0000-0000-7000-8000-000000000000"
    preflight = {"Origin": "https://elsewhere.example", "Access-Control-Request-Method": "DELETE"}
    for headers in ({}, {"Authorization": ""}, {"Authorization": "Bearer guess"}, preflight):
        answers = [await api.client.options(f"/v1/jobs/{job}", headers=headers) for job in (ours, unknown, "no id")]
        for answer in answers:
            assert (answer.status_code, answer.content) == (204, b""), headers
            assert answer.headers["allow"] == "DELETE, GET, HEAD, OPTIONS"
            assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    ("path", "field", "hint"),
    [
        ("/v1/jobs?stat=running", "stat", "did you mean 'state'?"),
        ("/v1/jobs?colour=red", "colour", "known parameters here: state, pool"),
        ("/v1/jobs?limit=1&limit=2", "limit", "more than once"),
        ("/v1/jobs/resolve?ref=x&reff=y", "reff", "did you mean 'ref'?"),
        ("/v1/sign-in?next=/", "next", "known parameters here: none"),
        ("/v1/jobs?x%00y=1", "x\\x00y", "known parameters"),
    ],
)
async def test_a_parameter_that_the_route_does_not_have_is_refused(api: Api, path: str, field: str, hint: str) -> None:
    answer = await api.client.get(path)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    (error,) = answer.json()["errors"]
    assert error["field"] == field
    assert hint in error["message"]


async def test_pages_and_identity_providers_may_add_parameters(api: Api) -> None:
    for path in ("/?state=running", "/compare?jobs=a,b", "/healthz?probe=7", "/docs?x=1", "/help/?h=rows"):
        assert (await api.client.get(path)).status_code == 200, path
    answer = await api.client.get("/v1/sign-in/oidc/callback?state=x&code=y&session_state=z&iss=w")
    assert "errors" not in answer.text


async def test_very_many_parameters_are_refused(api: Api) -> None:
    answer = await api.client.get("/v1/jobs?" + "&".join(f"a{n}=1" for n in range(1000)))
    assert (answer.status_code, answer.json()["detail"]) == (422, "a query may have 100 parameters at most")


@pytest.mark.parametrize(
    ("media", "status"),
    [
        ("application/json", 201),
        ("application/json; charset=utf-8", 201),
        ("application/vnd.shardyard+json", 201),
        ("application/x-www-form-urlencoded", 201),  # of curl -d
        (None, 201),
        ("application/yaml", 415),
        ("text/plain", 415),
        ("multipart/form-data; boundary=x", 415),
    ],
)
async def test_a_body_is_json_and_says_so(api: Api, media: str | None, status: int) -> None:
    api.node()
    headers = {} if media is None else {"Content-Type": media}
    answer = await api.client.post("/v1/jobs", content=json.dumps(a_spec_body()), headers=headers)
    assert answer.status_code == status, answer.text
    if status == 415:
        assert answer.json()["code"] == "unsupported_media_type"
        assert "application/json" in answer.json()["detail"]


async def test_a_form_is_not_json(api: Api) -> None:
    answer = await api.client.post("/v1/jobs", data={"devices": "2"})
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")


@pytest.mark.parametrize(
    ("method", "path", "body", "field"),
    [
        ("POST", "/v1/jobs/cancel", '{"all": true, "all": false}', "all"),
        ("PUT", "/v1/quotas/other", '{"jobs": 1, "jobs": 2}', "jobs"),
        ("POST", "/v1/tokens", '{"name": "a", "scopes": ["read"], "quota": {"jobs": 1, "jobs": 2}}', "quota.jobs"),
    ],
)
async def test_a_key_may_be_in_an_object_only_once(api: Api, method: str, path: str, body: str, field: str) -> None:
    answer = await api.client.request(method, path, content=body)
    assert (answer.status_code, [error["field"] for error in answer.json()["errors"]]) == (422, [field])


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        ({"pool": "defalt"}, "pool", "there is no pool 'defalt'; did you mean 'default'?"),
        ({"pool": "zoo"}, "pool", "there is no pool 'zoo'; pools: default"),
        ({"resources": {"devices": 5}}, "resources.devices", "at most 4, as the largest node of 'default' has"),
        (
            {"resources": {"devices": 4, "nodes": 2}},
            "resources.nodes",
            "at most 1 in pool 'default' with that many devices",
        ),
    ],
)
async def test_what_a_pool_cannot_give_is_told_with_its_field(
    api: Api, fields: dict[str, Any], field: str, message: str
) -> None:
    api.node(devices=4, reach="network")
    answer = await api.client.post("/v1/jobs", json=a_spec_body() | {"parallelism": {"strategy": "ddp"}} | fields)
    assert answer.status_code == 422
    assert answer.json()["errors"] == [{"field": field, "message": message}]


# -- compression ---------------------------------------------------------------------------------------


async def raw(api: Api, path: str, accepted: str) -> tuple[str | None, bytes, Any]:
    async with api.client.stream("GET", path, headers={"Accept-Encoding": accepted}) as answer:
        body = b"".join([part async for part in answer.aiter_raw()])
    return answer.headers.get("content-encoding"), body, answer.headers


@pytest.mark.parametrize(
    ("accepted", "coding"),
    [
        ("gzip", "gzip"),
        ("zstd", "zstd"),
        ("gzip, deflate, br, zstd", "zstd"),
        ("gzip;q=1, zstd;q=0.5", "gzip"),
        ("*", "zstd"),
        ("br", None),
        ("identity", None),
        ("gzip;q=0, zstd;q=0", None),
        ("*;q=0", None),
        ("gzip;q=0.5, identity", None),
        ("", None),
    ],
)
async def test_large_answers_are_compressed_as_the_client_likes_best(
    api: Api, accepted: str, coding: str | None
) -> None:
    plain = (await raw(api, "/openapi.json", "identity"))[1]
    found, body, headers = await raw(api, "/openapi.json", accepted)
    assert found == coding
    assert int(headers["content-length"]) == len(body)
    assert (len(body) < len(plain) / 3) is (coding is not None)
    unpack: dict[str | None, Callable[[bytes], bytes]] = {
        "gzip": gzip.decompress,
        "zstd": zstandard.ZstdDecompressor().decompressobj().decompress,
        None: bytes,
    }
    assert unpack[coding](body) == plain
    if coding is not None:
        assert "accept-encoding" in headers["vary"].lower()


async def test_small_answers_are_not_compressed(api: Api) -> None:
    api.node()
    job = await api.submit()
    for path in ("/v1/me", "/v1/jobs", f"/v1/jobs/{job}", f"/v1/jobs/{job}?wait=0"):
        assert (await raw(api, path, "gzip, zstd"))[0] is None


# -- ids of requests -----------------------------------------------------------------------------------


async def test_every_answer_has_an_id_of_its_own(api: Api) -> None:
    api.node()
    paths = ("/healthz", "/v1/jobs", "/v1/nothing", "/docs", f"/v1/jobs/{await api.submit()}")
    ids = [(await api.client.get(path)).headers["x-request-id"] for path in paths]
    assert len(set(ids)) == len(paths)
    bad_host = await api.client.get("/v1/jobs", headers={"Host": "elsewhere"})
    assert bad_host.json()["request_id"] == bad_host.headers["x-request-id"]


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("019a2f33-b2c1-7d03-8c55-5d2c71d04f0e", True),
        ("ci/build:7+a=b@c~d.e_f", True),
        ("x" * 128, True),
        ("x" * 129, False),
        ("two words", False),
        ('"><script>', False),
        ("", False),
    ],
)
async def test_an_id_that_a_client_sends_is_taken_over_where_it_is_one(api: Api, given: str, taken: bool) -> None:
    answer = await api.client.get("/v1/nothing", headers={"X-Request-ID": given})
    found = answer.headers["x-request-id"]
    assert (found == given) is taken
    assert answer.json()["request_id"] == found
    assert current_request.get() == ""


async def test_lines_of_the_log_have_the_id_of_their_request(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    seen: list[str] = []
    monkeypatch.setattr("api.jobs.service.JobService.attempts", fail)
    monkeypatch.setattr(problems, "log", structlog.wrap_logger(None, processors=[]))
    monkeypatch.setattr(problems.log, "error", lambda *_, **__: seen.append(current_request.get()), raising=False)
    job = "01980000-0000-7000-8000-000000000001"
    answer = await api.client.get(f"/v1/jobs/{job}/attempts", headers={"X-Request-ID": "r-7"})
    assert (answer.status_code, answer.json()["request_id"], seen) == (500, "r-7", ["r-7"])


# -- pages of problems ---------------------------------------------------------------------------------


async def test_the_type_of_a_problem_is_a_page_that_explains_it(api: Api) -> None:
    kind = (await api.client.get("/v1/nothing")).json()["type"]
    page = await api.client.get(kind, headers={"Authorization": ""})
    assert page.status_code == 200
    assert "<h1>Not found</h1>" in page.text
    assert "no such thing" in page.text.lower()


async def test_every_problem_has_a_page(api: Api) -> None:
    index = await api.client.get(problems.PAGES)
    for code, (_, title) in problems.PROBLEMS.items():
        page = await api.client.get(f"{problems.PAGES}/{code}")
        assert (page.status_code, title in page.text) == (200, True), code
        assert f"problems/{code}" in index.text
    assert (await api.client.get(f"{problems.PAGES}/nothing")).status_code == 404
