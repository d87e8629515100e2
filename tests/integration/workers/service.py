"""A real worker with a real Redis, and what a test needs to say to them and see of them."""

import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import time
import uuid
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import psutil
from celery import Celery

from jobs import store
from jobs.files import paths
from jobs.files.log_page import LogRow, read_page
from jobs.model import spec
from jobs.model.records import AttemptRecord, JobRecord, NodeRecord
from jobs.model.settings import Settings
from jobs.model.spec_rules import parse_spec
from jobs.model.state import TERMINAL, JobState
from jobs.scheduling.celery_config import celery_config
from jobs.scheduling.hints import celery_message
from jobs.scheduling.scheduler import JobScheduler
from jobs.store import AttemptId, Hint
from jobs.store.client import RedisStore
from shardyard.contract.errors import JobFinished
from tests.integration.store.invariants import violations
from tests.support.servers.redis_server import RedisServer, redis_server
from workers.runtime.launch import AttemptDirectory
from workers.supervisor.process_sweep import sweep_attempt

T = TypeVar("T")

TENANT = "default"
NODE = "n1"
TESTS = Path(__file__).resolve().parents[2]
MODULE = [sys.executable, "-m", "workers"]
#: A worker imports torch, which takes seconds, or a minute on a busy machine.
WARM_SECONDS = 180.0
#: What is waited for comes within a few seconds, or in many times that on a busy machine; or never.
PATIENCE_SECONDS = 60.0


def eventually(look: Callable[[], T | None], what: str, seconds: float = PATIENCE_SECONDS) -> T:
    """What `look` gives as soon as it is true.

    Raises:
        AssertionError: it was not within `seconds`.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.01)
    raise AssertionError(f"not within {seconds:g} s: {what}")


def is_dead(pid: int) -> bool:
    """Whether a process is gone, or a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def children_named(name: str, pid: int) -> list[psutil.Process]:
    """Children of a process, some of which may just be ending."""
    found = []
    for child in psutil.Process(pid).children():
        with suppress(psutil.NoSuchProcess):
            if child.name() == name:
                found.append(child)
    return found


#: Half of a reserve is a file on the disk, and pytest keeps the directories of many services.
DEFAULTS: dict[str, Any] = {
    "devices": "cpu:8",
    "beat_seconds": 0.5,
    "reconcile_seconds": 0.5,
    "box": "off",
    "jobs_unboxed": True,
    "reserve_bytes": 64 << 20,
}


