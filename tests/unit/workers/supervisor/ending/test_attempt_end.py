"""The phases of an attempt's end, without processes: time is given."""

from jobs.model.state import StateReason
from jobs.protocol.records import Result
from workers.supervisor.ending.attempt_end import KILL_SECONDS, LEAVE_SECONDS, START_SECONDS, AttemptEnd, EndPhase
from workers.supervisor.ending.outcome import LEASE_LOST, AttemptOutcome

FAILED = AttemptOutcome(StateReason.CODE_ERROR, "rank 0: no")
CANCELLED = AttemptOutcome(StateReason.CANCELLED_BY_USER, "cancelled")


def test_an_attempt_that_completes_has_the_result_of_its_ranks() -> None:
    end = AttemptEnd(0.0)
    end.result = Result(0.5, {"accuracy": 0.9})
    assert end.begin_leaving(1.0)
    assert end.final_outcome() == AttemptOutcome(
        StateReason.COMPLETED, result={"loss": 0.5, "metrics": {"accuracy": 0.9}}
    )
    assert not end.is_overdue(1.0 + LEAVE_SECONDS)
    assert end.is_overdue(1.1 + LEAVE_SECONDS)


def test_the_first_outcome_counts() -> None:
    end = AttemptEnd(0.0)
    assert end.begin_ending(FAILED, 1.0, grace_seconds=3.0)
    assert not end.begin_ending(CANCELLED, 2.0, grace_seconds=9.0)
    assert not end.begin_leaving(2.0)
    assert (end.phase, end.final_outcome()) == (EndPhase.ENDING, FAILED)
    assert end.is_overdue(4.1)


def test_a_lost_lease_replaces_the_outcome_until_the_ranks_are_killed() -> None:
    end = AttemptEnd(0.0)
    end.begin_ending(FAILED, 1.0, grace_seconds=3.0)
    assert end.begin_killing(2.0, LEASE_LOST)
    assert not end.begin_killing(3.0, CANCELLED)
    assert end.final_outcome() == LEASE_LOST


def test_a_kill_after_the_grace_keeps_the_outcome_and_is_given_up_in_time() -> None:
    end = AttemptEnd(0.0)
    end.begin_ending(FAILED, 1.0, grace_seconds=3.0)
    assert not end.has_given_up(1e6)
    assert end.begin_killing(5.0)
    assert end.final_outcome() == FAILED
    assert not end.has_given_up(5.0 + KILL_SECONDS)
    assert end.has_given_up(5.1 + KILL_SECONDS)


def test_ranks_have_a_time_to_come_up_and_then_the_wall_time() -> None:
    end = AttemptEnd(0.0)
    assert not end.is_overdue(START_SECONDS)
    assert end.is_overdue(START_SECONDS + 0.1)
    assert end.start_wall_clock(10.0, wall_seconds=1000.0)
    assert not end.start_wall_clock(500.0, wall_seconds=1000.0), "only the first rank counts"
    assert not end.is_overdue(1010.0)
    assert end.is_overdue(1010.1)


def test_a_rank_that_comes_up_while_the_attempt_ends_gives_it_no_more_time() -> None:
    end = AttemptEnd(0.0)
    end.begin_ending(CANCELLED, 1.0, grace_seconds=3.0)
    end.start_wall_clock(2.0, wall_seconds=1000.0)
    assert end.is_overdue(4.1)
