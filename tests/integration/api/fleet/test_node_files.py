"""Nodes bring and fetch files with their own tokens: what is theirs, and nothing else, whatever they send."""

import asyncio
import base64
import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import ClientDisconnect

from api.node_files import file_tree, service, sums
from api.node_files.rights import HAND_OVER_SECONDS
from api.node_files.service import NodeFileService
from jobs import store
from jobs.files import paths
from jobs.model.state import StateReason
from jobs.storage.directory import DirectoryStorage
from jobs.storage.remote import CHUNK_BYTES
from jobs.store import AttemptId
from jobs.support.disk_space import DiskSpace
from tests.integration.api.conftest import Api
from tests.integration.api.http.test_access import new_node_token
from tests.integration.api.http.test_fair_api import MOST_SECONDS, longest_hold

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

FILES = "/v1/node/files"


class NodeCaller:
    """A node with a token, and a job that runs there."""

    def __init__(self, api: Api, headers: dict[str, str], job: str) -> None:
        self.api, self.headers, self.job = api, headers, job

    @property
    def own(self) -> str:
        """The directory of its attempt."""
        return f"jobs/default/{self.job}/1"

    async def ask(self, method: str, path: str, content: Any = None, **headers: Any) -> httpx.Response:
        named = {name.replace("_", "-"): str(value) for name, value in headers.items()}
        return await self.api.client.request(method, f"{FILES}/{path}", content=content, headers=self.headers | named)

    async def append(self, path: str, offset: int, data: Any) -> httpx.Response:
        return await self.ask("PATCH", path, data, Upload_Offset=offset)

    async def put(self, path: str, data: bytes, **changes: Any) -> httpx.Response:
        headers = {"Repr_Digest": digest(data), "Upload_Length": len(data), "Upload_Offset": 0} | changes
        return await self.ask("PUT", path, data, **headers)

    async def copy(self, source: str, path: str, data: bytes) -> httpx.Response:
        headers = self.headers | {"Repr-Digest": digest(data), "Upload-Length": str(len(data))}
        return await self.api.client.post(f"{FILES}/{path}", params={"source": source}, headers=headers)

    async def names(self, prefix: str, cursor: str = "") -> Any:
        params = {"prefix": prefix, "cursor": cursor}
        return await self.api.client.get(FILES, params=params, headers=self.headers)


def digest(data: bytes) -> str:
    return f"sha-256=:{base64.b64encode(hashlib.sha256(data).digest()).decode()}:"


@pytest.fixture
async def node(api: Api) -> NodeCaller:
    api.node()
    headers, job = await new_node_token(api), await api.submit()
    api.control.run(store.dispatch(60))
    assert api.control.run(store.claim(AttemptId("default", job, 1), "c", "host-a")).granted
    return NodeCaller(api, headers, job)


def stored(api: Api) -> dict[str, bytes]:
    """What lies below the directories that nodes may reach."""
    top = [api.storage / name for name in ("jobs", "bundles", ".node-drafts")]
    files = [path for directory in top for path in directory.rglob("*") if path.is_file()]
    return {str(path.relative_to(api.storage)): path.read_bytes() for path in files}


