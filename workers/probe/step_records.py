"""Steps and splits on their way to the sink: steps whose times are pending, splits that were sent. No torch here."""

import math
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from jobs.protocol.packets import AnyRecord
from jobs.protocol.probe_records import Activity
from jobs.protocol.records import (
    MAX_DIMENSIONS,
    MAX_INTERNED,
    BatchSplit,
    MetricSample,
    Note,
    PrimitiveTimes,
    Shape,
    Step,
)
from workers.probe.clock import Span
from workers.probe.comparison.noise import NoiseReporter
from workers.probe.flop_count import FIELD, NO_BACKWARD, FlopCount, without_times
from workers.runtime.context import RecordSink

#: Steps whose times a device may not have reached yet before we wait for the oldest.
MAX_PENDING = 64
#: DistributedDataParallel measures its first ten iterations, and then one of as many as it is set to: every tenth, but
#: every hundredth where they take less than 10 ms. To measure one and to report it takes a tenth of a millisecond.
DDP_FIRST, DDP_EVERY, DDP_SELDOM = 10, 10, 100
DDP_QUICK_SECONDS = 0.01
ACTIVITY_SECONDS = 2.0
RATE_SECONDS = 1.0
MAX_NOTES = 64
PRIMITIVES = ("replicate", "scatter", "parallel_apply", "gather")


def is_sampled(step: int) -> bool:
    """Whether a step is one of those chosen beforehand for costly measurements: the first ten, then every tenth."""
    return step < 10 or step % 10 == 0


def next_sampled_step(step: int) -> int:
    """The first sampled step after `step`."""
    return step + 1 if step < 9 else step + 10 - step % 10


@dataclass(frozen=True, slots=True)
class DdpTimes:
    """What DistributedDataParallel measured of its latest step, in milliseconds.

    Its clock of backward starts when the forward ends, and stops when the last gradient is there. It does not count
    the wait for the reductions that still run then.
    """

    computed_ms: float

    def backward_alone_ms(self, gap_ms: float, whole_ms: float) -> float:
        """The part of a backward of `whole_ms` that this rank computed. `gap_ms` lay between forward and backward."""
        return min(max(self.computed_ms - gap_ms, 0.0), whole_ms)


@dataclass(slots=True, eq=False)
class DdpReductions:
    """Reductions of the gradients of one DistributedDataParallel: how many there were, including the next one."""

    wrapper: "weakref.ref[Any]"
    count: int = 0
    every: int = DDP_EVERY  # after the first ten, one of so many iterations is measured
    last_read: tuple[int, float] = (0, 0.0)  # the iteration whose times were read last, and when

    @property
    def is_measured(self) -> bool:
        """Whether the wrapper measures the next one."""
        return self.count <= DDP_FIRST or self.count % self.every == 0

    def adjust_sampling(self, now: float) -> bool:
        """To be called when times have been read. Whether `every` has changed: they were read too often, or too
        seldom."""
        (count, then), before = self.last_read, self.every
        self.last_read = self.count, now
        if self.count >= DDP_FIRST:
            self.every = DDP_SELDOM if now - then < DDP_QUICK_SECONDS * (self.count - count) else DDP_EVERY
        return self.every != before


class Shard(msgspec.Struct, eq=False):
    """What one device got in one forward. A device with several placed modules has a span for each."""

    input_shape: Shape | None
    output_shape: Shape | None
    spans: list[Span]


