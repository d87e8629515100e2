"""The wrappers around functions of torch: which are replaced, and how little each wrapper does.

Every wrapper calls what it replaces in any case and exactly once, and calls the tracker through `GuardedTracker`: an
error there turns the probe off (`guarded.on`) and never reaches the program. The wrappers that a step on the fast path
goes through ask for its stage alone, which is OFF where the probe is off.
Nothing is put on instances of modules, optimizers or tensors, so copies and pickles stay as they were.

Code that torch.compile traces must go straight through: `is_compiling` is constant for it.
"""

import contextlib
import functools
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, cast

from workers.probe.module_call_patch import hide_from_dynamo, patch_module_calls, reassure_dynamo, torch_state_queries
from workers.probe.shapes import shape_of_arguments
from workers.probe.step_records import DDP_EVERY, DdpTimes
from workers.probe.tracker import GuardedTracker, Tracker
from workers.probe.types import BACKWARD_DONE, IN_BACKWARD, INSIDE, LOADED, OUTSIDE, READY, RETURNED, STEPPING, Forward

#: Reductions of fewer numbers are about a loss or a count, not about gradients or parameters.
MIN_REDUCED = 9
REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce_scatter_tensor", "all_reduce_coalesced", "reduce")


def patches_by_module(guarded: GuardedTracker) -> dict[str, Callable[[ModuleType], None]]:
    """What to do with each module of torch once it has been imported."""
    table: dict[str, Callable[[GuardedTracker, Any], None]] = {
        "torch": fill_torch_queries,
        "torch.nn.modules.module": patch_module_calls,
        "torch._dynamo.utils": reassure_dynamo,
        "torch._dynamo.eval_frame": hide_from_dynamo,
        "torch.autograd": patch_backward,
        "torch.optim.optimizer": patch_optimizers,
        "torch.amp.grad_scaler": patch_grad_scaler,
        "torch.utils.data.dataloader": patch_dataloaders,
        "torch.nn.parallel": patch_data_parallel,
        "torch.distributed.distributed_c10d": patch_process_groups,
        "torch.distributed.fsdp": patch_fsdp,
        "torch.distributed.tensor.parallel": patch_tensor_parallel,
    }
    return {name: functools.partial(guarded.call_guarded, name, patch, guarded) for name, patch in table.items()}


def fill_torch_queries(guarded: GuardedTracker, torch: Any) -> None:
    """Let the tracker ask torch itself."""
    queries = guarded.torch
    engine, tracing, modes, transforms = torch_state_queries(torch)
    fake_mode = torch._C._TorchDispatchModeKey.FAKE

    def is_hidden() -> bool:
        if engine() != -1 or tracing() is not None:
            return True
        return modes() > 0 and torch._C._get_dispatch_mode(fake_mode) is not None

    queries.is_hidden, queries.is_transformed = is_hidden, lambda: transforms() is not None
    queries.grad_enabled = torch.is_grad_enabled
    queries.ddp_times, queries.set_ddp_sampling = _read_ddp_times, _set_ddp_sampling
    queries.peak_memory = torch.cuda.max_memory_allocated
    queries.device_properties = lambda index: _device_properties(torch, index)
    queries.is_cuda_ready = lambda: torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing()
    queries.is_capturing = torch.cuda.is_current_stream_capturing
    dist = torch.distributed
    if dist.is_available():
        queries.process_group = lambda: _process_group(dist)


def _device_properties(torch: Any, index: int) -> tuple[str, int]:
    found = torch.cuda.get_device_properties(index)
    return found.name, found.total_memory


def _process_group(dist: Any) -> tuple[int, int, str] | None:
    return (dist.get_rank(), dist.get_world_size(), dist.get_backend()) if dist.is_initialized() else None


def _read_ddp_times(wrapper: Any, iteration: int) -> DdpTimes | None:
    """What DistributedDataParallel measured of its latest iteration; None when it cannot say. All of this is private to
    torch. A slow rank makes all ranks wait in all-reduce: the wrapper alone can tell computing from waiting."""
    try:
        wrapper.logger.set_runtime_stats_and_log()
        data = wrapper._get_ddp_logging_data()
        if data["iteration"] != iteration:
            return None
        return DdpTimes(data["backward_compute_time"] / 1e6, data["backward_comm_time"] / 1e6)
    except (AttributeError, KeyError, RuntimeError):
        return None


def _set_ddp_sampling(wrapper: Any, every: int) -> None:
    """Let DistributedDataParallel measure one of so many iterations."""
    with contextlib.suppress(AttributeError, RuntimeError):
        wrapper._set_ddp_runtime_logging_sample_rate(every)


# -- backward and optimizers -----------------------------------------------------------------------


