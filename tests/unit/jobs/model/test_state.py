"""The tables of states and reasons."""

import re
from pathlib import Path

import pytest

import jobs
from jobs.model.state import CAUSE_OF, STATE_OF, TERMINAL, TRANSITIONS, Cause, JobState, StateReason

LUA = Path(jobs.__file__).parent / "store" / "lua"
TRANSITIONS_LUA = (LUA / "transitions.lua").read_text()


STOPS = {
    StateReason.SERVICE_STOPPED,
    StateReason.DRAINED,
    StateReason.STORAGE_LOW,
    StateReason.SUSPENDED,
    StateReason.PREEMPTED,
}


def rows_of(table: str) -> dict[str, str]:
    """The rows of a table in transitions.lua: key -> what stands in its braces."""
    body = re.search(rf"^local {table} = {{\n(.*?)^}}", TRANSITIONS_LUA, re.MULTILINE | re.DOTALL)
    assert body is not None
    lines = [line for line in body[1].splitlines() if line.strip()]
    rows = [re.match(r"  (?:(\w+)|\[''\]) = \{(.*?)\},", line) for line in lines]
    assert all(rows), lines
    return {row[1] or "": row[2] for row in rows if row}


def test_every_reason_belongs_to_one_state() -> None:
    assert set(STATE_OF) == set(StateReason)
    assert set(STATE_OF.values()) == set(JobState)


def test_every_reason_that_ends_an_attempt_has_a_cause_and_no_other_has() -> None:
    ends = {reason for reason in StateReason if STATE_OF[reason] in TERMINAL}
    ends.remove(StateReason.DEPENDENCY_FAILED)  # the job had no attempt
    assert set(CAUSE_OF) == ends | STOPS
    assert set(CAUSE_OF.values()) == set(Cause) - {Cause.UNCLAIMED}


def test_only_a_failure_is_taken_from_a_budget() -> None:
    for reason, cause in CAUSE_OF.items():
        if cause in (Cause.USER, Cause.SERVICE):
            assert STATE_OF[reason] is JobState.FAILED
    stops = {reason for reason, cause in CAUSE_OF.items() if cause is Cause.STOP}
    assert stops == STOPS
    assert {STATE_OF[reason] for reason in stops} == {JobState.QUEUED}


def test_the_scripts_have_the_same_transitions() -> None:
    found = {before: dict(re.findall(r"(\w+) = '(\w)'", moves)) for before, moves in rows_of("TRANSITIONS").items()}
    assert found == {
        str(before or ""): {str(after): letter for after, letter in moves.items()}
        for before, moves in TRANSITIONS.items()
    }


def test_the_scripts_have_the_same_causes() -> None:
    assert set(rows_of("CAUSES")) == set(Cause)


def test_the_scripts_give_a_state_no_reason_that_belongs_to_another() -> None:
    code = "".join(path.read_text() for path in LUA.rglob("*.lua"))
    given = re.findall(r"\bmove\(\w+, '(\w+)', '(\w+)'", code)
    assert len(given) > 5
    for after, reason in given:
        assert STATE_OF[StateReason(reason)] is JobState(after)


def test_no_arrow_leaves_a_terminal_state_and_every_other_state_can_reach_one() -> None:
    assert set(TRANSITIONS) == {None, *JobState}
    assert {JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED} == TERMINAL
    assert all(TRANSITIONS[state].keys() & TERMINAL for state in set(JobState) - TERMINAL)


def test_a_reason_of_a_later_version_is_kept_as_it_is() -> None:
    later = StateReason("struck_by_lightning")
    assert (str(later), later, later.value) == ("struck_by_lightning", "struck_by_lightning", "struck_by_lightning")
    assert later not in set(StateReason)
    with pytest.raises(ValueError, match="is not a valid StateReason"):
        StateReason("no reason at all")
