"""The four strategies that place a model on devices: single, dp, ddp, fsdp. Each returns a `PlacedModel`."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from jobs.model.spec import JobSpec
from workers.probe.flop_count import PLACED
from workers.probe.measurements import sum_gradient_bytes
from workers.probe.recorder import Recorder, SingleDeviceRecorder
from workers.probe.step_records import DdpTimes
from workers.runtime import process_groups
from workers.runtime.context import RankContext, RankDevice, RejectedByWorker
from workers.training import placement
from workers.training.data_parallel import TracedDataParallel
from workers.training.straggler import PlantedSlowness, find_straggler

FSDP_UNMEASURED = (
    "under fsdp ranks exchange parameters and gradients while they compute; torch does not time them apart"
)
_WHEN_BACKWARD = {
    "train": "measured on the first ten steps and every tenth after them",
    "forward": 'mode "forward" has no backward',
}
Buckets = list[list[int]]
DDP_UNMEASURED = "DistributedDataParallel of this torch does not report its own times"
#: DistributedDataParallel is asked for its times in so many steps from the first on, and then in every tenth: the
#: question costs it more than all else that is observed of a step.
DDP_ASKED = 10
DDP_SAMPLED = f"read from DistributedDataParallel in the first {DDP_ASKED} steps and every tenth after them"


def _keep_local(values: torch.Tensor) -> torch.Tensor:
    return values


@dataclass(frozen=True, slots=True)
class PlacedModel:
    """A model on its devices.

    The loop calls `model` with batches on `device`. `total` sums a tensor over all ranks; `begin_total` does so in the
    background, and returns a function that waits for the sum. `evaluated` gives a model that evaluation may call any
    number of times on each rank. `alone` is a context for a forward and backward after which the ranks do not sum their
    gradients yet.

    `bare` gives the model without a wrapper. `holds` says what this rank has of the model: all of it, independent of
    other ranks ("whole"), the same as rank 0 except for buffers ("replica"), or a part ("shard"). `buckets` returns the
    buckets in which gradients are summed, if the order of addition depends on them; all ranks must call it together,
    between two steps.
    """

    model: nn.Module
    device: torch.device
    recorder: Recorder
    total: Callable[[torch.Tensor], torch.Tensor]
    evaluated: Callable[[], AbstractContextManager[nn.Module]]
    bare: Callable[[], AbstractContextManager[nn.Module]]
    alone: Callable[[], AbstractContextManager[object]] = nullcontext
    begin_total: Callable[[torch.Tensor], Callable[[], object]] = lambda values: lambda: values
    straggler: PlantedSlowness | None = None
    holds: Literal["whole", "replica", "shard"] = "whole"
    buckets: Callable[[], Buckets | None] = lambda: None
    set_weights: Callable[[tuple[float, ...]], None] = lambda weights: None  # by which one process divides batches
    gradient_bytes: int | None = None  # that each rank contributes to a reduction, where the wrapper reduces them all


def build_strategy(
    spec: JobSpec, context: RankContext, model: nn.Module, buckets: Buckets | None = None
) -> PlacedModel:
    """Place `model` on the devices of this rank. `buckets` are those of the run that is resumed.

    Raises:
        RejectedByWorker: `parallelism` names a sub-module that the model does not have.
    """
    with _with_first_buckets(buckets) if buckets is not None else nullcontext():
        return STRATEGIES[spec.parallelism.strategy](spec, context, model)


def build_single(spec: JobSpec, context: RankContext, model: nn.Module) -> PlacedModel:
    """One device, or the parts of the model on several (model parallelism)."""
    try:
        parts = placement.complete_placement(model, spec.parallelism.placement)
    except KeyError as error:
        raise RejectedByWorker(f"parallelism.placement.{error.args[0]}") from None
    devices: dict[placement.Place, torch.device] = {"cpu": torch.device("cpu")}
    devices |= {device.logical: torch_device(device) for device in context.devices}
    placement.place_parts(model, parts, devices)
    recorder = _make_recorder(spec, context, times_whole_backward=len(context.devices) == 1)
    recorder.observe(model)
    for path, place in parts.items():
        if place != "cpu":
            recorder.watch_module(model.get_submodule(path), place, is_whole=path == "")
    if "" not in parts:
        recorder.count_forwards(model)
    recorder.note("per_device.comm_ms", 'strategy "single" has no communication between devices to measure')
    if len(context.devices) > 1:
        recorder.model.flop_refusal = PLACED
        recorder.note("per_device.backward_ms", "a placed model has one backward through all devices")
        recorder.note("per_device.rows", "with a placement every device that holds a part works on every row")
    return PlacedModel(model, devices[0], recorder, _keep_local, lambda: nullcontext(model), lambda: nullcontext(model))


def build_dp(spec: JobSpec, context: RankContext, model: nn.Module) -> PlacedModel:
    """nn.DataParallel over the lease: over the whole model, or over one sub-module of it."""
    how, virtual = spec.parallelism, context.device_kind == "cpu"
    device = torch_device(context.devices[0])
    model.to(device)
    recorder = Recorder(context, module=how.module or "", dim=how.dim)
    streams = context.streams
    inner = _find_submodule(model, how.module)
    recorder.observe(inner)
    wrapped = TracedDataParallel(
        inner,
        [d.logical for d in context.devices],
        virtual=virtual,
        output_device=how.output_device,
        dim=how.dim,
        functional=how.functional,
        observer=recorder,
        straggler=_find_straggler(spec, context),
        **({"on": streams.on} if streams is not None else {}),
    )
    recorder.note(
        "per_device.comm_ms",
        "copies between devices (replicate, scatter, gather), and waiting for the slowest shard",
    )
    if virtual:
        recorder.note("per_device.data_wait_ms", "the wait for the batch, which is the same for all, and for the shard")
        recorder.note("per_device.backward_ms", _WHEN_BACKWARD[spec.recipe.mode])
    else:
        recorder.note("per_device.backward_ms", "under DataParallel the backward of all devices is one call")
    if len(context.devices) == 1:
        recorder.note("primitives", "nn.DataParallel on one device calls the module directly; here the primitives run")
    placed = _put_back(model, how.module, wrapped)
    bare = lambda: _without_wrapper(model, how.module, inner, wrapped)  # noqa: E731
    return PlacedModel(
        placed,
        device,
        recorder,
        _keep_local,
        lambda: nullcontext(placed),
        bare,
        set_weights=wrapped.set_weights,
    )


def build_ddp(spec: JobSpec, context: RankContext, model: nn.Module) -> PlacedModel:
    """DistributedDataParallel over the whole model, or over one sub-module of it."""
    path = spec.parallelism.module
    device = _join_group(spec, context, model)
    inner = _find_submodule(model, path)
    recorder = _make_recorder(spec, context)
    recorder.observe(inner)
    straggler = _find_straggler(spec, context)
    if straggler is not None and straggler.where != "input":
        inner.forward = straggler.slow_down(straggler.device, inner.forward)
    recorder.watch_module(inner, 0, is_whole=True)  # after what makes it slow, which belongs to its time
    if any(parameter.requires_grad for parameter in inner.parameters()):
        wrapped = DistributedDataParallel(inner, device_ids=[device] if device.type == "cuda" else None)
    else:
        raise RejectedByWorker(f"parallelism.module: {path or 'the model'} has no parameters for ddp to synchronise")
    recorder.read_ddp_times = _ddp_times_reader(wrapped, recorder)
    recorder.note(
        "per_device.comm_ms", "communication that backward does not hide, waiting for the slowest rank included"
    )
    if path is not None:
        recorder.note("parallelism.module", f"only {path} is synchronised between ranks; other parameters drift apart")
    placed = _put_back(model, path, wrapped)
    return PlacedModel(
        placed,
        device,
        recorder,
        _sum_over_ranks,
        lambda: _evaluate_without_wrapper(model, path, inner, wrapped),
        lambda: _without_wrapper(model, path, inner, wrapped),
        wrapped.no_sync,
        _begin_sum,
        straggler,
        "replica" if path is None else "whole",
        lambda: _gradient_buckets(wrapped),
        gradient_bytes=sum_gradient_bytes(inner),
    )


def build_fsdp(spec: JobSpec, context: RankContext, model: nn.Module) -> PlacedModel:
    """fully_shard: each rank stores a part of every parameter, and gathers the rest of a layer when the layer runs."""
    device = _join_group(spec, context, model)
    recorder = _make_recorder(spec, context, times_whole_backward=True)
    recorder.observe(model)
    recorder.watch_module(model, 0, is_whole=True)
    sharded = _shard_parts(model, init_device_mesh(device.type, (context.world_size,)))
    recorder.note("per_device.comm_ms", FSDP_UNMEASURED)
    recorder.note("per_device.forward_ms", "includes gathering parameters, and waiting for the ranks that hold them")
    recorder.note("per_device.backward_ms", "includes reducing gradients, and waiting for other ranks")
    return PlacedModel(
        model,
        device,
        recorder,
        _sum_over_ranks,
        lambda: _with_whole_parameters(model, sharded),
        lambda: nullcontext(model),
        lambda: _without_reduction(sharded[-1]),
        _begin_sum,
        holds="shard",
    )


STRATEGIES: dict[str, Callable[[JobSpec, RankContext, nn.Module], PlacedModel]] = {
    "single": build_single,
    "dp": build_dp,
    "ddp": build_ddp,
    "fsdp": build_fsdp,
}


def _make_recorder(spec: JobSpec, context: RankContext, *, times_whole_backward: bool = False) -> Recorder:
    kind = SingleDeviceRecorder if context.device_kind == "cpu" and len(context.devices) == 1 else Recorder
    return kind(context, module=spec.parallelism.module or "", times_whole_backward=times_whole_backward)


def torch_device(device: RankDevice) -> torch.device:
    """The node's devices of the lease are the visible ones, in order; virtual devices share the CPU."""
    return torch.device("cuda", device.position) if device.kind == "cuda" else torch.device("cpu")


