"""Hosts that share nothing: jobs move between them, and survive what a cable, an API, a disk or a node takes away."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardyard.client import Job
from shardyard.contract.stream_events import LogLines
from tests.faults.hosts.test_join import END_SECONDS, digest_of, ended, project
from tests.faults.scene.joined_hosts import JoinedService, joined_hosts, wait_for
from tests.faults.scene.machine import need
from workers.supervisor.checkpoints.save_hold import FULL, ROOM

pytestmark = [pytest.mark.integration, pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(900)]

TRAINING: dict[str, Any] = {
    "resources": {"devices": 1},
    "program": {
        "kind": "recipe",
        "model": {"ref": "digits_cnn", "args": {"channels": 4}},
        "data": {"ref": "digits", "args": {"split": "train"}, "batch_size": 32, "shuffle": True},
        "loss": {"ref": "cross_entropy"},
        "optimizer": {"ref": "sgd", "args": {"lr": 0.05, "momentum": 0.9}},
        "epochs": 10,
        "seed": 7,
        "checkpoint": {"every_steps": 25},
    },
}
COUNTING = """
import pathlib, sys, time
from shardyard import job
found = job.resume_dir()
start = int((found / "state.txt").read_text()) if found else 0
print("begins with", start, flush=True)
for step in range(start + 1, 31):
    pathlib.Path("state.txt").write_text(str(step))
    job.checkpoint("state.txt")
    print("step", step, flush=True)
    time.sleep(0.2)
"""
GANG = """
import os, pathlib, socket, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
total = torch.tensor([float(rank + 1)])
dist.all_reduce(total)
print("rank", rank, "on", socket.gethostname(), "sum", total.item())
pathlib.Path(os.environ["SHARDYARD_OUTPUT_DIR"], f"of-{rank}.bin").write_bytes(bytes([rank + 1]) * 1_000_000)
dist.destroy_process_group()
"""
LARGE = """
import hashlib, os, pathlib
body = os.urandom(1 << 20) * 256
pathlib.Path(os.environ["SHARDYARD_OUTPUT_DIR"], "large.bin").write_bytes(body)
print(hashlib.sha256(body).hexdigest())
"""
SAVING = """
import os, pathlib, time
from shardyard import job
print("begins", flush=True)
while not pathlib.Path("go").exists():
    time.sleep(0.05)
pathlib.Path(os.environ["SHARDYARD_OUTPUT_DIR"], "large.bin").write_bytes(os.urandom(48 << 20))
pathlib.Path("state.txt").write_text("1")
while True:
    began = time.monotonic()
    job.checkpoint("state.txt")
    if time.monotonic() - began > 1:
        break
    time.sleep(0.05)
print("has waited", flush=True)
"""
SHORT = """
import time
print("trains", flush=True)
time.sleep(3)
print("is done")
"""
FILLING = """
import os
with open("filler.bin", "wb") as file:
    while True:
        file.write(os.urandom(1 << 20))
        file.flush()
        os.fsync(file.fileno())
"""
CHATTER = """
import time
number = 0
while True:
    print("line", number, flush=True)
    number += 1
    time.sleep(0.01)
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JoinedService]:
    need("network namespaces", "mounts")
    with joined_hosts(tmp_path_factory.mktemp("joined")) as service:
        service.join(2)
        yield service


@pytest.fixture
def joined(shared: JoinedService) -> JoinedService:
    """Two hosts with a worker each, which tests share."""
    for node in shared.client.nodes():
        assert node.alive, node
        shared.client.undrain(node.id)
    return shared


def device_state(joined: JoinedService, node: str) -> str:
    return next(found for found in joined.client.nodes() if found.id == node).devices[0].state


def steps(job: Job) -> list[str]:
    return [line.text for line in job.logs(stream="stdout")]


def test_a_recipe_resumes_on_the_other_host_from_the_checkpoint_that_was_carried(joined: JoinedService) -> None:
    with joined.only(1):
        whole = ended(joined.client.submit(TRAINING))
    with joined.only(2):
        job = joined.client.submit(TRAINING)
        wait_for(lambda: job.refresh().status.checkpoint, END_SECONDS, lambda: job.status)
        joined.client.undrain("box1")
        joined.client.drain("box2", deadline_seconds=0)
        assert ended(job).state == "succeeded", job.status
    assert [attempt.placement[0].node for attempt in job.attempts()] == ["box2", "box1"]
    assert job.attempts()[-1].resumed_from is not None
    assert whole.status.result == job.status.result


def test_a_script_goes_on_on_the_other_host_with_what_it_has_saved(joined: JoinedService, tmp_path: Path) -> None:
    with joined.only(2):
        job = joined.client.submit_script(project(tmp_path / "own", train=COUNTING))
        wait_for(lambda: "step 5" in steps(job), END_SECONDS, lambda: job.refresh().status)
        joined.client.undrain("box1")
        joined.client.drain("box2", deadline_seconds=0)
        assert ended(job).state == "succeeded", job.status
    begun = int(steps(job)[0].removeprefix("begins with "))
    assert begun >= 5
    assert steps(job)[1:] == [f"step {step}" for step in range(begun + 1, 31)]


