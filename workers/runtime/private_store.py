"""A rendezvous that other accounts cannot join: a file in a directory that only the ranks' account may enter.

A TCPStore has no password. In a network of its own nobody else reaches it, but where a pool's jobs share the host's
network, everybody on the host does. There ranks meet in a file instead; the address in MASTER_ADDR is still served, for
programs that make a TCPStore by hand.
"""

import functools
import importlib
import itertools
import os
from datetime import timedelta
from typing import Any

#: The variable with the path of the file.
STORE_VARIABLE = "SHARDYARD_STORE"


def use_private_store() -> None:
    """Have `init_process_group` meet in the file that the variable names, if it names one. Harmless when repeated.

    Imports `torch.distributed`.
    """
    path = os.environ.get(STORE_VARIABLE)
    rendezvous = importlib.import_module("torch.distributed.rendezvous")
    create = rendezvous._create_c10d_store
    if not path or hasattr(create, "keeps_private"):
        return
    master = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    meetings = itertools.count()  # a group that is made again would read what the last one has left

    @functools.wraps(create)
    def create_store(hostname: str, port: int, rank: int, world_size: int, timeout: timedelta, *rest: Any) -> Any:
        if (hostname, str(port)) != master:  # of a group that the program makes by itself
            return create(hostname, port, rank, world_size, timeout, *rest)
        store = importlib.import_module("torch.distributed").FileStore(f"{path}.{next(meetings)}", -1)
        store.set_timeout(timeout)
        return store

    create_store.keeps_private = True  # type: ignore[attr-defined]
    rendezvous._create_c10d_store = create_store  # type: ignore[attr-defined]
