"""Runs one recipe inside one rank: builds the parts that the spec names, trains, and reports to the sink."""

import copy
import importlib
import random
from collections.abc import Callable, Sized
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from pydantic import ValidationError
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, default_collate
from torch.utils.data.distributed import DistributedSampler

from jobs.model.spec import ComponentSpec, DataSpec, EvaluationData, JobSpec, RecipeProgram, SchedulerSpec
from jobs.protocol.records import DeviceInfo, Result
from jobs.splits.plan import deal_rows
from shardyard.script.sampler import ShareSampler
from workers.probe.gradients.norm_layers import NormWatcher
from workers.runtime.context import RankContext, RejectedByWorker
from workers.runtime.cpu_name import read_cpu_name
from workers.training import loop, strategies, weighing
from workers.training.batch_shares import split_pair
from workers.training.checkpoint import state
from workers.training.gradient_proof import ProofOfGradients
from workers.training.recipes import optim
from workers.training.recipes.data import DATA, collate_rows
from workers.training.recipes.files import DataRoot
from workers.training.recipes.models import MODELS, BuiltInPart
from workers.training.run_state import Loss, TrainingRun


@dataclass(frozen=True, slots=True)
class RecipeParts:
    """The parts of a run that depend only on the spec, not on devices, other ranks or a checkpoint. The model is
    new."""

    dataset: Dataset[Any]
    model: nn.Module
    loss: Loss | None


def run_recipe(spec: JobSpec, context: RankContext, parts: RecipeParts | None = None) -> Result:
    """Run the recipe of `spec` as rank `context.rank` and return its final numbers (rank 0 also emits them). `parts`
    are those of `build_parts`, if they were built ahead.

    Raises:
        RejectedByWorker: a reference cannot be imported or built, or model and data do not fit.
        StopTraining: `context.stopping()` turned true; the current step is complete.
        Unreadable: the checkpoint to resume from is damaged, or of another run.
        Exception: whatever the user's code or torch raises, as it is.
    """
    prepared = prepare_run(spec, context, parts)
    recorder = prepared.strategy.recorder
    recorder.emit(loop.make_outline(prepared))
    try:
        result = loop.train(prepared) if spec.recipe.mode == "train" else loop.forward(prepared)
    finally:
        recorder.finish()
        prepared.profiler.finish()
    if context.rank == 0:
        recorder.emit(result)
    return result


def runs_only_our_code(spec: JobSpec) -> bool:
    """Whether building the parts of a recipe runs only our code and torch's."""
    program = spec.program
    if not isinstance(program, RecipeProgram) or program.bundle is not None:
        return False
    named = (program.data, program.model, program.loss)
    return not any(":" in part.ref for part in named if part is not None)


def build_parts(spec: JobSpec, context: RankContext) -> RecipeParts:
    """Build data, model and loss. Data and model each begin from the seed, so one does not influence the other.

    Raises:
        RejectedByWorker: a reference cannot be imported or built, or model and data do not fit.
    """
    torch.set_num_threads(context.threads)
    program = spec.recipe
    seed_everything(program.seed, context)
    dataset = build_data(program.data, "program.data", context)
    seed_everything(program.seed, context)
    model = build_model(program.model)
    loss = build_loss(program.loss) if program.loss is not None else None
    check_fit(spec, model, dataset, loss)
    return RecipeParts(dataset, model, loss)


