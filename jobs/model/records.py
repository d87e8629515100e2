"""Frozen values that the store hands out. Only the store changes what they show.

Times are microseconds since the epoch (UTC), by the control Redis's clock; `None` where a thing has
not happened.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from jobs.model.device_history import SlowRecord
from jobs.model.pool_policy import DEFAULT_POLICY, PoolPolicy
from jobs.model.state import AttemptState, JobState, StateReason
from jobs.model.trace_context import JobTrace

Fields = Mapping[bytes, bytes]


class Placement(msgspec.Struct, frozen=True):
    """Devices of a node that an attempt has, by their indexes there."""

    node: str
    devices: tuple[int, ...]


class JobRow(msgspec.Struct, frozen=True, kw_only=True):
    """What lists show of a job."""

    tenant: str
    id: str
    name: str
    pool: str
    devices: int
    priority: int
    strategy: str
    labels: dict[str, str]
    state: JobState
    reason: StateReason
    message: str
    attempt: int
    created: int
    started: int | None
    first_step: int | None
    finished: int | None
    node: str | None  # that leads
    leased: tuple[int, ...]  # devices there
    cancel_requested: bool
    archived: bool = False  # it is on disk, and no longer in the control Redis
    nodes: int = 1  # that it wants
    followers: tuple[Placement, ...] = ()  # on its other nodes
    group: str | None = None  # the comparison or the sweep that it is a job of

    @property
    def all_devices(self) -> int:
        """How many devices it wants on all its nodes."""
        return self.devices * self.nodes

    @property
    def placement(self) -> tuple[Placement, ...]:
        """Its nodes, the one that leads first; none before it has devices."""
        return (Placement(self.node, self.leased), *self.followers) if self.node and self.leased else ()

    @classmethod
    def from_fields(cls, tenant: str, job: str, fields: Fields) -> "JobRow":
        """`fields` are those of `ROW_FIELDS`."""
        return cls(**_row_values(tenant, job, fields))


#: Fields of a job in the control Redis that a `JobRow` is read from. The first is its state.
ROW_FIELDS = (
    b"state",
    b"name",
    b"pool",
    b"devices",
    b"priority",
    b"strategy",
    b"labels",
    b"reason",
    b"message",
    b"attempt",
    b"created",
    b"started",
    b"first_step",
    b"finished",
    b"node",
    b"leased",
    b"cancel",
    b"nodes",
    b"followers",
    b"group",
)


def _row_values(tenant: str, job: str, fields: Fields) -> dict[str, Any]:
    return {
        "tenant": tenant,
        "id": job,
        "name": _text_field(fields, b"name"),
        "pool": _text_field(fields, b"pool"),
        "devices": int(fields[b"devices"]),
        "priority": int(fields[b"priority"]),
        "strategy": _text_field(fields, b"strategy"),
        "labels": _json_field(fields, b"labels") or {},
        "state": _STATES[fields[b"state"]],
        "reason": _decode_reason(fields[b"reason"]),
        "message": _text_field(fields, b"message"),
        "attempt": int(fields[b"attempt"]),
        "created": int(fields[b"created"]),
        "started": _time_field(fields, b"started"),
        "first_step": _time_field(fields, b"first_step"),
        "finished": _time_field(fields, b"finished"),
        "node": _text_field(fields, b"node") or None,
        "leased": _device_indexes(fields),
        "cancel_requested": _text_field(fields, b"cancel") == "1",
        "nodes": int(fields.get(b"nodes") or 1),
        "followers": _read_followers(_text_field(fields, b"followers")),
        "group": _text_field(fields, b"group").rpartition("/")[2] or None,
    }


class JobRecord(JobRow, frozen=True, kw_only=True):
    retries: int
    max_retries: int
    version: int
    parent: str | None
    token: str = ""  # that has submitted it
    error: dict[str, Any] | None
    result: dict[str, Any] | None
    losses: int = 0  # attempts lost to failures of the service
    start_after: int | None = None  # it does not start before
    preemptions: int = 0  # how often a job of a higher priority took its devices
    suspended: bool = False  # by a user: it is in no queue, or on its way out of its devices
    retry_at: int | None = None  # while it backs off: when it may start again
    checkpoint: dict[str, Any] | None = None  # the newest that is committed: step, epoch, attempt, sha256, at
    network: str | None = None  # what its newest attempt has: none | host
    trace: JobTrace = JobTrace()

    @classmethod
    def from_fields(cls, tenant: str, job: str, fields: Fields, *, archived: bool = False) -> "JobRecord":
        return cls(
            **_row_values(tenant, job, fields),
            retries=int(fields[b"retries"]),
            max_retries=int(fields[b"max_retries"]),
            version=int(fields[b"version"]),
            parent=_text_field(fields, b"parent") or None,
            token=_text_field(fields, b"token"),
            error=_json_field(fields, b"error"),
            result=_json_field(fields, b"result"),
            losses=int(fields.get(b"losses") or 0),
            start_after=_time_field(fields, b"start_after"),
            preemptions=int(fields.get(b"preemptions") or 0),
            suspended=_text_field(fields, b"suspended") == "1",
            retry_at=_time_field(fields, b"retry_at"),
            checkpoint=_json_field(fields, b"checkpoint"),
            network=_text_field(fields, b"network") or None,
            trace=JobTrace(_text_field(fields, b"traceparent"), _text_field(fields, b"caller_span")),
            archived=archived,
        )


@dataclass(frozen=True, slots=True)
class QueueView:
    """What a queued job waits behind. Devices are those of nodes that take work."""

    ahead: int  # jobs that start before it in any case: of a higher priority, or earlier ones of its tenant
    free: int
    largest_gap: int  # free devices of the node that has most of them
    live_nodes: int
    total: int
    low_nodes: int = 0  # that take no work because a disk of theirs has too little room


#: Fields of a part, which have its number behind their names.
_PART_FIELDS = (b"node", b"leased", b"state", b"claimant", b"beat", b"claimed")


@dataclass(frozen=True, slots=True)
class PartRecord:
    """What an attempt does on a node that does not lead. Until the attempt has ended, its state is of its own."""

    node: str
    leased: tuple[int, ...]
    state: AttemptState
    claimant: str | None
    heartbeat: int
    claimed: int | None

    @classmethod
    def from_fields(cls, part: int, fields: Fields) -> "PartRecord":
        own = {name: fields[key] for name in _PART_FIELDS if (key := b"%s.%d" % (name, part)) in fields}
        return cls(
            node=_text_field(own, b"node"),
            leased=_device_indexes(own),
            state=AttemptState(_text_field(own, b"state")),
            claimant=_text_field(own, b"claimant") or None,
            heartbeat=int(own[b"beat"]),
            claimed=_time_field(own, b"claimed"),
        )


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One run of a job on leased devices. `number` is its fencing token."""

    number: int
    node: str
    leased: tuple[int, ...]
    state: AttemptState
    claimant: str | None
    heartbeat: int
    created: int
    claimed: int | None
    started: int | None
    first_step: int | None
    ended: int | None
    reason: StateReason | None
    message: str
    error: dict[str, Any] | None
    resumed: dict[str, Any] | None = None  # step and attempt of the checkpoint that it began with
    network: str | None = None  # none | host; None: an earlier version of the service has dispatched it
    followers: tuple[PartRecord, ...] = ()  # its parts on other nodes, 1 to n-1; the fields above are the leader's

    @property
    def device_count(self) -> int:
        """How many devices it has on all its nodes; they are numbered through."""
        return sum(len(place.devices) for place in self.placement)

    @property
    def placement(self) -> tuple[Placement, ...]:
        """Its nodes, the one that leads first."""
        return Placement(self.node, self.leased), *(Placement(part.node, part.leased) for part in self.followers)

    @classmethod
    def from_fields(cls, number: int, fields: Fields) -> "AttemptRecord":
        reason = _text_field(fields, b"reason")
        return cls(
            number=number,
            node=_text_field(fields, b"node"),
            leased=_device_indexes(fields),
            state=AttemptState(_text_field(fields, b"state")),
            claimant=_text_field(fields, b"claimant") or None,
            heartbeat=int(fields[b"beat"]),
            created=int(fields[b"created"]),
            claimed=_time_field(fields, b"claimed"),
            started=_time_field(fields, b"started"),
            first_step=_time_field(fields, b"first_step"),
            ended=_time_field(fields, b"ended"),
            reason=StateReason(reason) if reason else None,
            message=_text_field(fields, b"message"),
            error=_json_field(fields, b"error"),
            resumed=_json_field(fields, b"resumed"),
            network=_text_field(fields, b"network") or None,
            followers=tuple(PartRecord.from_fields(part, fields) for part in range(1, int(fields.get(b"parts") or 1))),
        )


