"""How long a user waits for the first optimizer step: one process, DDP on 2 ranks, DDP on 4 ranks.

All sides train a linear layer from 5 to 2 on 100 random vectors, batches of 15 a rank, cross entropy, SGD, one thread a
process, and meet in the same round:

shardyard     from the client's clock just before the POST to `first_step_at` of the job's status: by then the control
              Redis has it on disk, and any GET tells it. A warm service with the defaults; the job is a recipe.
its script    the same, with the program of the other sides as the job's own code
torchrun      from just before `torchrun --standalone` (one process: `python`) of `programs/ddp_linear.py` is started to
              the program's clock after rank 0's first optimizer step
accelerate    the same with `accelerate launch` (DDP only, and not in quick runs)
warm fork     the floor: `programs/warm_fork.py`, from the line that asks for ranks to the same moment
Ray Jobs      from the POST to its job server to the same moment; its job runs torchrun or python. In rounds of their
              own, beside which the service is measured again, since a Ray head takes part of the machine; not in quick
              runs, which leave out 4 ranks as well

Where the time of the service went is a figure of its own for each; README.md says what its stages are.
"""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

import torch

from benchmarks.harness import peers
from benchmarks.harness.comparing import Figure, Say, Scale, at_most_times, in_turns, times_better
from benchmarks.harness.connection import Connection
from benchmarks.harness.service import Service, linear_spec, service, upload_program
from shardyard.contract.responses import JobStatus

STAGES_NOTE = (
    "from the POST to each, in the same rounds; ranks of DDP note their loss a step later, when its mean is there; "
    "who waits is one more job, right after"
)
TITLE = "POST to first optimizer step"

END_SECONDS = 120.0
PROGRAMS = Path(__file__).parent / "programs"
#: Between two looks at a job: rare, since looking takes time from what is measured.
POLL_SECONDS = 0.1
#: Before each start: so soon after another one, a process that is forked ahead is there again.
REST_SECONDS = 0.2

Once = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Kind:
    """A job that all sides run. `ranks` is 0 for a program that torchrun's variables are not set for."""

    name: str
    strategy: str
    devices: int
    ranks: int
    device: str  # cpu or cuda


def run(scale: Scale, say: Say) -> list[Figure]:
    kinds = [kind for kind in _kinds() if not scale.quick or kind.devices < 4]
    peers.install()
    figures = []
    for device in dict.fromkeys(kind.device for kind in kinds):
        own = [kind for kind in kinds if kind.device == device]
        devices = f"cpu:{max(kind.devices for kind in own)}" if device == "cpu" else "auto"
        with _floor() as floor, service(devices) as ours, tempfile.TemporaryDirectory() as directory:
            floor.expect("ready")
            asked = Asked(ours, Path(directory) / "first_step", upload_program(ours, PROGRAMS / "ddp_linear.py"), {})
            for kind in own:
                figures += _against_cold_starts(kind, asked, floor, scale, say)
            if not scale.quick:
                with peers.ray_head() as ray:
                    for kind in own:
                        figures.append(_against_ray(kind, asked, ray, scale, say))
    return figures


def _kinds() -> list[Kind]:
    """Virtual devices everywhere; where there are GPUs, these as well."""
    kinds = [
        Kind("one process", "single", 1, 0, "cpu"),
        Kind("DDP, 2 ranks", "ddp", 2, 2, "cpu"),
        Kind("DDP, 4 ranks", "ddp", 4, 4, "cpu"),
    ]
    gpus = torch.cuda.device_count()
    if gpus:
        kinds += [
            Kind("one process on a GPU", "single", 1, 0, "cuda"),
            Kind("DDP, 1 rank on a GPU", "ddp", 1, 1, "cuda"),
        ]
    if gpus > 1:
        kinds.append(Kind(f"DDP, {gpus} ranks on GPUs", "ddp", gpus, gpus, "cuda"))
    return kinds


