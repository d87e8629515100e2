"""The shapes of answers about pools, nodes and devices. Fields have defaults, as in `shardyard.contract.responses`."""

from datetime import datetime

import msgspec

from shardyard.contract.responses import Answer


class DeviceView(Answer, frozen=True, kw_only=True):
    """A device of a node. `name_in_fleet` names it for `GET /v1/devices/{id}/history`; `suspected` says why it should
    be checked, or put into quarantine."""

    device: int
    label: str = ""
    id: str = ""
    name: str = ""
    kind: str = ""
    memory_total_bytes: int | None = None
    state: str  # free | leased | quarantined | offline
    job: str | None = None  # the job that holds it: an id of the caller's tenant, or "another tenant"
    attempt: int | None = None
    quarantine: str | None = None  # why it is not leased again; a job that holds it may end first
    quarantined_at: datetime | None = None
    name_in_fleet: str = ""
    suspected: str | None = None


class DeviceHistoryLine(Answer, frozen=True, kw_only=True):
    """What one attempt has recorded about a device, or (`event`) the beginning or end of its quarantine.

    `relative_ms_per_row` is its time for a row, forward and backward, over the median of its peers: other devices of
    the attempt that are of the same kind. It is `None` without peers. `slow`: the report has a `slow-device` finding
    about its computing. `error`: the attempt ended by a fault of the device or of its node.
    """

    at: datetime | None = None
    event: str = "attempt"  # attempt | quarantined | released
    job: str | None = None  # an id of the caller's tenant, or "another tenant"
    attempt: int | None = None
    reason: str | None = None  # how the attempt ended, as the job's status says it
    hours: float = 0.0  # from the claim of the attempt to its end
    peers: int = 0  # other devices of the attempt
    ms_per_row: float | None = None
    relative_ms_per_row: float | None = None
    slow: bool = False
    error: str | None = None
    quarantine: str | None = None  # why
    by: str | None = None  # of an event: operator | sweep


class DeviceHistory(Answer, frozen=True, kw_only=True):
    """The history of a device, the newest line first. `node` and `label` are where it is now; they are empty if it is
    on no node that the service knows. `next` is the cursor of the following page, `total` the lines of all pages."""

    id: str
    node: str = ""
    label: str = ""
    name: str = ""
    state: str = ""
    suspected: str | None = None
    lines: list[DeviceHistoryLine]
    next: str | None = None
    total: int | None = None
    links: dict[str, str] = msgspec.field(default_factory=dict)  # self, and next unless this is the last page


class DeviceUse(Answer, frozen=True, kw_only=True):
    """An attempt that had a device, from its claim to its end."""

    begun_at: datetime
    ended_at: datetime
    job: str | None = None  # an id of the caller's tenant, or "another tenant"
    attempt: int | None = None
    reason: str | None = None  # how the attempt ended


class DeviceUses(Answer, frozen=True, kw_only=True):
    """Who had a device. `id` is its `name_in_fleet`."""

    id: str
    node: str
    label: str
    uses: list[DeviceUse]


class DeviceUseList(Answer, frozen=True, kw_only=True):
    """Who had which device since a time, the newest 48 attempts of each. What has a device now is shown with its
    node."""

    since: datetime
    devices: list[DeviceUses]
    total: int | None = None


class BoxRightView(Answer, frozen=True, kw_only=True):
    """One thing that a job may have for itself. Where it does not, `why` says why."""

    name: str
    has: bool = False
    why: str | None = None


class BoxView(Answer, frozen=True, kw_only=True):
    """The box that a node puts around each job. `level` is `full` (made by root), `user` (by user namespaces, without
    root) or `none`. `rights` is empty where the node does not report them, since its worker is of an earlier
    version."""

    level: str = "none"
    rights: list[BoxRightView] = msgspec.field(default_factory=list)


class LowDiskView(Answer, frozen=True, kw_only=True):
    """A disk with less free space than the service keeps for itself, in bytes or in files. `name` says what lies there:
    `storage`, `control Redis`, `state` or `temporary files`."""

    name: str = ""
    free_bytes: int = 0
    reserve_bytes: int = 0
    free_files: int = 0
    reserve_files: int = 0

    @property
    def lacks_files(self) -> bool:
        """Whether it is files (inodes) that are short."""
        return self.free_files * self.reserve_bytes < self.free_bytes * self.reserve_files


class NodeView(Answer, frozen=True, kw_only=True):
    """A node. One that is `unboxed` lacks the box that its pool demands, and takes no work; nor does one with a
    `low_disk`, until there is room. One that is `virtual` shares its machine with others, as `up --nodes` makes them.
    Nodes of one `topology` are close to each other."""

    id: str
    pool: str = ""
    host: str = ""
    address: str = ""
    version: str = ""
    cores: int = 0
    alive: bool
    draining: bool = False
    stopping: bool = False  # its worker is leaving
    drain_deadline_at: datetime | None = None  # when what runs there moves to other nodes; the node's clock decides
    attempts: int = 0  # that hold devices there
    registered_at: datetime | None = None
    devices: list[DeviceView] = msgspec.field(default_factory=list)
    environments: list[str] = msgspec.field(default_factory=list)  # Pythons that a script may name in program.python
    queued: int = 0  # jobs that wait in the node's pool
    box: BoxView = BoxView()
    unboxed: bool = False
    low_disk: LowDiskView | None = None
    virtual: bool = False
    topology: str = ""
    block: str | None = None  # the engine's block that it belongs to, and with which it is forgotten


class NodeList(Answer, frozen=True):
    nodes: list[NodeView]
    total: int | None = None


class BlockView(Answer, frozen=True, kw_only=True):
    """Nodes that an engine supplies together. `state` is `submitting`, `pending`, `starting` (its nodes have not
    joined) or `running`; `why` is the engine's reason for a wait. `id` is empty before the engine has answered."""

    id: str = ""
    nodes: int = 0
    state: str = ""
    why: str = ""


class EngineView(Answer, frozen=True, kw_only=True):
    """The engine that supplies a pool's nodes, as its provider reports it: each node has `node_devices`. `error` is why
    it gives none now; a `silent` provider has sent nothing lately."""

    name: str
    provider: str = ""
    silent: bool = False
    node_devices: int = 0
    min_nodes: int = 0
    max_nodes: int = 0
    error: str | None = None
    blocks: list[BlockView] = msgspec.field(default_factory=list)


class PoolView(Answer, frozen=True, kw_only=True):
    """A pool and its policy: `box` is what a node must have to take work (`any`, `user` or `full`), `network` what jobs
    get (`none`: a loopback of their own; `closed`: that, and none runs on several nodes; `host`: the node's). `boxes`
    counts live nodes by the level of their box."""

    name: str
    devices: int = 0
    free: int = 0
    leased: int = 0
    quarantined: int = 0
    largest_node: int = 0  # most devices that one job can ask for
    nodes: int = 0
    live_nodes: int = 0
    queued: int = 0
    box: str = "any"
    network: str = "none"
    preempt: bool = False  # jobs of a higher priority take the devices of others
    boxes: dict[str, int] = msgspec.field(default_factory=dict)
    unboxed: int = 0  # live nodes that lack the box which the pool demands
    low_disk: int = 0  # live nodes that take no work because a disk has too little room
    engine: EngineView | None = None  # None: its nodes are there for good


class PoolList(Answer, frozen=True):
    pools: list[PoolView]
    total: int | None = None
