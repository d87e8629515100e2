"""Steps a second under the service, which observes every step, against the same loop by plain python or torchrun.

Three models: the tutorials' layer from 5 to 2 (batches of 15: the worst case, since a step is as short as steps get),
the CNN of the digits (8 x 8, batches of 32) and the CNN of CIFAR-10 (32 x 32, batches of 64, random pictures). Each in
one process, and under DDP on two ranks; on a machine with a GPU, on that in one process.

plain           `programs/training_loop.py` by python or torchrun, started once for each model and told to train in each
                round, so that its start is no part of the round; between rounds it waits on a pipe and takes nothing.
                In one process each round is a fork of it that has trained nothing yet, as a job is a new process too;
                the ranks of torchrun are the same in all rounds
its script      the same file as a job: one job a round, observed by the probe
recipe          the same model, sizes, DataLoader, loss and optimizer as a recipe
plain, batched  the plain program once more, with the one thing that recipes do better: rows of a batch are taken from
                the data set at once, where TensorDataset takes them one by one. So the recipe against this side is what
                observing costs, and against plain what a user gets who had written the tutorials' loop

All have one thread a process, and the same rows: digits as noise would be cheaper to train on by 3 %. The plain loop
is the tutorials': batches `.to(device)`, `loss.item()` in every step in one process and in every tenth under DDP, as
the recipe reads it. Counted are the steps after the first ones, in the program by its own clock, for a recipe between
the times of its points of `loss`. On the service's side its supervisor, API, worker and two Redis run on the same
cores, and what they take is taken from the ranks. What the supervisor itself costs is a figure of its own: its CPU
time for 1,000 steps of a rank, read while the steps are counted.

How many steps are counted is found by the plain loop: about `SECONDS` of them. So most are among the first thousand,
for each of which the service writes lines into the log. Each round has a service of its own: where the heap of its
forkserver lies makes steps of all its ranks shorter or longer by up to 3 %.
"""

import select
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from benchmarks.harness import peers
from benchmarks.harness.comparing import Figure, Say, Scale, in_turns, share_of
from benchmarks.harness.machine import family, thread_cpu_seconds
from benchmarks.harness.service import Service, environment, service
from shardyard.contract.responses import JobStatus
from workers.training.recipes import data as recipes

TITLE = "Training throughput under full observation"
RECIPE, SCRIPT, PLAIN, BATCHED = "recipe", "its script", "plain", "plain, batched"
PROGRAM = Path(__file__).parent / "programs" / "training_loop.py"
DEADLINE_SECONDS = 60.0
#: What the counted steps of one sample take.
SECONDS, QUICK_SECONDS = 0.7, 0.2
#: Between two readings of the supervisor's CPU time.
SAMPLE_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Loop:
    """What is trained: `steps` of it, of which the first `skip` are not counted."""

    name: str
    title: str
    skip: int
    goal: float
    model: dict[str, Any]
    data: dict[str, Any]
    optimizer: dict[str, Any]
    rows: str = ""  # the file of the rows, for the plain program; it draws its own where there is none
    steps: int = 0


def loops(place: Path) -> list[Loop]:
    """The files of rows lie in `place`."""
    digits_rows, pictures_rows = str(place / "digits.npz"), str(place / "pictures.npz")
    sgd = {"lr": 0.01, "momentum": 0.9}
    layer = {"ref": "linear", "args": {"in_features": 5, "out_features": 2}}
    vectors = {"ref": "random_vectors", "args": {"rows": 3000, "features": 5}, "batch_size": 15, "shuffle": True}
    digits = {"ref": "digits", "args": {"split": "train"}, "batch_size": 32, "shuffle": True}
    pictures = {"ref": "npz", "args": {"path": "pictures.npz"}, "batch_size": 64, "shuffle": True}
    return [
        Loop("linear", "linear 5 -> 2", 200, 0.90, layer, vectors, {"lr": 0.01}),
        Loop("digits", "digits CNN", 50, 0.99, {"ref": "digits_cnn"}, digits, sgd | {"lr": 0.05}, digits_rows),
        Loop("cifar", "CIFAR CNN", 20, 0.99, {"ref": "cifar10_cnn"}, pictures, sgd, pictures_rows),
    ]


@dataclass(frozen=True, slots=True)
class Way:
    """How it is run. `ranks` is 1 for plain python."""

    title: str
    strategy: str
    ranks: int
    device: str


def _ways() -> list[Way]:
    ways = [Way("one process", "single", 1, "cpu"), Way("DDP, 2 ranks", "ddp", 2, "cpu")]
    return [*ways, Way("one process on a GPU", "single", 1, "cuda")] if torch.cuda.is_available() else ways


