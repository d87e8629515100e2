"""The usual step: a batch, one call of a model, one backward, one step of an optimizer, in a way that was seen before.

Nearly every step of nearly every program is one. Of these the program's thread only notes moments and shapes, on a
tape that the sink's thread reads (`Usual.tell`): there, hundreds of steps are told one after the other, at a small
part of the cost that each has between two steps of a program, where no cache has anything of ours.

`Watch` and `Windows` find out what a step is; what they found is kept as `Known`. As long as events come in the order
of a usual step they are noted here. At the first one that does not, all that was noted is told to `Windows`
(`leave`), which then decides until it has seen a simple step again. `Windows` gets to know the same either way, and
so the records are the same. Evaluation is usual too: there, a call is a step.

Shapes are looked at in every forward: rows of every batch are what the report is for. No torch here.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from jobs.protocol.records import Began, Metric, Shape
from workers.probe.clock import Span
from workers.probe.dataloaders import Loaders, Pass
from workers.probe.module_registry import Models, Root
from workers.probe.step_records import DdpTimes, Reductions, next_sampled, sampled
from workers.runtime.context import Sink

if TYPE_CHECKING:
    from workers.probe.step_builder import Forward, Windows
    from workers.probe.tracker import Torch, Where

#: What was noted last. READY: a step may begin; a forward begins in it, or in LOADED. AWAY: nothing is noted here now.
READY, LOADED, CALLED, RETURNED, BACKWARD, LEARNED, STEPPING, AWAY = range(8)
#: Steps on the tape, after which the program's thread tells them itself.
MAX_TAPE = 16_384


class Known(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A forward that was all of its step. It is known by its root, its mode, and the shape of its first input."""

    root: Root
    is_bare: bool  # the root is its model, without a wrapper
    training: bool
    learns: bool
    given: Shape
    returned: Shape | None
    rows: int
    slots: tuple[int, ...]
    dim: int
    phase: str
    trains: bool  # that phase is "train"
    splits: tuple[int, ...]
    unloaded: bool  # its rows were trusted while no DataLoader was there to compare with
    reductions: Reductions | None  # of the DistributedDataParallel that reduces its gradients


