"""What the figures were taken on, and what processes cost there: CPU time, memory, load."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

PACKAGES = ("torch", "fastapi", "uvicorn", "pydantic", "redis", "celery", "msgspec", "zstandard")


def facts() -> dict[str, Any]:
    """The machine and the versions, for the file of a result."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": _gpus(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
    }


def load() -> float:
    """Of the last minute: how many processes wanted a core."""
    return os.getloadavg()[0]


def thread_cpu_seconds(pid: int) -> float:
    """User and system time of one process from the scheduler's own count, which has no ticks: nanoseconds, summed over
    its threads."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def family(pid: int) -> list[int]:
    """The process and all that descend from it."""
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def pss_bytes(pids: list[int]) -> int:
    """Memory, with what several processes share divided among them. Processes that have just ended count nothing."""
    total = 0
    for pid in pids:
        try:
            total += psutil.Process(pid).memory_full_info().pss
        except psutil.NoSuchProcess:
            continue
    return total


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _gpus() -> list[str]:
    try:
        found = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return found.stdout.split("\n")[:-1] if found.returncode == 0 else []


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
