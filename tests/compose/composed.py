"""docker-compose.yml, brought up under a name and on a port of its own."""

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from shardyard.client import Client
from shardyard.contract.responses import JobStatus

ROOT = Path(__file__).parents[2]
DEVICES = 3

BUILD_SECONDS = 1800  # the first time brings torch
UP_SECONDS = 300
COMMAND_SECONDS = 120
JOB_SECONDS = 120
POLL_SECONDS = 0.2


def missing_engine() -> str:
    """Why nothing can be composed here; "" when it can."""
    if shutil.which("docker") is None:
        return "docker is not installed"
    if _run(["docker", "compose", "version"]).returncode:
        return "docker has no compose plugin (`docker compose`, version 2)"
    engine = _run(["docker", "info", "--format", "{{.ServerVersion}}"])
    return f"no docker engine answers: {engine.stderr.strip()}" if engine.returncode else ""


class Composed:
    """The service in containers. `up` builds, starts and waits until everything is healthy."""

    def __init__(self) -> None:
        self.port = _free_port()
        foreign = {name for name in os.environ if name.startswith(("SHARDYARD_", "COMPOSE_"))}
        self._environment = {name: value for name, value in os.environ.items() if name not in foreign} | {
            "COMPOSE_PROJECT_NAME": f"shardyard-test-{os.getpid()}",
            "SHARDYARD_PORT": str(self.port),
            "SHARDYARD_DEVICES": f"cpu:{DEVICES}",
        }

    def compose(self, *arguments: str, seconds: float = COMMAND_SECONDS, stdin: str = "") -> str:
        """Run `docker compose` and return what it prints."""
        return self.docker("compose", *arguments, seconds=seconds, stdin=stdin)

    def docker(self, *arguments: str, seconds: float = COMMAND_SECONDS, stdin: str = "") -> str:
        done = _run(["docker", *arguments], seconds, self._environment, stdin)
        assert done.returncode == 0, f"docker {' '.join(arguments)}: {done.stderr}{done.stdout}"
        return done.stdout.strip()

    def containers(self) -> dict[str, dict[str, Any]]:
        """What compose says of each running service (of one of its containers)."""
        rows = [json.loads(line) for line in self.compose("ps", "--format", "json").splitlines()]
        return {row["Service"]: row for row in rows}

    def build(self) -> None:
        self.compose("build", "--quiet", seconds=BUILD_SECONDS)

    def up(self, *arguments: str) -> None:
        self.compose("up", "--detach", "--wait", "--no-build", *arguments, seconds=UP_SECONDS)

    def down(self, *arguments: str) -> None:
        self.compose("down", *arguments)

    def scale(self, workers: int) -> None:
        self.up("--scale", f"worker={workers}", "--no-recreate")

    def logs(self) -> str:
        return self.compose("logs", "--no-color", "--tail", "200")

    def run_in(self, service: str, *command: str, stdin: str = "") -> str:
        """Run a command in a running container; what it prints."""
        return self.compose("exec", "--no-TTY", service, *command, stdin=stdin)

    def token(self) -> str:
        return self.run_in("api", "cat", "/run/shardyard/admin/token").strip()

    def client(self) -> Client:
        return Client(f"http://127.0.0.1:{self.port}", self.token())


def example(strategy: str, *, epochs: int | None = None) -> dict[str, Any]:
    """One of the examples: digits under `dp` on three devices, or under `ddp` on two."""
    name = {"dp": "digits-dp3", "ddp": "digits-ddp2"}[strategy]
    spec: dict[str, Any] = json.loads((ROOT / "examples" / "jobs" / f"{name}.json").read_text())
    if epochs is not None:
        spec["program"]["epochs"] = epochs
    return spec


def endless() -> dict[str, Any]:
    """A job that takes all devices of a node for longer than a test does, and is to be cancelled."""
    return example("dp", epochs=100_000)


def wait_until(condition: Callable[[], Any], seconds: float, explain: Callable[[], object] = lambda: "") -> Any:
    """What `condition` returns once it is true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, explain()
        time.sleep(POLL_SECONDS)
    return found


def wait_for_state(client: Client, job: str, *states: str) -> JobStatus:
    """The job's status once it is in one of `states`."""
    seen = client.job(job)
    wait_until(lambda: seen.refresh().state in states, JOB_SECONDS, lambda: seen.status)
    return seen.status


def wait_for_steps(client: Client, job: str, more: int = 1) -> JobStatus:
    """The job's status once it runs and has taken `more` steps than at the first look."""
    first = _step(wait_for_state(client, job, "running"))
    seen = client.job(job)
    wait_until(lambda: _step(seen.refresh().status) >= first + more, JOB_SECONDS, lambda: seen.status)
    return seen.status


def _step(status: JobStatus) -> int:
    return (status.progress and status.progress.step) or 0


def _run(
    command: list[str], seconds: float = 30, environment: Mapping[str, str] | None = None, stdin: str = ""
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, cwd=ROOT, env=environment, input=stdin, capture_output=True, text=True, timeout=seconds, check=False
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
