"""One rank's part of a checkpoint: everything that a new attempt needs to resume the run exactly.

    model.safetensors     parameters and buffers of the model, under the names that they have without a wrapper
    rank-1.safetensors    tensors of rank 1: its buffers under ddp, its shards under fsdp
    rank-1.pt             optimizer, scheduler, scaler, position in the data, random states, numbers of the records

Rank 0 writes the model, and the optimizer if all ranks have the same. Under fsdp each rank writes its shards, and rank
0 the whole model at the last step. The `.pt` files are read only by `torch.load(weights_only=True)`, which runs no code
from them (docs/decisions/0024-a-checkpoint-is-taken-between-steps.md).
"""

import pickle
from collections import Counter, OrderedDict
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from jobs.protocol.records import Saved
from workers.runtime.context import RankContext, RejectedByWorker
from workers.training import rng_state
from workers.training.checkpoint.files import HashingFile, Unsaveable, open_draft, tensor_identity, write_tensors
from workers.training.rng_state import RandomStates
from workers.training.run_state import EpochStart, ResumePoint, TrainingRun

FORMAT = 1
MODEL = "model.safetensors"
#: A tensor of fsdp is written as a dict with this key: the shard, and what it is a shard of.
_SHARD = "shardyard.shard"
MAX_WORDS = 500
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)


class Unreadable(Exception):
    """This run cannot resume from the checkpoint."""


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """The contents of a rank's `.pt` file."""

    format: int
    world_size: int
    rank: int
    holds: str  # Strategy.holds
    steps_done: int
    epoch: int
    batches_done: int
    over: bool
    last_loss: torch.Tensor | None
    metrics: dict[str, float]
    draws: dict[str, Any]
    epoch_draws: dict[str, Any]  # when the epoch began
    loader: torch.Tensor  # state of the loader's generator when the epoch began
    evaluation: torch.Tensor | None  # state of the other loader's generator
    optimizer: dict[str, Any] | None  # None: it is as on rank 0
    scheduler: dict[str, Any] | None
    scaler: dict[str, Any]
    loss: dict[str, Any] | None
    extra: dict[str, Any]  # what the model's state_dict has beside tensors
    buffers: dict[str, torch.Tensor]  # those that are not in the model's state_dict
    numbers: dict[str, Any]  # of steps and splits
    buckets: list[list[int]] | None  # DistributedDataParallel's
    weights: list[float] | None = None  # of the devices; left out where they have none, for earlier versions


# -- saving ----------------------------------------------------------------------------------------


def require_states(run: TrainingRun) -> None:
    """
    Raises:
        RejectedByWorker: a part of the run has a state that cannot be had, or cannot be written.
    """
    for field, part in (("program.optimizer", run.optimizer), ("program.scheduler", run.scheduler)):
        if part is None:
            continue
        if not _has_state(part):
            raise RejectedByWorker(
                f"program.checkpoint: {field} is a {type(part).__name__}, which has no state_dict and load_state_dict; "
                "give it both, or leave out program.checkpoint"
            )
        try:
            to_plain(part.state_dict(), f"the state_dict of {field}")
        except Unsaveable as error:
            raise RejectedByWorker(
                f"program.checkpoint: {error}; change that, or leave out program.checkpoint"
            ) from None


def save_checkpoint(run: TrainingRun, *, whole: bool) -> Saved:
    """Write this rank's files of the current step. `whole`: under fsdp, the whole model as well.

    What cannot be written (the disk is full, only pickle could write it, a part of the user's own raises) is said in
    the record, and not raised: the run is worth more than its checkpoint.
    """
    assert run.checkpoints is not None
    rank, step, epoch = run.context.rank, run.progress.steps_done, run.progress.epoch
    buckets = run.strategy.buckets()  # this and the next: all ranks together
    gathered = _gather_model(run) if whole and run.strategy.holds == "shard" else {}
    try:
        state = to_plain(_as_dict(_capture_state(run, buckets)), "the state of the run")
        weights = _tensors_by_file(run) | ({MODEL: gathered} if gathered else {})
        with open_draft(run.checkpoints.drafts, step) as files:
            done = [files.write(name, partial(write_tensors, tensors=tensors)) for name, tensors in weights.items()]
            done.append(files.write(f"rank-{rank}.pt", partial(_write_state, state)))
            files.sync()
    except Exception as error:  # noqa: BLE001  (a user's state_dict may raise anything)
        return Saved(rank, step, epoch, (), f"{type(error).__name__}: {_one_line(error)}")
    return Saved(rank, step, epoch, tuple(done))


