"""Watches a run and tells the sink what each device got of every batch, and what it cost there.

`Observer` is the null object: it has every method, and none does anything. `Recorder` is the one that
looks. A device is never waited for: on cuda the times of a step are read when its events have passed,
some steps later.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from jobs.telemetry import MAX_INTERNED, AnyRecord, Metric, Note, Primitives, Shape, Split, Step
from workers.training.context import RankContext
from workers.training.probe.backward import time_backward
from workers.training.probe.clock import CLOCKS, Mark, Span
from workers.training.probe.shapes import rows_of, shape_of, shape_of_arguments

#: Steps whose times a device may still owe us before we wait for the oldest.
MAX_OWED = 64
PRIMITIVES = ("replicate", "scatter", "parallel_apply", "gather")


def sampled(step: int) -> bool:
    """The steps chosen beforehand for what is too dear for every step: the first ten, then every tenth."""
    return step < 10 or step % 10 == 0


@dataclass(frozen=True, slots=True)
class DdpTimes:
    """What DistributedDataParallel measured of its latest step, in milliseconds."""

    backward_ms: float
    comm_ms: float


class Observer:
    """Sees everything, says nothing."""

    def step(self, phase: str, epoch: int, data_wait_ms: float | None) -> AbstractContextManager[object]:
        """Around one optimizer step, or one batch of evaluation or forward."""
        return nullcontext()

    def backward(self, *, alone: bool = False) -> AbstractContextManager[object]:
        """Around `loss.backward()`. `alone`: in this one, no rank waits for another."""
        return nullcontext()

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


@dataclass(slots=True)
class _Shard:
    """What one device got in one forward. A device with several placed modules has a span for each."""

    given: Shape | None
    returned: Shape | None
    spans: list[Span]


@dataclass(slots=True)
class _Step:
    """One step in progress, or one whose times a device still owes."""

    number: int
    epoch: int
    phase: str
    data_wait_ms: float | None
    began: float
    count: int
    splits: list[int] = field(default_factory=list)
    forward: list[list[Span]] = field(default_factory=list)
    primitives: dict[str, list[Span]] = field(default_factory=dict)
    arrivals: list[list[Span]] = field(default_factory=list)
    backward: list[Span] = field(default_factory=list)
    backward_ms: list[float | None] = field(default_factory=list)
    comm_ms: float | None = None
    memory: tuple[int | None, ...] = ()
    at: float = 0.0
    step_ms: float = 0.0

    def __post_init__(self) -> None:
        self.forward = [[] for _ in range(self.count)]
        self.arrivals = [[] for _ in range(self.count)]
        self.backward_ms = [None] * self.count

    def spans(self) -> Iterator[Span]:
        for spans in (*self.forward, *self.primitives.values(), *self.arrivals, self.backward):
            yield from spans

    def record(self) -> Step:
        backward = list(self.backward_ms)
        if self.backward:
            backward[0] = (backward[0] or 0.0) + _total(self.backward)
        return Step(
            step=self.number,
            epoch=self.epoch,
            phase=self.phase,
            splits=tuple(self.splits),
            at=self.at,
            step_ms=self.step_ms,
            data_wait_ms=self.data_wait_ms,
            forward_ms=tuple(_total(spans) if spans else None for spans in self.forward),
            backward_ms=tuple(backward),
            comm_ms=self.comm_ms,
            primitives=Primitives(*(_total(self.primitives[name]) for name in PRIMITIVES)) if self.primitives else None,
            memory_peak_bytes=self.memory,
            arrival_ms=tuple(_total(spans) for spans in self.arrivals) if any(self.arrivals) else (),
        )


class _Around:
    """Calls back when its block ends. A generator would say the same, at three times the cost in every step."""

    __slots__ = ("_done",)

    def __init__(self, done: Callable[[bool], None]) -> None:
        self._done = done

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._done(kind is not None)


def _total(spans: list[Span]) -> float:
    return sum(span.ms() for span in spans)


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
        self._shards: list[_Shard | None] = [None] * len(self._devices)
        self._ids: dict[tuple[Any, ...], int] = {}
        self._next_id = 0
        self._next_step = {"train": 0, "eval": 0, "forward": 0}
        self._open: _Step | None = None
        self._owed: deque[_Step] = deque()
        self._noted: set[tuple[str, str]] = set()

    # -- around a step ---------------------------------------------------------------------------

    def step(self, phase: str, epoch: int, data_wait_ms: float | None) -> AbstractContextManager[object]:
        number = self._next_step[phase]
        self._next_step[phase] = number + 1
        self._open = step = _Step(number, epoch, phase, data_wait_ms, time.perf_counter(), len(self._devices))
        return _Around(lambda failed: self._close(step, failed))

    def backward(self, *, alone: bool = False) -> AbstractContextManager[object]:
        if not (self._times_whole_backward or alone):
            return nullcontext()
        begin = self._clock.mark(self._devices[0])
        return _Around(lambda failed: self._time_backward(begin))

    def finish(self) -> None:
        """Wait for the times that devices still owe, and send them."""
        self._send_what_is_known(0)

    def _close(self, step: _Step, failed: bool) -> None:
        self._open = None
        if failed:
            return
        step.at, step.step_ms = time.time(), (time.perf_counter() - step.began) * 1000.0
        if step.phase == "train":
            self._ask_ddp(step)
        if self._on_cuda and sampled(step.number):
            step.memory = tuple(torch.cuda.max_memory_allocated(index) for index in self._devices)
        self._owed.append(step)
        self._send_what_is_known(MAX_OWED)

    def _time_backward(self, begin: Mark) -> None:
        if self._open is not None:
            self._open.backward.append(Span(self._clock, begin, self._clock.mark(self._devices[0])))

    def _ask_ddp(self, step: _Step) -> None:
        times = self.ddp_times()
        if times is not None:
            step.backward_ms = [times.backward_ms]
            step.comm_ms = times.comm_ms
        elif not self._times_whole_backward:
            step.backward.clear()  # of some batches of the step only

    def _send_what_is_known(self, limit: int) -> None:
        while self._owed:
            if not all(span.reached() for span in self._owed[0].spans()):
                if len(self._owed) <= limit:
                    return
                for span in self._owed[0].spans():
                    self._clock.wait(span.end)
            self._sink.emit(self._owed.popleft().record())

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
            self._shards[position] = _Shard(given, returned, [span])
        else:
            seen.returned = returned
            seen.spans.append(span)

    def split(self, batch_rows: int | None) -> None:
        if self._open is None:
            return
        shards, self._shards = self._shards, [None] * len(self._devices)
        self._open.splits.append(self._split_id(self._open.phase, batch_rows, shards))
        for spans, shard in zip(self._open.forward, shards, strict=True):
            spans += shard.spans if shard is not None else []

    def _split_id(self, phase: str, batch_rows: int | None, shards: list[_Shard | None]) -> int:
        given = tuple([None if shard is None else shard.given for shard in shards])
        returned = tuple([None if shard is None else shard.returned for shard in shards])
        got_nothing = tuple([shard is None for shard in shards])
        key = (phase, batch_rows, got_nothing, given, returned)
        known = self._ids.get(key)
        if known is not None:
            return known
        number, self._next_id = self._next_id, self._next_id + 1
        if len(self._ids) < MAX_INTERNED:
            self._ids[key] = number
        rows = tuple(0 if shard is None else rows_of(shard.given, self._dim) for shard in shards)
        self._sink.emit(Split(number, phase, self._module, batch_rows, self._devices, rows, given, returned))
        return number

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
