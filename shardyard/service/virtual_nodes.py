"""The workers of `shardyard up`: one, or with `--nodes N` one for each virtual node that this machine is divided into.

Virtual nodes have worker processes, state directories and addresses of their own, so that splits over several hosts can
be tried on one. They have virtual devices only, and share the machine's processors, memory and disks.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from jobs.model.settings import MAX_NODE_LENGTH
from shardyard.service.processes import ServiceError
from workers.node.devices import discover_devices


@dataclass(frozen=True, slots=True)
class PlannedWorker:
    """A worker that `up` runs: the name of its process, the node that it serves, and the settings of its own."""

    process: str
    node: str
    settings: Mapping[str, str] = field(default_factory=dict)


def plan_workers(nodes: int, devices: str, host_node: str) -> tuple[PlannedWorker, ...]:
    """The workers of so many nodes. `host_node` is the id that the only node has; virtual nodes are numbered after it.

    Raises:
        ServiceError: their devices would be GPUs, which only one node can have.
    """
    if nodes == 1:
        return (PlannedWorker("worker", host_node),)
    _refuse_gpus(nodes, devices)
    room = MAX_NODE_LENGTH - len(f"-{nodes}")
    return tuple(
        PlannedWorker(
            f"worker-{number}",
            f"{host_node[:room]}-{number}",
            {
                "SHARDYARD_NODE": f"{host_node[:room]}-{number}",
                "SHARDYARD_NODE_ADDRESS": f"127.0.0.{number}",
                "SHARDYARD_NODES": str(nodes),
                "SHARDYARD_VIRTUAL_NODE": str(number),
            },
        )
        for number in range(1, nodes + 1)
    )


def find_other_workers(data_dir: Path, planned: tuple[PlannedWorker, ...]) -> list[str]:
    """Names of worker processes that an earlier `up` with another number of nodes may have left in this directory."""
    names = {path.stem for path in data_dir.glob("worker*.lock")}
    return sorted(names - {worker.process for worker in planned})


def release_ballast(state_dir: Path, planned: tuple[PlannedWorker, ...]) -> None:
    """Give back the disk space that nodes keep which nobody serves any more."""
    for path in state_dir.glob("*/ballast"):
        if path.parent.name not in {worker.node for worker in planned}:
            path.unlink(missing_ok=True)


def _refuse_gpus(nodes: int, devices: str) -> None:
    try:
        found = discover_devices(devices)
    except ValueError as error:
        raise ServiceError(f"--devices: {error}") from error
    if any(device.kind == "cuda" for device in found):
        raise ServiceError(
            f"--nodes {nodes} divides this machine into virtual nodes, which have virtual devices only, and --devices "
            f"{devices} means {len(found)} of its GPUs; give --devices cpu:2, for example, or leave --nodes out"
        )
