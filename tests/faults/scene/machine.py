"""What this machine lets a test do. A test that needs more is skipped with the reason.

Continuous integration may not skip what it can do: `.ci/run` installs the programs where it may, and an ability that is
missing although the rights and the programs are there is a failure.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

_LIBFAKETIME = ("/usr/lib/*/faketime/libfaketime.so.1", "/usr/lib/faketime/libfaketime.so.1")
_CAP_NET_ADMIN, _CAP_SYS_PTRACE, _CAP_SYS_ADMIN = 12, 19, 21
SLURM_PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo")
MEMORY_V1 = Path("/sys/fs/cgroup/memory")
CGROUP_V2 = Path("/sys/fs/cgroup")
FREEZER = Path("/sys/fs/cgroup/freezer")
ROOT = Path(__file__).resolve().parents[3]
#: A commit that is a little older than the release at hand: what may still run beside it while a service is upgraded.
PREVIOUS_RELEASE = "415330dc1353780ce9da3f1a5386692c17dd7451"


@dataclass(frozen=True)
class Ability:
    """`missing` says what the machine lacks, "" when it lacks nothing. Continuous integration has the ability when
    `in_ci` says so."""

    missing: Callable[[], str]
    in_ci: Callable[[], bool]


def need(*names: str) -> None:
    """Skip the test unless the machine has all these abilities (keys of `ABILITIES`).

    Fails instead where continuous integration lacks what it should have.
    """
    for name in names:
        ability = ABILITIES[name]
        why = _missing(name)
        if why and os.environ.get("CI") == "true" and ability.in_ci():
            pytest.fail(f"continuous integration must be able to do this: {name}: {why}")
        if why:
            pytest.skip(f"{name}: {why}")


@cache
def _missing(name: str) -> str:
    return ABILITIES[name].missing()


def libfaketime() -> Path | None:
    found = (path for pattern in _LIBFAKETIME for path in Path("/").glob(pattern.lstrip("/")))
    return next(found, None)


def _capable(bit: int) -> bool:
    status = Path("/proc/self/status").read_text()
    (effective,) = (line.split()[1] for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(effective, 16) >> bit & 1)


def _tries(command: list[str]) -> str:
    """Why a command fails; "" if it succeeds."""
    if shutil.which(command[0]) is None:
        return f"there is no {command[0]}"
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    return "" if done.returncode == 0 else f"{' '.join(command)}: {done.stderr.strip() or done.returncode}"


def _network() -> str:
    return next(filter(None, map(_tries, (["unshare", "--net", "iptables", "-L", "-n"], ["ip", "netns", "list"]))), "")


def _tmpfs() -> str:
    with tempfile.TemporaryDirectory() as directory:
        mount = f"mount -t tmpfs -o size=64k tmpfs {directory} && umount {directory}"
        return _tries(["unshare", "--mount", "sh", "-c", mount])


def _fuse() -> str:
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        return str(error)
    return _tmpfs()


def _memory() -> str:
    parent = MEMORY_V1 if MEMORY_V1.is_dir() else CGROUP_V2
    if parent is CGROUP_V2 and "memory" not in _read(CGROUP_V2 / "cgroup.subtree_control"):
        return "there is no memory controller for cgroups"
    return _makes_group(parent)


def _makes_group(parent: Path) -> str:
    """Why there can be no cgroup below `parent`; "" if there can."""
    path = parent / f"sy-probe-{os.getpid()}"
    try:
        path.mkdir()
        path.rmdir()
    except OSError as error:
        return str(error)
    return ""


def _strace() -> str:
    return _tries(["strace", "-qq", "-e", "inject=fsync:error=EIO", "true"])


def _slurm() -> str:
    missing = [program for program in SLURM_PROGRAMS if shutil.which(program) is None]
    return f"there is no {missing[0]} (Debian: apt install slurmctld slurmd slurm-client)" if missing else _network()


def _libfaketime() -> str:
    return "" if libfaketime() else "there is no libfaketime.so.1 (Debian: apt install libfaketime)"


def _are_there(*programs: str) -> bool:
    return all(shutil.which(program) for program in programs)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


ABILITIES = {
    "network namespaces": Ability(
        _network, lambda: _capable(_CAP_NET_ADMIN) and _capable(_CAP_SYS_ADMIN) and _are_there("iptables", "ip")
    ),
    "mounts": Ability(_tmpfs, lambda: _capable(_CAP_SYS_ADMIN)),
    "file systems in user space": Ability(_fuse, lambda: _capable(_CAP_SYS_ADMIN) and Path("/dev/fuse").exists()),
    # Containers mostly mount cgroups read-only, whatever the rights.
    "memory cgroups": Ability(_memory, lambda: False),
    "freezer": Ability(lambda: _makes_group(FREEZER), lambda: False),
    "slurm": Ability(_slurm, lambda: _capable(_CAP_NET_ADMIN) and _capable(_CAP_SYS_ADMIN) and _are_there("ip")),
    "strace": Ability(_strace, lambda: _capable(_CAP_SYS_PTRACE) and _are_there("strace")),
    # A clone may have no history.
    "previous release": Ability(
        lambda: _tries(["git", "-C", str(ROOT), "cat-file", "-e", f"{PREVIOUS_RELEASE}^{{commit}}"]), lambda: False
    ),
    "libfaketime": Ability(_libfaketime, lambda: _are_there("faketime")),
}
