"""Devices whose processes would not die, how they come back, and what killed supervisors leave."""

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs import store
from jobs.model.records import Quarantine
from jobs.model.state import JobState
from jobs.store import AttemptId
from tests.integration.workers.service import NODE, TENANT, Service, eventually, running_service

pytestmark = pytest.mark.integration

#: A worker that makes its rounds every half second.
HASTY = [
    sys.executable,
    "-c",
    "from workers.node import janitor; janitor.ROUND_SECONDS = 0.5; from workers.__main__ import main; main()",
]
#: Sends the lock that all processes of the attempt hold to whoever listens, and ends. While nobody takes it, it is in
#: flight: held, and by no process that could be found or killed.
LEAVE_A_LOCK = """
import os, socket, sys
lock = next(fd for fd in map(int, os.listdir("/proc/self/fd"))
            if os.path.exists(f"/proc/self/fd/{fd}") and os.readlink(f"/proc/self/fd/{fd}").endswith("ranks.lock"))
with socket.socket(socket.AF_UNIX) as out:
    out.connect(sys.argv[1])
    socket.send_fds(out, [b"x"], [lock])
print("left it")
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(tmp_path_factory.mktemp("service"), HASTY) as service:
        yield service


def why(service: Service, device: int) -> Quarantine | None:
    return service.node().quarantine.get(device)


@pytest.mark.slow
def test_a_device_comes_back_when_what_would_not_die_is_gone_and_it_can_compute(
    service: Service, tmp_path: Path
) -> None:
    service.run(store.quarantine_device(NODE, 7, "falls off the bus"))
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as keeps:
        keeps.bind(path)
        keeps.listen()
        job = service.run_script({"train.py": LEAVE_A_LOCK}, path)
        assert service.finished(job).state is JobState.SUCCEEDED, service.text(job, stream="stderr")
        apart = eventually(lambda: why(service, 0), "its device is set apart")
        assert apart.attempt == str(service.attempt(job))
        assert "holds the attempt's lock" in apart.reason

        tried = eventually(
            lambda: found if (found := why(service, 0)) is not None and found.checked else None, "a proof is tried"
        )
        assert tried.since == apart.since
        assert "would not die" in tried.reason
        other = service.submit("single")
        assert service.finished(other).leased == (1,), "nobody gets it meanwhile"
        assert why(service, 0) is not None
    eventually(lambda: why(service, 0) is None, "it comes back", 60)
    (back,) = eventually(lambda: service.events("device_is_back"), "it is logged")
    assert back["device"] == 0
    assert service.ended(service.submit("single")).leased == (0,)

    assert why(service, 7) is not None, "what the operator has set apart stays so"
    service.run(store.unquarantine(NODE, 7))


@pytest.mark.slow
def test_what_a_supervisor_left_that_was_killed_at_its_very_end_is_cleared_away_in_passing(service: Service) -> None:
    job = service.long()
    marks = service.marks(AttemptId(TENANT, "long-gone", 1))
    marks.create()
    (marks.directory / "work").mkdir()
    eventually(lambda: not marks.directory.exists(), "it is cleared away")
    assert service.marks(service.attempt(job)).directory.exists()
    assert service.job(job).state is JobState.RUNNING
    service.cancel(job)
    service.ended(job)
