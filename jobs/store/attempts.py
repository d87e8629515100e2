"""Attempts: dispatched, claimed, renewed, finished or reaped, and their devices given back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from jobs.model.device_history import AttemptMarks
from jobs.model.state import CAUSE_OF, StateReason, SupervisorCommand
from jobs.protocol.names import attempt_ref, job_ref
from jobs.store.call import Call, Word, call_function, encode_json, is_ok

#: Attempts that a job may lose to failures of the service without progress; the next loss parks it as failed.
MAX_LOSSES = 5
#: Jobs that one dispatch starts, and hints that it returns.
MAX_DISPATCHED, MAX_HINTS = 32, 128
#: A hint whose attempt is not claimed is sent again after this long.
RESEND_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class AttemptId:
    """Names one attempt everywhere. `number` is the fencing token."""

    tenant: str
    job: str
    number: int

    @classmethod
    def parse(cls, ref: str) -> "AttemptId":
        tenant, job, number = ref.split("/")
        return cls(tenant, job, int(number))

    def __str__(self) -> str:
        return attempt_ref(self.tenant, self.job, self.number)

    @property
    def job_ref(self) -> str:
        return job_ref(self.tenant, self.job)


class PartId(NamedTuple):
    """Names what an attempt does on one of its nodes."""

    attempt: AttemptId
    node: str


@dataclass(frozen=True, slots=True)
class Hint:
    """Notifies `node` that an attempt waits there for a supervisor. Harmless however often it is sent."""

    node: str
    attempt: AttemptId


@dataclass(frozen=True, slots=True)
class Dispatched:
    """The attempts that a dispatch created, and the hints that are due: theirs, and those that were lost before."""

    created: tuple[AttemptId, ...]
    hints: tuple[Hint, ...]


def dispatch(
    hold_seconds: float, resend_seconds: float = RESEND_SECONDS, *, avoid_slow_from: int = 0
) -> Call[Dispatched]:
    """Lease free devices to queued jobs, and take the hints that are due; each is due again after `resend_seconds`
    unless its attempt is claimed. A large job that has waited `hold_seconds` has a node kept for it. Jobs of
    `avoid_slow_from` devices or more get devices that were slow lately only where there are no others (0: no jobs)."""

    def decode(reply: Sequence[Sequence[bytes]]) -> Dispatched:
        created, hints = reply
        pairs = (member.decode().split(" ", 1) for member in hints)
        return Dispatched(
            tuple(AttemptId.parse(ref.decode()) for ref in created),
            tuple(Hint(node, AttemptId.parse(ref)) for node, ref in pairs),
        )

    return call_function(
        "dispatch",
        decode,
        max_jobs=MAX_DISPATCHED,
        hold_us=int(hold_seconds * 1e6),
        max_hints=MAX_HINTS,
        resend_us=int(resend_seconds * 1e6),
        avoid_slow_from=avoid_slow_from,
    )


@dataclass(frozen=True, slots=True)
class ClaimReply:
    """`part` is that of the node in the attempt; 0 leads. The others are told its `link`, "" until it has claimed."""

    granted: bool
    refused: str = ""
    part: int = 0
    link: str = field(default="", repr=False)  # it has a secret


def claim(attempt: AttemptId, claimant: str, node: str, link: str = "") -> Call[ClaimReply]:
    """Take a node's part of an attempt for a supervisor. `claimant` is a nonce that every later call must show. `link`
    is where the leader hears the other parts, with the secret that they show it; whoever does not lead claims again to
    learn it."""

    def decode(reply: Sequence[Any]) -> ClaimReply:
        if reply[0] != b"claimed":
            return ClaimReply(False, reply[1].decode())
        return ClaimReply(True, part=int(reply[1]), link=reply[2].decode())

    return call_function("claim", decode, **_claimed(attempt, claimant), node=node, link=link)


def record_milestone(attempt: AttemptId, claimant: str, milestone: Literal["running", "first_step"]) -> Call[bool]:
    """Note that the first rank is up, or has made its first step. False: the lease is lost."""
    return call_function("record_milestone", is_ok, **_claimed(attempt, claimant), milestone=milestone)


def renew_lease(attempt: AttemptId, claimant: str, part: int = 0) -> Call[SupervisorCommand]:
    """Beat a part's lease, unless it is lost; what its supervisor should do now. A part that does not lead only learns
    whether it is lost."""
    return call_function("renew_lease", _command, **_claimed(attempt, claimant), part=part)


def read_command(attempt: AttemptId, claimant: str, part: int = 0) -> Call[SupervisorCommand]:
    """What the supervisor of a part should do now."""
    return call_function("read_command", _command, **_claimed(attempt, claimant), part=part)


def commit_checkpoint(
    attempt: AttemptId, claimant: str, *, step: int, epoch: int, sha256: str
) -> Call[Literal["ok", "stale", "lost"]]:
    """Point the job to a checkpoint that is whole and on disk, if it is of a higher step than the one before.
    `sha256` is its manifest's. lost: the lease is."""
    answers: dict[bytes, Literal["ok", "stale", "lost"]] = {b"ok": "ok", b"stale": "stale", b"lost": "lost"}
    return call_function(
        "commit_checkpoint", answers.__getitem__, **_claimed(attempt, claimant), step=step, epoch=epoch, sha256=sha256
    )