async def test_a_node_brings_logs_and_files_of_its_attempt_and_reads_them(node: NodeCaller) -> None:
    log, report = f"{node.own}/logs/device-0.log", f"{node.own}/report.json"
    first = await node.append(log, 0, b"abc")
    assert (first.status_code, first.headers["upload-offset"]) == (204, "3")
    assert (await node.append(log, 1, b"bcdef")).status_code == 204
    wrong = await node.append(log, 9, b"x")
    assert (wrong.status_code, wrong.headers["upload-offset"], wrong.json()["code"]) == (409, "6", "wrong_offset")
    part = await node.put(report, b"{}--", Repr_Digest=digest(b"{}--more"), Upload_Length=8)
    assert (part.status_code, part.headers["upload-offset"]) == (202, "4")
    known = await node.ask("HEAD", report, Repr_Digest=digest(b"{}--more"))
    assert (known.status_code, known.headers["upload-offset"]) == (200, "4")
    rest = await node.put(report, b"more", Repr_Digest=digest(b"{}--more"), Upload_Length=8, Upload_Offset=4)
    assert rest.status_code == 204
    assert (await node.put(f"{node.own}/artifacts/empty", b"")).status_code == 204
    answer = await node.ask("GET", report, Range="bytes=2-5")
    assert (answer.status_code, answer.content) == (206, b"--mo")
    assert (await node.ask("HEAD", log)).headers["upload-offset"] == "6"
    listed = (await node.names(node.own)).json()
    assert listed == {"files": [f"{node.own}/artifacts/empty", log, report], "next": None}
    assert (await node.ask("DELETE", f"{node.own}/artifacts")).status_code == 204
    assert stored(node.api) == {log: b"abcdef", report: b"{}--more"}


async def test_a_file_whose_answer_was_lost_is_not_sent_again(node: NodeCaller) -> None:
    path, data = f"{node.own}/report.json", b"{}" * 1000
    assert (await node.put(path, data)).status_code == 204
    assert (await node.ask("HEAD", path, Repr_Digest=digest(data))).headers["upload-offset"] == "2000"
    again = {"Repr_Digest": digest(data), "Upload_Length": 2000, "Upload_Offset": 2000}
    assert (await node.ask("PUT", path, b"", **again)).status_code == 204
    assert (await node.ask("HEAD", path, Repr_Digest=digest(b"other"))).headers["upload-offset"] == "0"
    assert stored(node.api) == {path: data}


async def test_a_file_that_was_brought_is_copied_on_the_disk(node: NodeCaller) -> None:
    saved, left, data = f"{node.own}/artifacts/a b?", f"{node.own}/files/c d#", b"weights" * 1000
    assert (await node.put(saved.replace("?", "%3F"), data)).status_code == 204
    assert (await node.copy(saved, left.replace("#", "%23"), data)).status_code == 204
    assert stored(node.api) == {saved: data, left: data}
    other = await node.copy(saved, left.replace("#", "%23"), b"WEIGHTS" * 1000)
    assert (other.status_code, other.json()["code"]) == (422, "wrong_digest")
    missing = await node.copy(f"{node.own}/artifacts/none", left.replace("#", "%23"), data)
    assert missing.status_code == 404
    assert stored(node.api) == {saved: data, left: data}