class DeviceRecord(msgspec.Struct, frozen=True):
    """One device of a node. `index` is its slot among the devices that the node was given, `ordinal`
    its number on the host, `id` the GPU's UUID, or `cpu:<n>` for a virtual device."""

    index: int
    kind: Literal["cuda", "cpu"]
    ordinal: int
    id: str
    name: str
    memory_total_bytes: int | None = None

    @property
    def label(self) -> str:
        """The name for people: `cuda:3` or `cpu:3`."""
        return f"{self.kind}:{self.ordinal}"

    def name_in_fleet(self, node: str) -> str:
        """The name under which the service keeps its history: a GPU keeps its UUID wherever it goes; other ids are the
        same on every node, whose names have no colon."""
        return f"{node}:{self.id}" if self.kind == "cpu" else self.id


#: What a job may have for itself in a box, in the order in which it is shown: a PID namespace, a mount namespace, an
#: IPC namespace, a network namespace, an account for each attempt, limits of memory and of processes by a cgroup, the
#: device files of its lease alone, and a filter of system calls.
BOX_RIGHTS = ("processes", "files", "ipc", "network", "account", "memory", "pids", "devices", "syscalls")


class BoxRights(msgspec.Struct, frozen=True):
    """The box that a node puts around each job. `level` is `full` (made by root), `user` (by user namespaces, without
    root) or `none`; `lacks` says of every right that it has not, in words, why."""

    level: str
    lacks: dict[str, str]

    @property
    def why_none(self) -> str:
        """Why there is no box, which is the same for every right; "" where there is one."""
        return next(iter(self.lacks.values()), "no reason is given") if self.level == "none" else ""

    def has_right(self, right: str) -> bool:
        """Whether a job has this of `BOX_RIGHTS` for itself."""
        return self.level != "none" and right not in self.lacks


