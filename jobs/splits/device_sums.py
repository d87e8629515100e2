"""What each device did in the steps of one phase: columns of times, and the sums of them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import add
from statistics import median

import msgspec

from jobs.protocol.records import PrimitiveTimes, Step
from jobs.splits.estimates import WARM_UP_STEPS, TimeEstimate, known_values
from jobs.splits.even_steps import EvenSteps
from jobs.splits.step_windows import WindowHistory
from jobs.support.quantiles import QuantileSketch

#: Measured backwards of which the usual one is taken.
MAX_LATEST = 15
#: Kinds of arithmetic that are told apart.
MAX_ARITHMETICS = 8
#: Milliseconds, or bytes: what is more was not measured. Sums and squares of such numbers stay numbers.
MAX_MEASURED = 1e15
#: Of one device, step by step.
Column = list[float | None]


@dataclass(frozen=True, slots=True)
class Share:
    """What one device got and did in each of several steps that were divided alike; `steps` is `None` when its rank
    sent nothing, or no times. Values that are no measurements are `None` in the columns."""

    rows: int | None
    steps: Sequence[Step] | None
    position: int = 0  # of the device within the steps' per-device fields
    tokens: int | None = None  # None: its inputs are not token ids
    untimed: int = 0  # steps beside these of which it sent no times

    def batch_waits_ms(self) -> Column:
        """How long the process waited for the batch."""
        return self.read(lambda step: step.data_wait_ms)

    def arrivals_ms(self) -> Column:
        """How long this device then waited for its own shard."""
        return self.column([step.arrival_ms for step in self.steps or ()])

    def waits_ms(self) -> Column:
        """Both."""
        return [
            batch if shard is None else (batch or 0.0) + shard
            for batch, shard in zip(self.batch_waits_ms(), self.arrivals_ms(), strict=True)
        ]

    def forward_ms(self) -> Column:
        return self.column([step.forward_ms for step in self.steps or ()])

    def backward_ms(self) -> Column:
        return self.column([step.backward_ms for step in self.steps or ()])

    @property
    def is_alone(self) -> bool:
        """Whether its process has no other device."""
        return self.steps is not None and len(self.steps[0].forward_ms) == 1

    def read(self, field: Callable[[Step], float | None]) -> Column:
        """A field of the process's steps."""
        return [measured(field(step)) for step in self.steps or ()]

    def column(self, values: Sequence[Sequence[float | None]]) -> Column:
        """This device's entries of a per-device field; `None` where it was not measured."""
        position = self.position
        return [measured(each[position]) if position < len(each) else None for each in values]

    def of_steps(self, chosen: Sequence[int]) -> "Share":
        """Of some of the steps."""
        steps = self.steps
        chosen_steps = None if steps is None else [steps[index] for index in chosen]
        return self if steps is None else Share(self.rows, chosen_steps, self.position, self.tokens, self.untimed)

    def is_counted(self) -> list[bool]:
        """Of which steps the FLOP were counted, so that they have no times; empty where there is none."""
        steps = self.steps or ()
        counted = [step.flop is not None for step in steps]
        return counted if True in counted else []


@dataclass(frozen=True, slots=True)
class DeviceWork:
    """What a device did in several steps, each a column over them. Backwards that were not measured are estimated."""

    share: Share
    waits: list[float]
    forward: Column
    backward: Column
    comm: Column  # what the process waited for other ranks in backward

    def compute(self) -> list[float]:
        return _add_columns(self.forward, self.backward)

    def busy(self) -> list[float]:
        return list(map(add, self.waits, self.compute()))

    def of_steps(self, chosen: Sequence[int]) -> "DeviceWork":
        columns = (self.forward, self.backward, self.comm)
        waits = [self.waits[index] for index in chosen]
        return DeviceWork(
            self.share.of_steps(chosen), waits, *([column[index] for index in chosen] for column in columns)
        )


class WorkSums(msgspec.Struct, array_like=True):
    """What a device computed, beside rows."""

    tokens: int = 0
    token_steps: int = 0  # in which they are known
    counted_steps: int = 0  # whose FLOP were counted, with success or without
    flop: dict[str, int] = {}  # by arithmetic
    flop_rows: int = 0  # of the counted steps
    flop_tokens: int = 0

    def add(self, share: Share, count: int, is_counted: Sequence[bool]) -> None:
        tokens = 0 if share.rows == 0 else share.tokens
        if tokens is not None:
            self.tokens += tokens * count
            self.token_steps += count
        for step, chosen in zip(share.steps or (), is_counted, strict=False):
            if chosen:
                self._add_flop(share, step.flop or {})

    def _add_flop(self, share: Share, flop: Mapping[str, Sequence[int]]) -> None:
        self.counted_steps += 1
        known = {name: parts[share.position] for name, parts in flop.items() if share.position < len(parts)}
        if not known:
            return
        self.flop_rows += share.rows or 0
        self.flop_tokens += share.tokens or 0
        for name, counted in known.items():
            if counted > 0 and (name in self.flop or len(self.flop) < MAX_ARITHMETICS):
                self.flop[name] = self.flop.get(name, 0) + counted


