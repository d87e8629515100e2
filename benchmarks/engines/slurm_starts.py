"""POST to first step in a pool that Slurm supplies, beside one sbatch for each job.

It uses the Slurm that this host has, whose nodes must share its files and reach it. Tests have one for other machines:

    python -m tests.support.servers.slurm_cluster python -m benchmarks slurm_starts

cold     the pool has no node: sbatch by the provider, the start of a worker, and the job
warm     a node of a block has just become free
sbatch   the same training as a script of its own: from just before sbatch to its first step
"""

import json
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.harness.comparing import Figure, Say, Scale, in_turns, times_better
from benchmarks.harness.connection import Connection
from benchmarks.harness.service import Service, environment, linear_spec, service
from benchmarks.harness.two_hosts import redis_at
from shardyard.service.secret_key_file import find_key_file

TITLE = "Jobs on nodes from Slurm: POST to first step"
COLD, WARM, SBATCH = "shardyard, cold block", "shardyard, warm block", "one sbatch a job"
POOL = "slurm"
PROGRAM = Path(__file__).parents[1] / "programs" / "ddp_linear.py"
IDLE_SECONDS = 5
DEADLINE_SECONDS = 240.0
END_SECONDS = 30.0
_POOLS = """
[pools.slurm]
engine = "slurm"
partition = "{partition}"
nodes = {{max = 1}}
devices = "cpu:1"
idle_seconds = {idle}
output = "{directory}/%j.out"
"""


def run(scale: Scale, say: Say) -> list[Figure]:
    partition, node = _ask_slurm()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shardyard-bench-")))
        running = stack.enter_context(_service_with_provider(directory, partition, _address_towards(node)))
        to = stack.enter_context(Connection(running.url, running.token))
        contest = Contest(running, to, directory, partition)
        sides = {COLD: contest.cold, WARM: contest.warm, SBATCH: contest.sbatch}
        samples = in_turns(sides, scale.rounds_of(5, 1), say=say, rest_seconds=0.3)
    warm = {WARM: samples[WARM], SBATCH: samples[SBATCH]}
    cold = {COLD: samples[COLD], SBATCH: samples[SBATCH]}
    return [
        Figure("POST to first step, in a warm block", "s", warm, [times_better(SBATCH, 5)]),
        Figure("POST to first step, cold", "s", cold),
    ]


@dataclass(frozen=True, slots=True)
class Contest:
    running: Service
    to: Connection
    directory: Path
    partition: str

    def cold(self) -> float:
        _until(lambda: not self._blocks(), "the pool has no block")
        return self._first_step()

    def warm(self) -> float:
        assert self._blocks(), "the block of the job before is gone"
        return self._first_step()

    def sbatch(self) -> float:
        file = self.directory / "first_step"
        file.unlink(missing_ok=True)
        script = f"#!/bin/bash\nsrun {shlex.join([sys.executable, str(PROGRAM), str(file), 'cpu'])}\n"
        command = ["sbatch", "--parsable", "--nodes=1", f"--partition={self.partition}", "--output=/dev/null"]
        began = time.time()
        subprocess.run(command, input=script.encode(), check=True, stdout=subprocess.DEVNULL, timeout=END_SECONDS)
        _until(lambda: file.exists() and bool(file.read_text()), "the job of sbatch has made a step")
        return float(file.read_text()) - began

    def _blocks(self) -> list[Any]:
        pools = self.to.get("/v1/pools")[1]["pools"]
        found: list[Any] = next(pool["engine"]["blocks"] for pool in pools if pool["name"] == POOL)
        return found

    def _first_step(self) -> float:
        began = time.time()
        job = self.to.post("/v1/jobs", json.dumps(linear_spec("single", 1) | {"pool": POOL}).encode())["id"]
        _until(lambda: self._status(job)["finished_at"] is not None, "the job has ended")
        status = self._status(job)
        if status["state"] != "succeeded":
            raise RuntimeError(f"{status['reason']}")
        return datetime.fromisoformat(status["first_step_at"]).timestamp() - began

    def _status(self, job: str) -> dict[str, Any]:
        status: dict[str, Any] = self.to.get(f"/v1/jobs/{job}")[1]
        return status


@contextmanager
def _service_with_provider(directory: Path, partition: str, address: str) -> Iterator[Service]:
    """`shardyard up` with Redis servers that Slurm's nodes reach, and a provider."""
    with ExitStack() as stack:
        urls = {
            f"SHARDYARD_{name}_URL": stack.enter_context(redis_at(address, role, directory, port))
            for name, role, port in (("REDIS", "control", 6379), ("TELEMETRY", "telemetry", 6380))
        }
        stack.enter_context(environment(urls))
        running = stack.enter_context(service("cpu:1"))
        pools = directory / "pools.toml"
        pools.write_text(_POOLS.format(partition=partition, idle=IDLE_SECONDS, directory=directory))
        settings = {
            "SHARDYARD_STATE_DIR": str(directory / "state"),
            "SHARDYARD_STORAGE": str(running.data_dir / "storage"),
            "SHARDYARD_SECRET_KEY_FILE": str(find_key_file(running.data_dir)),
        }
        command = [sys.executable, "-P", "-m", "shardyard", "provider", "--pools", str(pools)]
        with (directory / "provider.log").open("wb") as log:
            provider = subprocess.Popen(
                command, env=os.environ | settings, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            _until(lambda: POOL in [pool.name for pool in running.client.pools()], "the provider keeps its pool")
            yield running
            _until(lambda: _has_no_block(running), "the last block has ended")
        finally:
            provider.terminate()
            provider.wait(END_SECONDS)


def _has_no_block(running: Service) -> bool:
    return all(pool.engine is None or not pool.engine.blocks for pool in running.client.pools())


def _ask_slurm() -> tuple[str, str]:
    """The default partition, and the address of one of its nodes."""
    lines = subprocess.run(
        ["sinfo", "-h", "-N", "-o", "%P %o"], check=True, capture_output=True, text=True, timeout=END_SECONDS
    ).stdout
    found = dict(line.split() for line in lines.splitlines())
    partition = next((name for name in found if name.endswith("*")), next(iter(found)))
    return partition.rstrip("*"), found[partition]


def _address_towards(node: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:
        route.connect((node, 9))
        return str(route.getsockname()[0])


def _until(condition: Any, what: str) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {DEADLINE_SECONDS:g} s: {what}")
        time.sleep(0.02)
