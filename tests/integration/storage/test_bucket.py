"""An API whose files are in a bucket: it answers as one with a directory does, whatever the bucket does."""

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from jobs.files import paths
from jobs.files.paths import node_check
from jobs.model.settings import Settings
from jobs.storage.remote import RemoteError, RemoteUnavailable, digest_file
from jobs.store.client import connect
from shardyard.client import Client
from shardyard.service.joining import checks
from tests.integration.api.conftest import ADMIN
from tests.integration.api.streams import Reader
from tests.integration.api.system.test_process import until
from tests.integration.storage.bucket_service import URL, BucketService, CarriedAttempt, bucket_service
from tests.support.servers.redis_server import running_redis
from tests.support.servers.s3_server import MOTO, SEAWEEDFS
from workers.carrier.fetching import fetch_bundle

PARTS = ("", "/attempts", "/splits", "/logs", "/metrics", "/artifacts", "/artifacts/weights", "/artifacts/notes.txt")
pytestmark = pytest.mark.integration


@pytest.fixture(scope="module", params=[MOTO, pytest.param(SEAWEEDFS, marks=pytest.mark.slow)])
def module_service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BucketService]:
    with bucket_service(tmp_path_factory.mktemp("bucket"), request.param) as service:
        yield service


@pytest.fixture
def service(module_service: BucketService) -> Iterator[BucketService]:
    yield module_service
    module_service.proxy.heal()


@pytest.fixture
def running(service: BucketService) -> Iterator[CarriedAttempt]:
    attempt = service.attempt()
    yield attempt
    attempt.end()


def answers(client: httpx.Client, job: str) -> dict[str, bytes]:
    parts = (
        "",
        "/attempts",
        "/splits",
        "/logs",
        "/metrics",
        "/artifacts",
        "/artifacts/weights",
        "/artifacts/notes.txt",
    )
    found = {}
    for part in parts:
        answer = client.get(f"/v1/jobs/{job}{part}")
        assert answer.status_code == 200, f"{part}: {answer.text}"
        found[part] = answer.content
    return found


def a_bundle(text: str) -> bytes:
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w") as packed:
        packed.writestr(zipfile.ZipInfo("train.py"), text)  # of no time: another second is another bundle
    return body.getvalue()


def upload(service: BucketService, text: str) -> httpx.Response:
    return service.client.post("/v1/bundles", content=a_bundle(text), headers={"Content-Type": "application/zip"})


# -- running attempts ----------------------------------------------------------------------------------


def test_lines_of_a_running_job_are_there_at_once_and_ask_the_bucket_for_nothing(
    service: BucketService, running: CarriedAttempt
) -> None:
    running.print("one", "two")
    until(lambda: service.lines(running.job) == ["one", "two"])
    before = service.proxy.requests.copy()
    for number in range(20):
        running.print(f"line {number}")
        until(lambda: service.lines(running.job)[-1:] == [f"line {number}"])  # noqa: B023
    running.points(1.0, 2.0)
    metrics = f"/v1/jobs/{running.job}/metrics"
    until(lambda: [one["last"] for one in service.client.get(metrics).json()["series"]] == [2])
    after = service.proxy.requests - before
    assert after["LIST"] + after["GET"] <= 2  # the points, before there were any


def test_lines_that_redis_has_lost_come_from_the_bucket(service: BucketService, running: CarriedAttempt) -> None:
    for part in range(4):
        running.print(*(f"line {part * 100 + number}" for number in range(100)))
        running.carry(finished=True)
    service.forget_telemetry()
    service.forget_copies()
    assert service.lines(running.job) == [f"line {number}" for number in range(400)]
    running.print("and on")
    until(lambda: service.lines(running.job)[-1] == "and on")


def test_the_stream_of_a_job_goes_from_the_bucket_to_redis_without_a_gap(
    service: BucketService, running: CarriedAttempt
) -> None:
    running.print(*(f"line {number}" for number in range(300)))
    running.carry(finished=True)
    running.print("the newest")
    key = f"sy:log:default/{running.job}/1/0"
    client = connect(service.redis)
    until(lambda: client.xlen(key) >= 2)
    client.xtrim(key, maxlen=1, approximate=False)
    client.close()
    service.forget_copies()
    wanted = [*(f"line {number}" for number in range(300)), "the newest"]
    with Reader(service.api.port(), f"/v1/jobs/{running.job}/events?logs=all") as reader:
        reader.until(lambda one: len(one.lines()) == len(wanted))
        assert reader.lines() == wanted


