"""The wrappers around DataParallel, its primitives, and the making of DistributedDataParallel."""

import functools
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, cast

from workers.probe.shapes import shape_of_arguments
from workers.probe.step_records import DDP_EVERY
from workers.probe.tracker import GuardedTracker
from workers.probe.types import INSIDE, OUTSIDE, Forward


def patch_data_parallel(guarded: GuardedTracker, home: Any) -> None:
    """Wrap the primitives wherever torch.nn.parallel has them under their names, also those of a rehearsal."""
    wrap: dict[str, Callable[[GuardedTracker, Any], Any]] = {
        "replicate": _wrap_replicate,
        "scatter": functools.partial(_wrap_scatter, 1),
        "scatter_kwargs": functools.partial(_wrap_scatter, 2),
        "gather": _timed_primitive("gather"),
        "parallel_apply": _wrap_parallel_apply,
    }
    wrapped: dict[Any, Any] = {}
    names = ("", ".data_parallel", ".scatter_gather", ".replicate", ".parallel_apply")
    for module in [sys.modules["torch.nn.parallel" + name] for name in names]:
        for name, make in wrap.items():
            original = module.__dict__.get(name)
            if not callable(original) or (name == "scatter" and module.__name__.endswith("scatter_gather")):
                continue  # that one is called by scatter_kwargs for every argument
            if original not in wrapped and original not in wrapped.values():
                wrapped[original] = make(guarded, original)
            setattr(module, name, wrapped.get(original, original))
    for kind in (home.DataParallel, home.DistributedDataParallel):
        _patch_wrapper_class(guarded, kind)


def _patch_wrapper_class(guarded: GuardedTracker, kind: Any) -> None:
    def seen(wrapper: Any) -> None:
        devices = getattr(wrapper, "device_ids", None) or ()
        guarded.tracker.report_wrapper(kind.__name__, wrapper.module, devices)
        if kind.__name__ == "DistributedDataParallel":
            guarded.torch.set_ddp_sampling(wrapper, DDP_EVERY)
            guarded.tracker.report_group()

    guarded.after_init(kind, seen)


def _timed_primitive(name: str) -> Callable[[GuardedTracker, Any], Any]:
    def make(guarded: GuardedTracker, original: Any) -> Any:
        threads = guarded.threads

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            now = threads.current
            if not guarded.on or now.in_primitive:
                return original(*args, **kwargs)
            begun = guarded.call_guarded(name, guarded.tracker.data_parallel.begin_primitive)
            now.in_primitive = True
            try:
                result = original(*args, **kwargs)
            finally:
                now.in_primitive = False
            if begun is not None:
                guarded.call_guarded(name, guarded.tracker.data_parallel.end_primitive, name, begun)
            return result

        return call

    return make


def _wrap_scatter(position: int, guarded: GuardedTracker, original: Any) -> Any:
    """`position` is that of the devices among the arguments; the dimension follows."""
    timed = _timed_primitive("scatter")(guarded, original)

    def seen(_: Any, args: Any, kwargs: Any) -> None:
        given = dict(zip(("target_gpus", "dim"), args[position:], strict=False)) | kwargs
        guarded.tracker.data_parallel.remember_scatter(given.get("target_gpus", ()), given.get("dim", 0))

    return guarded.then_call("scatter", timed, seen)


def _wrap_replicate(guarded: GuardedTracker, original: Any) -> Any:
    timed = _timed_primitive("replicate")(guarded, original)

    def seen(replicas: Any, args: Any, kwargs: Any) -> None:
        guarded.tracker.data_parallel.remember_replicas(args[0] if args else kwargs["network"], replicas)

    return guarded.then_call("replicate", timed, seen)


def _wrap_parallel_apply(guarded: GuardedTracker, original: Any) -> Any:
    timed, threads = _timed_primitive("parallel_apply")(guarded, original), guarded.threads

    @functools.wraps(original)
    def parallel_apply(
        modules: Sequence[Any], inputs: Sequence[Any], kwargs_tup: Any = None, devices: Any = None
    ) -> list[Any]:
        name, tracker = "parallel_apply", guarded.tracker.data_parallel
        forward = guarded.call_guarded(name, tracker.begin_apply, modules, devices) if guarded.on else None
        if forward is None and threads.current.depth == OUTSIDE:
            return cast(list[Any], original(modules, inputs, kwargs_tup, devices))
        slots = forward.call.slots if forward is not None else (0,) * len(modules)
        shards = zip(slots, modules, strict=False)
        replicas = [WatchedReplica(guarded, forward, slot, module) for slot, module in shards]
        outputs = timed(replicas, inputs, kwargs_tup, devices)
        if forward is not None:
            guarded.call_guarded(name, tracker.end_apply, forward, modules, inputs, kwargs_tup, outputs)
        return cast(list[Any], outputs)

    return parallel_apply


class WatchedReplica:
    """Calls a replica: what that calls in its thread is within the forward. `forward` is None where the replica is no
    shard that counts. All attributes are those of the replica."""

    def __init__(self, guarded: GuardedTracker, forward: Forward | None, slot: int, module: Any) -> None:
        self._guarded, self._forward, self._slot, self._module = guarded, forward, slot, module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        guarded, now = self._guarded, self._guarded.threads.current
        begun = None
        if self._forward is not None and guarded.on:
            begun = guarded.call_guarded("parallel_apply", self._begin, args, kwargs)
        around = now.depth, now.root, now.forward
        now.depth, now.root, now.forward = INSIDE, None, None
        count = guarded.tracker.reporter.flop_count
        is_counted = count is not None and self._forward is not None and self._forward.call.with_grad
        counting = count.watch(self._slot) if count is not None and is_counted else nullcontext()
        try:
            with guarded.output_of(self._slot), counting:  # what it prints goes to the log of its device
                outputs = self._module(*args, **kwargs)
        finally:
            now.depth, now.root, now.forward = around
        if begun is not None:
            guarded.call_guarded("parallel_apply", self._end, begun, outputs)
        return outputs

    def _begin(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        return shape_of_arguments(args, kwargs), self._guarded.tracker.devices.mark_now(self._slot)

    def _end(self, begun: tuple[Any, Any], outputs: Any) -> None:
        if self._forward is not None:
            self._guarded.tracker.data_parallel.end_shard(self._forward, self._slot, begun[0], outputs, begun[1])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)
