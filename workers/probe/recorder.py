"""Watches a run and tells the sink what each device got of every batch, and what it cost there.

`Observer` is the null object: it has every method, and none does anything. `Recorder` is the one that
looks. A device is never waited for: on cuda the times of a step are read when its events have passed,
some steps later.
"""

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from jobs.protocol.records import AnyRecord, Metric, Note, Shape
from workers.probe.backward_timer import time_backward
from workers.probe.clock import CLOCKS, Mark, Span
from workers.probe.shapes import rows_of, shape_of, shape_of_arguments
from workers.probe.step_records import DdpTimes, Owed, Shard, Splits, Timed, sampled
from workers.runtime.context import RankContext

__all__ = ["DdpTimes", "Observer", "Recorder", "sampled"]


class Observer:
    """Sees everything, says nothing."""

    def step(self, phase: str, epoch: int, data_wait_ms: float | None) -> AbstractContextManager[object]:
        """Around one optimizer step, or one batch of evaluation or forward."""
        return nullcontext()

    def backward(self, backward: Callable[[], object], *, alone: bool = False) -> None:
        """Call `backward`, which is a loss's. `alone`: in this one, no rank waits for another."""
        backward()

    def primitive(self, name: str) -> AbstractContextManager[object]:
        """Around one of DataParallel's four primitives."""
        return nullcontext()

    def arriving(self, position: int) -> AbstractContextManager[object]:
        """Around the time in which the shard of the device at `position` comes to it."""
        return nullcontext()

    def watched(self, position: int, module: Callable[..., Any]) -> Callable[..., Any]:
        """`module` as a function that is measured as the shard of the device at `position`."""
        return module

    def shard_graph(self, position: int, outputs: Any, boundary: Iterable[torch.Tensor]) -> None:
        """Called after a shard's forward with the tensors between which its backward will run."""

    def split(self, batch_rows: int | None) -> None:
        """The forward whose shards were just seen is complete."""


class _Around:
    """Calls back when its block ends. A generator would say the same, at three times the cost in every step."""

    __slots__ = ("_done",)

    def __init__(self, done: Callable[[bool], None]) -> None:
        self._done = done

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._done(kind is not None)


