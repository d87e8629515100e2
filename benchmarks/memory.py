"""Redis memory of a finished job with two devices and two patterns, against a plain hash with the spec as JSON.

Ours: jobs led to their end by the calls that API, scheduler and supervisors make, in a server with the product's
configuration; what is left in the telemetry Redis comes from the supervisor's own publisher. Bytes are the difference
of `used_memory`, divided by the jobs, and `MEMORY USAGE` of the telemetry's keys.
The plain side has the same specs and the same end, written as one would by hand: one hash a job, the spec as JSON in
one field, one sorted set of ids; no attempts, no report.

Not in the first figure, since they go by themselves: the windows of logs and metrics, the progress, the final report's
last seconds, and the list of changes, which has ten thousand entries for all jobs together. They have figures of their
own, with how long they live.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import msgspec
import redis

from benchmarks.harness import finished
from benchmarks.harness.comparing import Figure, Say, Scale, at_most
from benchmarks.harness.finished import Made, Maker
from benchmarks.harness.servers import redis_server
from workers.supervisor.telemetry.report_publisher import WRITTEN_TTL

TITLE = "Redis memory of a finished job"
OURS, PLAIN = "shardyard", "hash with JSON"
GOAL = 2_048.0
#: Jobs before the first that is measured: servers allocate this and that for their first ones.
FIRST = 200
TOKEN = "0123456789ab"


def run(scale: Scale, say: Say) -> list[Figure]:
    sizes = scale.pick((1_000, 4_000, 12_000), (100, 300, 1_000))
    control = _control(sizes)
    plain = {size: _plain(size) for size in sizes}
    keyed = _control(sizes[:1], keys=True)[sizes[0]]
    published = {
        (devices, patterns): _telemetry(devices, patterns, scale.pick(50, 10))
        for devices, patterns in ((2, 2), (1, 2), (4, 2), (8, 2), (2, 1), (2, 8))
    }
    for size in sizes:
        bytes_of = control[size]
        say(f"{size} jobs: {bytes_of.lasting:.0f} bytes a job, plain {plain[size]:.0f}")
    name, goals = "memory of a finished job, report included", [at_most(GOAL)]
    figures = [
        Figure(
            name,
            "bytes",
            {OURS: [control[size].lasting], PLAIN: [plain[size]]},
            goals,
            size=float(size),
            size_of="jobs",
            note="the report is a file",
        )
        for size in sizes
    ]
    figures.append(_alone("memory of an Idempotency-Key, for a week", keyed.lasting - control[sizes[0]].lasting))
    figures.append(_alone("memory of the list of changes, all jobs together", control[sizes[-1]].changes))
    for devices in (1, 2, 4, 8):
        found = control if devices == 2 else _control(sizes[:1], devices)
        figures += _growth("devices", devices, found[sizes[0]].lasting, published[devices, 2])
    for patterns in (1, 2, 8):
        figures += _growth("patterns", patterns, control[sizes[0]].lasting, published[2, patterns])
    for what, (each, seconds) in sorted(published[2, 2].passing.items()):
        figures.append(_alone(f"memory of an ended attempt's {what}, for {seconds} s", each))
    return figures


def _alone(name: str, value: float, note: str = "") -> Figure:
    return Figure(name, "bytes", {OURS: [value]}, note=note)


def _growth(size_of: str, size: int, control: float, published: "_Published") -> list[Figure]:
    """What a job takes, and its report, which is a file."""
    of: dict[str, Any] = {"size": float(size), "size_of": size_of}
    return [
        Figure(f"memory of a finished job by its {size_of}", "bytes", {OURS: [control]}, **of),
        Figure(f"report's file by the job's {size_of}", "bytes", {OURS: [published.file]}, **of),
    ]


@dataclass(frozen=True, slots=True)
class _Control:
    lasting: float  # bytes a job, without the list of changes
    changes: float  # bytes of that list in all


def _control(sizes: Sequence[int], devices: int = 2, *, keys: bool = False) -> dict[int, _Control]:
    """For each of some numbers of jobs, which grow."""
    found = {}
    with redis_server("control") as server, redis.Redis.from_url(server.url, socket_timeout=60) as client:
        maker = Maker(client, keys=keys)
        maker.finish(list(finished.specs(FIRST, devices, seed=1)), TOKEN)
        before = _used(client) - _of_key(client, "sy:changes")
        wanted = finished.specs(max(sizes), devices)
        for more, size in pairwise((0, *sizes)):
            maker.finish(list(islice(wanted, size - more)), TOKEN)
            changes = _of_key(client, "sy:changes")
            found[size] = _Control((_used(client) - changes - before) / size, changes)
    return found


def _plain(jobs: int) -> float:
    """Bytes a job, laid out by hand."""
    with redis_server("control") as server, redis.Redis.from_url(server.url, socket_timeout=60) as client:
        before = _used(client)
        with client.pipeline(transaction=False) as pipe:
            for number, each in enumerate(finished.specs(jobs)):
                job = f"{number:032x}"
                end = {"state": "succeeded", "created": 1_795_301_773_448_678, "started": 1_795_301_773_484_608}
                end |= {"finished": 1_795_301_773_494_220, "node": "gpu-host-0", "devices": "16,17", "attempt": 1}
                body = {"spec": each.model_dump_json(exclude_none=True), "name": each.name or "", "result": _RESULT}
                pipe.hset(f"job:{job}", mapping=end | body | {"labels": msgspec.json.encode(each.labels)})
                pipe.zadd("jobs", {job: number})
            pipe.execute()
        return (_used(client) - before) / jobs


_RESULT = '{"loss":0.06,"metrics":{"accuracy":0.97}}'


@dataclass(frozen=True, slots=True)
class _Published:
    """What publishing has left, in bytes a job: what passes (by kind: bytes, seconds), and the report."""

    passing: dict[str, tuple[float, int]]
    file: float


def _telemetry(devices: int, patterns: int, jobs: int) -> _Published:
    """Raises:
    RuntimeError: the final report would stay longer than it is said to.
    """
    with (
        tempfile.TemporaryDirectory(prefix="shardyard-bench-") as directory,
        redis_server("telemetry") as server,
        redis.Redis.from_url(server.url, socket_timeout=60) as client,
    ):
        size, lives = dict[str, float](), dict[str, int]()
        files = 0
        for number, each in enumerate(finished.recipe_specs(jobs, devices)):
            made = Made(f"00000000-0000-7000-8000-{number:012x}", each)
            finished.publish(server.url, Path(directory), made, patterns)
            files += (Path(directory) / made.job / "report.json").stat().st_size
            for key in client.scan_iter(match=f"sy:*{made.job}*"):
                kind = key.decode().split(":")[1]
                size[kind] = size.get(kind, 0) + _of_key(client, key) / jobs
                lives[kind] = max(lives.get(kind, 0), client.ttl(key))
        if lives.get("report", 0) > WRITTEN_TTL:
            raise RuntimeError("a final report stays in the telemetry Redis though its file is written")
        passing = {_WORDS[kind]: (size[kind], lives[kind]) for kind in size}
        return _Published(passing, files / jobs)


_WORDS = {"log": "windows of its logs", "metrics": "window of its metrics", "progress": "progress", "report": "report"}


def _used(client: "redis.Redis") -> int:
    return int(client.info("memory")["used_memory"])


def _of_key(client: "redis.Redis", key: str | bytes) -> int:
    return int(client.memory_usage(key, samples=0) or 0)