def _against_cold_starts(kind: Kind, asked: "Asked", floor: "Floor", scale: Scale, say: Say) -> list[Figure]:
    cold = "torchrun" if kind.ranks else "python"
    sides: dict[str, Once] = {
        "shardyard": partial(asked.recipe, kind),
        cold: partial(asked.by, partial(_torchrun, kind)),
        "warm fork": partial(asked.by, partial(floor.fork, kind)),
        "shardyard, its script": partial(asked.script, kind),
    }
    if kind.ranks > 1 and not scale.quick:
        sides["accelerate launch"] = partial(asked.by, partial(_accelerate, kind))
    for own in (asked.recipe, asked.script):  # what the first job of a service finds cold
        own(kind)
    samples = _in_turns(kind, sides, scale.rounds_of(3 if kind.ranks <= 2 else 2, 1), scale, say)
    goals = [times_better(cold, 30), at_most_times("warm fork", 2.5)]
    rounds = len(samples["shardyard"])
    stages = {stage: seconds[-rounds:] for stage, seconds in asked.stages.items()}
    asked.stages.clear()
    return [
        Figure(f"POST to first step, {kind.name}", "s", samples, goals),
        Figure(f"where that time goes, {kind.name}", "s", stages, note=STAGES_NOTE),
    ]


def _against_ray(kind: Kind, asked: "Asked", ray: peers.Ray, scale: Scale, say: Say) -> Figure:
    sides: dict[str, Once] = {
        "shardyard": partial(asked.recipe, kind),
        "Ray Jobs": partial(asked.by, partial(_ray, ray, kind)),
    }
    samples = _in_turns(kind, sides, scale.rounds_of(2, 1), scale, lambda text: say(f"Ray, {text}"))
    return Figure(f"POST to first step beside Ray, {kind.name}", "s", samples, [times_better("Ray Jobs", 40)])


def _in_turns(kind: Kind, sides: dict[str, Once], rounds: int, scale: Scale, say: Say) -> dict[str, list[float]]:
    """Files that are read for the first time, and Ray's own processes, are warm after the first kind."""
    warm_up = int(kind.ranks == 0 and not scale.quick)
    return in_turns(
        sides, rounds, warm_up=warm_up, rest_seconds=REST_SECONDS, say=lambda text: say(f"{kind.name}: {text}")
    )


