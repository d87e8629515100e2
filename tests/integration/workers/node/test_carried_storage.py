"""A node whose storage is not mounted: what its jobs leave arrives at the remote, whatever that does meanwhile, and
other nodes go on from there."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from types import MappingProxyType

import pytest

from jobs import store
from jobs.files import checkpoints, identity, paths
from jobs.model.state import JobState, StateReason
from tests.faults.scene.recorder import Caller
from tests.faults.scene.site import TOKEN, Api
from tests.integration.workers.service import MODULE, NODE, TENANT, WARM_SECONDS, Service, eventually
from tests.integration.workers.supervisor.test_checkpoints import STEPS, commits, submit
from tests.support.servers.redis_server import redis_server
from workers.carrier.journal import carried_attempts

pytestmark = [pytest.mark.integration, pytest.mark.slow]

OTHER = "n2"
LOST_SECONDS = 8.0
#: It prints, and leaves a file that the storage has byte for byte.
SCRIPT = """
import os, pathlib, sys
body = bytes(range(256)) * 20_000
pathlib.Path(os.environ["SHARDYARD_OUTPUT_DIR"], "made here").write_bytes(body)
pathlib.Path("left behind.bin").write_bytes(body[::-1])
print("\\n".join(f"line {number}" for number in range(5_000)))
"""
#: It saves a checkpoint, and ends when it goes on from one.
SAVES = """
import pathlib, time
from shardyard import job
resumed = job.resume_dir()
if resumed is None:
    pathlib.Path("state.txt").write_text("what the first attempt knew")
    job.checkpoint("state.txt")
    time.sleep(600)
print(resumed.read_text() if resumed.is_file() else (resumed / "state.txt").read_text())
"""
BODY = bytes(range(256)) * 20_000


class Carried(Service):
    """A service to whose storage a node carries its files: to a mounted directory, or by way of an API."""

    api: Api | None = None
    tokens: Mapping[str, str] = MappingProxyType({})

    def _spawn(self, command: list[str], **settings: str) -> subprocess.Popen[bytes]:
        if self.api is not None:
            token = self.tokens.get(settings.get("SHARDYARD_NODE", NODE), "")
            settings = {"SHARDYARD_URL": self.api.url, "SHARDYARD_NODE_TOKEN": token} | settings
        return super()._spawn(command, **settings)

    def start_api(self) -> None:
        """Start an API on the service's storage, and give nodes tokens."""
        storage = {"SHARDYARD_STORAGE": str(self.storage), "SHARDYARD_NODE": "of-the-api"}
        api = Api(self.directory, self._environment() | storage)
        api.start()
        with closing(Caller(api.url, TOKEN)) as caller:
            bodies = {node: {"name": node, "scopes": ["node"], "node": node} for node in (NODE, OTHER)}
            self.tokens = {
                node: caller.insist("POST", "/v1/tokens", json=body).json()["token"] for node, body in bodies.items()
            }
        self.api = api

    def close(self) -> None:
        super().close()
        if self.api is not None:
            self.api.close()


@pytest.fixture(scope="module", params=["file", "service"])
def carried(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Carried]:
    directory = tmp_path_factory.mktemp("service")
    (directory / "storage").mkdir()
    where = f"file://{directory}/storage" if request.param == "file" else "service"
    with redis_server(directory / "redis", appendonly="yes", appendfsync="always") as server:
        service = Carried(directory, server, storage=where, lease_seconds=LOST_SECONDS)
        try:
            if request.param == "service":
                service.start_api()
            service.start_worker(MODULE)
            yield service
        finally:
            service.close()


def state_of(service: Service, node: str = NODE) -> Path:
    return service.directory / "state" / node


def nothing_waits(service: Service, node: str = NODE) -> None:
    """Everything was carried, and the attempts' files are gone here."""
    eventually(lambda: not list(carried_attempts(state_of(service, node))), f"all is carried; {service.worker_log()}")
    attempts = paths.jobs_dir(state_of(service, node) / "storage").glob("*/*/[0-9]*")
    assert list(attempts) == []
    assert list((state_of(service, node) / "attempts").glob("*")) == []


def tries_again(service: Service, job: str) -> None:
    def look() -> bool:
        service.dispatch_jobs()
        return service.job(job).attempt == 2

    eventually(look, "another attempt")


class Absence:
    """The remote, taken away and given back."""

    def __init__(self, service: Carried) -> None:
        self._here, self._away = service.storage, service.directory / "away"
        self._api = service.api

    def begin(self) -> None:
        if self._api is not None:
            self._api.end()
        else:
            self._here.rename(self._away)

    def end(self) -> None:
        if self._api is not None and not self._api.alive:
            self._api.start()
        if self._away.exists():
            self._away.rename(self._here)


@pytest.fixture
def absence(carried: Carried) -> Iterator[Absence]:
    made = Absence(carried)
    yield made
    made.end()


def test_what_a_script_leaves_arrives_byte_for_byte(carried: Service) -> None:
    job = carried.run_script({"train.py": SCRIPT})
    record = carried.ended(job)
    assert (record.state, record.message) == (JobState.SUCCEEDED, "")
    files = carried.files(job)
    assert (paths.artifacts_dir(files) / "made here").read_bytes() == BODY
    assert (paths.user_files_dir(files) / "left behind.bin").read_bytes() == BODY[::-1]
    assert carried.text(job).splitlines() == [f"line {number}" for number in range(5_000)]
    assert carried.report(job)["job_id"] == job
    nothing_waits(carried)