def run(scale: Scale, say: Say) -> list[Figure]:
    peers.install()
    figures: list[Figure] = []
    ways = _ways()
    with tempfile.TemporaryDirectory(prefix="shardyard-bench-") as directory:
        place = Path(directory)
        place.chmod(0o755)  # jobs have accounts of their own, and read it as their data root
        write_pictures(place / "pictures.npz")
        write_digits(place / "digits.npz")
        for device in dict.fromkeys(way.device for way in ways):
            with ExitStack() as plains:
                started = [  # one for each: no heap that another model has warmed
                    (loop, way, plains.enter_context(_plain(way)))
                    for way in ways
                    if way.device == device
                    for loop in loops(place)[: 1 if scale.quick else None]
                ]
                for loop, _, plain in started:
                    _trial(loop, plain)  # after this all are up
                contests = [Contest(_sized(loop, plain, scale), way, plain) for loop, way, plain in started]
                rounds = scale.rounds_of(3, 1)
                for number in range(rounds):  # a service for each: see above
                    with data_root(place), service("cpu:2" if device == "cpu" else "auto") as running:
                        for contest in contests:
                            contest.hold(Jobs(running))
                            say(f"{contest.name}: round {number + 1} of {rounds}")
                figures += [figure for contest in contests for figure in contest.figures()]
    return figures


def _trial(loop: Loop, plain: Callable[..., float]) -> float:
    """Steps a second of a few."""
    return plain(replace(loop, steps=2 * loop.skip))


def _sized(loop: Loop, plain: Callable[..., float], scale: Scale) -> Loop:
    """With as many steps as the plain loop takes in the time of a sample."""
    return replace(loop, steps=loop.skip + round(_trial(loop, plain) * scale.pick(SECONDS, QUICK_SECONDS)))


@dataclass(frozen=True, slots=True)
class Contest:
    """The sides of one loop, run in one way. `speeds` in steps a second, `supervisor` in its CPU seconds for 1,000."""

    loop: Loop
    way: Way
    plain: Callable[..., float]
    speeds: dict[str, list[float]] = field(default_factory=lambda: {s: [] for s in (RECIPE, PLAIN, SCRIPT, BATCHED)})
    supervisor: dict[str, list[float]] = field(default_factory=lambda: {RECIPE: [], SCRIPT: []})

    @property
    def name(self) -> str:
        return f"{self.loop.title}, {self.way.title}"

    def hold(self, jobs: "Jobs") -> None:
        """One round."""
        sides: dict[str, Callable[[], float]] = {
            RECIPE: partial(self._observed, RECIPE, jobs, jobs.recipe),
            PLAIN: partial(self.plain, self.loop),
            SCRIPT: partial(self._observed, SCRIPT, jobs, jobs.script),
            BATCHED: partial(self.plain, self.loop, "--batched"),
        }
        for side, (speed,) in in_turns(sides, 1, say=lambda _: None, warm_up=0).items():
            self.speeds[side].append(speed)

    def _observed(self, side: str, jobs: "Jobs", submit: Callable[[Loop, Way], float]) -> float:
        with jobs.supervised() as spent:
            speed = submit(self.loop, self.way)
        counted = self.loop.steps - self.loop.skip
        self.supervisor[side].append(spent.seconds_for(counted, speed) / counted * 1000)
        return speed

    def figures(self) -> list[Figure]:
        def of(*sides: str) -> dict[str, list[float]]:
            return {side: self.speeds[side] for side in sides}

        goals = [share_of(PLAIN, self.loop.goal)]
        recipes = of(RECIPE, PLAIN, BATCHED)
        return [
            Figure(f"{self.name}, recipe", "steps/s", recipes, goals, lower_is_better=False),
            Figure(f"{self.name}, script", "steps/s", of(SCRIPT, PLAIN), goals, lower_is_better=False),
            Figure(f"supervisor's CPU for 1,000 steps, {self.name}", "s", self.supervisor),
        ]


def command_line(loop: Loop, way: Way) -> list[str]:
    """Arguments of the program."""
    data = ["--data", loop.rows] if loop.rows else []
    return [loop.name, str(loop.steps), str(loop.skip), "--device", way.device, *data]


# -- plain ---------------------------------------------------------------------------------------------


