"""Makes records of steps and sends them: from forwards and backwards, or from a template. No torch here."""

import time
from collections.abc import Callable
from typing import Any

from jobs.protocol.records import MAX_INTERNED, Began, Shape, Step
from workers.probe.clock import Mark, Span
from workers.probe.gradients.norm_layers import describe_norms
from workers.probe.measurements import DdpTimer, ProcessDevices
from workers.probe.module_registry import ModuleRegistry
from workers.probe.shapes import rows_of
from workers.probe.step_records import (
    DdpReductions,
    DdpTimes,
    PendingSteps,
    RunReporter,
    Shard,
    SplitRegistry,
    TimedStep,
    is_sampled,
)
from workers.probe.steps.row_checker import RowChecker
from workers.probe.types import Backward, Forward, RootModule, StepSample
from workers.runtime.context import RecordSink, innermost_sink

UNSEEN = (
    "an optimizer step was taken without a forward that could be seen (torch.compile of a whole function does that, "
    "and so do modules whose forward() is called by name)"
)
#: What a reader must know about the times of a forward, by what wraps its model.
NOTES_BY_KIND = {
    "": [
        ("per_device.comm_ms", "a model without a wrapper has no communication between devices that could be measured")
    ],
    "dp": [
        (
            "per_device.comm_ms",
            "copies between devices (replicate, scatter, gather), and waiting for the slowest shard",
        )
    ],
    "ddp": [("per_device.comm_ms", "communication that backward does not hide, waiting for the slowest rank included")],
    "fsdp": [
        ("per_device.comm_ms", "FSDP does not report how long it communicates"),
        ("per_device.forward_ms", "includes gathering parameters, and waiting for the ranks that hold them"),
        ("per_device.backward_ms", "includes gathering parameters and reducing gradients, and waiting for other ranks"),
    ],
}
BACKWARD_OF_SHARDS = {
    "cpu": "of each shard's own operations, measured in the first ten steps and every tenth",
    "cuda": "under DataParallel the backward of all devices is one call",
}


