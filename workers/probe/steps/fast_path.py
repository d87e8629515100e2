"""The fast path: steps that follow a template are noted by the program's thread, and recorded by the sink's thread.

Nearly every step of nearly every program is a batch, one call of a model, one backward, and one step of an optimizer,
in a way that was seen before. Of these the program's thread only notes moments and shapes, on a tape that the sink's
thread reads (`FastPath.flush`). There, hundreds of steps are recorded one after the other, at a small part of what each
would cost between two steps of the program, where no cache holds anything of the probe.

`Tracker` and `StepBuilder` find out what a step is, and keep it as a `StepTemplate`. As long as events come in the
order of a template they are noted here. At the first one that does not, all that was noted is handed to the step
builder (`leave`), which then decides until it has seen a simple step again. It is given the same events either way,
and so the records are the same. Evaluation has templates, too: there, a call is a step.

Shapes are read in every forward: rows of every batch are what the report is for. No torch here.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from jobs.protocol.records import FLOP_STEP
from workers.probe.clock import Span
from workers.probe.dataloaders import LoaderTracker
from workers.probe.measurements import DdpTimer
from workers.probe.step_profiler import StepProfiler
from workers.probe.step_records import DdpTimes, is_sampled, next_sampled_step
from workers.probe.steps.step_builder import StepBuilder
from workers.probe.types import (
    BACKWARD_DONE,
    CALLED,
    IN_BACKWARD,
    OFF,
    READY,
    STEPPING,
    CurrentStep,
    Forward,
    OptimizerBegin,
    StepSample,
    ThreadState,
)
from workers.runtime.context import RecordSink

#: Steps on the tape, after which the program's thread records them itself.
MAX_TAPE = 16_384


class FastPath:
    """Notes the steps of one thread, its owner. The wrappers note what they see of the current step in `step`."""

    def __init__(
        self,
        builder: StepBuilder,
        loaders: LoaderTracker,
        ddp_timer: DdpTimer,
        sink: RecordSink,
        profiler: StepProfiler,
    ) -> None:
        self.step = CurrentStep()
        self.builder = builder
        self.loaders = loaders
        self.ddp_timer = ddp_timer
        self.profiler = profiler
        self.channel: Any = sink if hasattr(sink, "is_idle") else IdleChannel
        self.owner: ThreadState | None = None
        self.has_other_threads = False  # another thread calls models, too: no step is noted any more
        self.optimizer_steps = 0  # with those on the tape
        self.next_sampled = 0  # before this step, nothing is measured that is too costly for every step
        self.tape: deque[StepSample | Callable[[], None]] = deque()
        self.flushing = threading.RLock()
        self.announced = ("", -1)
        self.interrupted: Forward | None = None  # handed to the step builder while it ran

    def enable(self, thread: ThreadState) -> None:
        """The step builder has sent a simple step of this thread, and holds nothing."""
        if self.owner is None:
            self.owner, thread.fast_path, self.step.thread = thread, self, threading.get_ident()
        if self.owner is thread and not self.has_other_threads:
            self.optimizer_steps, self.next_sampled = self.builder.reporter.steps, 0
            self.step.stage, self.step.loader_pass = READY, None

    def give_up(self) -> None:
        """Another thread calls models, too. The owner leaves at its next event, and the other is not taken for it."""
        self.has_other_threads, self.step.thread = True, 0
        self.flush()

    # -- the end of a step -----------------------------------------------------------------------
    # Its other moments are noted by the wrappers themselves: a call of a function between two operations of torch
    # costs as much as what it does.

    def end_train_step(self, ended: float, optimizer: Any) -> None:
        """The step of the optimizer is over."""
        number, self.optimizer_steps, self.step.optimizer = self.optimizer_steps, self.optimizer_steps + 1, None
        if number < self.next_sampled:
            self._note_step(ended)
        else:
            self._note_sampled_step(ended, number, optimizer)

    def end_eval_step(self) -> None:
        """A forward that is all of its step is over."""
        self._note_step(self.step.ended)

    def _note_sampled_step(self, ended: float, number: int, optimizer: Any) -> None:
        """Note a step with measurements that are too costly for every step."""
        reductions, self.next_sampled = self.step.template.call.reductions, next_sampled_step(number)
        if number < FLOP_STEP - 1:
            self.next_sampled = number + 1
        rate = read_learning_rate(optimizer) if is_sampled(number) else None
        times = None if reductions is None else self.ddp_timer.read_times(reductions)
        self._note_step(ended, rate, times)
        if number == FLOP_STEP - 1 and self.owner is not None:
            self.leave(self.owner)
            self.builder.count_flop_if_due()

    def _note_step(self, ended: float, rate: float | None = None, times: DdpTimes | None = None) -> None:
        step = self.step
        self.tape.append(
            StepSample(
                step.template,
                step.output_shape,
                step.loader_pass,
                step.asked,
                step.arrived,
                step.began,
                step.ended,
                step.backward_began,
                step.backward_ended,
                step.stepping,
                ended,
                rate,
                times,
            )
        )
        step.stage, step.loader_pass = READY, None
        if self.channel.is_idle or len(self.tape) > MAX_TAPE:
            self.flush()
        if self.profiler.request[0] != self.profiler.seen:
            self.profiler.on_step()

    # -- what the step builder gets ----------------------------------------------------------------

    def flush(self) -> None:
        """Record what is on the tape."""
        with self.flushing:
            while self.tape:
                noted = self.tape.popleft()
                if isinstance(noted, StepSample):
                    self._record_sample(noted)
                else:
                    noted()

    def defer(self, action: Callable[[], None]) -> None:
        """Run an action when all that is on the tape has been recorded."""
        if self.step.stage == OFF:
            action()
            return
        self.tape.append(action)
        if self.channel.is_idle:
            self.flush()

    def _record_sample(self, sample: StepSample) -> None:
        builder, template = self.builder, sample.template
        self._hand_over_batch(sample)
        if sample.learning_rate is not None:
            builder.reporter.report_learning_rate(sample.learning_rate)
        if sample.output_shape == template.output_shape and builder.sender.send_sample(sample):
            return
        self._hand_over_forward(sample)
        if template.trains:
            builder.backward_begins()
            self._hand_over_backward(sample)
            builder.step_ended(sample.stepped, OptimizerBegin(sample.stepping, sample.stepping), sample.stepped)

    def _hand_over_batch(self, step: StepSample | CurrentStep) -> None:
        if step.loader_pass is not None:
            rows = self.loaders.count_drawn(step.loader_pass, step.arrived)
            self.builder.rows.add_batch(step.asked, step.arrived, rows)

    def _hand_over_forward(self, step: StepSample | CurrentStep) -> None:
        forward = Forward(step.template.call, step.began, step.began)
        forward.ended, forward.output_shape = step.ended, step.output_shape
        forward.span = Span(self.builder.sender.devices.clock, step.began, step.ended)
        self.builder.forward_ends(forward)

    def _hand_over_backward(self, step: StepSample | CurrentStep) -> None:
        span = Span(self.builder.sender.devices.clock, step.backward_began, step.backward_ended)
        self.builder.backward_ended(span, step.backward_ended)

    def leave(self, thread: ThreadState) -> None:
        """Hand over what was noted of the current step, since it goes on otherwise than its template."""
        self.flush()
        step = self.step
        stage, step.stage = step.stage, OFF
        optimizer, step.optimizer, self.interrupted = step.optimizer, None, None
        with self.flushing:
            self._hand_over_batch(step)
            step.loader_pass = None
            if stage < CALLED or (stage == CALLED and not step.inside):
                return  # a forward that is over and was not noted has raised, and is none
            call, builder = step.template.call, self.builder
            builder.forward_begins(call.training and call.with_grad)
            if stage == CALLED:
                self.interrupted = thread.forward = Forward(call, step.began, step.began)
                return
            self._hand_over_forward(step)
            if stage >= IN_BACKWARD:
                builder.backward_begins()
            if stage >= BACKWARD_DONE:
                self._hand_over_backward(step)
            if stage == STEPPING:
                thread.optimizers = (optimizer,)
                thread.stepping = OptimizerBegin(step.stepping, step.stepping)

    # -- the beginning of a step -------------------------------------------------------------------

    def announce_step(self) -> None:
        """Send that this step has begun."""
        sender, phase = self.builder.sender, self.step.template.phase
        self.announced = phase, sender.next_number(phase)
        sender.announce_step(phase)

    def flush_and_announce(self) -> None:
        """Called from time to time by the sink's thread: quick steps are not announced one by one."""
        self.flush()
        with self.flushing:
            if CALLED <= self.step.stage < OFF:
                phase = self.step.template.phase
                if self.announced != (phase, self.builder.sender.next_number(phase)):
                    self.announce_step()


def read_learning_rate(optimizer: Any) -> float | None:
    rate = optimizer.param_groups[0].get("lr")
    return rate if isinstance(rate, float) else None  # a tensor may be on a device, for which we do not wait


class IdleChannel:
    """Stands for a sink that does not say whether it is busy: nothing waits on the tape."""

    is_idle = True