def test_checkpoints_metrics_and_weights_arrive(carried: Service) -> None:
    job = submit(carried)
    record = carried.ended(job)
    assert (record.state, record.checkpoint["step"]) == (JobState.SUCCEEDED, STEPS)  # type: ignore[index]
    kept = checkpoints.list_checkpoints(paths.checkpoints_dir(carried.storage, TENANT, job))
    assert kept[0].step == STEPS
    assert len(kept) == 2, "an upload that a newer checkpoint overtakes is left out"
    found = checkpoints.verify_checkpoint(kept[0].directory, record.checkpoint["sha256"])  # type: ignore[index]
    metrics = paths.metrics_file(carried.files(job)).read_bytes()
    assert metrics.startswith((found.directory / checkpoints.METRICS).read_bytes())
    nothing_waits(carried)


def test_an_end_waits_for_a_remote_that_is_away_and_the_devices_do_not(carried: Service, absence: Absence) -> None:
    job = submit(carried, waits_at=50)
    carried.held(job)
    commits(carried, job, 40)
    absence.begin()
    carried.let_go(job)
    eventually(lambda: not carried.held_by(job), "the devices are free")
    attempt = carried.attempt(job)
    eventually(carried.marks(attempt).pending_end.exists, "the end is left to the agent")
    beats = heartbeat_of(carried, attempt)
    eventually(lambda: heartbeat_of(carried, attempt) > beats + 5, "the agent renews the lease")
    assert carried.job(job).state is JobState.RUNNING
    absence.end()
    record = carried.ended(job)
    assert (record.state, record.attempt) == (JobState.SUCCEEDED, 1)
    assert record.checkpoint is not None
    assert record.checkpoint["step"] == STEPS
    newest = paths.checkpoint_dir(carried.storage, TENANT, job, STEPS, 1)
    checkpoints.verify_checkpoint(newest, record.checkpoint["sha256"])
    assert carried.lines(job)
    nothing_waits(carried)


def heartbeat_of(service: Service, attempt: store.AttemptId) -> int:
    return int(service.store.client.hget(f"sy:attempt:{attempt}", "beat") or 0)


def test_a_job_that_is_cancelled_does_not_wait_for_the_remote(carried: Service, absence: Absence) -> None:
    job = submit(carried, waits_at=30)
    carried.held(job)
    absence.begin()
    carried.cancel(job)
    assert carried.ended(job).state is JobState.CANCELLED
    absence.end()
    nothing_waits(carried)
    assert carried.lines(job)


def test_what_a_killed_supervisor_has_left_is_carried_by_the_agent(carried: Service) -> None:
    job = submit(carried, waits_at=50)
    carried.held(job)
    commits(carried, job, 40)
    os.kill(carried.supervisor(carried.attempt(job)), signal.SIGKILL)
    carried.let_go(job)
    tries_again(carried, job)
    assert carried.ended(job).state is JobState.SUCCEEDED
    assert carried.attempts(job)[0].reason is StateReason.SUPERVISOR_LOST
    nothing_waits(carried)
    assert carried.steps_done(job, 1) >= 40


def test_another_node_resumes_from_what_was_carried(carried: Service) -> None:
    undisturbed = carried.ended(submit(carried))
    script = carried.run_script({"train.py": SAVES})
    job = submit(carried, waits_at=50)
    carried.held(job)
    commits(carried, job, 40)
    manifests = paths.artifacts_dir(carried.files(script)) / ".checkpoints"
    eventually(lambda: list(manifests.glob("*")), "what the script has saved was carried")
    with carried.another_worker(MODULE, SHARDYARD_NODE=OTHER):
        eventually(lambda: OTHER in {node.id for node in carried.run(store.read_fleet()).nodes}, OTHER, WARM_SECONDS)
        carried.run(store.leave_node(NODE, deadline_seconds=None))
        for one in (job, script):
            os.kill(carried.supervisor(carried.attempt(one)), signal.SIGKILL)
        carried.let_go(job)
        tries_again(carried, job)
        tries_again(carried, script)
        assert carried.ended(script).state is JobState.SUCCEEDED
        assert "what the first attempt knew" in carried.text(script, number=2)
        record = carried.ended(job)
        assert record.state is JobState.SUCCEEDED
        assert record.placement[0].node == OTHER
        assert record.result == undisturbed.result
        assert "resumed at step 40" in carried.text(job, stream="service", number=2)
        nothing_waits(carried, OTHER)


def test_a_node_refuses_the_storage_of_another_service(carried: Service, tmp_path: Path) -> None:
    (tmp_path / identity.NONCE_FILE).write_text("another")
    with carried.another_worker(MODULE, SHARDYARD_NODE="n3", SHARDYARD_STORAGE=f"file://{tmp_path}") as worker:
        assert worker.wait(WARM_SECONDS) == 2
    assert any("another service" in entry["why"] for entry in carried.events("node_refused"))