def _write_state(state: dict[str, Any], file: HashingFile) -> None:
    """As `torch.save`, without its checksums, which take as long as writing does: the file has a hash as a whole."""
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(state, cast(Any, file))
    finally:
        torch.serialization.set_crc32_options(before)


def _tensors_by_file(run: TrainingRun) -> dict[str, dict[str, torch.Tensor]]:
    """The tensors of each file of this rank."""
    rank, holds = run.context.rank, run.strategy.holds
    with run.strategy.bare() as model:
        tensors = {name: _local_tensor(t) for name, t in model.state_dict().items() if isinstance(t, torch.Tensor)}
        buffers = {name for name, _ in model.named_buffers(remove_duplicate=False)}
    if rank == 0 and holds != "shard":
        return {MODEL: tensors}
    if holds == "replica":
        tensors = {name: tensor for name, tensor in tensors.items() if name in buffers}
    return {f"rank-{rank}.safetensors": tensors} if tensors else {}


def _gather_model(run: TrainingRun) -> dict[str, torch.Tensor]:
    """The whole model on the host of rank 0, tensor by tensor; nothing on the others."""
    kept: dict[str, torch.Tensor] = {}
    first: dict[tuple[object, ...], torch.Tensor] = {}
    with run.strategy.bare() as model:
        for name, tensor in model.state_dict().items():
            whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            if run.context.rank == 0 and isinstance(whole, torch.Tensor):
                kept[name] = first.setdefault(tensor_identity(name, _local_tensor(tensor)), whole.cpu())
    return kept


def _capture_state(run: TrainingRun, buckets: list[list[int]] | None) -> CheckpointState:
    assert run.optimizer is not None
    assert run.progress.epoch_start is not None
    with run.strategy.bare() as model:
        state = model.state_dict()
        extra = {name: value for name, value in state.items() if not isinstance(value, torch.Tensor)}
        buffers = {name: buffer for name, buffer in model.named_buffers() if name not in state}
    as_on_rank_0 = run.context.rank > 0 and run.strategy.holds == "replica"
    return CheckpointState(
        format=FORMAT,
        world_size=run.context.world_size,
        rank=run.context.rank,
        holds=run.strategy.holds,
        steps_done=run.progress.steps_done,
        epoch=run.progress.epoch,
        batches_done=run.progress.batches_done,
        over=run.progress.is_over,
        last_loss=run.progress.last_loss,
        metrics=run.progress.metrics,
        draws=asdict(rng_state.capture_random_states(run.context.devices)),
        epoch_draws=asdict(run.progress.epoch_start.draws),
        loader=run.progress.epoch_start.loader,
        evaluation=None if run.evaluation is None else run.evaluation.generator.get_state(),
        optimizer=None if as_on_rank_0 else run.optimizer.state_dict(),
        scheduler=None if run.scheduler is None else run.scheduler.state_dict(),
        scaler={} if run.scaler is None else run.scaler.state_dict(),
        loss=run.loss.state_dict() if _has_state(run.loss) else None,  # type: ignore[union-attr]
        extra=extra,
        buffers=buffers,
        numbers=run.strategy.recorder.dump_numbers(),
        buckets=buckets,
        weights=None if run.weights is None else list(run.weights),
    )


def _as_dict(state: CheckpointState) -> dict[str, Any]:
    values = {field.name: getattr(state, field.name) for field in fields(CheckpointState)}
    return {name: value for name, value in values.items() if name != "weights" or value is not None}


def _has_state(part: object) -> bool:
    return hasattr(part, "state_dict") and hasattr(part, "load_state_dict")


