"""Tells whether the graph of a forward still exists: without it, no backward can follow. No torch here.

A mark is put into the metadata that autograd keeps for the nodes of a graph, and a weak reference to it tells when the
last of these nodes is gone. Tensors and modules stay as they are.
"""

import weakref
from itertools import islice
from typing import Any

from workers.probe.shapes import tensors_in

#: Outputs of one forward that are marked.
MAX_OUTPUTS = 8


class GraphMark:
    """Lives as long as the nodes that it was put into."""

    __slots__ = ("__weakref__",)


def mark_graph(outputs: Any) -> "weakref.ref[GraphMark] | None":
    """A reference that is dead once the graph of all outputs is gone; None where they have no graph that shows."""
    mark = GraphMark()
    nodes = [tensor.grad_fn for tensor in islice(tensors_in(outputs), MAX_OUTPUTS) if tensor.grad_fn is not None]
    for node in nodes:
        kept: Any = node.metadata  # a dict, which torch declares as a function
        kept[mark] = None
    return weakref.ref(mark) if nodes else None