@dataclass(slots=True)
class TimedStep:
    """One step with its times, some of which may not be known yet. `count` is the number of its devices."""

    number: int
    epoch: int
    phase: str
    data_wait_ms: float | None
    count: int
    splits: list[int] = field(default_factory=list)
    forward: list[list[Span]] = field(default_factory=list)
    primitives: dict[str, list[Span]] = field(default_factory=dict)
    arrivals: list[list[Span]] = field(default_factory=list)
    backward: list[Span] = field(default_factory=list)  # that only compute
    joint_backward: list[Span] = field(default_factory=list)  # of several devices, or with waits for other ranks
    gaps: list[Span] = field(default_factory=list)  # between a forward and the backward that reduces its gradients
    ddp_times: DdpTimes | None = None
    backward_ms: list[float | None] = field(default_factory=list)
    optimizer: list[Span] = field(default_factory=list)
    before: list[Span] = field(default_factory=list)  # from the end of the step before to the first forward
    cycle_ms: float | None = None
    memory: tuple[int | None, ...] = ()
    flop: dict[str, tuple[int, ...]] | None = None  # where this step was chosen for counting them
    at: float = 0.0
    step_ms: float = 0.0

    def __post_init__(self) -> None:
        self.forward = [[] for _ in range(self.count)]
        self.arrivals = [[] for _ in range(self.count)]
        self.backward_ms = [None] * self.count

    def all_spans(self) -> Iterator[Span]:
        for spans in (*self.forward, *self.primitives.values(), *self.arrivals, self.backward, self.joint_backward):
            yield from spans
        yield from (*self.gaps, *self.optimizer, *self.before)

    def to_record(self) -> Step:
        backward, comm_ms = self._backward_and_comm()
        # What the device still had to do while the host waited for a batch is no wait of the device.
        idle = _total_ms(self.before) if self.before else math.inf
        record = Step(
            step=self.number,
            epoch=self.epoch,
            phase=self.phase,
            splits=tuple(self.splits),
            at=self.at,
            step_ms=self.step_ms,
            data_wait_ms=None if self.data_wait_ms is None else min(self.data_wait_ms, idle),
            forward_ms=tuple([_total_ms(spans) if spans else None for spans in self.forward]),
            backward_ms=backward,
            comm_ms=comm_ms,
            primitives=self._primitive_times(),
            memory_peak_bytes=self.memory,
            arrival_ms=tuple([_total_ms(spans) for spans in self.arrivals]) if any(self.arrivals) else (),
            optimizer_ms=_total_ms(self.optimizer) if self.optimizer else None,
            whole_backward_ms=_total_ms([*self.backward, *self.joint_backward]) if self.joint_backward else None,
            cycle_ms=self.cycle_ms,
        )
        return record if self.flop is None else without_times(record, self.flop)

    def _backward_and_comm(self) -> tuple[tuple[float | None, ...], float | None]:
        """The backward of each device, and how long the process waited for others in it."""
        backward, comm_ms = list(self.backward_ms), None
        alone_ms = _total_ms(self.backward) if self.backward else None
        if self.ddp_times is not None:
            joint_ms = _total_ms(self.joint_backward)
            computed_ms = self.ddp_times.backward_alone_ms(_total_ms(self.gaps), joint_ms)
            backward[0], comm_ms = (alone_ms or 0.0) + computed_ms, joint_ms - computed_ms
        elif alone_ms is not None and not self.joint_backward:
            backward[0] = (backward[0] or 0.0) + alone_ms
        return tuple(backward), comm_ms

    def _primitive_times(self) -> PrimitiveTimes | None:
        """The times of all four, or None: a program may call only some of them by hand."""
        if len(self.primitives) < len(PRIMITIVES):
            return None
        return PrimitiveTimes(*(_total_ms(self.primitives[name]) for name in PRIMITIVES))


def _total_ms(spans: list[Span]) -> float:
    return sum([span.elapsed_ms() for span in spans])


class PendingSteps:
    """Sends steps in order, each once its times are known. Never waits for a device while there is room."""

    def __init__(self, sink: RecordSink) -> None:
        self._sink = sink
        self._steps: deque[TimedStep] = deque()

    def add_step(self, step: TimedStep) -> None:
        self._steps.append(step)
        self.send_steps(MAX_PENDING)

    def send_steps(self, limit: int) -> None:
        """Send the steps whose times are known; while more than `limit` are pending, wait for the oldest."""
        while self._steps:
            if not all(span.is_reached() for span in self._steps[0].all_spans()):
                if len(self._steps) <= limit:
                    return
                for span in self._steps[0].all_spans():
                    span.clock.wait(span.end)
            self._sink.emit(self._steps.popleft().to_record())


class SplitRegistry:
    """Numbers each kind of split, and sends it when it is first seen."""

    def __init__(self, sink: RecordSink, first: int = 0) -> None:
        self._sink = sink
        self._ids: dict[tuple[Any, ...], int] = {}
        self._sent: list[BatchSplit] = []  # those of `_ids`
        self._next = first

    def split_id(
        self,
        phase: str,
        module: str,
        batch_rows: int | None,
        devices: Sequence[int],
        shards: Sequence[Shard | None],
        count_rows: Callable[[Shape | None], int | None],
        *,
        holds_tokens: bool = False,
    ) -> int:
        """The id of a split; `shards` runs parallel to `devices`, and `count_rows` counts a shard's rows by its
        shape."""
        inputs = tuple([None if shard is None else shard.input_shape for shard in shards])
        outputs = tuple([None if shard is None else shard.output_shape for shard in shards])
        got_nothing = tuple([shard is None for shard in shards])
        key = (phase, module, batch_rows, devices, got_nothing, inputs, outputs)
        known = self._ids.get(key)
        if known is not None:
            return known
        number, self._next = self._next, self._next + 1
        rows = tuple([0 if shard is None else count_rows(shard.input_shape) for shard in shards])
        shapes = _sendable(inputs), _sendable(outputs)
        split = BatchSplit(number, phase, module, batch_rows, tuple(devices), rows, *shapes, holds_tokens)
        if len(self._ids) < MAX_INTERNED:
            self._ids[key] = number
            self._sent.append(split)
        self._sink.emit(split)
        return number

    def dump(self) -> dict[str, Any]:
        """What `resume` needs, as plain values."""
        return {"next": self._next, "kept": [msgspec.to_builtins(split) for split in self._sent]}

    def resume(self, dumped: dict[str, Any]) -> None:
        """Continue the ids of the process that was stopped. The splits that it had sent are sent again, unchanged, to
        readers that have not seen them.

        Raises:
            ValueError, KeyError: `dumped` does not come from `dump`.
        """
        self._next = int(dumped["next"])
        self._sent = msgspec.convert(dumped["kept"], list[BatchSplit])
        for split in self._sent:
            shards = zip(split.rows, split.input_shapes, strict=True)
            got_nothing = tuple([rows == 0 and shape is None for rows, shape in shards])
            inputs, outputs = split.input_shapes, split.output_shapes
            key = (split.phase, split.module, split.batch_rows, split.devices, got_nothing, inputs, outputs)
            self._ids[key] = split.id
            self._sink.emit(split)


