"""This version goes on with what a release left on disk; `python -m tools.record_release` recorded it there."""

import json
import tarfile
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from shardyard.client import Job
from shardyard.client.connection import local_service
from tests.acceptance.harness import Up, wait_for_state, wait_until
from tools.record_release import OWN_STREAMS

pytestmark = pytest.mark.acceptance

RELEASES = sorted((Path(__file__).parent / "releases").glob("*.tar.gz"))
#: What a status has of its own time, or of its place in a list that has grown.
OF_NOW = {"progress", "message"}
#: Times of files. An archive keeps them as floating point numbers of seconds, so they come back a microsecond off.
OF_FILES = {"modified_at"}
FILE_TIME = timedelta(milliseconds=1)


def test_there_is_a_release_to_come_from() -> None:
    assert [path.name.removesuffix(".tar.gz") for path in RELEASES][:2] == ["0.1.0", "0.2.0"]


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """Where `new` lacks something of `old`, or has another value. More than `old` it may have."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            found
            for name in old
            if name not in OF_NOW and not (name in OF_FILES and are_close(old[name], new.get(name)))
            for found in differences(old[name], new.get(name), f"{path}.{name}")
        ]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [
            found
            for at, (one, other) in enumerate(zip(old, new, strict=True))
            for found in differences(one, other, f"{path}[{at}]")
        ]
    return [] if old == new else [f"{path}: {old!r} is {new!r}"]


def are_close(old: str, new: str | None) -> bool:
    return new is not None and abs(datetime.fromisoformat(old) - datetime.fromisoformat(new)) < FILE_TIME


def test_a_time_of_a_file_may_be_a_microsecond_off_and_no_other() -> None:
    first, next_one, later = (f"2026-11-26T13:12:46.{digits}Z" for digits in ("796546", "796547", "798546"))
    assert differences([{"modified_at": first}], [{"modified_at": next_one}]) == []
    assert differences([{"modified_at": first}], [{"modified_at": later}]) != []
    assert differences([{"modified_at": first}], [{}]) != []
    assert differences([{"ended_at": first}], [{"ended_at": next_one}]) != []


@pytest.mark.parametrize(
    "release",
    [*(pytest.param(older, marks=pytest.mark.slow) for older in RELEASES[:-1]), RELEASES[-1]],
    ids=lambda path: path.name.removesuffix(".tar.gz"),
)
def test_jobs_of_a_release_are_there_and_go_on(release: Path, up: Up) -> None:
    with tarfile.open(release) as archive:
        archive.extractall(up.data_dir.parent / "recorded", filter="tar")
    recorded = up.data_dir.parent / "recorded"
    up.data_dir.rmdir()
    (recorded / "data").rename(up.data_dir)
    old = json.loads((recorded / "answers.json").read_text())
    client = up.start()
    service = local_service(up.data_dir)
    assert service is not None
    with http_of(service.url, service.token_file.read_text().strip()) as http:
        wrong = {name: differences(said, answers(http, old["jobs"][name])) for name, said in old["said"].items()}
    assert wrong == {name: [] for name in old["said"]}

    with http_of(service.url, old["reader"]) as http:
        assert http.get("/v1/jobs").status_code == 200
        assert http.post("/v1/jobs", json={}).status_code == 403

    running, waiting = client.job(old["jobs"]["running"]), old["jobs"]["waiting"]
    wait_until(lambda: running.refresh().state != "queued", 60)
    wait_until(lambda: step_of(running) > 150, 60, lambda: running.status)
    assert (running.state, running.status.attempt) == ("running", 2)
    running.cancel()
    assert wait_for_state(client, waiting, "succeeded", "failed").state == "succeeded"


def step_of(job: Job) -> int:
    progress = job.refresh().status.progress
    return (progress and progress.step) or 0


def http_of(url: str, token: str) -> httpx.Client:
    return httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=30)


def answers(http: httpx.Client, job: str) -> dict[str, Any]:
    """As they were recorded."""
    lines = http.get(f"/v1/jobs/{job}/logs?limit=1000").json()["lines"]
    return {
        "status": http.get(f"/v1/jobs/{job}").json(),
        "report": http.get(f"/v1/jobs/{job}/splits").json(),
        "lines": [line["text"] for line in lines if line["stream"] in OWN_STREAMS],
        "artifacts": http.get(f"/v1/jobs/{job}/artifacts").json(),
    }
