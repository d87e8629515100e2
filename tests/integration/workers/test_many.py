"""Short jobs in a row: what goes wrong once in fifty shows here."""

import pytest

from jobs.state import Reason, State
from tests.integration.workers.service import Service

pytestmark = pytest.mark.integration

COUNTS = [pytest.param(20, id="20"), pytest.param(100, id="100", marks=[pytest.mark.slow, pytest.mark.timeout(600)])]


@pytest.mark.parametrize("count", COUNTS)
def test_short_ddp_jobs_all_succeed(service: Service, count: int) -> None:
    ends = [service.ended(service.submit("ddp", 2, steps=2)).reason for _ in range(count)]
    assert ends == [Reason.COMPLETED] * count


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", ["raise_error", "kill_itself", "leave_with_3_at_exit"])
def test_failing_ddp_jobs_all_fail(service: Service, fault: str) -> None:
    ends = [service.ended(service.submit("ddp", 2, fault=fault, rank=turn % 2)).state for turn in range(100)]
    assert ends == [State.FAILED] * 100


def test_jobs_that_come_all_at_once_all_succeed(service: Service) -> None:
    jobs = [service.submit("ddp", 2, steps=2) for _ in range(8)]
    assert [service.ended(job, 60).state for job in jobs] == [State.SUCCEEDED] * 8
