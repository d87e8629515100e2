"""Tracks DataParallel's primitives: called by its wrapper, or by a program itself. No torch here."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any

from jobs.protocol.records import Shape
from workers.probe.backward_timer import leaves_of, time_backward
from workers.probe.clock import Mark, Span
from workers.probe.measurements import Placement, ProcessDevices
from workers.probe.module_registry import ModuleRegistry
from workers.probe.shapes import rows_of, shape_of, tensors_in
from workers.probe.step_records import RunReporter, Shard, is_sampled
from workers.probe.steps.step_builder import StepBuilder
from workers.probe.types import Forward, ForwardCall, ThreadStates, TorchQueries

if TYPE_CHECKING:
    from torch import nn


@dataclass(slots=True, eq=False)
class HeldForward:
    """A forward whose end nothing marks: it is made of primitives, or of parts in a method."""

    builder: StepBuilder
    forward: Forward | None = None
    method: FrameType | None = None  # that calls the parts

    def hold(self, forward: Forward, method: FrameType | None = None) -> None:
        self.forward, self.method = forward, method

    def settle(self) -> None:
        """It ends here at the latest."""
        held, self.forward, self.method = self.forward, None, None
        if held is not None:
            self.builder.forward_ends(held)


@dataclass(slots=True, eq=False)
class DataParallelTracker:
    """Finds the forward to which a primitive belongs. `prepare_forward` is called before one begins that is made of
    primitives alone: with whether it trains."""

    threads: ThreadStates
    torch: TorchQueries
    models: ModuleRegistry
    devices: ProcessDevices
    reporter: RunReporter
    held: HeldForward
    prepare_forward: Callable[[bool], None]
    loose_primitives: dict[str, list[Span]] = field(default_factory=dict)  # called before their forward is known
    replicas: "tuple[set[int], nn.Module] | None" = None  # by identity, and whose they are
    scattered_to: Placement | None = None  # of the last scatter

    def begin_primitive(self) -> Mark:
        self.threads.current.leave_fast_path()
        return self.devices.mark_now(0)

    def end_primitive(self, name: str, begin: Mark) -> None:
        span = self.devices.span_until_now(begin, 0)
        held = self.held.forward if name in ("parallel_apply", "gather") else None
        forward = self.threads.current.forward or held
        spans = self.loose_primitives if forward is None else forward.sharded.primitives
        spans.setdefault(name, []).append(span)
        if forward is not None and forward is self.held.forward and name == "gather":
            self.held.settle()

    def remember_replicas(self, module: "nn.Module", replicas: Sequence[Any]) -> None:
        """Remember whose replicas these are, for a program that applies them by hand."""
        if self.threads.current.forward is None:
            self.replicas = {id(replica) for replica in replicas}, module

    def remember_scatter(self, devices: Sequence[Any], dim: int) -> None:
        """Remember over which devices a batch was divided: those that got nothing take part in the split, too."""
        self.scattered_to = self.devices.slots_of(devices), dim

    def begin_apply(self, modules: Sequence[Any], devices: Sequence[Any] | None) -> Forward | None:
        """Replicas are about to be called, each on its shard. None where they are no part of a forward that counts."""
        thread = self.threads.current
        thread.leave_fast_path()
        forward = thread.forward
        placement, self.scattered_to = self.scattered_to, None
        if placement is None or len(placement[0]) < len(modules):
            placement = self.devices.slots_of(devices if devices is not None else range(len(modules))), 0
        slots, dim = placement
        if len(set(slots)) < len(slots):  # over devices that are not this rank's: seen as a whole
            return None
        if forward is None:
            forward = self._begin_by_hand(modules, slots, dim)
        elif forward.call.root.kind != "dp":
            forward.change_call(slots=slots, dim=dim)
        if forward is not None:
            forward.sharded.is_scattered = True
            forward.sharded.backward_ms = forward.sharded.backward_ms or [None] * len(self.devices.logical)
        return forward

    def _begin_by_hand(self, modules: Sequence[Any], slots: tuple[int, ...], dim: int) -> Forward | None:
        """A forward of which only the primitives are seen, as in PyTorch's tutorial on data parallelism."""
        if self.replicas is None or not modules or id(modules[0]) not in self.replicas[0]:
            return None
        network = self.replicas[1]
        root, with_grad = self.models.find_root(network), self.torch.grad_enabled()
        self.prepare_forward(network.training and with_grad)
        now = time.perf_counter()
        call = ForwardCall(root, slots, dim, None, None, network.training, with_grad)
        forward = Forward(call, now, self.devices.mark(slots[0], now))
        forward.sharded.primitives, self.loose_primitives = self.loose_primitives, {}
        self.held.hold(forward)
        return forward

    def end_shard(self, forward: Forward, slot: int, input_shape: Shape | None, outputs: Any, begin: Mark) -> None:
        span = self.devices.span_until_now(begin, slot)
        shard = forward.sharded.shards.setdefault(slot, Shard(input_shape, None, []))
        shard.output_shape = shape_of(outputs)
        shard.spans.append(span)

    def end_apply(
        self, forward: Forward, replicas: Sequence[Any], inputs: Sequence[Any], kwargs: Any, outputs: Any
    ) -> None:
        """All shards have run."""
        call = forward.call
        if forward is self.held.forward:
            rows = [rows_of(shard.input_shape, call.dim) for shard in forward.sharded.shards.values()]
            forward.change_call(rows=None if None in rows else sum(filter(None, rows)))
            forward.ended = time.perf_counter()
        if not call.with_grad or self.devices.kind != "cpu" or not is_sampled(self.reporter.steps):
            return
        for position, replica in enumerate(replicas):
            named = kwargs[position] if kwargs is not None else {}
            boundary = [*leaves_of(replica), *tensors_in((inputs[position], named))]
            time_backward(outputs[position], boundary, forward.sharded.backward_ms, call.slots[position])
