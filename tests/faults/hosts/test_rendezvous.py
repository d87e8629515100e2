"""Row 28: two DDP jobs at once, while the port that everybody takes is taken."""

import socket
from contextlib import suppress

import pytest

from jobs.model.state import JobState
from tests.faults.scene.site import Site

pytestmark = [pytest.mark.integration, pytest.mark.faults]

#: What PyTorch's examples, and torchrun by itself, meet at.
USUAL_PORT = 29500


def test_row_28_two_ddp_jobs_start_together_while_the_usual_port_is_taken(site: Site) -> None:
    with socket.socket() as taken:
        with suppress(OSError):  # then somebody else has it, which serves as well
            taken.bind(("127.0.0.1", USUAL_PORT))
            taken.listen()
        jobs = [site.post("ddp", 2, steps=5) for _ in range(2)]
        site.all_ended(jobs, 60)
    assert [site.job(job).state for job in jobs] == [JobState.SUCCEEDED] * 2