# -- the service ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Asked:
    """Asks for one start after another, and keeps the stages of those that the service ran as recipes."""

    service: Service
    first_step_file: Path
    bundle: str
    stages: dict[str, list[float]]

    def by(self, start: Callable[[Path], object]) -> float:
        """Seconds until the program that `start` runs to its end has done its first step."""
        self.first_step_file.unlink(missing_ok=True)
        began = time.time()
        start(self.first_step_file)
        return float(self.first_step_file.read_text()) - began

    def recipe(self, kind: Kind) -> float:
        began = time.time()
        job = self.service.client.submit(linear_spec(kind.strategy, kind.devices)).id
        answered = time.time()
        status = self._ended(job)
        found = self._stages(job, status)
        seen = self._seen_by_a_client_that_waits(kind)
        stages = {"first step can be seen": _at(status.first_step_at), "POST answered": answered} | found
        for stage, moment in stages.items():
            self.stages.setdefault(stage, []).append(moment - began)
        self.stages.setdefault("first step was seen by a client that waits", []).append(seen)
        return _at(status.first_step_at) - began

    def script(self, kind: Kind) -> float:
        program = {"kind": "script", "bundle": self.bundle, "entrypoint": "ddp_linear.py"}
        arguments = ["first_step", kind.device]  # in its working directory: it sees no other
        spec = linear_spec(kind.strategy, kind.devices) | {"program": program | {"args": arguments}}
        began = time.time()
        job = self.service.client.submit(spec).id
        return _at(self._ended(job).first_step_at) - began

    def _stages(self, job: str, status: JobStatus) -> dict[str, float]:
        attempt = self.service.client.job(job).attempts()[-1]
        loss = self.service.client.job(job).metrics("loss", device=-1)[0].points
        return {
            "devices leased": _at(attempt.created_at),
            "claimed by a supervisor": _at(attempt.claimed_at),
            "ranks up": _at(status.started_at),
            "first loss, as the rank noted it": _at(loss[0].at),
        }

    def _seen_by_a_client_that_waits(self, kind: Kind) -> float:
        """Of another job, since waiting takes time from what is measured: a request is held until the job changes.

        Raises:
            RuntimeError: it ended without a step.
        """
        tag, status = "", None
        with Connection(self.service.url, self.service.token) as to:
            began = time.time()
            job = self.service.client.submit(linear_spec(kind.strategy, kind.devices)).id
            while not status or not status["first_step_at"]:
                tag, status = to.get(f"/v1/jobs/{job}?wait=10", tag)
                if status and status["finished_at"] and not status["first_step_at"]:
                    raise RuntimeError(f"job {job} is {status['state']}: {status['reason']['message']}")
            seen = time.time() - began
        self._ended(job)
        return seen

    def _ended(self, job: str) -> JobStatus:
        """Its last status.

        Raises:
            RuntimeError: it did not succeed.
        """
        deadline = time.monotonic() + END_SECONDS
        while time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            status = self.service.client.job(job).status
            if status.state == "succeeded":
                return status
            if status.finished_at is not None:
                raise RuntimeError(f"job {job} is {status.state}: {status.reason.message}")
        raise RuntimeError(f"job {job} did not end within {END_SECONDS:g} s")


def _at(when: datetime | None) -> float:
    assert when is not None
    return when.timestamp()


# -- the other sides -----------------------------------------------------------------------------------


def _torchrun(kind: Kind, first_step_file: Path) -> None:
    program = (str(PROGRAMS / "ddp_linear.py"), str(first_step_file), kind.device)
    if kind.ranks:
        peers.torchrun(kind.ranks, *program)
    else:
        peers.python(*program)


def _accelerate(kind: Kind, first_step_file: Path) -> None:
    peers.accelerate_launch(kind.ranks, str(PROGRAMS / "ddp_linear.py"), str(first_step_file), kind.device)


def _ray(ray: peers.Ray, kind: Kind, first_step_file: Path) -> None:
    launcher = peers.torchrun_command(kind.ranks) if kind.ranks else [str(peers.PYTHON)]
    program = [str(PROGRAMS / "ddp_linear.py"), str(first_step_file), kind.device]
    ray.wait(ray.submit(" ".join(["OMP_NUM_THREADS=1", *launcher, *program])))


@dataclass(frozen=True, slots=True)
class Floor:
    """`programs/warm_fork.py` in a process of its own."""

    process: "subprocess.Popen[str]"

    def fork(self, kind: Kind, first_step_file: Path) -> None:
        """
        Raises:
            RuntimeError: its ranks failed.
        """
        assert self.process.stdin is not None
        self.process.stdin.write(f"{kind.ranks} {kind.device} {first_step_file}\n")
        self.process.stdin.flush()
        self.expect("done")

    def expect(self, word: str) -> None:
        assert self.process.stdout is not None
        said = self.process.stdout.readline().strip()
        if said != word:
            raise RuntimeError(f"the warm fork said {said!r}, not {word!r}")


@contextmanager
def _floor() -> Iterator[Floor]:
    """Started, and to be asked when it has said that it is ready."""
    # OpenBLAS starts threads at import, and what forks must have one.
    environment = peers.plain_environment(OPENBLAS_NUM_THREADS="1")
    process = subprocess.Popen(
        [sys.executable, str(PROGRAMS / "warm_fork.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        yield Floor(process)
    finally:
        process.kill()
        process.communicate()
