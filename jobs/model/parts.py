"""How the devices and ranks of one attempt are numbered across several nodes.

A part is what an attempt does on one of its nodes: part 0 to n-1, in the order of the lease. Every node has equally
many devices, and numbers go on from part to part: device = part * devices + local. Ranks do so as well where each
device has one of its own.
"""

from jobs.model.spec import DISTRIBUTED


def devices_of_part(part: int, devices: int) -> range:
    """Numbers of the devices of a part, each of which has so many."""
    return range(part * devices, (part + 1) * devices)


def ranks_of_part(part: int, devices: int, strategy: str) -> range:
    """Numbers of the ranks of a part. Under single and dp one rank drives all devices, and there is one part."""
    return devices_of_part(part, devices) if strategy in DISTRIBUTED else range(1)
