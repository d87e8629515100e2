"""Disks on which the service keeps a reserve for itself."""

import os
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from jobs import store
from jobs.files import paths
from jobs.model.state import JobState, StateReason
from jobs.protocol.names import DEFAULT_TENANT
from tests.faults.inject.disk import fill, small_disk
from tests.faults.scene.machine import need
from tests.faults.scene.recorder import Caller
from tests.faults.scene.site import Site, running_site
from tests.faults.test_tree import ENDED, Tree, spec
from tests.integration.workers.service import TENANT, eventually
from tests.support.samples.hostile_zips import Part, zipped

pytestmark = [pytest.mark.integration, pytest.mark.faults]

#: Of 64 MB the service keeps 3.2 MB.
SIZE = "64m"
#: What a status poll may take while a disk runs full, on a busy machine.
POLL_SECONDS = 5.0

#: Programs that fill the disk: by writing, and trying on for ever; by writing until it fails; in one call.
BOMBS = {
    "goes on": """
import time

with open("bomb", "wb", buffering=0) as file:
    while True:
        try:
            file.write(b"x" * 2**20)
        except OSError:
            time.sleep(0.001)
""",
    "fails of it": """
with open("bomb", "wb", buffering=0) as file:
    while True:
        file.write(b"x" * 2**20)
""",
    "takes all at once": """
import os, time

file = os.open(os.environ["SHARDYARD_OUTPUT_DIR"] + "/bomb", os.O_WRONLY | os.O_CREAT)
size = 2**30
while size > 4096:
    try:
        os.posix_fallocate(file, os.lseek(file, 0, os.SEEK_END), size)
    except OSError:
        size //= 2
time.sleep(3600)
""",
}


#: A program that writes now and then, and fails if it cannot.
WRITER = """
import os, time

for number in range(100):
    with open("notes", "wb") as file:
        file.write(b"x" * 2**20)
    os.remove("notes")
    time.sleep(0.05)
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A site whose storage is a disk of 64 MB."""
    need("mounts")
    with small_disk(tmp_path / "storage", SIZE), running_site(tmp_path) as site:
        yield site
        site.is_sound()


def test_a_job_that_comes_while_the_disk_is_low_waits_for_room(site: Site) -> None:
    filler = fill(site.settings.storage)
    eventually(lambda: site.node().low, "the node takes no work")
    job = site.enqueue()
    site.dispatch_jobs()
    view = site.run(store.read_job(TENANT, job)).queue
    assert view is not None
    assert (view.live_nodes, view.low_nodes) == (0, 1)
    filler.unlink()
    assert site.finished(job).state is JobState.SUCCEEDED
    assert len(site.attempts(job)) == 1


@pytest.mark.slow
def test_attempts_on_a_full_disk_that_nobody_here_has_filled_wait_for_room_at_no_cost(site: Site) -> None:
    site.allow(losses={StateReason.STORAGE_LOW}, may_drop=True)
    job = site.running()
    filler = fill(site.settings.storage)
    eventually(lambda: site.job(job).reason is StateReason.STORAGE_LOW, "it goes back to the queue")
    (first,) = site.attempts(job)
    assert first.reason is StateReason.STORAGE_LOW
    filler.unlink()
    site.reaches(job, JobState.RUNNING, attempt=2)
    record = site.job(job)
    assert (record.retries, record.losses) == (0, 0)
    site.end_all()


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    """A service as `shardyard up` starts it, with everything that it has on a disk of 256 MB."""
    need("mounts")
    with small_disk(tmp_path / "data", "256m") as disk:
        tree = Tree(disk)
        try:
            yield tree
        finally:
            tree.close()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_service_whose_own_disk_is_full_answers_and_goes_on_when_there_is_room(tree: Tree) -> None:
    job = tree.submit("ddp", steps=400)
    eventually(lambda: tree.job(job)["checkpoint"], "a checkpoint", 60)
    pids = tree.up.pids()
    filler = fill(tree.storage.parent)
    eventually(lambda: tree.job(job)["reason"]["code"] == "storage_low", "it goes back to the queue", 60)
    for _ in range(20):
        assert tree.caller.call("GET", "/healthz").status_code == 200
        assert tree.job(job)["state"] == "queued"
        threading.Event().wait(0.5)
    assert tree.up.pids() == pids  # nothing has died of it
    filler.unlink()
    eventually(lambda: tree.job(job)["state"] == "succeeded", "the job's end", 200)
    found = tree.job(job)
    assert (found["retries"], found["losses"]) == (0, 0)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_on_a_full_disk_a_service_starts_again_and_deletes_what_takes_the_room(tree: Tree) -> None:
    done = tree.submit("dp", steps=20)
    eventually(lambda: tree.job(done)["state"] == "succeeded", "it ends", 60)
    fill(tree.storage.parent)
    for stop in (tree.up.stop, tree.up.kill):
        stop()
        tree.up.start()
    assert "no job starts until there is room" in tree.up.output.read_text()
    refused = tree.caller.call("POST", "/v1/jobs", json=spec("dp"))
    assert (refused.status_code, refused.json()["code"]) == (507, "storage_low")
    token = tree.caller.call("POST", "/v1/tokens", json={"name": "cleaner", "scopes": ["read", "submit"]})
    assert token.status_code == 201
    assert tree.caller.call("DELETE", f"/v1/tokens/{token.json()['id']}").status_code == 204
    before = os.statvfs(tree.storage).f_bavail
    assert tree.caller.call("DELETE", f"/v1/jobs/{done}").status_code == 204
    assert not paths.job_dir(tree.storage, DEFAULT_TENANT, done).exists()
    assert os.statvfs(tree.storage).f_bavail > before
    assert tree.caller.call("GET", f"/v1/jobs/{done}").status_code == 404


