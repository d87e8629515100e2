"""Bundles over HTTP: upload, look, submit what they hold, and when they go."""

import asyncio
import hashlib
import os
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.types import Message
from structlog.testing import capture_logs

from api.background import bundle_gc
from api.bundles import service
from jobs.bundles import bundle as bundles
from jobs.files import paths
from jobs.model.settings import Settings
from jobs.store.accounts.tokens import Scope
from tests.integration.api.conftest import ADMIN, Api, running
from tests.support.samples.hostile_zips import LINK, Part, names, zipped

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

BODY = zipped(Part("src/train.py"), Part("package/main.py", b"x = 1\n"))
ID = f"sha256:{hashlib.sha256(BODY).hexdigest()}"
ABSENT = "sha256:" + "0" * 64
DEADLINE = 60.0


def script(entrypoint: str = "src/train.py", bundle: str = ID) -> dict[str, Any]:
    return {"program": {"kind": "script", "bundle": bundle, "entrypoint": entrypoint}}


def kept(api: Api, tenant: str = "default") -> list[str]:
    """Names of the files that are stored."""
    return sorted(file.name for file in paths.bundle_dir(api.storage, tenant).glob("*"))


async def upload(api: Api, body: bytes = BODY, **request: Any) -> Any:
    return await api.client.post("/v1/bundles", content=body, **request)


async def submit(api: Api, program: dict[str, Any], **request: Any) -> Any:
    return await api.client.post("/v1/jobs", json=program, **request)


# -- upload and look -------------------------------------------------------------------------------


async def test_the_same_bytes_have_the_same_id_and_are_kept_once(api: Api) -> None:
    first, again = await upload(api), await upload(api)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json() == {"id": ID, "files": 2, "bytes": len(BODY), "unpacked_bytes": 21}
    assert first.headers["location"] == f"/v1/bundles/{ID}"
    (name,) = kept(api)
    assert name.startswith(ID.removeprefix("sha256:"))
    assert (paths.bundle_dir(api.storage, "default") / name).read_bytes() == BODY
    found = paths.find_bundle(api.storage, "default", ID)
    assert found is not None
    assert found.name == name


async def test_a_bundle_lists_its_files(api: Api) -> None:
    await upload(api)
    found = await api.get(f"/v1/bundles/{ID}")
    assert found["files"] == [{"path": "package/main.py", "bytes": 6}, {"path": "src/train.py", "bytes": 15}]
    assert (found["id"], found["bytes"], found["unpacked_bytes"], found["jobs"]) == (ID, len(BODY), 21, 0)


@pytest.mark.parametrize("bundle", [ABSENT, ID.upper(), "sha256:", "x", ID + "0", "sha256:" + "../" * 21 + "0"])
async def test_what_is_no_bundle_is_not_found(api: Api, bundle: str) -> None:
    await upload(api)
    answer = await api.client.get(f"/v1/bundles/{bundle}")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


async def test_a_large_body_is_stored_as_it_came(api: Api) -> None:
    body = zipped(Part("a", os.urandom(3_500_000), method=0))

    async def parts() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 99_991):
            yield body[start : start + 99_991]

    answer = await api.client.post("/v1/bundles", content=parts())
    assert answer.json()["id"] == f"sha256:{hashlib.sha256(body).hexdigest()}"
    (name,) = kept(api)
    assert (paths.bundle_dir(api.storage, "default") / name).read_bytes() == body


@pytest.mark.parametrize(
    "body",
    [b"", b"not a zip", names("../x"), zipped(Part("a", mode=LINK)), zipped(Part("a", b"\0" * (1 << 26)))],
    ids=["nothing", "no zip", "zip-slip", "a link", "a bomb"],
)
async def test_a_bad_bundle_is_refused_and_leaves_nothing(api: Api, body: bytes) -> None:
    answer = await upload(api, body)
    assert (answer.status_code, answer.json()["code"]) == (422, "bad_bundle")
    assert kept(api) == []
    assert api.control.client.keys("sy:bundle*") == []


@pytest.fixture
def tight(settings: Settings) -> Settings:
    return settings.model_copy(update={"max_bundle_bytes": 1024, "max_bundles_bytes": 1024})


