"""Jobs whose programs fail, each in its own way."""

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from jobs.model.state import JobState, StateReason
from tests.integration.workers.service import Service, eventually
from tests.support.timing import once_below

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("fault", "reason", "expected"),
    [
        (
            "raise_error",
            StateReason.CODE_ERROR,
            {"exit_code": 1, "message": "LookupError: this model fails on purpose"},
        ),
        ("exit_with_7", StateReason.CODE_ERROR, {"exit_code": 7, "message": "sys.exit(7)"}),
        ("exit_with_message", StateReason.CODE_ERROR, {"exit_code": 1, "message": "cannot go on: on purpose"}),
        ("raise_at_exit", StateReason.CODE_ERROR, {"message": "LookupError: this exit handler fails on purpose"}),
        ("leave_with_3", StateReason.RANK_FAILED, {"exit_code": 3, "signal": None}),
        ("leave_with_3_at_exit", StateReason.RANK_FAILED, {"exit_code": 3, "signal": None}),
        ("kill_itself", StateReason.RANK_FAILED, {"exit_code": None, "signal": "SIGKILL"}),
        ("segfault", StateReason.RANK_FAILED, {"exit_code": None, "signal": "SIGSEGV"}),
        ("fill_memory", StateReason.OUT_OF_MEMORY, {"exit_code": 1, "message": "MemoryError"}),
        ("fill_memory_with_a_tensor", StateReason.OUT_OF_MEMORY, {"exit_code": 1}),
        ("run_a_thread_that_reports_badly", StateReason.RANK_FAILED, {"exit_code": 97}),
    ],
)
def test_a_failing_program_fails_its_job_and_says_how(
    service: Service, fault: str, reason: StateReason, expected: dict[str, Any]
) -> None:
    record = service.ended(service.submit("single", fault=fault))
    assert (record.state, record.reason) == (JobState.FAILED, reason), record
    assert record.error is not None
    assert expected.items() <= record.error.items(), record.error
    assert record.error["rank"] == 0


def test_what_a_failing_program_said_last_is_in_its_log(service: Service) -> None:
    message, error, unheard = (
        service.submit("single", fault=fault)
        for fault in ("exit_with_message", "raise_error", "run_a_thread_that_reports_badly")
    )
    for job in (message, error, unheard):
        service.ended(job)
    assert service.text(message, stream="stderr") == "cannot go on: on purpose"
    assert "in raise_error\n" in service.text(error, stream="stderr")
    assert "Encoding objects of type object is unsupported" in service.text(unheard, stream="stderr")


def test_a_program_that_exits_with_0_has_succeeded(service: Service) -> None:
    assert service.ended(service.submit("single", fault="exit_with_0")).state is JobState.SUCCEEDED


def test_an_error_in_the_last_step_fails_the_job_with_the_traceback_of_its_rank(service: Service) -> None:
    def failed() -> float:
        record = service.ended(service.submit("ddp", 4, fault="raise_error", rank=2, at_step=3))
        assert (record.state, record.reason) == (JobState.FAILED, StateReason.CODE_ERROR)
        assert record.error is not None
        assert record.error["rank"] == 2
        assert re.search(
            r"in raise_error\n.*\nLookupError: this model fails on purpose$", record.error["traceback"].strip()
        )
        return _seconds_to_end(record)

    once_below(2.5, failed)


TURNS = [pytest.param(turn, marks=[pytest.mark.slow] if turn >= 6 else []) for turn in range(20)]


@pytest.mark.parametrize("turn", TURNS)
def test_a_killed_rank_is_named_and_not_the_peers_that_lost_it(service: Service, turn: int) -> None:
    devices = 2 + turn % 3

    def killed() -> float:
        record = service.ended(service.submit("ddp", devices, fault="kill_itself", rank=turn % devices))
        assert (record.state, record.reason) == (JobState.FAILED, StateReason.RANK_FAILED), record
        assert record.error is not None
        assert (record.error["rank"], record.error["signal"]) == (turn % devices, "SIGKILL"), record.error
        return _seconds_to_end(record)

    once_below(5, killed)


def _seconds_to_end(record: Any) -> float:
    """From the first step, since which hardly anything was left to do, to the end."""
    return float((record.finished - record.first_step) / 1e6)


def test_a_failed_program_is_tried_again_as_often_as_its_limits_say(service: Service) -> None:
    record = service.ended(service.submit("single", fault="raise_error", limits={"max_retries": 1}))
    assert (record.state, record.attempt, record.retries) == (JobState.FAILED, 2, 1)
    assert [attempt.reason for attempt in service.attempts(record.id)] == [StateReason.CODE_ERROR] * 2


def test_the_wall_limit_ends_a_run(service: Service) -> None:
    record = service.ended(service.submit("ddp", 2, fault="sleep_forever", rank=1, limits={"wall_seconds": 1.0}))
    assert (record.state, record.reason) == (JobState.FAILED, StateReason.WALL_LIMIT)
    assert record.message == "ran longer than limits.wall_seconds (1 s)"


def test_a_grandchild_that_keeps_stdout_open_does_not_keep_the_job(service: Service) -> None:
    assert service.ended(service.submit("ddp", 2, fault="fork_daemon", rank=-1)).state is JobState.SUCCEEDED


def test_a_grandchild_that_floods_stdout_does_not_keep_the_job(service: Service) -> None:
    job = service.submit("single", fault="fork_daemon_that_floods")
    assert service.ended(job).state is JobState.SUCCEEDED
    assert "another line of this flood" in service.text(job)


def test_a_program_that_was_started_and_forgotten_is_ended_with_its_job(service: Service) -> None:
    assert service.ended(service.submit("single", fault="start_program")).state is JobState.SUCCEEDED


def test_200_000_lines_are_all_in_the_log(service: Service) -> None:
    job = service.submit("single", fault="print_200000_lines")
    assert service.ended(job, 60).state is JobState.SUCCEEDED
    assert service.text(job).splitlines() == [f"line {number}" for number in range(200_000)]


def test_orphans_of_a_long_run_do_not_pile_up_as_zombies(service: Service) -> None:
    job = service.long("single", fault="fork_daemon", at_step=0)
    supervisor = service.supervisor(service.attempt(job))
    daemon = eventually(
        lambda: [pid for pid in service.living() if _parent(pid) == supervisor and _is_daemon(pid)], "an orphan"
    )[0]
    os.kill(daemon, signal.SIGKILL)
    eventually(lambda: not Path(f"/proc/{daemon}").exists(), "the orphan is buried")
    service.cancel(job)
    service.ended(job)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _is_daemon(pid: int) -> bool:
    return os.getsid(pid) != os.getsid(_parent(pid))
