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


class JobState(StrEnum):
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


#: Every move from one state to another, with its letter in the diagram; from None: the job is not there yet.
#: `jobs/store/lua/transitions.lua` has the same table, and lets a job move in no other way.
TRANSITIONS: dict[JobState | None, dict[JobState, str]] = {
    None: {JobState.QUEUED: "a"},
    JobState.QUEUED: {JobState.STARTING: "b", JobState.CANCELLED: "f"},
    JobState.STARTING: {JobState.RUNNING: "c", JobState.FAILED: "e", JobState.CANCELLED: "f", JobState.QUEUED: "g"},
    JobState.RUNNING: {JobState.SUCCEEDED: "d", JobState.FAILED: "e", JobState.CANCELLED: "f", JobState.QUEUED: "g"},
    JobState.SUCCEEDED: {},
    JobState.FAILED: {},
    JobState.CANCELLED: {},
}

TERMINAL = frozenset(state for state in JobState if not TRANSITIONS[state])


class StateReason(StrEnum):
    """Why a job is in its state, or why an attempt ended."""

    # queued
    WAITING_FOR_DEVICES = "waiting_for_devices"
    NO_LIVE_NODE = "no_live_node"
    WAITING_FOR_NODES = "waiting_for_nodes"
    UNBOXED = "unboxed"
    NODE_HAS_NO_ADDRESS = "node_has_no_address"
    STORAGE_LOW = "storage_low"
    BACKING_OFF = "backing_off"
    WAITING_FOR_QUOTA = "waiting_for_quota"
    WAITING_FOR_TIME = "waiting_for_time"
    WAITING_FOR_JOBS = "waiting_for_jobs"
    WAITING_FOR_TURN = "waiting_for_turn"
    SUSPENDED = "suspended"
    SERVICE_STOPPED = "service_stopped"
    DRAINED = "drained"
    PREEMPTED = "preempted"
    # on devices
    STARTING = "starting"
    RUNNING = "running"
    CANCELLING = "cancelling"
    # ended
    COMPLETED = "completed"
    CANCELLED_BY_USER = "cancelled_by_user"
    DEPENDENCY_FAILED = "dependency_failed"
    RANK_FAILED = "rank_failed"
    CODE_ERROR = "code_error"
    OUT_OF_MEMORY = "out_of_memory"
    RESOURCE_LIMIT = "resource_limit"
    WALL_LIMIT = "wall_limit"
    STALLED = "stalled"
    REJECTED_BY_WORKER = "rejected_by_worker"
    START_FAILED = "start_failed"
    STORAGE_FAILED = "storage_failed"
    SUPERVISOR_LOST = "supervisor_lost"
    LEASE_EXPIRED = "lease_expired"
    NODE_LOST = "node_lost"
    LINK_LOST = "link_lost"

    @classmethod
    def _missing_(cls, value: object) -> "StateReason | None":
        """A reason that a later version of the service has given is kept as it is, and shown."""
        if not isinstance(value, str) or not re.fullmatch(r"[a-z][a-z_]{0,63}", value):
            return None
        later = str.__new__(cls, value)
        later._name_, later._value_ = value.upper(), value
        return later


