"""nn.DataParallel with its four primitives watched, on real devices and on virtual ones.

On a machine without GPUs torch's own class returns early and splits nothing. The virtual functions
below do what the real ones do, with the devices being slots of the same CPU: the same shards, the
same replicas (so that state which a replica sets in `forward` is lost, as documented), gradients on
the original parameters, BatchNorm statistics of the first replica only.
"""

import functools
import queue
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._utils import ExceptionWrapper
from torch.nn import parallel as torch_parallel
from torch.nn.parallel import scatter_gather

from workers.training.probe.recorder import Observer
from workers.training.probe.shapes import rows_of, shape_of_arguments, tensors_in
from workers.training.straggler import Straggler

Module = Callable[..., Any]
#: Around the arrival of a shard on the device at a position.
Arriving = Callable[[int], AbstractContextManager[object]]


#: Makes the context in which a shard runs.
Mode = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class Primitives:
    """The four functions of data parallelism. Devices are given by their index."""

    replicate: Callable[[nn.Module, Sequence[int], bool], list[nn.Module]]
    scatter: Callable[[tuple[Any, ...], dict[str, Any], Sequence[int], int, "Arriving"], tuple[Any, Any]]
    parallel_apply: Callable[[Sequence[Any], Sequence[Any], Sequence[dict[str, Any]], Sequence[int]], list[Any]]
    gather: Callable[[Sequence[Any], int, int], Any]


