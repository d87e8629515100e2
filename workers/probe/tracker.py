"""Tracks how calls are nested in one process, and hands what counts to the step builder. No torch here: its few
functions that are called are in `TorchQueries`; `workers.probe.patches.torch_functions` fills it when torch is
there."""

import contextlib
import functools
import sys
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from jobs.protocol.probe_records import Group, Wrapped
from jobs.protocol.records import Note, Shape
from workers.probe.clock import Mark, Span
from workers.probe.data_parallel_tracker import DataParallelTracker, HeldForward
from workers.probe.dataloaders import LoaderTracker
from workers.probe.graph_life import mark_graph
from workers.probe.measurements import DdpTimer, ProcessDevices, sum_gradient_bytes
from workers.probe.module_registry import ModuleRegistry, find_method, find_owner
from workers.probe.shapes import are_token_ids, has_embedding, rows_of, shape_of, shape_of_arguments
from workers.probe.step_profiler import StepProfiler
from workers.probe.step_records import RunReporter, is_sampled
from workers.probe.steps.fast_path import FastPath, read_learning_rate
from workers.probe.steps.step_builder import StepBuilder
from workers.probe.steps.step_sender import StepSender
from workers.probe.types import (
    INSIDE,
    OFF,
    OUTSIDE,
    SEARCHING,
    Forward,
    ForwardCall,
    OptimizerBegin,
    RootModule,
    ThreadState,
    ThreadStates,
    TorchQueries,
)
from workers.runtime.context import RankContext, innermost_sink

if TYPE_CHECKING:
    from torch import nn

T = TypeVar("T")

MAX_WRAPPED = 64
#: How many frames the caller of a module is above `Tracker.begin_forward`: `GuardedTracker.call_guarded` and the
#: functions of the wrapper are between them.
CALLER_DEPTH = 5
TRANSFORMED = "inside torch.func transforms (vmap, grad) a module sees no batch, so its rows are not counted"


