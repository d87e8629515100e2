"""What a worker knows of its node: its settings, devices, Python environments and accounts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from jobs.model.records import DeviceRecord
from jobs.model.settings import Settings
from workers.sandbox.run_as import NodeAccounts


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """`environments` are the Pythons that jobs may name. Ranks run under `accounts`; None: under the worker's own."""

    settings: Settings
    devices: tuple[DeviceRecord, ...]
    environments: Mapping[str, Path] = field(default_factory=dict)
    accounts: NodeAccounts | None = None

    @property
    def node_id(self) -> str:
        return self.settings.node

    @property
    def state_dir(self) -> Path:
        """The node's own directory, below the state directory of the host."""
        return self.settings.state_dir.expanduser() / self.settings.node

    @property
    def storage(self) -> Path:
        return self.settings.storage.expanduser()
