"""A back-up of `shardyard up`, while it runs and after it was stopped, and the service that is made from it."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.support import fs
from shardyard.client import Client, endpoints
from tests.acceptance.harness import Up, wait_for_state, wait_until
from tests.acceptance.test_up import digits
from tests.support.samples.backed_up_trees import describe_tree

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
def elsewhere(up: Up, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Not in the data directory of `up`."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    yield elsewhere
    up.close()
    for directory in (elsewhere, up.data_dir / "storage"):  # too deep for pytest, which removes by recursion
        fs.remove_tree(directory)


def test_a_service_is_made_anew_from_a_back_up_of_one_that_ran(up: Up, elsewhere: Path) -> None:
    client = up.start()
    ended = client.submit(digits(epochs=1) | {"observe": "every"}).id
    assert wait_for_state(client, ended, "succeeded", "failed").state == "succeeded"
    before = outcome(client, ended)
    running = client.submit(digits(epochs=100_000)).id
    waiting = client.submit(digits(epochs=1)).id
    wait_for_state(client, running, "running")
    token = (up.data_dir / "admin.token").read_text()
    client.put_secret("hf", "hf_Zq7wvT4mB2nXk8")
    key_file = up.data_dir / "secret.key"

    copy, stopped, anew = (elsewhere / name for name in ("copy", "stopped", "anew"))
    made = shardyard("backup", str(copy), "--data-dir", str(up.data_dir))
    assert made.returncode == 0, made.stderr
    assert "3 jobs (2 of them not ended)" in made.stdout
    assert f"1 secret of users in it, encrypted. The key is not in it: keep a copy of {key_file} " in made.stdout
    assert key_file.read_bytes().strip() not in b"".join(
        path.read_bytes() for path in copy.rglob("*") if path.is_file()
    )
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
    assert (
        f"! 1 of 1 secret cannot be read with {anew / 'secret.key'}, which is not there: put the file"
        in restored.stderr
    )
    with_key = elsewhere / "with-key"
    with_key.mkdir()
    shutil.copy(key_file, with_key)
    restored = shardyard("restore", str(copy), "--data-dir", str(with_key))
    assert (restored.returncode, restored.stderr) == (0, "")

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


@pytest.mark.slow
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


#: Leaves what used to end back-ups, and two files that must come back.
HOSTILE = r"""
import os, socket
from shardyard import job
os.chdir(job.output_dir())
with open("model.pt", "wb") as file:
    file.write(b"weights")
os.link("model.pt", "again.pt")
with open("sparse", "wb") as file:
    file.truncate(10 << 30)
os.mkfifo("pipe")
os.symlink("/etc/passwd", "link")
socket.socket(socket.AF_UNIX).bind("socket")
open(b"\xff\xfe two\nlines \x1b[2J", "wb").close()
for _ in range(1000):
    os.mkdir("d")
    os.chdir("d")
open("deep", "w").close()
"""


@pytest.mark.slow
def test_nothing_that_a_program_leaves_stops_a_back_up_its_restore_or_its_removal(
    up: Up, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (elsewhere / "hostile").mkdir()
    (elsewhere / "hostile" / "train.py").write_text(HOSTILE)
    monkeypatch.chdir(elsewhere / "hostile")
    client = up.start()
    job = client.submit_script("train.py").id
    assert wait_for_state(client, job, "succeeded", "failed").state == "succeeded", [*client.job(job).logs()]
    attempt = Path("storage", "jobs", "default", job, "1")

    copy, anew = elsewhere / "copy", elsewhere / "anew"
    made = shardyard("backup", str(copy), "--data-dir", str(up.data_dir))
    assert made.returncode == 0, made.stderr
    assert sorted(line.split(": ")[1:] for line in made.stderr.splitlines()) == [
        [f"{Path(*attempt.parts[1:])}/artifacts/{name}", why]
        for name, why in (
            ("link", "a symbolic link; links are not followed"),
            ("pipe", "a pipe, which has no contents"),
            ("socket", "a socket, which has no contents"),
        )
    ]
    up.stop()
    restored = shardyard("restore", str(copy), "--data-dir", str(anew))
    assert restored.returncode == 0, restored.stderr
    assert describe_tree(anew / "storage" / "jobs") == describe_tree(up.data_dir / "storage" / "jobs")
    used = subprocess.check_output(["du", "-s", "--block-size=1M", str(copy), str(anew)], text=True)
    assert all(int(line.split()[0]) < 100 for line in used.splitlines()), used
    second = Up(anew)
    try:
        client = second.start()
        assert "artifacts/again.pt" in [artifact.path for artifact in client.job(job).artifacts()]
        client.job(job).delete()
        wait_until(lambda: not (anew / attempt).exists(), 60)
    finally:
        second.close()
