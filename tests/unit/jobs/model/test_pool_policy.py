"""Which boxes a pool's policy accepts."""

import pytest

from jobs.model.pool_policy import BOX_LEVELS, PoolPolicy
from jobs.model.records import BOX_RIGHTS, BoxRights, NodeInfo


@pytest.mark.parametrize(
    ("demand", "accepted"), [("any", {"none", "user", "full"}), ("user", {"user", "full"}), ("full", {"full"})]
)
def test_a_demand_accepts_its_box_and_every_better_one(demand: str, accepted: set[str]) -> None:
    assert {level for level in BOX_LEVELS if PoolPolicy(demand).accepts_box(level)} == accepted


def test_what_a_later_version_demands_is_met_by_nothing_and_what_it_offers_counts_as_none() -> None:
    assert not any(PoolPolicy("machine").accepts_box(level) for level in BOX_LEVELS)
    assert PoolPolicy("any").accepts_box("machine")
    assert not PoolPolicy("user").accepts_box("machine")


def test_a_node_without_a_box_has_no_right_whatever_it_lists() -> None:
    assert not any(BoxRights("none", {}).has_right(right) for right in BOX_RIGHTS)
    assert not any(NodeInfo("host", 1, "0", ()).has_right(right) for right in BOX_RIGHTS)
    user = NodeInfo("host", 1, "0", (), box=BoxRights("user", {"account": "not root"}))
    assert [right for right in BOX_RIGHTS if not user.has_right(right)] == ["account"]