def to_plain(value: Any, where: str) -> Any:
    """`value` converted to types that `torch.load(weights_only=True)` reads: tensors, numbers, strings, and containers
    of them.

    Raises:
        Unsaveable: something else is in it.
    """
    if isinstance(value, DTensor):
        placements = [_sharded_dim(placement, where) for placement in value.placements]
        local = to_plain(value.to_local(), where)
        return {_SHARD: local, "placements": placements, "shape": value.shape, "stride": value.stride()}
    if type(value) in (torch.Tensor, torch.nn.Parameter):
        tensor = value.detach()
        part_of_another = tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size()
        return tensor.clone() if part_of_another else tensor
    if type(value) in _PLAIN:
        return value
    if isinstance(value, float):  # NumPy's
        return float(value)
    if isinstance(value, dict):
        kind = type(value) if type(value) in (OrderedDict, Counter) else dict
        return kind({to_plain(key, where): to_plain(part, f"{where}[{key!r}]") for key, part in value.items()})
    if type(value) in (list, tuple, set):
        return type(value)(to_plain(part, where) for part in value)
    raise Unsaveable(f"{where} holds a {type(value).__name__}, which cannot be saved without pickle")


def _sharded_dim(placement: object, where: str) -> int | None:
    """The dimension along which a tensor is sharded; None where each rank has all of it."""
    if type(placement) is Shard:
        return placement.dim
    if type(placement) is Replicate:
        return None
    raise Unsaveable(f"{where} holds a tensor that is placed as {placement}")


def _local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


# -- reading ---------------------------------------------------------------------------------------


def read_checkpoint(context: RankContext) -> CheckpointState | None:
    """The state to resume this rank from; None if the run begins.

    Raises:
        Unreadable: the checkpoint is damaged, or of another run.
    """
    checkpoints = context.checkpoints
    if checkpoints is None or checkpoints.resume is None:
        return None
    state = _read_state(checkpoints.resume, context.rank)
    if (state.format, state.world_size, state.rank) != (FORMAT, context.world_size, context.rank):
        raise Unreadable(
            f"the checkpoint was saved by rank {state.rank} of {state.world_size}, in format {state.format}; "
            f"this is rank {context.rank} of {context.world_size}, which reads format {FORMAT}"
        )
    return state


def restore_run(run: TrainingRun, state: CheckpointState) -> None:
    """Set a run that has just been built to `state`.

    Raises:
        Unreadable: the checkpoint is damaged, or does not fit the run.
    """
    assert run.checkpoints is not None
    assert run.checkpoints.resume is not None
    assert run.optimizer is not None
    if state.holds != run.strategy.holds:
        raise Unreadable(
            f"the checkpoint has a {state.holds} of the model, and this strategy needs a {run.strategy.holds}"
        )
    try:
        _restore_model(run, state, run.checkpoints.resume)
        mesh = _device_mesh(run)
        optimizer = state.optimizer or _read_state(run.checkpoints.resume, 0).optimizer
        _restore_optimizer(run.optimizer, _join_shards(optimizer, mesh))
        if run.scheduler is not None:
            run.scheduler.load_state_dict(state.scheduler or {})
        if run.scaler is not None:
            run.scaler.load_state_dict(state.scaler)
        if state.loss is not None:
            run.loss.load_state_dict(state.loss)  # type: ignore[union-attr]
        if run.evaluation is not None and state.evaluation is not None:
            run.evaluation.generator.set_state(state.evaluation)
        run.strategy.recorder.resume_numbers(state.numbers)
        run.progress.resumed = ResumePoint(
            EpochStart(RandomStates(**state.epoch_draws), state.loader), RandomStates(**state.draws)
        )
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RuntimeError) as error:
        raise Unreadable(
            f"the checkpoint of step {state.steps_done} does not fit the run: {_one_line(error)}"
        ) from error
    run.progress.steps_done = run.progress.saved_step = state.steps_done
    run.progress.epoch, run.progress.batches_done, run.progress.is_over = state.epoch, state.batches_done, state.over
    run.progress.metrics = dict(state.metrics)
    run.progress.last_loss = None if state.last_loss is None else state.last_loss.to(run.strategy.device)
    run.progress.epoch_start = run.progress.resumed.epoch_start