def patch_backward(guarded: GuardedTracker, home: Any) -> None:
    import torch

    original, is_compiling, threads = home.backward, torch.compiler.is_dynamo_compiling, guarded.threads
    engine, clock = torch._C._current_graph_task_id, time.perf_counter

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(*args, **kwargs)
        step = guarded.step
        if step.stage != RETURNED or not step.thread or engine() != -1:
            return tracked_backward(args, kwargs)
        step.stage, step.backward_began = IN_BACKWARD, clock()
        result = original(*args, **kwargs)
        if step.stage == IN_BACKWARD:
            step.backward_ended, step.stage = clock(), BACKWARD_DONE
        elif guarded.on:
            guarded.call_guarded("backward", guarded.tracker.end_backward, step.backward_began)
        return result

    def tracked_backward(args: Any, kwargs: Any) -> Any:
        now = threads.current
        if not guarded.on or now.in_backward or guarded.torch.is_hidden():
            return original(*args, **kwargs)
        mark = guarded.call_guarded("backward", guarded.tracker.begin_backward)
        now.in_backward = True  # checkpointing calls backward within backward
        try:
            result = original(*args, **kwargs)
        finally:
            now.in_backward = False
        if mark is not None:
            guarded.call_guarded("backward", guarded.tracker.end_backward, mark)
        return result

    home.backward = backward


def patch_optimizers(guarded: GuardedTracker, home: Any) -> None:
    import torch

    is_compiling, clock = torch.compiler.is_dynamo_compiling, time.perf_counter

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        if is_compiling():
            return
        step = guarded.step
        if step.stage == BACKWARD_DONE and step.thread and id(optimizer) in guarded.tracker.models.optimizers_by_id:
            step.stage, step.optimizer = STEPPING, optimizer
        elif guarded.on:
            guarded.call_guarded("optimizer", guarded.tracker.begin_optimizer, optimizer)

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        if is_compiling():
            return
        step = guarded.step
        try:
            if step.stage == STEPPING and step.optimizer is optimizer:
                guarded.fast_path.end_train_step(clock(), optimizer)
            elif guarded.on:
                guarded.tracker.end_optimizer(optimizer)
        except Exception as error:  # noqa: BLE001
            guarded.fail("optimizer", error)

    home.register_optimizer_step_pre_hook(before)
    home.register_optimizer_step_post_hook(after)
    _after_init(guarded, home.Optimizer, lambda optimizer: guarded.tracker.models.add_optimizer(optimizer))


def patch_grad_scaler(guarded: GuardedTracker, home: Any) -> None:
    original = home.GradScaler.step

    @functools.wraps(original)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = guarded.fast_path.optimizer_steps
        result = original(self, *args, **kwargs)
        if guarded.on and guarded.fast_path.optimizer_steps == before and not guarded.threads.current.optimizers:
            guarded.call_guarded("GradScaler", guarded.tracker.skip_step)
        return result

    home.GradScaler.step = step


def _after_init(guarded: GuardedTracker, kind: Any, seen: Callable[[Any], None]) -> None:
    """Call `seen` with every new instance of a class of torch."""
    original = kind.__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, *args, **kwargs)
        if guarded.on:
            guarded.call_guarded(kind.__name__, seen, self)

    kind.__init__ = __init__


# -- loaders ---------------------------------------------------------------------------------------