def prepare_run(spec: JobSpec, context: RankContext, parts: RecipeParts | None = None) -> TrainingRun:
    """Build everything that the loop needs, except for parts that were built ahead."""
    program, parts = spec.recipe, parts or build_parts(spec, context)
    dataset, model, loss = parts.dataset, parts.model, parts.loss
    check_precision(spec, context)
    saved = state.read_checkpoint(context) if program.checkpoint is not None and program.mode == "train" else None
    untouched = _copy_untouched(spec, model)
    strategy = strategies.build_strategy(spec, context, model, saved.buckets if saved is not None else None)
    describe_devices(context, strategy)
    if program.mode == "train":
        NormWatcher(model.get_submodule(spec.parallelism.module or ""), context.sink.emit)
    if isinstance(loss, nn.Module):
        loss.to(strategy.device)
    if untouched is not None and spec.parallelism.weights is not None:
        trial = weighing.SpeedTrial(spec, context, dataset, untouched, loss)
        spec = weighing.settle_weights(trial, strategy, None if saved is None else saved.weights)
    prepared = TrainingRun(program, context, strategy, build_loader(spec, context, dataset), loss, weights=spec.weights)
    if untouched is not None and program.mode == "train":
        prepared.proof = ProofOfGradients(untouched if context.rank == 0 else None)
    if program.optimizer is not None:
        prepared.optimizer = build_optimizer(program.optimizer, model)
    if program.scheduler is not None and prepared.optimizer is not None:
        prepared.scheduler = build_scheduler(program.scheduler, prepared.optimizer)
    if program.precision == "float16":
        prepared.scaler = torch.amp.GradScaler("cuda")
    if program.evaluate is not None:
        seed_everything(program.seed, context)
        prepared.evaluation = build_evaluation(program.evaluate.data, context)
    seed_everything(program.seed + context.rank, context)
    if prepared.checkpoints is not None:
        state.require_states(prepared)
    if saved is not None:
        state.restore_run(prepared, saved)
    return prepared


# -- weights of devices ----------------------------------------------------------------------------


def _copy_untouched(spec: JobSpec, model: nn.Module) -> nn.Module | None:
    """A copy of the model before it is placed, where weights have to be measured, or what they do to be proven."""
    if spec.parallelism.weights is None and not spec.weighs_ranks:
        return None
    try:
        return copy.deepcopy(model)
    except Exception as error:
        raise RejectedByWorker(
            f"program.model: rows are weighed, which is proven on a copy of the model, and {type(model).__name__} "
            f"cannot be copied: {error}"
        ) from error