class StepSender:
    """Sends `BatchSplit`, `Step` and `Began` records. `send_step` makes a step of everything that belongs to it, and
    `send_sample` makes the same record of a template and its times."""

    def __init__(
        self,
        sink: RecordSink,
        reporter: RunReporter,
        devices: ProcessDevices,
        models: ModuleRegistry,
        ddp_timer: DdpTimer,
        first_split: int = 0,
    ) -> None:
        self.rows = RowChecker(reporter)
        self.reporter = reporter
        self.devices = devices
        self._models = models
        self._ddp_timer = ddp_timer
        self._sink = sink
        self._emit = innermost_sink(sink).emit
        self._splits = SplitRegistry(sink, first_split)
        self._split_ids: dict[tuple[Any, ...], int] = {}
        self._pending = PendingSteps(sink)
        self._next_step = {"train": 0, "eval": 0, "forward": 0}
        self._last_ended: float | None = None  # the step before
        self._last_end: Mark = None

    def next_number(self, phase: str) -> int:
        """The number of the next step of a phase."""
        return self._next_step[phase]

    def announce_step(self, phase: str) -> None:
        """Send that the next step has begun: a rank that never returns from it can then be named."""
        self._emit(Began(self._next_step[phase], phase, time.time()))

    def known_split(self, phase: str, forward: Forward) -> int | None:
        """The id of a trusted split that was sent before."""
        return self._split_ids.get(_split_key(phase, forward, True))

    def finish(self) -> None:
        """Wait for the times that devices have not reached yet, and send all steps."""
        self._pending.send_steps(0)
        self.reporter.send_activity()

    # -- from a template ---------------------------------------------------------------------------

    def send_sample(self, sample: StepSample) -> bool:
        """Send a step of which everything but its times is known; False where its rows have to be checked in full."""
        template = sample.template
        loaded = self.rows.take_if_trusted(template)
        if loaded is None:
            return False
        reporter, phase, backward_ms, comm_ms, whole_ms = self.reporter, template.phase, None, None, None
        reporter.forwards += 1
        number = self._next_step[phase]
        self._next_step[phase] = number + 1
        if template.trains:
            reporter.steps += 1
            reporter.backwards += 1
            took_ms = (sample.backward_ended - sample.backward_began) * 1000.0
            if template.call.reductions is None:
                backward_ms = took_ms
            else:
                whole_ms = took_ms
                if sample.ddp_times is not None:
                    gap_ms = (sample.backward_began - sample.ended) * 1000.0
                    backward_ms = sample.ddp_times.backward_alone_ms(gap_ms, took_ms)
                    comm_ms = took_ms - backward_ms
        reporter.send_activity_if_due(sample.stepped)
        began = sample.began if loaded.arrived is None else loaded.arrived
        self._emit(
            Step(
                step=number,
                epoch=0,
                phase=phase,
                splits=template.splits,
                at=time.time() - time.perf_counter() + sample.stepped,
                step_ms=(sample.stepped - began - loaded.waited_later) * 1000.0,
                data_wait_ms=None if loaded.waited is None else loaded.waited * 1000.0,
                forward_ms=((sample.ended - sample.began) * 1000.0,),
                backward_ms=(backward_ms,),
                comm_ms=comm_ms,
                optimizer_ms=(sample.stepped - sample.stepping) * 1000.0 if template.trains else None,
                whole_backward_ms=whole_ms,
                cycle_ms=self._end_cycle(sample.stepped),
            )
        )
        if template.trains:
            reporter.add_rows(template.rows, number, sample.stepped)
        return True

    # -- in full -------------------------------------------------------------------------------------

    def send_step(
        self,
        phase: str,
        forwards: list[Forward],
        backwards: list[Backward],
        ended: float,
        optimizer: Span | None = None,
    ) -> None:
        number = self._next_step[phase]
        self._next_step[phase] = number + 1
        if number == 0:
            self.reporter.send_activity()
        else:
            self.reporter.send_activity_if_due(ended)
        is_counted = phase == "train" and self.reporter.flop_count is not None
        for forward in forwards:
            forward.call.root.model.is_counted = True
        if (
            len(forwards) == 1
            and self.devices.on_host
            and forwards[0].is_simple
            and forwards[0].call.reductions is None
            and not is_counted
        ):
            self._send_simple(number, phase, forwards[0], backwards, ended, optimizer)
            return
        rows = _rows_by_model(forwards)
        trusted = self.rows.check_step(forwards, rows)
        slots = list(dict.fromkeys([slot for forward in forwards for slot in forward.call.slots])) or [0]
        step = TimedStep(number, 0, phase, _waited_ms(forwards), len(slots), at=time.time())
        step.step_ms, step.cycle_ms = _step_ms(forwards, ended), self._end_cycle(ended)
        step.flop = self.reporter.take_flop(slots, bool(backwards)) if is_counted else None
        if optimizer is not None:
            step.optimizer.append(optimizer)
        self._add_device_gap(step, forwards, slots)
        for forward, is_trusted in zip(forwards, trusted, strict=True):
            self._add_forward(step, phase, forward, slots, is_trusted)
        if not forwards:
            self._add_unseen_forward(step, phase)
        self._add_backward(step, forwards, backwards, slots)
        if is_sampled(number):
            step.memory = self.devices.peak_memory(slots)
        self._pending.add_step(step)
        if phase == "train":
            self.reporter.add_rows(max(rows.values(), default=0), number, time.perf_counter())

    def _end_cycle(self, ended: float) -> float | None:
        """Milliseconds since the step before; None where that is not known, or they overlap."""
        last, self._last_ended = self._last_ended, ended
        return None if last is None or last > ended else (ended - last) * 1000.0

    def _add_device_gap(self, step: TimedStep, forwards: list[Forward], slots: list[int]) -> None:
        """On a device with a clock of its own: from the end of the step before to the first forward of this one."""
        if self.devices.on_host:
            return
        if self._last_end is not None and forwards and forwards[0].call.slots[0] == slots[0]:
            step.before.append(Span(self.devices.clock, self._last_end, forwards[0].begin_mark))
        self._last_end = self.devices.mark_now(slots[0])

    def _send_simple(
        self,
        number: int,
        phase: str,
        forward: Forward,
        backwards: list[Backward],
        ended: float,
        optimizer: Span | None,
    ) -> None:
        """What `send_step` does, at a third of the cost, for most steps: one forward, timed by the CPU's clock."""
        loaded, rows, span = forward.loaded, forward.call.rows, forward.span
        is_trusted = self.rows.check_simple(forward)
        began = forward.began if loaded.arrived is None else loaded.arrived
        step = Step(
            step=number,
            epoch=0,
            phase=phase,
            splits=(self._split_id(phase, forward, is_trusted),),
            at=time.time(),
            step_ms=(ended - began - loaded.waited_later) * 1000.0,
            data_wait_ms=None if loaded.waited is None else loaded.waited * 1000.0,
            forward_ms=(None if span is None else span.elapsed_ms(),),
            backward_ms=(sum([backward.span.elapsed_ms() for backward in backwards]) if backwards else None,),
            optimizer_ms=None if optimizer is None else optimizer.elapsed_ms(),
            cycle_ms=self._end_cycle(ended),
        )
        self._sink.emit(step)
        if phase == "train":
            self.reporter.add_rows(rows or 0, number, ended)

    def _split_id(self, phase: str, forward: Forward, is_trusted: bool) -> int:
        """The id of a forward's split; a new one is sent."""
        call, is_scattered = forward.call, forward.sharded.is_scattered
        key = _split_key(phase, forward, is_trusted)
        known = None if is_scattered else self._split_ids.get(key)
        if known is not None:
            return known
        devices = tuple([self.devices.logical[slot] for slot in call.slots])
        shards = [forward.shard(slot) for slot in call.slots]
        count_rows: Callable[[Shape | None], int | None] = _shard_row_counter(forward) if is_trusted else _uncounted
        rows = call.rows if is_trusted else None
        number = self._splits.split_id(
            phase,
            self._models.dotted_name(call.root),
            rows,
            devices,
            shards,
            count_rows,
            holds_tokens=bool(call.root.holds_tokens),
        )
        self._explain_times(forward)
        if phase == "train" and not call.root.model.is_examined:
            self._examine_norms(call.root)
        if not is_scattered and len(self._split_ids) < MAX_INTERNED // 2:
            self._split_ids[key] = number
        return number

    def _examine_norms(self, root: RootModule) -> None:
        """Send, once for each model, which of its layers depend on how many rows a device has."""
        root.model.is_examined = True
        module = root.model.ref()
        norms = None if module is None else describe_norms(module, self._models.dotted_name(root))
        if norms is not None:
            self.reporter.emit(norms)

    def _explain_times(self, forward: Forward) -> None:
        is_scattered = forward.sharded.is_scattered
        for where, reason in NOTES_BY_KIND["dp" if is_scattered else forward.call.root.kind]:
            self.reporter.note(where, reason)
        if is_scattered and forward.call.with_grad:
            self.reporter.note("per_device.backward_ms", BACKWARD_OF_SHARDS[self.devices.kind])

    def _add_forward(self, step: TimedStep, phase: str, forward: Forward, slots: list[int], is_trusted: bool) -> None:
        step.splits.append(self._split_id(phase, forward, is_trusted))
        if forward.span is not None:
            step.forward[slots.index(forward.call.slots[0])].append(forward.span)
        for slot, shard in forward.sharded.shards.items():
            step.forward[slots.index(slot)] += shard.spans
        for name, spans in forward.sharded.primitives.items():
            step.primitives.setdefault(name, []).extend(spans)

    def _add_unseen_forward(self, step: TimedStep, phase: str) -> None:
        self.reporter.note("patterns.rows", UNSEEN)
        nothing = Shard(None, None, [])
        step.splits.append(self._splits.split_id(phase, "", None, self.devices.logical[:1], [nothing], _uncounted))

    def _add_backward(
        self, step: TimedStep, forwards: list[Forward], backwards: list[Backward], slots: list[int]
    ) -> None:
        for forward in forwards:
            for slot, ms in enumerate(forward.sharded.backward_ms):
                if ms is not None:
                    position = slots.index(slot)
                    step.backward_ms[position] = (step.backward_ms[position] or 0.0) + ms
        if any(forward.sharded.is_scattered for forward in forwards):
            step.joint_backward += [backward.span for backward in backwards]
            return
        reductions = [forward.call.reductions for forward in forwards if forward.call.reductions is not None]
        if reductions:
            self._add_ddp_times(step, reductions, forwards, backwards)
        else:
            step.backward += [backward.span for backward in backwards]

    def _add_ddp_times(
        self, step: TimedStep, reductions: list[DdpReductions], forwards: list[Forward], backwards: list[Backward]
    ) -> None:
        """A wrapper has the times of its latest backward only: where it reduced several times in this step, the others
        are taken to have computed as long."""
        step.backward += [backward.span for backward in backwards if backward.is_local]
        step.joint_backward += [backward.span for backward in backwards if not backward.is_local]
        times = {each: self._ddp_timer.read_times(each) for each in dict.fromkeys(reductions)}
        reduced = {
            (forward.call.reductions, forward.backwards_before): forward
            for forward in forwards
            if forward.call.reductions is not None and forward.backwards_before < len(backwards)
        }
        known = [times[each] for each, _ in reduced if each is not None]
        computed_ms = [each.computed_ms for each in known if each is not None]
        if len(computed_ms) == len(reductions):
            step.ddp_times = DdpTimes(sum(computed_ms))
            step.gaps += [
                Span(backwards[position].span.clock, forward.span.end, backwards[position].span.begin)
                for (_, position), forward in reduced.items()
                if forward.span is not None
            ]


