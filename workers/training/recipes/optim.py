"""Losses, optimizers and schedulers: torch's own, found by looking, under their names in snake case."""

import inspect
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules import loss as torch_losses
from torch.optim import Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

#: Names that the rule below would cut in odd places ("adam_w", "rm_sprop").
_ONE_WORD = frozenset({"AdamW", "NAdam", "RAdam", "RMSprop"})


def snake_case(name: str) -> str:
    """`BCEWithLogits` -> `bce_with_logits`, `AdamW` -> `adamw`, `RMSprop` -> `rmsprop`."""
    if name in _ONE_WORD:
        return name.lower()
    name = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower()


def _find_losses() -> dict[str, type[nn.Module]]:
    """The losses that the loop can call, as `loss(output, target)`, and that need no argument to be made."""
    found = {}
    for name in torch_losses.__all__:
        cls: type[nn.Module] = getattr(nn, name)
        if name == "NLLLoss2d":  # deprecated in torch: NLLLoss does the same
            continue
        if (
            _count_required(cls.forward) == 2
            and len(_method_parameters(cls.forward)) == 2
            and _count_required(cls.__init__) == 0
        ):
            found[snake_case(name.removesuffix("Loss"))] = cls
    return found


def _find_optimizers() -> dict[str, type[Optimizer]]:
    """The optimizers that step without a closure (LBFGS evaluates the model again and again within one step)."""
    found = {}
    for name in torch.optim.__all__:
        cls = getattr(torch.optim, name)
        if isinstance(cls, type) and issubclass(cls, Optimizer) and cls not in (Optimizer, torch.optim.LBFGS):
            found[snake_case(name)] = cls
    return found


def _method_parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Parameters of a method, less `self`."""
    return list(inspect.signature(function).parameters.values())[1:]


def _count_required(function: Callable[..., Any]) -> int:
    return sum(parameter.default is inspect.Parameter.empty for parameter in _method_parameters(function))


def _find_schedulers() -> dict[str, type[LRScheduler]]:
    """The schedulers that step without being told anything, and whose arguments are numbers and words."""
    found = {}
    for name in lr_scheduler.__all__:
        cls = getattr(lr_scheduler, name)
        needed = [p.name for p in _method_parameters(cls.__init__) if p.default is inspect.Parameter.empty]
        takes = set(needed) & {"lr_lambda", "schedulers"}  # functions, or other schedulers
        if issubclass(cls, LRScheduler) and cls is not LRScheduler and not takes and _count_required(cls.step) == 0:
            found[snake_case(name)] = cls
    return found


LOSSES: dict[str, type[nn.Module]] = _find_losses()
OPTIMIZERS: dict[str, type[Optimizer]] = _find_optimizers()
SCHEDULERS: dict[str, type[LRScheduler]] = _find_schedulers()


def build_loss(name: str, args: dict[str, Any]) -> nn.Module:
    """A loss of torch. Lists become tensors: class weights are the only arguments that are neither number nor word."""
    return LOSSES[name](**{key: torch.tensor(v) if isinstance(v, list) else v for key, v in args.items()})


def build_optimizer(name: str, parameters: Any, args: dict[str, Any]) -> Optimizer:
    """An optimizer of torch. Lists become tuples, as in `betas=(0.9, 0.999)`."""
    make: Callable[..., Optimizer] = OPTIMIZERS[name]
    return make(parameters, **{key: tuple(v) if isinstance(v, list) else v for key, v in args.items()})


def build_scheduler(name: str, optimizer: Optimizer, args: dict[str, Any]) -> LRScheduler:
    """A scheduler of torch, at its beginning."""
    make: Callable[..., LRScheduler] = SCHEDULERS[name]
    return make(optimizer, **args)