def seed_everything(seed: int, context: RankContext) -> None:
    # Not torch.manual_seed: it records the stack, with source lines, for every kind of device that is missing.
    torch.default_generator.manual_seed(seed)
    if context.device_kind == "cuda":
        torch.cuda.manual_seed_all(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


# -- the parts of a recipe -------------------------------------------------------------------------


def build_model(component: ComponentSpec) -> nn.Module:
    model = _build_component(component, "program.model", MODELS)
    if not isinstance(model, nn.Module):
        raise RejectedByWorker(f"program.model.ref: {component.ref} made a {type(model).__name__}, not an nn.Module")
    return model


def build_data(component: ComponentSpec, field: str, context: RankContext) -> Dataset[Any]:
    data = _build_component(component, field, DATA, DataRoot(context.data_root), field)
    if not hasattr(data, "__getitem__") and not isinstance(data, IterableDataset):
        raise RejectedByWorker(f"{field}.ref: {component.ref} made a {type(data).__name__}, not a Dataset")
    return cast(Dataset[Any], data)


def build_loss(component: ComponentSpec) -> Loss:
    if ":" not in component.ref:
        return cast(Loss, _built_in(component, "program.loss", optim.LOSSES, optim.build_loss))
    made = _import_attribute(component.ref, "program.loss.ref")
    if isinstance(made, type) or component.args:
        made = _call_factory("program.loss", component, lambda: made(**component.args))
    return cast(Loss, made)


def build_optimizer(component: ComponentSpec, model: nn.Module) -> torch.optim.Optimizer:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if ":" not in component.ref:
        make: Callable[..., Any] = lambda name, args: optim.build_optimizer(name, parameters, args)  # noqa: E731
        return cast(torch.optim.Optimizer, _built_in(component, "program.optimizer", optim.OPTIMIZERS, make))
    made = _import_attribute(component.ref, "program.optimizer.ref")
    return cast(
        torch.optim.Optimizer,
        _call_factory("program.optimizer", component, lambda: made(parameters, **component.args)),
    )


def build_scheduler(component: SchedulerSpec, optimizer: torch.optim.Optimizer) -> LRScheduler:
    if ":" not in component.ref:
        make: Callable[..., Any] = lambda name, args: optim.build_scheduler(name, optimizer, args)  # noqa: E731
        return cast(LRScheduler, _built_in(component, "program.scheduler", optim.SCHEDULERS, make))
    made = _import_attribute(component.ref, "program.scheduler.ref")
    return cast(LRScheduler, _call_factory("program.scheduler", component, lambda: made(optimizer, **component.args)))


def _build_component(component: ComponentSpec, field: str, recipes: dict[str, BuiltInPart], *of_files: Any) -> Any:
    """Build what `component` names; `of_files` are further arguments of recipes that read files."""
    if ":" in component.ref:
        attribute = _import_attribute(component.ref, f"{field}.ref")
        return _call_factory(field, component, lambda: attribute(**component.args))
    if component.ref not in recipes:
        raise RejectedByWorker(f"{field}.ref: unknown {component.ref!r}; known: {', '.join(recipes)}")
    recipe = recipes[component.ref]
    try:
        args = recipe.args.model_validate(component.args)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise RejectedByWorker(f"{field}.args.{where}: {first['msg']}") from None
    return recipe.build(args, *of_files) if recipe.reads_files else recipe.build(args)


def _built_in(component: ComponentSpec, field: str, known: dict[str, Any], make: Callable[..., Any]) -> Any:
    if component.ref not in known:
        raise RejectedByWorker(f"{field}.ref: unknown {component.ref!r}; known: {', '.join(known)}")
    return _call_factory(field, component, lambda: make(component.ref, component.args))


def _call_factory(field: str, component: ComponentSpec, make: Callable[[], Any]) -> Any:
    """The result of `make`. Arguments that do not fit are an error of the spec; all other errors are the code's."""
    try:
        return make()
    except (TypeError, ValueError) as error:
        raise RejectedByWorker(f"{field}.args: {component.ref} does not take them: {error}") from error


def _import_attribute(ref: str, field: str) -> Any:
    """The attribute behind `package.module:attribute`."""
    module, _, path = ref.partition(":")
    try:
        value: Any = importlib.import_module(module)
        for name in path.split("."):
            value = getattr(value, name)
    except Exception as error:
        raise RejectedByWorker(f"{field}: cannot import {ref!r} here: {type(error).__name__}: {error}") from error
    return value


def check_fit(spec: JobSpec, model: nn.Module, dataset: Dataset[Any], loss: Loss | None) -> None:
    """Try one row on a copy of a built-in model, before any device is touched.

    The user's own models are not tried: their `forward` may do more than compute.

    Raises:
        RejectedByWorker: the shapes do not fit.
    """
    program = spec.recipe
    if ":" in program.model.ref or ":" in program.data.ref:
        return
    inputs, target = split_pair(default_collate([cast(Any, dataset)[0]]))
    trial = copy.deepcopy(model).eval()
    try:
        with torch.no_grad():
            outputs = trial(inputs)
            if loss is not None and target is not None and ":" not in cast(ComponentSpec, program.loss).ref:
                loss(outputs, target)
    except (RuntimeError, ValueError, IndexError) as error:
        raise RejectedByWorker(
            f"program.model: {program.model.ref!r} with the args given does not fit what data {program.data.ref!r} "
            f"yields (input {tuple(inputs.shape[1:])} a row): {error}"
        ) from error


def check_precision(spec: JobSpec, context: RankContext) -> None:
    """
    Raises:
        RejectedByWorker: the devices do not compute in the precision that is asked for.
    """
    wanted = spec.recipe.precision
    if wanted == "float16" and context.device_kind == "cpu":
        raise RejectedByWorker(
            'program.precision: "float16" needs cuda devices, and these are cpu; use "bfloat16" or "float32"'
        )
    if wanted == "bfloat16" and context.device_kind == "cuda" and not torch.cuda.is_bf16_supported():
        raise RejectedByWorker(
            'program.precision: these devices do not compute in "bfloat16"; use "float16" or "float32"'
        )


# -- loaders ---------------------------------------------------------------------------------------


def build_loader(spec: JobSpec, context: RankContext, dataset: Dataset[Any]) -> DataLoader[Any]:
    """One rank's loader. Under ddp a DistributedSampler assigns the rows to ranks."""
    data = spec.recipe.data
    sized = hasattr(dataset, "__len__")
    if data.shuffle and not sized:
        raise RejectedByWorker(f"program.data.shuffle: {data.ref} only iterates and cannot be shuffled; set false")
    if context.world_size == 1:
        return _make_loader(data, context, dataset, spec.recipe.seed, shuffle=data.shuffle, drop_last=data.drop_last)
    if not sized:
        raise RejectedByWorker(f"program.data.ref: {data.ref} only iterates; ddp needs a data set with a length")
    seed = spec.recipe.seed % 2**31
    if spec.weights is not None or data.uneven in ("drop", "weigh"):
        deal = deal_rows(spec, len(cast(Sized, dataset)))
        shares = ShareSampler(
            deal.rows,
            data.batch_size,
            deal.weights,
            rank=context.rank,
            shuffle=data.shuffle,
            seed=seed,
            uneven=deal.uneven,
            drop_last=data.drop_last,
        )
        return _make_loader(data, context, dataset, spec.recipe.seed, batch_size=1, batch_sampler=shares)
    sampler: DistributedSampler[Any] = DistributedSampler(
        dataset,
        context.world_size,
        context.rank,
        shuffle=data.shuffle,
        seed=seed,
        drop_last=data.drop_last,
    )
    return _make_loader(data, context, dataset, spec.recipe.seed, sampler=sampler, drop_last=data.drop_last)


def build_evaluation(data: EvaluationData, context: RankContext) -> DataLoader[Any]:
    """Every `world_size`-th row: no row is repeated to make the ranks equal, so sums over ranks are exact."""
    dataset = build_data(data, "program.evaluate.data", context)
    if context.world_size > 1:
        dataset = Subset(dataset, range(context.rank, len(cast(Any, dataset)), context.world_size))
    return _make_loader(data, context, dataset, 0)


def _make_loader(
    data: DataSpec | EvaluationData, context: RankContext, dataset: Dataset[Any], seed: int, **options: Any
) -> DataLoader[Any]:
    return DataLoader(
        dataset,
        num_workers=data.num_workers,
        multiprocessing_context="fork" if data.num_workers else None,
        pin_memory=context.device_kind == "cuda",
        collate_fn=collate_rows,
        generator=torch.Generator().manual_seed(seed + context.rank),
        **{"batch_size": data.batch_size, **options},
    )


# -- devices ---------------------------------------------------------------------------------------


def describe_devices(context: RankContext, strategy: strategies.PlacedModel) -> None:
    for device in context.devices:
        if device.kind == "cuda":
            found = torch.cuda.get_device_properties(device.position)
            strategy.recorder.emit(DeviceInfo(device.logical, found.name, found.total_memory))
        else:
            strategy.recorder.emit(DeviceInfo(device.logical, f"virtual device on {read_cpu_name()}"))
    if context.device_kind == "cpu":
        strategy.recorder.note("devices.memory_total_bytes", "virtual devices share the memory of the host")
        strategy.recorder.note("per_device.memory_peak_bytes", "virtual devices share the memory of the host")
    else:
        strategy.recorder.note(
            "per_device.memory_peak_bytes", "of the process's own tensors, read on the first ten steps and every tenth"
        )
