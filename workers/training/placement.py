"""Places parts of a model on different devices, and moves tensors between them."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import torch
from torch import nn

Place = int | Literal["cpu"]


def complete_placement(model: nn.Module, placement: Mapping[str, Place]) -> dict[str, Place]:
    """The given placement, completed so that every sub-module belongs to exactly one part.

    Sub-modules that are not named go to logical device 0, in parts as large as possible: without any placement the
    whole model ("") is one part.

    Raises:
        KeyError: a path that the model does not have, or that lies inside another one.
    """
    known = dict(model.named_modules())
    for path in placement:
        if path not in known:
            raise KeyError(f"{path}: no such sub-module; the model has {_join_names(known)}")
        inside = next((other for other in placement if path.startswith(other + ".")), None)
        if inside is not None:
            raise KeyError(f"{path}: lies inside {inside}, which has its own device; name one of them")
    return dict(_parts_below(model, "", placement))


def _parts_below(module: nn.Module, path: str, placement: Mapping[str, Place]) -> Iterator[tuple[str, Place]]:
    below = f"{path}." if path else ""
    if path in placement:
        yield path, placement[path]
    elif not any(name.startswith(below) for name in placement):
        yield path, 0
    else:
        for name, child in module.named_children():
            yield from _parts_below(child, below + name, placement)


def place_parts(model: nn.Module, parts: Mapping[str, Place], devices: Mapping[Place, torch.device]) -> None:
    """Move each part to its device, and install hooks that move its inputs there too.

    Parameters and buffers of the modules around the parts go to device 0.
    """
    around = set(model.modules())
    for path, place in parts.items():
        part, device = model.get_submodule(path), devices[place]
        part.to(device)
        if path:  # the input of the whole model is there already
            part.register_forward_pre_hook(_input_mover(device), with_kwargs=True)
        around -= set(part.modules())
    for module in around:
        for parameter in module.parameters(recurse=False):
            parameter.data = parameter.data.to(devices[0])
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.to(devices[0]))


def _input_mover(device: torch.device) -> Any:
    def to_device(_: nn.Module, args: Any, kwargs: Any) -> Any:
        return move_tensors(args, device), move_tensors(kwargs, device)

    return to_device


def move_tensors(value: Any, device: torch.device) -> Any:
    """`value` with every tensor in nested tuples, lists and dicts on `device`."""
    return map_tensors(
        value, lambda tensor: tensor if tensor.device == device else tensor.to(device, non_blocking=True)
    )


def map_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """`value` with every tensor in nested tuples, lists and dicts changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return type(value)((key, map_tensors(part, change)) for key, part in value.items())
    if isinstance(value, (tuple, list)):
        make: Any = getattr(type(value), "_make", type(value))
        return make(map_tensors(part, change) for part in value)
    return value


def _join_names(known: Mapping[str, nn.Module]) -> str:
    names = [name for name in known if name]
    return ", ".join(names[:20]) + (", ..." if len(names) > 20 else "") if names else "none"
