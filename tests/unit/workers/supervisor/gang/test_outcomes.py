"""How an attempt ends that has failed on a node which does not lead."""

import pytest

from jobs.model.state import StateReason
from workers.supervisor.ending.outcome import AttemptOutcome
from workers.supervisor.gang.outcomes import outcome_of_failed_part, review_disks
from workers.supervisor.link.messages import PartFailed, PartSwept

FULL = AttemptOutcome(
    StateReason.CODE_ERROR,
    "rank 1: OSError: [Errno 28] No space left on device",
    {"node": "n2", "traceback": "OSError: [Errno 28] No space left on device"},
)
BREACH = PartFailed("resource_limit", "it has filled the disk", b'{"limit": "disk"}', urgent=True)


def test_a_rank_that_found_its_disk_full_on_another_node_costs_the_job_nothing() -> None:
    found = review_disks(FULL, {"n2": PartSwept(0, disk_was_low=True), "n3": PartSwept(0)})
    assert found.reason is StateReason.STORAGE_LOW
    assert found.message == f"a disk of node n2 had too little free space: {FULL.message}"
    assert found.error == FULL.error


def test_an_attempt_that_filled_a_disk_on_another_node_has_broken_its_limit() -> None:
    found = review_disks(FULL, {"n2": PartSwept(0, disk_was_low=True, disk_breach=BREACH)})
    assert found == AttemptOutcome(StateReason.RESOURCE_LIMIT, BREACH.message, {"limit": "disk"})


@pytest.mark.parametrize(
    ("outcome", "swept"),
    [
        pytest.param(FULL, {}, id="the node has said nothing"),
        pytest.param(FULL, {"n2": PartSwept(0)}, id="its disk was never low"),
        pytest.param(FULL, {"n3": PartSwept(0, disk_was_low=True)}, id="another node's disk was low"),
        pytest.param(
            AttemptOutcome(StateReason.CODE_ERROR, "rank 1: KeyError: 3", {"node": "n2"}),
            {"n2": PartSwept(0, disk_was_low=True)},
            id="a failure that no disk causes",
        ),
        pytest.param(
            AttemptOutcome(StateReason.COMPLETED, "done"), {"n2": PartSwept(0, disk_was_low=True)}, id="no failure"
        ),
    ],
)
def test_what_no_disk_has_caused_stays_as_it_is(outcome: AttemptOutcome, swept: dict[str, PartSwept]) -> None:
    assert review_disks(outcome, swept) is outcome


def test_an_error_that_cannot_be_read_leaves_a_failed_start() -> None:
    found = outcome_of_failed_part(PartFailed("code_error", "why", b"not JSON", urgent=True))
    assert (found.reason, found.message) == (StateReason.START_FAILED, "why")
