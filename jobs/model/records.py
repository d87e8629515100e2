"""Frozen values that the store hands out. Only the store changes what they show.

Times are microseconds since the epoch (UTC), by the control Redis's clock; `None` where a thing has
not happened.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from jobs.model.device_history import SlowRecord
from jobs.model.state import AttemptState, JobState, StateReason

Fields = Mapping[bytes, bytes]


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
    node: str | None
    leased: tuple[int, ...]
    cancel_requested: bool
    archived: bool = False  # it is on disk, and no longer in the control Redis

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
    }


class JobRecord(JobRow, frozen=True, kw_only=True):
    retries: int
    max_retries: int
    version: int
    parent: str | None
    error: dict[str, Any] | None
    result: dict[str, Any] | None
    losses: int = 0  # attempts lost to failures of the service
    retry_at: int | None = None  # while it backs off: when it may start again
    checkpoint: dict[str, Any] | None = None  # the newest that is committed: step, epoch, attempt, sha256, at

    @classmethod
    def from_fields(cls, tenant: str, job: str, fields: Fields, *, archived: bool = False) -> "JobRecord":
        return cls(
            **_row_values(tenant, job, fields),
            retries=int(fields[b"retries"]),
            max_retries=int(fields[b"max_retries"]),
            version=int(fields[b"version"]),
            parent=_text_field(fields, b"parent") or None,
            error=_json_field(fields, b"error"),
            result=_json_field(fields, b"result"),
            losses=int(fields.get(b"losses") or 0),
            retry_at=_time_field(fields, b"retry_at"),
            checkpoint=_json_field(fields, b"checkpoint"),
            archived=archived,
        )


@dataclass(frozen=True, slots=True)
class QueueView:
    """What a queued job waits behind. Devices are those of nodes that take work."""

    ahead: int
    free: int
    largest_gap: int  # free devices of the node that has most of them
    live_nodes: int
    total: int


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


class NodeInfo(msgspec.Struct, frozen=True):
    """What a node says of itself when it registers."""

    host: str
    cores: int
    version: str
    devices: tuple[DeviceRecord, ...]
    environments: tuple[str, ...] = ()  # Pythons that jobs may name


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
    suspects: Mapping[int, SlowRecord] = field(default_factory=dict)  # devices that were slow lately, by their index

    @property
    def takes_work(self) -> bool:
        return self.alive and not self.draining and not self.leaving and not self.stopping

    @property
    def free(self) -> int:
        """Devices that a job could get now; 0 while the node takes no work."""
        if not self.takes_work:
            return 0
        return sum(d.index not in self.held and d.index not in self.quarantine for d in self.info.devices)

    @classmethod
    def from_fields(cls, node: str, fields: Fields, held: Fields, quarantine: Fields, suspects: Fields) -> "NodeRecord":
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
            suspects={int(k): msgspec.json.decode(v, type=SlowRecord) for k, v in suspects.items()},
        )


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """A bearer token as it is stored: never the secret, only its SHA-256."""

    id: str
    tenant: str
    scopes: frozenset[str]
    digest: str
    name: str
    created: int
    expires: int | None

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


def _device_indexes(fields: Fields) -> tuple[int, ...]:
    value = _text_field(fields, b"leased")
    return tuple(int(index) for index in value.split(",")) if value else ()