class Tracker:
    """Tracks one process; `first_split` makes ids of splits unique among the processes of a rank."""

    def __init__(
        self,
        context: RankContext,
        torch: TorchQueries,
        threads: ThreadStates,
        profiler: StepProfiler,
        first_split: int = 0,
        *,
        rehearsed: bool = False,
    ) -> None:
        self.torch = torch
        self.threads = threads
        self.models = ModuleRegistry()
        only = context.devices[0].logical if len(context.devices) == 1 else None
        self.reporter = RunReporter(context.sink, context.rank, context.world_size, only)
        self.devices = ProcessDevices(context, torch, self.reporter, rehearsed=rehearsed)
        self.ddp_timer = DdpTimer(torch, self.reporter)
        sender = StepSender(context.sink, self.reporter, self.devices, self.models, self.ddp_timer, first_split)
        self.builder = StepBuilder(sender, self.models)
        self.builder.gradients.loss_forms.is_scale = lambda factor: torch.is_loss_scale(factor)
        self.loaders = LoaderTracker(
            context.sink.emit, lambda: self._count_trainings(self.reporter.steps), lambda: self.reporter.forwards
        )
        self._profiler = profiler
        self.fast_path = FastPath(self.builder, self.loaders, self.ddp_timer, innermost_sink(context.sink), profiler)
        self.builder.on_simple_step = self._add_template
        self.loaders.defer, self.loaders.compares = self.fast_path.defer, context.world_size > 1
        self.loaders.all_steps = lambda: self._count_trainings(self.fast_path.optimizer_steps)
        self.held = HeldForward(self.builder)
        self.data_parallel = DataParallelTracker(
            threads, torch, self.models, self.devices, self.reporter, self.held, self._prepare_forward
        )
        self._wrapped_modules = 0
        self._latest_slot = 0  # of the last forward, whose backward comes next
        self._group: tuple[int, int] | None = None  # rank and world size

    # -- forwards --------------------------------------------------------------------------------

    def begin_forward(self, module: "nn.Module", args: tuple[Any, ...], kwargs: dict[str, Any]) -> Forward | None:
        """The call of a module begins in this thread; None where it is no forward that counts."""
        thread = self.threads.current
        if thread.depth == SEARCHING:
            part = thread.root.parts.get(id(module)) if thread.root is not None else None
            return None if part is None else self._open_forward(part, part.model.training, args, kwargs)
        root = self.models.find_root(module)
        if not root.counts or self.torch.is_hidden() or self.devices.is_capturing():
            return None
        thread.leave_fast_path()
        if thread.fast_path is not self.fast_path and self.fast_path.owner is not None:
            self.fast_path.give_up()
        if not root.owner_searched:
            root.owner_searched = True
            root.owner = None if root.kind else find_owner(module, sys._getframe(CALLER_DEPTH))
        owner = None if root.owner is None else root.owner()
        method = None if owner is None else find_method(owner, sys._getframe(CALLER_DEPTH))
        if owner is None or method is None:
            return self._begin_root(root, args, kwargs)
        return self._begin_in_method(owner, method, args, kwargs)

    def _begin_root(self, root: RootModule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Forward:
        training = root.model.training
        self._prepare_forward(training and self.torch.grad_enabled())
        return self._open_forward(root, training, args, kwargs)

    def _prepare_forward(self, trains: bool) -> None:
        self.held.settle()
        self.devices.use_cuda_if_ready()
        self.builder.forward_begins(trains)
        self.threads.current.leave_fast_path()  # what that has settled may have been a simple step

    def _begin_in_method(
        self, owner: "nn.Module", method: FrameType, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Forward:
        """A method of a module that was not called itself (`net.forward(x)`, `net.encode(x)`) calls one part after the
        other: together they are one forward of the module."""
        if self.held.forward is not None and self.held.method is method:
            return self.held.forward
        forward = self._begin_root(self.models.find_root(owner), args, kwargs)
        forward.in_method = True
        self.held.hold(forward, method)
        return forward

    def _open_forward(self, root: RootModule, training: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Forward:
        wrapper = None if root.wrapper is None else root.wrapper()
        placement = None if root.kind else self.devices.placement
        slots, dim = placement or self.devices.place_forward(root, wrapper, args, kwargs)
        shape = self._input_shape(args, kwargs)
        if root.holds_tokens is None:
            model = root.model.ref()
            root.holds_tokens = model is not None and has_embedding(model) and are_token_ids(args, kwargs)
        rows = _count_rows(shape, dim, args)
        with_grad = self.torch.grad_enabled()
        if self.reporter.noise.is_wanted and training and with_grad:
            self.reporter.noise.report(root.model.ref(), self.torch.random_state)
        began = time.perf_counter()
        begin_mark = self.devices.mark(slots[0], began)
        reductions = None
        if root.kind == "ddp" and with_grad and getattr(wrapper, "require_backward_grad_sync", False):
            reductions = self.ddp_timer.begin_reduction(wrapper)
        return Forward(ForwardCall(root, slots, dim, shape, rows, training, with_grad, reductions), began, begin_mark)

    def _input_shape(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Shape | None:
        if self.torch.is_transformed():
            self.reporter.note("patterns.rows", TRANSFORMED)
            return None
        return shape_of_arguments(args, kwargs)

    def end_forward(self, forward: Forward, outputs: Any) -> None:
        """The call is over."""
        if forward.is_seen_inside:
            return
        forward.ended = time.perf_counter()
        slot = forward.call.slots[0]
        if not forward.sharded.is_scattered:
            end_mark = self.devices.mark(slot, forward.ended)
            forward.span = Span(self.devices.clock, forward.begin_mark, end_mark)
            forward.output_shape = shape_of(outputs)
        outer = self.threads.current.forward
        if outer is not None:
            outer.is_seen_inside = True
        self._latest_slot = slot
        if self.builder.may_be_abandoned(forward):
            forward.graph = mark_graph(outputs)
        if not forward.in_method:
            self.builder.forward_ends(forward)
            if not forward.call.with_grad:
                self._advance_profile()

    # -- the fast path -----------------------------------------------------------------------------

    def end_interrupted_forward(self, outputs: Any) -> None:
        """A forward that began on the fast path is over; something that its template did not foresee was within it."""
        forward, self.fast_path.interrupted = self.fast_path.interrupted, None
        if forward is not None:
            self.end_forward(forward, outputs)

    def _add_template(self, forward: Forward, phase: str, split: int) -> None:
        """A simple step was sent: let those like it take the fast path, where nothing could tell them apart."""
        thread, call = self.threads.current, forward.call
        root, trains = call.root, call.training and call.with_grad
        if self.held.forward is not None or thread.optimizers or thread.depth != OUTSIDE:
            return
        if self.reporter.flop_count is not None:  # the step that is counted takes no fast path
            return
        if self.devices.placement is None or self.devices.waits_for_cuda:
            return
        if root.parts or root.owner is not None or forward.in_method or (trains and self.builder.losses.wants_more):
            return
        if phase == "train" and not trains:
            return
        if trains and root.kind == "ddp" and call.reductions is None:  # the next one may be synchronised again
            return
        if phase == "eval" and call.with_grad and self.models.has_optimizers:  # a backward may follow the next one
            return
        template = self.builder.make_template(forward, phase, split)
        if template is not None:
            root.templates[call.with_grad][call.input_shape] = template
        self.fast_path.enable(thread)

    def forget_templates(self) -> None:
        self.threads.current.leave_fast_path()
        self.models.invalidate()

    # -- backward, optimizers, loaders -------------------------------------------------------------

    def begin_backward(self, losses: Any = None) -> Mark | None:
        if self.devices.is_capturing():
            return None
        self.threads.current.leave_fast_path()
        self.held.settle()
        self.builder.backward_begins(losses)
        return self.devices.mark_now(self._latest_slot)

    def end_backward(self, begin: Mark) -> None:
        now = time.perf_counter()
        end = self.devices.mark(self._latest_slot, now)
        self.builder.backward_ended(Span(self.devices.clock, begin, end), now)
        if not self.models.has_optimizers:
            self._advance_profile()

    def begin_optimizer(self, optimizer: Any) -> None:
        thread = self.threads.current
        thread.leave_fast_path()
        self.models.add_optimizer(optimizer)
        if self.devices.is_capturing():
            return
        if optimizer in thread.optimizers:  # its last step raised, or a subclass calls the step of its base
            thread.optimizers = thread.optimizers[: thread.optimizers.index(optimizer)]
        if not thread.optimizers:
            now = time.perf_counter()
            thread.stepping = OptimizerBegin(now, self.devices.mark(self._latest_slot, now))
        thread.optimizers = (*thread.optimizers, optimizer)

    def end_optimizer(self, optimizer: Any) -> None:
        thread = self.threads.current
        thread.leave_fast_path()
        if not thread.optimizers:
            return
        thread.optimizers = thread.optimizers[:-1]
        if not thread.optimizers:
            self.held.settle()
            if is_sampled(self.reporter.steps):
                self.reporter.report_learning_rate(read_learning_rate(optimizer))
            self.fast_path.optimizer_steps += 1
            now = time.perf_counter()
            self.builder.step_ended(now, thread.stepping, self.devices.mark(self._latest_slot, now), optimizer)
            self._advance_profile()

    def skip_step(self) -> None:
        """A GradScaler has not let the optimizer take its step."""
        self.threads.current.leave_fast_path()
        self.fast_path.optimizer_steps += 1
        self.builder.step_skipped()
        self._advance_profile()

    def _advance_profile(self) -> None:
        """A step has ended in this thread."""
        if self._profiler.request[0] != self._profiler.seen:
            self._profiler.on_step()

    def add_batch(self, iterator: Any, batch: Any, asked: float, arrived: float) -> None:
        self.threads.current.leave_fast_path()
        self.held.settle()
        self.builder.rows.add_batch(asked, arrived, self.loaders.count_delivered(iterator, batch, arrived))

    def _count_trainings(self, steps: int) -> int:
        """Steps of optimizers, or backwards where there are none."""
        return steps if self.models.has_optimizers else steps + self.reporter.backwards

    def count_exchange(self, sums: bool, numbers: int) -> None:
        """Tensors with so many numbers travel between processes. What does before any training is about the start, and
        not about gradients, and what has few numbers is about a loss or a count; both do not count. What does within a
        forward is no gradient either."""
        if not self.reporter.backwards and not self.reporter.steps:
            return
        self.reporter.reductions += sums
        self.reporter.exchanges += not sums
        if self.threads.current.depth != INSIDE and not self.fast_path.step.inside:
            self.reporter.exchanged_numbers += numbers

    # -- groups and wrappers -----------------------------------------------------------------------

    def report_group(self) -> None:
        """Send the process group that this process is in, once it is in one."""
        group = self.torch.process_group()
        if group is not None and group[:2] != self._group:
            self._group = group[:2]
            self.forget_templates()
            self.reporter.rank, self.reporter.world_size = group[:2]
            self.devices.join_group(group[0])
            if group[1] > 1:
                self.loaders.compares = self.reporter.noise.is_wanted = self.builder.losses.wants_more = True
            self.reporter.emit(Group(*group))

    def report_wrapper(self, kind: str, module: "nn.Module", devices: Sequence[Any]) -> None:
        """A module has been wrapped, so that its work is divided."""
        self.forget_templates()
        self._wrapped_modules += 1
        if self._wrapped_modules <= MAX_WRAPPED:
            logical = [self.devices.logical[slot] for slot in self.devices.slots_of(devices)]
            reduced = sum_gradient_bytes(module) if kind == "DistributedDataParallel" else None
            self.reporter.emit(Wrapped(kind, type(module).__name__, tuple(dict.fromkeys(logical)), reduced))

    def finish(self) -> None:
        self.fast_path.flush()
        self.threads.current.leave_fast_path()
        self.held.settle()
        self.report_group()
        self.builder.finish()
        self.loaders.finish()


def _count_rows(shape: Shape | None, dim: int, args: tuple[Any, ...]) -> int | None:
    if len(args) > 0 and type(args[0]).__name__ == "PackedSequence":  # its tensor has all sequences, end to end
        return int(args[0].batch_sizes[0])
    return rows_of(shape, dim)


class GuardedTracker:
    """What the wrappers around functions of torch call. An error in the tracker turns the probe off, and never reaches
    the program. `on` is what every wrapper asks first."""

    def __init__(self, context: RankContext, *, rehearsed: bool) -> None:
        self.on = True
        self.torch = TorchQueries()
        self.threads = ThreadStates()
        self.module_calls: tuple[Any, Any] | None = None  # Module.__call__ as it was, and as it is
        self._context = context
        self._rehearsed = rehearsed
        self.profiler = StepProfiler(context)
        self.output_of = contextlib.nullcontext if context.streams is None else context.streams.on
        self.restart(0)

    def restart(self, first_split: int) -> None:
        """Track this process from now on; a forked child is a process of its own."""
        self.threads.current = ThreadState()
        context, rehearsed = self._context, self._rehearsed
        self.tracker = Tracker(context, self.torch, self.threads, self.profiler, first_split, rehearsed=rehearsed)
        self.fast_path = self.tracker.fast_path
        self.step = self.fast_path.step
        self.roots, self.optimizers_by_id = self.tracker.models.roots, self.tracker.models.optimizers_by_id
        self.on = True

    def switch_off(self) -> None:
        self.on, self.step.stage = False, OFF

    def call_guarded(self, what: str, function: Callable[..., T], *args: Any) -> T | None:
        """What `function` returns; None where it fails, which turns the probe off."""
        try:
            return function(*args)
        except Exception as error:  # noqa: BLE001  (whatever it is, it must not reach the program)
            self.fail(what, error)
            return None

    def then_call(self, what: str, original: Any, seen: Callable[[Any, Any, Any], None]) -> Any:
        """`original`, and after it `seen` with what it returned and was called with."""

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if self.on:
                self.call_guarded(what, seen, result, args, kwargs)
            return result

        return call

    def after_init(self, kind: Any, seen: Callable[[Any], None]) -> None:
        """Call `seen` with every new instance of a class of torch."""
        kind.__init__ = self.then_call(kind.__name__, kind.__init__, lambda _, args, kwargs: seen(args[0]))

    def fail(self, what: str, error: Exception) -> None:
        """Turn the probe off and send a note."""
        if not self.on:
            return
        self.switch_off()
        with contextlib.suppress(Exception):
            reason = f"{type(error).__name__}: {error}"[:500]
            note = Note("patterns", f"the probe turned itself off while it watched {what}: {reason}")
            self._context.sink.emit(note)
