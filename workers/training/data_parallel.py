"""nn.DataParallel with its four primitives measured, on real and on virtual devices."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import parallel as torch_parallel
from torch.nn.parallel import scatter_gather
from torch.nn.parallel._functions import Scatter

from workers.probe.backward_timer import leaves_of
from workers.probe.recorder import Recorder
from workers.probe.shapes import rows_of, shape_of_arguments, tensors_in
from workers.rehearsal.virtual_devices import (
    Arriving,
    Mode,
    Module,
    autocast_mode_of_caller,
    gather,
    parallel_apply,
    replicate,
    scatter,
    split_value,
    weighted_sizes,
)
from workers.training.straggler import PlantedSlowness

#: Of the devices; None: all have the same.
Weights = tuple[float, ...] | None


@dataclass(frozen=True, slots=True)
class ParallelPrimitives:
    """The four functions of data parallelism. Devices are given by their index."""

    replicate: Callable[[nn.Module, Sequence[int], bool], list[nn.Module]]
    scatter: Callable[[tuple[Any, ...], dict[str, Any], Sequence[int], int, Arriving, Weights], tuple[Any, Any]]
    parallel_apply: Callable[[Sequence[Any], Sequence[Any], Sequence[dict[str, Any]], Sequence[int]], list[Any]]
    gather: Callable[[Sequence[Any], int, int], Any]


class TracedDataParallel(nn.DataParallel[nn.Module]):
    """Splits every batch over `device_ids` and reports to `observer` what each device got.

    With one device the primitives run as well, although torch would call the module directly, so that the report shows
    them. `functional` works as PyTorch's tutorial does: replicas are made for all devices, and as many as there are
    shards are used. `on` binds the thread of a shard to the log of its device. `straggler` is a device that is slow on
    purpose.
    """

    def __init__(
        self,
        module: nn.Module,
        device_ids: Sequence[int],
        *,
        virtual: bool,
        observer: Recorder,
        output_device: int = 0,
        dim: int = 0,
        functional: bool = False,
        on: Callable[[int], AbstractContextManager[None]] = lambda index: nullcontext(),
        straggler: PlantedSlowness | None = None,
    ) -> None:
        if virtual:
            nn.Module.__init__(self)
            self.module, self.device_ids, self.output_device, self.dim = module, list(device_ids), output_device, dim
        else:
            super().__init__(module, list(device_ids), output_device, dim)
        self._primitives = VIRTUAL if virtual else CUDA
        self._virtual = virtual
        self._run = self._one_by_one if functional else self._as_torch_does
        self._observer = observer
        self._on = on
        self._straggler = straggler
        self._weights: Weights = None

    def set_weights(self, weights: tuple[float, ...]) -> None:
        """From now on shards have rows in proportion to these."""
        self._weights = weights

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        outputs = self._run(inputs, kwargs)
        self._observer.end_forward(rows_of(shape_of_arguments(inputs, kwargs), self.dim))
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
        with self._observer.measure_primitive("replicate"):
            return self._primitives.replicate(module, device_ids, not torch.is_grad_enabled())

    def scatter(self, inputs: tuple[Any, ...], kwargs: dict[str, Any] | None, device_ids: Sequence[Any]) -> Any:
        with self._observer.measure_primitive("scatter"):
            return self._primitives.scatter(
                inputs, kwargs or {}, device_ids, self.dim, self._measure_arrival, self._weights
            )

    @contextmanager
    def _measure_arrival(self, position: int) -> Iterator[None]:
        with self._observer.measure_arrival(position):
            yield
            if self._straggler is not None:
                self._straggler.hold_input(self.device_ids[position])

    def parallel_apply(self, replicas: Sequence[nn.Module], inputs: Sequence[Any], kwargs: Any) -> list[Any]:
        mode = autocast_mode_of_caller("cpu" if self._virtual else "cuda")
        modules = [self._shard_call(position, replica, mode) for position, replica in enumerate(replicas)]
        with self._observer.measure_primitive("parallel_apply"):
            outputs = self._primitives.parallel_apply(modules, inputs, kwargs, self.device_ids[: len(modules)])
        if self._virtual and torch.is_grad_enabled():
            for position, replica in enumerate(replicas):
                boundary = [*leaves_of(replica), *tensors_in((inputs[position], kwargs[position]))]
                self._observer.watch_backward(position, outputs[position], boundary)
        return outputs

    def gather(self, outputs: Any, output_device: Any) -> Any:
        with self._observer.measure_primitive("gather"):
            return self._primitives.gather(outputs, output_device, self.dim)

    def _shard_call(self, position: int, replica: nn.Module, mode: Mode) -> Module:
        slow = replica if self._straggler is None else self._straggler.slow_down(self.device_ids[position], replica)
        watched = self._observer.watch_call(position, slow)

        def call(*args: Any, **kwargs: Any) -> Any:
            with self._on(position), mode():
                return watched(*args, **kwargs)

        return call


def _scatter_to_gpus(
    inputs: tuple[Any, ...],
    kwargs: dict[str, Any],
    device_ids: Sequence[int],
    dim: int,
    arriving: Arriving,
    weights: Weights,
) -> tuple[Any, Any]:
    """torch's own scatter, which sends to all devices at once, so the arrival of a single shard cannot be measured."""
    if weights is None:
        return scatter_gather.scatter_kwargs(inputs, kwargs, device_ids, dim)

    def cut(tensor: torch.Tensor) -> Sequence[torch.Tensor]:
        sizes = weighted_sizes(tensor, weights, dim)
        shards: Sequence[torch.Tensor] = Scatter.apply(device_ids[: len(sizes)], sizes, dim, tensor)  # type: ignore[no-untyped-call]
        return shards

    positional = split_value(inputs, len(device_ids), cut) if inputs else []
    named = split_value(kwargs, len(device_ids), cut) if kwargs else []
    positional += [()] * (len(named) - len(positional))
    named += [{}] * (len(positional) - len(named))
    return tuple(positional), tuple(named)


VIRTUAL = ParallelPrimitives(replicate, scatter, parallel_apply, gather)
CUDA = ParallelPrimitives(
    replicate=torch_parallel.replicate,
    scatter=_scatter_to_gpus,
    parallel_apply=torch_parallel.parallel_apply,
    gather=torch_parallel.gather,
)
