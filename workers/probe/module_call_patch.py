"""The wrapper around calls of modules, which every part of every model passes, and what torch.compile sees of it."""

import functools
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from workers.probe.fast_path import AWAY, CALLED, LOADED, RETURNED
from workers.probe.module_registry import Model, Root
from workers.probe.shapes import shape_of, shape_of_arguments
from workers.probe.tracker import INSIDE, OUTSIDE, SEARCHING

if TYPE_CHECKING:
    from jobs.protocol.records import Shape
    from workers.probe.fast_path import Known, Usual
    from workers.probe.probe import Probe

#: What torch's Module.__call__ consists of, where it does nothing but pass a call on.
PASSES_ON = ("_compiled_call_impl", "_call_impl")
_gone: Any = lambda: None  # noqa: E731
#: Stands for a module that was not called yet: maybe its calls are forwards.
UNKNOWN = Root(_gone, Model(_gone, "", False), "", counts=True)


def watch_modules(probe: "Probe", home: Any) -> None:
    """Put our wrapper in the place of `Module.__call__`."""
    import torch

    original = home.Module.__call__
    is_compiling = torch.compiler.is_dynamo_compiling
    here, thread = probe.here, threading.get_ident
    only_passes_on = original.__code__.co_names == PASSES_ON
    outer_call = _outer_call(probe, original)

    @functools.wraps(original)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        if is_compiling():
            return original(self, *args, **kwargs)
        usual = probe.usual
        if usual.inside != thread() and probe.on:
            root = usual.roots.get(id(self), UNKNOWN)
            # Where nothing is noted, `here` tells; to look up what a thread has costs more than all else that is asked.
            if root.counts and (usual.stage != AWAY or here.now.depth != INSIDE):
                return outer_call(usual, root, self, args, kwargs)
        # Every part of a model comes here. What torch's own would do is done here, at the cost of no call.
        if only_passes_on and self._compiled_call_impl is None:
            return self._call_impl(*args, **kwargs)
        return original(self, *args, **kwargs)

    home.Module.__call__ = __call__
    probe.module_calls = original, __call__
    for name in ("torch._dynamo.utils", "torch._dynamo.variables.nn_module"):
        if name in sys.modules:
            reassure_dynamo(probe, sys.modules[name])
    if "torch._dynamo.eval_frame" in sys.modules:
        hide_from_dynamo(probe, sys.modules["torch._dynamo.eval_frame"])


def states(torch: Any) -> tuple[Callable[[], Any], ...]:
    """The autograd engine's (-1 outside of it), what traces, how many modes there are, and transforms of torch.func."""
    private = torch._C
    return (
        private._current_graph_task_id,
        private._get_tracing_state,
        private._len_torch_dispatch_stack,
        private._functorch.peek_interpreter_stack,
    )


def _outer_call(probe: "Probe", original: Any) -> "Callable[[Usual, Root, Any, Any, Any], Any]":
    """What calls a module that may be called from outside of all others, and whose calls are forwards then."""
    import torch

    here, thread, tensor, clock = probe.here, threading.get_ident, torch.Tensor, time.perf_counter
    only_passes_on = original.__code__.co_names == PASSES_ON
    begins, seen_call = _begins(torch), _seen_call(probe, original)

    def outer_call(usual: "Usual", root: "Root", module: Any, args: Any, kwargs: Any) -> Any:
        try:
            is_usual = usual.stage <= LOADED and usual.thread == thread() and begins(usual, root, module, args, kwargs)
        except Exception as error:  # noqa: BLE001
            probe.failed("a forward", error)
            is_usual = False
        if not is_usual:
            return seen_call(module, args, kwargs)
        try:
            if only_passes_on and module._compiled_call_impl is None:
                outputs = module._call_impl(*args, **kwargs)
            else:
                outputs = original(module, *args, **kwargs)
        finally:
            usual.inside = 0
            if usual.stage != CALLED:  # something unusual was within
                now = here.now
                now.depth, now.forward = OUTSIDE, None
        try:
            if usual.stage == CALLED:
                usual.ended = clock()
                known, returned = usual.known, outputs.shape if type(outputs) is tensor else shape_of(outputs)
                usual.returned = known.returned if returned == known.returned else returned
                usual.stage = RETURNED
                if not known.trains:
                    usual.evaluated()
            else:
                probe.watch.end_of_left(outputs)
        except Exception as error:  # noqa: BLE001
            probe.failed("a forward", error)
        return outputs

    return outer_call


