"""Checks the rows of forwards against the batches that the loaders delivered. No torch here.

A batch that is cut by hand agrees when its pieces add up. Where the loaders have delivered nothing for some steps,
there is nothing to compare with.
"""

from collections import deque

from workers.probe.step_records import RunReporter
from workers.probe.types import NO_BATCHES, Forward, LoadedBatches, StepTemplate

#: Batches of the loaders with which the rows of a forward are compared: frameworks load one ahead.
RECENT_BATCHES = 4
#: After so many steps without a batch from a loader, its batches are no longer compared with.
MAX_STEPS_WITHOUT_BATCH = 2

UNCHECKED = "rows are the first dimension of the first input: no DataLoader was there to compare with"
UNBATCHED = (
    "the first input of {} seems to have no dimension of rows: its first dimension does not fit that of the outputs, "
    "so its rows are not counted"
)
DISAGREES = (
    "the first dimension of the first input of {} is {}, and the batches of the DataLoader have {} rows: "
    "where they disagree (sequence first, inputs without a batch dimension) rows are not counted"
)


class RowChecker:
    """Holds what the loaders delivered, and decides whether the rows of a forward can be trusted."""

    def __init__(self, reporter: RunReporter) -> None:
        self.loaded = NO_BATCHES  # since the last forward
        self._recent: deque[int] = deque(maxlen=RECENT_BATCHES)
        self._steps_without_batch = 0
        self._reporter = reporter

    def add_batch(self, asked: float, arrived: float, rows: int | None) -> None:
        loaded, waited = self.loaded, arrived - asked
        if loaded.waited is None:
            self.loaded = LoadedBatches(arrived, waited, 0.0, rows or 0)
        else:
            waited_later, all_rows = loaded.waited_later + waited, loaded.rows + (rows or 0)
            self.loaded = LoadedBatches(loaded.arrived, loaded.waited + waited, waited_later, all_rows)
        if rows is not None:
            self._recent.append(rows)

    def take_batches(self) -> LoadedBatches:
        """What was loaded since the last forward; it belongs to the next one."""
        loaded, self.loaded = self.loaded, NO_BATCHES
        return loaded

    @property
    def is_without_loader(self) -> bool:
        return not self._recent or self._steps_without_batch > MAX_STEPS_WITHOUT_BATCH

    def take_if_trusted(self, template: StepTemplate) -> LoadedBatches | None:
        """What was loaded for the next step of a template; None where its rows have to be checked in full."""
        loaded, recent = self.loaded, self._recent
        without = 0 if loaded.rows else self._steps_without_batch + 1
        compares = recent and without <= MAX_STEPS_WITHOUT_BATCH
        if template.rows not in recent if compares else not template.without_loader:
            return None
        self._steps_without_batch, self.loaded = without, NO_BATCHES
        return loaded

    def check_step(self, forwards: list[Forward], rows: dict[int, int]) -> list[bool]:
        """Whether the rows of each forward can be trusted; `rows` are those of each model in the step."""
        loaded_rows = sum([forward.loaded.rows for forward in forwards])
        self._steps_without_batch = 0 if loaded_rows else self._steps_without_batch + 1
        if self.is_without_loader:
            return [self._agrees_with_output(forward) for forward in forwards]
        return [
            self._agrees_with_batches(forward, rows[id(forward.call.root.model)], loaded_rows) for forward in forwards
        ]

    def check_simple(self, forward: Forward) -> bool:
        """The same for a step of one forward."""
        rows = forward.call.rows
        if forward.loaded.rows and rows in self._recent:
            self._steps_without_batch = 0
            return True
        return self.check_step([forward], {id(forward.call.root.model): rows or 0})[0]

    def _agrees_with_batches(self, forward: Forward, total: int, loaded_rows: int) -> bool:
        rows = forward.call.rows
        if rows is None or rows in self._recent or total in self._recent or total == loaded_rows:
            return True
        batches = " or ".join(map(str, sorted(set(self._recent))))
        self._reporter.note("patterns.rows", DISAGREES.format(forward.call.root.model.class_name, rows, batches))
        return False

    def _agrees_with_output(self, forward: Forward) -> bool:
        """Without a DataLoader: outputs have one row, or several, for each row of the input."""
        rows = forward.call.rows
        if rows is None or forward.sharded.is_scattered:
            return True
        self._reporter.note("patterns.rows", UNCHECKED)
        if forward.output_shape and rows and forward.output_shape[0] % rows:
            self._reporter.note("patterns.rows", UNBATCHED.format(forward.call.root.model.class_name))
            return False
        return True
