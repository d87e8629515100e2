"""A job over two hosts, beside `torchrun --nnodes 2`: its start, its end when a rank dies, its speed.

The hosts are network namespaces of this machine (`two_hosts`), one rank on each, so they share its processors: what is
compared is how they meet, die and train, not how fast a network is. `shardyard up` and the client are on the first one,
a worker on the second, with the product's defaults; torchrun is started on both at the same moment, with the c10d
rendezvous on the first.

start   from the POST, or from just before torchrun is started, to rank 0's first optimizer step, as in `start`
ends    one of the two ranks is killed in mid-run, that of the leader and that of the other host in turns: until neither
        of them lives. Ranks talk over gloo, so the other one may well fail by itself; it must not be left behind
speed   steps a second of the CIFAR CNN (`programs/training_loop.py`), by the program's own clock
"""

import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

import psutil

from benchmarks.harness import peers
from benchmarks.harness.comparing import Figure, Say, Scale, at_least, at_most, in_turns, share_of, times_better
from benchmarks.harness.connection import Connection
from benchmarks.harness.machine import family
from benchmarks.harness.service import Service, linear_spec, upload_program
from benchmarks.harness.two_hosts import ADDRESSES, TwoHosts, service_over, two_hosts
from benchmarks.short_jobs import finished

TITLE = "A job over two hosts: start, ends, speed"
OURS, SCRIPT, TORCHRUN = "shardyard", "shardyard, its script", "torchrun"
PROGRAMS = Path(__file__).parent / "programs"
LINEAR, ENDLESS, LOOP = (PROGRAMS / f"{name}.py" for name in ("ddp_linear", "endless_ddp", "training_loop"))
#: Where torchrun's agents meet.
RENDEZVOUS_PORT = 29400
DEADLINE_SECONDS = 120.0
POLL_SECONDS = 0.1
#: All ranks are dead so soon after the first one's death.
GOAL_SECONDS = 3.0
RANK = "sy-rank-"
#: Steps of the CNN, and those of them that are not counted.
STEPS, SKIP = 220, 20


def run(scale: Scale, say: Say) -> list[Figure]:
    peers.install()
    with (
        two_hosts() as hosts,
        service_over(hosts) as running,
        Connection(running.url, running.token) as to,
        tempfile.TemporaryDirectory() as directory,
    ):
        contest = Contest(hosts, running, to, Path(directory))
        return [
            contest.starts(scale.rounds_of(9, 1), say),
            *contest.ends(scale.pick(100, 4), scale.pick(3, 1), say),
            contest.speeds(scale.rounds_of(5, 1), say),
        ]


