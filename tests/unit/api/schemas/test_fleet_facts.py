"""What answers about jobs say of the nodes that lack a box, or do not reach each other."""

import pytest

from api.schemas.fleet_facts import FleetFacts
from jobs.model.pool_policy import PoolPolicy
from jobs.model.records import BOX_RIGHTS, BoxRights, NodeRecord
from jobs.store import FleetRecords
from tests.support.samples.job_records import a_boxed_node

FULL = BoxRights("full", {})
USER = BoxRights("user", {"account": "the worker is not root", "memory": "no cgroup is delegated"})
NONE = BoxRights("none", dict.fromkeys(BOX_RIGHTS, "user namespaces are turned off"))


def facts(demand: str, *nodes: NodeRecord) -> FleetFacts:
    return FleetFacts.from_records(FleetRecords(nodes, {}, {"a100": PoolPolicy(demand)}))


def missing(demand: str, devices: int, *nodes: tuple[int, BoxRights | None]) -> str:
    records = [
        a_boxed_node(f"host-{i}", size, box, policy=PoolPolicy(demand)) for i, (size, box) in enumerate(nodes, start=1)
    ]
    return facts(demand, *records).missing_box("a100", devices)


def test_nothing_is_missing_where_a_boxed_node_is_large_enough_however_busy() -> None:
    assert missing("full", 4, (4, FULL), (8, NONE)) == ""
    assert missing("any", 4, (8, NONE)) == ""


def test_nothing_is_missing_where_no_node_would_be_large_enough_without_a_box() -> None:
    assert missing("full", 9, (4, FULL), (8, NONE)) == ""


@pytest.mark.parametrize(
    ("demand", "nodes", "words"),
    [
        ("user", [(8, NONE)], "which demands a box around its jobs: host-1 has none"),
        (
            "full",
            [(2, FULL), (8, USER), (8, None)],
            (
                "which demands a full box around its jobs: host-2 has the box that is made without root, and lacks "
                "account, memory, host-3 does not say that it has one"
            ),
        ),
        (
            "full",
            [(8, NONE)] * 5,
            (
                "which demands a full box around its jobs: host-1 has none, host-2 has none, host-3 has none, "
                "nor is there one on 2 other nodes"
            ),
        ),
    ],
)
def test_the_nodes_that_could_run_a_job_are_named_with_what_they_lack(
    demand: str, nodes: list[tuple[int, BoxRights | None]], words: str
) -> None:
    assert missing(demand, 4, *nodes) == words


def test_a_node_that_would_take_no_work_anyway_is_not_named() -> None:
    drained = a_boxed_node("host-1", 8, NONE, policy=PoolPolicy("full"), draining="1")
    assert facts("full", drained).missing_box("a100", 1) == ""


# -- how nodes reach each other --------------------------------------------------------------------


def missing_reach(devices: int, nodes: int, *others: tuple[int, str], draining: str = "") -> str:
    """For a job that wants `nodes` nodes; those of the pool have so many devices and reach each other so."""
    records = [
        a_boxed_node(f"host-{i}", size, FULL, address=f"10.0.0.{i}", reach=reach, reach_said_by="i", draining=draining)
        for i, (size, reach) in enumerate(others, start=1)
    ]
    return facts("any", *records).missing_reach("a100", devices, nodes)


def test_nothing_is_missing_where_enough_nodes_that_are_large_enough_reach_each_other() -> None:
    assert missing_reach(4, 2, (4, "network"), (4, "network")) == ""
    assert missing_reach(4, 2, (4, "network"), (8, ""), (4, "network"), (4, "loopback:x")) == ""
    assert missing_reach(4, 1, (4, ""), (4, "")) == "", "of a job on one node"


def test_nothing_is_missing_where_too_few_nodes_are_large_enough() -> None:
    assert missing_reach(4, 2, (4, ""), (2, "")) == ""
    assert missing_reach(4, 2, (4, ""), (4, ""), draining="1") == ""


@pytest.mark.parametrize(
    ("nodes", "others", "words"),
    [
        (
            2,
            [(4, ""), (2, "network"), (4, "network")],
            "whose nodes do not reach each other: host-1 listens on 10.0.0.1, host-3 listens on 10.0.0.3",
        ),
        (
            2,
            [(4, "loopback:x"), (4, "loopback:y")],
            "whose nodes do not reach each other: host-1 listens on 10.0.0.1, host-2 listens on 10.0.0.2",
        ),
        (
            3,
            [(4, "network"), (4, "network"), (4, ""), (4, ""), (4, "")],
            (
                "of whose nodes no more than 2 reach each other: host-1 listens on 10.0.0.1, host-2 listens on "
                "10.0.0.2, host-3 listens on 10.0.0.3, and 2 other nodes"
            ),
        ),
    ],
)
def test_nodes_that_do_not_reach_each_other_are_named_with_their_addresses(
    nodes: int, others: list[tuple[int, str]], words: str
) -> None:
    assert missing_reach(4, nodes, *others) == words


def test_what_an_earlier_worker_said_of_its_reach_does_not_count() -> None:
    earlier = a_boxed_node("host-1", 4, FULL, reach="network", reach_said_by="another")
    assert earlier.reach == ""


def test_devices_have_names_for_people_and_keep_their_index_where_the_node_is_unknown() -> None:
    known = facts("any", a_boxed_node("host-1", 2, FULL))
    assert known.labels("host-1", (0, 5)) == ["cpu:0", "device:5"]
    assert known.labels("ghost", (1,)) == ["device:1"]