class Recorder(Observer):
    """Sends `Split`, `Step`, `Metric` and `Note` records.

    `module` is the dotted path of what is split ("" for the whole model), `dim` the dimension along
    which rows are counted. `times_whole_backward` says that the backward of this rank is that of its
    only device; `ddp_times` asks DistributedDataParallel for its own numbers after a step.
    """

    def __init__(
        self,
        context: RankContext,
        *,
        module: str = "",
        dim: int = 0,
        times_whole_backward: bool = False,
    ) -> None:
        self.ddp_times: Callable[[], DdpTimes | None] = lambda: None
        self._sink = context.sink
        self._module = module
        self._dim = dim
        self._times_whole_backward = times_whole_backward
        self._devices = tuple(device.logical for device in context.devices)
        self._on_cuda = context.kind == "cuda"
        self._clock = CLOCKS[context.kind]
        self._shards: list[Shard | None] = [None] * len(self._devices)
        self._splits = Splits(context.sink)
        self._next_step = {"train": 0, "eval": 0, "forward": 0}
        self._open: Timed | None = None
        self._began = 0.0
        self._owed = Owed(context.sink)
        self._noted: set[tuple[str, str]] = set()

    # -- around a step ---------------------------------------------------------------------------

    def step(self, phase: str, epoch: int, data_wait_ms: float | None) -> AbstractContextManager[object]:
        number = self._next_step[phase]
        self._next_step[phase] = number + 1
        self._open = step = Timed(number, epoch, phase, data_wait_ms, len(self._devices))
        self._began = time.perf_counter()
        return _Around(lambda failed: self._close(step, failed))

    def backward(self, backward: Callable[[], object], *, alone: bool = False) -> None:
        if not (self._times_whole_backward or alone):
            backward()
            return
        begin = self._clock.mark(self._devices[0])
        backward()
        self._time_backward(begin)

    def finish(self) -> None:
        """Wait for the times that devices still owe, and send them."""
        self._owed.send(0)

    def numbers(self) -> dict[str, Any]:
        """How far steps and splits are numbered, in numbers and words."""
        return {"steps": dict(self._next_step), "splits": self._splits.numbers()}

    def go_on(self, numbers: dict[str, Any]) -> None:
        """Number steps and splits as the process did that was stopped.

        Raises:
            ValueError, KeyError: these are no such numbers.
        """
        self._next_step = {phase: int(numbers["steps"][phase]) for phase in self._next_step}
        self._splits.go_on(numbers["splits"])

    def _close(self, step: Timed, failed: bool) -> None:
        self._open = None
        if failed:
            return
        step.at, step.step_ms = time.time(), (time.perf_counter() - self._began) * 1000.0
        if step.phase == "train":
            self._ask_ddp(step)
        if self._on_cuda and sampled(step.number):
            step.memory = tuple(torch.cuda.max_memory_allocated(index) for index in self._devices)
        self._owed.add(step)

    def _time_backward(self, begin: Mark) -> None:
        if self._open is not None:
            self._open.backward.append(Span(self._clock, begin, self._clock.mark(self._devices[0])))

    def _ask_ddp(self, step: Timed) -> None:
        times = self.ddp_times()
        if times is not None:
            step.backward_ms = [times.backward_ms]
            step.comm_ms = times.comm_ms
        elif not self._times_whole_backward:
            step.backward.clear()  # of some batches of the step only

    # -- around a forward ------------------------------------------------------------------------

    def primitive(self, name: str) -> AbstractContextManager[object]:
        begin = self._clock.mark(self._devices[0])
        return _Around(lambda failed: self._time_primitive(name, begin))

    def _time_primitive(self, name: str, begin: Mark) -> None:
        if self._open is not None:
            span = Span(self._clock, begin, self._clock.mark(self._devices[0]))
            self._open.primitives.setdefault(name, []).append(span)

    def arriving(self, position: int) -> AbstractContextManager[object]:
        begin = self._clock.mark(self._devices[position])
        return _Around(lambda failed: self._time_arrival(position, begin))

    def _time_arrival(self, position: int, begin: Mark) -> None:
        if self._open is not None:
            span = Span(self._clock, begin, self._clock.mark(self._devices[position]))
            self._open.arrivals[position].append(span)

    def watched(self, position: int, module: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            begin = self._clock.mark(self._devices[position])
            outputs = module(*args, **kwargs)
            self._saw(position, shape_of_arguments(args, kwargs), outputs, begin)
            return outputs

        return call

    def watch(self, module: nn.Module, position: int, *, is_whole: bool = False) -> None:
        """Measure every call of `module`, where it stands, as part of the device at `position`.

        `is_whole`: there is no other part, so every call is one forward.
        """
        begin: Mark = None

        def before(_: nn.Module, args: Any, kwargs: Any) -> None:
            nonlocal begin
            begin = self._clock.mark(self._devices[position])

        def after(_: nn.Module, args: Any, kwargs: Any, outputs: Any) -> None:
            given = shape_of_arguments(args, kwargs)
            self._saw(position, given, outputs, begin)
            if is_whole:
                self.split(rows_of(given, self._dim))

        module.register_forward_pre_hook(before, with_kwargs=True)
        module.register_forward_hook(after, with_kwargs=True)

    def split_after(self, module: nn.Module) -> None:
        """Count every call of `module` as one forward."""

        def after(_: nn.Module, args: Any, kwargs: Any, outputs: Any) -> None:
            self.split(rows_of(shape_of_arguments(args, kwargs), self._dim))

        module.register_forward_hook(after, with_kwargs=True)

    def shard_graph(self, position: int, outputs: Any, boundary: Iterable[torch.Tensor]) -> None:
        step = self._open
        if step is not None and step.phase == "train" and not self._on_cuda and sampled(step.number):
            time_backward(outputs, boundary, step.backward_ms, position)

    def _saw(self, position: int, given: Shape | None, outputs: Any, begin: Mark) -> None:
        if self._open is None:
            return
        span = Span(self._clock, begin, self._clock.mark(self._devices[position]))
        returned = shape_of(outputs)
        seen = self._shards[position]
        if seen is None:
            self._shards[position] = Shard(given, returned, [span])
        else:
            seen.returned = returned
            seen.spans.append(span)

    def split(self, batch_rows: int | None) -> None:
        if self._open is None:
            return
        shards, self._shards = self._shards, [None] * len(self._devices)
        rows: Callable[[Any], int | None] = lambda shape: rows_of(shape, self._dim)  # noqa: E731
        number = self._splits.number(self._open.phase, self._module, batch_rows, self._devices, shards, rows)
        self._open.splits.append(number)
        for spans, shard in zip(self._open.forward, shards, strict=True):
            spans += shard.spans if shard is not None else []

    # -- single records --------------------------------------------------------------------------

    def metric(self, name: str, step: int, value: float, device: int = -1) -> None:
        self._sink.emit(Metric(device, name, step, value, time.time()))

    def note(self, field: str, reason: str) -> None:
        """Say once why `field` of the report is null, or what its reader must know."""
        if (field, reason) not in self._noted:
            self._noted.add((field, reason))
            self._sink.emit(Note(field, reason))

    def emit(self, record: AnyRecord) -> None:
        self._sink.emit(record)