#: The state that each reason belongs to. Total: a test walks the enum.
STATE_OF: dict[StateReason, JobState] = {
    StateReason.WAITING_FOR_DEVICES: JobState.QUEUED,
    StateReason.NO_LIVE_NODE: JobState.QUEUED,
    StateReason.WAITING_FOR_NODES: JobState.QUEUED,
    StateReason.UNBOXED: JobState.QUEUED,
    StateReason.NODE_HAS_NO_ADDRESS: JobState.QUEUED,
    StateReason.STORAGE_LOW: JobState.QUEUED,
    StateReason.BACKING_OFF: JobState.QUEUED,
    StateReason.WAITING_FOR_QUOTA: JobState.QUEUED,
    StateReason.WAITING_FOR_TIME: JobState.QUEUED,
    StateReason.WAITING_FOR_JOBS: JobState.QUEUED,
    StateReason.WAITING_FOR_TURN: JobState.QUEUED,
    StateReason.SUSPENDED: JobState.QUEUED,
    StateReason.SERVICE_STOPPED: JobState.QUEUED,
    StateReason.DRAINED: JobState.QUEUED,
    StateReason.PREEMPTED: JobState.QUEUED,
    StateReason.STARTING: JobState.STARTING,
    StateReason.RUNNING: JobState.RUNNING,
    StateReason.CANCELLING: JobState.RUNNING,
    StateReason.COMPLETED: JobState.SUCCEEDED,
    StateReason.CANCELLED_BY_USER: JobState.CANCELLED,
    StateReason.DEPENDENCY_FAILED: JobState.CANCELLED,
    StateReason.RANK_FAILED: JobState.FAILED,
    StateReason.CODE_ERROR: JobState.FAILED,
    StateReason.OUT_OF_MEMORY: JobState.FAILED,
    StateReason.RESOURCE_LIMIT: JobState.FAILED,
    StateReason.WALL_LIMIT: JobState.FAILED,
    StateReason.STALLED: JobState.FAILED,
    StateReason.REJECTED_BY_WORKER: JobState.FAILED,
    StateReason.START_FAILED: JobState.FAILED,
    StateReason.STORAGE_FAILED: JobState.FAILED,
    StateReason.SUPERVISOR_LOST: JobState.FAILED,
    StateReason.LEASE_EXPIRED: JobState.FAILED,
    StateReason.NODE_LOST: JobState.FAILED,
    StateReason.LINK_LOST: JobState.FAILED,
}


#: Of queued jobs that are in no queue: no other tenant's job, and no want of devices, keeps them from starting.
OUT_OF_QUEUE = frozenset(
    {
        StateReason.BACKING_OFF,
        StateReason.WAITING_FOR_TIME,
        StateReason.WAITING_FOR_JOBS,
        StateReason.WAITING_FOR_TURN,
        StateReason.WAITING_FOR_QUOTA,
        StateReason.SUSPENDED,
    }
)


class AttemptState(StrEnum):
    """Leased: devices are held, nobody has claimed. Claimed: a supervisor has. Ended: final."""

    LEASED = "leased"
    CLAIMED = "claimed"
    ENDED = "ended"


class SupervisorCommand(StrEnum):
    """What the control plane wants of a supervisor."""

    GO = "go"
    PROFILE = "profile"  # go on, and read which profile is wanted
    CANCEL = "cancel"
    STOP = "stop"
    LOST = "lost"


class Cause(StrEnum):
    """Whose failure ended an attempt: it decides which budget a retry is taken from."""

    NONE = "none"  # the end is final: completed, cancelled, wall limit, rejected
    USER = "user"  # counted against `limits.max_retries`
    SERVICE = "service"  # counted against the service's own budget
    UNCLAIMED = "unclaimed"  # not counted: nothing ran, since no supervisor took it, or not all joined; any reason
    STOP = "stop"  # not counted: a stop of the service, a drain, a suspended job, or one whose devices another took


#: The cause of each reason that ends an attempt which a supervisor has claimed, or a node has refused.
CAUSE_OF: dict[StateReason, Cause] = {
    StateReason.COMPLETED: Cause.NONE,
    StateReason.CANCELLED_BY_USER: Cause.NONE,
    StateReason.WALL_LIMIT: Cause.NONE,
    StateReason.REJECTED_BY_WORKER: Cause.NONE,
    StateReason.RANK_FAILED: Cause.USER,
    StateReason.CODE_ERROR: Cause.USER,
    StateReason.OUT_OF_MEMORY: Cause.USER,
    StateReason.RESOURCE_LIMIT: Cause.USER,
    StateReason.STALLED: Cause.USER,
    StateReason.START_FAILED: Cause.SERVICE,
    StateReason.STORAGE_FAILED: Cause.SERVICE,
    StateReason.SUPERVISOR_LOST: Cause.SERVICE,
    StateReason.LEASE_EXPIRED: Cause.SERVICE,
    StateReason.NODE_LOST: Cause.SERVICE,
    StateReason.LINK_LOST: Cause.SERVICE,
    StateReason.SERVICE_STOPPED: Cause.STOP,
    StateReason.DRAINED: Cause.STOP,
    StateReason.STORAGE_LOW: Cause.STOP,
    StateReason.SUSPENDED: Cause.STOP,
    StateReason.PREEMPTED: Cause.STOP,
}
