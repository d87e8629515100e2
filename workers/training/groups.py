"""Keeps every process group alive until the process leaves.

With torch 2.13, freeing a gloo group while the trainer holds the interpreter's lock can deadlock
(the group's destructor joins a thread that wants that lock: pytorch#190489), and so can
`destroy_process_group`. A rank therefore never destroys a group: it holds on to all of them and
leaves with `os._exit`.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

_kept: list[Any] = []


def keep() -> None:
    """Wrap `init_process_group` and `new_group` (also for code that the user brings). Harmless when repeated."""
    for name in ("init_process_group", "new_group"):
        original = getattr(distributed_c10d, name)
        if not hasattr(original, "keeps_groups"):
            wrapped = _keeping(original)
            setattr(distributed_c10d, name, wrapped)
            setattr(dist, name, wrapped)


def _keeping(create: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(create)
    def call(*args: Any, **kwargs: Any) -> Any:
        made = create(*args, **kwargs)
        _kept.append((made, list(_groups_and_backends())))
        return made

    call.keeps_groups = True  # type: ignore[attr-defined]
    return call


def _groups_and_backends() -> Any:
    """Every group of this process with the backend objects behind it."""
    for group in list(distributed_c10d._world.pg_map):
        yield group
        for device in group._device_types:
            yield group._get_backend(device)
