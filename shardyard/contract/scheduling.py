"""The shapes of answers about who starts when. Fields have defaults, as in `shardyard.contract.responses`."""

from datetime import datetime

import msgspec

from shardyard.contract.responses import Answer, ReasonView


class PoolShareView(Answer, frozen=True, kw_only=True):
    """What a tenant has used of a pool: `device_seconds`, of which those of a day ago count half, and the `devices`
    that it has now. `used_part` is its part of what all tenants have used there, `due_part` that of its weight."""

    pool: str
    device_seconds: float = 0.0
    devices: int = 0
    used_part: float = 0.0
    due_part: float = 0.0


class ShareView(Answer, frozen=True, kw_only=True):
    """The share of a tenant: one of twice the weight may use twice as much before others of its priority go first."""

    tenant: str
    weight: float = 1.0
    pools: list[PoolShareView] = msgspec.field(default_factory=list)


class ShareList(Answer, frozen=True):
    shares: list[ShareView]
    total: int | None = None


class JobsAheadView(Answer, frozen=True, kw_only=True):
    """The jobs of its pool that come before a job as things stand: `own`, of its tenant, and those of other tenants, a
    number for each of them, the largest first."""

    own: int = 0
    others: list[int] = msgspec.field(default_factory=list)


class PoolRoomView(Answer, frozen=True, kw_only=True):
    """Devices of a job's pool, on nodes that take work: `usable` are in use or free, of which `own` are those of the
    job's tenant. `largest_gap` is the most that are free on one node. `nodes` is how many nodes that are, of which at
    most 64 were counted."""

    nodes: int = 0
    usable: int = 0
    free: int = 0
    largest_gap: int = 0
    own: int = 0
    others: int = 0
    quarantined: int = 0


class KeptNodesView(Answer, frozen=True, kw_only=True):
    """Nodes that are kept for a large job which has waited long: `job` is its id where it is the caller's."""

    nodes: list[str]
    job: str | None = None


class StartView(Answer, frozen=True, kw_only=True):
    """When a job may start, if others submit as they have lately: most likely between `earliest_at` and `latest_at`,
    and as likely before `expected_at` as after it. Where `past_runs` is 0, there is only `latest_at`, by the wall
    limits of what runs and waits before it."""

    earliest_at: datetime | None = None
    expected_at: datetime | None = None
    latest_at: datetime | None = None
    past_runs: int = 0


class JobExplanation(Answer, frozen=True, kw_only=True):
    """Why a job is in its state. `summary` says it in sentences. All but these, `reason` and `priority` is only
    there while the job waits."""

    id: str
    state: str
    reason: ReasonView
    pool: str = ""
    priority: int = 0
    weight: float | None = None
    share: PoolShareView | None = None
    ahead: JobsAheadView | None = None
    room: PoolRoomView | None = None
    kept: KeptNodesView | None = None
    start: StartView | None = None
    summary: list[str] = msgspec.field(default_factory=list)
