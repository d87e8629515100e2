"""What the service costs while nothing runs: an API process's start and memory, and everything of `shardyard up`.

API: `python -m api` with the product's defaults, on two Redis servers and a node that are there already, from its
`exec` to the first 200 of `/readyz`; then its memory, after a rest in which it imports what it will need for its first
job. Against `programs/small_api.py`, the smallest FastAPI service on Redis, started and asked in the same way.

`shardyard up`: memory (PSS) and processor time of all of its processes, after a rest, with 2 and 8 virtual devices.
Against the idle head of a Ray cluster on the same machine (not in quick runs). Neither has run a job.
"""

import http.client
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.harness import peers
from benchmarks.harness.comparing import Figure, Say, Scale, at_most, in_turns, times_better
from benchmarks.harness.machine import family, pss_bytes, thread_cpu_seconds
from benchmarks.harness.servers import redis_server
from benchmarks.harness.service import service
from jobs import store
from jobs.model.records import DeviceRecord, NodeInfo
from jobs.store.client import RedisStore

TITLE = "what the service costs while nothing runs"

READY_SECONDS = 30.0
END_SECONDS = 20.0
#: Between two looks at whether a process is ready.
POLL_SECONDS = 0.002
SMALL = Path(__file__).parent / "programs" / "small_api.py"
#: In which a process that is just ready does what it left for later.
SETTLE_SECONDS = 1.5


def run(scale: Scale, say: Say) -> list[Figure]:
    return [*_api(scale, say), *_whole(scale, say)]


# -- one API process -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started:
    """One process of a side: how long it took to be ready, and what it takes when it rests."""

    seconds: float
    cpu_seconds: float
    pss: float
    rss: float


def _api(scale: Scale, say: Say) -> list[Figure]:
    with ExitStack() as stack:
        control, telemetry = (stack.enter_context(redis_server(name)) for name in ("control", "telemetry"))
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shardyard-bench-")))
        _register_node(control.url)
        settings = {
            "SHARDYARD_REDIS_URL": control.url,
            "SHARDYARD_TELEMETRY_URL": telemetry.url,
            "SHARDYARD_STORAGE": str(directory / "storage"),
            "SHARDYARD_ADMIN_TOKEN_FILE": str(directory / "admin.token"),
        }
        sides: dict[str, Callable[[], Started]] = {
            "shardyard": lambda: _start(lambda port: ("-m", "api"), settings, directory),
            "small FastAPI": lambda: _start(lambda port: (str(SMALL), control.url, str(port)), {}, directory),
        }
        found = in_turns(sides, scale.rounds_of(3, 1), say=say, warm_up=0)
    of = {
        what: {side: [getattr(each, what) for each in samples] for side, samples in found.items()}
        for what in ("seconds", "cpu_seconds", "pss", "rss")
    }
    return [
        Figure("API process: exec to ready", "s", of["seconds"], [at_most(0.8)]),
        Figure("API process: CPU time until it rests", "s", of["cpu_seconds"]),
        Figure("API process: memory (PSS)", "bytes", of["pss"], [at_most(90e6)]),
        Figure("API process: memory (RSS)", "bytes", of["rss"], note="what it shares with others counted in full"),
    ]


def _register_node(url: str) -> None:
    """`/readyz` asks for a node that takes work."""
    control = RedisStore.from_url(url)
    devices = tuple(DeviceRecord(index=i, kind="cpu", ordinal=i, id=f"cpu:{i}", name="virtual") for i in range(2))
    info = NodeInfo(host="bench", cores=2, version="0", devices=devices)
    control.run(store.register_node("bench", "bench", "default", "127.0.0.1", info, home="bench"))
    control.close()


