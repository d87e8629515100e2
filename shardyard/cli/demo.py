"""`shardyard demo`: one command that starts a service, trains two models and shows what each device got.

The service is the real one, `shardyard up` in a process of its own with a fresh data directory; the
demo is nothing but a client of it.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from rich.console import Console

from shardyard.cli.live.watch import watch_job
from shardyard.client import Client
from shardyard.client.connection import LocalService, local_service
from shardyard.service.processes import ServiceError
from shardyard.service.service_logs import tail_log

SPECS = ("digits-dp3", "digits-ddp2")
GOAL = 0.95
READY_SECONDS = 150.0
STOP_SECONDS = 90.0
POLL_SECONDS = 0.05
#: Of another service, whose certificate is not for this one.
TLS_VARIABLES = ("SHARDYARD_TLS_CERT", "SHARDYARD_TLS_KEY")


def run_demo(devices: str, console: Console) -> int:
    """Run the demo, printing as it goes. The exit code: 0, or 1 when a job failed or missed the goal.

    Raises:
        ServiceError: the service did not start or did not stop cleanly.
    """
    with tempfile.TemporaryDirectory(prefix="shardyard-demo-") as directory:
        data_dir = Path(directory)
        console.print(f"[bold]1[/]  starting a service of its own in {data_dir}", highlight=False)
        with running_service(data_dir, devices) as service:
            console.print(f"   ready at {service.url}", highlight=False)
            token = service.token_file.read_text().strip()
            with Client(service.url, token) as client:
                results = [_show_job(client, name, number, console) for number, name in enumerate(SPECS, start=2)]
            console.print(f"\n[bold]{len(SPECS) + 2}[/]  stopping the service", highlight=False)
    console.print()
    for name, accuracy in results:
        reached = accuracy is not None and accuracy >= GOAL
        verdict = "[green]ok[/]" if reached else f"[red]below the goal of {GOAL:.0%}[/]"
        console.print(f"  {name:<12} test accuracy {'-' if accuracy is None else f'{accuracy:.1%}'}  {verdict}")
    return 0 if all(accuracy is not None and accuracy >= GOAL for _, accuracy in results) else 1


@contextmanager
def running_service(data_dir: Path, devices: str = "auto", *options: str) -> Iterator[LocalService]:
    """`shardyard up` on a free port, ready to take jobs; stopped in order at the end.

    Raises:
        ServiceError: it did not get ready, or its end was not a clean one; the message has its last words.
    """
    output = data_dir / "up.log"
    command = [sys.executable, "-P", "-m", "shardyard", "up", "--port", "0", "--nodes", "1"]
    with output.open("wb") as log:
        # In its own session, so that Ctrl-C reaches it as one signal; a second one would mean a fast stop.
        process = subprocess.Popen(
            [*command, "--data-dir", str(data_dir), "--devices", devices, *options],
            env={name: value for name, value in os.environ.items() if name not in TLS_VARIABLES},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield _wait_until_ready(process, data_dir, output)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = -signal.SIGKILL
    if code != 0:
        raise ServiceError(f"`shardyard up` ended with exit code {code}:\n{tail_log(output)}")


def load_example(name: str) -> dict[str, Any]:
    """A job spec that comes with the package."""
    found = json.loads((files("shardyard") / "examples" / f"{name}.json").read_text())
    assert isinstance(found, dict)
    return found


def _show_job(client: Client, name: str, number: int, console: Console) -> tuple[str, float | None]:
    """Run one job and print its report; its name and test accuracy (None: there is none)."""
    wanted = load_example(name)
    how = f"{wanted['parallelism']['strategy']} on {wanted['resources']['devices']} devices"
    console.print(f"\n[bold]{number}[/]  {name}: {how}", highlight=False)
    job = client.submit(wanted)
    status = watch_job(client, job.id, console)
    if status.state != "succeeded" or status.result is None:
        return name, None
    console.print()
    console.print(job.report().text().rstrip(), markup=False, highlight=False, soft_wrap=True)
    return name, status.result["metrics"]["accuracy"]


def _wait_until_ready(process: "subprocess.Popen[bytes]", data_dir: Path, output: Path) -> LocalService:
    deadline = time.monotonic() + READY_SECONDS
    while True:
        service = local_service(data_dir)
        if service is not None and service.pid == process.pid:
            return service
        if process.poll() is not None or time.monotonic() > deadline:
            raise ServiceError(f"the service did not start:\n{tail_log(output)}")
        time.sleep(POLL_SECONDS)