async def test_a_bundle_that_is_too_large_is_refused_and_leaves_nothing(tight: Settings) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b"x" * 100

    async with running(tight) as api:
        for content in (b"x" * 1025, parts()):
            answer = await api.client.post("/v1/bundles", content=content)
            assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
        assert kept(api) == []


async def test_a_tenant_has_room_for_so_much(tight: Settings) -> None:
    async with running(tight) as api:
        bodies = [zipped(Part(name, os.urandom(600), method=0)) for name in "ab"]
        assert [(await upload(api, body)).status_code for body in bodies] == [201, 409]
        assert len(kept(api)) == 1
        assert (await upload(api, bodies[0])).status_code == 200
        others = api.token(Scope.SUBMIT, tenant="rival")
        assert (await upload(api, bodies[1], headers=others)).status_code == 201


async def test_a_job_may_ask_to_keep_as_much_as_the_operator_allows(settings: Settings) -> None:
    async with running(settings.model_copy(update={"max_artifact_bytes": 1000})) as api:
        api.node()
        await upload(api)
        assert (await submit(api, script() | {"limits": {"artifact_bytes": 1000}})).status_code == 201
        refused = await submit(api, script() | {"limits": {"artifact_bytes": 1001}})
        assert (refused.status_code, refused.json()["errors"]) == (
            422,
            [
                {
                    "field": "limits.artifact_bytes",
                    "message": "1,001 asked; this service keeps at most 1,000 bytes for a job",
                }
            ],
        )


async def test_two_uploads_of_the_same_bytes_leave_one_file(api: Api) -> None:
    answers = await asyncio.gather(upload(api), upload(api))
    assert sorted(answer.status_code for answer in answers) in ([200, 201], [201, 201])
    assert len(kept(api)) == 1
    assert (await api.get(f"/v1/bundles/{ID}"))["jobs"] == 0


