"""Decides which forwards and backwards make a step. The rules are in `workers.probe.probe`. No torch here."""

import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from jobs.protocol.records import FLOP_STEP
from workers.probe.clock import Mark, Span
from workers.probe.comparison.loss_weights import LossWeightReader
from workers.probe.flop_count import FIELD, SEVERAL, FlopCount
from workers.probe.gradients.synchronisation import GradientTracker, SyncHistory
from workers.probe.module_registry import ModuleRegistry
from workers.probe.shapes import rows_of
from workers.probe.steps.row_checker import RowChecker
from workers.probe.steps.step_sender import StepSender
from workers.probe.types import NO_BATCHES, Backward, Forward, OptimizerBegin, StepTemplate

#: Forwards that wait for their optimizer step. A program that has more of them takes no steps that can be seen.
MAX_WAITING = 2048
#: The same before the first step.
FIRST_WAITING = 512
#: Without optimizers, a step is over when nothing has followed its backward for so long, though a second may follow.
QUIET_SECONDS = 0.5
#: After so many times without a step a note says that there are none.
MANY = 64

NO_STEPS = "no optimizer step was seen: a backward counts as a step, and so does a forward without one"
LEFT_OVER = "some forwards in training mode, with gradients, led to no optimizer step: they are in phase forward"
SKIPPED = "GradScaler skipped the optimizer in some steps, since gradients were not finite; these steps are counted"


class UpdateWindow(msgspec.Struct, eq=False):
    """What has happened since the last step."""

    forwards: list[Forward] = []
    backwards: list[Backward] = []
    reduces: bool = False  # gradients of some forward will be reduced
    histories: dict[int, SyncHistory] = {}  # of the DistributedDataParallels that take part, by number