class NodeInfo(msgspec.Struct, frozen=True):
    """What a node says of itself when it registers."""

    host: str
    cores: int
    version: str
    devices: tuple[DeviceRecord, ...]
    environments: tuple[str, ...] = ()  # Pythons that jobs may name
    box: BoxRights | None = None  # None: its worker is of an earlier version, which makes none
    virtual: bool = False  # it shares its machine with others, and splits over them are tried rather than needed

    @property
    def box_level(self) -> str:
        return "none" if self.box is None else self.box.level

    @property
    def why_no_box(self) -> str:
        """Why jobs get no box there; "" where they get one, or that is not known."""
        return self.box.why_none if self.box is not None else ""

    def has_right(self, right: str) -> bool:
        """Whether it is known that a job there has this of `BOX_RIGHTS` for itself."""
        return self.box is not None and self.box.has_right(right)


class LowDisk(msgspec.Struct, frozen=True):
    """A file system that has less left than the service keeps for itself: its node takes no work. `name` says what lies
    there. The layout grows at the end."""

    name: str
    free_bytes: int
    reserve_bytes: int
    free_files: int = 0
    reserve_files: int = 0


class Quarantine(msgspec.Struct, frozen=True):
    """Why a device is not leased. `by` is `sweep` where processes of `attempt` would not die: the device comes
    back when the node has proof that they are gone. What the `operator` has put there comes back by a command only."""

    reason: str
    since: int | None = None
    by: str = ""
    attempt: str = ""
    checked: int | None = None  # when a proof was last tried, and failed

    @classmethod
    def from_entry(cls, entry: bytes) -> "Quarantine":
        if not entry.startswith(b"{"):
            return cls(entry.decode(errors="replace"))  # of an earlier version, without more
        return msgspec.json.decode(entry, type=cls, strict=False)