class TracedDataParallel(nn.DataParallel[nn.Module]):
    """Splits every batch over `device_ids` and tells `observer` what each device got.

    With one device the primitives run all the same, where torch would call the module directly, so
    that the report shows them. `functional` takes the road of PyTorch's tutorial instead: replicas
    for all devices first, then as many as there are shards are used. `on` binds the thread of a
    shard to the log of its device. `straggler` is a device that is slow on purpose.
    """

    def __init__(
        self,
        module: nn.Module,
        device_ids: Sequence[int],
        *,
        virtual: bool,
        output_device: int = 0,
        dim: int = 0,
        functional: bool = False,
        observer: Observer | None = None,
        on: Callable[[int], AbstractContextManager[None]] = lambda index: nullcontext(),
        straggler: Straggler | None = None,
    ) -> None:
        if virtual:
            nn.Module.__init__(self)
            self.module, self.device_ids, self.output_device, self.dim = module, list(device_ids), output_device, dim
        else:
            super().__init__(module, list(device_ids), output_device, dim)
        self._primitives = VIRTUAL if virtual else CUDA
        self._virtual = virtual
        self._run = self._one_by_one if functional else self._as_torch_does
        self._observer = observer or Observer()
        self._on = on
        self._straggler = straggler

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        outputs = self._run(inputs, kwargs)
        self._observer.split(rows_of(shape_of_arguments(inputs, kwargs), self.dim))
        return outputs

    def _as_torch_does(self, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        shards, shard_kwargs = self.scatter(inputs, kwargs, self.device_ids)
        if not shards and not shard_kwargs:
            shards, shard_kwargs = ((),), ({},)
        replicas = self.replicate(self.module, self.device_ids[: len(shards)])
        outputs = self.parallel_apply(replicas, shards, shard_kwargs)
        return self.gather(outputs, self.output_device)

    def _one_by_one(self, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        replicas = self.replicate(self.module, self.device_ids)
        shards, shard_kwargs = self.scatter(inputs, kwargs, self.device_ids)
        if not shards and not shard_kwargs:
            shards, shard_kwargs = ((),), ({},)
        replicas = replicas[: len(shards)]
        outputs = self.parallel_apply(replicas, shards, shard_kwargs)
        return self.gather(outputs, self.output_device)

    def replicate(self, module: nn.Module, device_ids: Sequence[Any]) -> list[nn.Module]:
        with self._observer.primitive("replicate"):
            return self._primitives.replicate(module, device_ids, not torch.is_grad_enabled())

    def scatter(self, inputs: tuple[Any, ...], kwargs: dict[str, Any] | None, device_ids: Sequence[Any]) -> Any:
        with self._observer.primitive("scatter"):
            return self._primitives.scatter(inputs, kwargs or {}, device_ids, self.dim, self._arriving)

    @contextmanager
    def _arriving(self, position: int) -> Iterator[None]:
        with self._observer.arriving(position):
            yield
            if self._straggler is not None:
                self._straggler.hold_input(self.device_ids[position])

    def parallel_apply(self, replicas: Sequence[nn.Module], inputs: Sequence[Any], kwargs: Any) -> list[Any]:
        mode = _mode_of_this_thread("cpu" if self._virtual else "cuda")
        modules = [self._shard(position, replica, mode) for position, replica in enumerate(replicas)]
        with self._observer.primitive("parallel_apply"):
            outputs = self._primitives.parallel_apply(modules, inputs, kwargs, self.device_ids[: len(modules)])
        if self._virtual and torch.is_grad_enabled():
            for position, replica in enumerate(replicas):
                boundary = [*_parameters(replica), *tensors_in((inputs[position], kwargs[position]))]
                self._observer.shard_graph(position, outputs[position], boundary)
        return outputs

    def gather(self, outputs: Any, output_device: Any) -> Any:
        with self._observer.primitive("gather"):
            return self._primitives.gather(outputs, output_device, self.dim)

    def _shard(self, position: int, replica: nn.Module, mode: Mode) -> Module:
        slow = replica if self._straggler is None else self._straggler.slow(self.device_ids[position], replica)
        watched = self._observer.watched(position, slow)

        def call(*args: Any, **kwargs: Any) -> Any:
            with self._on(position), mode():
                return watched(*args, **kwargs)

        return call


# -- virtual devices -------------------------------------------------------------------------------


def replicate(network: nn.Module, device_ids: Sequence[int], detach: bool = False) -> list[nn.Module]:
    """One copy of the module tree per device. As in torch, parameters of a copy are plain tensors that lead
    back to the originals (here: views of them), and every copy but the first has buffers of its own."""
    return [_replica(network, own_buffers=position > 0, detach=detach) for position in range(len(device_ids))]


def _replica(network: nn.Module, *, own_buffers: bool, detach: bool) -> nn.Module:
    parameters = {p: p.detach() if detach else p.view_as(p) for p in network.parameters()}
    buffers = {b: b.clone() if own_buffers else b for b in network.buffers()}
    copies: dict[nn.Module, Any] = {module: _copy(module) for module in network.modules()}
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


def _copy(module: nn.Module) -> Any:
    """A copy of one module, without its children; `_former_parameters` is where torch, too, keeps a replica's."""
    copy = module._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
    copy._former_parameters = {}
    return copy


def _parameters(replica: nn.Module) -> list[torch.Tensor]:
    modules: list[Any] = list(replica.modules())
    return [tensor for module in modules for tensor in module._former_parameters.values()]


def scatter(
    inputs: tuple[Any, ...],
    kwargs: dict[str, Any],
    device_ids: Sequence[int],
    dim: int = 0,
    arriving: Arriving = lambda position: nullcontext(),
) -> tuple[tuple[Any, ...], tuple[dict[str, Any], ...]]:
    """Arguments for each shard. Tensors are cut by `torch.chunk`, other objects go to every shard; there are
    as many shards as the tensors give, which may be fewer than devices."""
    positional = _cut(inputs, len(device_ids), dim) if inputs else []
    named = _cut(kwargs, len(device_ids), dim) if kwargs else []
    positional += [()] * (len(named) - len(positional))
    if len(named) < len(inputs):  # as torch has it: a keyword tensor that is too short is an error later on
        named += [{}] * (len(positional) - len(named))
    for position in range(len(positional)):
        with arriving(position):
            positional[position] = _copied(positional[position])
            if position < len(named):
                named[position] = _copied(named[position])
    return tuple(positional), tuple(named)


def _cut(value: Any, devices: int, dim: int) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return list(value.chunk(devices, dim))
    if _is_namedtuple(value):
        return [type(value)(*parts) for parts in _together(value, devices, dim)]
    if isinstance(value, tuple) and value:
        return _together(value, devices, dim)
    if isinstance(value, list) and value:
        return [list(parts) for parts in _together(value, devices, dim)]
    if isinstance(value, dict) and value:
        return [type(value)(items) for items in _together(value.items(), devices, dim)]
    return [value] * devices


def _together(parts: Any, devices: int, dim: int) -> list[Any]:
    """Shards of several values side by side; the one with the fewest decides how many there are."""
    return list(zip(*(_cut(part, devices, dim) for part in parts), strict=False))


def _copied(value: Any) -> Any:
    """As a transfer to a device makes copies: an operation in place must not reach the caller's tensor."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if _is_namedtuple(value):
        return type(value)(*map(_copied, value))
    if type(value) in (tuple, list) and value:
        return type(value)(map(_copied, value))
    if isinstance(value, dict) and value:
        return type(value)((key, _copied(part)) for key, part in value.items())
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
    run = functools.partial(_run, torch.is_grad_enabled())
    outputs = []
    for position, (module, shard, named) in enumerate(zip(modules, inputs, kwargs, strict=True)):
        device = device_ids[position]
        where = f"in replica {position} on device cpu:{device}"
        result = _thread_of(device).call(functools.partial(run, module, shard, named, where))
        if isinstance(result, ExceptionWrapper):
            result.reraise()  # type: ignore[no-untyped-call]
        outputs.append(result)
    return outputs


def _run(grad: bool, module: Module, shard: Any, named: dict[str, Any], where: str) -> Any:
    """Call a module in a thread of its own with the grad mode of the caller, which belongs to a thread."""
    try:
        with torch.set_grad_enabled(grad):
            return module(*shard, **named)
    except BaseException:  # noqa: BLE001 - raised again in the caller
        return ExceptionWrapper(where=where)  # type: ignore[no-untyped-call]


def _mode_of_this_thread(kind: str) -> Mode:
    """Makes the caller's autocast mode that of another thread. torch's own `parallel_apply` hands on whether it is
    on, but not its dtype, and so replicas would compute in float16 where bfloat16 was asked for."""
    enabled, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    return lambda: torch.autocast(kind, dtype=dtype, enabled=enabled)


class _DeviceThread:
    """A thread that works for one virtual device for as long as the process lives.

    torch gives every thread that computes a team of helpers of its own. A new thread for every shard
    of every batch would build that team each time, which costs more than most shards (7 ms a step
    against 1 ms, measured).
    """

    def __init__(self, device: int) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[Any]]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name=f"cpu:{device}", daemon=True).start()

    def call(self, function: Callable[[], Any]) -> Any:
        """What `function`, which must not raise, returns; as long as that takes."""
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._calls.put((function, answer))
        return answer.get()

    def _work(self) -> None:
        while True:
            function, answer = self._calls.get()
            answer.put(function())
            del function, answer  # or the last batch would live until the next one


@functools.cache
def _thread_of(device: int) -> _DeviceThread:
    return _DeviceThread(device)


def gather(outputs: Sequence[Any], output_device: int, dim: int = 0) -> Any:
    """One value from those of the shards: tensors are joined along `dim` (scalars become a vector), dicts,
    lists and tuples part by part.

    Raises:
        ValueError: dicts of different sizes.
    """
    first = outputs[0]
    if isinstance(first, torch.Tensor):
        return _join(outputs, dim)
    if first is None:
        return None
    if isinstance(first, dict):
        if any(len(output) != len(first) for output in outputs):
            raise ValueError("All dicts must have the same number of keys")
        return type(first)((key, gather([output[key] for output in outputs], output_device, dim)) for key in first)
    make: Any = getattr(type(first), "_make", type(first))
    return make(gather(parts, output_device, dim) for parts in zip(*outputs, strict=True))


def _join(tensors: Sequence[torch.Tensor], dim: int) -> torch.Tensor:
    if dim == 0 and all(tensor.dim() == 0 for tensor in tensors):
        warnings.warn(
            "Was asked to gather along dimension 0, but all input tensors were scalars; will instead unsqueeze and "
            "return a vector.",
            stacklevel=2,
        )
        return torch.stack(list(tensors))
    return torch.cat(list(tensors), dim)


def _scatter_to_gpus(
    inputs: tuple[Any, ...], kwargs: dict[str, Any], device_ids: Sequence[int], dim: int, arriving: Arriving
) -> tuple[Any, Any]:
    """torch's own, which sends to all devices at once: when a shard arrives on one is not seen."""
    return scatter_gather.scatter_kwargs(inputs, kwargs, device_ids, dim)


VIRTUAL = Primitives(replicate, scatter, parallel_apply, gather)
CUDA = Primitives(
    replicate=torch_parallel.replicate,
    scatter=_scatter_to_gpus,
    parallel_apply=torch_parallel.parallel_apply,
    gather=torch_parallel.gather,
)
