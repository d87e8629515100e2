"""What Slurm has allocated to this step, as its environment says, and a worker's settings in it.

A step may see more of its host than it was given: without the cgroups that a site can have Slurm make, NVML lists every
GPU and the scheduler every processor. So the numbers come from the allocation, and GPUs are known by their UUIDs.
"""

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from jobs.model.settings import MAX_NODE_LENGTH, Settings

#: What no UDP packet is sent to: the address of the route is all that is asked for.
_ROUTE_PORT = 9
_NOT_IN_NAMES = re.compile(r"[^a-z0-9._-]")


@dataclass(frozen=True, slots=True)
class Allocation:
    """`host` is Slurm's name of this node. `gpus` and `cpus` are how many this step has of it; 0 GPUs: none were asked
    for. `visible` are its GPUs, by index or UUID, as CUDA would see them."""

    host: str
    gpus: int
    cpus: int | None
    visible: tuple[str, ...] = ()


def read_allocation(environment: Mapping[str, str] = os.environ) -> Allocation | None:
    """The allocation of this step; None: Slurm has not started it. srun copies the first node's HOSTNAME to all nodes,
    and the batch shell's CUDA_VISIBLE_DEVICES is that of the first one: SLURMD_NODENAME and a step's are each node's.
    """
    host = environment.get("SLURMD_NODENAME", "")
    if not host:
        return None
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    return Allocation(
        host,
        _read_number(environment, "SLURM_GPUS_ON_NODE") or 0,
        _read_number(environment, "SLURM_CPUS_ON_NODE"),
        tuple(part.strip() for part in visible.split(",") if part.strip()),
    )


def read_settings() -> Settings:
    """The settings of the worker of this node. In a block, what is not set comes from the allocation: the name of the
    node, which is of this block alone, and the address at which others reach it."""
    settings = Settings()
    if not settings.block:
        return settings
    found: dict[str, str] = {}
    allocation = read_allocation()
    if "node" not in settings.model_fields_set and allocation is not None:
        found["node"] = name_node(allocation.host, settings.block)
    if "node_address" not in settings.model_fields_set:
        found["node_address"] = find_address(settings.control_url())
    if not settings.topology:
        found["topology"] = f"block-{settings.block}"  # nodes of one block run a job together first
    return settings.model_copy(update=found)


def allocation_of(settings: Settings) -> Allocation | None:
    """What a worker may use of its host; None: all of it."""
    return read_allocation() if settings.block else None


def name_node(host: str, block: str) -> str:
    """The name of a host's node in a block. Two blocks may have parts of one host at a time."""
    ending = f"-{_NOT_IN_NAMES.sub('-', block.lower())}"
    return _NOT_IN_NAMES.sub("-", host.lower())[: MAX_NODE_LENGTH - len(ending)] + ending


def find_address(url: str) -> str:
    """This host's address on the way to the control Redis, which other nodes take as well; 127.0.0.1 where that is on
    this host alone."""
    host = urlsplit(url).hostname
    if host is None:
        return "127.0.0.1"
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host, _ROUTE_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as route:
            route.connect(target)
            return str(route.getsockname()[0])
    except OSError as error:
        raise ValueError(
            f"SHARDYARD_NODE_ADDRESS is not set, and there is no route to the control Redis at {host}: {error}"
        ) from error


def count_cores(allocation: Allocation | None) -> int:
    """Processors that this node may use."""
    here = len(os.sched_getaffinity(0))
    return here if allocation is None or allocation.cpus is None else max(1, min(here, allocation.cpus))


def _read_number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    return int(text) if text.isdecimal() else None