# -- attempts that have ended --------------------------------------------------------------------------


def test_what_a_job_has_left_is_read_by_any_api_and_costs_the_bucket_nothing_again(service: BucketService) -> None:
    job = service.finished(*(f"line {number}" for number in range(50))).job
    first = answers(service.client, job)
    assert len(service.lines(job)) == 50
    assert first["/artifacts/weights"] == b"weights" * 1000
    assert b"files/notes.txt" in first["/artifacts"]
    service.forget_telemetry()
    with service.another("elsewhere") as (_, client):
        assert answers(client, job) == first
    asked = len(service.proxy.asked)
    for part in ("/logs", "/metrics", "/splits"):
        assert service.client.get(f"/v1/jobs/{job}{part}").content == first[part]
    # What the API sweeps meanwhile is of no job.
    assert [request for request in service.proxy.asked[asked:] if job in request] == []


def test_files_with_odd_names_are_listed_and_downloaded(service: BucketService, running: CarriedAttempt) -> None:
    names = ["back\\slash", "..\\up", "two\nlines", "tab\t"]
    for name in names:
        running.write(f"files/{name}", name.encode())
    running.carry(finished=True)
    listed = service.client.get(f"/v1/jobs/{running.job}/artifacts").raise_for_status().json()["artifacts"]
    assert {one["path"] for one in listed} >= {f"files/{name}" for name in names}
    for name in names:
        answer = service.client.get(f"/v1/jobs/{running.job}/artifacts/{quote(f'files/{name}')}")
        assert (answer.status_code, answer.content) == (200, name.encode())


def test_a_download_may_be_a_range_and_only_that_is_fetched(service: BucketService) -> None:
    attempt = service.attempt()
    body = bytes(range(256)) * 40_000
    attempt.write("artifacts/big.bin", body)
    attempt.carry(finished=True)
    url = f"/v1/jobs/{attempt.job}/artifacts/big.bin"
    whole = service.client.get(url)
    assert hashlib.sha256(whole.content).digest() == hashlib.sha256(body).digest()
    part = service.client.get(url, headers={"Range": "bytes=9000000-9000009"})
    assert (part.status_code, part.content) == (206, body[9_000_000:9_000_010])
    assert part.headers["content-range"] == f"bytes 9000000-9000009/{len(body)}"
    assert service.client.get(url, headers={"If-None-Match": whole.headers["etag"]}).status_code == 304
    assert service.client.get(url, headers={"Range": "bytes=99999999-"}).status_code == 416
    for wrong in ("nothing", "../report.json", "%2e%2e/report.json", "logs/device-0.log", "files.json", ".segments/0"):
        assert service.client.get(f"/v1/jobs/{attempt.job}/artifacts/{wrong}").status_code == 404, wrong
    attempt.end()


@pytest.mark.slow
def test_large_artifacts_are_fetched_from_the_bucket_itself_where_that_is_set(service: BucketService) -> None:
    job = service.finished("line").job
    with service.another("redirecting", REDIRECT_BYTES="1000") as (process, client):
        answer = client.get(f"/v1/jobs/{job}/artifacts/weights")
        assert answer.status_code == 307
        assert answer.headers["cache-control"] == "no-store"
        assert httpx.get(answer.headers["location"]).content == b"weights" * 1000
        assert client.get(f"/v1/jobs/{job}/artifacts/notes.txt").content == b"notes"
        with Client(f"http://127.0.0.1:{process.port()}", ADMIN) as ours:
            assert b"".join(ours.job(job).read("weights")) == b"weights" * 1000


