"""Tells how a loss is made from its rows: as their mean, their sum, or in a way that cannot be seen. No torch here.

What is looked at are the nodes of autograd's graph next to the loss: arithmetic with single numbers, then the mean, the
sum or the loss function (which keeps its `reduction`). Each number of rows is looked at once.
"""

from collections.abc import Callable
from typing import Any

from jobs.protocol.probe_records import LossForm

#: Nodes of a graph that are looked at, and numbers of rows of a process.
MAX_NODES, MAX_FORMS = 64, 16
#: Nodes that change the value of a loss by a factor.
FACTORS = {"MulBackward0": 1, "DivBackward0": -1}
#: Nodes that pass a loss on, or add losses up.
PASSING = (
    *("AddBackward", "NegBackward", "ToCopyBackward", "CloneBackward", "AliasBackward", "ViewBackward"),
    *("SqueezeBackward", "UnsqueezeBackward", "ReshapeAliasBackward", "UnsafeViewBackward"),
)
#: Nodes that make a vector of the single numbers of several devices.
GATHERING = ("GatherBackward", "StackBackward", "CatBackward")
#: What loss functions keep as their reduction.
REDUCTIONS = {0: "none", 1: "mean", 2: "sum"}


class _Look:
    """One look at a loss. `is_scale` tells factors that are there against underflow, and taken out again."""

    def __init__(self, is_scale: Callable[[Any], bool]) -> None:
        self._is_scale = is_scale
        self.kinds: set[str] = set()
        self.factors: set[float] = set()
        self.gathered = 0

    def follow(self, node: Any, factor: float, left: int) -> int:
        """Look at a node and what is behind it; returns how many nodes may still be looked at."""
        if node is None or left <= 0:
            self.kinds.add("unknown")
            return 0
        name = type(node).__name__
        parents = [parent for parent, _ in node.next_functions if parent is not None]
        if name in FACTORS:
            own = self._factor_of(node)
            if own is None:
                self.kinds.add("unknown")
                return left
            factor *= own ** FACTORS[name]
        elif name.startswith(("MeanBackward", "SumBackward")):
            gathering = parents[0] if parents and type(parents[0]).__name__.startswith(GATHERING) else None
            if gathering is None:
                self._end("mean" if name.startswith("Mean") else "sum", factor)
                return left - 1
            parents = [parent for parent, _ in gathering.next_functions if parent is not None]
            self.gathered = max(self.gathered, len(parents))
        elif not name.startswith(PASSING):
            self._end(REDUCTIONS.get(getattr(node, "_saved_reduction", -1), "unknown"), factor)
            return left - 1
        for parent in parents:
            left = self.follow(parent, factor, left - 1)
        if not parents:
            self.kinds.add("unknown")
        return left

    def _factor_of(self, node: Any) -> float | None:
        """The number that a loss is multiplied with, or divided by; None where it is not known, or on a device for
        which we would have to wait."""
        other = getattr(node, "_saved_other", None)
        if other is None or isinstance(other, (int, float)):
            return other or None
        if other.dim() or other.requires_grad:
            return None
        if self._is_scale(other):
            return 1.0
        return None if other.get_device() >= 0 else float(other) or None

    def _end(self, kind: str, factor: float) -> None:
        self.kinds.add(kind)
        self.factors.add(factor)


def describe_loss(loss: Any, rows: int, is_scale: Callable[[Any], bool]) -> LossForm | None:
    """How the loss of so many rows is made of them; None where it has no graph."""
    node = getattr(loss, "grad_fn", None)
    if node is None:
        return None
    look = _Look(is_scale)
    look.follow(node, 1.0, MAX_NODES)
    kind = look.kinds.pop() if len(look.kinds) == 1 else "unknown"
    return LossForm(rows, kind, tuple(sorted(look.factors))[:MAX_FORMS], look.gathered)


class LossForms:
    """The forms of one process, one for each number of rows."""

    def __init__(self) -> None:
        self.is_scale: Callable[[Any], bool] = lambda factor: False
        self._seen: set[int] = set()

    def look_at(self, losses: Any, rows: int | None) -> LossForm | None:
        """The form of a loss of a number of rows that was not looked at yet."""
        if rows is None or rows in self._seen or len(self._seen) >= MAX_FORMS:
            return None
        self._seen.add(rows)
        several = losses if isinstance(losses, (list, tuple)) else (losses,)
        try:
            return describe_loss(several[0], rows, self.is_scale) if len(several) == 1 else None
        except Exception:  # noqa: BLE001  (nodes of any kind, whose tensors may be gone)
            return None
