"""Scripts that are killed, started again, and go on from what they have saved."""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from jobs import store
from jobs.files import paths
from jobs.files.log_page import read_page
from jobs.model.records import JobRecord
from jobs.model.state import JobState, StateReason
from tests.integration.training.rehearsed import SCRIPTS
from tests.integration.workers.service import NODE, Service, eventually, running_service

pytestmark = pytest.mark.integration

EXAMPLE = (SCRIPTS / "goes_on.py").read_text()
#: Runs the example and kills, in the attempts that it is told, right after so many checkpoints of the attempt.
INTERRUPTED = """
import itertools, os, runpy, signal, sys
from shardyard import job

attempt = os.environ["SHARDYARD_ATTEMPT"].rpartition("/")[2]
kills = dict(part.split(":") for part in sys.argv.pop(1).split(","))
save, saved = job.checkpoint, itertools.count(1)
who = {"rank": os.getpid, "supervisor": os.getppid}[sys.argv.pop(1)]

def checkpoint(path):
    kept = save(path)
    if str(next(saved)) == kills.get(attempt):
        os.kill(who(), signal.SIGKILL)
        signal.pause()
    return kept

print("resumes", job.resume_dir() is not None)
if kills.get(attempt) == "0":
    os.kill(who(), signal.SIGKILL)
    signal.pause()
job.checkpoint = checkpoint
sys.argv[0] = "goes_on.py"
runpy.run_path("goes_on.py", run_name="__main__")
"""
SOURCES = {"train.py": INTERRUPTED, "goes_on.py": EXAMPLE}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the example prints by itself, as plain python runs it."""
    directory = tmp_path_factory.mktemp("plain")
    command = [sys.executable, str(SCRIPTS / "goes_on.py")]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("SHARDYARD_")}
    done = subprocess.run(command, cwd=directory, env=variables, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.splitlines()


def interrupted(
    service: Service, kills: str, who: str, *, max_retries: int = 0, **program: Any
) -> tuple[str, JobRecord]:
    """A job of the example that kills somebody, when it has ended."""
    job = service.run_script(SOURCES, kills, who, limits={"max_retries": max_retries}, **program)
    record = service.ended(job, 60)
    assert record.state is JobState.SUCCEEDED, record.error
    return job, record


def said(service: Service, job: str, number: int) -> list[str]:
    return [line.text.decode() for line in service.lines(job, number=number) if line.stream == "service"]


def test_a_script_whose_rank_is_killed_goes_on_and_ends_with_the_numbers_of_a_run_that_was_not(
    service: Service, undisturbed: list[str]
) -> None:
    job, record = interrupted(service, "1:2", "rank", max_retries=1)

    assert record.attempt == 2
    assert service.text(job, number=1).splitlines()[1:] == undisturbed[:20]
    assert service.text(job, number=2).splitlines() == ["resumes True", *undisturbed[20:]]
    assert said(service, job, 1) == []
    assert said(service, job, 2) == ["resumed from the checkpoint 'state.pt' of attempt 1"]
    report = service.report(job, 2)
    assert "resumed from the checkpoint 'state.pt' of attempt 1" in report["notes"]["resumed"]
    assert sum(pattern["steps"] for pattern in report["patterns"]) == 40
    for number in (1, 2):  # each has its own, which people can take away
        places = paths.artifacts_dir(service.files(job, number)) / "checkpoints"
        assert [path.name for path in places.iterdir()] == ["state.pt"]


@pytest.mark.slow
def test_a_script_whose_supervisor_is_killed_goes_on_too(service: Service, undisturbed: list[str]) -> None:
    job, record = interrupted(service, "1:1,2:1", "supervisor")

    assert [attempt.reason for attempt in service.attempts(job)[:2]] == [StateReason.SUPERVISOR_LOST] * 2
    assert (record.attempt, record.losses) == (3, 1), "the second loss alone is left to count: more was saved before it"
    assert service.text(job, number=3).splitlines() == ["resumes True", *undisturbed[20:]]


@pytest.mark.slow
def test_an_attempt_that_died_before_it_saved_does_not_hide_what_the_one_before_it_had_saved(
    service: Service, undisturbed: list[str]
) -> None:
    job, record = interrupted(service, "1:3,2:0,3:1", "rank", max_retries=3)

    assert record.attempt == 4
    assert [service.text(job, number=number).splitlines()[0] for number in (1, 2, 3, 4)] == [
        "resumes False",
        "resumes True",
        "resumes True",
        "resumes True",
    ]
    assert said(service, job, 3) == ["resumed from the checkpoint 'state.pt' of attempt 1"]
    assert said(service, job, 4) == ["resumed from the checkpoint 'state.pt' of attempt 3"]
    assert service.text(job, number=4).splitlines()[1:] == undisturbed[40:]


@pytest.mark.parametrize(
    "program",
    [
        pytest.param({"env": {"OMP_NUM_THREADS": "1"}}, id="cold", marks=pytest.mark.slow),
        pytest.param({"rehearse": True}, id="rehearsal"),
    ],
)
def test_a_script_goes_on_where_it_starts_cold_and_where_it_rehearses(
    service: Service, undisturbed: list[str], program: dict[str, Any]
) -> None:
    job, _ = interrupted(service, "1:2", "rank", max_retries=1, **program)

    lines = service.text(job, number=2).splitlines()
    assert lines[0] == "resumes True"
    assert [line.split()[1] for line in lines[1:]] == [line.split()[1] for line in undisturbed[20:]]


TORN = """
import os, pathlib, signal
from shardyard import job

