"""The wrappers around functions of torch: what is replaced, and how little each does.

Every wrapper calls what it replaces in any case and exactly once, and keeps what the probe itself does within
`probe.guarded`'s reach: an error there turns the probe off (`probe.on`) and is never the program's. What a usual step
passes asks for its stage alone, which is AWAY where the probe is off.
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
from typing import TYPE_CHECKING, Any, cast

from workers.probe.fast_path import BACKWARD, LEARNED, LOADED, READY, RETURNED, STEPPING
from workers.probe.module_call_patch import hide_from_dynamo, reassure_dynamo, states, watch_modules
from workers.probe.shapes import shape_of_arguments
from workers.probe.step_records import DDP_EVERY, DdpTimes
from workers.probe.tracker import INSIDE, OUTSIDE

if TYPE_CHECKING:
    from workers.probe.probe import Probe
    from workers.probe.step_builder import Forward
    from workers.probe.tracker import Watch

#: Reductions of fewer numbers are about a loss or a count, not about gradients or parameters.
MIN_REDUCED = 9
REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce_scatter_tensor", "all_reduce_coalesced", "reduce")


def patches(probe: "Probe") -> dict[str, Callable[[ModuleType], None]]:
    """What to do with each module of torch once it has been imported."""
    table: dict[str, Callable[[Probe, Any], None]] = {
        "torch": ask_torch,
        "torch.nn.modules.module": watch_modules,
        "torch._dynamo.utils": reassure_dynamo,
        "torch._dynamo.eval_frame": hide_from_dynamo,
        "torch.autograd": watch_backward,
        "torch.optim.optimizer": watch_optimizers,
        "torch.amp.grad_scaler": watch_scaler,
        "torch.utils.data.dataloader": watch_loaders,
        "torch.nn.parallel": watch_parallel,
        "torch.distributed.distributed_c10d": watch_groups,
        "torch.distributed.fsdp": watch_fsdp,
        "torch.distributed.tensor.parallel": watch_tensor_parallel,
    }
    return {name: functools.partial(probe.guarded, name, patch, probe) for name, patch in table.items()}


def ask_torch(probe: "Probe", torch: Any) -> None:
    """Hand the watch the questions that it has for torch."""
    asked = probe.torch
    engine, tracing, modes, transforms = states(torch)
    fake_mode = torch._C._TorchDispatchModeKey.FAKE

    def elsewhere() -> bool:
        if engine() != -1 or tracing() is not None:
            return True
        return modes() > 0 and torch._C._get_dispatch_mode(fake_mode) is not None

    asked.elsewhere, asked.transformed = elsewhere, lambda: transforms() is not None
    asked.tensor = torch.Tensor
    asked.grad_enabled = torch.is_grad_enabled
    asked.ddp_times, asked.ddp_every = _ddp_times, _ddp_every
    asked.memory = torch.cuda.max_memory_allocated
    asked.properties = lambda index: _properties(torch, index)
    asked.cuda_ready = lambda: torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing()
    asked.capturing = torch.cuda.is_current_stream_capturing
    dist = torch.distributed
    if dist.is_available():
        asked.group = lambda: _group(dist)


def _properties(torch: Any, index: int) -> tuple[str, int]:
    found = torch.cuda.get_device_properties(index)
    return found.name, found.total_memory


def _group(dist: Any) -> tuple[int, int, str] | None:
    return (dist.get_rank(), dist.get_world_size(), dist.get_backend()) if dist.is_initialized() else None


def _ddp_times(wrapper: Any, iteration: int) -> DdpTimes | None:
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


def _ddp_every(wrapper: Any, every: int) -> None:
    """Let DistributedDataParallel measure one of so many iterations."""
    with contextlib.suppress(AttributeError, RuntimeError):
        wrapper._set_ddp_runtime_logging_sample_rate(every)


# -- backward and optimizers -----------------------------------------------------------------------


def watch_backward(probe: "Probe", home: Any) -> None:
    import torch

    original, is_compiling, here = home.backward, torch.compiler.is_dynamo_compiling, probe.here
    engine, clock = torch._C._current_graph_task_id, time.perf_counter

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(*args, **kwargs)
        usual = probe.usual
        if usual.stage != RETURNED or not usual.thread or engine() != -1:
            return seen_backward(args, kwargs)
        usual.stage, usual.backward_began = BACKWARD, clock()
        result = original(*args, **kwargs)
        if usual.stage == BACKWARD:
            usual.backward_ended, usual.stage = clock(), LEARNED
        elif probe.on:
            probe.guarded("backward", probe.watch.backward_ended, usual.backward_began)
        return result

    def seen_backward(args: Any, kwargs: Any) -> Any:
        now = here.now
        if not probe.on or now.in_backward or probe.torch.elsewhere():
            return original(*args, **kwargs)
        mark = probe.guarded("backward", probe.watch.backward_begins)
        now.in_backward = True  # checkpointing calls backward within backward
        try:
            result = original(*args, **kwargs)
        finally:
            now.in_backward = False
        if mark is not None:
            probe.guarded("backward", probe.watch.backward_ended, mark)
        return result

    home.backward = backward


def watch_optimizers(probe: "Probe", home: Any) -> None:
    import torch

    is_compiling, clock = torch.compiler.is_dynamo_compiling, time.perf_counter

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        if is_compiling():
            return
        usual = probe.usual
        if usual.stage == LEARNED and usual.thread and id(optimizer) in usual.optimizers:
            usual.stage, usual.optimizer = STEPPING, optimizer
        elif probe.on:
            probe.guarded("optimizer", probe.watch.optimizer_begins, optimizer)

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        if is_compiling():
            return
        usual = probe.usual
        try:
            if usual.stage == STEPPING and usual.optimizer is optimizer:
                usual.learned(clock(), optimizer)
            elif probe.on:
                probe.watch.optimizer_ended(optimizer)
        except Exception as error:  # noqa: BLE001
            probe.failed("optimizer", error)

    home.register_optimizer_step_pre_hook(before)
    home.register_optimizer_step_post_hook(after)
    _after_init(probe, home.Optimizer, lambda optimizer: probe.watch.models.optimizer_made(optimizer))


def watch_scaler(probe: "Probe", home: Any) -> None:
    original = home.GradScaler.step

    @functools.wraps(original)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = probe.watch.usual.steps
        result = original(self, *args, **kwargs)
        if probe.on and probe.watch.usual.steps == before and not probe.here.now.optimizers:
            probe.guarded("GradScaler", probe.watch.skipped)
        return result

    home.GradScaler.step = step


def _after_init(probe: "Probe", kind: Any, seen: Callable[[Any], None]) -> None:
    """Call `seen` with every new instance of a class of torch."""
    original = kind.__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, *args, **kwargs)
        if probe.on:
            probe.guarded(kind.__name__, seen, self)

    kind.__init__ = __init__


# -- loaders ---------------------------------------------------------------------------------------


def watch_loaders(probe: "Probe", home: Any) -> None:
    base = home._BaseDataLoaderIter
    make, reset, advance = base.__init__, base._reset, base.__next__
    clock, thread = time.perf_counter, threading.get_ident

    @functools.wraps(make)
    def __init__(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        make(self, loader, *args, **kwargs)
        if probe.on:
            probe.guarded("DataLoader", begin, self, loader, False)

    @functools.wraps(reset)
    def _reset(self: Any, loader: Any, first_iter: bool = False) -> None:
        reset(self, loader, first_iter)
        if probe.on:
            probe.guarded("DataLoader", begin, self, loader, first_iter)

    def begin(iterator: Any, loader: Any, first: bool) -> None:
        if not probe.watch.loaders.begins(iterator, loader, first):
            iterator._next_index = functools.partial(draw, weakref.ref(iterator), type(iterator)._next_index)

    def draw(iterator: Any, next_index: Any) -> Any:
        drawing = iterator()
        indices = next_index(drawing)
        if probe.on:
            probe.guarded("DataLoader", probe.watch.loaders.drew, drawing, indices)
        return indices

    @functools.wraps(advance)
    def __next__(self: Any) -> Any:  # noqa: N807
        asked = clock()
        try:
            batch = advance(self)
        except StopIteration:
            if probe.on:
                probe.guarded("DataLoader", probe.watch.loaders.ended, self)
            raise
        arrived = clock()
        usual = probe.usual
        if usual.stage == READY and usual.thread == thread():
            running = self._watched_pass
            if running is not None and running.batches_drawn is not None:
                usual.stage, usual.running, usual.asked, usual.arrived = LOADED, running, asked, arrived
                return batch
        try:
            if probe.on:
                probe.watch.batch_came(self, batch, asked, arrived)
        except Exception as error:  # noqa: BLE001
            probe.failed("DataLoader", error)
        return batch

    base.__init__, base._reset, base.__next__ = __init__, _reset, __next__
    base._watched_pass = None  # of an iterator, which cannot be copied or pickled


# -- DataParallel and its primitives ----------------------------------------------------------------


def watch_parallel(probe: "Probe", home: Any) -> None:
    """Wrap the primitives wherever torch.nn.parallel has them under their names, whoever put them there."""
    wrap: dict[str, Callable[[Probe, Any], Any]] = {
        "replicate": _replicate,
        "scatter": functools.partial(_scatter, 1),
        "scatter_kwargs": functools.partial(_scatter, 2),
        "gather": _timed("gather"),
        "parallel_apply": _parallel_apply,
    }
    wrapped: dict[Any, Any] = {}
    names = ("", ".data_parallel", ".scatter_gather", ".replicate", ".parallel_apply")
    for module in [sys.modules["torch.nn.parallel" + name] for name in names]:
        for name, make in wrap.items():
            original = module.__dict__.get(name)
            if not callable(original) or (name == "scatter" and module.__name__.endswith("scatter_gather")):
                continue  # that one is called by scatter_kwargs for every argument
            if original not in wrapped and original not in wrapped.values():
                wrapped[original] = make(probe, original)
            setattr(module, name, wrapped.get(original, original))
    for kind in (home.DataParallel, home.DistributedDataParallel):
        _watch_wrapper(probe, kind)


def _watch_wrapper(probe: "Probe", kind: Any) -> None:
    def seen(wrapper: Any) -> None:
        devices = getattr(wrapper, "device_ids", None) or ()
        probe.watch.wrapped(kind.__name__, wrapper.module, devices)
        if kind.__name__ == "DistributedDataParallel":
            _ddp_every(wrapper, DDP_EVERY)
            probe.watch.see_group()

    _after_init(probe, kind, seen)


def _timed(name: str) -> Callable[["Probe", Any], Any]:
    def make(probe: "Probe", original: Any) -> Any:
        here = probe.here

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            now = here.now
            if not probe.on or now.in_primitive:
                return original(*args, **kwargs)
            begun = probe.guarded(name, probe.watch.primitive_begins)
            now.in_primitive = True
            try:
                result = original(*args, **kwargs)
            finally:
                now.in_primitive = False
            if begun is not None:
                probe.guarded(name, probe.watch.primitive_ended, name, begun)
            return result

        return call

    return make


def _scatter(place: int, probe: "Probe", original: Any) -> Any:
    """`place` is that of the devices among the arguments; the dimension follows."""
    timed = _timed("scatter")(probe, original)

    @functools.wraps(original)
    def scatter(*args: Any, **kwargs: Any) -> Any:
        shards = timed(*args, **kwargs)
        if probe.on:
            given = dict(zip(("target_gpus", "dim"), args[place:], strict=False)) | kwargs
            probe.guarded("scatter", probe.watch.scattered, given.get("target_gpus", ()), given.get("dim", 0))
        return shards

    return scatter


def _replicate(probe: "Probe", original: Any) -> Any:
    timed = _timed("replicate")(probe, original)

    @functools.wraps(original)
    def replicate(network: Any, *args: Any, **kwargs: Any) -> Any:
        replicas = timed(network, *args, **kwargs)
        if probe.on:
            probe.guarded("replicate", probe.watch.replicated, network, replicas)
        return replicas

    return replicate


def _parallel_apply(probe: "Probe", original: Any) -> Any:
    timed, here = _timed("parallel_apply")(probe, original), probe.here

    @functools.wraps(original)
    def parallel_apply(
        modules: Sequence[Any], inputs: Sequence[Any], kwargs_tup: Any = None, devices: Any = None
    ) -> list[Any]:
        forward = probe.guarded("parallel_apply", probe.watch.applying, modules, devices) if probe.on else None
        if forward is None and here.now.depth == OUTSIDE:
            return cast(list[Any], original(modules, inputs, kwargs_tup, devices))
        slots = forward.slots if forward is not None else (0,) * len(modules)
        watched = [_Shard(probe, forward, slot, module) for slot, module in zip(slots, modules, strict=False)]
        outputs = timed(watched, inputs, kwargs_tup, devices)
        if forward is not None:
            probe.guarded("parallel_apply", probe.watch.applied, forward, modules, inputs, kwargs_tup, outputs)
        return cast(list[Any], outputs)

    return parallel_apply


class _Shard:
    """A replica, watched: what it calls in its thread is within the forward. `forward` is `None` where it is no shard
    that is told of. To whoever asks it for something else, it is the replica."""

    def __init__(self, probe: "Probe", forward: "Forward | None", slot: int, module: Any) -> None:
        self._probe, self._forward, self._slot, self._module = probe, forward, slot, module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        probe, now = self._probe, self._probe.here.now
        begun = None
        if self._forward is not None and probe.on:
            begun = probe.guarded("parallel_apply", self._begin, args, kwargs)
        around = now.depth, now.root, now.forward
        now.depth, now.root, now.forward = INSIDE, None, None
        try:
            outputs = probe.on_device(self._slot, self._module, args, kwargs)
        finally:
            now.depth, now.root, now.forward = around
        if begun is not None:
            probe.guarded("parallel_apply", self._end, begun, outputs)
        return outputs

    def _begin(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        return shape_of_arguments(args, kwargs), self._probe.watch.mark(self._slot)

    def _end(self, begun: tuple[Any, Any], outputs: Any) -> None:
        if self._forward is not None:
            self._probe.watch.shard_ended(self._forward, self._slot, begun[0], outputs, begun[1])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


# -- process groups ----------------------------------------------------------------------------------


def watch_groups(probe: "Probe", home: Any) -> None:
    """Believe the process group, not the environment. Reductions are counted as the program calls them."""
    names = ("torch.distributed", "torch.distributed.device_mesh")
    places = [home, *(sys.modules[name] for name in names if name in sys.modules)]
    _replace(places, "init_process_group", lambda original: _joining(probe, original))
    for name in REDUCTIONS:
        _replace(places, name, lambda original: _reducing(probe, original))
    probe.watch.see_group()


def _replace(places: list[Any], name: str, make: Callable[[Any], Any]) -> None:
    original = getattr(places[0], name, None)
    if original is None:
        return
    wrapped = make(original)
    for place in places:
        if getattr(place, name, None) is original:
            setattr(place, name, wrapped)


def _joining(probe: "Probe", original: Any) -> Any:
    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if probe.on:
            probe.guarded("init_process_group", probe.watch.see_group)
        return result

    return init_process_group


def _reducing(probe: "Probe", original: Any) -> Any:
    import torch

    is_compiling = torch.compiler.is_compiling

    @functools.wraps(original)
    def reduction(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_compiling() and probe.on:
            probe.guarded("reductions", _count_reduction, probe.watch, tensor)
        return original(tensor, *args, **kwargs)

    return reduction


def _count_reduction(watch: "Watch", tensor: Any) -> None:
    if not hasattr(tensor, "numel") or tensor.numel() >= MIN_REDUCED:
        watch.windows.reductions += 1


def watch_fsdp(probe: "Probe", home: Any) -> None:
    _after_init(probe, home.FullyShardedDataParallel, lambda wrapper: _sharded(probe, wrapper))
    original = home.fully_shard

    @functools.wraps(original)
    def fully_shard(module: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(module, *args, **kwargs)
        if probe.on:
            probe.guarded("fully_shard", probe.watch.wrapped, "fully_shard", result, ())
        return result

    for name in ("torch.distributed.fsdp", "torch.distributed._composable.fsdp"):
        place: Any = sys.modules.get(name)
        if getattr(place, "fully_shard", None) is original:
            place.fully_shard = fully_shard


def watch_tensor_parallel(probe: "Probe", home: Any) -> None:
    original = home.parallelize_module  # it calls itself by another name

    @functools.wraps(original)
    def parallelize_module(module: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(module, *args, **kwargs)
        if probe.on:
            probe.guarded("parallelize_module", probe.watch.wrapped, "parallelize_module", result, ())
        return result

    home.parallelize_module = parallelize_module


def _sharded(probe: "Probe", wrapper: Any) -> None:
    probe.watch.wrapped("FullyShardedDataParallel", wrapper.module, ())
    probe.watch.see_group()
