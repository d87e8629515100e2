"""What must hold after every fault, I1 to I8: asked of Redis, its journal, processes, files and the HTTP history.

Nothing may be running when it is asked. Each rule is a function that says in words what breaks it.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import psutil
import redis

from jobs.files import metric_file, paths
from jobs.files.log_file import read_seal
from jobs.files.log_page import read_page
from jobs.model.state import CAUSE_OF, TERMINAL, TRANSITIONS, Cause, JobState, StateReason
from jobs.protocol.names import ATTEMPT_MARK
from tests.faults.scene.journal import Past, read_past
from tests.faults.scene.recorder import Exchange
from tests.integration.store.invariants import Keys, read_keys
from tests.integration.store.invariants import violations as broken_keys

#: Ends that no supervisor wrote, or for which the disk had no room: the logs have no seal then.
UNSEALED = frozenset(
    {
        StateReason.SUPERVISOR_LOST,
        StateReason.LEASE_EXPIRED,
        StateReason.NODE_LOST,
        StateReason.START_FAILED,
        StateReason.STORAGE_FAILED,
    }
)


@dataclass(frozen=True)
class Evidence:
    """Where to look, and what the test has allowed.

    `acked` are jobs that were accepted without HTTP. `losses` are the reasons for which the test's faults may end an
    attempt that is healthy. `may_drop` lets logs have `dropped` records and no seal, `may_quarantine` devices be set
    aside.
    `baselines` has, for a job's name, the essence of the report of an undisturbed run. `earlier` are refs of jobs that
    another test has answered for.
    """

    client: "redis.Redis"
    redis_directory: Path
    storage: Path
    state_dir: Path
    exchanges: tuple[Exchange, ...] = ()
    acked: tuple[str, ...] = ()
    losses: frozenset[StateReason] = frozenset()
    may_drop: bool = False
    may_quarantine: bool = False
    baselines: Mapping[str, Any] = field(default_factory=dict)
    earlier: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Scene:
    """The evidence, read."""

    of: Evidence
    keys: Keys
    past: Past
    jobs: Mapping[str, Mapping[bytes, bytes]]
    attempts: Mapping[str, Mapping[bytes, bytes]]


def violations(evidence: Evidence) -> list[str]:
    """Everything that is broken, each with its invariant; empty when all is well."""
    keys, past = read_keys(evidence.client), read_past(evidence.redis_directory)
    past.jobs = {ref: states for ref, states in past.jobs.items() if ref not in evidence.earlier}
    past.attempts = {ref: it for ref, it in past.attempts.items() if _job_of(ref) not in evidence.earlier}
    jobs = {ref: job for ref, job in keys.hashes_at("sy:job:").items() if ref not in evidence.earlier}
    attempts = keys.hashes_at("sy:attempt:").items()
    scene = _Scene(
        evidence, keys, past, jobs, {ref: it for ref, it in attempts if _job_of(ref) not in evidence.earlier}
    )
    found = [f"store: {words}" for words in broken_keys(evidence.client, one_version=False)]
    return found + [f"{name}: {words}" for name, rule in RULES.items() for words in rule(scene)]


def _job_of(attempt_ref: str) -> str:
    return attempt_ref.rpartition("/")[0]


def _accepted_jobs_end(scene: _Scene) -> Iterator[str]:
    by_key: dict[str, set[str]] = defaultdict(set)
    accepted = {f"default/{job}" for job in scene.of.acked}
    for exchange in scene.of.exchanges:
        if exchange.method == "POST" and exchange.path == "/v1/jobs" and 200 <= exchange.status < 300:
            accepted.add(f"default/{exchange.job}")
            by_key[exchange.key].add(exchange.job)
    for ref in accepted - scene.past.deleted:
        if ref not in scene.jobs:
            yield f"job {ref} was accepted and is not there"
    for ref, job in scene.jobs.items():
        if JobState(job[b"state"].decode()) not in TERMINAL:
            yield f"job {ref} is still {job[b'state'].decode()} ({job[b'reason'].decode()}: {job[b'message'].decode()})"
    for key, jobs in by_key.items():
        if key and len(jobs) > 1:
            yield f"Idempotency-Key {key} made {len(jobs)} jobs"


def _one_token_is_live(scene: _Scene) -> Iterator[str]:
    yield from scene.past.doubles
    commits: Counter[str] = Counter()
    for ref, attempt in scene.past.attempts.items():
        for part, claimants in attempt.claimants.items():
            if len(claimants) > 1:
                yield f"part {part} of attempt {ref} was claimed by {len(claimants)} supervisors"
        if attempt.states != [*dict.fromkeys(attempt.states)]:
            yield f"attempt {ref} went back: {attempt.states}"
        if len(attempt.reasons) > 1:
            yield f"attempt {ref} ended {len(attempt.reasons)} times: {attempt.reasons}"
        commits[_job_of(ref)] += attempt.reasons == [StateReason.COMPLETED]
    for job, times in commits.items():
        if times > 1:
            yield f"{times} attempts of job {job} completed"


def _numbers_have_no_gap(scene: _Scene) -> Iterator[str]:
    for ref, attempt in scene.attempts.items():
        tenant, job, number = ref.split("/")
        directory = paths.attempt_dir(scene.of.storage, tenant, job, int(number))
        if not directory.exists():
            continue
        for log in sorted(paths.logs_dir(directory).glob("device-*.log")):
            yield from (f"{ref} {log.name}: {words}" for words in _log(log, attempt, scene.of))
        yield from (f"{ref}: {words}" for words in _metrics(paths.metrics_file(directory)))


def _log(path: Path, attempt: Mapping[bytes, bytes], of: Evidence) -> Iterator[str]:
    after, covered = 0, list[int]()
    while True:
        page = read_page(path, after, limit=100_000, max_bytes=1 << 26)
        covered += [line.seq for line in page.lines]
        for dropped in page.dropped:
            covered += range(dropped.first, dropped.last + 1)
            if not of.may_drop:
                yield f"lines {dropped.first} to {dropped.last} were dropped"
        if page.next >= page.last or page.next <= after:
            break
        after = page.next
    if sorted(covered) != list(range(1, page.last + 1)):
        missing = sorted(set(range(1, page.last + 1)) - set(covered))
        yield f"of {page.last} lines, {len(missing)} are missing, first {missing[:3]}, and {len(covered)} were read"
    reason = attempt.get(b"reason", b"").decode()
    if reason and StateReason(reason) not in UNSEALED and not of.may_drop and read_seal(path) is None:
        yield f"has no seal, and its attempt ended as {reason}"


def _metrics(path: Path) -> Iterator[str]:
    for series in metric_file.read_series(path):
        numbers = [point.number for point in series.points]
        if numbers != list(range(1, len(numbers) + 1)):
            yield f"metric {series.name} of device {series.device} has a gap or a repeat"


def _devices_are_free(scene: _Scene) -> Iterator[str]:
    for name in scene.keys.hashes_at("sy:node:"):
        held = scene.keys.hashes.get(f"sy:held:{name}", {})
        bad = scene.keys.hashes.get(f"sy:quarantine:{name}", {})
        if held:
            yield f"node {name} still holds {held}"
        if bad and not scene.of.may_quarantine:
            yield f"node {name} has quarantined {bad}"
    if scene.keys.sets.get("sy:leases"):
        yield f"leases are left: {scene.keys.sets['sy:leases']}"


def _processes_are_gone(scene: _Scene) -> Iterator[str]:
    for pid, why in leftovers(scene.of.state_dir):
        yield f"process {pid} is left: {why}"
    left = {path.name for path in scene.of.state_dir.glob("*/attempts/*")}
    mine = {name for name in left if name.rpartition(".")[0].replace(".", "/", 1) not in scene.of.earlier}
    # Of a supervisor that was killed when it had given its devices back, only the next start of a worker clears away.
    if mine and StateReason.SUPERVISOR_LOST not in scene.of.losses:
        yield f"directories of attempts are left: {mine}"


def leftovers(state_dir: Path) -> Iterator[tuple[int, str]]:
    """Processes of attempts whose marks are in `state_dir`: such as have a file of an attempt open, or carry an
    attempt's name and were started below it."""
    for process in psutil.process_iter():
        try:
            links = list(Path(f"/proc/{process.pid}/fd").iterdir())
            opened = [str(link.readlink()) for link in links if "/attempts/" in str(link.readlink())]
            mine = [path for path in opened if path.startswith(str(state_dir))]
            marked = process.environ().get(ATTEMPT_MARK, "")
            if mine or (marked and str(state_dir) in process.cwd()):
                yield process.pid, f"{process.name()} {marked} {mine[:1]}"
        except (OSError, psutil.Error):
            continue


