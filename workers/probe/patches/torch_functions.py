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
import zlib
from collections.abc import Callable, Iterator
from itertools import islice
from operator import attrgetter
from types import ModuleType
from typing import Any

from jobs.protocol.probe_records import Joining
from workers.probe.flop_count import JOINT
from workers.probe.patches.data_parallel import patch_data_parallel
from workers.probe.patches.module_calls import (
    hide_from_dynamo,
    patch_module_calls,
    reassure_dynamo,
    torch_state_queries,
)
from workers.probe.step_records import DdpTimes
from workers.probe.tracker import GuardedTracker, Tracker
from workers.probe.types import BACKWARD_DONE, IN_BACKWARD, LOADED, OUTSIDE, READY, RETURNED, STEPPING

#: What has fewer numbers is about a loss or a count, not about gradients or parameters.
MIN_EXCHANGED = 9
REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce_scatter_tensor", "all_reduce_coalesced", "reduce")
#: Tensors of a collective that are looked at.
MAX_SIZES = 64
#: By which ranks bring their outputs together; also called for objects.
GATHERS = ("all_gather", "all_gather_into_tensor", "all_gather_coalesced", "gather")
EXCHANGES = (
    *(*GATHERS, "broadcast", "scatter"),
    *("all_to_all", "all_to_all_single", "send", "recv", "isend", "irecv", "batch_isend_irecv"),
)


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
    queries.uses_all_parameters = _uses_all_parameters
    queries.peak_memory = torch.cuda.max_memory_allocated
    named = attrgetter("name", "total_memory")
    queries.device_properties = lambda index: named(torch.cuda.get_device_properties(index))
    queries.is_cuda_ready = lambda: torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing()
    queries.random_state = functools.partial(_read_random_state, torch)
    queries.is_capturing = torch.cuda.is_current_stream_capturing
    dist = torch.distributed
    if dist.is_available():
        facts: Callable[[], Any] = lambda: (dist.get_rank(), dist.get_world_size(), dist.get_backend())  # noqa: E731
        queries.process_group = lambda: facts() if dist.is_initialized() else None


def _read_random_state(torch: Any) -> int:
    """Of the generator of the device that computes."""
    state = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else torch.get_rng_state()
    return zlib.crc32(state.numpy().tobytes())


def _read_ddp_times(wrapper: Any, iteration: int) -> DdpTimes | None:
    """What DistributedDataParallel measured of its latest iteration; None when it cannot say. All of this is private to
    torch. A slow rank makes all ranks wait in all-reduce: the wrapper alone can tell computing from waiting."""
    try:
        wrapper.logger.set_runtime_stats_and_log()
        data = wrapper._get_ddp_logging_data()
        if data["iteration"] != iteration:
            return None
        return DdpTimes(data["backward_compute_time"] / 1e6)
    except (AttributeError, KeyError, RuntimeError):
        return None


def _uses_all_parameters(wrapper: Any) -> bool | None:
    """What the wrapper's search for unused parameters has found, as of the last time that its times were read."""
    try:
        if not wrapper.find_unused_parameters or wrapper.static_graph:
            return None
        data = wrapper._get_ddp_logging_data()
        return not data.get("unused_parameter_size", 0) and bool(data.get("can_set_static_graph", True))
    except (AttributeError, RuntimeError):
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
        losses = args[0] if args else kwargs.get("tensors")
        mark = guarded.call_guarded("backward", guarded.tracker.begin_backward, losses)
        if guarded.tracker.builder.losses.wants_more:
            guarded.call_guarded("backward", _read_loss, guarded.tracker, args, kwargs)
        now.in_backward = True  # checkpointing calls backward within backward
        count = guarded.tracker.reporter.flop_count
        try:
            with contextlib.nullcontext() if count is None else count.watch(JOINT):
                result = original(*args, **kwargs)
        finally:
            now.in_backward = False
        if mark is not None:
            guarded.call_guarded("backward", guarded.tracker.end_backward, mark)
        return result

    home.backward = backward


def _read_loss(tracker: Tracker, args: Any, kwargs: Any) -> None:
    """`args` and `kwargs` are those of torch.autograd.backward."""
    given = dict(zip(("tensors", "grad_tensors"), args, strict=False)) | kwargs
    tracker.builder.read_loss(given["tensors"] if given.get("grad_tensors") is None else None)