def _find_straggler(spec: JobSpec, context: RankContext) -> PlantedSlowness | None:
    """The straggler of the spec, if there is one.

    Raises:
        RejectedByWorker: DataParallel sends to all GPUs at once, so a single one cannot be delayed.
    """
    found = find_straggler(spec, context)
    if found is not None and found.where == "input" and len(context.devices) > 1 and context.device_kind == "cuda":
        raise RejectedByWorker(
            'program.straggler.where: on cuda, DataParallel sends the shards to all devices at once; use "forward"'
        )
    return found


def _find_submodule(model: nn.Module, path: str | None) -> nn.Module:
    try:
        return model.get_submodule(path or "")
    except AttributeError:
        names = [name for name, _ in model.named_modules() if name][:20]
        raise RejectedByWorker(
            f"parallelism.module: the model has no sub-module {path!r}; it has {', '.join(names) or 'none'}"
        ) from None


def _put_back(model: nn.Module, path: str | None, wrapped: nn.Module) -> nn.Module:
    """The model with the sub-module at `path` replaced, or `wrapped` itself where that is the whole model."""
    if path is None:
        return wrapped
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, wrapped)
    return model


def _join_group(spec: JobSpec, context: RankContext, model: nn.Module) -> torch.device:
    """Join the other ranks, and bring the model to the device of this one, which is returned."""
    device = torch_device(context.devices[0])
    if device.type == "cuda":
        torch.cuda.set_device(device)
    process_groups.prepare_groups()
    wish = spec.parallelism.backend
    dist.init_process_group(wish if wish != "auto" else {"cuda": "nccl", "cpu": "gloo"}[device.type])
    model.to(device)
    return device