def record_resume(
    attempt: AttemptId, claimant: str, *, step: int | None, epoch: int = 0, saved_by: int = 0, sha256: str = ""
) -> Call[bool]:
    """Note which checkpoint an attempt goes on from, saved by attempt `saved_by`; `step` is None where it begins at the
    first step, since none could be used. False: the lease is lost."""
    return call_function(
        "record_resume",
        is_ok,
        **_claimed(attempt, claimant),
        step="" if step is None else step,
        epoch=epoch,
        saved_by=saved_by,
        sha256=sha256,
    )


def record_script_resume(attempt: AttemptId, claimant: str, *, saved_by: int) -> Call[bool]:
    """Note that a script goes on from what attempt `saved_by` has saved, which makes up for the losses before that.
    False: the lease is lost."""
    return call_function("record_script_resume", is_ok, **_claimed(attempt, claimant), saved_by=saved_by)


def finish(
    attempt: AttemptId,
    claimant: str,
    reason: StateReason,
    message: str,
    *,
    error: Mapping[str, Any] | None = None,
    result: Mapping[str, Any] | None = None,
    backoff_seconds: float = 0,
    node: str = "",
    quarantine: Mapping[int, str] | None = None,
    measured: AttemptMarks | None = None,
) -> Call[bool]:
    """Write the end of an attempt. False: the lease was lost, and what happened there does not count.
    With `node` its devices there are given back as well, as `release` does. `measured` goes into the history of the
    devices of all nodes."""
    return call_function(
        "finish",
        is_ok,
        *_flattened(quarantine or {}),
        **_claimed(attempt, claimant),
        reason=reason,
        message=message,
        cause=CAUSE_OF[reason],
        failed=encode_json(error),
        result=encode_json(result),
        backoff_us=int(backoff_seconds * 1e6),
        max_losses=MAX_LOSSES,
        dead_on_node=node,
        measured=encode_json(measured) if measured else b"",
    )


def abandon(attempt: AttemptId, claimant: str, node: str, message: str, *, backoff_seconds: float = 0) -> Call[bool]:
    """Give up an attempt over several nodes that cannot begin, because the part on `node` has not joined the leader,
    whose `claimant` this is. The job goes back to the queue at nobody's cost, and avoids `node` next time. False: the
    lease was lost before. The attempt's reason is `node_lost` where the node is down, `lease_expired` where nobody has
    claimed the part there, else `link_lost`."""
    return call_function(
        "abandon",
        is_ok,
        **_claimed(attempt, claimant),
        node=node,
        message=message,
        backoff_us=int(backoff_seconds * 1e6),
        max_losses=MAX_LOSSES,
    )


def reap(
    attempt: AttemptId,
    reason: StateReason,
    message: str,
    *,
    heartbeat: int | None,
    backoff_seconds: float,
    node: str = "",
    node_heartbeat: int | None = None,
    node_message: str = "",
) -> Call[StateReason | None]:
    """End an attempt of which a supervisor is gone: that of the part on `node`, or of the leader's. `heartbeat` is the
    value of its counter that stood still; None with proof of death.
    `node_heartbeat` is that of its node, where that stood still too: the attempt then ends as `node_lost`, with
    `node_message`; so it does on a node that is down, unless there is proof. Returns the reason that it ended with;
    None: it is alive after all, or has ended already."""

    def decode(reply: Sequence[bytes]) -> StateReason | None:
        status, ended = (part.decode() for part in reply)
        return StateReason(ended) if status == "ok" else None

    return call_function(
        "reap",
        decode,
        ref=attempt.job_ref,
        number=attempt.number,
        heartbeat="" if heartbeat is None else heartbeat,
        reason=reason,
        message=message,
        backoff_us=int(backoff_seconds * 1e6),
        max_losses=MAX_LOSSES,
        node=node,
        node_heartbeat="" if node_heartbeat is None else node_heartbeat,
        node_message=node_message,
    )


def refuse(
    attempt: AttemptId, node: str, reason: StateReason, message: str, *, backoff_seconds: float = 0
) -> Call[bool]:
    """Say that a node cannot start an attempt that nobody has claimed yet."""
    return call_function(
        "refuse",
        is_ok,
        ref=attempt.job_ref,
        number=attempt.number,
        node=node,
        reason=reason,
        message=message,
        cause=CAUSE_OF[reason],
        backoff_us=int(backoff_seconds * 1e6),
        max_losses=MAX_LOSSES,
    )


def hand_back(attempt: AttemptId, claimant: str, node: str, quarantine: Mapping[int, str]) -> Call[bool]:
    """Give the devices of a node back before the end is written, as `release` does after it: for an attempt whose
    processes are dead there, and whose files are still to be carried. Its lease stays. False: that is lost."""
    return call_function("hand_back", is_ok, *_flattened(quarantine), **_claimed(attempt, claimant), node=node)


def release(node: str, attempt: AttemptId, quarantine: Mapping[int, str]) -> Call[int]:
    """Give back the devices of an ended attempt, or of one whose leader has handed back its own; those in `quarantine`
    stay unused for that reason. Returns how many changed hands, -1 while the attempt is live."""
    return call_function("release", int, *_flattened(quarantine), node=node, attempt_ref=str(attempt))


def _claimed(attempt: AttemptId, claimant: str) -> dict[str, Word]:
    return {"ref": attempt.job_ref, "number": attempt.number, "claimant": claimant}


def _flattened(quarantine: Mapping[int, str]) -> list[Word]:
    return [part for device, reason in quarantine.items() for part in (device, reason)]


def _command(reply: bytes) -> SupervisorCommand:
    return SupervisorCommand(reply.decode())
