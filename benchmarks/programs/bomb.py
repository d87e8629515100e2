"""Does what a job of somebody else may do by mistake, for as long as it is let: its one argument says what.

Each is bounded, should nobody end it: in processes, bytes and seconds.
"""

import os
import resource
import sys
import time
from contextlib import suppress

SECONDS = 15.0
PROCESSES = 6_000
MEBIBYTE = 1 << 20
MEMORY_BYTES = 12 << 30
DISK_BYTES = 12 << 30


def compute(until: float) -> None:
    """No bomb: what any job does, on one thread."""
    import torch

    torch.set_num_threads(1)
    numbers = torch.randn(256, 256)
    while time.monotonic() < until:
        numbers = (numbers @ numbers).tanh()


def fork_without_end(until: float) -> None:
    """Children fork as well."""
    _, most = resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, (PROCESSES if most == resource.RLIM_INFINITY else most, most))
    while time.monotonic() < until:
        with suppress(OSError):
            os.fork()


def take_memory(until: float) -> None:
    taken: list[bytearray] = []
    while time.monotonic() < until and len(taken) * 64 * MEBIBYTE < MEMORY_BYTES:
        taken.append(bytearray(64 * MEBIBYTE))
    time.sleep(max(0.0, until - time.monotonic()))


def fill_disk(until: float) -> None:
    with open("large", "wb", buffering=0) as file:
        while time.monotonic() < until and file.tell() < DISK_BYTES:
            file.write(bytes(MEBIBYTE))


def flood_log(until: float) -> None:
    lines = (b"x" * 99 + b"\n") * 1000
    while time.monotonic() < until:
        os.write(1, lines)


def flood_records(until: float) -> None:
    from shardyard import job

    number = 0
    while time.monotonic() < until:
        job.log(f"series {number % 5_000}", number, step=number)
        number += 1


BOMBS = {
    "nothing": compute,
    "processes": fork_without_end,
    "memory": take_memory,
    "disk": fill_disk,
    "log": flood_log,
    "records": flood_records,
}

if __name__ == "__main__":
    BOMBS[sys.argv[1]](time.monotonic() + SECONDS)