def _split_key(phase: str, forward: Forward, is_trusted: bool) -> tuple[Any, ...]:
    call = forward.call
    return phase, call.root, call.slots, call.input_shape, forward.output_shape, call.rows, is_trusted


def _uncounted(shape: Shape | None) -> int | None:
    return None


def _shard_row_counter(forward: Forward) -> Callable[[Shape | None], int | None]:
    """Counts the rows of a shard. Those of an only device are the rows of the forward, however they were counted."""
    if not forward.sharded.is_scattered:
        return lambda shape: forward.call.rows
    return lambda shape: rows_of(shape, forward.call.dim)


def _rows_by_model(forwards: list[Forward]) -> dict[int, int]:
    rows: dict[int, int] = {}
    for forward in forwards:
        model = id(forward.call.root.model)
        rows[model] = rows.get(model, 0) + (forward.call.rows or 0)
    return rows


def _waited_ms(forwards: list[Forward]) -> float | None:
    waited = [forward.loaded.waited for forward in forwards if forward.loaded.waited is not None]
    return sum(waited) * 1000.0 if waited else None


def _step_ms(forwards: list[Forward], ended: float) -> float:
    """From the first batch, or the first forward where there is none, to the end, without later waits for batches."""
    if not forwards:
        return 0.0
    first = forwards[0].loaded
    began = forwards[0].began if first.arrived is None else first.arrived
    later = first.waited_later + sum([forward.loaded.waited or 0.0 for forward in forwards[1:]])
    return max(0.0, ended - began - later) * 1000.0
