"""Rows and shapes of whatever a module takes or returns."""

from collections.abc import Iterator
from typing import Any

import torch

from jobs.telemetry import Shape


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor in nested tuples, lists and dicts."""
    if isinstance(value, torch.Tensor):
        yield value
        return
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    for part in parts:
        yield from tensors_in(part)


def shape_of(value: Any) -> Shape | None:
    """Shape of the first tensor; None where there is none."""
    tensor = value if isinstance(value, torch.Tensor) else next(tensors_in(value), None)
    return None if tensor is None else tuple(tensor.shape)


def shape_of_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Shape | None:
    """Shape of the first tensor that a module is called with."""
    return shape_of(args[0] if args and isinstance(args[0], torch.Tensor) else (args, kwargs))


def rows_of(shape: Shape | None, dim: int) -> int | None:
    """Rows of a shape along `dim`; None where they cannot be counted."""
    if shape is None or not -len(shape) <= dim < len(shape):
        return None
    return shape[dim]