class _HintSender:
    """Sends hints over one Celery app, as workers and APIs do."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    def send(self, hint: Hint) -> None:
        self._app.send_task(**celery_message(hint))


class Service:
    """Redis, workers of node `NODE`, and a dispatcher that the test calls. `storage` is where files arrive. Jobs get no
    box unless `settings` ask for it: faulty programs leave notes in the service's directory, and tests look for the
    ranks' processes."""

    def __init__(self, directory: Path, server: RedisServer, **settings: float | str) -> None:
        self.directory = directory
        self.server = server
        self.storage = directory / "storage"
        self.settings = Settings(
            redis_url=server.url,
            state_dir=directory / "state",
            node=NODE,
            **({"storage": self.storage} | DEFAULTS | settings),
        )
        self.store = RedisStore.from_url(server.url)
        app = Celery("driver", set_as_current=False)
        app.conf.update(celery_config(self.settings))
        self._courier = _HintSender(app)
        self._scheduler = JobScheduler(self.store, self._courier, self.settings, listen=False)
        self.notes = directory / "notes"
        self.notes.mkdir()
        self.worker: subprocess.Popen[bytes] | None = None

    # -- the worker ------------------------------------------------------------------------------------

    def start_worker(self, command: list[str] = MODULE) -> None:
        """Start a worker, and wait until its node has registered."""
        before = self._registered()
        self.worker = self._spawn(command)
        eventually(lambda: self._registered() > before, f"the node registers; {self.worker_log()}", WARM_SECONDS)

    @contextmanager
    def another_worker(self, command: list[str] = MODULE, **settings: str) -> Iterator[subprocess.Popen[bytes]]:
        """A further worker, for the same node where `settings` name no other, which the test need not stop."""
        process = self._spawn(command, **settings)
        try:
            yield process
        finally:
            process.kill()
            process.wait(10)

    def _spawn(self, command: list[str], **settings: str) -> subprocess.Popen[bytes]:
        with (self.directory / "worker.log").open("ab") as log:
            return subprocess.Popen(command, env=self._environment() | settings, stdout=log, stderr=log)

    def _environment(self) -> dict[str, str]:
        chosen = {
            f"SHARDYARD_{name.upper()}": str(value)
            for name, value in self.settings.model_dump(exclude={"redis_url"}, exclude_defaults=True).items()
        }
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("SHARDYARD_")}
        # Only the worker's own path leads to the faulty programs: ranks must see what it sees.
        return inherited | chosen | {"SHARDYARD_REDIS_URL": self.server.url, "PYTHONPATH": str(TESTS)}

    def _registered(self) -> int:
        return next((node.registered for node in self.store.run(store.read_fleet()).nodes if node.id == NODE), 0)

    def worker_log(self) -> str:
        return (self.directory / "worker.log").read_text()

    def events(self, name: str) -> list[dict[str, Any]]:
        """What the workers have logged under an event's name."""
        written = self.worker_log().rpartition("\n")[0]  # the last line may be half written
        lines = (line for line in written.splitlines() if line.startswith("{"))
        return [entry for entry in map(json.loads, lines) if entry["event"] == name]

    def stop_worker(self, seconds: float = PATIENCE_SECONDS) -> int:
        """As SIGTERM; the exit code."""
        assert self.worker is not None
        self.worker.terminate()
        return self.worker.wait(seconds)

    def kill_worker(self) -> None:
        assert self.worker is not None
        self.worker.kill()
        self.worker.wait(10)

    # -- jobs ------------------------------------------------------------------------------------------

    def submit(self, strategy: str = "single", devices: int = 1, **options: Any) -> str:
        """Submit a job and have it started at once; options as in `a_spec`."""
        job = self.enqueue(strategy, devices, **options)
        self.dispatch_jobs()
        return job

    def enqueue(self, strategy: str = "single", devices: int = 1, *, name: str = "", **options: Any) -> str:
        """Submit a job, which waits until something calls `deliver`."""
        chosen = self.spec(strategy, devices, **options)
        return self.run(store.submit(TENANT, name or uuid.uuid4().hex, chosen)).job

    def spec(
        self,
        strategy: str = "single",
        devices: int = 1,
        *,
        fault: str = "",
        steps: int = 4,
        rows: int = 12,
        nodes: int = 1,
        limits: dict[str, Any] | None = None,
        checkpoint: dict[str, Any] | None = None,
        **model: Any,
    ) -> spec.JobSpec:
        """A job of `steps` steps over `rows` rows a batch, whose model commits `fault` (`faulty_programs.faults`)."""
        args = {"notes": str(self.notes), "fault": fault} | model
        data = {"rows": rows * steps * devices * nodes, "features": 5}
        program = {
            "model": {"ref": "faulty_programs.models:Faulty", "args": args},
            "data": {"ref": "random_vectors", "args": data, "batch_size": rows},
            "loss": {"ref": "cross_entropy"},
            "optimizer": {"ref": "sgd", "args": {"lr": 0.1}},
            "max_steps": steps,
        } | ({} if checkpoint is None else {"checkpoint": checkpoint})
        body = {
            "program": program,
            "parallelism": {"strategy": strategy},
            "resources": {"devices": devices, "nodes": nodes},
            "limits": limits or {},
        }
        return parse_spec(json.dumps(body))

    def run_script(
        self,
        files: Mapping[str, str],
        *args: str,
        strategy: str = "single",
        devices: int = 1,
        nodes: int = 1,
        entrypoint: str = "train.py",
        limits: dict[str, Any] | None = None,
        weights: Sequence[float] | None = None,
        **program: Any,
    ) -> str:
        """Upload source files as a bundle, and submit the one that is to run; further fields are those of `program`."""
        chosen = {"kind": "script", "bundle": self.bundle(files), "entrypoint": entrypoint, "args": args, **program}
        how = {
            "parallelism": {"strategy": strategy, **({} if weights is None else {"weights": weights})},
            "resources": {"devices": devices, "nodes": nodes},
            "limits": limits or {},
        }
        job = self.run(store.submit(TENANT, uuid.uuid4().hex, parse_spec(json.dumps({"program": chosen, **how})))).job
        self.dispatch_jobs()
        return job

    def run_recipe(
        self,
        bundle: str,
        model: dict[str, Any],
        strategy: str = "single",
        devices: int = 1,
        weights: Sequence[float] | str | None = None,
        **program: Any,
    ) -> str:
        """Submit a recipe that takes its model from a bundle, and have it started; further fields are those of
        `program`."""
        body = self.spec(strategy, devices).model_dump(mode="json")
        body["program"] |= {"bundle": bundle, "model": model, **program}
        body["parallelism"]["weights"] = weights
        job = self.run(store.submit(TENANT, uuid.uuid4().hex, parse_spec(json.dumps(body)))).job
        self.dispatch_jobs()
        return job

    def bundle(self, files: Mapping[str, str]) -> str:
        """The id of a bundle with these files, which is put where the API would put it."""
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            for name, text in files.items():
                archive.writestr(zipfile.ZipInfo(name), text)
        body = packed.getvalue()
        bundle, nonce = "sha256:" + hashlib.sha256(body).hexdigest(), uuid.uuid4().hex
        path = paths.bundle_file(self.storage, TENANT, bundle, nonce)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
        unpacked = sum(map(len, files.values()))
        put = self.run(
            store.put_bundle(TENANT, bundle, nonce, size=len(body), files=len(files), unpacked=unpacked, quota=1 << 30)
        )
        if not put.created:
            path.unlink()
        return bundle

    def long(self, strategy: str = "single", devices: int = 1, **options: Any) -> str:
        """A job that takes minutes, in its second step at least."""
        job = self.submit(strategy, devices, **{"steps": 10_000, "seconds": 0.02, "rows": 2} | options)
        eventually(lambda: self.job(job).first_step, f"first step of {job}")
        return job

    def held(self, job: str) -> None:
        """Wait until a rank stands still in a job with the fault `wait_for_the_test`."""
        eventually(self._sign("held", job).exists, f"a rank of {job} waits for the test")

    def let_go(self, job: str) -> None:
        """Have a job with the fault `wait_for_the_test` go on, and all later attempts of it."""
        self._sign("go", job).touch()

    def _sign(self, what: str, job: str) -> Path:
        return self.notes.with_name(f"{what}-{job}")

    def dispatch_jobs(self) -> None:
        self._scheduler.dispatch_jobs()

    def send(self, hint: store.Hint) -> None:
        self._courier.send(hint)

    def run(self, call: store.Call[T]) -> T:
        return self.store.run(call)

    def cancel(self, job: str) -> None:
        try:
            self.run(store.cancel(TENANT, job))
        except JobFinished:
            raise AssertionError(f"it has ended by itself: {self.job(job)}") from None

    def job(self, job: str) -> JobRecord:
        return self.run(store.read_job(TENANT, job)).record

    def attempts(self, job: str) -> tuple[AttemptRecord, ...]:
        return self.run(store.list_attempts(TENANT, job))

    def attempt(self, job: str, number: int | None = None) -> AttemptId:
        """An attempt of a job, the newest if no other is asked for."""
        return AttemptId(TENANT, job, number or self.job(job).attempt)

    def finished(self, job: str, seconds: float = PATIENCE_SECONDS) -> JobRecord:
        """The job as soon as it has ended. Its devices may be held a little longer."""
        return eventually(lambda: self._if(job, lambda found: found.state in TERMINAL), f"the end of {job}", seconds)

    def ended(self, job: str, seconds: float = PATIENCE_SECONDS) -> JobRecord:
        """The job when it has ended and its devices are free again."""
        record = self.finished(job, seconds)
        eventually(lambda: not self.held_by(job), f"the devices of {job}", seconds)
        return record

    def reaches(self, job: str, state: JobState, attempt: int = 1, seconds: float = PATIENCE_SECONDS) -> JobRecord:
        what = f"{job} is {state} in attempt {attempt}"
        return eventually(
            lambda: self._if(job, lambda found: (found.state, found.attempt) == (state, attempt)), what, seconds
        )

    def _if(self, job: str, true: Callable[[JobRecord], bool]) -> JobRecord | None:
        record = self.job(job)
        return record if true(record) else None

    # -- traces ----------------------------------------------------------------------------------------

    def node(self) -> NodeRecord:
        return next(node for node in self.run(store.read_fleet()).nodes if node.id == NODE)

    def held_by(self, job: str) -> list[int]:
        return [device for device, ref in self.node().held.items() if job in ref]

    def marks(self, attempt: AttemptId) -> AttemptDirectory:
        return AttemptDirectory.of(self.directory / "state" / NODE, attempt)

    def supervisor(self, attempt: AttemptId) -> int:
        return int(self.marks(attempt).session.read_text().split()[0])

    def noted(self) -> list[int]:
        """Ranks, and processes that they have started, as far as they have noted themselves."""
        return [int(path.name) for path in self.notes.iterdir()]

    def living(self) -> list[int]:
        return [pid for pid in self.noted() if not is_dead(pid)]

    def ranks(self, attempt: AttemptId) -> list[int]:
        """Living processes of the session of an attempt's supervisor, without that."""
        leader = self.supervisor(attempt)
        return [pid for pid in self.living() if os.getsid(pid) == leader and pid != leader]

    def steps_done(self, job: str, number: int = 1) -> int:
        """How many steps the first device's log has heard of (`talks`)."""
        path, steps, before, after = paths.log_file(self.files(job, number), 0), 0, -1, 0
        while after > before:
            page = read_page(path, after, limit=100_000)
            steps += sum(line.text.startswith(b"step ") for line in page.lines)
            before, after = after, page.next
        return steps

    def files(self, job: str, number: int = 1) -> Path:
        return paths.attempt_dir(self.storage, TENANT, job, number)

    def report(self, job: str, number: int = 1) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(paths.report_file(self.files(job, number)).read_bytes())
        return found

    def lines(self, job: str, device: int = 0, number: int = 1) -> list[LogRow]:
        """The whole log of a device, which must be sealed and without a gap."""
        path, found, after = paths.log_file(self.files(job, number), device), [], 0
        while True:
            page = read_page(path, after, limit=100_000, max_bytes=1 << 26)
            assert page.dropped == []
            found += page.lines
            if page.sealed and page.next >= page.last:
                break
            assert page.next > after, "the log has no seal"
            after = page.next
        assert [line.seq for line in found] == list(range(1, len(found) + 1))
        return found

    def text(self, job: str, device: int = 0, stream: str = "stdout", number: int = 1) -> str:
        return b"\n".join(line.text for line in self.lines(job, device, number) if line.stream == stream).decode()

    def leaves_nothing(self) -> None:
        """Check that no job has left a process, a device or a directory behind. Nothing may be running."""
        for path in self.notes.iterdir():
            eventually(partial(is_dead, int(path.name)), f"process {path.name} is gone")
            path.unlink()
        assert self.node().held == {}
        assert self.node().quarantine == {}
        directories = self.directory / "state" / NODE / "attempts"
        eventually(lambda: not list(directories.glob("*")), f"no directory is left in {directories}")
        assert violations(self.store.client) == []

    def restore(self) -> None:
        """Have a worker run, and end what a failed test has left."""
        self.restore_worker()
        self.end_all()

    def restore_worker(self) -> None:
        """Start a worker unless one runs."""
        if self.worker is None or self.worker.poll() is not None:
            self.start_worker()

    def end_all(self) -> None:
        """Cancel what a failed test has left running."""
        for record in self.run(store.list_jobs(TENANT, store.JobFilter())).jobs:
            if record.state not in TERMINAL:
                self.cancel(record.id)
                self.ended(record.id)
        for path in self.notes.iterdir():
            path.unlink()

    def close(self) -> None:
        if self.worker is not None and self.worker.poll() is None:
            self.kill_worker()
        directories = self.directory / "state" / NODE / "attempts"
        for path in directories.iterdir() if directories.exists() else ():
            tenant, job, number = path.name.split(".")
            sweep_attempt(AttemptDirectory(path), AttemptId(tenant, job, int(number)))
        for pid in self.living():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.store.close()


@contextmanager
def running_service(directory: Path, command: list[str] = MODULE, **settings: float | str) -> Iterator[Service]:
    """Redis and one worker, started by `command`. Settings are those of `jobs.model.settings`."""
    directory.mkdir(parents=True, exist_ok=True)
    with redis_server(directory / "redis", appendonly="yes", appendfsync="always") as server:
        service = Service(directory, server, **settings)
        try:
            service.start_worker(command)
            yield service
        finally:
            service.close()
