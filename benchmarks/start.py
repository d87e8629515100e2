"""How long a user waits for the first optimizer step of a DDP job on two ranks: Shardyard against torchrun.

    .venv/bin/python benchmarks/start.py             five rounds, a table, and a file in benchmarks/results/
    .venv/bin/python benchmarks/start.py --rounds 9

A: from the client's clock just before the POST to `first_step_at` of the job's status, on a service whose worker is
warm. B: from just before `torchrun --standalone --nproc_per_node=2` is started to the end of its first optimizer
step. Rounds go A B A B, so that both see the same machine. README.md has the method and its caveats.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.programs.ddp_linear import BATCH_SIZE, CLASSES, FEATURES, ROWS, STEPS
from shardyard.client import Client
from shardyard.client.models import JobStatus
from shardyard.demo import running_service

HERE = Path(__file__).parent
RESULTS = HERE / "results"
ROUNDS = 5
DEADLINE_SECONDS = 120.0
#: Between two looks at a job: rare, since looking takes time from what is measured.
POLL_SECONDS = 0.25
#: Rest before each measurement, so that the end of one is not part of the next.
REST_SECONDS = 1.0

SPEC: dict[str, Any] = {
    "name": "benchmark-start",
    "resources": {"devices": 2},
    "parallelism": {"strategy": "ddp"},
    "program": {
        "kind": "recipe",
        "model": {"ref": "linear", "args": {"in_features": FEATURES, "out_features": CLASSES}},
        "data": {"ref": "random_vectors", "args": {"rows": ROWS, "features": FEATURES}, "batch_size": BATCH_SIZE},
        "loss": {"ref": "cross_entropy"},
        "optimizer": {"ref": "sgd", "args": {"lr": 0.01}},
        "max_steps": STEPS,
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description="POST to first DDP step, against torchrun.")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of A and B each; default {ROUNDS}")
    rounds = parser.parse_args().rounds
    if rounds < 1:
        parser.error("--rounds must be at least 1")
    console = Console()
    with (
        tempfile.TemporaryDirectory(prefix="shardyard-benchmark-") as directory,
        running_service(Path(directory), "cpu:2") as service,
        Client(service.url, service.token_file.read_text().strip()) as client,
    ):
        samples = measure(rounds, {"shardyard": lambda: of_shardyard(client), "torchrun": of_torchrun}, console)
    result = summary(samples)
    show(result, console)
    console.print(f"written to {write(result)}", highlight=False)


def measure(
    rounds: int, sides: dict[str, Callable[[], dict[str, float]]], console: Console
) -> dict[str, list[dict[str, float]]]:
    """Seconds of each side in each round. A round before the first one warms the caches and is thrown away."""
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, once in sides.items():
            time.sleep(REST_SECONDS)
            sample = once() | {"load_1m": os.getloadavg()[0]}
            remark = "" if number else "  (warm-up, not counted)"
            console.print(f"round {number}  {name:<10} {sample['first_step_s']:.3f} s{remark}", highlight=False)
            if number:
                samples[name].append(sample)
    return samples


def of_shardyard(client: Client) -> dict[str, float]:
    """One job. `by_rank_s` is the same moment as the rank saw it, read from the first point of its loss; the others
    say where the time went: the POST was answered, a supervisor had the attempt, the ranks were up, all was over.

    Raises:
        RuntimeError: the job did not succeed.
    """
    began = time.time()
    job = client.submit(SPEC).id
    answered = time.time()
    status = _wait_for_end(client, job)
    attempt = client.job(job).attempts()[-1]
    loss = client.job(job).metrics("loss", device=-1)[0].points
    return {
        "post_s": answered - began,
        "claimed_s": _moment(attempt.claimed_at) - began,
        "up_s": _moment(status.started_at) - began,
        "by_rank_s": _moment(loss[0].at) - began,
        "first_step_s": _moment(status.first_step_at) - began,
        "end_s": _moment(status.finished_at) - began,
    }


def _wait_for_end(client: Client, job: str) -> JobStatus:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        status = client.job(job).status
        if status.state == "succeeded":
            return status
        if status.finished_at is not None:
            raise RuntimeError(f"job {job} is {status.state}: {status.reason.message}")
    raise RuntimeError(f"job {job} did not end within {DEADLINE_SECONDS:g} s")


def of_torchrun() -> dict[str, float]:
    """One run of the same program.

    Raises:
        subprocess.CalledProcessError, subprocess.TimeoutExpired: it failed.
    """
    with tempfile.TemporaryDirectory() as directory:
        first_step = Path(directory) / "first_step"
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"),
            *(str(HERE / "programs" / "ddp_linear.py"), str(first_step)),
        ]
        began = time.time()
        subprocess.run(command, check=True, capture_output=True, timeout=DEADLINE_SECONDS)
        ended = time.time()
        return {"first_step_s": float(first_step.read_text()) - began, "end_s": ended - began}


def _moment(when: datetime | None) -> float:
    assert when is not None
    return when.timestamp()


def summary(samples: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Everything that the file keeps: the raw seconds, their medians and spread, the ratio, and the machine."""
    spreads = {name: _spread([run["first_step_s"] for run in runs]) for name, runs in samples.items()}
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "processor": _processor(),
            "cores": len(os.sched_getaffinity(0)),
            "python": platform.python_version(),
            "torch": version("torch"),
        },
        "spec": SPEC,
        "seconds_to_first_step": spreads,
        "times_faster": round(spreads["torchrun"]["median"] / spreads["shardyard"]["median"], 1),
        "runs": samples,
    }


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    return {"median": median(seconds), "lowest": min(seconds), "highest": max(seconds)}


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def show(result: dict[str, Any], console: Console) -> None:
    table = Table(box=None, pad_edge=False, title="seconds to the first optimizer step, DDP on 2 ranks")
    for column in ("", "median", "lowest", "highest"):
        table.add_column(column, justify="right" if column else "left")
    for name, side in result["seconds_to_first_step"].items():
        table.add_row(name, *(f"{side[column]:.3f}" for column in ("median", "lowest", "highest")))
    console.print()
    console.print(table)
    console.print(f"shardyard starts {result['times_faster']} times faster (by the medians)", highlight=False)


def write(result: dict[str, Any]) -> Path:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"start-{result['at'][:10]}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


if __name__ == "__main__":
    main()