@pytest.fixture
def mallory(tree: Tree) -> Iterator[Caller]:
    """Another tenant."""
    answer = tree.caller.call(
        "POST", "/v1/tokens", json={"name": "mallory", "tenant": "mallory", "scopes": ["read", "submit"]}
    )
    assert answer.status_code == 201, answer.text
    caller = Caller(tree.caller.url, answer.json()["token"])
    yield caller
    caller.close()


def submit_script(caller: Caller, source: str) -> str:
    bundle = caller.call("POST", "/v1/bundles", content=zipped(Part("train.py", source.encode()))).json()["id"]
    script = {"kind": "script", "bundle": bundle, "entrypoint": "train.py"}
    return caller.submit({"program": script, "limits": {"max_retries": 0}})


def poll(caller: Caller, job: str) -> dict[str, Any]:
    """The status, which comes in time, and at once."""
    began = time.monotonic()
    answer = caller.call("GET", f"/v1/jobs/{job}")
    assert answer.status_code == 200, answer.text
    assert time.monotonic() - began < POLL_SECONDS
    found: dict[str, Any] = answer.json()
    return found


def is_over(caller: Caller, job: str) -> bool:
    return poll(caller, job)["state"] in ENDED


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_job_that_fills_the_disk_ends_for_it_once_and_its_neighbours_end_well(
    tree: Tree, mallory: Caller, bomb: str
) -> None:
    pids = tree.up.pids()
    training = tree.submit("ddp", steps=300)
    eventually(lambda: tree.job(training)["checkpoint"], "a checkpoint", 60)
    writer = submit_script(tree.caller, WRITER)
    eventually(lambda: tree.job(writer)["state"] == "running", "it writes", 60)
    room = os.statvfs(tree.storage).f_bavail
    filler = submit_script(mallory, BOMBS[bomb])
    eventually(lambda: poll(tree.caller, training) and is_over(mallory, filler), "its end", 60)
    found = poll(mallory, filler)
    assert (found["state"], found["reason"]["code"], found["attempt"]) == ("failed", "resource_limit", 1)
    assert found["error"]["limit"] == "disk"
    assert found["error"]["used"] > found["error"]["allowed"]
    eventually(lambda: os.statvfs(tree.storage).f_bavail > room * 0.9, "what it wrote is gone")
    for neighbour in (training, writer):
        eventually(partial(is_over, tree.caller, neighbour), "its end", 200)
        ended = poll(tree.caller, neighbour)
        assert (ended["state"], ended["retries"], ended["losses"]) == ("succeeded", 0, 0), ended["error"]
    assert tree.up.pids() == pids  # nothing of the service has died of it
    assert mallory.call("DELETE", f"/v1/jobs/{filler}").status_code == 204
    later = tree.submit("dp", steps=20)
    eventually(lambda: tree.job(later)["state"] == "succeeded", "everything goes on", 60)
