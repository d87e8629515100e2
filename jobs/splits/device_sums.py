"""What each device did in the steps of one phase: columns of times, and the sums of them."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import add

import msgspec

from jobs.protocol.records import PrimitiveTimes, Step
from jobs.splits.estimates import WARM_UP_STEPS, TimeEstimate
from jobs.splits.step_windows import WindowHistory
from jobs.support.quantiles import QuantileSketch

#: Of one device, step by step.
Column = list[float | None]


@dataclass(frozen=True, slots=True)
class Share:
    """What one device got and did in each of several steps that were divided alike; `steps` is `None` when its rank
    sent nothing. Values that are no measurements are `None` in the columns."""

    rows: int | None
    steps: Sequence[Step] | None
    position: int = 0  # of the device within the steps' per-device fields

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
        return self if steps is None else Share(self.rows, [steps[index] for index in chosen], self.position)


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
    usual_steps: int = 0  # measured backwards, the milliseconds of the latest ones, and their rows
    usual_ms: float = 0.0
    usual_rows: int = 0
    memory_peak_bytes: int | None = None
    covered_ms: float = 0.0
    covered_wait_ms: float = 0.0
    covered_comm_ms: float = 0.0
    covered_rows: int = 0
    covered_cycles_ms: float = 0.0


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
        return counted == (devices, len(PrimitiveTimes.__struct_fields__), devices) and self.history.is_consistent


def measured(value: float | None) -> float | None:
    """The value if it is a possible measurement: finite and not negative."""
    return value if value is not None and 0 <= value < math.inf else None


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
        elif whole is not None and device.usual_rows:
            backward[index] = likely = min(device.usual_ms / device.usual_rows * (share.rows or 0), whole)
            comm[index] = whole - likely if share.is_alone else None
    return DeviceWork(share, waits, share.forward_ms(), backward, comm)


def _add_usual_backward(device: DeviceSums, took: float, rows: int) -> None:
    """Those of the first steps are forgotten when there is another: libraries warm up in them."""
    if device.usual_steps == WARM_UP_STEPS:
        device.usual_ms, device.usual_rows = 0.0, 0
    device.usual_steps += 1
    device.usual_ms += took
    device.usual_rows += rows


def add_share(device: DeviceSums, share: Share, count: int) -> None:
    device.steps += count
    if share.rows is None:
        device.uncounted_steps += count
    elif share.rows == 0:
        device.idle_steps += count
    device.rows += (share.rows or 0) * count
    if share.steps is None:
        return
    peaks = known_values(share.column([step.memory_peak_bytes for step in share.steps]))
    if peaks:
        device.memory_peak_bytes = max(device.memory_peak_bytes or 0, *map(int, peaks))
    joint = share.read(lambda step: step.whole_backward_ms)
    cycles = share.read(lambda step: step.cycle_ms)
    device.data_wait.add_all(known_values(share.waits_ms()))
    device.optimizer.add_all(known_values(share.read(lambda step: step.optimizer_ms)))
    if share.is_alone:
        device.comm.add_all(_sampled(share.read(lambda step: step.comm_ms), joint))
        device.joint_backward_ms = sum(known_values(joint), device.joint_backward_ms)
    device.cycles_ms = sum(known_values(cycles), device.cycles_ms)
    device.other.add_all([max(0.0, cycle - _accounted_ms(step)) for step, cycle in _with_cycles(share.steps, cycles)])
    if share.rows == 0:
        return
    forward, backward = known_values(share.forward_ms()), share.backward_ms()
    device.forward.add_all(forward)
    device.backward.add_all(_sampled(backward, joint))
    device.forward_rows += (share.rows or 0) * len(forward)
    device.backward_rows += (share.rows or 0) * len(known_values(backward))


def _sampled(column: Column, joint: Column) -> Column:
    """The entries of steps that have a value, measured or not: a backward took place where its whole is known."""
    pairs = zip(column, joint, strict=True)
    return [value for value, whole in pairs if value is not None or whole is not None]


def _with_cycles(steps: Sequence[Step], cycles: Column) -> Iterable[tuple[Step, float]]:
    return ((step, cycle) for step, cycle in zip(steps, cycles, strict=True) if cycle is not None)


def copying_ms(step: Step) -> float:
    """What DataParallel copied between devices, without the arrival of shards, which devices wait for as input."""
    primitives = step.primitives
    if primitives is None:
        return 0.0
    arrived = sum(value or 0.0 for value in step.arrival_ms)
    return primitives.replicate_ms + max(0.0, primitives.scatter_ms - arrived) + primitives.gather_ms


def _accounted_ms(step: Step) -> float:
    """The parts of a process's step whose names say what it did. Devices of one process work in turn, or the host
    waits for all of them."""
    backward = step.whole_backward_ms
    if backward is None:
        backward = sum(value or 0.0 for value in step.backward_ms)
    spent = sum([value or 0.0 for value in step.forward_ms]) + backward
    if step.primitives is not None:
        spent += step.primitives.replicate_ms + step.primitives.scatter_ms + step.primitives.gather_ms
    return spent + (step.data_wait_ms or 0.0) + (step.optimizer_ms or 0.0)


def known_values(column: Sequence[float | None]) -> list[float]:
    return [value for value in column if value is not None]


def fill_missing(column: Column) -> list[float]:
    return [value or 0.0 for value in column]


def _add_columns(column: Column, other: Column) -> list[float]:
    return list(map(add, fill_missing(column), fill_missing(other)))


def across_devices(take: Callable[[Iterable[float]], float], columns: Sequence[Sequence[float]]) -> list[float]:
    """The greatest or least of all devices, step by step."""
    return list(map(take, zip(*columns, strict=True)))