if job.resume_dir() is None and os.environ["SHARDYARD_ATTEMPT"].endswith("/1"):
    for text in ("first", "second"):
        pathlib.Path(f"{text}.txt").write_text(text)
        job.checkpoint(f"{text}.txt")
    (job.output_dir() / "checkpoints" / "second.txt").write_text("changed")
    os.kill(os.getpid(), signal.SIGKILL)
print(os.listdir(job.resume_dir()), (job.resume_dir() / "first.txt").read_text())
"""


def test_a_checkpoint_that_was_changed_afterwards_gives_way_to_an_older_one_and_the_log_says_so(
    service: Service,
) -> None:
    job = service.run_script({"train.py": TORN}, limits={"max_retries": 1})

    assert service.ended(job).state is JobState.SUCCEEDED
    assert service.text(job, number=2) == "['first.txt'] first"
    assert said(service, job, 2) == [
        "a checkpoint of attempt 1 is not what was saved: a file has 7 bytes instead of 6",
        "resumed from the checkpoint 'first.txt' of attempt 1",
    ]


DDP = """
import os, pathlib, signal, torch, torch.distributed as dist
from shardyard import job

rank, place = int(os.environ["RANK"]), job.resume_dir()
if place is None:
    pathlib.Path("state").mkdir(exist_ok=True)
    dist.init_process_group("gloo")
    pathlib.Path(f"state/rank-{rank}").write_text(f"of rank {rank}")
    dist.barrier()
    if rank == 0:
        job.checkpoint("state")
    dist.barrier()
    os.kill(os.getpid(), signal.SIGKILL)
print((place / "state" / f"rank-{rank}").read_text())
"""


def test_all_ranks_find_the_directory_that_one_of_them_has_saved(service: Service) -> None:
    job = service.run_script({"train.py": DDP}, strategy="ddp", devices=2, limits={"max_retries": 1})

    assert service.ended(job, 60).state is JobState.SUCCEEDED
    assert [service.text(job, device, number=2) for device in (0, 1)] == ["of rank 0", "of rank 1"]


#: Works until it is told to stop, and then takes longer to save than a cancel would give it.
SLOW_TO_SAVE = """
import pathlib, sys, time
from shardyard import job

if job.resume_dir() is not None:
    print((job.resume_dir() / "state.txt").read_text())
    sys.exit()
pathlib.Path("state.txt").write_text("saved when it was told to stop")
print("works", flush=True)
while not job.should_stop():
    time.sleep(0.01)
print("told", flush=True)
time.sleep(1.0)
job.checkpoint("state.txt")
"""


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service whose grace is short."""
    directory = tmp_path_factory.mktemp("service")
    with running_service(directory, grace_seconds=0.2, checkpoint_seconds=5.0) as service:
        yield service


def starts_working(service: Service, program: str) -> str:
    job = service.run_script({"train.py": program})
    log = paths.log_file(service.files(job), 0)
    eventually(lambda: log.exists() and b"works" in b"".join(line.text for line in read_page(log).lines), "it works")
    return job


@pytest.mark.slow
def test_a_script_that_is_told_to_stop_has_the_time_to_save_which_a_cancel_does_not_give_it(hasty: Service) -> None:
    cancelled = starts_working(hasty, SLOW_TO_SAVE)
    hasty.cancel(cancelled)
    hasty.ended(cancelled)
    assert hasty.text(cancelled).splitlines() == ["works", "told"]
    assert not (paths.artifacts_dir(hasty.files(cancelled)) / "checkpoints").exists()

    job = starts_working(hasty, SLOW_TO_SAVE)
    hasty.run(store.stop_node(NODE))
    assert hasty.reaches(job, JobState.QUEUED).reason is StateReason.SERVICE_STOPPED
    hasty.stop_worker()
    hasty.start_worker()

    assert hasty.ended(job).state is JobState.SUCCEEDED
    assert hasty.text(job, number=2) == "saved when it was told to stop"
