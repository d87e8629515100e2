"""The rehearsal: runs a program that was written for GPUs on a machine without any.

After `install`, torch answers as if the job's devices were GPUs: programs find them, move to them and split over
them, while everything is computed on the CPU. The splits are DataParallel's and DistributedDataParallel's own. What
has no meaning without a GPU raises `NotRehearsable` instead of pretending.

Nothing here imports torch before the program does. The parts:

    devices        how many there are, which is current, which tensor was put on which
    tensors        device arguments: of tensors, modules, generators, files
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

from workers.runtime import import_hook
from workers.runtime.import_callbacks import when_imported

_installed = False


def install(devices: int, rank: int, ranks: int) -> None:
    """Make torch answer as if this job's `devices` were GPUs; every rank sees all of its node. Harmless when repeated.

    To be called before the probe looks at torch. The rank appears in the message about a device that the job does not
    have; `ranks` are those of all nodes. An error in here reaches the program's `import torch`: half a rehearsal would
    mislead.
    """
    global _installed
    if _installed:
        return
    _installed = True
    where = f"a job with {devices} devices" + (" on each node" if ranks > devices else "")
    where = f"rank {rank} of {where}" if ranks > 1 else where
    replace = _with_our_imports(lambda: _replace_all(devices, where))
    refuse = _with_our_imports(_refuse_extensions)
    when_imported({"torch": replace, "torch.utils.cpp_extension": refuse})


def _with_our_imports(action: Callable[[], None]) -> Callable[[ModuleType], None]:
    """A callback for a time when our own packages may be hidden from the program."""

    def call(module: ModuleType) -> None:
        with nullcontext() if __name__ in sys.modules else import_hook.importable():
            action()

    return call


def _replace_all(count: int, where: str) -> None:
    """All replacements in torch, in their order, once torch has been imported."""
    from workers.rehearsal import cuda, data_parallel, distributed, precision, refusals, tensors
    from workers.rehearsal.devices import VirtualDevices

    devices = VirtualDevices(count, where)
    tensors.replace_device_arguments(devices)
    cuda.replace_cuda_api(devices)
    precision.replace_autocast()
    data_parallel.replace_data_parallel(devices)
    distributed.replace_distributed()
    refusals.refuse_gpu_features()


def _refuse_extensions() -> None:
    from workers.rehearsal import refusals

    refusals.refuse_extensions()
