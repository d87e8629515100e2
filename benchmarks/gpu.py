"""On one GPU: the tutorials' loop under the service, DataParallel's primitives, and how soon a job's first step comes.

plain       `programs/training_loop.py` by this Python, a process of its own in each round
its script  the same file as a job, observed by the probe
recipe      the same model, sizes and optimizer as a recipe

Counted are the steps after the first ones, by the program's own clock; for a recipe between the times of its points of
`loss`. The primitives are those of `benchmarks.primitives`: `nn.DataParallel` on [0], where torch leaves them out, and
on [0, 0], where it runs all four on one card. Whole processes are timed from the start to their end.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

from benchmarks.harness.comparing import Figure, Say, Scale
from benchmarks.harness.service import linear_spec, service
from benchmarks.primitives import MODELS, makers, step_of, timed
from benchmarks.training import (
    DEADLINE_SECONDS,
    PLAIN,
    PROGRAM,
    RECIPE,
    SCRIPT,
    Jobs,
    Loop,
    Way,
    command_line,
    data_root,
    loops,
    write_digits,
    write_pictures,
)

TITLE = "On one GPU: training, DataParallel's primitives, the first step"
WAY = Way("one process on a GPU", "single", 1, "cuda")
STEPS = {"linear": 3000, "digits": 2000, "cifar": 1500}
ROWS_OF_A_STEP = 1024


def run(scale: Scale, say: Say) -> list[Figure]:
    """
    Raises:
        SystemExit: there is no CUDA device.
    """
    if not torch.cuda.is_available():
        raise SystemExit("error: this benchmark needs a CUDA device, and torch finds none here")
    with tempfile.TemporaryDirectory(prefix="shardyard-bench-") as directory:
        place = Path(directory)
        write_pictures(place / "pictures.npz")
        write_digits(place / "digits.npz")
        return [*compare_training(place, scale, say), *compare_primitives(scale, say)]


def compare_training(place: Path, scale: Scale, say: Say) -> list[Figure]:
    figures = []
    with data_root(place), service("auto") as running:
        jobs = Jobs(running)
        starts: dict[str, list[float]] = {"job": [], "python": []}
        for loop in loops(place):
            sized = Loop(**{name: getattr(loop, name) for name in Loop.__slots__} | {"steps": STEPS[loop.name]})
            speeds: dict[str, list[float]] = {RECIPE: [], SCRIPT: [], PLAIN: []}
            for _ in range(scale.rounds_of(3, 1)):
                speeds[PLAIN].append(train_plainly(sized, place))
                speeds[SCRIPT].append(jobs.script(sized, WAY))
                speeds[RECIPE].append(jobs.recipe(sized, WAY))
            say(f"{loop.title}: {', '.join(f'{side} {median(found):.0f}' for side, found in speeds.items())} steps/s")
            figures.append(Figure(f"{loop.title}, on a GPU", "steps/s", speeds, lower_is_better=False))
        for _ in range(scale.rounds_of(3, 1)):
            starts["job"].append(seconds_of(lambda: run_smallest_job(jobs)))
            starts["python"].append(seconds_of(lambda: train_plainly(SMALLEST, place)))
    return [*figures, Figure("four steps and the end, from nothing", "s", starts)]


SMALLEST = Loop("linear", "linear", 1, 0.0, {}, {}, {}, steps=4)


def run_smallest_job(jobs: Jobs) -> None:
    status = jobs.service.client.submit(linear_spec("single", 1)).wait(DEADLINE_SECONDS, check=False).status
    if status.state != "succeeded":
        raise RuntimeError(f"job {status.id} is {status.state}: {status.reason.message}")


def train_plainly(loop: Loop, place: Path) -> float:
    """Steps a second of a new process."""
    result = place / "plain"
    command = [sys.executable, str(PROGRAM), *command_line(loop, WAY), "--result", str(result)]
    subprocess.run(command, check=True, timeout=DEADLINE_SECONDS, stdout=subprocess.DEVNULL)
    return float(result.read_text())


def compare_primitives(scale: Scale, say: Say) -> list[Figure]:
    on_cuda = {name: make for name, make in makers().items() if "virtual" not in name and name != "plain module"}
    figures = []
    for layers, width in MODELS:
        steps = {name: step_of(make(layers, width), ROWS_OF_A_STEP) for name, make in on_cuda.items()}
        seconds: dict[str, list[float]] = {name: [] for name in steps}
        for turn in range(scale.rounds_of(5, 2) + 1):
            for name, step in steps.items():
                taken = median(timed(step) for _ in range(20))
                if turn:  # the first one warms up
                    seconds[name].append(taken)
        say(f"DataParallel of {layers} layers of {width}")
        figures.append(Figure(f"training step of {layers} layers of {width}, on a GPU", "s", seconds))
    return figures


def seconds_of(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began
