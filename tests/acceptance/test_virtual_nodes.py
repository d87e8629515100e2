"""`shardyard up --nodes`: one machine as several nodes."""

import json
import os
import signal
import subprocess
import sys
from functools import partial
from typing import Any

import pytest

from jobs.model.settings import Settings
from shardyard.client import Client
from shardyard.client.connection import local_service
from tests.acceptance.harness import SERVICES, Up, wait_for_state, wait_until
from tests.acceptance.test_up import digits, is_past, says, steps

pytestmark = pytest.mark.acceptance

HOST = Settings().node
TWO = ("--nodes", "2", "--devices", "cpu:2")
WORKERS = {"worker-1", "worker-2"}


def ddp() -> dict[str, Any]:
    return digits(epochs=100_000) | {"resources": {"devices": 2}, "parallelism": {"strategy": "ddp"}}


def place_of(client: Client, job: str) -> str:
    (place,) = client.job(job).status.placement
    return place.node


def account_of(up: Up, job: str) -> str:
    """The account of the job's box."""
    (box,) = (up.data_dir / "node").glob(f"*/attempts/*.{job}.*/box")
    return box.read_text().split()[-1]


@pytest.mark.slow
def test_two_nodes_share_a_machine_and_each_runs_a_job_under_an_account_of_its_own(up: Up) -> None:
    client = up.start(*TWO)
    nodes = client.nodes()
    assert [(node.id, node.address, node.virtual) for node in nodes] == [
        (f"{HOST}-1", "127.0.0.1", True),
        (f"{HOST}-2", "127.0.0.2", True),
    ]
    assert {node.cores for node in nodes} == {max(1, len(os.sched_getaffinity(0)) // 2)}
    assert set(up.pids()) == {*SERVICES[:3], *WORKERS}
    for node in nodes:
        assert says(up, f"cpu:0-1 (2 virtual devices) on {node.id} (virtual node, {node.address})")
        assert (up.data_dir / "node" / node.id / "worker.lock").exists()

    jobs = [client.submit(ddp()).id for _ in range(2)]
    for job in jobs:
        wait_until(partial(is_past, client, job, 0), 120, partial(client.job, job))
    assert {place_of(client, job) for job in jobs} == {node.id for node in nodes}
    if all(right.has for node in nodes for right in node.box.rights if right.name == "account"):
        assert len({account_of(up, job) for job in jobs}) == 2

    for victim in sorted(WORKERS):
        os.kill(up.pids()[victim], signal.SIGKILL)
        wait_until(partial(says, up, f"{victim} is running again"), 60, up.output.read_text)
    for job in jobs:
        wait_until(partial(is_past, client, job, steps(client, job)), 60, partial(client.job, job))
        assert client.job(job).status.attempt == 1
        client.job(job).cancel()
        wait_for_state(client, job, "cancelled")
    assert up.stop() == 0
    ended = [words.split()[0] for words in up.output.read_text().splitlines() if words.endswith(" ended")]
    assert set(ended[:2]) == WORKERS
    assert ended[2:] == ["api", "telemetry", "control"]
    assert up.pids() == {}


@pytest.mark.slow
def test_another_number_of_nodes_takes_the_service_over_and_ends_the_workers_of_the_one_before(up: Up) -> None:
    client = up.start()
    job = client.submit(digits(epochs=100_000)).id
    wait_for_state(client, job, "running")
    up.kill()
    client = up.start("--nodes", "2")
    assert says(up, "worker     ended: this start has a different number of nodes")
    assert set(up.pids()) == {*SERVICES[:3], *WORKERS}
    wait_until(lambda: client.job(job).status.attempt == 2, 60, lambda: client.job(job).status)
    wait_for_state(client, job, "running")
    assert place_of(client, job) in {f"{HOST}-1", f"{HOST}-2"}
    assert {node.id: node.alive for node in client.nodes()} == {HOST: False, f"{HOST}-1": True, f"{HOST}-2": True}
    ballasts = {path.parent.name for path in (up.data_dir / "node").glob("*/ballast")}
    assert HOST not in ballasts
    client.job(job).cancel()
    wait_for_state(client, job, "cancelled")


@pytest.mark.slow
def test_gpus_are_not_divided_among_virtual_nodes_and_the_number_of_nodes_has_a_limit(up: Up) -> None:
    for options, words in (
        (("--nodes", "2", "--devices", "cuda:0"), "cuda:0"),
        (("--nodes", "2", "--devices", "tpu:1"), "'tpu:1' names no devices"),
        (("--nodes", "17"), "less than or equal to 16"),
        (("--nodes", "0"), "greater than or equal to 1"),
    ):
        env = os.environ | {"COLUMNS": "200"}  # no line is broken in two
        run = subprocess.run(up.command(*options), capture_output=True, text=True, timeout=60, check=False, env=env)
        assert run.returncode != 0
        assert words in run.stderr
    assert up.pids() == {}
    assert not (up.data_dir / "control").exists(), "nothing was started"


@pytest.mark.slow
def test_the_connections_of_all_nodes_are_measured_by_one_command(up: Up) -> None:
    client = up.start(*TWO)
    service = local_service(up.data_dir)
    assert service is not None
    env = os.environ | {"SHARDYARD_URL": service.url, "SHARDYARD_TOKEN": service.token_file.read_text().strip()}

    def run_command(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "shardyard", "nodes", "--test", *options]
        return subprocess.run(command, capture_output=True, text=True, timeout=180, check=False, env=env)

    found = run_command("--json")
    assert found.returncode == 0, found.stdout + found.stderr
    (pair,) = json.loads(found.stdout)["pairs"]
    assert set(pair["nodes"]) == {f"{HOST}-1", f"{HOST}-2"}
    assert (pair["backend"], pair["error"]) == ("gloo", "")
    assert 0 < pair["latency_ms"] < 1000
    assert pair["bytes_per_second"] > 1_000_000
    (job,) = client.jobs()
    assert job.state == "succeeded"

    lacking = run_command("--pool", "elsewhere")
    assert lacking.returncode != 0
    assert "pool elsewhere has 0 nodes that take work" in lacking.stderr
