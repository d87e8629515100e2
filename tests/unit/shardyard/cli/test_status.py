"""A job's status as the command line shows it."""

from typing import Any

import msgspec
import pytest

from shardyard.cli.status import progress_text, status_lines
from shardyard.contract.responses import JobStatus, Progress


def status(**fields: Any) -> JobStatus:
    known = {
        "id": "0199",
        "name": "train-dp2",
        "state": "running",
        "reason": {"code": "running", "message": "running"},
        "pool": "default",
        "devices": 2,
        "strategy": "dp",
        "queue_position": None,
        "attempt": 1,
        "placement": [],
        "created_at": "2026-01-02T03:04:05.000000Z",
        "started_at": None,
        "finished_at": None,
        "progress": None,
        "result": None,
        "error": None,
        "start": "warm",
        "rehearsal": False,
        **fields,
    }
    return msgspec.convert(known, JobStatus)


def test_a_rehearsal_is_called_one_in_capitals() -> None:
    assert dict(status_lines(status(rehearsal=True)))["rehearsal"].startswith("REHEARSAL")
    assert "rehearsal" not in dict(status_lines(status()))


@pytest.mark.parametrize("start", ["warm", "cold"])
def test_how_the_ranks_were_started_is_shown(start: str) -> None:
    assert dict(status_lines(status(start=start)))["start"] == start


def test_progress_is_counted_in_what_the_script_counts() -> None:
    bar = Progress(epoch=2, epochs=4, step=5, steps=10, unit="batch", source="tqdm", steps_seen=15, eta_seconds=60)

    assert progress_text(bar) == "epoch 2/4  batch 5/10  15 training steps  ETA 1 min 00 s"


def test_steps_that_are_all_that_is_known_are_not_said_twice() -> None:
    assert progress_text(Progress(step=5, unit="step", steps_seen=5)) == "step 5"