def _read_state(directory: Path, rank: int) -> CheckpointState:
    name = f"rank-{rank}.pt"
    try:
        return CheckpointState(**torch.load(directory / name, map_location="cpu", weights_only=True))
    except pickle.UnpicklingError:  # its message explains how to run the code in the file
        why = "it is damaged, or holds what only pickle can read"
        raise Unreadable(f"{name} of the checkpoint cannot be read: {why}") from None
    except (OSError, EOFError, RuntimeError, ValueError, TypeError, KeyError) as error:
        raise Unreadable(f"{name} of the checkpoint cannot be read: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    """An error in one line, of bounded length: torch lists all parameters that do not fit, one below the other."""
    return " ".join(str(error).split())[:MAX_WORDS]


def _read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a file, each under all its names."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (it is no dict)
            names = dict(file.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise Unreadable(f"{path.name} of the checkpoint cannot be read: {error}") from error
    names.pop("format", None)
    return tensors | {name: tensors[kept] for name, kept in names.items() if kept in tensors}


def _restore_model(run: TrainingRun, state: CheckpointState, directory: Path) -> None:
    own = directory / f"rank-{state.rank}.safetensors"
    has_model = state.holds == "replica" or (state.rank == 0 and state.holds == "whole")
    tensors: dict[str, Any] = _read_tensors(directory / MODEL) if has_model else {}
    if not has_model or own.exists():
        tensors |= _read_tensors(own)
    with run.strategy.bare() as model, torch.no_grad():
        expected = model.state_dict()
        for name, tensor in tensors.items():
            like = expected.get(name)
            if isinstance(like, DTensor):
                tensors[name] = _as_dtensor(tensor, like.device_mesh, like.placements, like.shape, like.stride())
        model.load_state_dict(tensors | state.extra)
        buffers = dict(model.named_buffers())
        for name, buffer in state.buffers.items():
            like = buffers.get(name)
            if like is not None and (like.shape, like.dtype) == (buffer.shape, buffer.dtype):
                like.copy_(buffer)
            else:  # a cache that has grown, or was made on the way
                path, _, last = name.rpartition(".")
                model.get_submodule(path).register_buffer(last, buffer.to(run.strategy.device), persistent=False)


def _restore_optimizer(optimizer: torch.optim.Optimizer, state: Any) -> None:
    """Restore the types of the state, which `load_state_dict` casts to that of its parameter."""
    optimizer.load_state_dict(state)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, saved in state["state"].items():
        loaded = optimizer.state[parameters[number]]
        for name, value in saved.items():
            if isinstance(value, torch.Tensor) and loaded[name].dtype != value.dtype:
                loaded[name] = value.to(loaded[name].device)


def _device_mesh(run: TrainingRun) -> DeviceMesh | None:
    found = (p.device_mesh for p in run.strategy.model.parameters() if isinstance(p, DTensor))
    return next(found, None)


def _join_shards(value: Any, mesh: DeviceMesh | None) -> Any:
    """`value` with its shards as parts of whole tensors again."""
    if isinstance(value, dict):
        if _SHARD not in value:
            return type(value)({key: _join_shards(part, mesh) for key, part in value.items()})
        if mesh is None:
            raise ValueError("the optimizer's state is sharded, and the model is not")
        placements = tuple(Replicate() if dim is None else Shard(dim) for dim in value["placements"])
        return _as_dtensor(value[_SHARD], mesh, placements, value["shape"], value["stride"])
    if isinstance(value, (list, tuple)):
        return type(value)(_join_shards(part, mesh) for part in value)
    return value


def _as_dtensor(local: torch.Tensor, mesh: DeviceMesh, placements: Any, shape: Any, stride: Any) -> DTensor:
    """This rank's part of a tensor, as such."""
    moved = local.to(mesh.device_type)
    whole: DTensor = DTensor.from_local(moved, mesh, placements, run_check=False, shape=shape, stride=stride)
    return whole
