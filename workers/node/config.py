"""What a worker knows of its node: its settings, devices, Python environments and accounts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from jobs.model.records import BoxRights, DeviceRecord
from jobs.model.settings import Settings
from jobs.storage.target import StorageTarget, target_of
from jobs.support.service_manager import ServiceManager
from workers.sandbox.box.plan import BoxPlan
from workers.sandbox.run_as import NodeAccounts


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """`environments` are the Pythons that jobs may name. Ranks run in boxes of this `plan`; None: in none. They run
    under `accounts`, or under the account of their box, or under the worker's own. `box` is what the node says of its
    boxes; None: that was not looked for. `idle_exit`: it leaves after so many seconds without an attempt. `manager` is
    told when the node is there."""

    settings: Settings
    devices: tuple[DeviceRecord, ...]
    environments: Mapping[str, Path] = field(default_factory=dict)
    accounts: NodeAccounts | None = None
    box: BoxRights | None = None
    plan: BoxPlan | None = None
    idle_exit: float | None = None
    manager: ServiceManager = field(default_factory=ServiceManager)

    @property
    def node_id(self) -> str:
        return self.settings.node

    @property
    def state_dir(self) -> Path:
        """The node's own directory, below the state directory of the host."""
        return self.settings.state_dir.expanduser() / self.settings.node

    @property
    def devices_here(self) -> int:
        """Devices of all nodes that share this machine: each has as many."""
        return len(self.devices) * self.settings.nodes_here

    @property
    def target(self) -> StorageTarget:
        return target_of(self.settings)

    @property
    def storage(self) -> Path:
        """What processes of this node read and write: the directory that all mount, or what is carried from here."""
        return self.target.root
