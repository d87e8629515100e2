from typing import Any, cast

import msgspec
import pytest

from shardyard.cli.fleet.node_pairs import NodePair, _await_end, _print_pairs
from shardyard.client.client import Job
from shardyard.contract.responses import AttemptView, JobStatus

ADDRESSES = {"host-a": "10.0.0.1", "host-b": "10.0.0.2", "host-c": ""}
FAST = NodePair(("host-a", "host-b"), "gloo", 0.1234, 2.5 * 2**30)


def test_a_pair_is_a_line_with_latency_and_bandwidth(capsys: pytest.CaptureFixture[str]) -> None:
    _print_pairs([FAST], "", ADDRESSES, left_out=-1)
    head, line = (words.split() for words in capsys.readouterr().out.splitlines())

    assert head == ["NODE", "NODE", "BACKEND", "LATENCY", "BANDWIDTH"]
    assert line == ["host-a", "host-b", "gloo", "0.123", "ms", "2.5", "GiB/s"]


def test_a_pair_that_failed_says_why_and_what_to_check(capsys: pytest.CaptureFixture[str]) -> None:
    _print_pairs([FAST, NodePair(("host-a", "host-c"), "gloo", error="timed out")], "", ADDRESSES, left_out=3)
    out = capsys.readouterr().out

    assert "host-a (10.0.0.1) and host-c (no address) do not reach each other: timed out" in out
    assert "SHARDYARD_NODE_ADDRESS" in out
    assert "firewall" in out
    assert "3 nodes of the pool were left out" in out


def test_a_job_that_did_not_end_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    _print_pairs([], "host-a and host-b lost their link", ADDRESSES, left_out=-1)
    out = capsys.readouterr().out

    assert out.startswith("the test did not end: host-a and host-b lost their link\n")
    assert "firewall" in out


class Waiting:
    """A job that is queued for one reason all the time, and has had some attempts."""

    ended = succeeded = False

    def __init__(self, attempts: int, code: str, message: str) -> None:
        known = {"id": "0199", "name": "a", "state": "queued", "pool": "default", "devices": 1, "strategy": "ddp"}
        known |= {"reason": {"code": code, "message": message}, "created_at": "2026-01-02T03:04:05Z"}
        self.status = msgspec.convert(known | {"attempt": attempts, "start": "warm"}, JobStatus)

    def refresh(self) -> "Waiting":
        return self

    def attempts(self) -> list[Any]:
        lost = {"attempt": 1, "state": "ended", "created_at": "2026-01-02T03:04:05Z"}
        reason = {"code": "link_lost", "message": "nodes host-a and host-b do not reach each other"}
        return [msgspec.convert(lost | {"reason": reason}, AttemptView)]


def test_a_job_that_cannot_start_is_not_waited_for() -> None:
    job = Waiting(0, "node_has_no_address", "host-a has 127.0.0.1")
    assert _await_end(cast(Job, job), 1) == "host-a has 127.0.0.1"


def test_the_first_attempt_has_the_answer_where_the_service_would_try_again() -> None:
    job = Waiting(1, "retrying", "starts again in 3 s")
    assert _await_end(cast(Job, job), 1) == "nodes host-a and host-b do not reach each other"