async def test_a_copy_is_made_of_what_a_node_may_read_to_where_it_may_write(
    node: NodeCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, data = f"{node.own}/artifacts/one", b"x" * 40_000
    assert (await node.put(own, data)).status_code == 204
    other = "jobs/default/ff/1/report.json"
    (node.api.storage / other).parent.mkdir(parents=True)
    (node.api.storage / other).write_bytes(data)
    codes = [(await node.copy(*pair, data)).status_code for pair in ((other, own), (own, other))]
    assert codes == [403, 403]
    monkeypatch.setattr(sums, "SMALL_BYTES", 0)
    tight(node.api, job_disk_bytes=100_000)
    codes = [(await node.copy(own, f"{node.own}/artifacts/{name}", data)).status_code for name in ("two", "three")]
    assert codes == [204, 413]
    assert (await node.copy(own, own, b"x" * 200_000)).status_code == 413
    assert (await node.copy("../x", own, data)).status_code == 422


async def test_a_node_reaches_nothing_that_is_not_its_own(node: NodeCaller) -> None:
    api = node.api
    api.node(node="host-b")
    other = NodeCaller(api, await new_node_token(api, "host-b"), node.job)
    for path in (f"{node.own}/logs/device-0.log", f"jobs/default/{node.job}/checkpoints/000000000001-1/manifest.json"):
        assert (await node.put(path, b"mine")).status_code == 204
        for answer in (
            await other.append(path, 0, b"x"),
            await other.put(path, b"x"),
            await other.ask("GET", path),
            await other.ask("HEAD", path),
            await other.ask("DELETE", path),
            await other.names(path.rpartition("/")[0]),
        ):
            assert answer.status_code == 403, (path, answer.request.method)
    before = stored(api)
    job = f"jobs/default/{node.job}"
    foreign = "01a1faf7-950c-74f3-af12-cc10a45948be"
    for path in (
        *(
            f"{job}/2/report.json",
            f"{job}/01/report.json",
            f"{job}/1",
            f"{job}/checkpoints",
            job,
            "jobs/default",
            "jobs",
        ),
        *(f"{job}/checkpoints/000000000001-2/x", f"{job}/checkpoints/x/y", f"{job}/checkpoints/000000000001-1"),
        *(f"jobs/rival/{node.job}/1/x", f"jobs/default/{foreign}/1/x", "archive/default/01a1fa/x.json", "audit/x"),
        *("bundles/default/" + "0" * 64 + ".n.zip", ".node-drafts/host-b/x.part", ".shardyard-storage", "admin-token"),
    ):
        for answer in (await node.append(path, 0, b"x"), await node.put(path, b"x")):
            assert answer.status_code == 403, path
    for path in ("jobs", job, "jobs/default", "bundles", "bundles/rival", "archive", "audit", ".node-drafts/host-a"):
        assert (await node.names(path)).status_code == 403, path
        assert (await node.ask("DELETE", path)).status_code == 403, path
    assert stored(api) == before


@pytest.mark.parametrize(
    "path", ["%2e%2e/x", "logs/%2e%2e/%2e%2e/%2e%2e/x", "a%2f%2fb", "a/%2e/b", "%00", "x" * 256, "a/" * 80 + "a", ""]
)
async def test_what_is_no_path_is_refused(node: NodeCaller, path: str) -> None:
    for method, headers in (("PATCH", {"Upload_Offset": 0}), ("GET", {}), ("HEAD", {}), ("DELETE", {})):
        answer = await node.ask(method, f"{node.own}/{path}", b"" if method == "PATCH" else None, **headers)
        assert answer.status_code in (403, 404, 422), (method, answer.text)
    assert stored(node.api) == {}


async def test_no_link_leads_out_of_the_storage(node: NodeCaller, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    attempt = node.api.storage / node.own
    attempt.mkdir(parents=True)
    (attempt / "artifacts").symlink_to(outside)
    (attempt / "file").symlink_to(outside / "secret")
    os.mkfifo(attempt / "pipe")
    for path in ("artifacts/secret", "file", "pipe"):
        assert (await node.ask("GET", f"{node.own}/{path}")).status_code == 404
        assert (await node.append(f"{node.own}/{path}", 0, b"x")).status_code == 404
    assert (await node.append(f"{node.own}/artifacts/new", 0, b"x")).status_code == 404
    assert (await node.put(f"{node.own}/artifacts/new", b"x")).status_code == 404
    assert (await node.names(node.own)).json()["files"] == []
    assert (await node.put(f"{node.own}/file", b"mine")).status_code == 204, "the link is replaced, not followed"
    assert (await node.ask("DELETE", f"{node.own}/artifacts")).status_code == 204
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert (outside / "secret").read_text() == "secret"


async def test_lies_about_digests_offsets_and_lengths_store_nothing(node: NodeCaller) -> None:
    path = f"{node.own}/report.json"
    lie = await node.put(path, b"data", Repr_Digest=digest(b"other"))
    assert (lie.status_code, lie.json()["code"]) == (422, "wrong_digest")
    assert stored(node.api) == {}
    for changes, status in (
        ({"Upload_Offset": 7}, 409),
        ({"Upload_Length": 2}, 413),
        ({"Upload_Length": -1}, 422),
        ({"Upload_Offset": "x"}, 422),
        ({"Repr_Digest": "sha-256=:AAAA:"}, 422),
        ({"Repr_Digest": "md5=:AAAA:"}, 422),
        ({"Upload_Length": 2**50}, 413),
        ({"Upload_Offset": 2**60}, 422),
    ):
        answer = await node.put(path, b"data", **changes)
        assert answer.status_code == status, (changes, answer.text)
    too_large = await node.append(path, 0, bytes(CHUNK_BYTES + 1))
    assert too_large.status_code == 413
    assert (await node.append(f"{node.own}/far", 2**52, b"x")).status_code in (409, 413)
    assert path not in {name for name, data in stored(node.api).items() if len(data) > CHUNK_BYTES}


async def test_a_body_that_is_cut_counts_as_far_as_it_came(node: NodeCaller) -> None:
    data = os.urandom(1_000_000)

    async def cut() -> AsyncIterator[bytes]:
        yield data[:700_001]
        raise ClientDisconnect

    path, headers = f"{node.own}/report.json", {"Repr_Digest": digest(data), "Upload_Length": len(data)}
    assert (await node.ask("PUT", path, cut(), **headers, Upload_Offset=0)).status_code == 400
    assert (await node.ask("HEAD", path, Repr_Digest=digest(data))).headers["upload-offset"] == "700001"
    assert (await node.ask("PUT", path, data[700_001:], **headers, Upload_Offset=700_001)).status_code == 204
    assert stored(node.api) == {path: data}


async def test_a_node_has_few_unfinished_uploads(node: NodeCaller) -> None:
    for number in range(file_tree.MAX_DRAFTS):
        answer = await node.put(f"{node.own}/artifacts/{number}", b"x", Repr_Digest=digest(b"xy"), Upload_Length=2)
        assert answer.status_code == 202
    refused = await node.put(f"{node.own}/artifacts/more", b"x", Repr_Digest=digest(b"xy"), Upload_Length=2)
    assert (refused.status_code, refused.json()["code"]) == (429, "too_many_transfers")
    drafts = sorted((node.api.storage / paths.NODE_DRAFTS / "host-a").iterdir())
    os.utime(drafts[0], (0, 0))
    assert (await node.put(f"{node.own}/artifacts/more", b"new")).status_code == 204
    assert not drafts[0].exists(), "the one that was left gives way"
    for draft in drafts[1:]:
        os.utime(draft, (0, 0))
    file_tree.sweep_drafts(DirectoryStorage(node.api.storage))
    assert list(drafts[0].parent.iterdir()) == []


async def test_an_attempt_that_was_lost_keeps_its_logs_but_saves_no_checkpoint(node: NodeCaller) -> None:
    api, saved = node.api, f"jobs/default/{node.job}/checkpoints"
    assert (await node.put(f"{saved}/000000000001-1/manifest.json", b"{}")).status_code == 204
    attempt = AttemptId("default", node.job, 1)
    api.control.run(store.reap(attempt, StateReason.LEASE_EXPIRED, "lost", heartbeat=None, backoff_seconds=60))
    assert (await node.append(f"{node.own}/logs/device-0.log", 0, b"late")).status_code == 204
    assert (await node.put(f"{node.own}/artifacts/model.pt", b"late")).status_code == 204
    api.app.state.services[service.NodeFileService]._rights._cached.clear()
    assert (await node.put(f"{saved}/000000000002-1/manifest.json", b"{}")).status_code == 403
    assert (await node.ask("DELETE", f"{saved}/000000000001-1")).status_code == 403
    ended = int((HAND_OVER_SECONDS + 121) * 1e6)
    at = int(api.control.client.hget(f"sy:attempt:default/{node.job}/1", "ended") or 0)
    api.control.client.hset(f"sy:attempt:default/{node.job}/1", "ended", at - ended)
    api.app.state.services[service.NodeFileService]._rights._cached.clear()
    assert (await node.append(f"{node.own}/logs/device-0.log", 4, b"!")).status_code == 403


async def test_a_node_fetches_the_bundle_of_its_job_and_what_scripts_saved(api: Api) -> None:
    api.node()
    headers = await new_node_token(api)
    job = await api.submit()
    api.control.run(store.dispatch(60))
    node = NodeCaller(api, headers, job)
    mine, other = "a" * 64, "b" * 64
    api.control.client.hset(f"sy:job:default/{job}", "bundle", mine)
    directory = api.storage / "bundles" / "default"
    directory.mkdir(parents=True)
    for name in (mine, other):
        (directory / f"{name}.n1.zip").write_bytes(name.encode())
    assert (await node.names("bundles/default")).json()["files"] == [f"bundles/default/{mine}.n1.zip"]
    assert (await node.ask("GET", f"bundles/default/{mine}.n1.zip")).content == mine.encode()
    assert (await node.ask("GET", f"bundles/default/{other}.n1.zip")).status_code == 403
    assert (await node.ask("DELETE", f"bundles/default/{mine}.n1.zip")).status_code == 403
    for path in ("7/artifacts/checkpoints/step-1/a", "7/artifacts/model.pt", "7/report.json"):
        file = api.storage / "jobs" / "default" / job / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"saved")
    assert (await node.ask("GET", f"jobs/default/{job}/7/artifacts/checkpoints/step-1/a")).content == b"saved"
    for path in ("7/artifacts/model.pt", "7/report.json", "7/artifacts/../report.json"):
        assert (await node.ask("GET", f"jobs/default/{job}/{path}")).status_code in (403, 422)


async def test_many_tiny_appends_hold_up_nobody_else(node: NodeCaller) -> None:
    api, log = node.api, f"{node.own}/logs/device-0.log"
    await node.append(log, 0, b"x")
    answers = await asyncio.gather(*(node.append(log, 0, b"x") for _ in range(200)))
    statuses = [answer.status_code for answer in answers]
    assert set(statuses) == {204, 429}
    assert statuses.count(204) >= service.SLOTS_OF_NODE
    assert (await api.client.get("/v1/jobs")).status_code == 200
    assert stored(api) == {log: b"x"}


async def test_the_largest_body_does_not_hold_the_event_loop(node: NodeCaller) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(CHUNK_BYTES // 65_536):
            yield bytes(65_536)

    await node.append(f"{node.own}/warm", 0, b"x")
    async with longest_hold() as hold:
        assert (await node.append(f"{node.own}/log", 0, parts())).status_code == 204
        assert (await node.ask("GET", f"{node.own}/log")).content == bytes(CHUNK_BYTES)
    assert hold[0] <= MOST_SECONDS


async def test_a_slow_body_holds_a_slot_of_its_own_node_alone(node: NodeCaller) -> None:
    api = node.api
    api.node(node="host-b")
    opened, closing = asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b"x"
        opened.set()
        await closing.wait()

    slots = api.app.state.services[service.NodeFileService]._slots
    asked = [
        asyncio.create_task(node.append(f"{node.own}/artifacts/{number}", 0, slow()))
        for number in range(service.SLOTS_OF_NODE)
    ]
    async with asyncio.timeout(60):
        while slots.held_count < service.SLOTS_OF_NODE:
            await asyncio.sleep(0)
    assert (await node.ask("HEAD", f"{node.own}/x")).status_code == 429
    other = NodeCaller(api, await new_node_token(api, "host-b"), node.job)
    assert (await other.ask("HEAD", f"{node.own}/x")).status_code == 403
    closing.set()
    assert {answer.status_code for answer in await asyncio.gather(*asked)} == {204}
    assert slots.held_count == 0


async def test_a_disk_below_its_reserve_takes_nothing_and_still_gives(node: NodeCaller) -> None:
    path = f"{node.own}/report.json"
    assert (await node.put(path, b"{}")).status_code == 204
    disks = node.api.app.state.services[service.NodeFileService]._disks
    disks.look = lambda: None
    disks.low = [DiskSpace("storage", 0, 1, 0, 0)]
    for answer in (await node.put(path, b"[]"), await node.append(f"{node.own}/log", 0, b"x")):
        assert (answer.status_code, answer.json()["code"]) == (507, "storage_low")
        assert int(answer.headers["retry-after"]) > 0
    assert (await node.ask("GET", path)).content == b"{}"
    assert (await node.ask("DELETE", path)).status_code == 204


async def test_a_long_list_comes_in_pages(node: NodeCaller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MAX_LISTED", 3)
    made = sorted(
        f"{node.own}/artifacts/{name}" for name in ("a", "a-b", "a.d/x", "a.d/y", "b/c/d", "b/c-d", "b.c", "c")
    )
    for path in made:
        file = node.api.storage / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"")
    found: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = (await node.names(node.own, cursor)).json()
        assert len(page["files"]) <= 3
        found, cursor = found + page["files"], page["next"]
    assert found == made


async def test_refused_requests_of_a_node_have_one_entry_and_what_it_brings_none(node: NodeCaller) -> None:
    for number in range(5):
        await node.append(f"{node.own}/logs/device-0.log", number, b"x")
        await node.ask("GET", "audit/x")
    found = (await node.api.get("/v1/audit", params={"order": "oldest"}))["entries"]
    assert [entry["action"] for entry in found if entry["token_name"] == "host-a"] == ["scope_refused"]


async def test_limits_on_requests_do_not_apply_to_what_a_node_brings(node: NodeCaller) -> None:
    answer = await node.append(f"{node.own}/logs/device-0.log", 0, b"x")
    assert "ratelimit" not in answer.headers


def tight(api: Api, **limits: int) -> NodeFileService:
    """The service with so small limits that a test reaches them; at least so much lies beside what is limited."""
    service_of_files: NodeFileService = api.app.state.services[NodeFileService]
    small = service_of_files._settings.model_copy(update={"job_log_bytes": 0, "job_record_bytes": 0} | limits)
    service_of_files._settings = service_of_files._rights._settings = small
    return service_of_files


async def test_all_files_of_an_attempt_together_have_a_bound(node: NodeCaller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "SMALL_BYTES", 0)
    monkeypatch.setattr(sums, "AGAIN_SECONDS", 0.0)
    tight(node.api, job_disk_bytes=100_000)
    body = os.urandom(40_000)
    for name in ("one", "two"):
        assert (await node.put(f"{node.own}/artifacts/{name}", body)).status_code == 204
    refused = await node.put(f"{node.own}/artifacts/three", body)
    assert (refused.status_code, "SHARDYARD_JOB_DISK_BYTES" in refused.text) == (413, True)
    assert (await node.append(f"{node.own}/logs/device-0.log", 0, body)).status_code == 413
    assert (await node.ask("DELETE", f"{node.own}/artifacts/one")).status_code == 204
    assert (await node.put(f"{node.own}/artifacts/three", body)).status_code == 204, "what has gone counts no more"


async def test_uploads_that_are_never_finished_have_a_bound(node: NodeCaller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "SMALL_BYTES", 0)
    tight(node.api, job_disk_bytes=100_000)
    codes = []
    for number in range(4):
        part, whole = os.urandom(40_000), {"Repr_Digest": digest(str(number).encode()), "Upload_Length": 50_000}
        codes.append((await node.put(f"{node.own}/artifacts/{number}", part, **whole)).status_code)
    assert codes == [202, 202, 413, 413]


async def test_checkpoints_of_a_job_have_a_bound_by_what_it_keeps(
    node: NodeCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sums, "AGAIN_SECONDS", 0.0)
    tight(node.api, job_disk_bytes=50_000)
    kept = f"jobs/default/{node.job}/checkpoints"
    body = os.urandom(45_000)
    codes = [(await node.put(f"{kept}/{step:012d}-1/rank-0.pt", body)).status_code for step in range(1, 4)]
    assert codes == [204, 204, 413], "it keeps none: one may be on its way, and one not yet removed"
