"""Records what each device got of every batch of a recipe, and how long it took there.

It never waits for a device: on cuda the times of a step are read when its events have passed, some steps later.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from jobs.protocol.packets import AnyRecord
from jobs.protocol.records import MAX_INTERNED, MetricSample, Note, Shape, Step
from workers.probe.backward_timer import time_backward
from workers.probe.clock import CLOCKS, Mark, Span
from workers.probe.flop_count import FIELD, JOINT, FlopCount, without_times
from workers.probe.shapes import are_token_ids, has_embedding, rows_of, shape_of, shape_of_arguments
from workers.probe.step_records import DdpTimes, PendingSteps, Shard, SplitRegistry, TimedStep, is_sampled
from workers.runtime.context import RankContext


class _EndCallback:
    """Calls back when its block ends. A generator would do the same, at three times the cost in every step."""

    __slots__ = ("_done",)

    def __init__(self, done: Callable[[bool], None]) -> None:
        self._done = done

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._done(kind is not None)


@dataclass(slots=True)
class _StepMoments:
    """Moments in seconds, and marks on the first device."""

    began: float = 0.0  # the open step
    last_ended: float | None = None  # the step before
    last_end: Mark = None  # the same on the device
    forward_end: Mark = None  # of the latest forward
    backward_end: Mark = None  # of the latest backward of the open step


@dataclass(slots=True)
class ObservedModel:
    """What is known of the model, and the count of its FLOP while a step is counted."""

    embeds: bool = False  # it has an nn.Embedding
    holds_tokens: bool | None = None  # its inputs are token ids; None before its first call
    flop_refusal: str = ""  # why its FLOP are not counted
    flop_count: FlopCount | None = None

    def look_at_inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.holds_tokens is None:
            self.holds_tokens = self.embeds and are_token_ids(args, kwargs)


class Recorder:
    """Sends `BatchSplit`, `Step`, `MetricSample` and `Note` records of one rank.

    `module` is the dotted path of what is split ("" for the whole model), `dim` the dimension along
    which rows are counted. `times_whole_backward` says that the backward of this rank is that of its
    only device; `read_ddp_times` asks DistributedDataParallel for its own times after a step.
    """

    def __init__(
        self,
        context: RankContext,
        *,
        module: str = "",
        dim: int = 0,
        times_whole_backward: bool = False,
    ) -> None:
        self.read_ddp_times: Callable[[], DdpTimes | None] = lambda: None
        self.model = ObservedModel()
        self._sink = context.sink
        self._module = module
        self._dim = dim
        self._times_whole_backward = times_whole_backward
        self._devices = tuple(device.logical for device in context.devices)
        self._clock = CLOCKS[context.device_kind]
        self._shards: list[Shard | None] = [None] * len(self._devices)
        self._splits = SplitRegistry(context.sink)
        self._next_step = {"train": 0, "eval": 0, "forward": 0}
        self._open_step: TimedStep | None = None
        self._moments = _StepMoments()
        self._pending = PendingSteps(context.sink)
        self._notes: set[tuple[str, str]] = set()

    @property
    def _on_cuda(self) -> bool:
        return self._clock is CLOCKS["cuda"]

    def observe(self, model: nn.Module) -> None:
        """Learn what is to be known of the model before it is called."""
        self.model.embeds = has_embedding(model)

    # -- around a step ---------------------------------------------------------------------------

    @contextmanager
    def count_flop(self, model: nn.Module) -> Iterator[None]:
        """Around the one train step whose FLOP are counted."""
        count = FlopCount(len(self._devices))
        count.refuse(self.model.flop_refusal)
        with count.watch(0, model):
            self.model.flop_count = count
            try:
                yield
            finally:
                self.model.flop_count = None

    def _read_flop(self) -> dict[str, tuple[int, ...]] | None:
        """The FLOP of the step that has just ended, where it was the one to be counted."""
        count = self.model.flop_count
        if count is None:
            return None
        found = count.result()
        if count.refusal:
            self.note(FIELD, count.refusal)
        return found

    def step(self, phase: str, epoch: int, data_wait_ms: float | None) -> AbstractContextManager[object]:
        """Around one optimizer step, or one batch of evaluation or forward."""
        number = self._next_step[phase]
        self._next_step[phase] = number + 1
        self._open_step = step = TimedStep(number, epoch, phase, data_wait_ms, len(self._devices))
        self._moments.began, self._moments.backward_end = time.perf_counter(), None
        if self._on_cuda and self._moments.last_end is not None:
            step.before.append(Span(self._clock, self._moments.last_end, self._mark(0)))
        return _EndCallback(lambda failed: self._end_step(step, failed))

    def backward(self, backward: Callable[[], object], *, alone: bool = False) -> None:
        """Call `backward`, which is a loss's. `alone`: in this one, no rank waits for another."""
        begin, count = self._mark(0), self.model.flop_count
        with nullcontext() if count is None else count.watch(JOINT):
            backward()
        self._moments.backward_end = end = self._mark(0)
        step = self._open_step
        if step is None:
            return
        if self._times_whole_backward or alone:
            step.backward.append(Span(self._clock, begin, end))
            return
        step.joint_backward.append(Span(self._clock, begin, end))
        if self._moments.forward_end is not None:
            step.gaps.append(Span(self._clock, self._moments.forward_end, begin))

    def finish(self) -> None:
        """Wait for the times that devices have not reached yet, and send all steps."""
        self._pending.send_steps(0)

    def dump_numbers(self) -> dict[str, Any]:
        """How far steps and splits are numbered, as plain values."""
        return {"steps": dict(self._next_step), "splits": self._splits.dump()}

    def resume_numbers(self, numbers: dict[str, Any]) -> None:
        """Continue the numbers of steps and splits of the process that was stopped.

        Raises:
            ValueError, KeyError: `numbers` do not come from `dump_numbers`.
        """
        self._next_step = {phase: int(numbers["steps"][phase]) for phase in self._next_step}
        self._splits.resume(numbers["splits"])

    def _end_step(self, step: TimedStep, failed: bool) -> None:
        self._open_step = None
        ended, last, end = time.perf_counter(), self._moments.last_ended, self._mark(0)
        self._moments.last_ended, self._moments.last_end = ended, end
        if failed:
            return
        step.flop = self._read_flop()
        step.at, step.step_ms = time.time(), (ended - self._moments.began) * 1000.0
        step.cycle_ms = None if last is None else (ended - last) * 1000.0
        if step.phase == "train":
            step.ddp_times = self.read_ddp_times()
            if self._moments.backward_end is not None:
                step.optimizer.append(Span(self._clock, self._moments.backward_end, end))
        if self._on_cuda and is_sampled(step.number):
            step.memory = tuple(torch.cuda.max_memory_allocated(index) for index in self._devices)
        self._pending.add_step(step)

    # -- around a forward ------------------------------------------------------------------------

    def measure_primitive(self, name: str) -> AbstractContextManager[object]:
        """Around one of DataParallel's four primitives."""
        return self._measure(0, lambda step: step.primitives.setdefault(name, []))

    def measure_arrival(self, position: int) -> AbstractContextManager[object]:
        """Around the time in which the shard of the device at `position` comes to it."""
        return self._measure(position, lambda step: step.arrivals[position])

    def _mark(self, position: int) -> Mark:
        return self._clock.mark(self._devices[position])

    def _measure(self, position: int, spans_of: Callable[[TimedStep], list[Span]]) -> AbstractContextManager[object]:
        begin = self._mark(position)

        def end(failed: bool) -> None:
            if self._open_step is not None:
                spans_of(self._open_step).append(Span(self._clock, begin, self._mark(position)))

        return _EndCallback(end)

    def watch_call(self, position: int, module: Callable[..., Any]) -> Callable[..., Any]:
        """`module` as a function that is measured as the shard of the device at `position`."""

        def call(*args: Any, **kwargs: Any) -> Any:
            self.model.look_at_inputs(args, kwargs)
            begin, count = self._mark(position), self.model.flop_count
            with nullcontext() if count is None else count.watch(position):
                outputs = module(*args, **kwargs)
            self._add_forward(position, shape_of_arguments(args, kwargs), outputs, begin)
            return outputs

        return call

    def watch_module(self, module: nn.Module, position: int, *, is_whole: bool = False) -> None:
        """Measure every call of `module`, where it stands, as part of the device at `position`.

        `is_whole`: there is no other part, so every call is one forward.
        """
        begin: Mark = None

        def before(_: nn.Module, args: Any, kwargs: Any) -> None:
            nonlocal begin
            self.model.look_at_inputs(args, kwargs)
            begin = self._mark(position)

        def after(_: nn.Module, args: Any, kwargs: Any, outputs: Any) -> None:
            input_shape = shape_of_arguments(args, kwargs)
            self._add_forward(position, input_shape, outputs, begin)
            if is_whole:
                self.end_forward(rows_of(input_shape, self._dim))

        module.register_forward_pre_hook(before, with_kwargs=True)
        module.register_forward_hook(after, with_kwargs=True)

    def count_forwards(self, module: nn.Module) -> None:
        """Count every call of `module` as one forward."""

        def after(_: nn.Module, args: Any, kwargs: Any, outputs: Any) -> None:
            self.end_forward(rows_of(shape_of_arguments(args, kwargs), self._dim))

        module.register_forward_hook(after, with_kwargs=True)

    def watch_backward(self, position: int, outputs: Any, boundary: Iterable[torch.Tensor]) -> None:
        """Called after a shard's forward with the tensors between which its backward will run."""
        step = self._open_step
        if step is not None and step.phase == "train" and not self._on_cuda and is_sampled(step.number):
            time_backward(outputs, boundary, step.backward_ms, position)

    def _add_forward(self, position: int, input_shape: Shape | None, outputs: Any, begin: Mark) -> None:
        if self._open_step is None:
            return
        span = Span(self._clock, begin, self._mark(position))
        if position == 0:
            self._moments.forward_end = span.end
        shard = self._shards[position] = self._shards[position] or Shard(input_shape, None, [])
        shard.output_shape = shape_of(outputs)
        shard.spans.append(span)

    def end_forward(self, batch_rows: int | None) -> None:
        """The forward whose shards have just run is complete."""
        if self._open_step is None:
            return
        shards, self._shards = self._shards, [None] * len(self._devices)
        rows: Callable[[Any], int | None] = lambda shape: rows_of(shape, self._dim)  # noqa: E731
        number = self._splits.split_id(
            self._open_step.phase,
            self._module,
            batch_rows,
            self._devices,
            shards,
            rows,
            holds_tokens=bool(self.model.holds_tokens),
        )
        self._open_step.splits.append(number)
        for spans, shard in zip(self._open_step.forward, shards, strict=True):
            spans += shard.spans if shard is not None else []

    # -- single records --------------------------------------------------------------------------

    def send_metric(self, name: str, step: int, value: float, device: int = -1) -> None:
        self._sink.emit(MetricSample(device, name, step, value, time.time()))

    def note(self, field: str, reason: str) -> None:
        """Say once why `field` of the report is null, or what its reader must know."""
        if (field, reason) not in self._notes:
            self._notes.add((field, reason))
            self._sink.emit(Note(field, reason))

    def emit(self, record: AnyRecord) -> None:
        self._sink.emit(record)


