"""Tracks DataParallel's primitives: called by its wrapper, or by a program itself. No torch here."""

import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

from jobs.protocol.records import Shape
from workers.probe.backward_timer import leaves_of, time_backward
from workers.probe.clock import Mark, Span
from workers.probe.measurements import Placement, ProcessDevices
from workers.probe.module_registry import ModuleRegistry
from workers.probe.shapes import rows_of, shape_of, tensors_in
from workers.probe.step_builder import StepBuilder
from workers.probe.step_records import RunReporter, Shard, is_sampled
from workers.probe.types import Forward, ForwardCall, ThreadStates, TorchQueries

if TYPE_CHECKING:
    from torch import nn


class HeldForward:
    """A forward whose end nothing marks: it is made of primitives, or of parts in a method."""

    def __init__(self, builder: StepBuilder) -> None:
        self.forward: Forward | None = None
        self.method: FrameType | None = None  # that calls the parts
        self._builder = builder

    def hold(self, forward: Forward, method: FrameType | None = None) -> None:
        self.forward, self.method = forward, method

    def settle(self) -> None:
        """It ends here at the latest."""
        held, self.forward, self.method = self.forward, None, None
        if held is not None:
            self._builder.forward_ends(held)


class DataParallelTracker:
    """Finds the forward to which a primitive belongs. `prepare_forward` is called before one begins that is made of
    primitives alone: with whether it trains."""

    def __init__(
        self,
        threads: ThreadStates,
        torch: TorchQueries,
        models: ModuleRegistry,
        devices: ProcessDevices,
        reporter: RunReporter,
        held: HeldForward,
        prepare_forward: Callable[[bool], None],
    ) -> None:
        self._threads = threads
        self._torch = torch
        self._models = models
        self._devices = devices
        self._reporter = reporter
        self._held = held
        self._prepare_forward = prepare_forward
        self._loose_primitives: dict[str, list[Span]] = {}  # called by hand, before their forward is known
        self._replicas: tuple[set[int], nn.Module] | None = None  # by identity, and whose they are
        self._scattered_to: Placement | None = None  # of the last scatter

    def begin_primitive(self) -> Mark:
        self._threads.current.leave_fast_path()
        return self._devices.mark_now(0)

    def end_primitive(self, name: str, begin: Mark) -> None:
        span = self._devices.span_until_now(begin, 0)
        held = self._held.forward if name in ("parallel_apply", "gather") else None
        forward = self._threads.current.forward or held
        spans = self._loose_primitives if forward is None else forward.sharded.primitives
        spans.setdefault(name, []).append(span)
        if forward is not None and forward is self._held.forward and name == "gather":
            self._held.settle()

    def remember_replicas(self, module: "nn.Module", replicas: Sequence[Any]) -> None:
        """Remember whose replicas these are, for a program that applies them by hand."""
        if self._threads.current.forward is None:
            self._replicas = {id(replica) for replica in replicas}, module

    def remember_scatter(self, devices: Sequence[Any], dim: int) -> None:
        """Remember over which devices a batch was divided: those that got nothing take part in the split, too."""
        self._scattered_to = self._devices.slots_of(devices), dim

    def begin_apply(self, modules: Sequence[Any], devices: Sequence[Any] | None) -> Forward | None:
        """Replicas are about to be called, each on its shard. None where they are no part of a forward that counts."""
        thread = self._threads.current
        thread.leave_fast_path()
        forward = thread.forward
        placement, self._scattered_to = self._scattered_to, None
        if placement is None or len(placement[0]) < len(modules):
            placement = self._devices.slots_of(devices if devices is not None else range(len(modules))), 0
        slots, dim = placement
        if len(set(slots)) < len(slots):  # over devices that are not this rank's: seen as a whole
            return None
        if forward is None:
            forward = self._begin_by_hand(modules, slots, dim)
        elif forward.call.root.kind != "dp":
            forward.change_call(slots=slots, dim=dim)
        if forward is not None:
            forward.sharded.is_scattered = True
            forward.sharded.backward_ms = forward.sharded.backward_ms or [None] * len(self._devices.logical)
        return forward

    def _begin_by_hand(self, modules: Sequence[Any], slots: tuple[int, ...], dim: int) -> Forward | None:
        """A forward of which only the primitives are seen, as in PyTorch's tutorial on data parallelism."""
        if self._replicas is None or not modules or id(modules[0]) not in self._replicas[0]:
            return None
        network = self._replicas[1]
        root, with_grad = self._models.find_root(network), self._torch.grad_enabled()
        self._prepare_forward(network.training and with_grad)
        now = time.perf_counter()
        call = ForwardCall(root, slots, dim, None, None, network.training, with_grad)
        forward = Forward(call, now, self._devices.mark(slots[0], now))
        forward.sharded.primitives, self._loose_primitives = self._loose_primitives, {}
        self._held.hold(forward)
        return forward

    def end_shard(self, forward: Forward, slot: int, input_shape: Shape | None, outputs: Any, begin: Mark) -> None:
        span = self._devices.span_until_now(begin, slot)
        shard = forward.sharded.shards.get(slot)
        if shard is None:
            forward.sharded.shards[slot] = Shard(input_shape, shape_of(outputs), [span])
        else:
            shard.output_shape = shape_of(outputs)
            shard.spans.append(span)

    def end_apply(
        self,
        forward: Forward,
        replicas: Sequence[Any],
        inputs: Sequence[Any],
        kwargs: Any,
        outputs: Any,
    ) -> None:
        """All shards have run."""
        call = forward.call
        if forward is self._held.forward:
            rows = [rows_of(shard.input_shape, call.dim) for shard in forward.sharded.shards.values()]
            forward.change_call(rows=None if None in rows else sum(filter(None, rows)))
            forward.ended = time.perf_counter()
        if not call.with_grad or self._devices.kind != "cpu" or not is_sampled(self._reporter.steps):
            return
        for position, replica in enumerate(replicas):
            named = kwargs[position] if kwargs is not None else {}
            boundary = [*leaves_of(replica), *tensors_in((inputs[position], named))]
            time_backward(outputs[position], boundary, forward.sharded.backward_ms, call.slots[position])