class Times(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A usual step on the tape. Moments are those of `time.perf_counter`.

    Hundreds of them wait: no part may be of a kind that the garbage collector goes through, time and again."""

    known: Known
    returned: Shape | None
    running: Pass | None
    asked: float
    arrived: float
    began: float
    ended: float
    backward_began: float
    backward_ended: float
    stepped: float
    rate: float | None = None  # the learning rate, in some steps
    reduced: DdpTimes | None = None  # what DistributedDataParallel tells, in some steps


class Usual:
    """Notes usual steps of one thread, its owner. The wrappers set what they see of the current step."""

    def __init__(self, windows: "Windows", loaders: Loaders, torch: "Torch", models: Models, sink: Sink) -> None:
        self.windows = windows
        self.loaders = loaders
        self.torch = torch
        self.ddp_times: Callable[[Reductions], DdpTimes | None] = lambda reductions: None
        self.roots = models.roots
        self.optimizers = models.known_optimizers
        self.sink = sink
        self.channel: Any = sink if hasattr(sink, "idle") else Waiting
        self.stage = AWAY
        self.owner: Where | None = None
        self.thread = 0  # of the owner; 0 where nothing is usual
        self.inside = 0  # the same, while that is inside a usual forward
        self.crowded = False  # another thread calls models, too: nothing is usual any more
        self.steps = 0  # of optimizers, with those on the tape
        self.look_at = 0  # before this step, nothing is looked at that is too dear for every step
        self.tape: deque[Times | Callable[[], None]] = deque()
        self.telling = threading.RLock()
        self.announced = ("", -1)
        # What was noted of the current step.
        self.known: Any = None
        self.returned: Shape | None = None
        self.running: Pass | None = None
        self.optimizer: Any = None
        self.forward: Forward | None = None  # that Windows was told of while it ran
        self.asked = self.arrived = self.began = self.ended = self.backward_began = self.backward_ended = 0.0

    def ready(self, where: "Where") -> None:
        """`Windows` has sent a simple step, and holds nothing."""
        if self.owner is None:
            self.owner, where.usual, self.thread = where, self, threading.get_ident()
        if self.owner is where and not self.crowded:
            self.steps, self.look_at, self.stage, self.running = self.windows.steps, 0, READY, None

    def crowd(self) -> None:
        """Another thread calls models, too. The owner leaves at its next event, and the other is not taken for it."""
        self.crowded, self.thread = True, 0
        self.tell()

    # -- the end of a step -----------------------------------------------------------------------
    # Its other moments are noted by the wrappers themselves: a call of a function between two operations of torch
    # costs as much as what it does.

    def learned(self, ended: float, optimizer: Any) -> None:
        """The step of the optimizer is over."""
        step, self.steps, self.optimizer = self.steps, self.steps + 1, None
        if step < self.look_at:
            self._note(ended)
        else:
            self._look(ended, step, optimizer)

    def evaluated(self) -> None:
        """A forward that is all of its step is over."""
        self._note(self.ended)

    def _look(self, ended: float, step: int, optimizer: Any) -> None:
        """Note a step with what is too dear for every step, and find out when to look again."""
        reductions, self.look_at = self.known.reductions, next_sampled(step)
        rate = learning_rate(optimizer) if sampled(step) else None
        reduced = None if reductions is None else self.ddp_times(reductions)
        self._note(ended, rate, reduced)

    def _note(self, ended: float, rate: float | None = None, reduced: DdpTimes | None = None) -> None:
        self.tape.append(
            Times(
                self.known,
                self.returned,
                self.running,
                self.asked,
                self.arrived,
                self.began,
                self.ended,
                self.backward_began,
                self.backward_ended,
                ended,
                rate,
                reduced,
            )
        )
        self.stage, self.running = READY, None
        if self.channel.idle or len(self.tape) > MAX_TAPE:
            self.tell()

    # -- what Windows is told ----------------------------------------------------------------------

    def tell(self) -> None:
        """Tell what is on the tape."""
        with self.telling:
            while self.tape:
                told = self.tape.popleft()
                if isinstance(told, Times):
                    self._tell(told)
                else:
                    told()

    def later(self, act: Callable[[], None]) -> None:
        """Do something when all that is on the tape has been told."""
        if self.stage == AWAY:
            act()
            return
        self.tape.append(act)
        if self.channel.idle:
            self.tell()

    def _tell(self, step: Times) -> None:
        windows, known = self.windows, step.known
        self._tell_load(step)
        if step.rate is not None and windows.rank == 0:
            windows.emit(Metric(-1, "learning_rate", windows.steps, step.rate, time.time()))
        if step.returned == known.returned and windows.usual_step(step):
            return
        self._tell_forward(step)
        if known.trains:
            windows.backward_begins()
            self._tell_backward(step)
            windows.step_ended(step.stepped)

    def _tell_load(self, step: "Times | Usual") -> None:
        if step.running is not None:
            rows = self.loaders.took(step.running, step.arrived)
            self.windows.batch_came(step.asked, step.arrived, rows)

    def _tell_forward(self, step: "Times | Usual") -> None:
        windows = self.windows
        forward = windows.forward_of(step.known, step.began)
        forward.ended, forward.returned = step.ended, step.returned
        forward.span = Span(windows.clock, step.began, step.ended)
        windows.forward_ends(forward)

    def _tell_backward(self, step: "Times | Usual") -> None:
        span = Span(self.windows.clock, step.backward_began, step.backward_ended)
        self.windows.backward_ended(span, step.backward_ended)

    def leave(self, where: "Where") -> None:
        """Tell `Windows` what was noted, since this step goes on otherwise than expected."""
        self.tell()
        stage, self.stage = self.stage, AWAY
        optimizer, self.optimizer, self.forward = self.optimizer, None, None
        with self.telling:
            self._tell_load(self)
            self.running = None
            if stage < CALLED or (stage == CALLED and not self.inside):
                return  # a forward that is over without a word has raised, and is none
            known, windows = self.known, self.windows
            windows.forward_begins(known.training and known.learns)
            if stage == CALLED:
                self.forward = where.forward = windows.forward_of(known, self.began)
                return
            self._tell_forward(self)
            if stage >= BACKWARD:
                windows.backward_begins()
            if stage >= LEARNED:
                self._tell_backward(self)
            if stage == STEPPING:
                where.optimizers = (optimizer,)

    # -- the beginning of a step -------------------------------------------------------------------

    def announce(self) -> None:
        """Say that this step has begun: a rank that never returns from it can then be named."""
        phase = self.known.phase
        self.announced = phase, self.windows.number(phase)
        self.sink.emit(Began(self.announced[1], phase, time.time()))

    def tell_of_now(self) -> None:
        """Called from time to time by the sink's thread: quick steps are not announced each by each."""
        self.tell()
        with self.telling:
            if CALLED <= self.stage < AWAY and self.announced != (
                self.known.phase,
                self.windows.number(self.known.phase),
            ):
                self.announce()


def learning_rate(optimizer: Any) -> float | None:
    rate = optimizer.param_groups[0].get("lr")
    return rate if isinstance(rate, float) else None  # a tensor may be on a device, for which we do not wait


class Waiting:
    """A sink that does not tell is taken for one that sends nothing at the moment."""

    idle = True


class Nobody:
    """What a thread has that notes nothing."""

    stage = AWAY


NOBODY: Any = Nobody()
