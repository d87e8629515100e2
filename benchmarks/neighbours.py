"""What a training run loses while somebody else's job goes wrong beside it, and how long the API's answers take then.

Two jobs on one node: one trains on one thread and prints its steps per second. Beside it, one after the other, run jobs
that fork without an end, take memory, fill the disk, print without an end, or report metrics without an end
([bomb.py](programs/bomb.py)). Before each bomb there are some seconds without one, which it is compared with: so both
sides see the same machine. A bomb counts from its POST to its end. What a job may use is the default, but for less
memory and disk, so that a small machine reaches the limits.

Answers of the API are status polls over one connection, one every 20 ms. On a machine with two cores a bomb computes on
the core that is free; a training run that wants both shares that one with it, as with any other job.
"""

import threading
import time
from pathlib import Path
from statistics import median

from benchmarks.harness.comparing import Figure, Say, Scale, at_most, share_of
from benchmarks.harness.connection import Connection
from benchmarks.harness.service import Service, environment, service

TITLE = "A training run beside a job that goes wrong"
BESIDE, ALONE = "beside it", "without it"
PROGRAMS = Path(__file__).parent / "programs"
DOES = {
    "nothing": "computes on one thread",
    "processes": "forks without an end",
    "memory": "takes all memory",
    "disk": "fills the disk",
    "log": "prints without an end",
    "records": "reports metrics without an end",
}
BOMBS = tuple(DOES)
#: Seconds of training between two bombs, which are compared with the next one's.
REST_SECONDS = 8.0
JOB_SECONDS = 120.0
#: What is measured of a bomb that ends at once.
LEAST_SECONDS = 2.0
POLL_SECONDS = 0.02
#: Less than the defaults, which a small machine never reaches.
LIMITS = {"SHARDYARD_JOB_MEMORY_BYTES": str(2 << 30), "SHARDYARD_JOB_DISK_BYTES": str(2 << 30)}
KEPT_SHARE = 0.9
ANSWER_SECONDS = 0.1


def run(scale: Scale, say: Say) -> list[Figure]:
    steps: dict[str, dict[str, list[float]]] = {}
    answers: dict[str, dict[str, list[float]]] = {}
    with environment(LIMITS), service("cpu:2") as running:
        training = running.client.submit_script(PROGRAMS / "steady_training.py", devices=1)
        with Polls(running, training.id) as polls, Connection(running.url, running.token) as to:
            while not _rates(to, training.id):
                time.sleep(REST_SECONDS)
            for _ in range(scale.rounds_of(3, 1)):
                for bomb in scale.pick(BOMBS, BOMBS[:2]):
                    moments = [time.time()]
                    time.sleep(REST_SECONDS)
                    moments.append(time.time())
                    reason = _explode(running, bomb)
                    moments.append(max(time.time(), moments[-1] + LEAST_SECONDS))
                    time.sleep(LEAST_SECONDS)  # the training has printed its rates until then
                    rates = _rates(to, training.id)
                    for name, (begin, end) in {BESIDE: moments[1:], ALONE: moments[:2]}.items():
                        found = [rate for at, rate in rates if begin + 0.5 <= at <= end]
                        steps.setdefault(bomb, {}).setdefault(name, []).append(median(found))
                        answers.setdefault(bomb, {}).setdefault(name, []).append(polls.percentile(begin, end))
                    say(f"{bomb}: {reason} after {moments[2] - moments[1]:.1f} s")
        training.cancel()
    return [
        *(
            Figure(
                f"training beside a job that {DOES[bomb]}",
                "steps/s",
                found,
                [share_of(ALONE, KEPT_SHARE)],
                lower_is_better=False,
            )
            for bomb, found in steps.items()
        ),
        *(
            Figure(f"status polls beside a job that {DOES[bomb]}, p99", "s", found, [at_most(ANSWER_SECONDS)])
            for bomb, found in answers.items()
        ),
    ]


class Polls:
    """Asks for a job's status every so often, in a thread. For `with`."""

    def __init__(self, running: Service, job: str) -> None:
        self._taken: list[tuple[float, float]] = []  # when, seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask, args=(running, f"/v1/jobs/{job}"))

    def __enter__(self) -> "Polls":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def percentile(self, begin: float, end: float) -> float:
        """The 99th of the answers that were asked for between two moments."""
        taken = sorted(seconds for at, seconds in self._taken if begin <= at <= end)
        return taken[int(0.99 * len(taken))]

    def _ask(self, running: Service, path: str) -> None:
        with Connection(running.url, running.token) as to:
            while not self._stop.wait(POLL_SECONDS):
                at, began = time.time(), time.perf_counter()
                to.get(path)
                self._taken.append((at, time.perf_counter() - began))


def _explode(running: Service, bomb: str) -> str:
    """Run a bomb to its end; why that came."""
    job = running.client.submit_script(PROGRAMS / "bomb.py", [bomb], devices=1)
    return job.wait(timeout=JOB_SECONDS, check=False).status.reason.code


def _rates(to: Connection, job: str) -> list[tuple[float, float]]:
    """Moments, and the steps per second of the half second before each."""
    lines = to.get(f"/v1/jobs/{job}/logs?stream=stdout&tail=1000")[1]["lines"]
    return [(float(at), float(rate)) for at, rate in (line["text"].split() for line in lines)]
