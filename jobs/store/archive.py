"""Moves jobs that are old enough from Redis to files, and restores whole stores from a back-up."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from jobs.model.records import Fields
from jobs.protocol.names import job_ref, split_ref
from jobs.store.call import Call, call_function, ignore_reply, read_hash
from jobs.store.specs import decompress_spec

#: How long it is remembered that a job was archived just now: longer than a call is repeated whose reply was lost.
ARCHIVED_SECONDS = 120


def list_finished(age_seconds: float, limit: int) -> Call[tuple[tuple[str, str], ...]]:
    """Jobs, as (tenant, id), that ended so long ago; those that ended first come first."""
    age_us = int(age_seconds * 1e6)
    return call_function("list_finished", lambda reply: tuple(map(split_ref, reply)), age_us=age_us, limit=limit)


@dataclass(frozen=True, slots=True)
class EndedJob:
    tenant: str
    job: str
    finished: int  # microseconds since the epoch

    @property
    def ref(self) -> str:
        return job_ref(self.tenant, self.job)


@dataclass(frozen=True, slots=True)
class EndedJobs:
    """Jobs in the order in which they ended, and the time by the control Redis's clock."""

    now: int
    jobs: tuple[EndedJob, ...]


def list_ended(after: int, after_ref: str, limit: int) -> Call[EndedJobs]:
    """Jobs that have ended after a time, and after a ref where several have ended at once, and are not archived."""

    def decode(reply: Sequence[Any]) -> EndedJobs:
        now, *found = reply
        return EndedJobs(int(now), tuple(EndedJob(*split_ref(ref), int(ended)) for ref, ended in found))

    return call_function("list_ended", decode, after=after, after_ref=after_ref, limit=limit)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that the store has about a finished job, as it has it."""

    job: Fields
    spec: bytes  # JSON
    attempts: tuple[Fields, ...]

    @property
    def version(self) -> int:
        return int(self.job[b"version"])


def snapshot(tenant: str, job: str) -> Call[Snapshot | None]:
    """A finished job; None when it has not ended, or is not there."""

    def decode(reply: Sequence[Any]) -> Snapshot | None:
        if not reply:
            return None
        fields, spec, *attempts = reply
        return Snapshot(read_hash(fields), decompress_spec(spec), tuple(read_hash(attempt) for attempt in attempts))

    return call_function("snapshot", decode, ref=job_ref(tenant, job))


class ArchiveOutcome(StrEnum):
    DONE = "archived"
    MISSING = "missing"  # it was deleted meanwhile
    CHANGED = "changed"  # it is not what was written


def archive_job(tenant: str, job: str, version: int) -> Call[ArchiveOutcome]:
    """Forget a finished job that is on disk now, if it is still of that version."""
    return call_function(
        "archive_job",
        lambda reply: ArchiveOutcome(reply.decode()),
        ref=job_ref(tenant, job),
        version=version,
        remembered_seconds=ARCHIVED_SECONDS,
    )


def free_idempotency_key(tenant: str, key: str, job: str) -> Call[None]:
    """Free the Idempotency-Key that made an archived job which is gone for good."""
    return call_function("free_idempotency_key", ignore_reply, tenant=tenant, key=key, id=job)


class KeyDump(msgspec.Struct, frozen=True, array_like=True):
    """One key as it was: its values in the order in which Redis lists those of its kind."""

    key: bytes
    kind: str  # string | hash | set | zset
    milliseconds: int  # left to live; -1: for ever
    values: tuple[bytes, ...]


def dump_keys() -> Call[tuple[KeyDump, ...]]:
    """Everything that a back-up holds, at one moment. Redis answers nobody else meanwhile: 0.3 s for 10,000 jobs."""

    def decode(reply: Sequence[Any]) -> tuple[KeyDump, ...]:
        return tuple(KeyDump(key, kind.decode(), left, tuple(values)) for key, kind, left, values in reply)

    return call_function("dump_keys", decode)


def requeue_restored() -> Call[int]:
    """End the attempts that were live in a back-up; their jobs are queued again. Returns how many there were."""
    return call_function("requeue_restored", int)
