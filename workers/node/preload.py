"""What the forkserver imports before it serves: everything that a supervisor and a rank need.

It starts no thread. The frozen heap spares every child the copying of pages that a garbage collection would touch. What
is set here for memory holds in all that is forked.
"""

import ctypes
import gc
import mmap
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
    _advise_mappings("rw-p", MADV_COLLAPSE, of_files=False)


def _give_back_code() -> None:
    """Let go of 70 MB of machine code that only the imports ran: torch registers thousands of operators. What is run
    again comes back from the page cache. It saves memory at rest, and no time."""
    _advise_mappings("r-xp", mmap.MADV_DONTNEED, of_files=True)  # no process writes to these: the files have all of it


def _advise_mappings(rights: str, advice: int, *, of_files: bool) -> None:
    """`madvise` for all mappings with these rights, those of files or the others. A kernel may refuse."""
    libc = ctypes.CDLL(None)
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, found, _, _, inode = line.split(maxsplit=5)[:5]
        if found == rights and (inode != "0") is of_files:
            start, end = (int(address, 16) for address in addresses.split("-"))
            libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), advice)


_keep_freed_memory()
gc.collect()
gc.freeze()
_use_huge_pages()
_give_back_code()
