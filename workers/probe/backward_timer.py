"""How long each shard's backward takes when one process computes several.

The autograd engine interleaves the shards of a batch (their operations were numbered in threads of
their own, and the engine goes by those numbers), so the moments when a shard's backward begins and
ends say nothing. What can be measured is each operation: the graph of a shard, from its outputs down
to the replica's parameters and inputs, belongs to it alone, and so the times of its nodes add up to
the shard's own.
"""

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from workers.probe.shapes import tensors_in

if TYPE_CHECKING:
    import torch
    from torch.autograd.graph import Node


def time_backward(outputs: Any, boundary: "Iterable[torch.Tensor]", spent: list[float | None], position: int) -> None:
    """Add the milliseconds of every operation between `boundary` and `outputs` to `spent[position]`, as it runs.

    `boundary` are the tensors at which the shard's own graph ends: what makes them is not counted.
    Works for devices that compute synchronously (cpu).
    """
    begun = 0.0

    def begin(_: Any) -> None:
        nonlocal begun
        begun = time.perf_counter()

    def end(_: Any, __: Any) -> None:
        spent[position] = (spent[position] or 0.0) + (time.perf_counter() - begun) * 1000.0

    outside = {tensor.grad_fn for tensor in boundary}
    for node in _graph((tensor.grad_fn for tensor in tensors_in(outputs)), outside):
        node.register_prehook(begin)
        node.register_hook(end)


def _graph(roots: "Iterable[Node | None]", outside: "set[Node | None]") -> "Iterator[Node]":
    seen = outside | {None}
    waiting = list(roots)
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        waiting += [parent for parent, _ in node.next_functions]


def leaves_of(replica: Any) -> "list[torch.Tensor]":
    """The parameters of one of DataParallel's replicas: tensors that lead back to those of the original."""
    modules = replica.modules() if hasattr(replica, "modules") else ()
    return [tensor for module in modules for tensor in getattr(module, "_former_parameters", {}).values()]
