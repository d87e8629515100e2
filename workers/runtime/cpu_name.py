"""The name of the host's processor. No torch here."""

import platform
from pathlib import Path


def read_cpu_name() -> str:
    """The CPU's name as Linux tells it, else the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
