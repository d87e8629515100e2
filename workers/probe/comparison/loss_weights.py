"""What a token, or any element of a target, weighs in the losses of the first backwards.

The graph of a loss says over how many elements it is a mean, and by what the program multiplies it afterwards. The walk
ends at the node of the loss function; where a node is met that it does not know, nothing is said. Values on a device
that has a clock of its own are read when the program ends, so that nothing waits for it. No torch here.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from jobs.protocol.packets import AnyRecord
from jobs.protocol.probe_records import LossWeight, LossWeights

#: Backwards that are read, and nodes from the loss to its function.
MAX_BACKWARDS, MAX_NODES = 16, 32
#: Nodes that leave a loss as it is, apart from its shape or type.
NEUTRAL = frozenset(
    {
        *("AliasBackward0", "CloneBackward0", "ReshapeAliasBackward0", "SqueezeBackward0", "SqueezeBackward1"),
        *("ToCopyBackward0", "UnsqueezeBackward0", "UnsafeViewBackward0", "ViewBackward0", "SumBackward0"),
        "_DDPSinkBackward",
    }
)
NLL = frozenset({"NllLossBackward0", "NllLoss2DBackward0"})
ELEMENTWISE = frozenset(
    {
        *("MseLossBackward0", "SmoothL1LossBackward0", "HuberLossBackward0", "BinaryCrossEntropyBackward0"),
        "BinaryCrossEntropyWithLogitsBackward0",
    }
)
#: How torch numbers reductions.
NONE, MEAN = 0, 1


@dataclass(slots=True)
class _LossGraph:
    """From a loss down to its function: by what it is multiplied and divided, and the number of its elements."""

    factors: list[Any] = field(default_factory=list)
    divisors: list[Any] = field(default_factory=list)
    elements: Any = None

    def weight(self, rows: int | None) -> LossWeight:
        weight = 1.0
        for factor in self.factors:
            weight *= float(factor)
        for divisor in self.divisors:
            weight /= float(divisor)
        return LossWeight(rows, float(self.elements), weight)


class LossWeightReader:
    """Reads the first backwards of a process, and sends them as one record."""

    def __init__(self, emit: Callable[[AnyRecord], None]) -> None:
        self.wants_more = False  # there are other ranks, and too few backwards were read
        self._emit = emit
        self._read: list[tuple[int | None, _LossGraph]] = []

    def add_backward(self, losses: Any, rows: int | None, *, on_host: bool) -> None:
        """A backward begins; `rows` are those of the forwards before it."""
        try:
            graph = _read_graph(losses)
        except Exception:  # noqa: BLE001  (nodes are private to torch, and hooks of the program may raise anything)
            graph = None
        if graph is not None:
            self._read.append((rows, graph))
        self.wants_more = graph is not None and len(self._read) < MAX_BACKWARDS
        if on_host and not self.wants_more:
            self.send()

    def send(self) -> None:
        """Send what was read."""
        read, self._read, self.wants_more = self._read, [], False
        try:
            weights = tuple([graph.weight(rows) for rows, graph in read])
        except Exception:  # noqa: BLE001  (the device may have failed)
            return
        if weights:
            self._emit(LossWeights(weights))


def _read_graph(loss: Any) -> _LossGraph | None:
    graph, node, output = _LossGraph(), loss.grad_fn, loss.output_nr
    for _ in range(MAX_NODES):
        name = type(node).__name__
        if name in NLL or name in ELEMENTWISE:
            return graph if _read_function(graph, node, name) else None
        if name == "MulBackward0":
            graph.factors += _scalars(node._saved_self, node._saved_other)
        elif name == "DivBackward0":
            graph.divisors += [_as_scalar(node._saved_other)]
        elif name == "MeanBackward0":
            graph.divisors.append(node._saved_self_sym_numel)
        elif name not in NEUTRAL:
            return None
        following = [(child, number) for child, number in node.next_functions if _leads_on(child)]
        if name == "_DDPSinkBackward":
            following = following[output : output + 1]
        if len(following) != 1:
            return None
        node, output = following[0]
    return None


def _leads_on(node: Any) -> bool:
    return node is not None and type(node).__name__ != "AccumulateGrad"


def _read_function(graph: _LossGraph, node: Any, name: str) -> bool:
    """Whether it is known how many elements a loss function was a mean over, or a sum."""
    if getattr(node, "_saved_weight", None) is not None:  # elements weigh differently as it is
        return False
    elements = node._saved_target.numel()
    if name in NLL and node._saved_reduction != NONE:
        elements = node._saved_total_weight  # without those to be ignored
    graph.elements = elements
    if node._saved_reduction == MEAN:
        graph.divisors.append(elements)
    return True


def _scalars(*values: Any) -> Iterator[Any]:
    """Numbers by which a loss is multiplied; a mask has many."""
    return (value.detach().clone() for value in values if value is not None and value.numel() == 1)


def _as_scalar(value: Any) -> Any:
    if value.numel() != 1:
        raise ValueError("each element is divided by a number of its own")
    return value.detach().clone()
