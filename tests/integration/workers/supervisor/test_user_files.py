"""What scripts leave in their working directory, however their attempts end."""

import os
import signal
from typing import Any

import pytest

from jobs.files import paths, user_files
from jobs.model.state import JobState, StateReason
from tests.integration.workers.service import Service, eventually

pytestmark = pytest.mark.integration

#: Leaves a model, and ends as it is told.
LEAVES = """
import os, signal, sys, time
import torch

torch.save({"weight": torch.ones(3, device="cuda" if "cuda" in sys.argv else "cpu")}, "model.pt")
with open(f"rank-{os.environ.get('RANK', 0)}.txt", "w") as file:
    file.write("x" * 20)
with open(os.path.join(os.environ["SHARDYARD_OUTPUT_DIR"], "left"), "w") as file:
    pass
if "fail" in sys.argv:
    raise ValueError("no")
if "die" in sys.argv:
    os.kill(os.getpid(), signal.SIGKILL)
if "stay" in sys.argv and os.environ["SHARDYARD_ATTEMPT"].endswith("/1"):
    time.sleep(600)
"""


def kept(service: Service, job: str, attempt: int = 1) -> set[str]:
    """Paths of the files that an attempt kept."""
    top = paths.user_files_dir(service.files(job, attempt))
    return {str(file.relative_to(top)) for file in top.rglob("*") if file.is_file()}


def submit(service: Service, *args: str, **fields: Any) -> str:
    return service.run_script({"train.py": LEAVES, "lib/util.py": ""}, *args, **fields)


def until_it_stays(service: Service, job: str) -> None:
    eventually((paths.artifacts_dir(service.files(job)) / "left").exists, f"{job} has written its files")


def test_files_are_kept_however_an_attempt_ends(service: Service) -> None:
    both = {"model.pt", "rank-0.txt"}
    jobs = {
        submit(service): (StateReason.COMPLETED, both),
        submit(service, "fail"): (StateReason.CODE_ERROR, both),
        submit(service, "die"): (StateReason.RANK_FAILED, both),
        submit(service, "stay", limits={"wall_seconds": 3.0}): (StateReason.WALL_LIMIT, both),
        submit(service, strategy="ddp", devices=2): (StateReason.COMPLETED, both | {"rank-1.txt"}),
        submit(service, "cuda", rehearse=True): (StateReason.COMPLETED, both),
    }
    cancelled = submit(service, "stay")
    until_it_stays(service, cancelled)
    service.cancel(cancelled)
    jobs[cancelled] = (StateReason.CANCELLED_BY_USER, both)
    for job, (reason, files) in jobs.items():
        assert service.ended(job).reason is reason
        assert kept(service, job) == files, reason


def test_the_files_of_an_attempt_whose_supervisor_died_are_kept_beside_those_of_the_next(service: Service) -> None:
    job = submit(service, "stay")
    until_it_stays(service, job)
    os.kill(service.supervisor(service.attempt(job)), signal.SIGKILL)
    record = service.ended(job)
    assert (record.state, record.attempt) == (JobState.SUCCEEDED, 2)
    assert kept(service, job, 1) == kept(service, job, 2) == {"model.pt", "rank-0.txt"}


def test_what_is_not_kept_is_named_in_log_report_and_record(service: Service) -> None:
    job = submit(service, limits={"artifact_bytes": 30})
    assert service.ended(job).state is JobState.SUCCEEDED
    assert kept(service, job) == {"rank-0.txt"}
    record = user_files.read_record(service.files(job))
    assert record is not None
    (group,) = record.left_out
    assert group.message.startswith("model.pt (")
    assert group.message.endswith(") was not kept: the files of a job may have 30 B together (limits.artifact_bytes)")
    assert service.text(job, stream="service").splitlines()[-1] == group.message
    assert service.report(job)["notes"]["files"] == group.message


def test_patterns_choose_and_an_empty_list_keeps_nothing(service: Service) -> None:
    chosen, none = submit(service, keep=["*.pt"]), submit(service, keep=[])
    assert {service.ended(job).state for job in (chosen, none)} == {JobState.SUCCEEDED}
    assert (kept(service, chosen), kept(service, none)) == ({"model.pt"}, set())
