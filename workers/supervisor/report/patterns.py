"""Counts the steps of each way in which batches were divided, in bounded memory."""

from dataclasses import dataclass, field

import msgspec

from jobs.protocol.records import Shape
from shardyard.contract.report import Pattern

#: Different splits that a report keeps; the rest counts in one pattern of the phase "other".
MAX_PATTERNS = 256

PatternKey = tuple[str, str, int | None, tuple[int | None, ...]]


class WholeBatch(msgspec.Struct, frozen=True, array_like=True, eq=False):
    """The batches of all ranks in one step in one wrapped module, by logical device."""

    phase: str
    module: str
    batch_rows: int | None
    rows: tuple[int | None, ...]
    input_shapes: tuple[Shape | None, ...]
    output_shapes: tuple[Shape | None, ...]

    @property
    def key(self) -> PatternKey:
        return self.phase, self.module, self.batch_rows, self.rows


class PatternCount(msgspec.Struct, array_like=True):
    """Steps that were divided alike; `first` is the earliest of them, `None` where several splits count together."""

    first: WholeBatch | None
    shapes_vary: bool = False
    steps: int = 0
    first_step: int | None = None
    last_step: int | None = None

    def add(self, lowest: int, highest: int, steps: int) -> None:
        self.steps += steps
        self.first_step = lowest if self.first_step is None else min(self.first_step, lowest)
        self.last_step = highest if self.last_step is None else max(self.last_step, highest)


@dataclass(slots=True)
class PatternTable:
    """`kept` are counted each by itself, in the order in which they were first seen; `other` has the rest."""

    kept: dict[PatternKey, PatternCount] = field(default_factory=dict)
    other: PatternCount = field(default_factory=lambda: PatternCount(None))

    def add(self, lowest: int, highest: int, steps: int, batch: WholeBatch) -> None:
        """Count so many steps that were divided alike in one module; their numbers are from `lowest` to `highest`."""
        key = batch.key
        count = self.kept.get(key)
        if count is None and len(self.kept) < MAX_PATTERNS:
            count = self.kept[key] = PatternCount(batch)
        if count is None:
            count = self.other
        first = count.first
        if first is not None and first is not batch and not count.shapes_vary:
            count.shapes_vary = (first.input_shapes, first.output_shapes) != (batch.input_shapes, batch.output_shapes)
        count.add(lowest, highest, steps)

    @property
    def overflowed(self) -> bool:
        """Whether there were more different splits than are kept apart."""
        return self.other.steps > 0

    def listed_patterns(self) -> list[Pattern]:
        """For the report, without what `other` has."""
        return [_to_pattern(count.first, count) for count in self.kept.values() if count.first is not None]

    def to_report(self) -> tuple[Pattern, ...]:
        """For the report. The steps of the last one, of phase "other", may be of several phases."""
        other = self.other
        if not self.overflowed:
            return tuple(self.listed_patterns())
        beyond = Pattern("other", "", None, None, True, None, None, other.steps, other.first_step, other.last_step)
        return (*self.listed_patterns(), beyond)


def _to_pattern(batch: WholeBatch, count: PatternCount) -> Pattern:
    fields = msgspec.structs.asdict(batch) | msgspec.structs.asdict(count)
    del fields["first"]
    return Pattern(**fields)
