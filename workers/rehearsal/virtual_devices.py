"""The four functions of data parallelism on virtual devices, which are slots of the same CPU.

On a machine without GPUs torch's own functions refuse or split nothing. These do what torch's do on GPUs: the same
shards, the same replicas (so that state which a replica sets in `forward` is lost, as documented), gradients on the
original parameters, BatchNorm statistics of the first replica only.
Nothing but torch and the arithmetic of weights is needed to import them.
"""

import functools
import os
import queue
import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._utils import ExceptionWrapper

from shardyard.contract.row_shares import divide_rows

Module = Callable[..., Any]
#: Around the arrival of a shard on the device at a position.
Arriving = Callable[[int], AbstractContextManager[object]]
#: Cuts a tensor into those of the shards.
Cut = Callable[[torch.Tensor], Sequence[torch.Tensor]]
#: Makes the context in which a shard runs.
Mode = Callable[[], AbstractContextManager[object]]


def replicate(network: nn.Module, device_ids: Sequence[int], detach: bool = False) -> list[nn.Module]:
    """One copy of the module tree per device. As in torch, parameters of a copy are plain tensors that lead
    back to the originals (here: views of them), and every copy but the first has buffers of its own."""
    parameters = list(network.parameters())
    learning = [] if detach else [parameter for parameter in parameters if parameter.requires_grad]
    copied = iter(_Broadcast.apply(len(device_ids), *learning) if learning else ())  # type: ignore[no-untyped-call]
    replicas = []
    for position in range(len(device_ids)):
        copies = {parameter: parameter.detach() for parameter in parameters}
        copies.update((parameter, next(copied)) for parameter in learning)
        replicas.append(_make_replica(network, copies, own_buffers=position > 0))
    return replicas