class StepBuilder:
    """Takes the events of a program in their order, and hands complete steps to the sender."""

    def __init__(self, sender: StepSender, models: ModuleRegistry) -> None:
        self.sender = sender
        self.reporter = sender.reporter
        #: Called after a step of one simple forward: with the forward, the phase, and the id of its split.
        self.on_simple_step: Callable[[Forward, str, int], None] = lambda forward, phase, split: None
        self._models = models
        self.gradients = GradientTracker(self.reporter.emit, lambda: self.reporter.exchanged_numbers)
        self._window = UpdateWindow()
        self._undecided: Forward | None = None  # in eval mode, with gradients: training only if a backward follows
        self._has_manual_updates = False  # gradients are made, and no optimizer uses them
        self._is_blind = False  # there are optimizers, and their steps are not seen
        self._closed_without_step = 0  # times that forwards were sent without a step
        self._lock = threading.RLock()  # of all this: the sink's thread ends steps that nothing follows
        self._last_event = 0.0
        self._is_in_backward = False
        self._closed_early = False  # since the last forward
        self.losses = LossWeightReader(sender.reporter.emit)

    @property
    def rows(self) -> RowChecker:
        return self.sender.rows

    # -- forwards --------------------------------------------------------------------------------

    def forward_begins(self, trains: bool) -> None:
        """A forward begins: what waited for it to decide is settled, and the record goes out that it has begun."""
        with self._lock:
            self.settle()
            self._closed_early = self._is_in_backward = False
            learns = self._models.has_optimizers or self._has_manual_updates
            phase = "eval" if not trains else "train" if learns else "forward"
            if phase == "eval" or not self._window.forwards:
                self.sender.announce_step(phase)

    def forward_ends(self, forward: Forward) -> None:
        with self._lock:
            self._last_event = forward.ended
            self.reporter.forwards += 1
            forward.backwards_before = len(self._window.backwards)
            forward.loaded = self.rows.take_batches()
            call = forward.call
            if not call.with_grad or not (call.training or self._models.has_optimizers):
                self._send_eval(forward)
            elif not call.training:
                self._undecided = forward
            else:
                self._add_to_window(forward)

    def may_be_abandoned(self, forward: Forward) -> bool:
        """Whether it matters if the graph of a forward still exists: where no step of an optimizer will decide."""
        call = forward.call
        return call.with_grad and call.training != self._models.has_optimizers

    def _add_to_window(self, forward: Forward) -> None:
        self._window.forwards.append(forward)
        self._window.reduces = self._window.reduces or forward.call.reductions is not None
        history = self.gradients.follow(forward)
        if history is not None:
            self._window.histories[history.number] = history
        learns = bool(self.reporter.steps) or self._has_manual_updates
        if len(self._window.forwards) >= (MAX_WAITING if learns else FIRST_WAITING):
            self._is_blind = self._is_blind or not learns
            self._close_without_steps()

    def settle(self) -> None:
        """What the next event decides: a forward in eval mode was evaluation, and without optimizers a step ends, if no
        backward may still come for its forwards."""
        self._settle_undecided()
        if not self._window.forwards or not self._is_without_steps:
            return
        if self._window.backwards or (self._is_blind and not self._has_manual_updates):
            self._close_without_steps()
        else:
            self._send_forwards([each for each in self._window.forwards if each.graph is None or each.is_abandoned])

    @property
    def _is_without_steps(self) -> bool:
        return self._is_blind or not self._models.has_optimizers

    def _settle_undecided(self) -> None:
        if self._undecided is not None:
            undecided, self._undecided = self._undecided, None
            self._send_eval(undecided)

    def settle_quiet(self) -> None:
        """Called from time to time by the sink's thread: what no event has followed may be over. A program that waits
        after its last step has finished it."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            window = self._window
            if self._is_in_backward or time.perf_counter() - self._last_event < QUIET_SECONDS:
                return
            if self._undecided is not None and self._undecided.is_abandoned:
                self._settle_undecided()
            if window.forwards and self._is_without_steps and window.backwards:
                self._close_without_steps()
                self._closed_early = True
            elif not self._models.has_optimizers:
                self._send_forwards([each for each in window.forwards if each.is_abandoned])
        finally:
            self._lock.release()

    # -- backward and steps ----------------------------------------------------------------------

    def backward_begins(self, losses: Any = None) -> None:
        """The backward of `losses`, where they are known."""
        with self._lock:
            self._is_in_backward = True
            if self._undecided is not None:
                undecided, self._undecided = self._undecided, None
                self._add_to_window(undecided)
            if not self._models.has_optimizers and not self._window.backwards:
                self._send_forwards([each for each in self._window.forwards if each.is_abandoned])
            if losses is not None and self._window.forwards and self._has_peers:
                self.gradients.look_at_loss(losses, self._window.forwards[-1].call.rows)
            for history in self._window.histories.values():
                history.before[len(self._window.backwards)] = history.read_marks()

    @property
    def _has_peers(self) -> bool:
        """Whether batches are divided among several devices."""
        return self.reporter.world_size > 1 or len(self.sender.devices.logical) > 1

    def read_loss(self, loss: Any) -> None:
        """The backward of a loss has begun."""
        window = self._window
        latest = [each.call.rows for each in window.forwards if each.backwards_before == len(window.backwards)]
        known = [rows for rows in latest if rows is not None]
        rows = sum(known) if latest and len(known) == len(latest) else None
        self.losses.add_backward(loss, rows, on_host=self.sender.devices.on_host)

    def backward_ended(self, span: Span, ended: float) -> None:
        with self._lock:
            self._last_event, self._is_in_backward = ended, False
            self.reporter.backwards += 1
            window = self._window
            for history in window.histories.values():
                history.after[len(window.backwards)] = history.read_marks()
            belongs = window.forwards or self._models.has_optimizers
            if belongs and len(window.backwards) < MAX_WAITING:
                window.backwards.append(Backward(span, ended, not window.reduces))

    def step_ended(
        self, ended: float, optimizer: OptimizerBegin | None = None, end_mark: Mark = None, stepped: Any = None
    ) -> None:
        """An outermost optimizer step is over, that of `stepped` where it is known: everything since the last one was
        for it. Its own time is not known where forwards ran within it (closures)."""
        with self._lock:
            if self._closed_early and not self._window.forwards:
                self._closed_early = self._is_blind = False
                self.reporter.steps += 1
            else:
                self._end_step(ended, optimizer, end_mark, stepped)

    def _end_step(self, ended: float, optimizer: OptimizerBegin | None, end_mark: Mark, stepped: Any) -> None:
        self._settle_undecided()
        self.reporter.steps += 1
        self._is_blind = False
        window, self._window = self._window, UpdateWindow()
        trained = [forward for forward in window.forwards if self._is_trained(forward)]
        seen = trained or window.forwards  # an optimizer may hold copies of the parameters
        span = None
        if optimizer is not None and all(forward.began < optimizer.began for forward in window.forwards):
            span = Span(self.sender.devices.clock, optimizer.mark, end_mark)
            if window.histories and stepped is not None:
                self._end_synchronised_step(window, stepped)
        self.sender.send_step("train", seen, window.backwards, ended, span)
        self.count_flop_if_due()
        if len(window.forwards) == len(window.backwards) == 1:
            self._report_simple_step(window.forwards[0], "train")

    def _end_synchronised_step(self, window: UpdateWindow, stepped: Any) -> None:
        number = self.sender.next_number("train")
        self.gradients.end_step(window.forwards, len(window.backwards), stepped, number)

    def count_flop_if_due(self) -> None:
        """A step of an optimizer is over: the next one may be the one whose FLOP are counted."""
        if self.reporter.steps != FLOP_STEP:
            return
        if len(self._models.optimizers) > 1:
            self.reporter.note(FIELD, SEVERAL)
        else:
            self.reporter.flop_count = FlopCount(len(self.sender.devices.logical))

    def step_skipped(self) -> None:
        """A GradScaler has not let the optimizer take its step."""
        self.reporter.note("patterns", SKIPPED)
        self.step_ended(time.perf_counter())

    def _is_trained(self, forward: Forward) -> bool:
        root = forward.call.root
        return bool(root.kind) or self._models.is_reached(root.model)

    def finish(self) -> None:
        """Send everything that still waits."""
        with self._lock:
            self._finish()

    def _finish(self) -> None:
        self.settle()
        if self._window.forwards:
            self._close_without_steps()
        if self._closed_without_step:
            self.reporter.note("patterns", LEFT_OVER if self.reporter.steps else NO_STEPS)
        self.losses.send()
        self.gradients.send()
        self.sender.finish()

    def _close_without_steps(self) -> None:
        """No optimizer step ends this window: each backward does, and each forward that none follows."""
        window, self._window = self._window, UpdateWindow()
        trains = bool(window.backwards) and not self.reporter.steps
        self._has_manual_updates = self._has_manual_updates or trains
        self._note_missing_steps()
        groups: dict[int, list[Forward]] = {}
        for forward in window.forwards:
            groups.setdefault(forward.backwards_before, []).append(forward)
        bounds = [*groups, len(window.backwards)]
        for forwards, begin, end in zip(groups.values(), bounds, bounds[1:], strict=False):
            backwards = window.backwards[begin:end]
            ended = backwards[-1].ended if backwards else forwards[-1].ended
            self.sender.send_step("train" if backwards and trains else "forward", forwards, backwards, ended)

    def _send_forwards(self, forwards: list[Forward]) -> None:
        """No backward can follow these any more, or it cannot be told."""
        if forwards:
            sent = {id(forward) for forward in forwards}
            self._window.forwards = [each for each in self._window.forwards if id(each) not in sent]
            self._note_missing_steps()
        for forward in forwards:
            self.sender.send_step("forward", [forward], [], forward.ended)

    def _note_missing_steps(self) -> None:
        self._closed_without_step += 1
        if self._closed_without_step == MANY and not self.reporter.steps:
            self.reporter.note("patterns", NO_STEPS)

    def _send_eval(self, forward: Forward) -> None:
        self.sender.send_step("eval", [forward], [], forward.ended)
        self._report_simple_step(forward, "eval")

    # -- steps that repeat -----------------------------------------------------------------------

    def _report_simple_step(self, forward: Forward, phase: str) -> None:
        """A forward was all of its step, which is over. A step like it would be the same record, but for its times."""
        split = self.sender.known_split(phase, forward)
        is_idle = not self._window.forwards and not self._window.backwards and self._undecided is None
        if split is None or not is_idle or self.rows.loaded is not NO_BATCHES:
            return
        if self.sender.devices.on_host and forward.is_simple:
            self.on_simple_step(forward, phase, split)

    def make_template(self, forward: Forward, phase: str, split: int) -> StepTemplate | None:
        """The template of a simple step; None where its rows do not follow from the shape of its input."""
        call, root = forward.call, forward.call.root
        if call.input_shape is None or call.rows is None or call.rows != rows_of(call.input_shape, call.dim):
            return None
        return StepTemplate(
            call=call,
            is_unwrapped=root.ref() is root.model.ref(),
            output_shape=forward.output_shape,
            rows=call.rows,
            phase=phase,
            trains=phase == "train",
            splits=(split,),
            without_loader=self.rows.is_without_loader,
        )