async def test_of_two_uploads_that_are_both_new_one_is_kept(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    both, inspect = threading.Barrier(2, timeout=DEADLINE), bundles.inspect_bundle

    def together(path: Path) -> bundles.BundleListing:
        both.wait()
        return inspect(path)

    monkeypatch.setattr(bundles, "inspect_bundle", together)
    answers = await asyncio.gather(upload(api), upload(api))
    assert sorted(answer.status_code for answer in answers) == [200, 201]
    assert len(kept(api)) == 1
    assert (await api.client.get(f"/v1/bundles/{ID}")).status_code == 200


async def test_a_bundle_whose_file_was_lost_is_not_found_until_it_is_uploaded_again(api: Api) -> None:
    api.node()
    await upload(api)
    job = (await submit(api, script())).json()["id"]
    for name in kept(api):
        (paths.bundle_dir(api.storage, "default") / name).unlink()
    assert (await api.client.get(f"/v1/bundles/{ID}")).status_code == 404
    assert (await submit(api, script())).json()["code"] == "unknown_bundle"
    assert (await upload(api)).status_code == 201
    assert (await api.get(f"/v1/bundles/{ID}"))["jobs"] == 1
    assert (await api.client.post(f"/v1/jobs/{job}/resubmit")).status_code == 201


# -- tenants, and what is written down -------------------------------------------------------------


async def test_another_tenants_bundle_is_not_there(api: Api) -> None:
    api.node()
    await upload(api)
    stranger = api.token(Scope.SUBMIT, tenant="rival")
    assert (await api.client.get(f"/v1/bundles/{ID}", headers=stranger)).status_code == 404
    answer = await submit(api, script(), headers=stranger)
    assert (answer.status_code, answer.json()["code"]) == (422, "unknown_bundle")
    assert (await upload(api, headers=stranger)).status_code == 201, "nobody learns what others have"
    assert len(kept(api)) == len(kept(api, "rival")) == 1
    assert (await submit(api, script(), headers=stranger)).status_code == 201
    assert (await api.get(f"/v1/bundles/{ID}"))["jobs"] == 0


async def test_who_uploaded_what_is_written_down(api: Api) -> None:
    with capture_logs() as logs:
        await upload(api)
        await upload(api)
    (event,) = [entry for entry in logs if entry["event"] == "bundle_uploaded"]
    assert (event["bundle"], event["token"], event["tenant"]) == (ID, "admin", "default")


async def test_a_bundle_is_deleted_with_its_file_once_no_job_needs_it(api: Api) -> None:
    api.node()
    await upload(api)
    job = (await submit(api, script())).json()["id"]
    refused = await api.client.delete(f"/v1/bundles/{ID}")
    assert (refused.status_code, refused.json()["code"]) == (409, "bundle_needed")
    assert job in refused.json()["detail"]
    for headers, status in ((api.token(Scope.READ), 403), (api.token(Scope.SUBMIT, tenant="rival"), 404)):
        assert (await api.client.delete(f"/v1/bundles/{ID}", headers=headers)).status_code == status
    assert (await api.client.post(f"/v1/jobs/{job}/cancel")).status_code == 202
    assert (await api.client.delete(f"/v1/jobs/{job}")).status_code == 204
    with capture_logs() as logs:
        assert (await api.client.delete(f"/v1/bundles/{ID}", headers=api.token(Scope.SUBMIT))).status_code == 204
    (event,) = [entry for entry in logs if entry["event"] == "bundle_deleted"]
    assert (event["bundle"], event["tenant"]) == (ID, "default")
    assert kept(api) == []
    assert (await api.client.delete(f"/v1/bundles/{ID}")).status_code == 404
    assert (await submit(api, script())).json()["code"] == "unknown_bundle"
    assert (await upload(api)).status_code == 201


# -- many at once, and those that leave ------------------------------------------------------------


class Uploads:
    """Uploads that have begun and do not go on until they are let go."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._go = asyncio.Event()
        self._tasks: list[asyncio.Task[Any]] = []

    async def begin(self, **request: Any) -> None:
        begun = asyncio.Event()

        async def parts() -> AsyncIterator[bytes]:
            yield BODY[:10]
            begun.set()
            await self._go.wait()
            yield BODY[10:]

        self._tasks.append(asyncio.create_task(self._api.client.post("/v1/bundles", content=parts(), **request)))
        async with asyncio.timeout(DEADLINE):
            await begun.wait()

    async def end(self) -> list[int]:
        self._go.set()
        async with asyncio.timeout(DEADLINE):
            return [answer.status_code for answer in await asyncio.gather(*self._tasks)]


async def test_uploads_beyond_so_many_are_told_to_come_again(api: Api) -> None:
    uploads = Uploads(api)
    for _ in range(service.MAX_UPLOADS_OF_TENANT):
        await uploads.begin()
    refused = await upload(api)
    assert (refused.status_code, refused.json()["code"]) == (429, "too_many_uploads")
    assert int(refused.headers["retry-after"]) > 0
    busy = api.token(Scope.SUBMIT, tenant="busy")
    await uploads.begin(headers=busy)
    for number in range(service.MAX_UPLOADS - service.MAX_UPLOADS_OF_TENANT - 1):
        await uploads.begin(headers=api.token(Scope.SUBMIT, tenant=f"t{number}"))
    assert (await upload(api, headers=busy)).status_code == 429, "all places are taken"
    late = api.token(Scope.SUBMIT, tenant="late")
    assert (await upload(api, headers=late)).status_code == 201, "the first of each tenant has a place"
    assert (await api.client.get("/v1/jobs")).status_code == 200
    assert set(await uploads.end()) <= {200, 201}
    assert (await upload(api)).status_code == 200


async def test_others_are_served_while_a_bundle_is_checked(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    checking, go = threading.Event(), threading.Event()
    inspect: Callable[[Path], bundles.BundleListing] = bundles.inspect_bundle

    def slowly(path: Path) -> bundles.BundleListing:
        checking.set()
        assert go.wait(DEADLINE)
        return inspect(path)

    monkeypatch.setattr(bundles, "inspect_bundle", slowly)
    uploading = asyncio.create_task(upload(api))
    assert await asyncio.to_thread(checking.wait, DEADLINE)
    assert (await api.client.get("/v1/jobs")).status_code == 200
    assert (await api.client.get("/v1/recipes")).status_code == 200
    assert not uploading.done()
    go.set()
    assert (await uploading).status_code == 201


async def call(app: FastAPI, messages: list[Message]) -> int:
    """The status of an upload whose connection says `messages`."""
    sent: list[Message] = []

    async def receive() -> Message:
        return messages.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"authorization", f"Bearer {ADMIN}".encode())]
    scope: dict[str, Any] = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/v1/bundles",
    }
    scope |= {"raw_path": b"/v1/bundles", "root_path": "", "query_string": b"", "headers": headers, "client": None}
    await app(scope, receive, send)
    return int(sent[0]["status"])


async def test_a_client_that_leaves_leaves_no_file_and_no_error(api: Api) -> None:
    part = {"type": "http.request", "body": BODY[:20], "more_body": True}
    with capture_logs() as logs:
        await call(api.app, [part, {"type": "http.disconnect"}])
    assert kept(api) == []
    assert [entry for entry in logs if entry["log_level"] in ("error", "critical")] == []
    for _ in range(service.MAX_UPLOADS_OF_TENANT):
        assert (await upload(api)).status_code in (200, 201), "its place is free again"


# -- jobs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entrypoint", ["src/train.py", "package.main"])
async def test_a_script_of_a_bundle_is_submitted_resubmitted_and_deleted(api: Api, entrypoint: str) -> None:
    api.node()
    await upload(api)
    first = (await submit(api, script(entrypoint))).json()
    assert first["spec"]["program"]["bundle"] == ID
    second = (await api.client.post(f"/v1/jobs/{first['id']}/resubmit")).json()
    assert second["parent_id"] == first["id"]
    assert (await api.get(f"/v1/bundles/{ID}"))["jobs"] == 2
    for job in (first, second):
        await api.client.post(f"/v1/jobs/{job['id']}/cancel")
        assert (await api.get(f"/v1/bundles/{ID}"))["jobs"] > 0
        await api.client.delete(f"/v1/jobs/{job['id']}")
    assert (await api.get(f"/v1/bundles/{ID}"))["jobs"] == 0


async def test_a_job_whose_bundle_is_unknown_is_refused(api: Api) -> None:
    api.node()
    recipe = {"mode": "forward", "model": {"ref": "a:b"}, "data": {"ref": "c:d"}, "bundle": ABSENT}
    for body in (script(bundle=ABSENT), {"program": recipe}):
        answer = await submit(api, body)
        assert (answer.status_code, answer.json()["code"]) == (422, "unknown_bundle")
        assert [error["field"] for error in answer.json()["errors"]] == ["program.bundle"]
    assert (await api.get("/v1/jobs"))["jobs"] == []


async def test_an_entry_point_that_is_not_in_the_bundle_is_refused_with_the_one_that_was_probably_meant(
    api: Api,
) -> None:
    api.node()
    await upload(api)
    answer = await submit(api, script("train.py"))
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_spec")
    (error,) = answer.json()["errors"]
    assert error["field"] == "program.entrypoint"
    assert "did you mean 'src/train.py'?" in error["message"]
    assert (await api.get(f"/v1/bundles/{ID}"))["jobs"] == 0


async def test_the_repeat_of_a_submit_is_the_same_job(api: Api) -> None:
    api.node()
    await upload(api)
    headers = {"Idempotency-Key": "one"}
    answers = [await submit(api, script(), headers=headers) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 200]
    assert (await api.get(f"/v1/bundles/{ID}"))["jobs"] == 1


# -- when they go ----------------------------------------------------------------------------------


async def test_what_no_job_needs_goes_with_its_file(api: Api) -> None:
    api.node()
    await upload(api)
    job = (await submit(api, script())).json()["id"]
    await asyncio.to_thread(bundle_gc.sweep_bundles, api.control, api.storage, 0)
    assert len(kept(api)) == 1
    await api.client.post(f"/v1/jobs/{job}/cancel")
    await api.client.delete(f"/v1/jobs/{job}")
    await asyncio.to_thread(bundle_gc.sweep_bundles, api.control, api.storage, 3600)
    assert len(kept(api)) == 1, "it rests first"
    await asyncio.to_thread(bundle_gc.sweep_bundles, api.control, api.storage, 0)
    assert kept(api) == []
    assert (await api.client.get(f"/v1/bundles/{ID}")).status_code == 404
    assert (await upload(api)).status_code == 201
