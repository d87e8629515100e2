"""Profiles of running jobs: traces of all ranks, without a restart."""

import gzip
import json
from typing import Any

import pytest

from jobs import store
from jobs.files import profiles
from jobs.model.state import JobState
from shardyard.contract.responses import ProfileView
from tests.integration.workers.service import TENANT, Service, eventually
from workers.supervisor.profile_collector import RANK_ENDED

pytestmark = pytest.mark.integration

TRAIN = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(5, 2))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
while True:
    optimizer.zero_grad()
    net(torch.ones(4, 5)).sum().backward()
    optimizer.step()
    time.sleep(0.01)
"""


def profiled(service: Service, job: str, steps: int) -> ProfileView:
    """What came of a profile that is asked for now."""
    attempt, number = service.run(store.request_profile(TENANT, job, steps))
    found = eventually(
        lambda: [one for one in profiles.list_profiles(service.files(job, attempt)) if one.number == number],
        f"profile {number} of {job}",
    )
    eventually(lambda: _is_done(service, job, attempt), "the next profile may be asked for")
    return found[0]


def _is_done(service: Service, job: str, attempt: int) -> bool:
    asked = service.run(store.read_profile(store.AttemptId(TENANT, job, attempt)))
    return asked is not None and asked.state == "done"


def steps_in(service: Service, job: str, path: str | None) -> int:
    assert path is not None
    events: list[dict[str, Any]] = json.loads(gzip.decompress((service.files(job) / path).read_bytes()))["traceEvents"]
    return sum(event["name"].startswith("Optimizer.step") for event in events)


@pytest.mark.parametrize(
    "env", [{}, pytest.param({"OPENBLAS_NUM_THREADS": "1"}, marks=pytest.mark.slow)], ids=["warm", "cold"]
)
def test_all_ranks_of_a_running_script_record_their_next_steps(service: Service, env: dict[str, str]) -> None:
    job = service.run_script({"train.py": TRAIN}, strategy="ddp", devices=2, env=env)
    eventually(lambda: service.job(job).first_step, "its first step")
    for number, steps in ((1, 5), (2, 2)):
        found = profiled(service, job, steps)
        assert [(one.rank, one.path, one.steps, one.error) for one in found.ranks] == [
            (rank, f"profiles/{number}/rank-{rank}.json.gz", steps, None) for rank in range(2)
        ]
        assert [steps_in(service, job, one.path) for one in found.ranks] == [steps, steps]
    assert (service.job(job).state, service.job(job).attempt) == (JobState.RUNNING, 1)
    service.cancel(job)
    service.ended(job)
    assert "profile" not in service.text(job, stream="stderr"), "torch says nothing into the script's log"


def test_a_running_recipe_is_profiled(service: Service) -> None:
    job = service.long("dp", 2)
    (rank,) = profiled(service, job, 3).ranks
    assert (rank.steps, rank.error, steps_in(service, job, rank.path)) == (3, None, 3)
    service.cancel(job)
    service.ended(job)


def test_a_rank_that_ends_before_a_step_answers_so(service: Service) -> None:
    job = service.run_script({"train.py": "import time\ntime.sleep(60)"})
    service.reaches(job, JobState.RUNNING)
    service.run(store.request_profile(TENANT, job, 3))
    eventually(lambda: (service.files(job) / "profiles" / "1").is_dir(), "the request arrives")
    service.cancel(job)
    service.ended(job)
    (found,) = profiles.list_profiles(service.files(job))
    assert [one.error for one in found.ranks] == [RANK_ENDED]
