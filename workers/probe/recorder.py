"""Records what each device got of every batch of a recipe, and how long it took there.

`RunObserver` is the null object: it has every method, and none does anything. `Recorder` measures. It never
waits for a device: on cuda the times of a step are read when its events have passed, some steps later.
"""

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from jobs.protocol.records import AnyRecord, MetricSample, Note, Shape
from workers.probe.backward_timer import time_backward
from workers.probe.clock import CLOCKS, Mark, Span
from workers.probe.shapes import rows_of, shape_of, shape_of_arguments
from workers.probe.step_records import DdpTimes, PendingSteps, Shard, SplitRegistry, TimedStep, is_sampled
from workers.runtime.context import RankContext

__all__ = ["DdpTimes", "RunObserver", "Recorder", "is_sampled"]


class RunObserver:
    """Records nothing."""

    def step(self, phase: str, epoch: int, data_wait_ms: float | None) -> AbstractContextManager[object]:
        """Around one optimizer step, or one batch of evaluation or forward."""
        return nullcontext()

    def backward(self, backward: Callable[[], object], *, alone: bool = False) -> None:
        """Call `backward`, which is a loss's. `alone`: in this one, no rank waits for another."""
        backward()

    def measure_primitive(self, name: str) -> AbstractContextManager[object]:
        """Around one of DataParallel's four primitives."""
        return nullcontext()

    def measure_arrival(self, position: int) -> AbstractContextManager[object]:
        """Around the time in which the shard of the device at `position` comes to it."""
        return nullcontext()

    def watch_call(self, position: int, module: Callable[..., Any]) -> Callable[..., Any]:
        """`module` as a function that is measured as the shard of the device at `position`."""
        return module

    def watch_backward(self, position: int, outputs: Any, boundary: Iterable[torch.Tensor]) -> None:
        """Called after a shard's forward with the tensors between which its backward will run."""

    def end_forward(self, batch_rows: int | None) -> None:
        """The forward whose shards have just run is complete."""


class _EndCallback:
    """Calls back when its block ends. A generator would do the same, at three times the cost in every step."""

    __slots__ = ("_done",)

    def __init__(self, done: Callable[[bool], None]) -> None:
        self._done = done

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._done(kind is not None)


class Recorder(RunObserver):
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
        self._sink = context.sink
        self._module = module
        self._dim = dim
        self._times_whole_backward = times_whole_backward
        self._devices = tuple(device.logical for device in context.devices)
        self._on_cuda = context.device_kind == "cuda"
        self._clock = CLOCKS[context.device_kind]
        self._shards: list[Shard | None] = [None] * len(self._devices)
        self._splits = SplitRegistry(context.sink)
        self._next_step = {"train": 0, "eval": 0, "forward": 0}
        self._open_step: TimedStep | None = None
        self._began = 0.0
        self._pending = PendingSteps(context.sink)
        self._notes: set[tuple[str, str]] = set()

    # -- around a step ---------------------------------------------------------------------------

    def step(self, phase: str, epoch: int, data_wait_ms: float | None) -> AbstractContextManager[object]:
        number = self._next_step[phase]
        self._next_step[phase] = number + 1
        self._open_step = step = TimedStep(number, epoch, phase, data_wait_ms, len(self._devices))
        self._began = time.perf_counter()
        return _EndCallback(lambda failed: self._end_step(step, failed))

    def backward(self, backward: Callable[[], object], *, alone: bool = False) -> None:
        if not (self._times_whole_backward or alone):
            backward()
            return
        begin = self._clock.mark(self._devices[0])
        backward()
        self._time_backward(begin)

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
        if failed:
            return
        step.at, step.step_ms = time.time(), (time.perf_counter() - self._began) * 1000.0
        if step.phase == "train":
            self._add_ddp_times(step)
        if self._on_cuda and is_sampled(step.number):
            step.memory = tuple(torch.cuda.max_memory_allocated(index) for index in self._devices)
        self._pending.add_step(step)

    def _time_backward(self, begin: Mark) -> None:
        if self._open_step is not None:
            self._open_step.backward.append(Span(self._clock, begin, self._clock.mark(self._devices[0])))

    def _add_ddp_times(self, step: TimedStep) -> None:
        times = self.read_ddp_times()
        if times is not None:
            step.backward_ms = [times.backward_ms]
            step.comm_ms = times.comm_ms
        elif not self._times_whole_backward:
            step.backward.clear()  # of some batches of the step only

    # -- around a forward ------------------------------------------------------------------------

    def measure_primitive(self, name: str) -> AbstractContextManager[object]:
        begin = self._clock.mark(self._devices[0])
        return _EndCallback(lambda failed: self._time_primitive(name, begin))

    def _time_primitive(self, name: str, begin: Mark) -> None:
        if self._open_step is not None:
            span = Span(self._clock, begin, self._clock.mark(self._devices[0]))
            self._open_step.primitives.setdefault(name, []).append(span)

    def measure_arrival(self, position: int) -> AbstractContextManager[object]:
        begin = self._clock.mark(self._devices[position])
        return _EndCallback(lambda failed: self._time_arrival(position, begin))

    def _time_arrival(self, position: int, begin: Mark) -> None:
        if self._open_step is not None:
            span = Span(self._clock, begin, self._clock.mark(self._devices[position]))
            self._open_step.arrivals[position].append(span)

    def watch_call(self, position: int, module: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            begin = self._clock.mark(self._devices[position])
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
            begin = self._clock.mark(self._devices[position])

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
        step = self._open_step
        if step is not None and step.phase == "train" and not self._on_cuda and is_sampled(step.number):
            time_backward(outputs, boundary, step.backward_ms, position)

    def _add_forward(self, position: int, input_shape: Shape | None, outputs: Any, begin: Mark) -> None:
        if self._open_step is None:
            return
        span = Span(self._clock, begin, self._clock.mark(self._devices[position]))
        output_shape = shape_of(outputs)
        shard = self._shards[position]
        if shard is None:
            self._shards[position] = Shard(input_shape, output_shape, [span])
        else:
            shard.output_shape = output_shape
            shard.spans.append(span)

    def end_forward(self, batch_rows: int | None) -> None:
        if self._open_step is None:
            return
        shards, self._shards = self._shards, [None] * len(self._devices)
        rows: Callable[[Any], int | None] = lambda shape: rows_of(shape, self._dim)  # noqa: E731
        number = self._splits.split_id(self._open_step.phase, self._module, batch_rows, self._devices, shards, rows)
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
