"""States of a job, and the reasons for them.

```
            +------------- g -------------+------------ g ------------+
            v                             |                           |
-- a --> queued --------- b --------> starting -------- c -------> running --- d --> succeeded
            |                          |    |                      |    |
            f                          f    e                      f    e
            v                          v    v                      v    v
        cancelled              cancelled    failed         cancelled    failed
```
What makes each move is listed in `docs/architecture.md`.
"""

import re
from enum import StrEnum


class State(StrEnum):
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


#: Every move from one state to another, with its letter in the diagram; from None: the job is not there yet.
#: `jobs/store/lua/transitions.lua` has the same table, and lets a job move in no other way.
TRANSITIONS: dict[State | None, dict[State, str]] = {
    None: {State.QUEUED: "a"},
    State.QUEUED: {State.STARTING: "b", State.CANCELLED: "f"},
    State.STARTING: {State.RUNNING: "c", State.FAILED: "e", State.CANCELLED: "f", State.QUEUED: "g"},
    State.RUNNING: {State.SUCCEEDED: "d", State.FAILED: "e", State.CANCELLED: "f", State.QUEUED: "g"},
    State.SUCCEEDED: {},
    State.FAILED: {},
    State.CANCELLED: {},
}

TERMINAL = frozenset(state for state in State if not TRANSITIONS[state])


class Reason(StrEnum):
    """Why a job is in its state, or why an attempt ended."""

    # queued
    WAITING_FOR_DEVICES = "waiting_for_devices"
    NO_LIVE_NODE = "no_live_node"
    BACKING_OFF = "backing_off"
    SERVICE_STOPPED = "service_stopped"
    DRAINED = "drained"
    # on devices
    STARTING = "starting"
    RUNNING = "running"
    CANCELLING = "cancelling"
    # ended
    COMPLETED = "completed"
    CANCELLED_BY_USER = "cancelled_by_user"
    RANK_FAILED = "rank_failed"
    CODE_ERROR = "code_error"
    OUT_OF_MEMORY = "out_of_memory"
    WALL_LIMIT = "wall_limit"
    STALLED = "stalled"
    REJECTED_BY_WORKER = "rejected_by_worker"
    START_FAILED = "start_failed"
    STORAGE_FAILED = "storage_failed"
    SUPERVISOR_LOST = "supervisor_lost"
    LEASE_EXPIRED = "lease_expired"
    NODE_LOST = "node_lost"

    @classmethod
    def _missing_(cls, value: object) -> "Reason | None":
        """A reason that a later version of the service has given is kept as it is, and shown."""
        if not isinstance(value, str) or not re.fullmatch(r"[a-z][a-z_]{0,63}", value):
            return None
        later = str.__new__(cls, value)
        later._name_, later._value_ = value.upper(), value
        return later


#: The state that each reason belongs to. Total: a test walks the enum.
STATE_OF: dict[Reason, State] = {
    Reason.WAITING_FOR_DEVICES: State.QUEUED,
    Reason.NO_LIVE_NODE: State.QUEUED,
    Reason.BACKING_OFF: State.QUEUED,
    Reason.SERVICE_STOPPED: State.QUEUED,
    Reason.DRAINED: State.QUEUED,
    Reason.STARTING: State.STARTING,
    Reason.RUNNING: State.RUNNING,
    Reason.CANCELLING: State.RUNNING,
    Reason.COMPLETED: State.SUCCEEDED,
    Reason.CANCELLED_BY_USER: State.CANCELLED,
    Reason.RANK_FAILED: State.FAILED,
    Reason.CODE_ERROR: State.FAILED,
    Reason.OUT_OF_MEMORY: State.FAILED,
    Reason.WALL_LIMIT: State.FAILED,
    Reason.STALLED: State.FAILED,
    Reason.REJECTED_BY_WORKER: State.FAILED,
    Reason.START_FAILED: State.FAILED,
    Reason.STORAGE_FAILED: State.FAILED,
    Reason.SUPERVISOR_LOST: State.FAILED,
    Reason.LEASE_EXPIRED: State.FAILED,
    Reason.NODE_LOST: State.FAILED,
}


class AttemptState(StrEnum):
    """Leased: devices are held, nobody has claimed. Claimed: a supervisor has. Ended: final."""

    LEASED = "leased"
    CLAIMED = "claimed"
    ENDED = "ended"


class SupervisorCommand(StrEnum):
    """What the control plane wants of a supervisor."""

    GO = "go"
    CANCEL = "cancel"
    STOP = "stop"
    LOST = "lost"


class Cause(StrEnum):
    """Whose failure ended an attempt: it decides which budget a retry is taken from."""

    NONE = "none"  # the end is final: completed, cancelled, wall limit, rejected
    USER = "user"  # counted against `limits.max_retries`
    SERVICE = "service"  # counted against the service's own budget
    UNCLAIMED = "unclaimed"  # not counted: no supervisor took the attempt, whatever its reason
    STOP = "stop"  # not counted: the operator stopped the service, or drained the node


#: The cause of each reason that ends an attempt which a supervisor has claimed, or a node has refused.
CAUSE_OF: dict[Reason, Cause] = {
    Reason.COMPLETED: Cause.NONE,
    Reason.CANCELLED_BY_USER: Cause.NONE,
    Reason.WALL_LIMIT: Cause.NONE,
    Reason.REJECTED_BY_WORKER: Cause.NONE,
    Reason.RANK_FAILED: Cause.USER,
    Reason.CODE_ERROR: Cause.USER,
    Reason.OUT_OF_MEMORY: Cause.USER,
    Reason.STALLED: Cause.USER,
    Reason.START_FAILED: Cause.SERVICE,
    Reason.STORAGE_FAILED: Cause.SERVICE,
    Reason.SUPERVISOR_LOST: Cause.SERVICE,
    Reason.LEASE_EXPIRED: Cause.SERVICE,
    Reason.NODE_LOST: Cause.SERVICE,
    Reason.SERVICE_STOPPED: Cause.STOP,
    Reason.DRAINED: Cause.STOP,
}
