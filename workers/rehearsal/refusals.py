"""Features that have no meaning without a GPU. An imitation would mislead, so they fail and say why."""

from typing import Any, NoReturn

import torch

from workers.rehearsal.devices import VirtualDevices
from workers.rehearsal.errors import NotRehearsable
from workers.rehearsal.patching import Function, wrap_attribute

STREAMS = "Work on several CUDA streams"
GRAPHS = "A CUDA graph"
MEMORY = "CUDA's memory allocator"
SENSORS = "Reading a GPU's sensors (NVML)"
NCCL = "Calling NCCL itself (torch.cuda.nccl)"
KERNELS = "A CUDA kernel of the program's own"

#: Names in torch.cuda.
REFUSED = {
    "Stream": STREAMS,
    "ExternalStream": STREAMS,
    "StreamContext": STREAMS,
    "get_stream_from_external": STREAMS,
    "GreenContext": STREAMS,
    "CUDAGraph": GRAPHS,
    "graph": GRAPHS,
    "graph_pool_handle": GRAPHS,
    "make_graphed_callables": GRAPHS,
    "MemPool": MEMORY,
    "use_mem_pool": MEMORY,
    "CUDAPluggableAllocator": MEMORY,
    "caching_allocator_alloc": MEMORY,
    "caching_allocator_delete": MEMORY,
    "change_current_allocator": MEMORY,
    "utilization": SENSORS,
    "temperature": SENSORS,
    "power_draw": SENSORS,
    "clock_rate": SENSORS,
    "memory_usage": SENSORS,
    "device_memory_used": SENSORS,
    "cudart": "The CUDA runtime",
    "_sleep": "A wait on the device",
}
REFUSED_OF_MEMORY = ("_record_memory_history", "_dump_snapshot", "_snapshot")
REFUSED_OF_NCCL = ("unique_id", "init_rank", "all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter")
REFUSED_OF_JITERATOR = ("_create_jit_fn", "_create_multi_output_jit_fn")
#: Sources that only CUDA's compiler takes.
SOURCES = (".cu", ".cuh")


def refuse_gpu_features(devices: VirtualDevices) -> None:
    cuda: Any = torch.cuda
    for owner, names in (
        (cuda, REFUSED),
        (cuda.memory, dict.fromkeys(REFUSED_OF_MEMORY, MEMORY)),
        (cuda.nccl, dict.fromkeys(REFUSED_OF_NCCL, NCCL)),
        (cuda.jiterator, dict.fromkeys(REFUSED_OF_JITERATOR, KERNELS)),
    ):
        for name, what in names.items():
            if hasattr(owner, name):
                setattr(owner, name, _refusing_class(name, what))


def refuse_extensions() -> None:
    """Extensions in C++ can be built as ever; those with CUDA sources cannot run."""
    from torch.utils import cpp_extension

    wrap_attribute(cpp_extension, "load", _wrap_load)
    wrap_attribute(cpp_extension, "load_inline", _wrap_load_inline)
    module: Any = cpp_extension
    module.CUDAExtension = _refusing_class("CUDAExtension", KERNELS)


def _refusing_class(name: str, what: str) -> Any:
    """A class, since programs also name these in annotations and `isinstance`."""

    def refuse(cls: type, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotRehearsable(what)

    return type(name, (), {"__new__": refuse})


def _wrap_load(original: Function) -> Function:
    def load(name: str, sources: Any, *args: Any, **kwargs: Any) -> Any:
        if any(str(source).endswith(SOURCES) for source in ([sources] if isinstance(sources, str) else sources)):
            raise NotRehearsable(KERNELS)
        return original(name, sources, *args, **kwargs)

    return load


def _wrap_load_inline(original: Function) -> Function:
    def load_inline(name: str, cpp_sources: Any, cuda_sources: Any = None, *args: Any, **kwargs: Any) -> Any:
        if cuda_sources or kwargs.get("with_cuda"):
            raise NotRehearsable(KERNELS)
        return original(name, cpp_sources, cuda_sources, *args, **kwargs)

    return load_inline
