"""The device files of leased GPUs, and of what all GPUs share."""

import re
from collections.abc import Sequence
from pathlib import Path

from jobs.model.records import DeviceRecord

DEV = Path("/dev")
#: One directory for each card, with a file of what it is.
CARDS = Path("/proc/driver/nvidia/gpus")
#: What every program needs that uses any GPU.
_SHARED = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
_FIELD = re.compile(r"^(GPU UUID|Device Minor):\s*(\S+)", re.MULTILINE)


def files_of_devices(devices: Sequence[DeviceRecord], dev: Path = DEV, cards: Path = CARDS) -> list[str]:
    """Paths below /dev of the files that a lease needs; none for virtual devices. A card whose file cannot be told from
    the others' shows all: the visible ones are then chosen by a variable alone."""
    if not any(device.kind == "cuda" for device in devices):
        return []
    minors = _read_minors(cards)
    shared = [name for name in _SHARED if (dev / name).exists()]
    capabilities = [f"nvidia-caps/{path.name}" for path in sorted((dev / "nvidia-caps").glob("*"))]
    known = [minors.get(device.id) for device in devices]
    if None in known:
        own = [path.name for path in sorted(dev.glob("nvidia[0-9]*"))]
    else:
        own = [f"nvidia{minor}" for minor in known]
    return [*shared, *own, *capabilities]


def _read_minors(cards: Path) -> dict[str, str]:
    """The minor number of each card, by its UUID."""
    found = {}
    for file in cards.glob("*/information"):
        fields = dict(_FIELD.findall(file.read_text()))
        if "GPU UUID" in fields and "Device Minor" in fields:
            found[fields["GPU UUID"]] = fields["Device Minor"]
    return found
