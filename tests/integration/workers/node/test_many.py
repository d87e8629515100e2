"""Short jobs in a row: what goes wrong once in fifty shows here."""

import pytest

from jobs.model.state import JobState, StateReason
from tests.integration.workers.service import Service

pytestmark = pytest.mark.integration

COUNTS = [pytest.param(20, id="20"), pytest.param(100, id="100", marks=[pytest.mark.slow, pytest.mark.timeout(600)])]


@pytest.mark.parametrize("count", COUNTS)
def test_short_ddp_jobs_all_succeed(service: Service, count: int) -> None:
    ends = [service.ended(service.submit("ddp", 2, steps=2)).reason for _ in range(count)]
    assert ends == [StateReason.COMPLETED] * count


FAULTS = ["raise_error", "leave_with_3", "raise_at_exit", "leave_with_3_at_exit", "kill_itself"]
FAILING = [pytest.param(5, id="5"), pytest.param(100, id="100", marks=[pytest.mark.slow, pytest.mark.timeout(600)])]


@pytest.mark.parametrize("count", FAILING)
@pytest.mark.parametrize("fault", FAULTS)
def test_ddp_jobs_that_fail_in_their_last_step_or_after_it_all_fail(service: Service, fault: str, count: int) -> None:
    last = {"steps": 3, "at_step": 2, "fault": fault}
    ends = [service.ended(service.submit("ddp", 2, rank=turn % 2, **last)).state for turn in range(count)]
    assert ends == [JobState.FAILED] * count


def test_jobs_that_come_all_at_once_all_succeed(service: Service) -> None:
    jobs = [service.submit("ddp", 2, steps=2) for _ in range(8)]
    assert [service.ended(job, 60).state for job in jobs] == [JobState.SUCCEEDED] * 8
