"""Runs a program that was written for GPUs where there are none.

After `install`, torch answers as if the job's devices were there: programs find them, move to them and split over
them, while everything is computed on the CPU. The splits are DataParallel's and DistributedDataParallel's own. What
has no meaning without a GPU raises `NotRehearsable` instead of pretending.

Nothing here imports torch before the program does. The parts:

    devices        how many there are, which is current, which tensor was put where
    tensors        devices that a program names: on tensors, modules, generators, files
    cuda           what torch.cuda and torch.accelerator answer
    precision      autocast and gradient scaling
    data_parallel  nn.DataParallel, the primitives behind it, torch.cuda.comm
    distributed    process groups, DistributedDataParallel, FSDP, meshes, SyncBatchNorm
    refusals       streams, graphs, kernels: what cannot be rehearsed

All of it replaces attributes of torch's modules and classes, so it is in force in every thread. (A mode of torch's,
as `torch.set_default_device` uses, belongs to one thread and would have to be entered anew in each.)
"""

import sys
from collections.abc import Callable
from contextlib import nullcontext
from types import ModuleType

from workers.rehearsal.errors import NotRehearsable
from workers.runtime import import_hook
from workers.runtime.import_callbacks import when_imported

__all__ = ["NotRehearsable", "install"]

_installed = False


def install(devices: int, rank: int, distributed: bool) -> None:
    """Make torch answer as if this job's `devices` were GPUs; every rank sees all of them. Harmless when repeated.

    To be called before the probe looks at torch. Rank and kind of job appear in the message about a device that the
    job does not have. What fails in here reaches the program's `import torch`: half a rehearsal would mislead.
    """
    global _installed
    if _installed:
        return
    _installed = True
    where = f"rank {rank} of a job with {devices} devices" if distributed else f"a job with {devices} devices"
    when_imported(
        {"torch": _late(lambda: _act(devices, where)), "torch.utils.cpp_extension": _late(_refuse_extensions)}
    )


def _late(action: Callable[[], None]) -> Callable[[ModuleType], None]:
    """To be called when our own packages may be hidden from the program."""

    def call(module: ModuleType) -> None:
        with nullcontext() if __name__ in sys.modules else import_hook.importing():
            action()

    return call


def _act(count: int, where: str) -> None:
    from workers.rehearsal import apply

    apply.act(count, where)


def _refuse_extensions() -> None:
    from workers.rehearsal import refusals

    refusals.refuse_extensions()