def _reports_equal_undisturbed_ones(scene: _Scene) -> Iterator[str]:
    for ref, job in scene.jobs.items():
        expected = scene.of.baselines.get(job.get(b"name", b"").decode())
        if expected is None or job[b"state"] != JobState.SUCCEEDED.encode():
            continue
        tenant, name = ref.split("/")
        found = essence(paths.attempt_dir(scene.of.storage, tenant, name, int(job[b"attempt"])), job)
        if found != expected:
            yield f"the report of {ref} differs from an undisturbed run's: {found} instead of {expected}"


def essence(attempt_directory: Path, job: Mapping[bytes, bytes]) -> Any:
    """What of a final report and a result must not depend on when, where and how often a job ran."""
    try:
        report = msgspec.json.decode(paths.report_file(attempt_directory).read_bytes())
    except OSError as error:
        return f"no report: {error}"
    patterns = [[p[key] for key in ("phase", "module", "batch_rows", "rows", "steps")] for p in report["patterns"]]
    rows = [[device["rows"], device["steps"]] for device in report["per_device"]]
    return {
        "final": report["final"],
        "strategy": report["strategy"],
        "patterns": patterns,
        "rows": rows,
        "curves": _curves(paths.metrics_file(attempt_directory)),
        "result": msgspec.json.decode(job[b"result"]) if job.get(b"result") else None,
    }


