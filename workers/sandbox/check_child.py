"""What `workers.sandbox.check` runs in the box or under the account of jobs: tries what they need, and what they must
not be able to do.

Run by its path, with the standard library alone. Its argument names a file with a `AccountTrial`; it answers with
one line, a JSON list of what is wrong, and waits until its standard input ends.
"""

import ctypes
import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

PTRACE_SEIZE = 0x4206
CLONE_NEWUSER = 0x10000000
PYTHON_SECONDS = 60.0
#: Reads what an import of torch would begin with, and is much faster.
LOOK_FOR_TORCH = """
import os
from importlib.util import find_spec
torch = find_spec("torch").submodule_search_locations[0]
for name in ("__init__.py", "lib/libtorch_cpu.so"):
    open(os.path.join(torch, name), "rb").read(1)
print(torch)
"""


def find_faults(trial: dict[str, Any]) -> Iterator[str]:
    yield from _check_itself(trial)
    yield from _check_needs(trial)
    yield from _check_secrets(trial)
    if trial["boxed"]:
        yield from _check_box(trial)
    else:
        yield from _check_processes(trial["worker"])


def _check_itself(trial: dict[str, Any]) -> Iterator[str]:
    with open("/proc/self/status") as file:
        status = {name: value for name, _, value in (line.partition(":") for line in file)}
    if {*status["Uid"].split()} != {str(trial["uid"])}:
        yield f"its processes have the accounts {status['Uid']}"
    if extra := {*map(int, status["Groups"].split())} - {*trial["groups"]}:
        yield f"its processes have the groups {sorted(extra)} too"
    if int(status["CapPrm"], 16) or int(status["CapEff"], 16):
        yield f"its processes have capabilities ({status['CapEff'].strip()})"
    with suppress(OSError):
        os.setuid(0)
        yield "it can become root"


def _check_needs(trial: dict[str, Any]) -> Iterator[str]:
    for directory in (*trial["own"], trial["shared_memory"]):
        path = os.path.join(directory, f".shardyard-{os.getpid()}")
        try:
            with open(path, "x") as file:
                file.write("x")
            os.chmod(path, 0o4700)  # of all that a job may leave, the hardest to take back
            if directory == trial["shared_memory"]:
                os.unlink(path)
        except OSError as error:
            yield f"it cannot write in {directory}: {error.strerror}"
    for path in trial["code"]:
        if not os.access(path, os.R_OK):
            yield f"it cannot read {path}"
    for path in trial["gpus"]:
        if not os.access(path, os.R_OK | os.W_OK):
            yield f"it cannot use {path}"
    if trial["data_root"] is not None and not os.access(trial["data_root"], os.R_OK | os.X_OK):
        yield f"it cannot read SHARDYARD_DATA_ROOT, {trial['data_root']}"
    for name, python in trial["pythons"].items():
        yield from _check_python(f"environment {name!r}: " if name else "", python)


def _check_python(whose: str, python: str) -> Iterator[str]:
    command = [python, "-I", "-c", LOOK_FOR_TORCH]
    try:
        torch = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=PYTHON_SECONDS, check=True, text=True
        ).stdout.strip()
    except subprocess.CalledProcessError as error:
        yield f"{whose}it cannot load torch in {python}: {error.stderr.strip().rpartition(chr(10))[2]}"
    except (OSError, subprocess.TimeoutExpired) as error:
        yield f"{whose}it cannot run {python}: {error}"
    else:
        yield from (
            f"{whose}it can change {path}" for path in (os.path.realpath(python), torch) if os.access(path, os.W_OK)
        )


def _check_processes(worker: int) -> Iterator[str]:
    for secret in ("environ", "mem", "maps"):
        with suppress(OSError):
            open(f"/proc/{worker}/{secret}", "rb").close()
            yield f"it can read the worker's /proc/PID/{secret}"
    with suppress(OSError):
        os.listdir(f"/proc/{worker}/fd")
        yield "it can see the worker's open files"
    with suppress(OSError):
        os.kill(worker, 0)
        yield "it can send signals to the worker"
    if ctypes.CDLL(None).ptrace(PTRACE_SEIZE, worker, None, None) == 0:
        yield "it can trace the worker"


def _check_box(trial: dict[str, Any]) -> Iterator[str]:
    """The ways out of a box, each tried."""
    others = [pid for pid in os.listdir("/proc") if pid.isdigit() and pid not in ("1", str(os.getpid()))]
    if others:
        yield f"it sees processes that are not its own: {others[:5]}"
    if [name for _, name in socket.if_nameindex()] != ["lo"]:
        yield f"it has network interfaces: {socket.if_nameindex()}"
    for directory in ("/", "/usr", "/etc", sys.prefix, "/sys/fs/cgroup"):
        with suppress(OSError):
            path = os.path.join(directory, f".shardyard-{os.getpid()}")
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
            os.unlink(path)
            yield f"it can write in {directory}"
    with suppress(OSError):
        os.mknod("/tmp/node", stat.S_IFBLK | 0o600, os.makedev(8, 0))  # noqa: S108
        yield "it can make device files"
    libc = ctypes.CDLL(None)
    if libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0:
        yield "it can mount"
    if trial["filtered"] and libc.unshare(CLONE_NEWUSER) == 0:
        yield "it can make a user namespace, which the filter of system calls should refuse"
    if libc.ptrace(PTRACE_SEIZE, 1, None, None) == 0:
        yield "it can trace the first process of its box"
    if trial["filtered"]:
        with suppress(OSError):
            socket.socket(socket.AF_VSOCK).close()
            yield "it can make sockets to the hypervisor, which the filter of system calls should refuse"


def _is_open(path: str, trial: dict[str, Any]) -> bool:
    """Whether a path has anything to read; in a box, what leads to the job's own directories is no more than that."""
    if not os.path.isdir(path):
        with open(path, "rb"):
            return True
    found = [os.path.join(path, name) for name in os.listdir(path)]
    ways = [*trial["own"], *trial["code"], *trial["pythons"].values()] if trial["boxed"] else []
    return not trial["boxed"] or not all(any(way.startswith(each) for way in ways) for each in found)


def _check_secrets(trial: dict[str, Any]) -> Iterator[str]:
    for path in trial["closed"]:
        with suppress(OSError):
            if _is_open(path, trial):
                yield f"it can read {path}, which is the service's own (`chmod -R go-rw {path}`)"
        if os.access(path, os.W_OK) and not (trial["boxed"] and os.path.isdir(path)):
            yield f"it can write to {path}, which is the service's own (`chmod -R go-w {path}`)"
        with suppress(OSError):
            link = os.path.join(trial["own"][0], "link")
            os.link(path, link)
            os.unlink(link)
            yield f"it can make a hard link to {path}; set the kernel's fs.protected_hardlinks to 1"
    for path in trial["code"]:
        if os.access(path, os.W_OK):
            yield f"it can change {path}, which is the service's code"
    for path in trial["sockets"]:
        with suppress(OSError), socket.socket(socket.AF_UNIX) as redis:
            redis.connect(path)
            yield f"it can connect to Redis at {path}"


def main() -> None:
    with open(sys.argv[1]) as paper:
        trial = json.load(paper)
    print(json.dumps([*find_faults(trial)]), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
