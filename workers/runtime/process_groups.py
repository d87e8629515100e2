"""Keeps every process group alive until the process leaves.

With torch 2.13, freeing a gloo group while the trainer holds the interpreter's lock can deadlock
(the group's destructor joins a thread that wants that lock: pytorch#190489), and so can
`destroy_process_group`. A rank therefore never frees a group, whoever made it: it holds on to all of
them and leaves with `os._exit`.
"""

import ctypes
import functools
from collections.abc import Callable, Iterator
from typing import Any

from workers.runtime.private_store import use_private_store

#: Through these torch makes and registers every group: its own functions, device meshes, and libraries that have
#: imported `new_group` or `split_group` by name.
_MAKERS = ("_new_process_group_helper", "_register_pg_in_world")

#: Never freed: the interpreter clears modules when a process ends, and frees what they hold.
_kept: dict[int, Any] = {}
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_kept))


def prepare_groups() -> None:
    """Do what every process that makes groups needs, before it makes one. Harmless when repeated."""
    retain_groups()
    use_private_store()


def retain_groups() -> None:
    """Hold on to every group that is made from now on (also by code that the user brings). Harmless when repeated.

    Imports `torch.distributed`, which a rank that starts cold has not done at first.
    """
    from torch.distributed import distributed_c10d

    for name in _MAKERS:
        original = getattr(distributed_c10d, name, None)  # the second came with torch 2.13
        if original is not None and not hasattr(original, "keeps_groups"):
            setattr(distributed_c10d, name, _retaining(original, distributed_c10d._world))


def _retaining(create: Callable[..., Any], world: Any) -> Callable[..., Any]:
    @functools.wraps(create)
    def call(*args: Any, **kwargs: Any) -> Any:
        made = create(*args, **kwargs)
        _kept.update((id(part), part) for part in _groups_and_backends(world))
        return made

    call.keeps_groups = True  # type: ignore[attr-defined]
    return call


def _groups_and_backends(world: Any) -> Iterator[Any]:
    """Every group of this process with the backend objects behind it."""
    for group in list(world.pg_map):
        yield group
        for device in group._device_types:
            yield group._get_backend(device)
