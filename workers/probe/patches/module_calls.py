"""The wrapper around calls of modules, through which every part of every model is called, and what torch.compile sees
of it."""

import functools
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from jobs.protocol.records import Shape
from workers.probe.shapes import shape_of, shape_of_arguments
from workers.probe.tracker import GuardedTracker
from workers.probe.types import (
    CALLED,
    INSIDE,
    LOADED,
    OFF,
    OUTSIDE,
    RETURNED,
    SEARCHING,
    CurrentStep,
    RootModule,
    StepTemplate,
    WatchedModel,
)

#: What torch's Module.__call__ consists of, where it does nothing but pass a call on.
PASSES_ON = ("_compiled_call_impl", "_call_impl")
#: Where torch.compile remembers torch's own `Module.__call__`.
DYNAMO_MODULES = ("torch._dynamo.utils", "torch._dynamo.variables.nn_module")
_dead_reference: Any = lambda: None  # noqa: E731
#: Stands for a module that was not called yet: its calls may be forwards.
UNKNOWN = RootModule(_dead_reference, WatchedModel(_dead_reference, "", False), "", counts=True)


def patch_module_calls(guarded: GuardedTracker, home: Any) -> None:
    """Put our wrapper in the place of `Module.__call__`."""
    import torch

    original = home.Module.__call__
    is_compiling = torch.compiler.is_dynamo_compiling
    threads, thread = guarded.threads, threading.get_ident
    only_passes_on = original.__code__.co_names == PASSES_ON
    outer_call = _make_outer_call(guarded, original)

    @functools.wraps(original)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        if is_compiling():
            return original(self, *args, **kwargs)
        step = guarded.step
        if step.inside != thread() and guarded.on:
            root = guarded.roots.get(id(self), UNKNOWN)
            # Where nothing is noted, the state of the thread tells; to look it up costs more than all else here.
            if root.counts and (step.stage != OFF or threads.current.depth != INSIDE):
                return outer_call(step, root, self, args, kwargs)
        # Every part of a model comes here. What torch's own function would do is done here, without another call.
        if only_passes_on and self._compiled_call_impl is None:
            return self._call_impl(*args, **kwargs)
        return original(self, *args, **kwargs)

    home.Module.__call__ = __call__
    guarded.module_calls = original, __call__
    for name in DYNAMO_MODULES:
        if name in sys.modules:
            reassure_dynamo(guarded, sys.modules[name])
    if "torch._dynamo.eval_frame" in sys.modules:
        hide_from_dynamo(guarded, sys.modules["torch._dynamo.eval_frame"])


def torch_state_queries(torch: Any) -> tuple[Callable[[], Any], ...]:
    """The autograd engine's task (-1 outside of it), what traces, the number of modes, and transforms of torch.func."""
    private = torch._C
    return (
        private._current_graph_task_id,
        private._get_tracing_state,
        private._len_torch_dispatch_stack,
        private._functorch.peek_interpreter_stack,
    )


def _make_outer_call(guarded: GuardedTracker, original: Any) -> Callable[[CurrentStep, RootModule, Any, Any, Any], Any]:
    """Calls a module that may be called from outside of all others, and whose calls are forwards then."""
    import torch

    threads, thread, tensor, clock = guarded.threads, threading.get_ident, torch.Tensor, time.perf_counter
    only_passes_on = original.__code__.co_names == PASSES_ON
    begins_on_template, tracked_call = _make_template_check(guarded, torch), _make_tracked_call(guarded, original)

    def outer_call(step: CurrentStep, root: RootModule, module: Any, args: Any, kwargs: Any) -> Any:
        try:
            follows_template = (
                step.stage <= LOADED
                and step.thread == thread()
                and begins_on_template(step, root, module, args, kwargs)
            )
        except Exception as error:  # noqa: BLE001
            guarded.fail("a forward", error)
            follows_template = False
        if not follows_template:
            return tracked_call(module, args, kwargs)
        try:
            if only_passes_on and module._compiled_call_impl is None:
                outputs = module._call_impl(*args, **kwargs)
            else:
                outputs = original(module, *args, **kwargs)
        finally:
            step.inside = 0
            if step.stage != CALLED:  # something that the template did not foresee was within
                current = threads.current
                current.depth, current.forward = OUTSIDE, None
        try:
            if step.stage == CALLED:
                step.ended = clock()
                template, shape = step.template, outputs.shape if type(outputs) is tensor else shape_of(outputs)
                step.output_shape = template.output_shape if shape == template.output_shape else shape
                step.stage = RETURNED
                if not template.trains:
                    guarded.fast_path.end_eval_step()
            else:
                guarded.tracker.end_interrupted_forward(outputs)
        except Exception as error:  # noqa: BLE001
            guarded.fail("a forward", error)
        return outputs

    return outer_call