class SingleDeviceRecorder(Recorder):
    """The recorder of a rank that has one device, which computes on the host: nearly every step of nearly every job.

    Every call of the measured module is one forward. Times are numbers as soon as they are taken, so a step is one
    record that is made at its end, and nothing is kept for it before but a few numbers. Shapes are read in every
    forward, since rows are counted and never assumed. The recorder is itself the context of the step that is open.
    """

    def __init__(self, context: RankContext, *, module: str = "", times_whole_backward: bool = False) -> None:
        super().__init__(context, module=module, times_whole_backward=times_whole_backward)
        self._in_step = False
        self._step_head: tuple[int, int, str, float | None] = 0, 0, "", None  # number, epoch, phase, waited for data
        self._phase = ""
        self._split_ids: tuple[int, ...] = ()  # of the step's splits
        self._forward_seconds = 0.0
        self._backward_seconds: float | None = None  # of those that compute only
        self._reduced_seconds: float | None = None  # of those that wait for other ranks, too
        self._gap_seconds = 0.0  # between a forward and the backward that reduces its gradients
        self._forward_ended = 0.0  # the last of the step
        self._backward_ended: float | None = None  # the last of the step
        self._input_shape: Shape | None = None  # shapes of the last forward, and the id of its split
        self._output_shape: Shape | None = None
        self._last_split: tuple[int, ...] = ()
        self._began = 0.0
        self._last_ended: float | None = None  # the step before

    def step(self, phase: str, epoch: int, data_wait_ms: float | None) -> AbstractContextManager[object]:
        number = self._next_step[phase]
        self._next_step[phase] = number + 1
        if phase != self._phase:
            self._phase, self._last_split = phase, ()
        self._step_head = number, epoch, phase, data_wait_ms
        self._split_ids, self._forward_seconds, self._backward_seconds = (), 0.0, None
        self._reduced_seconds, self._gap_seconds, self._backward_ended = None, 0.0, None
        self._in_step = True
        return self

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """The step is over: send it, unless it failed."""
        ended, last = time.perf_counter(), self._last_ended
        self._in_step, self._last_ended = False, ended
        if kind is not None:
            return
        number, epoch, phase, waited_ms = self._step_head
        backward_ms, comm_ms, whole_ms = self._backward_times(phase)
        optimizer_ms = None
        if self._backward_ended is not None and phase == "train":
            optimizer_ms = (ended - self._backward_ended) * 1000.0
        forward_ms = self._forward_seconds * 1000.0 if self._split_ids else None
        step = Step(
            number,
            epoch,
            phase,
            self._split_ids,
            time.time(),
            (ended - self._began) * 1000.0,
            waited_ms,
            (forward_ms,),
            (backward_ms,),
            comm_ms,
            optimizer_ms=optimizer_ms,
            whole_backward_ms=whole_ms,
            cycle_ms=None if last is None else (ended - last) * 1000.0,
        )
        flop = None if self.model.flop_count is None else self._read_flop()
        self._sink.emit(step if flop is None else without_times(step, flop))

    def _backward_times(self, phase: str) -> tuple[float | None, float | None, float | None]:
        """Milliseconds of backward, of what it waited for other ranks, and of both."""
        alone_ms = None if self._backward_seconds is None else self._backward_seconds * 1000.0
        if phase != "train" or self._reduced_seconds is None:
            return alone_ms, None, None
        reduced_ms = self._reduced_seconds * 1000.0
        whole_ms, times = reduced_ms + (alone_ms or 0.0), self.read_ddp_times()
        if times is None:
            return None, None, whole_ms
        computed_ms = times.backward_alone_ms(self._gap_seconds * 1000.0, reduced_ms)
        return (alone_ms or 0.0) + computed_ms, reduced_ms - computed_ms, whole_ms

    def backward(self, backward: Callable[[], object], *, alone: bool = False) -> None:
        began = time.perf_counter()
        backward()
        self._backward_ended = ended = time.perf_counter()
        if self._times_whole_backward or alone:
            self._backward_seconds = (self._backward_seconds or 0.0) + ended - began
        else:
            self._reduced_seconds = (self._reduced_seconds or 0.0) + ended - began
            self._gap_seconds += began - self._forward_ended

    def watch_module(self, module: nn.Module, position: int, *, is_whole: bool = False) -> None:
        """Measure every call of `module` as one forward. A function in place of its own costs less than hooks do."""
        forward: Callable[..., Any] = module.forward
        clock, plain = time.perf_counter, torch.Tensor

        def measured(*args: Any, **kwargs: Any) -> Any:
            began = clock()
            outputs = forward(*args, **kwargs)
            if self._in_step:
                self._forward_ended = ended = clock()
                self._forward_seconds += ended - began
                inputs = args[0].shape if args and type(args[0]) is plain else shape_of_arguments(args, kwargs)
                outputs_shape = outputs.shape if type(outputs) is plain else shape_of(outputs)
                if inputs == self._input_shape and outputs_shape == self._output_shape and self._last_split:
                    self._split_ids += self._last_split
                else:
                    self.model.look_at_inputs(args, kwargs)
                    self._add_split(inputs, outputs_shape)
            return outputs

        module.forward = measured

    def _add_split(self, inputs: Shape | None, outputs_shape: Shape | None) -> None:
        """A forward with other shapes than the one before it, or in another phase. Ids beyond `MAX_INTERNED` are good
        for one step."""
        self._input_shape, self._output_shape = inputs, outputs_shape
        shard = Shard(_plain_tuple(inputs), _plain_tuple(outputs_shape), [])
        rows: Callable[[Shape | None], int | None] = lambda shape: rows_of(shape, self._dim)  # noqa: E731
        number = self._splits.split_id(
            self._phase,
            self._module,
            rows(inputs),
            self._devices,
            [shard],
            rows,
            holds_tokens=bool(self.model.holds_tokens),
        )
        self._last_split = (number,) if number < MAX_INTERNED else ()
        self._split_ids += (number,)


def _plain_tuple(shape: Shape | None) -> Shape | None:
    """torch's own kind of shape is no plain tuple, and would be kept as it is."""
    return None if shape is None else tuple(shape)
