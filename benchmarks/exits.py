"""How soon the end of a job is known, from the end of its last rank to that of the job: the service against torchrun.

A rank writes the time in its last line and ends: it leaves with `os._exit`, or returns from the program, or the last
rank exits with code 3 while the others would go on for a minute. In the last case the others have to be ended too. The
program imports no torch, so that torchrun's ranks are gone in milliseconds.

Ours is over at `finished_at` of the job's status, by when all processes were proven dead and the final report and the
whole log were on disk; and, as a client sees it, when a long poll is answered. torchrun is over when its process is.
"""

import json
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any

from benchmarks.harness import peers
from benchmarks.harness.comparing import Figure, Say, Scale, at_most, in_turns, times_better
from benchmarks.harness.connection import Connection
from benchmarks.harness.service import Service, service
from benchmarks.short_jobs import finished

TITLE = "The end of the last rank, until the job's end is known"
OURS, SEEN, TORCHRUN = "shardyard", "shardyard, seen by a long poll", "torchrun"
PROGRAM = Path(__file__).parent / "programs" / "rank_that_ends.py"
NAMES = {
    "exit": "ranks leave with os._exit(0)",
    "return": "ranks return from the program",
    "fail": "one rank exits with code 3",
}
#: torchrun takes two seconds for each.
CASES = (("exit", 1), ("exit", 2), ("exit", 4), ("return", 2), ("fail", 2))
QUICK_CASES = (("exit", 2), ("fail", 2))
GOAL_SECONDS = 0.020
EXPECTED = {"exit": "succeeded", "return": "succeeded", "fail": "failed"}


def run(scale: Scale, say: Say) -> list[Figure]:
    peers.install()
    figures = []
    with (
        service("cpu:4") as running,
        Connection(running.url, running.token) as to,
        tempfile.TemporaryDirectory() as base,
    ):
        for how, ranks in scale.pick(CASES, QUICK_CASES):
            spec = _spec(running, how, ranks)
            directory = Path(base) / f"{how}-{ranks}"
            directory.mkdir()
            samples = in_turns(
                {
                    OURS: lambda: of_shardyard(to, spec),  # noqa: B023  (called within this round)
                    TORCHRUN: lambda: {TORCHRUN: of_torchrun(how, ranks, directory)},  # noqa: B023
                },
                scale.rounds_of(3, 1),
                say=lambda _: None,
                warm_up=0,  # `_spec` has run it, and how long torchrun takes to start is not counted
            )
            sides = {name: [each[name] for each in samples[OURS]] for name in (OURS, SEEN)}
            sides |= {TORCHRUN: [each[TORCHRUN] for each in samples[TORCHRUN]]}
            goals = [at_most(GOAL_SECONDS), times_better(TORCHRUN, 1)]
            grows = how == "exit"
            figures.append(
                Figure(NAMES[how], "s", sides, goals, size=ranks if grows else None, size_of="ranks" if grows else "")
            )
            say(
                f"{NAMES[how]}, {ranks} ranks: "
                + ", ".join(f"{name} {min(each):.3f} s" for name, each in sides.items())
            )
    return figures


def _spec(running: Service, how: str, ranks: int) -> dict[str, Any]:
    """Of a job whose code the service has: one has run."""
    job = running.client.submit_script(PROGRAM, ["-", how], strategy="ddp", devices=ranks)
    return dict(job.wait(timeout=60, check=False).status.spec)


def of_shardyard(to: Connection, spec: dict[str, Any]) -> dict[str, float]:
    """Seconds from the end of the last rank to the job's end, and to when a client that waits is told of it."""
    job = to.post("/v1/jobs", json.dumps(spec).encode())["id"]
    status = to.end(job)
    seen = time.time()
    if status["state"] != EXPECTED[spec["program"]["args"][1]]:
        raise RuntimeError(f"the job is {status['state']}: {status['reason']}")
    last = max(float(line["text"]) for line in to.get(f"/v1/jobs/{job}/logs?stream=stdout")[1]["lines"])
    return {OURS: finished(status) - last, SEEN: seen - last}


def of_torchrun(how: str, ranks: int, directory: Path) -> float:
    with suppress(CalledProcessError):
        peers.torchrun(ranks, str(PROGRAM), str(directory), how)
    return time.time() - _last(directory)


def _last(directory: Path) -> float:
    """When the last rank ended. The files are gone afterwards."""
    files = list(directory.iterdir())
    moments = [float(file.read_text()) for file in files]
    for file in files:
        file.unlink()
    return max(moments)