def _make_template_check(
    guarded: GuardedTracker, torch: Any
) -> Callable[[CurrentStep, RootModule, Any, Any, Any], bool]:
    # What is called here is in cells, not in attributes: those of an instance cost more to call.
    engine, tracing, modes, transforms = torch_state_queries(torch)
    grad_enabled, tensor, clock = torch.is_grad_enabled, torch.Tensor, time.perf_counter

    def begins_on_template(step: CurrentStep, root: RootModule, module: Any, args: Any, kwargs: Any) -> bool:
        """Whether this call of a root by the owner's thread follows a template. If so, it has begun."""
        if engine() != -1 or tracing() is not None or modes() or transforms() is not None:
            return False
        try:
            shape = args[0].shape if args and type(args[0]) is tensor else _input_shape(args, kwargs)
        except RuntimeError:  # nested tensors have none
            return False
        template = root.templates[grad_enabled()].get(shape)
        if template is None:
            return False
        call = template.call
        if not (module.training is call.training if template.is_unwrapped else _wrapper_fits(guarded, template)):
            return False
        step.template, step.stage, step.inside = template, CALLED, step.thread
        fast_path = guarded.fast_path
        if fast_path.channel.is_idle:
            fast_path.flush()
            fast_path.announce_step()
        step.began = clock()
        return True

    return begins_on_template


def _input_shape(args: Any, kwargs: Any) -> Shape | None:
    if args and type(args[0]).__name__ == "PackedSequence":  # its rows are not in the shape of its tensor
        return None
    return shape_of_arguments(args, kwargs)


def _wrapper_fits(guarded: GuardedTracker, template: StepTemplate) -> bool:
    """Whether a wrapped model is in the mode of the template, and reduces gradients as it did. If so, the reduction is
    counted."""
    call = template.call
    model, reductions = call.root.model.ref(), call.reductions
    if model is None or model.training is not call.training:
        return False
    if reductions is not None:
        wrapper = reductions.wrapper()
        if wrapper is None or not wrapper.require_backward_grad_sync:
            return False
        reductions.count += 1
        if reductions.is_measured:
            guarded.fast_path.next_sampled = 0
    return True


def _make_tracked_call(guarded: GuardedTracker, original: Any) -> Callable[[Any, Any, Any], Any]:
    """Calls a module while the tracker watches."""
    threads = guarded.threads

    def tracked_call(module: Any, args: Any, kwargs: Any) -> Any:
        current = threads.current
        begin = guarded.tracker.begin_forward
        forward = None if current.depth == INSIDE else guarded.call_guarded("a forward", begin, module, args, kwargs)
        if forward is None:
            return original(module, *args, **kwargs)
        around = current.depth, current.root, current.forward
        root = forward.call.root
        current.depth, current.root = (SEARCHING, root) if root.parts else (INSIDE, None)
        current.forward = forward
        count = guarded.tracker.reporter.flop_count
        try:
            if count is None or not forward.call.with_grad:
                outputs = original(module, *args, **kwargs)
            else:
                with count.watch(forward.call.slots[0], module):
                    outputs = original(module, *args, **kwargs)
        finally:
            current.depth, current.root, current.forward = around
        guarded.call_guarded("a forward", guarded.tracker.end_forward, forward, outputs)
        return outputs

    return tracked_call


def reassure_dynamo(guarded: GuardedTracker, home: Any) -> None:
    """torch.compile goes straight to `forward` where `__call__` was not replaced. Let it take ours for torch's own."""
    if guarded.module_calls is None:
        return
    for name in DYNAMO_MODULES:
        module: Any = sys.modules.get(name)
        if module is not None and getattr(module, "unpatched_nn_module_call", None) is guarded.module_calls[0]:
            module.unpatched_nn_module_call = guarded.module_calls[1]


def hide_from_dynamo(guarded: GuardedTracker, home: Any) -> None:
    """Let torch.compile begin in what our wrapper calls, not in the wrapper."""
    if guarded.module_calls is not None and hasattr(home, "skip_code"):
        home.skip_code(guarded.module_calls[1].__code__)
