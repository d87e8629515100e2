"""The tables of states and reasons."""

import re

import pytest

from jobs.model import state
from jobs.model.state import CAUSE_OF, STATE_OF, TERMINAL, TRANSITIONS, Cause, Reason, State

#: The arrows of the diagram by their letters. e, f and g leave starting as well as running.
ARROWS = {
    "b": {(State.QUEUED, State.STARTING)},
    "c": {(State.STARTING, State.RUNNING)},
    "d": {(State.RUNNING, State.SUCCEEDED)},
    "e": {(State.RUNNING, State.FAILED), (State.STARTING, State.FAILED)},
    "f": {(before, State.CANCELLED) for before in (State.QUEUED, State.STARTING, State.RUNNING)},
    "g": {(before, State.QUEUED) for before in (State.STARTING, State.RUNNING)},
}


def test_every_reason_belongs_to_one_state() -> None:
    assert set(STATE_OF) == set(Reason)
    assert set(STATE_OF.values()) == set(State)


def test_every_reason_that_ends_an_attempt_has_a_cause_and_no_other_has() -> None:
    ends = {reason for reason in Reason if STATE_OF[reason] in TERMINAL}
    assert set(CAUSE_OF) == ends | {Reason.SERVICE_STOPPED, Reason.DRAINED}
    assert set(CAUSE_OF.values()) == set(Cause)


def test_only_a_failure_is_taken_from_a_budget() -> None:
    for reason, cause in CAUSE_OF.items():
        if cause in (Cause.USER, Cause.SERVICE):
            assert STATE_OF[reason] is State.FAILED
    stops = {reason for reason, cause in CAUSE_OF.items() if cause is Cause.STOP}
    assert stops == {Reason.SERVICE_STOPPED, Reason.DRAINED}
    assert {STATE_OF[reason] for reason in stops} == {State.QUEUED}


def test_transitions_are_the_arrows_of_the_diagram() -> None:
    drawn = set().union(*ARROWS.values())
    assert {(before, after) for before, afters in TRANSITIONS.items() for after in afters} == drawn


def test_the_diagram_draws_every_state_and_every_arrow() -> None:
    diagram = (state.__doc__ or "").split("```")[1]
    words = re.findall(r"[a-z]+", diagram)
    assert {State(word) for word in words if word in set(State)} == set(State)
    assert set(re.findall(r"[-] ([a-z]) [-(]", diagram)) == {"a", *ARROWS}


def test_no_arrow_leaves_a_terminal_state_and_every_other_state_can_reach_one() -> None:
    assert set(TRANSITIONS) == set(State) - TERMINAL
    assert all(afters & TERMINAL for afters in TRANSITIONS.values())


def test_a_reason_of_a_later_version_is_kept_as_it_is() -> None:
    later = Reason("struck_by_lightning")
    assert (str(later), later, later.value) == ("struck_by_lightning", "struck_by_lightning", "struck_by_lightning")
    assert later not in set(Reason)
    with pytest.raises(ValueError, match="is not a valid Reason"):
        Reason("no reason at all")