class _Broadcast(torch.autograd.Function):
    """Each parameter for each replica, replica by replica.

    Its backward adds up the gradients of replicas in their order, as torch's own does. Left to the engine, the order
    would hang on how many operations each thread has recorded before, and so would the last bits of the sum: a run
    that goes on from a checkpoint in new threads would not repeat one that was never stopped.
    """

    @staticmethod
    def forward(ctx: Any, replicas: int, *parameters: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.parameters = len(parameters)
        ctx.set_materialize_grads(False)
        return tuple(parameter.detach() for _ in range(replicas) for parameter in parameters)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        return (None, *(_sum_gradients(gradients[place :: ctx.parameters]) for place in range(ctx.parameters)))


def _sum_gradients(gradients: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    given = [gradient for gradient in gradients if gradient is not None]
    return functools.reduce(torch.add, given) if given else None


def _make_replica(network: nn.Module, parameters: dict[nn.Parameter, torch.Tensor], *, own_buffers: bool) -> nn.Module:
    buffers = {b: b.clone() if own_buffers else b for b in network.buffers()}
    copies: dict[nn.Module, Any] = {module: _copy_module(module) for module in network.modules()}
    for module, copy in copies.items():
        for name, child in module._modules.items():
            if child is not None:
                setattr(copy, name, copies[child])
        for name, parameter in module._parameters.items():
            if parameter is None:
                copy._parameters[name] = None
            else:
                setattr(copy, name, parameters[parameter])
                copy._former_parameters[name] = parameters[parameter]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                setattr(copy, name, buffers[buffer])
    copied: nn.Module = copies[network]
    return copied


def _copy_module(module: nn.Module) -> Any:
    """A copy of one module, without its children; `_former_parameters` is where torch, too, keeps a replica's."""
    copy = module._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
    copy._former_parameters = {}
    return copy


def scatter(
    inputs: tuple[Any, ...],
    kwargs: dict[str, Any],
    device_ids: Sequence[int],
    dim: int = 0,
    arriving: Arriving = lambda position: nullcontext(),
    weights: tuple[float, ...] | None = None,
) -> tuple[tuple[Any, ...], tuple[dict[str, Any], ...]]:
    """Arguments for each shard. Tensors are cut by `torch.chunk`, or in proportion to the weights of the devices, other
    objects go to every shard; there are as many shards as the tensors give, which may be fewer than devices."""
    cut = partial(_chunk, devices=len(device_ids), dim=dim)
    if weights is not None:
        cut = partial(_cut_by_weights, weights=weights, dim=dim)
    positional = split_value(inputs, len(device_ids), cut) if inputs else []
    named = split_value(kwargs, len(device_ids), cut) if kwargs else []
    positional += [()] * (len(named) - len(positional))
    if len(named) < len(inputs):  # as torch has it: a keyword tensor that is too short is an error later on
        named += [{}] * (len(positional) - len(named))
    for position in range(len(positional)):
        with arriving(position):
            positional[position] = _copy_tensors_in(positional[position])
            if position < len(named):
                named[position] = _copy_tensors_in(named[position])
    return tuple(positional), tuple(named)


def _chunk(tensor: torch.Tensor, devices: int, dim: int) -> Sequence[torch.Tensor]:
    return tensor.chunk(devices, dim)


def _cut_by_weights(tensor: torch.Tensor, weights: tuple[float, ...], dim: int) -> Sequence[torch.Tensor]:
    return torch.split(tensor, weighted_sizes(tensor, weights, dim), dim)


def weighted_sizes(tensor: torch.Tensor, weights: tuple[float, ...], dim: int) -> list[int]:
    """Of the shards along `dim`; the last devices get none where there are not enough."""
    return [size for size in divide_rows(tensor.size(dim), weights) if size] or [0]


def split_value(value: Any, devices: int, cut: Cut) -> list[Any]:
    """The shards of a value, whose tensors are cut. What holds no tensor goes to each of the devices."""
    if isinstance(value, torch.Tensor):
        return list(cut(value))
    if _is_namedtuple(value):
        return [type(value)(*parts) for parts in _zip_shards(value, devices, cut)]
    if isinstance(value, tuple) and value:
        return _zip_shards(value, devices, cut)
    if isinstance(value, list) and value:
        return [list(parts) for parts in _zip_shards(value, devices, cut)]
    if isinstance(value, dict) and value:
        return [type(value)(items) for items in _zip_shards(value.items(), devices, cut)]
    return [value] * devices


def _zip_shards(parts: Any, devices: int, cut: Cut) -> list[Any]:
    """Shards of several values side by side; the one with the fewest decides how many there are."""
    return list(zip(*(split_value(part, devices, cut) for part in parts), strict=False))


def _copy_tensors_in(value: Any) -> Any:
    """As a transfer to a device makes copies: an operation in place must not reach the caller's tensor."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if _is_namedtuple(value):
        return type(value)(*map(_copy_tensors_in, value))
    if type(value) in (tuple, list) and value:
        return type(value)(map(_copy_tensors_in, value))
    if isinstance(value, dict) and value:
        return type(value)((key, _copy_tensors_in(part)) for key, part in value.items())
    return value


def _is_namedtuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_asdict") and hasattr(value, "_fields")


def parallel_apply(
    modules: Sequence[Module], inputs: Sequence[Any], kwargs: Sequence[dict[str, Any]], device_ids: Sequence[int]
) -> list[Any]:
    """Run each module on its shard, one after another in device order, each in the thread of its device: so a
    seed repeats, and the time of a shard is its own.

    An exception is raised again in the caller, of the same class, with the replica and the device named.
    """
    if not len(modules) == len(inputs) == len(kwargs):
        raise ValueError(
            f"{len(modules)} shards, but keyword arguments for {len(kwargs)}: "
            "a tensor among them has too few rows for as many shards"
        )
    run = functools.partial(_run_shard, torch.is_grad_enabled())
    outputs = []
    for position, (module, shard, named) in enumerate(zip(modules, inputs, kwargs, strict=True)):
        device = device_ids[position]
        where = f"in replica {position} on device cpu:{device}"
        result = _device_thread(device).call(functools.partial(run, module, shard, named, where))
        if isinstance(result, ExceptionWrapper):
            result.reraise()  # type: ignore[no-untyped-call]
        outputs.append(result)
    return outputs


def _run_shard(grad: bool, module: Module, shard: Any, named: dict[str, Any], where: str) -> Any:
    """Call a module in a thread of its own with the grad mode of the caller, which belongs to a thread."""
    try:
        with torch.set_grad_enabled(grad):
            return module(*shard, **named)
    except BaseException:  # noqa: BLE001 - raised again in the caller
        return ExceptionWrapper(where=where)  # type: ignore[no-untyped-call]


class _DeviceThread:
    """A thread that works for one virtual device for as long as the process lives.

    torch gives every thread that computes a team of helpers of its own. A new thread for every shard
    of every batch would build that team each time, which costs more than most shards (7 ms a step
    against 1 ms, measured).
    """

    def __init__(self, device: int) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[Any]]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"cpu:{device}", daemon=True)
        self._thread.start()

    def call(self, function: Callable[[], Any]) -> Any:
        """What `function`, which must not raise, returns; as long as that takes. A shard may split again."""
        if threading.current_thread() is self._thread:
            return function()
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._calls.put((function, answer))
        return answer.get()

    def _work(self) -> None:
        while True:
            function, answer = self._calls.get()
            answer.put(function())
            del function, answer  # or the last batch would live until the next one


@functools.cache
def _device_thread(device: int) -> _DeviceThread:
    return _DeviceThread(device)


os.register_at_fork(after_in_child=_device_thread.cache_clear)  # a forked process has none of these threads


def gather(outputs: Sequence[Any], output_device: int, dim: int = 0) -> Any:
    """One value from those of the shards: tensors are joined along `dim` (scalars become a vector), dicts,
    lists and tuples part by part.

    Raises:
        ValueError: dicts of different sizes.
    """
    first = outputs[0]
    if isinstance(first, torch.Tensor):
        return _join_outputs(outputs, dim)
    if first is None:
        return None
    if isinstance(first, dict):
        if any(len(output) != len(first) for output in outputs):
            raise ValueError("All dicts must have the same number of keys")
        return type(first)((key, gather([output[key] for output in outputs], output_device, dim)) for key in first)
    make: Any = getattr(type(first), "_make", type(first))
    return make(gather(parts, output_device, dim) for parts in zip(*outputs, strict=True))


def _join_outputs(tensors: Sequence[torch.Tensor], dim: int) -> torch.Tensor:
    if dim == 0 and all(tensor.dim() == 0 for tensor in tensors):
        warnings.warn(
            "Was asked to gather along dimension 0, but all input tensors were scalars; will instead unsqueeze and "
            "return a vector.",
            stacklevel=2,
        )
        return torch.stack(list(tensors))
    return torch.cat(list(tensors), dim)


def autocast_mode_of_caller(kind: str) -> Mode:
    """Makes the caller's autocast mode that of another thread. torch's own `parallel_apply` hands on whether it is
    on, but not its dtype, and so replicas would compute in float16 where bfloat16 was asked for."""
    enabled, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    return lambda: torch.autocast(kind, dtype=dtype, enabled=enabled)