@dataclass(frozen=True, slots=True)
class Contest:
    hosts: TwoHosts
    running: Service
    to: Connection
    directory: Path

    # -- start -----------------------------------------------------------------------------------------

    def starts(self, rounds: int, say: Say) -> Figure:
        script = self._prepared(LINEAR, "first_step", "cpu")
        recipe = linear_spec("ddp", 1)
        recipe["resources"]["nodes"] = len(ADDRESSES)
        sides: dict[str, Callable[[], float]] = {
            OURS: partial(self._first_step, recipe),
            SCRIPT: partial(self._first_step, script),
            TORCHRUN: self._first_step_of_torchrun,
        }
        samples = in_turns(sides, rounds, say=lambda text: say(f"start: {text}"), rest_seconds=0.3)
        goals = [times_better(TORCHRUN, 20), at_most(0.2)]
        return Figure("POST to first step, 1 rank on each of 2 hosts", "s", samples, goals)

    def _first_step(self, spec: dict[str, Any]) -> float:
        began = time.time()
        status = self._ended(self.to.post("/v1/jobs", json.dumps(spec).encode())["id"])
        return _moment(status["first_step_at"]) - began

    def _first_step_of_torchrun(self) -> float:
        file = self.directory / "first_step"
        file.unlink(missing_ok=True)
        began = time.time()
        self._torchrun(LINEAR, str(file), "cpu")
        return float(file.read_text()) - began

    # -- ends ------------------------------------------------------------------------------------------

    def ends(self, ours: int, theirs: int, say: Say) -> list[Figure]:
        spec = self._prepared(ENDLESS)
        victims = cycle(range(len(ADDRESSES)))
        seconds = []
        for number in range(ours):
            seconds.append(self._end(spec, next(victims)))
            if not (number + 1) % 10:
                say(f"ends: {number + 1} of {ours}")
        peer = [self._end_of_torchrun(next(victims)) for _ in range(theirs)]
        within = sum(each <= GOAL_SECONDS for each in seconds)
        slowest = ", ".join(f"{each:.1f} s" for each in peer)
        return [
            Figure("a rank is killed, until no rank lives", "s", {OURS: seconds}, [at_most(GOAL_SECONDS)]),
            Figure(
                f"of these within {GOAL_SECONDS:g} s",
                "",
                {OURS: [float(within)]},
                [at_least(float(ours))],
                lower_is_better=False,
                note=f"of {ours}; torchrun: {slowest}",
            ),
        ]

    def _end(self, spec: dict[str, Any], victim: int) -> float:
        job = self.to.post("/v1/jobs", json.dumps(spec).encode())["id"]
        _until(lambda: self.to.get(f"/v1/jobs/{job}")[1]["first_step_at"] is not None, "the job trains")
        ranks = {process.name(): process for process in _ranks()}
        seconds = _kill_one(list(ranks.values()), ranks[f"{RANK}{victim}"])
        self._ended(job, "failed")
        return seconds

    def _end_of_torchrun(self, victim: int) -> float:
        place = Path(tempfile.mkdtemp(dir=self.directory))
        agents = [self._agent(host, ENDLESS, str(place)) for host in range(len(ADDRESSES))]
        try:
            _until(lambda: len(list(place.iterdir())) == len(ADDRESSES), "torchrun's ranks train")
            ranks = [psutil.Process(int((place / str(rank)).read_text())) for rank in range(len(ADDRESSES))]
            return _kill_one(ranks, ranks[victim])
        finally:
            for agent in agents:
                _end_all(agent)

    # -- speed -----------------------------------------------------------------------------------------

    def speeds(self, rounds: int, say: Say) -> Figure:
        words = ("cifar", str(STEPS), str(SKIP))
        script = self._prepared(LOOP, *words)
        sides: dict[str, Callable[[], float]] = {
            SCRIPT: partial(self._speed, script),
            TORCHRUN: partial(self._speed_of_torchrun, words),
        }
        samples = in_turns(sides, rounds, say=lambda text: say(f"speed: {text}"), warm_up=0, rest_seconds=1.0)
        goals = [share_of(TORCHRUN, 0.98)]
        return Figure("CIFAR CNN over 2 hosts", "steps/s", samples, goals, lower_is_better=False)

    def _speed(self, spec: dict[str, Any]) -> float:
        job = self.to.post("/v1/jobs", json.dumps(spec).encode())["id"]
        self._ended(job)
        lines = self.to.get(f"/v1/jobs/{job}/logs?stream=stdout")[1]["lines"]
        return float(lines[-1]["text"])

    def _speed_of_torchrun(self, words: tuple[str, ...]) -> float:
        file = self.directory / "speed"
        self._torchrun(LOOP, *words, "--result", str(file))
        return float(file.read_text())

    # -- both sides ------------------------------------------------------------------------------------

    def _prepared(self, program: Path, *arguments: str) -> dict[str, Any]:
        """The spec of a script's job over both hosts, which is submitted by nobody yet."""
        uploaded = upload_program(self.running, program)
        return {
            "name": f"bench-{program.stem}",
            "resources": {"devices": 1, "nodes": len(ADDRESSES)},
            "parallelism": {"strategy": "ddp"},
            "program": {"kind": "script", "bundle": uploaded, "entrypoint": program.name, "args": list(arguments)},
        }

    def _ended(self, job: str, expected: str = "succeeded") -> dict[str, Any]:
        """Its last status.

        Raises:
            RuntimeError: it ended otherwise.
        """
        status = self.to.end(job, DEADLINE_SECONDS)
        if status["state"] != expected:
            raise RuntimeError(f"job {job} is {status['state']}: {status['reason']['message']}")
        assert finished(status)
        return dict(status)

    def _agent(self, host: int, program: Path, *arguments: str) -> "subprocess.Popen[bytes]":
        meeting = [f"--nnodes={len(ADDRESSES)}", "--nproc_per_node=1", f"--node_rank={host}", "--rdzv_backend=c10d"]
        meeting += [f"--rdzv_endpoint={ADDRESSES[0]}:{RENDEZVOUS_PORT}", "--rdzv_id=bench"]
        meeting += [f"--local_addr={ADDRESSES[host]}", f"--rdzv_conf=is_host={host == 0}"]
        command = [str(peers.PYTHON), "-m", "torch.distributed.run", *meeting, str(program), *arguments]
        return subprocess.Popen(
            self.hosts.command(host, *command),
            env=peers.plain_environment(GLOO_SOCKET_IFNAME="eth0"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _torchrun(self, program: Path, *arguments: str) -> None:
        """A program over both hosts, to its end.

        Raises:
            RuntimeError: it failed.
        """
        agents = [self._agent(host, program, *arguments) for host in range(len(ADDRESSES))]
        try:
            codes = [agent.wait(DEADLINE_SECONDS) for agent in agents]
        finally:
            for agent in agents:
                _end_all(agent)
        if any(codes):
            raise RuntimeError(f"torchrun of {program.name} ended with exit codes {codes}")


def _moment(at: str) -> float:
    return datetime.fromisoformat(at).timestamp()


def _until(look: Callable[[], bool], what: str) -> None:
    """
    Raises:
        RuntimeError: it did not happen.
    """
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not look():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {DEADLINE_SECONDS:g} s: {what}")
        time.sleep(POLL_SECONDS)


def _ranks() -> list[psutil.Process]:
    """Those of the service, on both hosts: the kernel's names of processes are the same seen from everywhere."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess):
            if process.name().startswith(RANK) and _lives(process):
                found.append(process)
    return found


def _kill_one(ranks: list[psutil.Process], victim: psutil.Process) -> float:
    """Seconds from the death of one until none lives."""
    began = time.monotonic()
    victim.kill()
    while any(map(_lives, ranks)):
        if time.monotonic() - began > DEADLINE_SECONDS:
            raise RuntimeError(f"ranks still live {DEADLINE_SECONDS:g} s after the death of one")
        time.sleep(0.002)
    return time.monotonic() - began


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def _end_all(agent: "subprocess.Popen[bytes]") -> None:
    """An agent of torchrun, and its ranks, which are in sessions of their own."""
    if agent.poll() is None:
        for pid in reversed(family(agent.pid)):
            with suppress(psutil.NoSuchProcess):
                psutil.Process(pid).kill()
        agent.wait()
