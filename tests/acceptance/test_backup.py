"""A back-up of `shardyard up`, while it runs and after it was stopped, and the service that is made from it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shardyard.client import Client, endpoints
from tests.acceptance.harness import Up, wait_for_state, wait_until
from tests.acceptance.test_up import digits

pytestmark = pytest.mark.acceptance


def shardyard(*arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SHARDYARD_")}
    command = [sys.executable, "-m", "shardyard", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def outcome(client: Client, job: str) -> tuple[Any, ...]:
    """All that an ended job has to show, but its progress, which is kept for a day only."""
    lines = [line.text for line in client.job(job).logs()]
    assert lines
    return client.json(endpoints.get_job(job)) | {"progress": None}, client.job(job).report(), lines


@pytest.fixture
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not in the data directory of `up`."""
    return tmp_path_factory.mktemp("elsewhere")


def test_a_service_is_made_anew_from_a_back_up_of_one_that_ran(up: Up, elsewhere: Path) -> None:
    client = up.start()
    ended = client.submit(digits(epochs=1) | {"observe": "every"}).id
    assert wait_for_state(client, ended, "succeeded", "failed").state == "succeeded"
    before = outcome(client, ended)
    running = client.submit(digits(epochs=100_000)).id
    waiting = client.submit(digits(epochs=1)).id
    wait_for_state(client, running, "running")
    token = (up.data_dir / "admin.token").read_text()

    copy, stopped, anew = (elsewhere / name for name in ("copy", "stopped", "anew"))
    made = shardyard("backup", str(copy), "--data-dir", str(up.data_dir))
    assert made.returncode == 0, made.stderr
    assert "3 jobs (2 of them not ended)" in made.stdout
    assert client.job(running).status.state == "running", "it did not notice"
    up.stop()
    assert up.pids() == {}
    again = shardyard("backup", str(stopped), "--data-dir", str(up.data_dir))
    assert again.returncode == 0, again.stderr
    assert up.pids() == {}, "the Redis that was started for it has ended"
    jobs = [json.loads((directory / "manifest.json").read_text())["jobs"] for directory in (copy, stopped)]
    assert jobs == [{"succeeded": 1, "running": 1, "queued": 1}, {"succeeded": 1, "queued": 2}]

    refused = shardyard("restore", str(copy), "--data-dir", str(up.data_dir))
    assert (refused.returncode, "not empty" in refused.stderr) == (2, True)
    restored = shardyard("restore", str(copy), "--data-dir", str(anew))
    assert restored.returncode == 0, restored.stderr
    assert sorted(os.listdir(anew)) == ["admin.token", "control", "storage", "up.lock"]

    second = Up(anew)
    try:
        client = second.start()
        assert (anew / "admin.token").read_text() == token
        assert outcome(client, ended) == before
        wait_for_state(client, running, "running")
        first, following = client.job(running).attempts()
        assert first.reason is not None
        assert (first.reason.code, following.attempt) == ("service_stopped", 2)
        assert client.job(running).status.retries == 0
        client.job(running).cancel()
        assert wait_for_state(client, waiting, "succeeded", "failed").state == "succeeded"
    finally:
        second.close()


def test_old_jobs_are_archived_by_the_running_service(up: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDYARD_RETENTION_DAYS", "0.00001")
    client = up.start()
    job = client.submit(digits(epochs=1)).id
    assert wait_for_state(client, job, "succeeded", "failed").state == "succeeded"
    wait_until(lambda: client.job(job).status.archived, 60)
    assert [one.id for one in client.jobs(archived=True)] == [job]
    assert [*client.jobs()] == []
    assert client.job(job).report().text()
    client.job(job).delete()
    assert [*client.jobs(archived=True)] == []
