"""The log lines that say what each device got of a batch, in the wording of PyTorch's own tutorials."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from jobs.protocol.records import BatchSplit, Shape, Step

#: Under `observe: auto`, steps of a phase that are all printed; later ones only when the split changes.
ALWAYS_PRINTED = 1000
#: Lines about the steps that come together; a step may name splits by the thousand.
MAX_LINES = 32_768


@dataclass(frozen=True, slots=True)
class ShardLine:
    """One line of a logical device's log."""

    device: int
    step: int
    phase: str
    text: str


class ShardLinePrinter:
    """Decides which steps are printed: `every` one, none (`off`), or by the rule of `auto`."""

    def __init__(self, observe: Literal["auto", "every", "off"], dim: int) -> None:
        self._observe = observe
        self._dim = dim
        self._last: dict[tuple[int, str], list[object]] = {}  # by rank and phase: what its lines showed

    def lines(self, rank: int, steps: Sequence[Step], splits: Sequence[BatchSplit]) -> list[ShardLine]:
        """The lines of one rank's steps, one or several of one phase that were divided alike; `splits` has one entry
        for each forward in such a step."""
        due = self._steps_to_print(rank, steps, splits)
        if not due:
            return []
        texts = list(islice((line for split in splits for line in lines_of_split(split, self._dim)), MAX_LINES))
        lines = (ShardLine(device, step.step, step.phase, text) for step in due for device, text in texts)
        return list(islice(lines, MAX_LINES))

    def shows_each(self, first: int) -> bool:
        """Whether steps from this one on are printed although they were divided alike."""
        return self._observe == "every" or (self._observe == "auto" and first < ALWAYS_PRINTED)

    def _steps_to_print(self, rank: int, steps: Sequence[Step], splits: Sequence[BatchSplit]) -> Sequence[Step]:
        if self._observe != "auto":
            return steps if self._observe == "every" else ()
        first = steps[0]
        now: list[object] = [(split.devices, split.rows, split.input_shapes, split.output_shapes) for split in splits]
        changed = now != self._last.get((rank, first.phase))
        self._last[rank, first.phase] = now
        return [step for step in steps if step.step < ALWAYS_PRINTED or (changed and step is first)]


def lines_of_split(split: BatchSplit, dim: int) -> tuple[tuple[int, str], ...]:
    """(Logical device, text) of one line for each device that got something, and one for the whole batch on the first.

    The whole batch is the shards put together along `dim`.
    """
    busy = [i for i, rows in enumerate(split.rows) if rows != 0]
    inputs = [split.input_shapes[i] for i in busy]
    outputs = [split.output_shapes[i] for i in busy]
    if all(shape is None for shape in [*inputs, *outputs]):  # nobody got anything, or nothing was seen
        return ()
    shards = [
        (split.devices[i], f"In Model: input size {_format_size(given)} output size {_format_size(made)}")
        for i, given, made in zip(busy, inputs, outputs, strict=True)
    ]
    given, made = (_format_size(_gathered_shape(shapes, dim)) for shapes in (inputs, outputs))
    whole = f"Outside: input size {given} output_size {made}"
    return (*shards, (split.devices[busy[0]], whole))


def _format_size(shape: Shape | None) -> str:
    return "unknown" if shape is None else f"torch.Size({list(shape)})"


def _gathered_shape(shapes: Sequence[Shape | None], dim: int) -> Shape | None:
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
