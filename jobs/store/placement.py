"""Attempts and nodes: which attempts hold a node's devices, and where a known attempt runs or ran."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from jobs.model.records import AttemptRecord
from jobs.protocol.names import attempt_key, job_key, job_ref
from jobs.store.attempts import AttemptId
from jobs.store.call import Call, call_function, read_hash


class HeldAttempt(NamedTuple):
    """An attempt that holds devices of a node. `bundle` has the hexadecimal digits of its job's; "": it has none."""

    attempt: AttemptId
    bundle: str


def read_held_attempts(node: str) -> Call[tuple[HeldAttempt, ...]]:
    """The attempts that hold devices of a node: those that run there, and those that have ended and are not proven to
    be gone."""

    def decode(reply: Sequence[Any]) -> tuple[HeldAttempt, ...]:
        return tuple(HeldAttempt(AttemptId.parse(ref.decode()), bundle.decode()) for ref, bundle in reply)

    return call_function("read_held_attempts", decode, node=node)


def read_attempt_number(tenant: str, job: str) -> Call[int]:
    """The number of the newest attempt of a job; 0 where there is none."""
    return Call(("HGET", job_key(job_ref(tenant, job)), "attempt"), lambda reply: int(reply or 0))


def read_attempt(attempt: AttemptId) -> Call[AttemptRecord | None]:
    """One attempt; None where there is none, or its job is archived."""
    return Call(
        ("HGETALL", attempt_key(str(attempt))),
        lambda reply: AttemptRecord.from_fields(attempt.number, read_hash(reply)) if reply else None,
    )
