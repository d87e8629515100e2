"""Profiles of a running job: asked for by a user, recorded by the ranks of its attempt."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from jobs.protocol.names import job_ref
from jobs.protocol.profiles import ANSWER_SECONDS, MAX_PROFILES
from jobs.store.attempts import AttemptId
from jobs.store.call import Call, call_function, is_ok
from shardyard.contract.errors import Conflict, JobNotRunning, NotFound, ProfileRunning


@dataclass(frozen=True, slots=True)
class ProfileRequest:
    """The newest profile that was asked for of an attempt. `at` is in microseconds since the epoch."""

    state: Literal["asked", "recording", "done"]
    number: int
    steps: int
    at: int


def request_profile(tenant: str, job: str, steps: int) -> Call[tuple[int, int]]:
    """Ask for a profile; returns the attempt and the number of the profile.

    Raises (on execution):
        NotFound, JobNotRunning, ProfileRunning: there is no such job, it does not run, it is being profiled.
        Conflict: the attempt has had as many profiles as it may have.
    """

    def decode(reply: Sequence[bytes]) -> tuple[int, int]:
        status, *detail = (part.decode() for part in reply)
        if status == "missing":
            raise NotFound(f"there is no job {job!r}")
        if status == "not_running":
            raise JobNotRunning(f"job {job} is {detail[0]}; only a running job can be profiled")
        if status == "busy":
            raise ProfileRunning(f"profile {detail[0]} of job {job} is being recorded; wait until it has ended")
        if status == "too_many":
            raise Conflict(f"this attempt of job {job} has had {MAX_PROFILES} profiles, which is the limit")
        return int(detail[0]), int(detail[1])

    return call_function(
        "request_profile",
        decode,
        ref=job_ref(tenant, job),
        steps=steps,
        max_profiles=MAX_PROFILES,
        patience_us=int(ANSWER_SECONDS * 1e6),
    )


def read_profile(attempt: AttemptId) -> Call[ProfileRequest | None]:
    """The newest profile that was asked for of an attempt."""
    states: dict[bytes, Literal["asked", "recording", "done"]]
    states = {b"asked": "asked", b"recording": "recording", b"done": "done"}

    def decode(reply: Sequence[bytes]) -> ProfileRequest | None:
        return ProfileRequest(states[reply[0]], *map(int, reply[1:])) if reply else None

    return call_function("read_profile", decode, ref=attempt.job_ref, number=attempt.number)


def record_profile(attempt: AttemptId, claimant: str, number: int, state: Literal["recording", "done"]) -> Call[bool]:
    """Note how far a profile is. False: the lease is lost."""
    return call_function(
        "record_profile",
        is_ok,
        ref=attempt.job_ref,
        number=attempt.number,
        claimant=claimant,
        profile=number,
        state=state,
    )