def _sum_over_ranks(values: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(values)
    return values


def _begin_sum(values: torch.Tensor) -> Callable[[], object]:
    work: Any = dist.all_reduce(values, async_op=True)
    wait: Callable[[], object] = work.wait
    return wait


@contextlib.contextmanager
def _without_wrapper(model: nn.Module, path: str | None, inner: nn.Module, wrapped: nn.Module) -> Iterator[nn.Module]:
    try:
        yield _put_back(model, path, inner)
    finally:
        _put_back(model, path, wrapped)


@contextlib.contextmanager
def _evaluate_without_wrapper(
    model: nn.Module, path: str | None, inner: nn.Module, wrapped: DistributedDataParallel
) -> Iterator[nn.Module]:
    """The model without the wrapper, whose forward is a collective: ranks evaluate different numbers of batches.

    Buffers are those of rank 0 on every rank, as under DistributedDataParallel before a forward.
    """
    for buffer in inner.buffers():
        dist.broadcast(buffer, src=0)
    with _without_wrapper(model, path, inner, wrapped) as bare:
        yield bare


def _gradient_buckets(wrapped: DistributedDataParallel) -> Buckets | None:
    """The parameter numbers of each bucket in which DistributedDataParallel will sum gradients from now on.

    It rebuilds its buckets before the second forward, in the order in which gradients arrived in the first backward.
    Gradients of three or more ranks are summed in an order that depends on their position in the bucket, so a resumed
    run must begin with the same buckets. They are built here if necessary. This uses private functions of torch. Where
    these are missing the result is `None`, and a resumed run may differ in the last bit.
    """
    try:
        private: Any = wrapped
        if private.reducer._rebuild_buckets():
            private._has_rebuilt_buckets = True
        private.logger.set_runtime_stats_and_log()
        listed = private._get_ddp_logging_data().get("rebuilt_per_bucket_param_indices")
        return [[int(number) for number in bucket.split()] for bucket in listed.split(",")] if listed else None
    except (AttributeError, RuntimeError, ValueError):
        return None


@contextlib.contextmanager
def _with_first_buckets(buckets: Buckets) -> Iterator[None]:
    """A DistributedDataParallel that is created in this context has these buckets, reversed by itself, from its first
    step on."""
    private: Any = dist
    original: Any = getattr(private, "_compute_bucket_assignment_by_size", None)

    def assign(parameters: list[torch.Tensor], limits: list[int], *others: Any) -> Any:
        if sorted(number for bucket in buckets for number in bucket) != list(range(len(parameters))):
            return original(parameters, limits, *others)  # of another model, as reading its weights will show
        return buckets[::-1], [limits[-1]] * len(buckets)

    private._compute_bucket_assignment_by_size = assign
    try:
        yield
    finally:
        private._compute_bucket_assignment_by_size = original


def _shard_parts(model: nn.Module, mesh: DeviceMesh) -> list[FSDPModule]:
    """Shard each part of the model that has parameters, then the model itself, which comes last."""
    parts = [*_parts_to_shard(model), model]
    try:
        return [fully_shard(part, mesh=mesh, reshard_after_forward=True) for part in parts]
    except (ValueError, NotImplementedError, RuntimeError) as error:
        raise RejectedByWorker(f"parallelism.strategy: fully_shard does not take this model: {error}") from error


def _parts_to_shard(model: nn.Module) -> Iterator[nn.Module]:
    """The model's parts. A list or dict of modules is never called, so its entries are parts instead."""
    for child in model.children():
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)):
            yield from _parts_to_shard(child)
        elif any(True for _ in child.parameters()):
            yield child


