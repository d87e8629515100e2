"""Follows how DistributedDataParallel synchronises gradients: which backwards of a step reduce them. No torch here.

Whether a backward reduces is decided by the forward before it: `no_sync()` around the backward alone changes nothing.
Two things are counted, of each wrapper whose parameters the optimizer of the step changes: steps whose last backward
did not reduce, although it made gradients, so that each rank takes a step of its own; and steps in which several
backwards did, while gradients were only added up in between. Programs that cut, keep or clear gradients between two
backwards need each reduction, and so a few parameters are looked at before and after each backward.
"""

import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from jobs.protocol.packets import AnyRecord
from jobs.protocol.probe_records import GradientSync
from workers.probe.gradients.loss_forms import LossForms
from workers.probe.step_records import ACTIVITY_SECONDS
from workers.probe.types import Forward

#: Wrappers of a process that are followed, and optimizers of each.
MAX_FOLLOWED = 16
#: Parameters of a wrapper whose gradients are looked at.
LOOKED_AT = 4

#: For each parameter looked at, the identity of its gradient and how often that was changed; None where it has none.
GradientMarks = tuple[tuple[int, int] | None, ...]


@dataclass(slots=True, eq=False)
class SyncHistory:
    """What has been seen of one DistributedDataParallel. `before` and `after` are about the backwards of the current
    step, by their positions in it."""

    number: int
    inside: str
    parameters: "list[weakref.ref[Any]]"  # that are looked at
    trained_numbers: int  # in all parameters that are trained
    gradient_bytes: int
    before: dict[int, GradientMarks] = field(default_factory=dict)
    after: dict[int, GradientMarks] = field(default_factory=dict)
    changed_by: dict[int, bool] = field(default_factory=dict)  # by identity of an optimizer
    unsynchronised: int = 0
    first_unsynchronised: int | None = None
    repeated: int = 0
    reductions: int = 0  # in repeated steps

    def read_marks(self) -> GradientMarks:
        return tuple([_gradient_mark(reference()) for reference in self.parameters])

    def is_changed_by(self, optimizer: Any) -> bool:
        """Whether an optimizer has parameters of this wrapper."""
        known = self.changed_by.get(id(optimizer))
        if known is None:
            own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
            known = any(id(reference()) in own for reference in self.parameters)
            if len(self.changed_by) < MAX_FOLLOWED:
                self.changed_by[id(optimizer)] = known
        return known

    def makes_gradients(self, backward: int) -> bool:
        """Whether a backward of this step has changed gradients."""
        return backward in self.after and self.before.get(backward) != self.after[backward]

    def only_adds(self, backwards: Sequence[int]) -> bool:
        """Whether gradients were there after each of these backwards, and nothing touched them until the next one."""
        return all(
            any(self.after.get(one, ())) and self.after[one] == self.before.get(later)
            for one, later in pairwise(backwards)
        )

    def count_step(self, step: int, reduces: dict[int, bool]) -> bool:
        """Count a step by its backwards, and whether each of them reduces; whether there is anything to report."""
        last, reductions = max(reduces), sum(reduces.values())
        if not reduces[last] and self.makes_gradients(last):
            self.unsynchronised += 1
            if self.first_unsynchronised is None:
                self.first_unsynchronised = step
            return True
        if reduces[last] and reductions > 1 and self.only_adds(sorted(reduces)):
            self.repeated += 1
            self.reductions += reductions
            return True
        return False

    def to_record(self, exchanged: int) -> GradientSync:
        return GradientSync(
            number=self.number,
            inside=self.inside,
            unsynchronised=self.unsynchronised,
            first_unsynchronised=self.first_unsynchronised,
            repeated=self.repeated,
            reductions=self.reductions,
            gradient_bytes=self.gradient_bytes,
            trained_numbers=self.trained_numbers,
            exchanged=exchanged,
        )


class GradientTracker:
    """Follows the wrappers of one process. `exchanged` tells how many numbers the program itself has exchanged with
    other processes since it trains."""

    def __init__(self, emit: Callable[[AnyRecord], None], exchanged: Callable[[], int]) -> None:
        self._emit = emit
        self._exchanged = exchanged
        self._histories: weakref.WeakKeyDictionary[Any, SyncHistory | None] = weakref.WeakKeyDictionary()
        self._followed = 0
        self.loss_forms = LossForms()
        self._unsent: dict[int, SyncHistory] = {}
        self._sent_at = 0.0

    def follow(self, forward: Forward) -> SyncHistory | None:
        """The history of the wrapper whose gradients a backward of this forward makes; None where there is none."""
        wrapper = _wrapper_of(forward)
        if wrapper is None:
            return None
        if wrapper not in self._histories:
            history = _new_history(self._followed, wrapper) if self._followed < MAX_FOLLOWED else None
            self._followed += history is not None
            self._histories[wrapper] = history
        return self._histories[wrapper]

    def end_step(self, forwards: Sequence[Forward], backwards: int, optimizer: Any, step: int) -> None:
        """An optimizer has taken step number `step`."""
        by_history: dict[int, tuple[SyncHistory, dict[int, bool]]] = {}
        for forward in forwards:
            history, backward = self.follow(forward), forward.backwards_before
            if history is not None and backward < backwards:
                _, reduces = by_history.setdefault(history.number, (history, {}))
                reduces[backward] = reduces.get(backward, False) or forward.call.reductions is not None
        for history, reduces in by_history.values():
            if history.is_changed_by(optimizer) and history.count_step(step, reduces):
                self._unsent[history.number] = history
        if self._unsent and time.perf_counter() - self._sent_at > ACTIVITY_SECONDS:
            self.send()

    def look_at_loss(self, losses: Any, rows: int | None) -> None:
        """A backward begins, of `losses` of so many rows."""
        form = self.loss_forms.look_at(losses, rows)
        if form is not None:
            self._emit(form)

    def send(self) -> None:
        self._sent_at, unsent, self._unsent = time.perf_counter(), self._unsent, {}
        for history in unsent.values():
            self._emit(history.to_record(self._exchanged()))


def _new_history(number: int, wrapper: Any) -> SyncHistory | None:
    """None where the wrapper has no other ranks."""
    group = getattr(wrapper, "process_group", None)
    trained = [parameter for parameter in wrapper.parameters() if parameter.requires_grad]
    if group is None or group.size() < 2 or not trained:
        return None
    places = {round(index * (len(trained) - 1) / (LOOKED_AT - 1)) for index in range(LOOKED_AT)}
    return SyncHistory(
        number=number,
        inside=type(wrapper.module).__name__,
        parameters=[weakref.ref(trained[place]) for place in sorted(places)],
        trained_numbers=sum(parameter.numel() for parameter in trained),
        gradient_bytes=sum(parameter.numel() * parameter.element_size() for parameter in trained),
    )


def _wrapper_of(forward: Forward) -> Any:
    root = forward.call.root
    if root.kind != "ddp" or not forward.call.with_grad or root.wrapper is None:
        return None
    return root.wrapper()


def _gradient_mark(parameter: Any) -> tuple[int, int] | None:
    gradient = None if parameter is None else parameter.grad
    return None if gradient is None else (id(gradient), gradient._version)