def test_checkpoints_are_listed_by_their_steps(service: BucketService, running: CarriedAttempt, tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(b"weights")
    digest = hashlib.sha256(b"weights").hexdigest()
    for step, attempt in ((10, 1), (20, 1), (20, 2)):
        directory = paths.checkpoint_dir(Path(), "default", running.job, step, attempt)
        service.remote.put(f"{directory}/model.safetensors", tmp_path / "model", digest)
    listed = service.client.get(f"/v1/jobs/{running.job}/artifacts").json()["artifacts"]
    assert [(one["path"], one["kind"]) for one in listed] == [
        ("checkpoints/step-10/model.safetensors", "checkpoint"),
        ("checkpoints/step-20/model.safetensors", "checkpoint"),
    ]
    url = f"/v1/jobs/{running.job}/artifacts/checkpoints/step-20/model.safetensors"
    assert service.client.get(url).content == b"weights"


def test_a_job_is_deleted_with_all_it_has_in_the_bucket(service: BucketService) -> None:
    job = service.finished("line").job
    assert service.remote.names(f"jobs/default/{job}")
    assert service.client.delete(f"/v1/jobs/{job}").status_code == 204
    assert service.remote.names(f"jobs/default/{job}") == []


@pytest.mark.slow
def test_old_jobs_are_archived_in_the_bucket_and_read_from_there(service: BucketService) -> None:
    job = service.finished("line").job
    first = answers(service.client, job)
    with service.another("archiving", RETENTION_DAYS="0.000001"):
        until(lambda: service.client.get(f"/v1/jobs/{job}").json().get("archived"))
        until(lambda: service.remote.names(f"archive/default/{job[:6]}"))
    for part in first.keys() - {""}:
        assert service.client.get(f"/v1/jobs/{job}{part}").content == first[part]
    page = service.client.get("/v1/jobs", params={"archived": "true"}).json()
    assert job in [one["id"] for one in page["jobs"]]
    assert service.client.delete(f"/v1/jobs/{job}").status_code == 204
    assert service.client.get(f"/v1/jobs/{job}").status_code == 404
    assert f"archive/default/{job[:6]}/{job}.json" not in service.remote.names("archive")


def test_bundles_are_where_nodes_fetch_them_until_they_are_deleted(service: BucketService, tmp_path: Path) -> None:
    bundle = upload(service, "print(1)").raise_for_status().json()["id"]
    assert upload(service, "print(1)").status_code == 200  # there already
    fetch_bundle(service.remote, tmp_path, "default", bundle)
    assert paths.find_bundle(tmp_path, "default", bundle) is not None
    shutil.rmtree(next(service.directory.glob("api/state/.bucket/*/0/files/bundles")))
    assert [one["path"] for one in service.client.get(f"/v1/bundles/{bundle}").json()["files"]] == ["train.py"]
    assert service.client.delete(f"/v1/bundles/{bundle}").status_code == 204
    assert service.remote.names("bundles/default") == []


def create_token(client: httpx.Client) -> str:
    made = client.post("/v1/tokens", json={"name": "n", "scopes": ["read"]})
    return str(made.raise_for_status().json()["id"])


def created_tokens(client: httpx.Client) -> list[str]:
    """Ids of tokens that the audit knows, newest first."""
    found = client.get("/v1/audit", params={"action": "token_created", "limit": "100"})
    return [entry["details"]["created"] for entry in found.raise_for_status().json()["entries"]]


@pytest.mark.slow
def test_the_audit_of_all_processes_is_in_the_bucket_and_outlives_their_hosts(service: BucketService) -> None:
    with service.another("gone") as (process, client):
        of_another = create_token(client)
        assert created_tokens(client)[0] == of_another
        last = create_token(client)
        assert process.end() == 0
    shutil.rmtree(service.directory / "gone")
    of_this = create_token(service.client)
    assert created_tokens(service.client)[:3] == [of_this, last, of_another]


# -- faults --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("refusal", [(503, "SlowDown"), (403, "AccessDenied")])
def test_a_bucket_that_refuses_is_said_and_what_is_here_is_read_on(
    service: BucketService, refusal: tuple[int, str]
) -> None:
    cold, warm = service.finished("cold").job, service.finished("warm").job
    first = answers(service.client, warm)
    service.forget_telemetry()
    service.proxy.refusal = refusal
    for part in ("/logs", "/metrics", "/artifacts", "/artifacts/weights"):
        answer = service.client.get(f"/v1/jobs/{cold}{part}")
        assert (answer.status_code, answer.json()["code"]) == (503, "storage_unavailable"), part
        assert int(answer.headers["retry-after"]) > 0
    for part in ("", "/logs", "/metrics", "/splits"):
        assert service.client.get(f"/v1/jobs/{warm}{part}").content == first[part]
    assert upload(service, f"refused by {refusal}").status_code == 503
    assert service.client.get("/v1/bundles/sha256:" + "0" * 64).status_code == 404
    service.proxy.heal()
    assert service.lines(cold) == ["cold"]
    assert upload(service, f"refused by {refusal}").status_code == 201


def test_a_slow_bucket_holds_up_nobody_who_needs_nothing_from_it(
    service: BucketService, running: CarriedAttempt
) -> None:
    cold = service.finished("cold").job
    service.forget_telemetry()
    running.print("live")
    until(lambda: service.lines(running.job) == ["live"])
    service.proxy.delay = 2.0
    with httpx.Client(base_url=service.client.base_url, headers=service.client.headers, timeout=120) as client:
        began = time.monotonic()
        url = f"/v1/jobs/{cold}/logs"
        found: list[httpx.Response] = []
        waiting = [threading.Thread(target=lambda: found.append(client.get(url))) for _ in range(12)]
        for thread in waiting:
            thread.start()
        quickest = []
        for number in range(5):
            running.print(f"line {number}")
            asked = time.monotonic()
            assert service.lines(running.job)[0] == "live"
            quickest.append(time.monotonic() - asked)
        assert min(quickest) < service.proxy.delay
        for thread in waiting:
            thread.join(60)
        assert [one.status_code for one in found] == [200] * 12
        assert {one.json()["lines"][0]["text"] for one in found} == {"cold"}
        assert time.monotonic() - began < 60


def test_a_list_that_is_behind_hides_no_line(service: BucketService, running: CarriedAttempt) -> None:
    for part in range(3):
        running.print(f"part {part}")
        running.carry(finished=True)
    service.remote.remove(f"jobs/default/{running.job}/1/logs")  # as it is before it is put whole
    file = paths.log_file(running.directory, 0)
    body, name = file.read_bytes(), str(file.relative_to((service.directory / "node").resolve()))
    third = len(body) // 3
    for begins in range(0, len(body), third):
        service.remote.append(name, begins, body[begins : begins + third])
    service.forget_telemetry()
    service.forget_copies()
    service.proxy.hidden = re.compile(rb"logs/device-0.*/\.segments/0*[1-9]")
    assert service.lines(running.job) == ["part 0", "part 1", "part 2"]


@pytest.mark.slow
def test_a_bucket_that_is_full_refuses_what_is_new_and_nothing_else(service: BucketService) -> None:
    job = service.finished("line").job
    service.proxy.refusal, service.proxy.refused = (507, "XMinioStorageFull"), frozenset({"PUT", "POST"})
    answer = upload(service, "too much")
    assert (answer.status_code, answer.json()["code"]) == (507, "storage_low")
    assert service.lines(job) == ["line"]
    made = create_token(service.client)  # its entry of the audit waits on the API's disk
    service.proxy.heal()
    assert created_tokens(service.client)[0] == made


@pytest.mark.parametrize(
    ("status", "code", "is_for_good"),
    [
        *((400, "InvalidArgument", True), (413, "EntityTooLarge", True), (404, "NoSuchBucket", True)),
        *((400, "RequestTimeout", False), (503, "SlowDown", False)),
    ],
)
def test_what_a_bucket_refuses_for_good_is_told_from_what_it_cannot_do_now(
    service: BucketService, tmp_path: Path, status: int, code: str, is_for_good: bool
) -> None:
    (tmp_path / "file").write_bytes(b"x")
    service.proxy.refusal, service.proxy.refused = (status, code), frozenset({"PUT"})
    with pytest.raises(RemoteError) as refused:
        service.remote.put("refused", tmp_path / "file", digest_file(tmp_path / "file"))
    assert isinstance(refused.value, RemoteUnavailable) is not is_for_good
    assert str(refused.value).startswith("refused: ")
    assert "\n" not in str(refused.value)


def node_token(service: BucketService, node: str) -> str:
    body = {"name": node, "scopes": ["node"], "node": node}
    token: str = service.client.post("/v1/tokens", json=body).raise_for_status().json()["token"]
    return token


def test_a_node_that_would_bring_its_files_to_the_api_is_told_of_the_bucket(service: BucketService) -> None:
    headers = {"Authorization": f"Bearer {node_token(service, 'host-a')}"}
    answer = service.client.get("/v1/node/files/.shardyard-storage", headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (403, "files_in_bucket")
    assert f"SHARDYARD_STORAGE={URL}" in answer.json()["detail"]


def test_a_worker_that_names_the_service_as_its_storage_ends_and_says_what_to_do(
    service: BucketService, tmp_path: Path
) -> None:
    token = node_token(service, "host-b")
    named = {
        "STORAGE": "service",
        "URL": str(service.client.base_url),
        "NODE_TOKEN": token,
        "REDIS_URL": service.redis,
        "NODE": "host-b",
        "STATE_DIR": str(tmp_path),
        "DEVICES": "cpu:1",
        "JOBS_UNBOXED": "1",
    }
    environment = dict(os.environ) | {f"SHARDYARD_{name}": value for name, value in named.items()}
    worker = subprocess.run([sys.executable, "-m", "workers"], env=environment, capture_output=True, timeout=120)
    said = (worker.stdout + worker.stderr).decode()
    (refused,) = (json.loads(line) for line in said.splitlines() if '"node_refused"' in line)
    assert worker.returncode == 2, said
    assert f"set SHARDYARD_STORAGE={URL} on the node" in refused["why"]


def test_join_checks_the_bucket_and_says_when_a_node_needs_one(service: BucketService, tmp_path: Path) -> None:
    token = node_token(service, "host-c")
    named: Any = {"url": str(service.client.base_url), "node_token": token, "node": "host-c", "state_dir": tmp_path}
    refused = checks.check_storage(Settings(storage=Path("service"), **named))
    assert refused.result is checks.CheckResult.FAILED
    assert f"SHARDYARD_STORAGE={URL}" in refused.found
    assert "run the newest `shardyard join` command again" in refused.advice
    passed = checks.check_storage(Settings(storage=Path(URL), **named))
    assert passed.result is checks.CheckResult.PASSED, passed
    assert service.remote.names(str(Path(node_check("host-c")).parent)) == []


@pytest.mark.slow
def test_an_api_that_starts_while_the_bucket_is_away_serves_what_needs_none(service: BucketService) -> None:
    job = service.finished("line").job
    first = answers(service.client, job)
    with service.another("restarted") as (_, client):
        assert answers(client, job) == first
    service.proxy.refusal = (503, "SlowDown")
    with service.another("restarted") as (_, client):
        until(lambda: client.get(f"/v1/jobs/{job}").status_code == 200)
        for part in ("/attempts", "/logs", "/metrics", "/splits"):
            assert client.get(f"/v1/jobs/{job}{part}").content == first[part]
        create_token(client)
        assert client.get("/v1/audit").json()["code"] == "storage_unavailable"


def run_command(*command: str) -> None:
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.slow
def test_a_back_up_of_the_service_is_restored_into_another_bucket(service: BucketService, tmp_path: Path) -> None:
    job = service.finished(*(f"line {number}" for number in range(50))).job
    first = answers(service.client, job)
    bundle = upload(service, "backed up").raise_for_status().json()["id"]
    create_token(service.client)
    service.client.get("/v1/audit").raise_for_status()  # it is in the bucket now
    command = [sys.executable, "-m", "shardyard"]
    made = tmp_path / "made"
    backup = [*command, "backup", str(made), "--redis-url", service.redis, "--storage", URL]
    run_command(*backup)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made"]
    with running_redis(tmp_path) as redis:
        restore = [*command, "restore", str(made), "--redis-url", redis, "--storage", f"{URL}-restored"]
        run_command(*restore)
        again = subprocess.run(restore, check=False, capture_output=True, timeout=120)
        assert again.returncode != 0
        restored = replace(service, redis=redis)
        with restored.another("restored", STORAGE=f"{URL}-restored") as (_, client):
            found = answers(client, job)
            for part in found.keys() - {"", "/attempts", "/artifacts"}:
                assert found[part] == first[part], part
            assert client.get(f"/v1/bundles/{bundle}").status_code == 200
            assert len(created_tokens(client)) >= 1
