"""Rows and shapes of whatever a module takes or returns. torch is looked up when needed, and not imported before."""

import dataclasses
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from jobs.protocol.records import Shape

if TYPE_CHECKING:
    import torch

#: Values looked at in search of a tensor: a list of a million numbers has none.
MAX_LOOKS = 256
_NO_PARTS: tuple[Any, ...] = ()


def tensors_in(value: Any) -> "Iterator[torch.Tensor]":
    """The tensors in nested tuples, lists, mappings and dataclasses, as far as `MAX_LOOKS` values go in lists."""
    if isinstance(value, sys.modules["torch"].Tensor):
        yield value
        return
    for part in _parts(value):
        yield from tensors_in(part)


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, (list, tuple)):
        return value if len(value) <= MAX_LOOKS else value[:MAX_LOOKS]
    if isinstance(value, Mapping):
        return value.values()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, part.name, None) for part in dataclasses.fields(value)]
    return _NO_PARTS


def shape_of(value: Any) -> Shape | None:
    """Shape of the first tensor; None where there is none, or where it has no fixed shape."""
    tensor = value if isinstance(value, sys.modules["torch"].Tensor) else next(tensors_in(value), None)
    if tensor is None or tensor.is_nested:
        return None
    return tuple(tensor.shape)


def shape_of_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Shape | None:
    """Shape of the first tensor that a module is called with."""
    return shape_of(args[0] if args and isinstance(args[0], sys.modules["torch"].Tensor) else (args, kwargs))


def has_embedding(model: Any) -> bool:
    """Whether an nn.Embedding is among the parts of a model."""
    kind = sys.modules["torch"].nn.Embedding
    return any(isinstance(part, kind) for part in model.modules())


def are_token_ids(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the first tensor that a model is called with may hold token ids: whole numbers in two dimensions."""
    torch = sys.modules["torch"]
    first = next(tensors_in((args, kwargs)), None)
    return first is not None and first.dtype in (torch.int64, torch.int32, torch.int16) and first.dim() == 2


def rows_of(shape: Shape | None, dim: int) -> int | None:
    """Rows of a shape along `dim`; None where they cannot be counted."""
    if shape is None or not -len(shape) <= dim < len(shape):
        return None
    return shape[dim]
