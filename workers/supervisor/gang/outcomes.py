"""How an attempt ends when a part on another node cannot continue, or is lost."""

from collections.abc import Mapping
from typing import Any

import msgspec

from jobs.model.state import StateReason
from shardyard.contract.errors import Unavailable
from workers.runtime.launch import AttemptConfig
from workers.supervisor.ending.outcome import MAX_MESSAGE, AttemptOutcome
from workers.supervisor.gang.followers import LostPart
from workers.supervisor.lease import LeaseHolder
from workers.supervisor.limits.full_disk import may_be_of_disk, requeue_outcome
from workers.supervisor.link.messages import PartFailed, PartSwept

#: A node that has sent none in the time for so many of them is lost.
HEARTBEATS = 2.5


def outcome_of_failed_part(failure: PartFailed) -> AttemptOutcome:
    try:
        reason, error = StateReason(failure.reason), msgspec.json.decode(failure.error, type=dict[str, Any] | None)
    except ValueError:  # errors of msgspec are ValueErrors
        reason, error = StateReason.START_FAILED, None
    return AttemptOutcome(reason, failure.message[:MAX_MESSAGE], error)


def review_disks(outcome: AttemptOutcome, swept: Mapping[str, PartSwept]) -> AttemptOutcome:
    """The outcome, or the one that it has where the rank that failed has found a disk of its own node full. `swept` is
    what nodes have said in the end."""
    node = (outcome.error or {}).get("node")
    said = swept.get(node) if isinstance(node, str) else None
    if said is None or not said.disk_was_low or not may_be_of_disk(outcome):
        return outcome
    if said.disk_breach is not None:
        return outcome_of_failed_part(said.disk_breach)
    return requeue_outcome(str(node), outcome)


def review_lost_part(
    config: AttemptConfig, outcome: AttemptOutcome, lost: LostPart, lease: LeaseHolder
) -> AttemptOutcome:
    """The outcome of an attempt that has lost a part, or that of a lost node: a host that is silent may be gone, or
    only be cut off from this one."""
    if outcome.reason is not StateReason.LINK_LOST:
        return outcome
    try:
        is_heard = lease.hears_node(lost.node, HEARTBEATS * config.beat_seconds)
    except Unavailable:
        return outcome
    return outcome if is_heard else AttemptOutcome(StateReason.NODE_LOST, f"node {lost.node} is lost: {lost.why}")


def outcome_of_lost_part(config: AttemptConfig, lost: LostPart) -> AttemptOutcome:
    """A link that has broken is a supervisor that has died; one that is silent, a network that does not carry it, as
    far as can be known at once."""
    if lost.is_silent:
        message = f"nodes {config.node} and {lost.node} do not reach each other: {lost.why}"
        return AttemptOutcome(StateReason.LINK_LOST, message)
    return AttemptOutcome(StateReason.SUPERVISOR_LOST, f"the supervisor on node {lost.node} is gone: {lost.why}")
