"""How links fail:

    LinkFailure
    ├── LinkClosed          a link that there was is no more
    ├── NotJoined           a part, or the leader, was not there in time or was refused
    └── JoinInterrupted     the attempt ended while its parts were joining

The text of each is a sentence for the log and for the error of a job.
"""

from collections.abc import Mapping


class LinkFailure(Exception):
    """Base of what goes wrong between two supervisors."""


class LinkClosed(LinkFailure):
    """The peer is gone, or what it sent cannot be believed. Nothing more comes over this link."""


class NotJoined(LinkFailure):
    """`missing` has the node of each part that is not linked."""

    def __init__(self, missing: Mapping[int, str], why: str) -> None:
        nodes = ", ".join(f"part {part} on node {node}" for part, node in sorted(missing.items()))
        super().__init__(f"{nodes} did not join: {why}")
        self.missing = dict(missing)
        self.why = why


class JoinInterrupted(LinkFailure):
    """Nobody is to blame: whoever waited was told to stop."""
