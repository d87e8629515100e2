"""What the forkserver imports before it serves: everything that a supervisor and a rank need.

It starts no thread. The frozen heap spares every child the copying of pages that a garbage collection would touch. What
is set here for memory holds in all that is forked.
"""

import ctypes
import gc
from pathlib import Path

import torch._dynamo  # noqa: F401  (the first optimizer or DDP constructor imports it otherwise, which takes a second)

import workers.rank.preload
import workers.supervisor.main  # noqa: F401
from jobs.model import catalogue
from jobs.store.function_library import function_library

catalogue.load()  # read once, and known to all that is forked
function_library()

#: Of Linux 6.1 and later; unknown to `mmap`.
MADV_COLLAPSE = 25
#: Of malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
#: Blocks up to the first, the largest that malloc allows, lie in the heap; it keeps so much that is free at its end.
IN_HEAP_BYTES, KEPT_BYTES = 32 * 1024 * 1024, 512 * 1024 * 1024


def _keep_freed_memory() -> None:
    """Have a process use memory again that it has freed, instead of giving it back to the kernel and asking for it in
    the next step: that clears it page by page, which took a fifth of the time of a small CNN's step on the host."""
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_THRESHOLD, IN_HEAP_BYTES)
    libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def _use_huge_pages() -> None:
    """Move what the imports have made into pages of 2 MiB, as far as the kernel has such: a fork, and the end of what
    was forked, go through fewer of them. What a forked process writes to is copied in small pages all the same."""
    libc = ctypes.CDLL(None)
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, rights, _, _, inode = line.split(maxsplit=5)[:5]
        if rights == "rw-p" and inode == "0":  # of no file
            start, end = (int(address, 16) for address in addresses.split("-"))
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), MADV_COLLAPSE)  # a kernel may refuse


_keep_freed_memory()
gc.collect()
gc.freeze()
_use_huge_pages()