@contextmanager
def _plain(way: Way) -> Iterator[Callable[..., float]]:
    """A function that has a waiting process train a loop, with options, and returns its steps a second."""
    command = [str(peers.PYTHON)]
    if way.ranks > 1:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={way.ranks}"]
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [*command, str(PROGRAM), "--serve"],
            env=peers.plain_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        orders, answers = process.stdin, process.stdout

        def train(loop: Loop, *options: str) -> float:
            orders.write(" ".join([*command_line(loop, way), *options]).encode() + b"\n")
            orders.flush()
            ready, _, _ = select.select([answers], [], [], DEADLINE_SECONDS)
            answer = answers.readline() if ready else b""
            if not answer:
                errors.seek(0)
                raise RuntimeError(f"plain training gave no answer: {errors.read()[-2000:].decode(errors='replace')}")
            return float(answer)

        try:
            yield train
            orders.close()
            process.wait(DEADLINE_SECONDS)
        finally:
            if process.poll() is None:
                for pid in reversed(family(process.pid)):
                    psutil.Process(pid).kill()
                process.wait()


# -- the service ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Jobs:
    """Each is one job, which is waited for; the answers are its steps a second."""

    service: Service

    def recipe(self, loop: Loop, way: Way) -> float:
        program = {
            "kind": "recipe",
            "model": loop.model,
            "data": loop.data,
            "loss": {"ref": "cross_entropy"},
            "optimizer": {"ref": "sgd", "args": loop.optimizer},
            "epochs": loop.steps,
            "max_steps": loop.steps,
        }
        spec = {"name": f"bench-{loop.name}", "program": program, "resources": {"devices": way.ranks}}
        job = self.service.client.submit(spec | {"parallelism": {"strategy": way.strategy}}).wait(DEADLINE_SECONDS)
        _require_success(job.status)
        (loss,) = job.metrics("loss", device=-1)
        counted = [point for point in loss.points if point.step >= loop.skip]
        first, last = counted[0], counted[-1]
        assert first.at is not None
        assert last.at is not None
        return (last.step - first.step) / (last.at - first.at).total_seconds()

    def script(self, loop: Loop, way: Way) -> float:
        job = self.service.client.submit_script(
            PROGRAM,
            command_line(loop, way),
            strategy=way.strategy,
            devices=way.ranks,
        ).wait(DEADLINE_SECONDS)
        _require_success(job.status)
        (line,) = job.logs(device=0, stream="stdout", tail=1)
        return float(line.text)

    @contextmanager
    def supervised(self) -> Iterator["Spent"]:
        """Follows the CPU time of the supervisor that appears meanwhile."""
        spent, over = Spent([]), threading.Event()
        thread = threading.Thread(target=self._follow, args=(spent, over))
        thread.start()
        try:
            yield spent
        finally:
            over.set()
            thread.join()

    def _follow(self, spent: "Spent", over: threading.Event) -> None:
        supervisor = None
        while not over.wait(SAMPLE_SECONDS):
            try:
                supervisor = supervisor or _supervisor(self.service.pid)
                if supervisor is not None:
                    spent.readings.append((time.perf_counter(), thread_cpu_seconds(supervisor)))
            except (OSError, psutil.NoSuchProcess):
                if supervisor is not None:  # it has ended
                    return


@dataclass(frozen=True, slots=True)
class Spent:
    """CPU seconds of a supervisor up to some moments."""

    readings: list[tuple[float, float]]

    def seconds_for(self, steps: int, speed: float) -> float:
        """In the time that so many steps take, read in the middle of it, where the job neither begins nor ends.

        Raises:
            RuntimeError: the job was too short.
        """
        begin, end = self.readings[0][0], self.readings[-1][0]
        middle = [each for each in self.readings if begin + (end - begin) / 4 <= each[0] <= end - (end - begin) / 8]
        if len(middle) < 2:
            raise RuntimeError(f"a supervisor was there for {end - begin:.2f} s only")
        (since, before), (until, after) = middle[0], middle[-1]
        return (after - before) / (until - since) * steps / speed


def _supervisor(pid: int) -> int | None:
    for child in family(pid):
        try:
            if Path(f"/proc/{child}/comm").read_text() == "sy-supervisor\n":
                return child
        except OSError:
            continue
    return None


def _require_success(status: JobStatus) -> None:
    if status.state != "succeeded":
        raise RuntimeError(f"job {status.id} is {status.state}: {status.reason.message}")


@contextmanager
def data_root(place: Path) -> Iterator[None]:
    """The service that is started in here reads data files below `place`."""
    with environment({"SHARDYARD_DATA_ROOT": str(place)}):
        yield


def write_digits(path: Path) -> None:
    """The rows of the recipe."""
    images, labels = recipes.digits(recipes.DigitsArgs()).tensors
    np.savez(path, input=images.numpy(), target=labels.numpy())


def write_pictures(path: Path) -> None:
    numbers = np.random.default_rng(0)
    pictures = numbers.standard_normal((2048, 3, 32, 32), dtype=np.float32)
    np.savez(path, input=pictures, target=numbers.integers(0, 10, 2048))
