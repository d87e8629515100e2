"""Steps and splits on their way to the sink: what a device still owes, what was sent before. No torch here."""

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from jobs.protocol.records import MAX_INTERNED, Primitives, Shape, Split, Step
from workers.probe.clock import Span
from workers.runtime.context import Sink

#: Steps whose times a device may still owe us before we wait for the oldest.
MAX_OWED = 64
#: DistributedDataParallel measures its first ten iterations, and then as often as it is told: every tenth, but of those
#: that take less than 10 ms every hundredth. To measure one and to tell of it takes a tenth of a millisecond.
DDP_FIRST, DDP_EVERY, DDP_SELDOM = 10, 10, 100
DDP_QUICK_SECONDS = 0.01
PRIMITIVES = ("replicate", "scatter", "parallel_apply", "gather")


def sampled(step: int) -> bool:
    """The steps chosen beforehand for what is too dear for every step: the first ten, then every tenth."""
    return step < 10 or step % 10 == 0


def next_sampled(step: int) -> int:
    """The next of these steps."""
    return step + 1 if step < 9 else step + 10 - step % 10


@dataclass(frozen=True, slots=True)
class DdpTimes:
    """What DistributedDataParallel measured of its latest step, in milliseconds."""

    backward_ms: float
    comm_ms: float


@dataclass(slots=True, eq=False)
class Reductions:
    """Those of the gradients of one DistributedDataParallel: how many there were, with one to come."""

    wrapper: "weakref.ref[Any]"
    count: int = 0
    every: int = DDP_EVERY  # after the first, so many iterations are between two that are measured
    asked: tuple[int, float] = (0, 0.0)  # the iteration that the wrapper was asked about last, and when

    @property
    def is_measured(self) -> bool:
        """Whether the wrapper measures the one to come."""
        return self.count <= DDP_FIRST or self.count % self.every == 0

    def pace(self, now: float) -> bool:
        """The wrapper has been asked. Whether `every` is another from now on: it was asked too often, or too seldom."""
        (count, then), before = self.asked, self.every
        self.asked = self.count, now
        if self.count >= DDP_FIRST:
            self.every = DDP_SELDOM if now - then < DDP_QUICK_SECONDS * (self.count - count) else DDP_EVERY
        return self.every != before


class Shard(msgspec.Struct, eq=False):
    """What one device got in one forward. A device with several placed modules has a span for each."""

    given: Shape | None
    returned: Shape | None
    spans: list[Span]


@dataclass(slots=True)
class Timed:
    """One step with its times, some of which a device may still owe. `count` is the number of its devices."""

    number: int
    epoch: int
    phase: str
    data_wait_ms: float | None
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
            forward_ms=tuple([_total(spans) if spans else None for spans in self.forward]),
            backward_ms=tuple(backward),
            comm_ms=self.comm_ms,
            primitives=self._primitives(),
            memory_peak_bytes=self.memory,
            arrival_ms=tuple([_total(spans) for spans in self.arrivals]) if any(self.arrivals) else (),
        )

    def _primitives(self) -> Primitives | None:
        """All four, or nothing: a program that calls only some of them by hand has no such time."""
        if len(self.primitives) < len(PRIMITIVES):
            return None
        return Primitives(*(_total(self.primitives[name]) for name in PRIMITIVES))


def _total(spans: list[Span]) -> float:
    return sum([span.ms() for span in spans])


class Owed:
    """Sends steps in order, each once its times are known. Never waits for a device while there is room."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._steps: deque[Timed] = deque()

    def add(self, step: Timed) -> None:
        self._steps.append(step)
        self.send(MAX_OWED)

    def send(self, limit: int) -> None:
        """Send what is known; when more than `limit` steps are not, wait for the oldest."""
        while self._steps:
            if not all(span.reached() for span in self._steps[0].spans()):
                if len(self._steps) <= limit:
                    return
                for span in self._steps[0].spans():
                    span.clock.wait(span.end)
            self._sink.emit(self._steps.popleft().record())


class Splits:
    """Numbers each kind of split, and sends it when it is first seen."""

    def __init__(self, sink: Sink, first: int = 0) -> None:
        self._sink = sink
        self._ids: dict[tuple[Any, ...], int] = {}
        self._kept: list[Split] = []  # those of `_ids`
        self._next = first

    def number(
        self,
        phase: str,
        module: str,
        batch_rows: int | None,
        devices: Sequence[int],
        shards: Sequence[Shard | None],
        rows_of: Callable[[Shape | None], int | None],
    ) -> int:
        """The id of a split; `shards` runs parallel to `devices`, and `rows_of` counts a shard's rows by its shape."""
        given = tuple([None if shard is None else shard.given for shard in shards])
        returned = tuple([None if shard is None else shard.returned for shard in shards])
        got_nothing = tuple([shard is None for shard in shards])
        key = (phase, module, batch_rows, devices, got_nothing, given, returned)
        known = self._ids.get(key)
        if known is not None:
            return known
        number, self._next = self._next, self._next + 1
        rows = tuple([0 if shard is None else rows_of(shard.given) for shard in shards])
        split = Split(number, phase, module, batch_rows, tuple(devices), rows, given, returned)
        if len(self._ids) < MAX_INTERNED:
            self._ids[key] = number
            self._kept.append(split)
        self._sink.emit(split)
        return number

    def numbers(self) -> dict[str, Any]:
        """What `go_on` needs, in numbers and words."""
        return {"next": self._next, "kept": [msgspec.to_builtins(split) for split in self._kept]}

    def go_on(self, numbers: dict[str, Any]) -> None:
        """Number splits as the process did that was stopped. Those that it had sent are sent again, as they were, to
        readers that are as new as this process.

        Raises:
            ValueError, KeyError: these are no such numbers.
        """
        self._next = int(numbers["next"])
        self._kept = msgspec.convert(numbers["kept"], list[Split])
        for split in self._kept:
            shards = zip(split.rows, split.input_shapes, strict=True)
            got_nothing = tuple([rows == 0 and given is None for rows, given in shards])
            given, returned = split.input_shapes, split.output_shapes
            key = (split.phase, split.module, split.batch_rows, split.devices, got_nothing, given, returned)
            self._ids[key] = split.id
            self._sink.emit(split)
