"""The log lines that say what each device got of a batch, in the wording of PyTorch's own tutorials."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from jobs.telemetry import Shape, Split, Step

#: Under `observe: auto`, steps of a phase that are all printed; later ones only when the split changes.
ALWAYS_PRINTED = 1000


@dataclass(frozen=True, slots=True)
class ShardLine:
    """One line of a logical device's log."""

    device: int
    step: int
    phase: str
    text: str


#: (logical device, text) of everything that one split prints.
Lines = tuple[tuple[int, str], ...]


class Printer:
    """Decides which steps are printed: `every` one, none (`off`), or by the rule of `auto`."""

    def __init__(self, observe: Literal["auto", "every", "off"]) -> None:
        self._observe = observe
        self._last: dict[tuple[int, str], tuple[Lines, ...]] = {}

    def lines(self, rank: int, step: Step, splits: Sequence[Lines]) -> list[ShardLine]:
        """The lines of one rank's step; `splits` has the lines of each forward in it."""
        if self._observe == "off":
            return []
        now = tuple(splits)
        before = self._last.get((rank, step.phase))
        self._last[rank, step.phase] = now
        if self._observe == "auto" and step.step >= ALWAYS_PRINTED and now == before:
            return []
        return [ShardLine(device, step.step, step.phase, text) for lines in now for device, text in lines]


def lines_of(split: Split, dim: int) -> Lines:
    """One line for each device that got something, then one for the whole batch on the first of these.

    The whole batch is the shards put together along `dim`.
    """
    busy = [i for i, rows in enumerate(split.rows) if rows != 0]
    if not busy:
        return ()
    inputs = [split.input_shapes[i] for i in busy]
    outputs = [split.output_shapes[i] for i in busy]
    shards = [
        (split.devices[i], f"In Model: input size {_size(given)} output size {_size(made)}")
        for i, given, made in zip(busy, inputs, outputs, strict=True)
    ]
    whole = f"Outside: input size {_size(_together(inputs, dim))} output_size {_size(_together(outputs, dim))}"
    return (*shards, (split.devices[busy[0]], whole))


def _size(shape: Shape | None) -> str:
    return "unknown" if shape is None else f"torch.Size({list(shape)})"


def _together(shapes: Sequence[Shape | None], dim: int) -> Shape | None:
    """Shape of all shards put together along `dim`; `None` when they do not fit each other.

    Shards without any dimension are stacked, as DataParallel's gather does with a loss.
    """
    known = [list(shape) for shape in shapes if shape is not None]
    if len(known) < len(shapes):
        return None
    if len(known) == 1:
        return tuple(known[0])
    if all(not shape for shape in known):
        return (len(known),)
    rank = len(known[0])
    if any(len(shape) != rank for shape in known) or not -rank <= dim < rank:
        return None
    total = sum(shape.pop(dim) for shape in known)
    rest = known[0]
    if any(shape != rest for shape in known):
        return None
    rest.insert(dim % rank, total)
    return tuple(rest)