def test_a_job_over_both_hosts_leaves_the_files_of_both(joined: JoinedService, tmp_path: Path) -> None:
    job = joined.client.submit_script(project(tmp_path / "own", train=GANG), nodes=2)
    assert ended(job).state == "succeeded", job.status
    assert sorted(steps(job)) == ["rank 0 on box1 sum 3.0", "rank 1 on box2 sum 3.0"] or sorted(steps(job)) == [
        "rank 0 on box2 sum 3.0",
        "rank 1 on box1 sum 3.0",
    ]
    for rank in range(2):
        (path,) = (found.path for found in job.artifacts() if found.path.endswith(f"of-{rank}.bin"))
        assert job.download(path, tmp_path / f"of-{rank}").read_bytes() == bytes([rank + 1]) * 1_000_000


def test_a_recipe_over_both_hosts_saves_checkpoints(joined: JoinedService) -> None:
    spec = TRAINING | {"resources": {"devices": 1, "nodes": 2}, "parallelism": {"strategy": "fsdp"}}
    job = joined.client.submit(spec)
    assert ended(job).state == "succeeded", job.status
    assert job.status.checkpoint is not None


def test_a_cable_that_is_pulled_in_mid_upload_costs_nothing_but_time(joined: JoinedService, tmp_path: Path) -> None:
    with joined.only(2):
        job = joined.client.submit_script(project(tmp_path / "own", train=LARGE))
        drafts = joined.storage / ".node-drafts" / "box2"
        wait_for(lambda: drafts.is_dir() and any(file.stat().st_size for file in drafts.iterdir()), END_SECONDS)
        with joined.hosts.without(2):
            assert job.refresh().state == "running"
            had = max((file.stat().st_size for file in drafts.iterdir()), default=0)
            assert 0 < had < 256 << 20, "it was cut in the middle"
        assert ended(job).state == "succeeded", job.status
    assert job.status.attempt == 1
    (path,) = (found.path for found in job.artifacts() if found.path.endswith("large.bin"))
    assert digest_of(job.download(path, tmp_path / "large.bin")) == steps(job)[0]


def test_an_end_is_told_when_the_api_is_back(joined: JoinedService, tmp_path: Path) -> None:
    with joined.only(2):
        job = joined.client.submit_script(project(tmp_path / "own", train=SHORT))
        wait_for(lambda: "trains" in steps(job), END_SECONDS)
        with joined.api_away(2):
            wait_for(lambda: device_state(joined, "box2") == "free", END_SECONDS, lambda: joined.client.nodes())
            assert job.refresh().state == "running", "its devices are free, and its end waits for its files"
        assert ended(job).state == "succeeded", job.status
    assert job.status.attempt == 1
    assert steps(job) == ["trains", "is done"]


def test_a_script_waits_with_its_next_checkpoint_while_too_much_is_to_be_carried(
    joined: JoinedService, tmp_path: Path
) -> None:
    with joined.only(2):
        job = joined.client.submit_script(project(tmp_path / "own", train=SAVING))
        wait_for(lambda: "begins" in steps(job), END_SECONDS)
        with joined.api_away(2):
            attempts = joined.machines[2].root / "tmp/home/.local/state/shardyard/box2/attempts"
            (work,) = attempts.glob(f"*{job.id}*/work")
            (work / "go").touch()
            events = job.follow(logs="all", stream="all")
            assert any(FULL in line.text for event in events if isinstance(event, LogLines) for line in event.lines)
        assert ended(job).state == "succeeded", job.status
    said = [line.text for line in job.logs(stream="stdout,service")]
    assert said.index(FULL) < said.index(ROOM) < said.index("has waited"), said


def test_a_node_whose_disk_is_filled_ends_that_job_alone_and_brings_its_log(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    need("network namespaces", "mounts")
    with joined_hosts(tmp_path_factory.mktemp("small"), tmp_size="512m") as joined:
        joined.join(2)
        with joined.only(2):
            job = joined.client.submit_script(project(tmp_path / "own", train=FILLING))
            assert ended(job).state == "failed", job.status
            assert job.status.reason.code == "resource_limit", job.status
            wait_for(lambda: next(node for node in joined.client.nodes() if node.id == "box2").low_disk is None, 60)
            after = joined.client.submit_script(project(tmp_path / "next", train="print('works')"))
            assert ended(after).state == "succeeded", after.status
        assert steps(after) == ["works"]


def test_a_node_that_dies_takes_the_lines_along_that_it_had_not_brought_and_the_log_says_so(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    need("network namespaces", "mounts")
    with joined_hosts(tmp_path_factory.mktemp("dying")) as joined:
        joined.join(2)
        with joined.only(2):
            job = joined.client.submit_script(project(tmp_path / "own", train=CHATTER))
            wait_for(lambda: "line 100" in steps(job), END_SECONDS)
            joined.machines[2].lose_power()
            wait_for(lambda: job.refresh().status.attempt == 2 or job.attempts()[0].ended_at, END_SECONDS)
            first = job.attempts()[0]
            assert first.reason is not None
            assert first.reason.code == "node_lost", first
            pages = list(joined.client.log_pages(job.id, attempt=1))
            assert pages[-1].cut_off, "the log says that it has no end"
            assert [line.text for page in pages for line in page.lines if line.stream == "stdout"][:101] == [
                f"line {number}" for number in range(101)
            ]
            job.cancel()