def patch_optimizers(guarded: GuardedTracker, home: Any) -> None:
    import torch

    is_compiling, clock = torch.compiler.is_dynamo_compiling, time.perf_counter

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        if is_compiling():
            return
        step = guarded.step
        if step.stage == BACKWARD_DONE and step.thread and id(optimizer) in guarded.optimizers_by_id:
            step.stage, step.optimizer, step.stepping = STEPPING, optimizer, clock()
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
    guarded.after_init(home.Optimizer, lambda optimizer: guarded.tracker.models.add_optimizer(optimizer))


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
    scalers: weakref.WeakSet[Any] = weakref.WeakSet()
    guarded.after_init(home.GradScaler, scalers.add)
    guarded.torch.is_loss_scale = lambda factor: any(
        scaler._scale is not None and scaler._scale.data_ptr() == factor.data_ptr() for scaler in scalers
    )


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
                contents = current.contents
                if contents is not None and contents.wants_more:
                    contents.add_batch(batch)
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


# -- process groups ----------------------------------------------------------------------------------


def patch_process_groups(guarded: GuardedTracker, home: Any) -> None:
    """Believe the process group, not the environment. Reductions are counted as the program calls them."""
    modules = ("torch.distributed", "torch.distributed.device_mesh")
    places = [home, *(sys.modules[name] for name in modules if name in sys.modules)]
    _replace_everywhere(places, "init_process_group", functools.partial(_wrap_init_process_group, guarded))
    for names, sums in ((REDUCTIONS, True), (EXCHANGES, False)):
        for name in names:
            _replace_everywhere(places, name, functools.partial(_wrap_exchange, guarded, sums, name in GATHERS))
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
    joined = guarded.then_call("init_process_group", original, lambda *_: guarded.tracker.report_group())

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        if guarded.on:
            guarded.call_guarded("init_process_group", guarded.tracker.reporter.emit, Joining(time.time()))
        return joined(*args, **kwargs)

    return init_process_group


def _wrap_exchange(guarded: GuardedTracker, sums: bool, gathers: bool, original: Any) -> Any:
    import torch

    is_compiling = torch.compiler.is_compiling

    @functools.wraps(original)
    def exchange(*args: Any, **kwargs: Any) -> Any:
        if not is_compiling() and guarded.on:
            guarded.call_guarded("collectives", _count_exchange, guarded.tracker, sums, (*args, *kwargs.values()))
            if guarded.tracker.loaders.is_evaluating and _is_outside(guarded):
                evaluation = guarded.tracker.reporter.evaluation
                evaluation.gathers, evaluation.sums = evaluation.gathers + gathers, evaluation.sums + sums
        return original(*args, **kwargs)

    return exchange


def _is_outside(guarded: GuardedTracker) -> bool:
    """Whether this thread is in no forward, no backward and no step of an optimizer: sharded models gather there."""
    now, step = guarded.threads.current, guarded.step
    is_noted_outside = not step.inside and step.stage not in (IN_BACKWARD, STEPPING)
    return is_noted_outside and now.depth == OUTSIDE and not now.in_backward and not now.optimizers


def _count_exchange(tracker: Tracker, sums: bool, args: tuple[Any, ...]) -> None:
    sizes = [tensor.numel() for tensor in islice(_exchanged_tensors(args), MAX_SIZES)]
    if not sizes or max(sizes) >= MIN_EXCHANGED:
        tracker.count_exchange(sums, sum(sizes))


def _exchanged_tensors(args: Any) -> Iterator[Any]:
    """The tensors that a collective is called with, alone, in lists, or in operations of a batch."""
    for each in args:
        if isinstance(each, (list, tuple)):
            yield from _exchanged_tensors(each)
        else:
            tensor = getattr(each, "tensor", each)
            if hasattr(tensor, "numel"):
                yield tensor


def patch_fsdp(guarded: GuardedTracker, home: Any) -> None:
    def seen(wrapper: Any) -> None:
        guarded.tracker.report_wrapper("FullyShardedDataParallel", wrapper.module, ())
        guarded.tracker.report_group()

    guarded.after_init(home.FullyShardedDataParallel, seen)
    places = [sys.modules.get(name) for name in ("torch.distributed.fsdp", "torch.distributed._composable.fsdp")]
    _replace_everywhere([home, *places], "fully_shard", functools.partial(_wrap_sharding, guarded))


def patch_tensor_parallel(guarded: GuardedTracker, home: Any) -> None:
    home.parallelize_module = _wrap_sharding(guarded, home.parallelize_module)  # it calls itself by another name


def _wrap_sharding(guarded: GuardedTracker, original: Any) -> Any:
    name = original.__name__
    return guarded.then_call(name, original, lambda made, *_: guarded.tracker.report_wrapper(name, made, ()))
