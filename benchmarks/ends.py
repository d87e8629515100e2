"""Do jobs end, and do they end well: 300 DDP jobs on two and on four ranks, against torchrun.

Half of ours are recipes; the other half run `programs/tutorial_ddp.py`, which ends as tutorials do, with a barrier and
`destroy_process_group`, and torchrun runs the same program. With torch 2.13 that ending hangs now and then where
processes start warm, and aborts now and then where they start cold (pytorch#190489). Training is complete in all of
them, so whatever fails is a false failure.

A hang is a job that is not over `HANG_SECONDS` after its last optimizer step. Seconds are from the last optimizer step
of the last rank to the job's end (torchrun: the end of its process).
"""

import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from subprocess import CalledProcessError, TimeoutExpired
from typing import Any

from benchmarks.harness import peers
from benchmarks.harness.comparing import Figure, Say, Scale, at_most, in_turns, times_better
from benchmarks.harness.connection import Connection
from benchmarks.harness.service import linear_spec, service
from benchmarks.short_jobs import finished

TITLE = "Ends of DDP jobs: hangs, false failures, seconds after the last step"
OURS, SLOWEST, TORCHRUN = "shardyard", "shardyard, slowest", "torchrun"
PROGRAM = Path(__file__).parent / "programs" / "tutorial_ddp.py"
RANKS = (2, 4)
#: What the program prints before the time of its last step.
MARK = "last step at"
HANG_SECONDS = 10.0
DEADLINE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Ends:
    """What became of some jobs. `seconds` from their last step, of those that ended well."""

    jobs: int
    hangs: int
    failures: int
    seconds: tuple[float, ...]


def run(scale: Scale, say: Say) -> list[Figure]:
    peers.install()
    rounds, jobs = scale.rounds_of(3, 1), scale.pick(50, 8)
    figures: list[Figure] = []
    with service("cpu:4") as running, Connection(running.url, running.token) as to:
        for ranks in scale.pick(RANKS, RANKS[:1]):
            script = running.client.submit_script(PROGRAM, strategy="ddp", devices=ranks).wait(timeout=60)
            specs = [json.dumps(linear_spec("ddp", ranks)).encode(), json.dumps(script.status.spec).encode()]
            ends = in_turns(
                {OURS: lambda: of_shardyard(to, specs, jobs), TORCHRUN: lambda: of_torchrun(ranks)},  # noqa: B023
                rounds,
                say=say,
                warm_up=0,
            )
            figures += _figures(ends, ranks)
    return figures


def _figures(ends: dict[str, list[Ends]], ranks: int) -> list[Figure]:
    seconds = {
        OURS: [median(each.seconds) for each in ends[OURS]],
        SLOWEST: [max(each.seconds) for each in ends[OURS]],
        TORCHRUN: [max(each.seconds, default=HANG_SECONDS) for each in ends[TORCHRUN]],
    }
    size = {"size": float(ranks), "size_of": "ranks"}
    figures = [Figure("last step to the job's end", "s", seconds, [times_better(TORCHRUN, 10)], **size)]  # type: ignore[arg-type]
    for name, count in (("hangs", lambda each: each.hangs), ("false failures", lambda each: each.failures)):
        counts = {side: [float(sum(map(count, each)))] for side, each in ends.items()}
        of = ", ".join(f"{sum(each.jobs for each in found)} jobs of {side}" for side, found in ends.items())
        figures.append(Figure(f"{name}, {ranks} ranks", "", counts, [at_most(0)], note=f"of {of}"))
    return figures


def of_shardyard(to: Connection, specs: Sequence[bytes], count: int) -> Ends:
    """Jobs of all `specs` in turns, that wait for devices together."""
    jobs = [to.post("/v1/jobs", specs[number % len(specs)])["id"] for number in range(count)]
    hangs = failures = 0
    seconds = []
    deadline = time.monotonic() + DEADLINE_SECONDS
    for job in jobs:
        status = to.end(job, max(0.0, deadline - time.monotonic()))
        if status["finished_at"] is None:
            hangs += 1
        elif status["state"] != "succeeded":
            failures += 1
        else:
            taken = finished(status) - last_step(to, job)
            seconds.append(taken)
            hangs += taken > HANG_SECONDS
    return Ends(count, hangs, failures, tuple(seconds))


def last_step(to: Connection, job: str) -> float:
    """Of all ranks: when a point of the loss was taken, or what the program has printed."""
    series = to.get(f"/v1/jobs/{job}/metrics?name=loss")[1]["series"]
    if series:
        return max(_moment(point["at"]) for one in series for point in one["points"])
    lines = [line["text"] for line in to.get(f"/v1/jobs/{job}/logs")[1]["lines"]]
    return max(float(line.removeprefix(MARK)) for line in lines if line.startswith(MARK))


def _moment(at: Any) -> float:
    return datetime.fromisoformat(at).timestamp() if isinstance(at, str) else float(at)


def of_torchrun(ranks: int) -> Ends:
    with tempfile.TemporaryDirectory() as directory:
        try:
            peers.torchrun(ranks, str(PROGRAM), f"{directory}/step", deadline_seconds=DEADLINE_SECONDS)
        except TimeoutExpired:
            return Ends(1, 1, 0, ())
        except CalledProcessError:
            return Ends(1, 0, 1, ())
        ended = time.time()
        return Ends(1, 0, 0, (ended - max(float(file.read_text()) for file in Path(directory).iterdir()),))
