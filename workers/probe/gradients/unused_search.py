"""Finds out whether a DistributedDataParallel searches for unused parameters that it never finds. No torch here.

The wrapper itself knows whether a parameter was out of the graph of any forward so far. What it cannot know are outputs
that a loss leaves out: then a gradient is missing. That shows where gradients are made anew in every step, which is so
if their numbers of changes stay the same.
"""

from dataclasses import dataclass
from itertools import islice
from typing import Any

from jobs.protocol.probe_records import ParameterSearch

#: Gradients whose changes are counted.
COUNTED = 4
#: Iterations after which looks are reported.
FIRST_REPORTED = 10


@dataclass(slots=True, eq=False)
class UnusedSearch:
    """What was seen of the search of one wrapper."""

    number: int
    inside: str
    looks: int = 0
    is_needed: bool = False
    changes: tuple[int, ...] = ()  # of some gradients, at the last look

    def look_at(self, wrapper: Any, uses_all: bool, iteration: int) -> ParameterSearch | None:
        """To be called after a step, with what the wrapper says of all forwards so far. The record, if one is due."""
        was_needed, gradients = self.is_needed, [each.grad for each in wrapper.parameters() if each.requires_grad]
        self.is_needed = was_needed or not uses_all or any(gradient is None for gradient in gradients)
        if self.is_needed:
            return None if was_needed else self._to_record(iteration)
        changes = tuple(gradient._version for gradient in islice(gradients, COUNTED))
        self.looks += changes == self.changes
        self.changes = changes
        return self._to_record(iteration) if iteration > FIRST_REPORTED else None

    def _to_record(self, iteration: int) -> ParameterSearch:
        return ParameterSearch(self.number, self.inside, self.looks, iteration, self.is_needed)
