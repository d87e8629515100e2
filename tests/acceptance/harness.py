"""`shardyard up` as a user runs it: a process with a data directory, started, stopped and killed from outside."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shardyard.client import Client
from shardyard.client.connection import local_service
from shardyard.contract.responses import JobStatus

#: Half of a reserve is a file on the disk, and pytest keeps the directories of many services.
SMALL_RESERVE = {"SHARDYARD_RESERVE_BYTES": str(64 << 20)}
READY_SECONDS = 180
SERVICES = ("control", "telemetry", "api", "worker")
#: The end of what `up` says once the service takes jobs.
LAST_WORDS = "Ctrl-C here stops the service"


class Up:
    """At most one running `up` on one data directory."""

    def __init__(self, data_dir: Path, *options: str) -> None:
        self.data_dir = data_dir
        self.options = ("--devices", "cpu:3", *options)
        self.process: subprocess.Popen[bytes] | None = None
        self.client: Client | None = None

    def command(self, *options: str) -> list[str]:
        program = [sys.executable, "-m", "shardyard", "up", "--port", "0", "--data-dir", str(self.data_dir)]
        return [*program, *self.options, *options]

    def start(self, *options: str) -> Client:
        """Start it, and wait until it takes jobs and has said all of that."""
        with self.output.open("ab") as output:
            said_before = output.tell()
            self.process = subprocess.Popen(
                self.command(*options), stdout=output, stderr=output, env=SMALL_RESERVE | os.environ
            )
        process = self.process

        def ready() -> bool:
            assert process.poll() is None, self.output.read_text()
            service = local_service(self.data_dir)
            if service is None or service.pid != process.pid:
                return False
            return LAST_WORDS.encode() in self.output.read_bytes()[said_before:]

        wait_until(ready, READY_SECONDS, lambda: self.output.read_text())
        service = local_service(self.data_dir)
        assert service is not None
        self.client = Client(service.url, service.token_file.read_text().strip())
        return self.client

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """End it as a user would; its exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(60)
        self._forget()
        return code

    def kill(self) -> None:
        """Kill `up` alone; what it started lives on."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(10)
        self._forget()

    def pids(self) -> dict[str, int]:
        """The processes that hold the services' locks now."""
        locks = {name: self.data_dir / name / "lock" for name in SERVICES[:2]}
        locks |= {path.stem: path for path in self.data_dir.glob("*.lock") if path.stem != "up"}
        return {name: pid for name, path in locks.items() for pid in _leaders(path)}

    def close(self) -> None:
        """End everything that is left, however the test went."""
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)
            self._forget()
        for pid in _users_of(self.data_dir):  # supervisors too: they outlive every service on purpose
            os.kill(pid, signal.SIGKILL)

    @property
    def output(self) -> Path:
        return self.data_dir / "up.txt"

    def _forget(self) -> None:
        self.process = None
        if self.client is not None:
            self.client.close()
            self.client = None


def wait_until(condition: Callable[[], Any], seconds: float, explain: Callable[[], object] = lambda: "") -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, explain()
        time.sleep(0.05)


def wait_for_state(client: Client, job: str, *states: str, seconds: float = 60) -> JobStatus:
    """The job's status once it is in one of `states`."""
    found = client.job(job)
    wait_until(lambda: found.refresh().state in states, seconds, lambda: found.status)
    return found.status


def _leaders(lock: Path) -> list[int]:
    """Processes that lead a session and have `lock` open."""
    if not lock.exists():
        return []
    wanted = lock.stat()
    found = []
    for process in Path("/proc").iterdir():
        try:
            pid = int(process.name)
            if os.getsid(pid) == pid and any(os.path.samestat(fd.stat(), wanted) for fd in (process / "fd").iterdir()):
                found.append(pid)
        except (ValueError, OSError):
            continue
    return found


def _users_of(directory: Path) -> list[int]:
    """Processes that have a file under `directory` open."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            pid = int(process.name)
            if pid != os.getpid() and any(fd.readlink().is_relative_to(directory) for fd in (process / "fd").iterdir()):
                found.append(pid)
        except (ValueError, OSError):
            continue
    return found
