"""How an attempt ends that has exceeded a limit."""

from typing import get_args

import pytest

from jobs.model.settings import Settings
from jobs.model.state import CAUSE_OF, Cause, StateReason
from workers.supervisor.limits.breach import LimitBreach, LimitName, outcome_of_breach


@pytest.mark.parametrize("limit", get_args(LimitName))
def test_the_error_names_the_limit_what_was_used_and_what_to_do(limit: LimitName) -> None:
    outcome = outcome_of_breach(LimitBreach(limit, 3_000_000, 2_000_000))
    assert outcome.reason is StateReason.RESOURCE_LIMIT
    assert CAUSE_OF[outcome.reason] is Cause.USER
    assert outcome.error is not None
    assert (outcome.error["limit"], outcome.error["used"], outcome.error["allowed"]) == (limit, 3_000_000, 2_000_000)
    assert outcome.error["message"] == outcome.message
    assert "2,000,000" in outcome.message or "1.91 MiB" in outcome.message
    named = [word for word in outcome.error["advice"].split() if word.endswith(("_BYTES", "_FILES", "_PROCESSES"))]
    assert [name.removeprefix("SHARDYARD_").lower() in Settings.model_fields for name in named] == [True]


def test_only_a_program_that_prints_too_much_may_end_in_its_own_way() -> None:
    calm = [limit for limit in get_args(LimitName) if not LimitBreach(limit, 2, 1).is_urgent]
    assert calm == ["log"]
