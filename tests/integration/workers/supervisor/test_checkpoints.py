"""Checkpoints of recipes with a real worker, real ranks and a real Redis: what is saved, and what a new attempt makes
of it. A run that was interrupted must be told from one that was not by its attempts alone."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from jobs import store
from jobs.files import checkpoints, metric_file, paths
from jobs.model.records import JobRecord
from jobs.model.spec_rules import parse_spec
from jobs.model.state import JobState, StateReason
from jobs.protocol import names
from tests.integration.workers.service import MODULE, NODE, TENANT, WARM_SECONDS, Service, eventually, running_service
from workers.runtime.launch import AttemptDirectory

pytestmark = pytest.mark.integration

EVERY, STEPS = 20, 60
#: Of a report: what no two runs have in common.
TIMES = re.compile(
    r"^node$|_ms|^ms_|seconds|_at$|per_second|memory|attempt|job|resumed|hardware|slow|straggl|balance|load|what_if|verdict|step_times"
)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(tmp_path_factory.mktemp("service"), [*MODULE, "--stop-attempts-on-exit"]) as service:
        yield service


def submit(
    service: Service,
    strategy: str = "single",
    devices: int = 1,
    *,
    seconds: float = 0.0,
    waits_at: int | None = None,
    limits: dict[str, Any] | None = None,
    pool: str = "default",
    **changes: Any,
) -> str:
    """A run of `STEPS` steps over two epochs that saves every `EVERY`, and takes `seconds` a step at least; it stands
    still in step `waits_at`, until the test lets it go."""
    model: dict[str, Any] = {"notes": str(service.notes), "seconds": seconds, "talks": True}
    if waits_at is not None:
        model |= {"fault": "wait_for_the_test", "at_step": waits_at * (devices if strategy == "dp" else 1)}
    program = {
        "model": {"ref": "faulty_programs.models:Faulty", "args": model},
        "data": {"ref": "random_vectors", "args": {"rows": 6 * 35 * devices, "features": 5}, "batch_size": 6},
        "loss": {"ref": "cross_entropy"},
        "optimizer": {"ref": "adam", "args": {"lr": 0.01}},
        "epochs": 2,
        "max_steps": STEPS,
        "seed": 7,
        "checkpoint": {"every_steps": EVERY, "keep": 2},
    }
    if strategy == "dp":
        program["data"]["batch_size"] = 6 * devices  # type: ignore[index]
    body = {
        "program": program | changes,
        "parallelism": {"strategy": strategy},
        "resources": {"devices": devices},
        "limits": limits or {},
        "pool": pool,
    }
    job = service.run(store.submit(TENANT, uuid.uuid4().hex, parse_spec(json.dumps(body)))).job
    service.dispatch_jobs()
    return job


def directory(service: Service, job: str) -> Path:
    return paths.checkpoints_dir(service.settings.storage, TENANT, job)


def kept(service: Service, job: str) -> list[tuple[int, int]]:
    return [(one.step, one.attempt) for one in checkpoints.list_checkpoints(directory(service, job))]


def pointed(record: JobRecord) -> int:
    """The step that is committed; 0 while there is none."""
    return record.checkpoint["step"] if record.checkpoint is not None else 0


def commits(service: Service, job: str, step: int) -> JobRecord:
    return eventually(
        lambda: found if pointed(found := service.job(job)) >= step else None, f"a checkpoint of step {step}", 30
    )


def takes_steps(service: Service, job: str, number: int) -> None:
    """Until an attempt has taken a few."""
    eventually(lambda: service.steps_done(job, number) >= 4, "steps")


def kill(service: Service, job: str) -> None:
    os.kill(service.supervisor(service.attempt(job)), signal.SIGKILL)
    service.let_go(job)


def curve(service: Service, job: str, number: int) -> dict[tuple[int, str], list[tuple[int, int, float]]]:
    """All series but those of times: (number, step, value) of each point."""
    found = metric_file.read_series(paths.metrics_file(service.files(job, number)))
    return {
        (one.device, one.name): [(point.number, point.step, point.value) for point in one.points]
        for one in found
        if "per_second" not in one.name
    }


def facts(service: Service, job: str, number: int) -> Any:
    """The report without what is of one run: times, ids, and that it was resumed."""
    return _facts(service.report(job, number))


def _facts(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _facts(part) for name, part in value.items() if not TIMES.search(name)}
    return [_facts(part) for part in value] if isinstance(value, list) else value


@pytest.fixture(scope="module")
def undisturbed(shared: Service) -> Callable[[str, int], str]:
    """A run of the same spec that nobody interrupts."""
    runs: dict[tuple[str, int], str] = {}

    def of(strategy: str, devices: int) -> str:
        if (strategy, devices) not in runs:
            job = runs[strategy, devices] = submit(shared, strategy, devices)
            assert shared.ended(job, 60).state is JobState.SUCCEEDED
        return runs[strategy, devices]

    return of


def said(service: Service, job: str, number: int) -> str:
    return service.text(job, stream="service", number=number)


def assert_as_if_undisturbed(service: Service, job: str, number: int, reference: str) -> None:
    assert curve(service, job, number) == curve(service, reference, 1)
    mine, its = facts(service, job, number), facts(service, reference, 1)
    assert {name: (mine[name], its[name]) for name in mine if mine[name] != its[name]} == {}
    assert service.job(job).result == service.job(reference).result


@pytest.mark.slow
def test_a_run_keeps_its_newest_checkpoints_and_leaves_its_weights(
    service: Service, undisturbed: Callable[[str, int], str]
) -> None:
    job = undisturbed("single", 1)
    record = service.job(job)
    assert kept(service, job) == [(60, 1), (40, 1)]
    assert record.checkpoint is not None
    assert (record.checkpoint["step"], record.checkpoint["attempt"]) == (60, 1)
    newest = directory(service, job) / "000000000060-1"
    assert checkpoints.verify_checkpoint(newest, record.checkpoint["sha256"]).manifest.world_size == 1
    weights = paths.artifacts_dir(service.files(job)) / checkpoints.WEIGHTS
    assert weights.read_bytes() == (newest / checkpoints.WEIGHTS).read_bytes()
    lines = said(service, job, 1).splitlines()
    assert [re.sub(r"[\d.]+ s$", "x s", line) for line in lines if "checkpoint" in line] == [
        f"checkpoint of step {step} saved in x s" for step in (20, 40, 60)
    ]
    # A run that ends within a second may have no sample of the hardware.
    left = {path.name for path in service.files(job).iterdir()} - {"hardware.msgpack"}
    assert left == {"artifacts", "logs", "metrics.bin", "report.json"}
    assert [path.name for path in directory(service, job).iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("strategy", "devices"), [("single", 1), pytest.param("dp", 3, marks=pytest.mark.slow), ("ddp", 2)]
)
def test_a_killed_run_goes_on_as_if_nothing_had_happened(
    service: Service, undisturbed: Callable[[str, int], str], strategy: str, devices: int
) -> None:
    job = submit(service, strategy, devices, waits_at=EVERY + 5)  # work is lost
    commits(service, job, EVERY)
    service.held(job)
    kill(service, job)
    record = service.ended(job, 60)
    assert (record.state, record.attempt, record.retries) == (JobState.SUCCEEDED, 2, 0), record
    first, second = service.attempts(job)
    assert first.reason is StateReason.SUPERVISOR_LOST
    assert second.resumed == {"step": EVERY, "attempt": 1}
    assert f"resumed at step {EVERY} of attempt 1" in said(service, job, 2)
    assert_as_if_undisturbed(service, job, 2, undisturbed(strategy, devices))
    assert kept(service, job)[0] == (60, 2)
    client = service.store.client
    (end, _), *_ = cast(Any, client.xrevrange(names.metric_stream(TENANT, job, 2), count=1))
    points = sum(len(one.points) for one in metric_file.read_series(paths.metrics_file(service.files(job, 2))))
    assert end == f"{points}-1".encode()


def stop_and_start(service: Service) -> None:
    service.stop_worker(60)
    service.start_worker([*MODULE, "--stop-attempts-on-exit"])
    service.dispatch_jobs()


def drain_and_undrain(service: Service) -> None:
    service.run(store.drain_node(NODE, deadline_seconds=0))
    eventually(lambda: service.node().held == {}, "what runs there has ended")
    service.run(store.undrain_node(NODE))
    service.dispatch_jobs()


@pytest.mark.parametrize(
    ("strategy", "devices", "interrupt", "reason"),
    [
        ("ddp", 2, drain_and_undrain, StateReason.DRAINED),
        pytest.param("single", 1, stop_and_start, StateReason.SERVICE_STOPPED, marks=pytest.mark.slow),
    ],
)
def test_a_run_that_is_stopped_twice_loses_no_step(
    service: Service,
    undisturbed: Callable[[str, int], str],
    strategy: str,
    devices: int,
    interrupt: Callable[[Service], None],
    reason: StateReason,
) -> None:
    job = submit(service, strategy, devices, seconds=0.1, checkpoint={"every_steps": 1000, "keep": 1})
    saved = []
    for attempt in (1, 2):
        takes_steps(service, job, attempt)
        interrupt(service)
        assert f"checkpoint of step {pointed(service.job(job))} saved" in said(service, job, attempt)
        saved.append(pointed(service.job(job)))
    record = service.ended(job, 60)
    assert (record.state, record.attempt, record.retries, record.losses) == (JobState.SUCCEEDED, 3, 0, 0), record
    assert [one.reason for one in service.attempts(job)[:2]] == [reason] * 2
    assert [one.resumed for one in service.attempts(job)] == [
        None,
        {"step": saved[0], "attempt": 1},
        {"step": saved[1], "attempt": 2},
    ]
    lines = [line.text for number in (1, 2, 3) for line in service.lines(job, number=number)]
    assert sum(text.startswith(b"step ") for text in lines) == STEPS  # each was taken once
    assert_as_if_undisturbed(service, job, 3, undisturbed(strategy, devices))
    assert kept(service, job) == [(STEPS, 3)]


def flip(path: Path) -> None:
    """Change one bit in the middle of a file."""
    body = bytearray(path.read_bytes())
    body[len(body) // 2] ^= 1
    path.write_bytes(body)


def test_a_checkpoint_with_a_flipped_bit_is_passed_over_for_the_one_before(
    service: Service, undisturbed: Callable[[str, int], str]
) -> None:
    job = submit(service, waits_at=2 * EVERY + 5)
    commits(service, job, 2 * EVERY)
    flip(directory(service, job) / "000000000040-1" / "rank-0.pt")
    kill(service, job)
    record = service.ended(job, 60)
    assert (record.state, record.attempt) == (JobState.SUCCEEDED, 2), record
    assert service.attempts(job)[-1].resumed == {"step": 20, "attempt": 1}
    lines = said(service, job, 2)
    assert "the checkpoint of step 40 of attempt 1 is damaged: rank-0.pt is not what was saved" in lines
    assert "resumed at step 20 of attempt 1" in lines
    assert_as_if_undisturbed(service, job, 2, undisturbed("single", 1))
    assert kept(service, job) == [(60, 2), (40, 2)]


@pytest.mark.slow
def test_a_checkpoint_that_was_taken_away_is_missed_in_words(service: Service) -> None:
    job = submit(service, waits_at=2 * EVERY + 5)
    commits(service, job, 2 * EVERY)
    shutil.rmtree(directory(service, job) / "000000000040-1")
    kill(service, job)
    assert service.ended(job, 60).state is JobState.SUCCEEDED
    lines = said(service, job, 2)
    assert "the checkpoint of step 40 of attempt 1 does not exist any more" in lines
    assert "resumed at step 20 of attempt 1" in lines


@pytest.mark.slow
def test_a_run_none_of_whose_checkpoints_can_be_used_begins_anew_and_says_so(
    service: Service, undisturbed: Callable[[str, int], str]
) -> None:
    job = submit(service, waits_at=EVERY + 5)
    commits(service, job, EVERY)
    (directory(service, job) / "000000000020-1" / checkpoints.MANIFEST).write_bytes(b"{")
    kill(service, job)
    record = service.ended(job, 60)
    assert (record.state, record.attempt) == (JobState.SUCCEEDED, 2), record
    assert service.attempts(job)[-1].resumed is None
    assert "no checkpoint could be used; the run begins at its first step" in said(service, job, 2)
    assert_as_if_undisturbed(service, job, 2, undisturbed("single", 1))


def test_a_cancel_is_heeded_at_once_by_a_run_that_saves(service: Service) -> None:
    job = submit(service, "ddp", 2, seconds=0.05, checkpoint={"every_steps": 1, "keep": 1})
    commits(service, job, 2)
    service.cancel(job)
    record = service.ended(job)
    assert record.state is JobState.CANCELLED
    assert record.checkpoint is not None  # what was committed stays, for whoever wants its weights
    assert len(kept(service, job)) <= 2


# -- workers with something the matter ---------------------------------------------------------------


@contextmanager
def odd_worker(service: Service, *options: str, **settings: str) -> Iterator[subprocess.Popen[bytes]]:
    """A second node, with settings of its own, in the pool `odd`."""
    settings |= {"SHARDYARD_NODE": "n2", "SHARDYARD_POOL": "odd", "SHARDYARD_DEVICES": "cpu:2"}
    with service.another_worker([*MODULE, *options], **settings) as worker:
        eventually(lambda: _nodes(service).get("n2"), "the node registers", WARM_SECONDS)
        try:
            yield worker
        finally:
            worker.terminate()
            worker.wait(60)
            service.run(store.forget_node("n2"))


def _nodes(service: Service) -> dict[str, bool]:
    return {node.id: node.takes_work for node in service.run(store.read_fleet()).nodes}


@pytest.mark.slow
def test_a_run_that_waits_for_a_slow_disk_is_not_taken_for_stalled(service: Service) -> None:
    with odd_worker(service, SHARDYARD_FAILPOINT="checkpoint.written:stall=2"):
        wanted = {"every_steps": 5, "keep": 4}
        job = submit(service, pool="odd", max_steps=20, limits={"stall_seconds": 1}, checkpoint=wanted)
        record = service.finished(job, 60)
    assert record.state is JobState.SUCCEEDED, record
    assert [step for step, _ in kept(service, job)] == [20, 15, 10, 5]


@pytest.mark.slow
def test_a_run_that_was_killed_with_all_its_work_done_and_saved_ends_as_if_it_had_not_been(
    service: Service, undisturbed: Callable[[str, int], str]
) -> None:
    with odd_worker(service, SHARDYARD_FAILPOINT="checkpoint.committed:kill@3"):
        job = submit(service, pool="odd")
        record = service.finished(job, 60)
    assert (record.state, record.attempt) == (JobState.SUCCEEDED, 2), record
    assert service.attempts(job)[-1].resumed == {"step": STEPS, "attempt": 1}
    assert_as_if_undisturbed(service, job, 2, undisturbed("single", 1))
    weights = paths.artifacts_dir(service.files(job, 2)) / checkpoints.WEIGHTS
    assert weights.read_bytes() == (directory(service, job) / "000000000060-1" / checkpoints.WEIGHTS).read_bytes()


@pytest.mark.slow
def test_a_stop_does_not_wait_for_a_rank_that_cannot_save(service: Service) -> None:
    with odd_worker(service, "--stop-attempts-on-exit", SHARDYARD_CHECKPOINT_SECONDS="2") as worker:
        job = submit(service, "ddp", 2, pool="odd", seconds=0.1)
        commits(service, job, EVERY)
        attempt = service.attempt(job)
        marks = AttemptDirectory.of(service.directory / "state" / "n2", attempt)
        leader = int(marks.session.read_text().split()[0])
        frozen = max(pid for pid in service.living() if os.getsid(pid) == leader and pid != leader)
        os.kill(frozen, signal.SIGSTOP)
        began = time.monotonic()
        worker.terminate()
        worker.wait(30)
        assert 2 < time.monotonic() - began < 25
    record = service.job(job)
    assert (record.state, record.reason) == (JobState.QUEUED, StateReason.SERVICE_STOPPED)
    assert pointed(record) == EVERY
    assert "the ranks could not save within 2 s; they are ended" in said(service, job, 1)
    service.cancel(job)
