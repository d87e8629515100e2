"""What the forkserver imports before it serves: everything that a supervisor and a rank need.

It starts no thread. The frozen heap spares every child the copying of pages that a garbage collection would touch.
"""

import ctypes
import gc
import mmap
from pathlib import Path

import torch._dynamo  # noqa: F401  (the first optimizer or DDP constructor imports it otherwise, which takes a second)

import jobs.lean_log  # noqa: F401
import workers.supervisor
import workers.training.preload
from jobs import store

for script in workers.supervisor.SCRIPTS:
    store.source(script)  # read once, and known to all that is forked


def _give_back_code() -> None:
    """Let go of 70 MB of machine code that only the imports ran: torch registers thousands of operators. What is run
    again comes back from the page cache, as it does in every forked process, none of which inherits it."""
    libc = ctypes.CDLL(None)
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, rights, _, _, inode = line.split(maxsplit=5)[:5]
        if rights == "r-xp" and inode != "0":  # nobody writes to these, so the file has all of it
            start, end = (int(address, 16) for address in addresses.split("-"))
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED)


gc.collect()
gc.freeze()
_give_back_code()
