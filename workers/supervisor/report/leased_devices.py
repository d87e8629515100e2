"""The devices of an attempt, as its report names them."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LeasedDevice:
    """A device of the attempt: `logical` is its index within the lease, `kind` is "cuda" or "cpu"."""

    logical: int
    id: str
    node: str
    kind: str
    name: str
    memory_total_bytes: int | None = None


def name_cards(lease: Sequence[LeasedDevice]) -> list[str]:
    """Which kind of device each one is, by what NVML says of all of them; with the size of its memory where that tells
    devices of one name apart."""
    sizes: dict[str, set[int]] = {}
    for device in lease:
        sizes.setdefault(device.name, set()).add(_gibibytes(device))
    return [
        f"{device.name} with {_gibibytes(device)} GiB" if len(sizes[device.name]) > 1 else device.name
        for device in lease
    ]


def _gibibytes(device: LeasedDevice) -> int:
    return round((device.memory_total_bytes or 0) / 2**30)