def patch_dataloaders(guarded: GuardedTracker, home: Any) -> None:
    base = home._BaseDataLoaderIter
    make, reset, advance = base.__init__, base._reset, base.__next__
    clock, thread = time.perf_counter, threading.get_ident

    @functools.wraps(make)
    def __init__(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        make(self, loader, *args, **kwargs)
        if guarded.on:
            guarded.call_guarded("DataLoader", begin, self, loader, False)

    @functools.wraps(reset)
    def _reset(self: Any, loader: Any, first_iter: bool = False) -> None:
        reset(self, loader, first_iter)
        if guarded.on:
            guarded.call_guarded("DataLoader", begin, self, loader, first_iter)

    def begin(iterator: Any, loader: Any, first: bool) -> None:
        if not guarded.tracker.loaders.begin_pass(iterator, loader, first):
            iterator._next_index = functools.partial(draw, weakref.ref(iterator), type(iterator)._next_index)

    def draw(iterator: Any, next_index: Any) -> Any:
        drawing = iterator()
        indices = next_index(drawing)
        if guarded.on:
            guarded.call_guarded("DataLoader", guarded.tracker.loaders.add_drawn, drawing, indices)
        return indices

    @functools.wraps(advance)
    def __next__(self: Any) -> Any:  # noqa: N807
        asked = clock()
        try:
            batch = advance(self)
        except StopIteration:
            if guarded.on:
                guarded.call_guarded("DataLoader", guarded.tracker.loaders.end_pass, self)
            raise
        arrived = clock()
        step = guarded.step
        if step.stage == READY and step.thread == thread():
            current = self._watched_pass
            if current is not None and current.batches_drawn is not None:
                step.stage, step.loader_pass, step.asked, step.arrived = LOADED, current, asked, arrived
                return batch
        try:
            if guarded.on:
                guarded.tracker.add_batch(self, batch, asked, arrived)
        except Exception as error:  # noqa: BLE001
            guarded.fail("DataLoader", error)
        return batch

    base.__init__, base._reset, base.__next__ = __init__, _reset, __next__
    base._watched_pass = None  # of an iterator, which cannot be copied or pickled


# -- DataParallel and its primitives ----------------------------------------------------------------


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
            _set_ddp_sampling(wrapper, DDP_EVERY)
            guarded.tracker.report_group()

    _after_init(guarded, kind, seen)


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

    @functools.wraps(original)
    def scatter(*args: Any, **kwargs: Any) -> Any:
        shards = timed(*args, **kwargs)
        if guarded.on:
            given = dict(zip(("target_gpus", "dim"), args[position:], strict=False)) | kwargs
            guarded.call_guarded(
                "scatter",
                guarded.tracker.data_parallel.remember_scatter,
                given.get("target_gpus", ()),
                given.get("dim", 0),
            )
        return shards

    return scatter


def _wrap_replicate(guarded: GuardedTracker, original: Any) -> Any:
    timed = _timed_primitive("replicate")(guarded, original)

    @functools.wraps(original)
    def replicate(network: Any, *args: Any, **kwargs: Any) -> Any:
        replicas = timed(network, *args, **kwargs)
        if guarded.on:
            guarded.call_guarded("replicate", guarded.tracker.data_parallel.remember_replicas, network, replicas)
        return replicas

    return replicate


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
        try:
            outputs = guarded.call_replica(self._slot, self._module, args, kwargs)
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


# -- process groups ----------------------------------------------------------------------------------


def patch_process_groups(guarded: GuardedTracker, home: Any) -> None:
    """Believe the process group, not the environment. Reductions are counted as the program calls them."""
    names = ("torch.distributed", "torch.distributed.device_mesh")
    places = [home, *(sys.modules[name] for name in names if name in sys.modules)]
    _replace_everywhere(places, "init_process_group", lambda original: _wrap_init_process_group(guarded, original))
    for name in REDUCTIONS:
        _replace_everywhere(places, name, lambda original: _wrap_reduction(guarded, original))
    guarded.tracker.report_group()


def _replace_everywhere(places: list[Any], name: str, make: Callable[[Any], Any]) -> None:
    original = getattr(places[0], name, None)
    if original is None:
        return
    wrapped = make(original)
    for place in places:
        if getattr(place, name, None) is original:
            setattr(place, name, wrapped)


def _wrap_init_process_group(guarded: GuardedTracker, original: Any) -> Any:
    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if guarded.on:
            guarded.call_guarded("init_process_group", guarded.tracker.report_group)
        return result

    return init_process_group


def _wrap_reduction(guarded: GuardedTracker, original: Any) -> Any:
    import torch

    is_compiling = torch.compiler.is_compiling

    @functools.wraps(original)
    def reduction(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_compiling() and guarded.on:
            guarded.call_guarded("reductions", _count_reduction, guarded.tracker, tensor)
        return original(tensor, *args, **kwargs)

    return reduction


def _count_reduction(tracker: Tracker, tensor: Any) -> None:
    if not hasattr(tensor, "numel") or tensor.numel() >= MIN_REDUCED:
        tracker.reporter.reductions += 1


def patch_fsdp(guarded: GuardedTracker, home: Any) -> None:
    _after_init(guarded, home.FullyShardedDataParallel, lambda wrapper: _report_fsdp(guarded, wrapper))
    original = home.fully_shard

    @functools.wraps(original)
    def fully_shard(module: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(module, *args, **kwargs)
        if guarded.on:
            guarded.call_guarded("fully_shard", guarded.tracker.report_wrapper, "fully_shard", result, ())
        return result

    for name in ("torch.distributed.fsdp", "torch.distributed._composable.fsdp"):
        place: Any = sys.modules.get(name)
        if getattr(place, "fully_shard", None) is original:
            place.fully_shard = fully_shard


def patch_tensor_parallel(guarded: GuardedTracker, home: Any) -> None:
    original = home.parallelize_module  # it calls itself by another name

    @functools.wraps(original)
    def parallelize_module(module: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(module, *args, **kwargs)
        if guarded.on:
            guarded.call_guarded("parallelize_module", guarded.tracker.report_wrapper, "parallelize_module", result, ())
        return result

    home.parallelize_module = parallelize_module


def _report_fsdp(guarded: GuardedTracker, wrapper: Any) -> None:
    guarded.tracker.report_wrapper("FullyShardedDataParallel", wrapper.module, ())
    guarded.tracker.report_group()
