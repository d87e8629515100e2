"""Features that have no meaning without a GPU. An imitation would mislead, so they fail and say why."""

from typing import Any, NoReturn

import torch

from workers.rehearsal.errors import NotRehearsable
from workers.rehearsal.patching import Function, wrap_attribute

STREAMS = "Work on several CUDA streams"
GRAPHS = "A CUDA graph"
MEMORY = "CUDA's memory allocator"
SENSORS = "Reading a GPU's sensors (NVML)"
NCCL = "Calling NCCL itself (torch.cuda.nccl)"
KERNELS = "A CUDA kernel of the program's own"

#: What is refused, with names in torch.cuda, and in modules of it.
REFUSED = (
    (STREAMS, "", ("Stream", "ExternalStream", "StreamContext", "get_stream_from_external", "GreenContext")),
    (GRAPHS, "", ("CUDAGraph", "graph", "graph_pool_handle", "make_graphed_callables")),
    (MEMORY, "", ("MemPool", "use_mem_pool", "CUDAPluggableAllocator", "change_current_allocator")),
    (MEMORY, "", ("caching_allocator_alloc", "caching_allocator_delete")),
    (MEMORY, "memory", ("_record_memory_history", "_dump_snapshot", "_snapshot")),
    (SENSORS, "", ("utilization", "temperature", "power_draw", "clock_rate", "memory_usage", "device_memory_used")),
    ("The CUDA runtime", "", ("cudart",)),
    ("A wait on the device", "", ("_sleep",)),
    (NCCL, "nccl", ("unique_id", "init_rank", "all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter")),
    (KERNELS, "jiterator", ("_create_jit_fn", "_create_multi_output_jit_fn")),
)
#: Sources that only CUDA's compiler takes.
SOURCES = (".cu", ".cuh")


def refuse_gpu_features() -> None:
    for what, module, names in REFUSED:
        owner: Any = getattr(torch.cuda, module) if module else torch.cuda
        for name in names:
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
