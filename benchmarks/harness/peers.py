"""What we compare with, in a Python environment of its own: torchrun, accelerate, and Ray's job service.

The environment lies in `.venv-peers`, has the torch of this one, and is made at first use (a few hundred megabytes).
"""

import json
import os
import select
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
ENVIRONMENT = ROOT / ".venv-peers"
PYTHON = ENVIRONMENT / "bin" / "python"
PROGRAMS = Path(__file__).parents[1] / "programs"
REQUIREMENTS = ("ray[default]==2.60.0", "accelerate==1.14.0", "numpy")
INSTALL_SECONDS = 1200.0
READY_SECONDS = 90.0
DEADLINE_SECONDS = 120.0
#: Between two looks at a job of Ray, as its own users poll.
POLL_SECONDS = 0.02


def install() -> None:
    """Make the environment, unless it is there.

    Raises:
        subprocess.CalledProcessError: pip could not.
    """
    wanted = (f"torch=={version('torch').partition('+')[0]}", *REQUIREMENTS)
    stamp = ENVIRONMENT / "installed.txt"
    if not stamp.exists() or stamp.read_text().split() != list(wanted):
        print(f"installing {', '.join(wanted)} into {ENVIRONMENT.name}: a few minutes, once", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(ENVIRONMENT)], check=True, timeout=INSTALL_SECONDS)
        pip = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *wanted], check=True, timeout=INSTALL_SECONDS)
        stamp.write_text("\n".join(wanted))


def plain_environment(**more: str) -> dict[str, str]:
    """As a user's shell has it, with one thread a process, as torchrun sets it for several ranks."""
    return os.environ | {"OMP_NUM_THREADS": "1"} | more


def torchrun(ranks: int, *program: str, deadline_seconds: float = DEADLINE_SECONDS) -> None:
    """`torchrun --standalone` of a program, to its end.

    Raises:
        subprocess.CalledProcessError, subprocess.TimeoutExpired: it failed, or hung.
    """
    run_to_end([*torchrun_command(ranks), *program], deadline_seconds)


def torchrun_command(ranks: int) -> list[str]:
    return [str(PYTHON), "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]


def accelerate_launch(ranks: int, *program: str, deadline_seconds: float = DEADLINE_SECONDS) -> None:
    """`accelerate launch` of a program on several ranks, to its end; errors as of `torchrun`.

    `--multi_gpu` is its way to torch's launcher, also where the program takes the CPU: with `--cpu` it starts one
    process, which has no rank.
    """
    options = ["--multi_gpu", f"--num_processes={ranks}", "--num_machines=1", "--mixed_precision=no"]
    launch = [str(PYTHON), "-m", "accelerate.commands.accelerate_cli", "launch"]
    run_to_end([*launch, *options, "--dynamo_backend=no", "--main_process_port=0", *program], deadline_seconds)


def python(*program: str, deadline_seconds: float = DEADLINE_SECONDS) -> None:
    """Plain python of a program, to its end; errors as of `torchrun`."""
    run_to_end([str(PYTHON), *program], deadline_seconds)


def run_to_end(command: list[str], deadline_seconds: float) -> None:
    """A command, to its end; errors as of `torchrun`."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env=plain_environment(), start_new_session=True
        )
        try:
            _wait(process, deadline_seconds)
            code = process.wait()
        finally:
            _end_session(process)
        if code:
            output.seek(0)
            raise subprocess.CalledProcessError(code, command, output.read()[-2000:])


def _wait(process: "subprocess.Popen[bytes]", seconds: float) -> None:
    """Until the process has ended, to the moment: `Popen.wait` with a timeout looks every 50 ms.

    Raises:
        subprocess.TimeoutExpired: it has not.
    """
    pidfd = os.pidfd_open(process.pid)
    try:
        if not select.select([pidfd], [], [], seconds)[0]:
            raise subprocess.TimeoutExpired(process.args, seconds)
    finally:
        os.close(pidfd)


def _end_session(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
        process.kill()
        process.wait()


@dataclass(frozen=True, slots=True)
class Ray:
    """The job service of a Ray head on this machine."""

    url: str
    pids: tuple[int, ...]

    def submit(self, entrypoint: str) -> str:
        """Start a shell command as a job; its id."""
        return str(self._call("POST", "/api/jobs/", {"entrypoint": entrypoint})["submission_id"])

    def status(self, job: str) -> str:
        return str(self._call("GET", f"/api/jobs/{job}")["status"])

    def logs(self, job: str) -> str:
        return str(self._call("GET", f"/api/jobs/{job}/logs")["logs"])

    def jobs(self) -> list[dict[str, Any]]:
        return list(self._call("GET", "/api/jobs/"))

    def wait(self, job: str) -> None:
        """Return when the job has succeeded.

        Raises:
            RuntimeError: it ended otherwise, or not within the deadline.
        """
        deadline = time.monotonic() + DEADLINE_SECONDS
        while (status := self.status(job)) != "SUCCEEDED":
            if status in ("FAILED", "STOPPED") or time.monotonic() > deadline:
                raise RuntimeError(f"Ray's job {job} is {status}: {self.logs(job)[-2000:]}")
            time.sleep(POLL_SECONDS)

    def copy(self, job: str, count: int) -> None:
        """Have so many more jobs like one that has ended."""
        commands = [part for pid in self.pids for part in psutil.Process(pid).cmdline()]
        address = next(part.partition("=")[2] for part in commands if part.startswith("--gcs-address="))
        python(str(PROGRAMS / "ray_copies.py"), address, job, str(count))

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data=data, method=method, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=DEADLINE_SECONDS) as response:
            return json.load(response)


@contextmanager
def ray_head(port: int = 8265) -> Iterator[Ray]:
    """`ray start --head` with its defaults on this machine's cores, ready to take jobs, and ended afterwards.

    Its sockets live in a directory with a short name, since the kernel allows 107 characters.
    """
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as directory:
        # Its own reporting to the outside is off, and `block` keeps all of its processes below this one.
        environment = plain_environment(RAY_USAGE_STATS_ENABLED="0")
        command = [str(ENVIRONMENT / "bin" / "ray"), "start", "--head", "--block", f"--temp-dir={directory}"]
        ports = [f"--dashboard-port={port}", "--dashboard-host=127.0.0.1", "--include-dashboard=true"]
        process = subprocess.Popen(
            [*command, *ports],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        tree = psutil.Process(process.pid)
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_ready(url, process)
            pids = tuple(child.pid for child in tree.children(recursive=True))
            yield Ray(url, (process.pid, *pids))
        finally:
            # What it holds goes with its directory, and its own way to stop takes seconds.
            family = [tree, *tree.children(recursive=True)] if process.poll() is None else []
            for each in family:
                with suppress(psutil.NoSuchProcess):
                    each.kill()
            process.wait()
            psutil.wait_procs(family, timeout=DEADLINE_SECONDS)


def _wait_until_ready(url: str, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + READY_SECONDS
    while True:
        try:
            with urllib.request.urlopen(f"{url}/api/jobs/", timeout=5):
                return
        except OSError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("Ray's head did not start") from error
            time.sleep(0.1)