def _begins(torch: Any) -> "Callable[[Usual, Root, Any, Any, Any], bool]":
    # What is called here is in cells, not in attributes: those of an instance cost more to call.
    engine, tracing, modes, transforms = states(torch)
    grad_enabled, tensor, clock = torch.is_grad_enabled, torch.Tensor, time.perf_counter

    def begins(usual: "Usual", root: "Root", module: Any, args: Any, kwargs: Any) -> bool:
        """Whether this call of a root by the owner's thread is a usual forward. If so, it has begun."""
        if engine() != -1 or tracing() is not None or modes() or transforms() is not None:
            return False
        try:
            given = args[0].shape if args and type(args[0]) is tensor else _given(args, kwargs)
        except RuntimeError:  # nested tensors have none
            return False
        known = root.known[grad_enabled()].get(given)
        if known is None:
            return False
        if not (module.training is known.training if known.is_bare else _fits(usual, known)):
            return False
        usual.known, usual.stage, usual.inside = known, CALLED, usual.thread
        if usual.channel.idle:
            usual.tell()
            usual.announce()
        usual.began = clock()
        return True

    return begins


def _given(args: Any, kwargs: Any) -> "Shape | None":
    if args and type(args[0]).__name__ == "PackedSequence":  # its rows are not in the shape of its tensor
        return None
    return shape_of_arguments(args, kwargs)


def _fits(usual: "Usual", known: "Known") -> bool:
    """Whether a wrapped model is in the mode that is known, and reduces gradients as it did. If so, that is counted."""
    model, reductions = known.root.model.ref(), known.reductions
    if model is None or model.training is not known.training:
        return False
    if reductions is not None:
        wrapper = reductions.wrapper()
        if wrapper is None or not wrapper.require_backward_grad_sync:
            return False
        reductions.count += 1
        if reductions.is_measured:
            usual.look_at = 0
    return True


def _seen_call(probe: "Probe", original: Any) -> Callable[[Any, Any, Any], Any]:
    """What calls a module while the whole bookkeeping watches."""
    here = probe.here

    def seen_call(module: Any, args: Any, kwargs: Any) -> Any:
        now = here.now
        forward = None if now.depth == INSIDE else probe.begin(module, args, kwargs)
        if forward is None:
            return original(module, *args, **kwargs)
        around = now.depth, now.root, now.forward
        now.depth, now.root = (SEARCHING, forward.root) if forward.root.parts else (INSIDE, None)
        now.forward = forward
        try:
            outputs = original(module, *args, **kwargs)
        finally:
            now.depth, now.root, now.forward = around
        probe.end(forward, outputs)
        return outputs

    return seen_call


def reassure_dynamo(probe: "Probe", home: Any) -> None:
    """torch.compile goes straight to `forward` where nobody has replaced `__call__`. To it, nobody has."""
    if probe.module_calls is None:
        return
    for name in ("torch._dynamo.utils", "torch._dynamo.variables.nn_module"):
        module: Any = sys.modules.get(name)
        if module is not None and getattr(module, "unpatched_nn_module_call", None) is probe.module_calls[0]:
            module.unpatched_nn_module_call = probe.module_calls[1]


def hide_from_dynamo(probe: "Probe", home: Any) -> None:
    """torch.compile shall begin in what our wrapper calls, not in the wrapper."""
    if probe.module_calls is not None and hasattr(home, "skip_code"):
        home.skip_code(probe.module_calls[1].__code__)
