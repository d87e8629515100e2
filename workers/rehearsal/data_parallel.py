"""nn.DataParallel, the primitives behind it, and torch.cuda.comm, on virtual devices.

torch's own DataParallel runs as it is: it finds the devices, and the four primitives that it calls are the virtual
ones. They are replaced wherever torch.nn.parallel has imported them, so that subclasses, functional use and calls
one by one all come here.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.cuda import comm as cuda_comm
from torch.nn import parallel
from torch.nn.parallel import comm

from workers.rehearsal import virtual_devices
from workers.rehearsal.devices import CPU, ON_CPU, VirtualDevices
from workers.rehearsal.patching import Function, replace_everywhere, wrap_attribute
from workers.rehearsal.virtual_devices import autocast_mode_of_caller

PACKAGE = "torch.nn.parallel"
#: Where torch keeps a functional DataParallel: a module with the name of its function, which hides it.
FUNCTIONAL = "torch.nn.parallel.data_parallel"


def replace_data_parallel(devices: VirtualDevices) -> None:
    virtual = VirtualPrimitives(devices)
    for name in ("replicate", "scatter", "scatter_kwargs", "parallel_apply", "gather", "data_parallel"):
        original = getattr(parallel, name, None) or getattr(parallel.scatter_gather, name)
        replace_everywhere(PACKAGE, name, original, getattr(virtual, name))
    for name, own in _autograd_functions(virtual).items():
        kind = type(name, (), {"apply": staticmethod(own)})
        replace_everywhere(PACKAGE, name, getattr(parallel._functions, name), kind)
    for name, own in _comm_functions(virtual).items():
        setattr(comm, name, own)
        setattr(cuda_comm, name, own)
    wrap_attribute(nn.DataParallel, "__init__", _expect_modules_on_cpu)
    wrap_attribute(nn.DataParallel, "forward", virtual.refuse_foreign_replicas)


def _expect_modules_on_cpu(original: Function) -> Function:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if self.device_ids:
            self.src_device_obj = CPU  # `forward` holds the parameters' device against it

    return init


class VirtualPrimitives:
    """torch.nn.parallel's functions, with their signatures."""

    def __init__(self, devices: VirtualDevices) -> None:
        self._devices = devices

    # -- DataParallel's four -----------------------------------------------------------------------

    def replicate(self, network: nn.Module, devices: Sequence[Any], detach: bool = False) -> list[nn.Module]:
        indexes = self._indexes_of(devices)
        replicas = virtual_devices.replicate(network, indexes, detach)
        for index, replica in zip(indexes, replicas, strict=True):
            for module in replica.modules():
                for tensor in (*vars(module).get("_former_parameters", {}).values(), *module._buffers.values()):
                    self._devices.put_on(tensor, index)
        return replicas

    def scatter(self, inputs: Any, target_gpus: Sequence[Any], dim: int = 0) -> Any:
        positional, _ = self.scatter_kwargs((inputs,), None, target_gpus, dim)
        shards = [shard[0] for shard in positional]
        return tuple(shards) if isinstance(inputs, torch.Tensor) else shards

    def scatter_kwargs(
        self, inputs: tuple[Any, ...], kwargs: dict[str, Any] | None, target_gpus: Sequence[Any], dim: int = 0
    ) -> tuple[Any, Any]:
        indexes = self._indexes_of(target_gpus)
        positional, named = virtual_devices.scatter(inputs, kwargs or {}, indexes, dim)
        for index, shard in (*zip(indexes, positional, strict=False), *zip(indexes, named, strict=False)):
            self._place_tensors(shard, index)
        return positional, named

    def parallel_apply(
        self,
        modules: Sequence[Callable[..., Any]],
        inputs: Sequence[Any],
        kwargs_tup: Sequence[dict[str, Any]] | None = None,
        devices: Sequence[Any] | None = None,
    ) -> list[Any]:
        """One module alone runs in the caller's thread, as in torch; several run in the threads of their devices."""
        for name, given in (("inputs", inputs), ("kwargs_tup", kwargs_tup), ("devices", devices)):
            if given is not None and len(given) != len(modules):
                raise AssertionError(
                    f"The number of modules {len(modules)} is not equal to the number of {name} {len(given)}"
                )
        shards = [shard if isinstance(shard, (list, tuple)) else (shard,) for shard in inputs]
        named = [{} for _ in modules] if kwargs_tup is None else kwargs_tup
        indexes = [self._device_of_shard(shard) for shard in shards] if devices is None else self._indexes_of(devices)
        modes = [autocast_mode_of_caller(kind) for kind in ("cuda", "cpu")]
        bound = [self._bind_module(module, index, modes) for module, index in zip(modules, indexes, strict=True)]
        if len(bound) == 1:
            return [bound[0](*shards[0], **named[0])]
        return virtual_devices.parallel_apply(bound, shards, named, indexes)

    def gather(self, outputs: Any, target_device: Any, dim: int = 0) -> Any:
        gathered = virtual_devices.gather(outputs, 0, dim)
        index = self._devices.named_index(target_device)
        return gathered if index is None else self._place_tensors(gathered, index)

    # -- and what is built on them -----------------------------------------------------------------

    def data_parallel(
        self,
        module: nn.Module,
        inputs: Any,
        device_ids: Sequence[Any] | None = None,
        output_device: Any = None,
        dim: int = 0,
        module_kwargs: dict[str, Any] | None = None,
    ) -> Any:
        arguments = inputs if isinstance(inputs, tuple) else () if inputs is None else (inputs,)
        indexes = self._indexes_of(range(self._devices.count) if device_ids is None else device_ids)
        # The probe has put its wrappers into torch's module: the primitives are called from there.
        torchs: Any = sys.modules[FUNCTIONAL]
        shards, named = torchs.scatter_kwargs(arguments, module_kwargs, indexes, dim)
        if not shards and not named:
            shards, named = ((),), ({},)
        if len(indexes) == 1:
            return module(*shards[0], **named[0])
        used = indexes[: len(shards)]
        outputs = torchs.parallel_apply(torchs.replicate(module, used), shards, named, used)
        return torchs.gather(outputs, indexes[0] if output_device is None else output_device, dim)

    def refuse_foreign_replicas(self, original: Function) -> Function:
        """A DataParallel in a replica: torch finds the parameters of all replicas but the first on a wrong device."""

        def forward(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
            current, ids = self._devices.current, wrapper.device_ids
            if ids and getattr(wrapper, "_is_replica", False) and current != ids[0]:
                raise RuntimeError(
                    f"module must have its parameters and buffers on device cuda:{ids[0]} (device_ids[0]) "
                    f"but found one of them on device: cuda:{current}"
                )
            return original(wrapper, *args, **kwargs)

        return forward

    # -- communication -----------------------------------------------------------------------------

    def split_tensor(self, tensor: torch.Tensor, devices: Any, sizes: Any, dim: int) -> tuple[torch.Tensor, ...]:
        indexes = self._indexes_of(devices)
        shards = tensor.chunk(len(indexes), dim) if sizes is None else torch.split(tensor, list(sizes), dim)
        return tuple(self._devices.put_on(shard.clone(), index) for shard, index in zip(shards, indexes, strict=False))

    def copy_tensors(self, tensors: Sequence[torch.Tensor], devices: Any) -> list[list[torch.Tensor]]:
        """As in torch, the first device's are the tensors themselves."""
        return [
            [self._devices.put_on(tensor.view_as(tensor) if first else tensor.clone(), index) for tensor in tensors]
            for first, index in ((position == 0, index) for position, index in enumerate(self._indexes_of(devices)))
        ]

    def add_tensors(self, groups: Sequence[Sequence[torch.Tensor]], destination: Any) -> tuple[torch.Tensor, ...]:
        index = self._devices.index_of(destination)
        return tuple(
            self._devices.put_on(torch.stack(parts).sum(0), index) for parts in map(list, zip(*groups, strict=True))
        )

    def join_tensors(self, tensors: Sequence[torch.Tensor], dim: int, destination: Any) -> torch.Tensor:
        joined = torch.cat(list(tensors), dim)
        on_cpu = destination == -1 or destination == CPU or destination == "cpu"
        return joined if on_cpu else self._devices.put_on(joined, self._devices.index_of(destination))

    # -- helpers -----------------------------------------------------------------------------------

    def _indexes_of(self, devices: Sequence[Any]) -> list[int]:
        return [self._devices.index_of(device) for device in devices]

    def _device_of_shard(self, shard: Any) -> int:
        """The device of the first tensor of a shard that was put on one; the current device if none was."""
        found = map(self._devices.likely_device, _tensors_in(shard))
        return next((index for index in found if index != ON_CPU), self._devices.current)

    def _place_tensors(self, value: Any, index: int) -> Any:
        for tensor in _tensors_in(value):
            self._devices.put_on(tensor, index)
        return value

    def _bind_module(self, module: Callable[..., Any], index: int, modes: Sequence[virtual_devices.Mode]) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            with self._select_device(index), contextlib.ExitStack() as stack:
                for mode in modes:
                    stack.enter_context(mode())
                return module(*args, **kwargs)

        return call

    @contextlib.contextmanager
    def _select_device(self, index: int) -> Iterator[None]:
        before = self._devices.current
        self._devices.set_current(index)
        try:
            yield
        finally:
            self._devices.set_current(before)


# -- by other names --------------------------------------------------------------------------------


def _autograd_functions(virtual: VirtualPrimitives) -> dict[str, Function]:
    """What torch.nn.parallel._functions has. Programs import them, although they are private."""

    def broadcast(target_gpus: Any, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(tensor for copy in virtual.copy_tensors(tensors, target_gpus) for tensor in copy)

    def reduce_add(destination: Any, number: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        groups = [tensors[start : start + number] for start in range(0, len(tensors), number)]
        return virtual.add_tensors(groups, destination)

    return {
        "Broadcast": broadcast,
        "Scatter": lambda target_gpus, chunk_sizes, dim, tensor: virtual.split_tensor(
            tensor, target_gpus, chunk_sizes, dim
        ),
        "Gather": lambda target_device, dim, *tensors: virtual.gather(tensors, target_device, dim),
        "ReduceAddCoalesced": reduce_add,
    }


def _comm_functions(virtual: VirtualPrimitives) -> dict[str, Function]:
    """What torch.nn.parallel.comm has, which torch.cuda.comm gives out too."""

    def broadcast(tensor: torch.Tensor, devices: Any = None, *, out: Any = None) -> tuple[torch.Tensor, ...]:
        if out is not None:
            return tuple(each.copy_(tensor) for each in out)
        return tuple(copy[0] for copy in virtual.copy_tensors([tensor], devices))

    def scatter(
        tensor: torch.Tensor,
        devices: Any = None,
        chunk_sizes: Any = None,
        dim: int = 0,
        streams: Any = None,
        *,
        out: Any = None,
    ) -> tuple[torch.Tensor, ...]:
        if out is None:
            return virtual.split_tensor(tensor, devices, chunk_sizes, dim)
        shards = torch.split(tensor, [each.size(dim) for each in out], dim)
        return tuple(each.copy_(shard) for each, shard in zip(out, shards, strict=True))

    def gather(tensors: Any, dim: int = 0, destination: Any = None, *, out: Any = None) -> torch.Tensor:
        if out is not None:
            copied: torch.Tensor = out.copy_(torch.cat(list(tensors), dim))
            return copied
        return virtual.join_tensors(tensors, dim, destination)

    return {
        "broadcast": broadcast,
        "broadcast_coalesced": lambda tensors, devices, buffer_size=0: virtual.copy_tensors(tensors, devices),
        "reduce_add": lambda inputs, destination=None: virtual.add_tensors([[each] for each in inputs], destination)[0],
        "reduce_add_coalesced": lambda inputs, destination=None, buffer_size=0: virtual.add_tensors(
            inputs, destination
        ),
        "scatter": scatter,
        "gather": gather,
    }


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors_in(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from _tensors_in(part)