class DeviceSums(msgspec.Struct, array_like=True):
    rows: int = 0
    uncounted_steps: int = 0
    steps: int = 0
    idle_steps: int = 0
    forward: TimeEstimate = msgspec.field(default_factory=TimeEstimate)
    backward: TimeEstimate = msgspec.field(default_factory=TimeEstimate)
    data_wait: TimeEstimate = msgspec.field(default_factory=TimeEstimate)
    comm: TimeEstimate = msgspec.field(default_factory=TimeEstimate)
    optimizer: TimeEstimate = msgspec.field(default_factory=TimeEstimate)
    other: QuantileSketch = msgspec.field(default_factory=QuantileSketch)  # of a cycle
    joint_backward_ms: float = 0.0  # of backwards that are divided into computing and waiting
    cycles_ms: float = 0.0
    forward_rows: int = 0
    backward_rows: int = 0
    usual_steps: int = 0  # measured backwards, and what a row took in the latest ones, in milliseconds
    latest_rows_ms: list[float] = []
    usual_row_ms: float | None = None
    memory_peak_bytes: int | None = None
    covered_ms: float = 0.0
    covered_wait_ms: float = 0.0
    covered_comm_ms: float = 0.0
    covered_rows: int = 0
    covered_cycles_ms: float = 0.0
    joint_steps: int = 0  # that are in `joint_backward_ms`
    work: WorkSums = msgspec.field(default_factory=WorkSums)
    untimed_steps: int = 0  # whose times were left out

    @property
    def unmeasured_steps(self) -> int:
        """Steps that have no times at all."""
        return self.work.counted_steps + self.untimed_steps


@dataclass(frozen=True, slots=True)
class RowCost:
    """What the measured steps of a device took, and their rows."""

    forward_ms: float
    forward_rows: int
    backward_ms: float
    backward_rows: int

    @classmethod
    def of(cls, device: DeviceSums) -> "RowCost":
        forward, backward = device.forward.sketch.total, device.backward.sketch.total
        return cls(forward, device.forward_rows, backward, device.backward_rows)

    def since(self, earlier: "RowCost") -> "RowCost":
        return RowCost(
            self.forward_ms - earlier.forward_ms,
            self.forward_rows - earlier.forward_rows,
            self.backward_ms - earlier.backward_ms,
            self.backward_rows - earlier.backward_rows,
        )

    @property
    def ms_per_row(self) -> float | None:
        if not self.forward_rows:
            return None
        backward = round(self.backward_ms / self.backward_rows, 6) if self.backward_rows else 0.0
        return round(round(self.forward_ms / self.forward_rows, 6) + backward, 6)


class CoveredTotals(msgspec.Struct, array_like=True):
    """Over the covered steps."""

    steps: int = 0
    elapsed_ms: float = 0.0
    wasted_ms: float = 0.0
    input_ms: float = 0.0
    comm_ms: float = 0.0
    in_turn_ms: float = 0.0  # what the steps would have been shorter, had the devices run at once


class Sums(msgspec.Struct, array_like=True):
    """All that is known of the steps so far."""

    devices: list[DeviceSums]
    primitives: list[QuantileSketch]
    totals: CoveredTotals = msgspec.field(default_factory=CoveredTotals)
    with_backward: bool = False
    steps: int = 0
    history: WindowHistory = msgspec.field(default_factory=lambda: WindowHistory(0))
    joint_backward: QuantileSketch = msgspec.field(default_factory=QuantileSketch)  # of processes with several devices
    even: EvenSteps = msgspec.field(default_factory=EvenSteps)

    @classmethod
    def none(cls, devices: int) -> "Sums":
        return cls(
            [DeviceSums() for _ in range(devices)],
            [QuantileSketch() for _ in PrimitiveTimes.__struct_fields__],
            history=WindowHistory(devices),
        )

    def fits(self, devices: int) -> bool:
        """Whether these are the sums of so many devices."""
        counted = len(self.devices), len(self.primitives), self.history.devices
        consistent = self.history.is_consistent and self.even.is_of(devices)
        return counted == (devices, len(PrimitiveTimes.__struct_fields__), devices) and consistent


def measured(value: float | None) -> float | None:
    """The value if it is a possible measurement: neither negative nor beyond `MAX_MEASURED`."""
    return value if value is not None and 0 <= value <= MAX_MEASURED else None


def estimate_work(device: DeviceSums, share: Share) -> DeviceWork:
    """Nothing to do takes no time. Of a backward that was not measured we know how long others like it took, and how
    long the whole call of backward was."""
    waits = fill_missing(share.waits_ms())
    joint = share.read(lambda step: step.whole_backward_ms)
    if share.rows == 0:
        nothing: Column = [0.0] * len(joint)
        return DeviceWork(share, waits, nothing, nothing, share.read(lambda step: step.comm_ms))
    backward, comm = share.backward_ms(), share.read(lambda step: step.comm_ms)
    for index, whole in enumerate(joint):
        took = backward[index]
        if took is not None:
            _add_usual_backward(device, took, share.rows or 0)
        elif whole is not None and device.usual_row_ms is not None:
            backward[index] = likely = min(device.usual_row_ms * (share.rows or 0), whole)
            comm[index] = whole - likely if share.is_alone else None
    return DeviceWork(share, waits, share.forward_ms(), backward, comm)