def _start(command: Callable[[int], Sequence[str]], settings: dict[str, str], directory: Path) -> Started:
    """Start one process, wait until it is ready and rests, and end it.

    Raises:
        RuntimeError: it was not ready in time, or ended.
    """
    port = _free_port()
    with (directory / "api.log").open("ab") as log:
        began = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, *command(port)],
            env=os.environ | settings | {"SHARDYARD_PORT": str(port)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            _wait_until_ready(port, process)
            seconds = time.monotonic() - began
            time.sleep(SETTLE_SECONDS)
            memory = psutil.Process(process.pid).memory_full_info()
            return Started(seconds, thread_cpu_seconds(process.pid), memory.pss, memory.rss)
        finally:
            process.terminate()
            process.wait(END_SECONDS)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_ready(port: int, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not _is_ready(port):
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("an API process is not ready, or has ended")
        time.sleep(POLL_SECONDS)


def _is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=READY_SECONDS)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


# -- everything ----------------------------------------------------------------------------------------


def _whole(scale: Scale, say: Say) -> list[Figure]:
    figures = []
    with ExitStack() as stack:
        # Ray has no torch imported and another environment: next to nothing is shared between the two families.
        theirs = {} if scale.quick else {"Ray head": stack.enter_context(_parts_of_ray())}
        for devices in scale.pick((2, 8), (2,)):
            with _parts_of_up(devices, scale.pick(4.0, 1.0)) as ours:
                sides = {"shardyard up": ours} | theirs
                rested = _rest(sides, scale.rounds_of(2, 1), scale.pick(4.0, 2.0), say)
            figures += _figures(rested, devices)
    return figures


@contextmanager
def _parts_of_up(devices: int, settle_seconds: float) -> Iterator[dict[str, int]]:
    """Process ids of a service that has been idle for a while, by what they are."""
    with service(f"cpu:{devices}") as found:
        time.sleep(settle_seconds)  # the next supervisor is forked ahead only when nothing has been asked for a moment
        worker = found.pid_of("workers")
        parts = {"up": found.pid, "worker": worker}
        parts |= {name: found.pid_of(f"/{name}/") for name in ("control", "telemetry")} | {"api": found.pid_of("api")}
        below = [pid for pid in family(worker) if pid != worker]
        parts |= dict(zip(("supervisor forked ahead", "forkserver"), below, strict=True))
        if set(parts.values()) != set(family(found.pid)):
            raise LookupError(f"`shardyard up` has processes that this benchmark does not know: {family(found.pid)}")
        yield parts


@contextmanager
def _parts_of_ray() -> Iterator[dict[str, int]]:
    with peers.ray_head(_free_port()) as ray:
        root = ray.pids[0]
        yield {f"process {number}": pid for number, pid in enumerate(family(root))}


@dataclass(frozen=True, slots=True)
class Rested:
    """Of each part of one side, by its name, over one stretch of doing nothing."""

    pss: dict[str, float]
    cpu: dict[str, float]  # seconds a minute
    switches: dict[str, float]  # times a second that it, or one of its threads, was woken


def _rest(sides: dict[str, dict[str, int]], rounds: int, seconds: float, say: Say) -> dict[str, list[Rested]]:
    """Both sides rest at the same time: each is charged with its own time only."""
    found: dict[str, list[Rested]] = {side: [] for side in sides}
    for number in range(rounds):
        before = {side: {name: _used(pid) for name, pid in parts.items()} for side, parts in sides.items()}
        began = time.monotonic()
        time.sleep(seconds)
        for side, parts in sides.items():
            passed = time.monotonic() - began
            after = {name: _used(pid) for name, pid in parts.items()}
            cpu = {name: (after[name][0] - before[side][name][0]) * 60 / passed for name in parts}
            switches = {name: (after[name][1] - before[side][name][1]) / passed for name in parts}
            found[side].append(Rested({name: float(pss_bytes([pid])) for name, pid in parts.items()}, cpu, switches))
        say(f"rested {number + 1} of {rounds}")
    return found


def _used(pid: int) -> tuple[float, int]:
    """Seconds of processor time, and how often a thread of this process gave the processor up by itself."""
    switches = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        lines = (task / "status").read_text().splitlines()
        switches += int(next(line for line in lines if line.startswith("voluntary_ctxt_switches")).split()[1])
    return thread_cpu_seconds(pid), switches


def _figures(rested: dict[str, list[Rested]], devices: int) -> list[Figure]:
    ours = rested["shardyard up"]
    against = "Ray head" in rested
    pss = {side: [sum(each.pss.values()) for each in samples] for side, samples in rested.items()}
    cpu = {side: [sum(each.cpu.values()) for each in samples] for side, samples in rested.items()}
    count = {side: [float(len(each.pss)) for each in samples] for side, samples in rested.items()}
    title = f"shardyard up, {devices} devices"
    figures = [
        Figure(
            f"{title}: memory (PSS)",
            "bytes",
            pss,
            [at_most(500e6), *([times_better("Ray head", 1)] if against else [])],
        ),
        Figure(f"{title}: processes", "", count),
        Figure(f"{title}: CPU time a minute", "s", cpu),
    ]
    for name in ours[0].pss:
        figures += [
            Figure(f"{title}: {name}, memory (PSS)", "bytes", {"shardyard": [each.pss[name] for each in ours]}),
            Figure(f"{title}: {name}, CPU time a minute", "s", {"shardyard": [each.cpu[name] for each in ours]}),
            Figure(f"{title}: {name}, wake-ups a second", "", {"shardyard": [each.switches[name] for each in ours]}),
        ]
    return figures