@dataclass(frozen=True, slots=True)
class NodeRecord:
    id: str
    pool: str
    address: str
    alive: bool
    draining: bool
    stopping: bool
    heartbeat: int
    registered: int
    info: NodeInfo
    held: dict[int, str]  # device index -> attempt ref
    quarantine: dict[int, Quarantine]  # by device index; one that the operator put there may be held still
    leaving: bool = False  # its worker leaves when what runs there has ended or moved
    moving: bool = False  # what runs there is on its way to other nodes
    drain_until: int | None = None  # when it is to move; for display, the node's own clock decides
    low: LowDisk | None = None
    suspects: Mapping[int, SlowRecord] = field(default_factory=dict)  # devices that were slow lately, by their index
    policy: PoolPolicy = DEFAULT_POLICY  # of its pool
    topology: str = ""  # where it stands: nodes of one label are close to each other
    reach: str = ""  # nodes that say the same can run one job together; one that says nothing, with no other
    block: str = ""  # that it belongs to, and with which it is forgotten; "": it is there for good

    @property
    def unboxed(self) -> bool:
        """Whether it lacks the box that its pool demands."""
        return not self.policy.accepts_box(self.info.box_level)

    @property
    def is_open(self) -> bool:
        """Whether it would take work, whatever its box is."""
        return self.alive and not self.draining and not self.leaving and not self.stopping and self.low is None

    @property
    def takes_work(self) -> bool:
        return self.is_open and not self.unboxed

    @property
    def usable(self) -> int:
        """Devices that a job could get, however many of them are busy."""
        return sum(device.index not in self.quarantine for device in self.info.devices)

    @property
    def free(self) -> int:
        """Devices that a job could get now; 0 while the node takes no work."""
        if not self.takes_work:
            return 0
        return sum(d.index not in self.held and d.index not in self.quarantine for d in self.info.devices)

    @classmethod
    def from_fields(
        cls,
        node: str,
        fields: Fields,
        held: Fields,
        quarantine: Fields,
        suspects: Fields,
        policy: PoolPolicy = DEFAULT_POLICY,
    ) -> "NodeRecord":
        """`policy` is that of its pool."""
        return cls(
            id=node,
            pool=_text_field(fields, b"pool"),
            address=_text_field(fields, b"address"),
            alive=_text_field(fields, b"alive") == "1",
            draining=_text_field(fields, b"draining") == "1",
            stopping=_text_field(fields, b"stopping") == "1",
            heartbeat=int(fields[b"beat"]),
            registered=int(fields[b"registered"]),
            info=msgspec.json.decode(fields[b"info"], type=NodeInfo),
            held={int(k): v.decode() for k, v in held.items()},
            quarantine={int(k): Quarantine.from_entry(v) for k, v in quarantine.items()},
            leaving=_text_field(fields, b"leaving") == "1",
            moving=_text_field(fields, b"moving") == "1",
            drain_until=_time_field(fields, b"drain_until"),
            low=_low_disk(fields),
            suspects={int(k): msgspec.json.decode(v, type=SlowRecord) for k, v in suspects.items()},
            policy=policy,
            topology=_said_by_worker(fields, b"topology", b"reach_said_by"),
            reach=_said_by_worker(fields, b"reach", b"reach_said_by"),
            block=_said_by_worker(fields, b"block", b"reach_said_by"),
        )


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """A bearer token as it is stored: never the secret, only its SHA-256. `identity` names the person who got it by
    single sign-on, `node` the node whose files it is for; "" for other tokens."""

    id: str
    tenant: str
    scopes: frozenset[str]
    digest: str
    name: str
    created: int
    expires: int | None
    identity: str = ""
    node: str = ""

    @classmethod
    def from_fields(cls, token: str, fields: Fields) -> "TokenRecord":
        return cls(
            id=token,
            tenant=_text_field(fields, b"tenant"),
            scopes=frozenset(_text_field(fields, b"scopes").split(",")),
            digest=_text_field(fields, b"digest"),
            name=_text_field(fields, b"name"),
            created=int(fields[b"created"]),
            expires=_time_field(fields, b"expires"),
            identity=_text_field(fields, b"identity"),
            node=_text_field(fields, b"node"),
        )


def _text_field(fields: Fields, name: bytes) -> str:
    return fields.get(name, b"").decode()


def _time_field(fields: Fields, name: bytes) -> int | None:
    value = fields.get(name, b"")
    return int(value) if value else None


def _json_field(fields: Fields, name: bytes) -> dict[str, Any] | None:
    value = fields.get(name, b"")
    return _object(value) if value else None


_object = msgspec.json.Decoder(dict[str, Any]).decode
_STATES = {state.encode(): state for state in JobState}
_REASONS = {reason.encode(): reason for reason in StateReason}


def _decode_reason(name: bytes) -> StateReason:
    return _REASONS.get(name) or StateReason(name.decode())


def _low_disk(fields: Fields) -> LowDisk | None:
    low = _said_by_worker(fields, b"low", b"low_said_by")
    return msgspec.json.decode(low, type=LowDisk) if low else None


def _said_by_worker(fields: Fields, name: bytes, said_by: bytes) -> str:
    """A field of a node; "" where not its worker of today has said it, but an earlier one."""
    value = _text_field(fields, name)
    return value if value and fields.get(said_by) == fields[b"instance"] else ""


def _read_followers(text: str) -> tuple[Placement, ...]:
    """From `<node>:<index>,<index> <node>:...`."""
    pairs = (part.rsplit(":", 1) for part in text.split())
    return tuple(Placement(node, tuple(map(int, devices.split(",")))) for node, devices in pairs)


def _device_indexes(fields: Fields) -> tuple[int, ...]:
    value = _text_field(fields, b"leased")
    return tuple(int(index) for index in value.split(",")) if value else ()