def _sendable(shapes: Sequence[Shape | None]) -> tuple[Shape | None, ...]:
    """Shapes as a record takes them; `None` for one of more dimensions than that."""
    return tuple([shape if shape is None or len(shape) <= MAX_DIMENSIONS else None for shape in shapes])


@dataclass(slots=True)
class EvaluationExchanges:
    """Collectives of any size that a program has called since a pass began, without a step of training meanwhile."""

    gathers: int = 0
    sums: int = 0


class RowRate:
    """Sends rows a second about once a second: rank 0 those of all ranks, each rank of a group its own device's."""

    def __init__(self, sink: RecordSink, rank: int, world_size: int, device: int | None) -> None:
        self._sink = sink
        self._rank, self._world_size, self._device = rank, world_size, device
        self._rows = 0
        self._sent = time.perf_counter()

    def add(self, rows: int, step: int, now: float) -> None:
        self._rows += rows
        elapsed = now - self._sent
        if elapsed < RATE_SECONDS or not self._rows:
            return
        own = self._rows / elapsed
        if self._world_size > 1 and self._device is not None:
            self._sink.emit(MetricSample(self._device, "rows_per_second", step, own, time.time()))
        if self._rank == 0:
            self._sink.emit(MetricSample(-1, "rows_per_second", step, own * self._world_size, time.time()))
        self._rows, self._sent = 0, now


class RunReporter:
    """Reports what belongs to a run and not to one of its steps: notes, series, and counts of what was seen."""

    def __init__(self, sink: RecordSink, rank: int, world_size: int, device: int | None) -> None:
        """`device`: the only one of this rank."""
        self.rank, self.world_size = rank, world_size
        self.steps = self.forwards = self.backwards = self.reductions = self.exchanges = 0
        self.evaluation = EvaluationExchanges()
        self.exchanged_numbers = 0  # outside of forwards
        self.flop_count: FlopCount | None = None  # of the step that is under way, where it is the one to be counted
        self._sink = sink
        self._notes: set[tuple[str, str]] = set()
        self._activity_sent = time.perf_counter()
        self._rate = RowRate(sink, rank, world_size, device)
        self.noise = NoiseReporter(sink.emit)

    def note(self, where: str, reason: str) -> None:
        """Send, once, why a field of the report is null, or what its reader must know."""
        if (where, reason) not in self._notes and len(self._notes) < MAX_NOTES:
            self._notes.add((where, reason))
            self._sink.emit(Note(where, reason))

    def emit(self, record: AnyRecord) -> None:
        self._sink.emit(record)

    def report_learning_rate(self, rate: float | None) -> None:
        if rate is not None and self.rank == 0:
            self._sink.emit(MetricSample(-1, "learning_rate", self.steps, rate, time.time()))

    def take_flop(self, slots: Sequence[int], has_backward: bool) -> dict[str, tuple[int, ...]] | None:
        """The FLOP of the train step that has just ended on these slots, where it was the one to be counted."""
        count, self.flop_count = self.flop_count, None
        if count is None:
            return None
        if not has_backward:
            count.refuse(NO_BACKWARD)
        found = count.result()
        if count.refusal:
            self.note(FIELD, count.refusal)
        return None if found is None else {name: tuple([flop[slot] for slot in slots]) for name, flop in found.items()}

    def add_rows(self, rows: int, step: int, now: float) -> None:
        """Count the rows of a train step."""
        self._rate.add(rows, step, now)

    def send_activity_if_due(self, now: float) -> None:
        if now - self._activity_sent > ACTIVITY_SECONDS:
            self.send_activity()

    def send_activity(self) -> None:
        self._activity_sent = time.perf_counter()
        counts = self.forwards, self.backwards, self.steps, self.reductions, self.exchanges
        self._sink.emit(Activity(*counts, self.evaluation.gathers, self.evaluation.sums))