@contextlib.contextmanager
def _with_whole_parameters(model: nn.Module, sharded: list[FSDPModule]) -> Iterator[nn.Module]:
    """The model with whole parameters on every rank, so that its forward is no collective: ranks evaluate different
    numbers of batches. Buffers are those of rank 0, as under ddp."""
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)
    for part in sharded:
        part.set_reshard_after_forward(False)
        part.unshard()
    yield model
    for part in sharded:
        part.reshard()
        part.set_reshard_after_forward(True)


@contextlib.contextmanager
def _without_reduction(root: FSDPModule) -> Iterator[None]:
    """Gradients are not summed over ranks until the next backward outside this context."""
    root.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        root.set_requires_gradient_sync(True)


def _ddp_times_reader(wrapped: DistributedDataParallel, recorder: Recorder) -> Callable[[], DdpTimes | None]:
    """Reads the times of the last step from the wrapper.

    A slow rank makes all ranks wait in all-reduce, so wall clocks show the same backward on each;
    the wrapper alone can tell computing from waiting. It publishes a step's numbers when the next
    forward begins, and so they are asked for by hand. All of it is private to torch: when any is
    missing, the numbers are null and a note says so.
    """
    steps = 0
    try:
        private: Any = wrapped
        private._set_ddp_runtime_logging_sample_rate(1)
        publish, read = private.logger.set_runtime_stats_and_log, private._get_ddp_logging_data
    except (AttributeError, RuntimeError):
        recorder.note("per_device.backward_ms", DDP_UNMEASURED)
        recorder.note("per_device.comm_ms", DDP_UNMEASURED)
        return lambda: None

    def read_times() -> DdpTimes | None:
        nonlocal steps
        steps += 1
        if steps > DDP_ASKED and steps % 10:
            return None
        if steps == DDP_ASKED:
            private._set_ddp_runtime_logging_sample_rate(10)
            for field in ("per_device.backward_ms", "per_device.comm_ms"):
                recorder.note(field, DDP_SAMPLED)
        publish()
        data = read()
        computed = data.get("backward_compute_time")
        if computed is None:
            recorder.note("per_device.backward_ms", DDP_UNMEASURED)
            recorder.note("per_device.comm_ms", DDP_UNMEASURED)
            return None
        return DdpTimes(computed / 1e6)

    return read_times