def _add_usual_backward(device: DeviceSums, took: float, rows: int) -> None:
    """Those of the first steps are forgotten when there is another: libraries warm up in them. The median is usual: one
    that was held up would be in the estimates of all steps that were not measured."""
    if not rows:
        return
    if device.usual_steps == WARM_UP_STEPS:
        device.latest_rows_ms.clear()
    device.usual_steps += 1
    device.latest_rows_ms.append(took / rows)
    del device.latest_rows_ms[:-MAX_LATEST]
    device.usual_row_ms = median(device.latest_rows_ms)


def add_share(device: DeviceSums, share: Share, count: int) -> None:
    device.steps += count
    if share.rows is None:
        device.uncounted_steps += count
    elif share.rows == 0:
        device.idle_steps += count
    device.rows += (share.rows or 0) * count
    is_counted = share.is_counted()
    device.work.add(share, count, is_counted)
    _add_untimed(device, share)
    if share.steps is None:
        return
    peaks = known_values(share.column([step.memory_peak_bytes for step in share.steps]))
    if peaks:
        device.memory_peak_bytes = max(device.memory_peak_bytes or 0, *map(int, peaks))
    joint = share.read(lambda step: step.whole_backward_ms)
    cycles = share.read(lambda step: step.cycle_ms)
    device.data_wait.add_all(known_values(share.waits_ms()))
    device.optimizer.add_all(_spent(share.read(lambda step: step.optimizer_ms), is_counted))
    if share.is_alone:
        device.comm.add_all(_spent(share.read(lambda step: step.comm_ms), is_counted, joint))
        wholes = known_values(joint)
        device.joint_backward_ms = sum(wholes, device.joint_backward_ms)
        device.joint_steps += len(wholes)
    device.cycles_ms = sum(known_values(cycles), device.cycles_ms)
    device.other.add_all([max(0.0, cycle - _accounted_ms(step)) for step, cycle in _with_cycles(share.steps, cycles)])
    if share.rows == 0:
        return
    forward, backward = share.forward_ms(), share.backward_ms()
    device.forward.add_all(_spent(forward, is_counted))
    device.backward.add_all(_spent(backward, is_counted, joint))
    device.forward_rows += (share.rows or 0) * len(known_values(forward))
    device.backward_rows += (share.rows or 0) * len(known_values(backward))


def _add_untimed(device: DeviceSums, share: Share) -> None:
    """Add the steps of which no times were sent: they took what the others did."""
    untimed = share.untimed + len([step for step in share.steps or () if step.step_ms < 0])
    if not untimed:
        return
    device.untimed_steps += untimed
    whole = (device.data_wait, device.optimizer, device.comm)
    for estimate in whole if share.rows == 0 else (*whole, device.forward, device.backward):
        estimate.add_missed(untimed)


def _spent(column: Column, is_counted: Sequence[bool], joint: Column | None = None) -> Column:
    """The entries of steps that have a value, measured or not: a backward took place where its whole is known, and
    everything in the step whose FLOP were counted."""
    entries = zip(column, joint or column, is_counted or (False,) * len(column), strict=True)
    return [value for value, whole, counted in entries if value is not None or whole is not None or counted]


def _with_cycles(steps: Sequence[Step], cycles: Column) -> Iterable[tuple[Step, float]]:
    return ((step, cycle) for step, cycle in zip(steps, cycles, strict=True) if cycle is not None)


def copying_ms(step: Step) -> float:
    """What DataParallel copied between devices, without the arrival of shards, which devices wait for as input."""
    primitives = step.primitives
    if primitives is None:
        return 0.0
    arrived = _sum_measured(step.arrival_ms)
    parts = primitives.replicate_ms, primitives.scatter_ms, primitives.gather_ms
    replicate_ms, scatter_ms, gather_ms = (measured(part) or 0.0 for part in parts)
    return replicate_ms + max(0.0, scatter_ms - arrived) + gather_ms


def _accounted_ms(step: Step) -> float:
    """The parts of a process's step whose names say what it did. Devices of one process work in turn, or the host
    waits for all of them."""
    backward = step.backward_ms if step.whole_backward_ms is None else (step.whole_backward_ms,)
    spent = _sum_measured(step.forward_ms) + _sum_measured(backward)
    if step.primitives is not None:
        spent += _sum_measured((step.primitives.replicate_ms, step.primitives.scatter_ms, step.primitives.gather_ms))
    return spent + (measured(step.data_wait_ms) or 0.0) + (measured(step.optimizer_ms) or 0.0)


def _sum_measured(values: Sequence[float | None]) -> float:
    return sum([value for value in values if value is not None and 0 <= value <= MAX_MEASURED])


def fill_missing(column: Column) -> list[float]:
    return [value or 0.0 for value in column]


def _add_columns(column: Column, other: Column) -> list[float]:
    return list(map(add, fill_missing(column), fill_missing(other)))
