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


def test_the_owner_is_shown_with_the_tenant() -> None:
    assert dict(status_lines(status(owner="ana", tenant="vision")))["owner"] == "ana of tenant vision"
    assert "owner" not in dict(status_lines(status()))


def test_a_result_without_numbers_has_no_line() -> None:
    assert (
        dict(status_lines(status(result={"loss": 0.5, "metrics": {"accuracy": 1}})))["result"] == "loss 0.5, accuracy 1"
    )
    assert "result" not in dict(status_lines(status(result={"loss": None, "metrics": {}})))


def test_the_network_of_the_newest_attempt_is_shown_once_there_is_one() -> None:
    assert dict(status_lines(status(network="none")))["network"] == "none (its own loopback only)"
    assert dict(status_lines(status(network="host")))["network"] == "the node's"
    assert "network" not in dict(status_lines(status()))


def test_a_job_on_one_node_shows_it_with_its_devices_alone() -> None:
    lines = dict(status_lines(status(placement=[{"node": "host-a", "devices": ["cuda:0", "cuda:1"], "ranks": [0]}])))
    assert (lines["asks for"], lines["runs on"]) == ("2 devices of pool default, dp", "host-a cuda:0-1")


def test_a_job_on_eight_nodes_shows_each_on_a_line_of_its_own_with_its_ranks() -> None:
    names = [f"cuda:{number}" for number in range(8)]
    places = [
        {"node": f"host-{part}", "devices": names, "ranks": list(range(8 * part, 8 * part + 8))} for part in range(8)
    ]
    lines = dict(status_lines(status(strategy="ddp", devices=8, nodes=8, placement=places)))
    assert lines["asks for"] == "8 devices on each of 8 nodes of pool default, ddp"
    shown = [line.strip() for line in lines["runs on"].splitlines()]
    assert shown == [f"host-{part} cuda:0-7  ranks {8 * part}-{8 * part + 7}" for part in range(8)]


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
