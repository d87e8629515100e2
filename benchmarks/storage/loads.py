"""What the benchmarks of storage have jobs do on each side: print, save a checkpoint, leave many files.

Lines: a script prints as fast as it can, and a client that follows the log takes the time from its first to its last
line. A first line: from the POST to that line at the client. An end: from the script's last line to the end, which is
told when its files are there. A checkpoint: the same from the moment at which a script begins to save a large one.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TypeVar

from benchmarks.harness.comparing import Figure, Say, Scale, at_most_times, in_turns, share_of
from benchmarks.harness.connection import Connection
from benchmarks.harness.service import Service
from benchmarks.programs import leaver
from benchmarks.short_jobs import finished
from shardyard.client import Job

T = TypeVar("T")

DIRECTORY = "directory"
PROGRAM = Path(str(leaver.__file__))
#: What a row may cost against the directory.
MOST = 1.2
DEADLINE_SECONDS = 600.0
FILES, LISTS = 200, 20


@dataclass(frozen=True, slots=True)
class Side:
    """Where jobs run: a service, and a pool of it."""

    service: Service
    pool: str = "default"


@dataclass(frozen=True, slots=True)
class Printed:
    """What one job of many lines took: seconds, and lines a second."""

    first_line: float
    rate: float
    end: float


def measure_sides(scale: Scale, say: Say, sides: dict[str, Side]) -> list[Figure]:
    """All figures, each side beside the one that is called `DIRECTORY`."""
    lines, megabytes = scale.pick(200_000, 20_000), scale.pick(1024, 256)
    say(f"{lines:,} lines")
    printed = in_turns(_of_each(sides, partial(print_lines, lines)), scale.rounds_of(5, 1), say=say)
    say(f"a checkpoint of {megabytes} MiB")
    rounds = scale.rounds_of(3, 1)
    saved = in_turns(_of_each(sides, partial(save_checkpoint, megabytes)), rounds, say=say, warm_up=0)
    say(f"lists of {FILES} files")
    listed = in_turns(_of_each(sides, list_files), rounds, say=say, warm_up=0)
    return [
        _seconds("POST to the first line at a client", printed, lambda each: each.first_line),
        Figure(
            "lines a second to a client that follows",
            "",
            {side: [each.rate for each in found] for side, found in printed.items()},
            [share_of(DIRECTORY, 1 / MOST)],
            lower_is_better=False,
            note=f"{lines:,} lines",
        ),
        _seconds("last line to the job's end", printed, lambda each: each.end),
        Figure(
            f"a checkpoint of {megabytes} MiB, to the job's end",
            "s",
            saved,
            [at_most_times(DIRECTORY, MOST)],
        ),
        Figure(f"a list of {FILES} files", "s", listed, note="a person asks for it; the bucket is listed each time"),
    ]


def _of_each(sides: dict[str, Side], measure: Callable[[Side], T]) -> dict[str, Callable[[], T]]:
    return {side: partial(measure, of) for side, of in sides.items()}


def _seconds(name: str, found: dict[str, list[Printed]], of: Callable[[Printed], float]) -> Figure:
    samples = {side: [of(each) for each in rounds] for side, rounds in found.items()}
    return Figure(name, "s", samples, [at_most_times(DIRECTORY, MOST)])


def print_lines(count: int, of: Side) -> Printed:
    """Raises AssertionError: a line was lost."""
    asked = time.time()
    job = _submit(of, count, 0, 0)
    seen, first, last = 0, 0.0, 0.0
    for line in job.logs(follow=True):
        if line.stream == "stdout":
            last = time.time()
            first = first or last
            seen += 1
    assert seen == count + 1, f"{seen} of {count + 1} lines"
    return Printed(first - asked, count / max(1e-9, last - first), _end(of, job))


def save_checkpoint(megabytes: int, of: Side) -> float:
    return _end(of, _submit(of, 0, megabytes, 0), leaver.SAVES)


def list_files(of: Side) -> float:
    """The median of some lists."""
    job = _submit(of, 0, 0, FILES)
    _end(of, job)
    taken = []
    with Connection(of.service.url, of.service.token) as to:
        for _ in range(LISTS):
            began = time.perf_counter()
            found = to.get(f"/v1/jobs/{job.id}/artifacts")[1]["artifacts"]
            taken.append(time.perf_counter() - began)
            assert len(found) >= FILES
    return median(taken)


def _submit(of: Side, lines: int, megabytes: int, files: int) -> Job:
    return of.service.client.submit_script(
        PROGRAM, [str(lines), str(megabytes), str(files)], include=["training_output.py"], pool=of.pool
    )


def _end(of: Side, job: Job, mark: str = leaver.MARK) -> float:
    """Seconds from what the script has printed last, or has marked so, to the end of its job."""
    with Connection(of.service.url, of.service.token) as to:
        status = to.end(job.id, DEADLINE_SECONDS)
        assert status["state"] == "succeeded", status["reason"]
        lines = to.get(f"/v1/jobs/{job.id}/logs?tail=5&stream=stdout")[1]["lines"]
    marked = [line["text"] for line in lines if line["text"].startswith(mark)]
    return finished(status) - float(marked[-1].removeprefix(mark))