def _curves(path: Path) -> list[Any]:
    """Every point of every series that is no measure of time."""
    series = [one for one in metric_file.read_series(path) if "per_second" not in one.name]
    return [[one.device, one.name, [(point.number, point.step, point.value) for point in one.points]] for one in series]


def _states_follow_the_diagram(scene: _Scene) -> Iterator[str]:
    allowed = {(before, after) for before, afters in TRANSITIONS.items() for after in afters}
    for ref, states in scene.past.jobs.items():
        wrong = [pair for pair in pairwise(states) if pair not in allowed]
        if states[0] != JobState.QUEUED or wrong:
            yield f"job {ref} went {' -> '.join(states)}"
        ends = [state for state in states if state in TERMINAL]
        if len(ends) > 1:
            yield f"job {ref} ended {len(ends)} times: {ends}"
    seen: dict[str, str] = {}
    for exchange in scene.of.exchanges:
        if exchange.method == "GET" and exchange.status == 200 and exchange.state:
            before = seen.setdefault(exchange.job, exchange.state)
            if before in TERMINAL and exchange.state != before:
                yield f"job {exchange.job} was {before}, and {exchange.state} afterwards, as HTTP says"
            seen[exchange.job] = exchange.state


def _healthy_runs_are_left_alone(scene: _Scene) -> Iterator[str]:
    for ref, attempt in scene.past.attempts.items():
        for reason in map(StateReason, attempt.reasons if attempt.claimants else ()):  # what nobody claimed never ran
            if CAUSE_OF[reason] in (Cause.SERVICE, Cause.STOP) and reason not in scene.of.losses:
                words = scene.attempts.get(ref, {}).get(b"message", b"").decode()
                yield f"attempt {ref} was lost, which no fault of this test explains: {reason} ({words})"


RULES: dict[str, Callable[[_Scene], Iterator[str]]] = {
    "I1": _accepted_jobs_end,
    "I2": _one_token_is_live,
    "I3": _numbers_have_no_gap,
    "I4 devices": _devices_are_free,
    "I4 processes": _processes_are_gone,
    "I5": _reports_equal_undisturbed_ones,
    "I6": _states_follow_the_diagram,
    "I8": _healthy_runs_are_left_alone,
}


# -- I7 is asked before and after --------------------------------------------------------------------


@dataclass(frozen=True)
class Footprint:
    """What a process and a Redis server hold on to."""

    files: int
    threads: int
    resident_bytes: int
    connections: int
    redis_bytes: int

    @classmethod
    def of(cls, pid: int, client: "redis.Redis") -> "Footprint":
        process, info = psutil.Process(pid), client.info()
        return cls(
            files=process.num_fds(),
            threads=process.num_threads(),
            resident_bytes=process.memory_info().rss,
            connections=int(info["connected_clients"]),
            redis_bytes=int(info["used_memory"]),
        )

    def grown(self, since: "Footprint", *, megabytes: float = 60.0, handles: int = 12) -> list[str]:
        """What has not come back to what it was (I7). Pools keep a few connections and files; allocators keep pages."""
        slack = {
            "files": handles,
            "threads": 10,  # uvicorn's and anyio's pools
            "connections": handles,
            "resident_bytes": megabytes * 1e6,
            "redis_bytes": megabytes * 1e6,
        }
        pairs = {name: (getattr(since, name), getattr(self, name)) for name in slack}
        return [
            f"I7: {name} was {before} and is {now}"
            for name, (before, now) in pairs.items()
            if now > before + slack[name]
        ]
