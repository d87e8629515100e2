"""What the splits cost: times and memory of each device, and how well they are balanced.

Only steps of the main phase (train, or forward in forward mode) are counted here. Every time is a disjoint part of the
device's wall time, from the start of its program to its end:

    wall  =  data wait + forward + backward + exposed communication + optimizer + other

`forward_ms` and `backward_ms` are a device's own work. `comm_ms` is communication that no work hides, waiting for the
slowest device included: under ddp the part of the call of backward in which the rank does not compute, under dp copies
between devices and the wait for the slowest shard. `other_ms` is the rest: the program's own code between these, its
start, evaluation, checkpoints. A time that was not measured in every step is an estimate for all of them
(`jobs.splits.estimates`).

The slowest device's excess over the mean factors exactly:

    time / mean time  =  (rows / mean rows)  *  (ms per row / overall ms per row)

so a device that got more rows is told apart from one that is slow.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import add, sub
from statistics import median

import msgspec

from jobs.protocol.records import PrimitiveTimes, Step
from jobs.splits.estimates import WARM_UP_STEPS, TimeEstimate
from jobs.splits.step_windows import StepColumns, WindowHistory
from jobs.support.quantiles import QuantileSketch
from shardyard.contract.report import Balance, DeviceMeasures, PrimitiveTimings, Timing, WhatIf

#: Of one device, step by step.
Column = list[float | None]

#: A cause is named when it costs at least this share of the time of the steps.
NOTABLE = 0.10


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
class _Work:
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

    def of_steps(self, chosen: Sequence[int]) -> "_Work":
        columns = (self.forward, self.backward, self.comm)
        waits = [self.waits[index] for index in chosen]
        return _Work(self.share.of_steps(chosen), waits, *([column[index] for index in chosen] for column in columns))


class _DeviceSums(msgspec.Struct, array_like=True):
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


class _CoveredTotals(msgspec.Struct, array_like=True):
    """Over the covered steps."""

    steps: int = 0
    elapsed_ms: float = 0.0
    wasted_ms: float = 0.0
    input_ms: float = 0.0
    comm_ms: float = 0.0
    in_turn_ms: float = 0.0  # what the steps would have been shorter, had the devices run at once


class Sums(msgspec.Struct, array_like=True):
    """All that is known of the steps so far."""

    devices: list[_DeviceSums]
    primitives: list[QuantileSketch]
    totals: _CoveredTotals = msgspec.field(default_factory=_CoveredTotals)
    with_backward: bool = False
    steps: int = 0
    history: WindowHistory = msgspec.field(default_factory=lambda: WindowHistory(0))
    joint_backward: QuantileSketch = msgspec.field(default_factory=QuantileSketch)  # of processes with several devices

    @classmethod
    def none(cls, devices: int) -> "Sums":
        return cls(
            [_DeviceSums() for _ in range(devices)],
            [QuantileSketch() for _ in PrimitiveTimes.__struct_fields__],
            history=WindowHistory(devices),
        )

    def fits(self, devices: int) -> bool:
        """Whether these are the sums of so many devices."""
        counted = len(self.devices), len(self.primitives), self.history.devices
        return counted == (devices, len(PrimitiveTimes.__struct_fields__), devices) and self.history.is_consistent


class Measures:
    """Adds up the steps of the main phase; memory does not grow with their number.

    With `in_turn` the devices of one process ran one after another (virtual devices under dp), and the time of a step
    is reckoned as if they had run at once. Devices that are not `comparable` (they hold different modules) have no
    balance of times.
    """

    def __init__(self, sums: Sums, *, in_turn: bool, comparable: bool = True) -> None:
        self.sums = sums
        self._in_turn = in_turn
        self.comparable = comparable

    @property
    def steps(self) -> int:
        return self.sums.steps

    @property
    def covered_steps(self) -> int:
        """Steps in which the time of every device that got rows is known."""
        return self.sums.totals.steps

    def add(self, shares: Sequence[Share], count: int) -> None:
        """Add up `count` steps that were divided alike; `shares` has one entry for each leased device."""
        self.sums.steps += count
        for device, share in zip(self.sums.devices, shares, strict=True):
            _add_share(device, share, count)
        self._add_balance(shares, count)
        self._add_primitives(shares)
        self._add_history(shares)

    def _add_primitives(self, shares: Sequence[Share]) -> None:
        """All devices of a step were served by the same four calls."""
        timed = ([step.primitives for step in share.steps or () if step.primitives] for share in shares)
        for primitives in next(filter(None, timed), ()):
            for sketch, value in zip(self.sums.primitives, msgspec.structs.astuple(primitives), strict=True):
                sketch.add_all(_known_values([measured(value)]))
        if len(shares) > 1 and not shares[0].is_alone:
            self.sums.joint_backward.add_all(_known_values(shares[0].read(lambda step: step.whole_backward_ms)))

    def _add_history(self, shares: Sequence[Share]) -> None:
        """Add up the steps in which every device's forward was measured, or had nothing to do."""
        if any(share.rows is None or share.steps is None for share in shares):
            return
        forwards = [share.forward_ms() if share.rows else [0.0] * len(share.steps or ()) for share in shares]
        chosen = [index for index, times in enumerate(zip(*forwards, strict=True)) if None not in times]
        if not chosen:
            return
        if len(chosen) < len(forwards[0]):
            shares = [share.of_steps(chosen) for share in shares]
            forwards = [[column[index] for index in chosen] for column in forwards]
        first = shares[0].steps or ()
        first_devices: dict[int, int] = {}
        processes = [first_devices.setdefault(id((share.steps or (0,))[0]), at) for at, share in enumerate(shares)]
        self.sums.history.add(
            [step.step for step in first],
            [measured(step.cycle_ms) or (measured(step.step_ms) or 0.0) for step in first],
            [
                StepColumns(
                    process,
                    share.rows or 0,
                    forward,
                    share.backward_ms() if share.rows else [0.0] * len(forward),
                    _fill_missing(share.waits_ms()),
                    share.read(lambda step: step.whole_backward_ms),
                )
                for process, share, forward in zip(processes, shares, forwards, strict=True)
            ],
        )

    def _add_balance(self, shares: Sequence[Share], count: int) -> None:
        """Add up the steps whose devices can be compared: with their backward once that is measured at all."""
        if not self.comparable or any(share.rows is None or share.steps is None for share in shares):
            return
        works = [_work_of(device, share) for device, share in zip(self.sums.devices, shares, strict=True)]
        chosen = [index for index in range(count) if all(work.forward[index] is not None for work in works)]
        whole = [index for index in chosen if all(work.backward[index] is not None for work in works)]
        if whole and not self.sums.with_backward:
            self.sums.with_backward = True
            self._forget_balance()
        if self.sums.with_backward:
            chosen = whole
        if chosen:
            self._add_covered([work if len(chosen) == count else work.of_steps(chosen) for work in works])

    def _add_covered(self, works: Sequence[_Work]) -> None:
        """Sums go step by step and column by column: floats add up to the same however many steps come at once."""
        totals = self.sums.totals
        columns = [work.share.steps or () for work in works]
        times, busy = [work.compute() for work in works], [work.busy() for work in works]
        elapsed = _across_devices(max, [_fill_missing([measured(step.step_ms) for step in steps]) for steps in columns])
        if self._in_turn and all(steps[0] is columns[0][0] for steps in columns):
            elapsed = self._reckon_in_turn(elapsed, times, works)
        waited = self._waited_for_others(works, busy)
        totals.steps += len(elapsed)
        totals.elapsed_ms = sum(elapsed, totals.elapsed_ms)
        least = _across_devices(min, waited)
        for each in zip(least, *waited, strict=True):
            totals.wasted_ms += sum([wait - each[0] for wait in each[1:]])
        totals.input_ms = sum(_across_devices(max, [work.waits for work in works]), totals.input_ms)
        if len(works) > 1 and all(steps[0] is columns[0][0] for steps in columns):
            copying = list(map(_copying_ms, columns[0]))
            for device, waits in zip(self.sums.devices, waited, strict=True):
                device.comm.add_all(list(map(add, copying, waits)))
        else:
            known = zip(least, *(work.comm for work in works), strict=True)
            totals.comm_ms = sum([each[0] for each in known if None not in each], totals.comm_ms)
        for device, time, wait, work in zip(self.sums.devices, times, waited, works, strict=True):
            device.covered_ms = sum(time, device.covered_ms)
            device.covered_wait_ms = sum(work.waits, device.covered_wait_ms)
            device.covered_comm_ms = sum(wait, device.covered_comm_ms)
            device.covered_rows += (work.share.rows or 0) * len(time)
            device.covered_cycles_ms = sum(
                _fill_missing(work.share.read(lambda step: step.cycle_ms)), device.covered_cycles_ms
            )

    def _reckon_in_turn(self, elapsed: list[float], times: list[list[float]], works: Sequence[_Work]) -> list[float]:
        """How long the steps would have taken if the devices, whose work one process did in turn, had run at once."""
        longest, together = _across_devices(max, times), list(map(sum, zip(*times, strict=True)))
        arrivals = [_fill_missing(work.share.arrivals_ms()) for work in works]
        spared_in_arrivals = map(sub, map(sum, zip(*arrivals, strict=True)), _across_devices(max, arrivals))
        spared = [whole - top for whole, top in zip(together, longest, strict=True)]
        self.sums.totals.in_turn_ms = sum(map(add, spared, spared_in_arrivals), self.sums.totals.in_turn_ms)
        return [max(top, each - less) for top, each, less in zip(longest, elapsed, spared, strict=True)]

    def _waited_for_others(self, works: Sequence[_Work], busy: Sequence[list[float]]) -> list[list[float]]:
        """How long each device waited for the others: what was measured of ranks, and what follows from the work of
        devices that one process serves."""
        steps: list[Sequence[float]] = []
        for comm, worked in zip(zip(*(work.comm for work in works), strict=True), zip(*busy, strict=True), strict=True):
            known = _known_values(comm)
            steps.append(known if len(known) == len(works) else [max(worked) - each for each in worked])
        return [list(column) for column in zip(*steps, strict=True)]

    def _forget_balance(self) -> None:
        self.sums.totals = _CoveredTotals()
        for device in self.sums.devices:
            device.covered_ms = device.covered_wait_ms = device.covered_comm_ms = device.covered_cycles_ms = 0.0
            device.covered_rows = 0

    # -- what the report says ----------------------------------------------------------------------

    def devices(self, walls_ms: Sequence[float | None] = ()) -> tuple[DeviceMeasures, ...]:
        """`walls_ms`: for each device how long its program has run so far; where that is not known it is the time
        from step to step."""
        counted = self._rows()
        total = sum(counted) if counted is not None else 0
        return tuple(
            self._device(index, device, walls_ms[index] if index < len(walls_ms) else None, total)
            for index, device in enumerate(self.sums.devices)
        )

    def _device(self, index: int, device: _DeviceSums, wall_ms: float | None, total_rows: int) -> DeviceMeasures:
        wall_ms = device.cycles_ms or None if wall_ms is None else wall_ms
        parts = device.forward, device.backward, device.data_wait, device.optimizer
        forward, backward, data_wait, optimizer = map(estimated_timing, parts)
        comm = self._comm(device)
        other = None
        if wall_ms is not None and device.steps:
            wall_ms = max(0.0, wall_ms - self._for_all_steps(self.sums.totals.in_turn_ms))
            known = [part.total for part in (forward, backward, data_wait, optimizer, comm) if part is not None]
            error = device.backward.error if self.sums.totals.in_turn_ms else 0.0
            other = _as_timing(device.other, max(0.0, wall_ms - sum(known)), error)
        return DeviceMeasures(
            device=index,
            rows=None if device.uncounted_steps else device.rows,
            share=_round_ratio(device.rows, total_rows) if self._rows() is not None else None,
            steps=device.steps,
            idle_steps=device.idle_steps,
            forward_ms=forward,
            backward_ms=backward,
            data_wait_ms=data_wait,
            comm_ms=comm,
            ms_per_row=_ms_per_row(device),
            memory_peak_bytes=device.memory_peak_bytes,
            optimizer_ms=optimizer,
            other_ms=other,
            wall_ms=None if wall_ms is None else round(wall_ms, 4),
            rows_per_second=_rows_per_second(device),
        )

    def _comm(self, device: _DeviceSums) -> Timing | None:
        """Of a rank: what its backwards took beyond computing, which is known of all of them together."""
        comm = estimated_timing(device.comm)
        if comm is None or not device.joint_backward_ms:
            return comm
        total = max(0.0, device.joint_backward_ms - device.backward.total)
        return _as_timing(device.comm.sketch, total, device.backward.error)

    def _for_all_steps(self, covered: float) -> float:
        """What the covered steps add up to, for all steps."""
        return covered * self.sums.steps / self.covered_steps if self.covered_steps else 0.0

    def primitives(self) -> PrimitiveTimings | None:
        timings = [timing(sketch) for sketch in self.sums.primitives]
        known = [one for one in timings if one is not None]
        return PrimitiveTimings(*known) if len(known) == len(timings) else None

    def balance(self, output_device: int | None) -> Balance:
        """`output_device`: where DataParallel gathers on real devices; `None` when there is none."""
        counted = self._rows()
        busy = [device.covered_ms + device.covered_wait_ms for device in self.sums.devices]
        times = busy if self.covered_steps else None
        wasted = self._for_all_steps(self.sums.totals.wasted_ms)
        return Balance(
            rows_max_over_mean=_max_over_mean(counted),
            time_max_over_mean=_max_over_mean(times),
            slowest_device=self._slowest_device() if times and len(busy) > 1 else None,
            cause=self._cause(),
            idle_device_steps=sum(device.idle_steps for device in self.sums.devices) if self.sums.steps else None,
            wasted_device_seconds=round(wasted / 1000, 6) if times else None,
            output_device_memory_skew=self._memory_skew(output_device),
        )

    def what_if(self, walls_ms: Sequence[float | None] = ()) -> WhatIf | None:
        """What the run would have taken, had every device worked as long as the mean of all in every step. `None`
        where there is nothing to compare.

        In a step, the devices wait for the slowest one for `sum(comm_i - min comm)`; with equal work each would have
        waited for none, and worked for the mean of that longer than the others did. The parts are those in which the
        device that waited least exceeds the mean.
        """
        devices, walls = self.sums.devices, [wall for wall in walls_ms if wall is not None]
        if len(devices) < 2 or not self.covered_steps or not walls:
            return None
        wall_ms = max(walls) - self._for_all_steps(self.sums.totals.in_turn_ms)
        lost_ms = self._for_all_steps(self.sums.totals.wasted_ms) / len(devices)
        even_ms = wall_ms - lost_ms
        if even_ms <= 0:
            return None
        slowest = self._slowest_device()
        excess = {name: max(0.0, self._for_all_steps(ms)) for name, ms in self._excess_ms(devices[slowest]).items()}
        shrink = min(1.0, lost_ms / sum(excess.values())) if sum(excess.values()) else 0.0
        parts = {name: round(ms * shrink / even_ms, 6) for name, ms in excess.items()}
        rest = round(max(0.0, lost_ms - sum(excess.values()) * shrink) / even_ms, 6)
        return WhatIf(round(wall_ms / even_ms, 6), slowest, parts["rows"], parts["compute"], parts["input"], rest)

    def _excess_ms(self, slowest: _DeviceSums) -> dict[str, float]:
        """By how much a device exceeds the mean of all."""
        devices = self.sums.devices
        mean_ms = sum(device.covered_ms for device in devices) / len(devices)
        rows = sum(device.covered_rows for device in devices)
        by_rows = mean_ms * (slowest.covered_rows * len(devices) / rows - 1) if rows else 0.0
        mean_wait_ms = sum(device.covered_wait_ms for device in devices) / len(devices)
        return {
            "rows": by_rows,
            "compute": slowest.covered_ms - mean_ms - by_rows,
            "input": slowest.covered_wait_ms - mean_wait_ms,
        }

    def _slowest_device(self) -> int:
        """The one that waited least for the others."""
        waited = [device.covered_comm_ms for device in self.sums.devices]
        return waited.index(min(waited))

    def shards_ms(self) -> tuple[float, float] | None:
        """What the shards of one process's step take one after another, and at once. Where backward is known only of
        all devices together, each of them works as long."""
        devices, joint = self.sums.devices, self.sums.joint_backward
        forwards = [device.forward.mean for device in devices if device.forward.mean is not None]
        backwards = [device.backward.mean for device in devices if device.backward.mean is not None]
        if len(forwards) < len(devices):
            return None
        if len(backwards) == len(devices):
            times = list(map(add, forwards, backwards))
            return sum(times), max(times)
        whole_ms = joint.total / joint.count if joint.count else 0.0
        return sum(forwards) + len(devices) * whole_ms, max(forwards) + whole_ms

    def partly_measured(self) -> dict[str, tuple[int, int]]:
        """Times that were taken in some steps only: field -> (fewest measured, steps that have one)."""
        partly: dict[str, tuple[int, int]] = {}
        for device in self.sums.devices:
            for name, estimate in (
                ("forward_ms", device.forward),
                ("backward_ms", device.backward),
                ("data_wait_ms", device.data_wait),
                ("comm_ms", device.comm),
            ):
                measured, steps = estimate.measured, estimate.steps
                if 0 < measured < steps and measured < partly.get(name, (steps, steps))[0]:
                    partly[name] = measured, steps
        return partly

    def _rows(self) -> list[int] | None:
        if not self.sums.steps or any(device.uncounted_steps for device in self.sums.devices):
            return None
        return [device.rows for device in self.sums.devices]

    def _cause(self) -> str | None:
        if not self.covered_steps:
            return None
        times = [device.covered_ms for device in self.sums.devices]
        slowest = self.sums.devices[times.index(max(times))]
        mean_ms = sum(times) / len(times)
        mean_rows = sum(device.covered_rows for device in self.sums.devices) / len(times)
        by_rows = mean_ms > 0 and slowest.covered_rows / mean_rows >= math.sqrt(slowest.covered_ms / mean_ms)
        losses = {
            "rows" if by_rows else "compute": slowest.covered_ms - mean_ms,
            "input": self.sums.totals.input_ms,
            "communication": self.sums.totals.comm_ms,
        }
        largest = max(losses, key=lambda name: losses[name])
        return largest if losses[largest] >= NOTABLE * self.sums.totals.elapsed_ms > 0 else "none"

    def _memory_skew(self, output_device: int | None) -> float | None:
        peaks = [device.memory_peak_bytes for device in self.sums.devices]
        known = [peak for peak in peaks if peak is not None]
        if output_device is None or len(known) < len(peaks) or len(peaks) < 2:
            return None
        others = [peak for index, peak in enumerate(known) if index != output_device]
        return _round_ratio(known[output_device], median(others))


def measured(value: float | None) -> float | None:
    """The value if it is a possible measurement: finite and not negative."""
    return value if value is not None and 0 <= value < math.inf else None


def timing(sketch: QuantileSketch) -> Timing | None:
    """Of a time that every step measures."""
    return None if not sketch.count else _as_timing(sketch, sketch.total, 0.0)


def estimated_timing(estimate: TimeEstimate) -> Timing | None:
    return None if not estimate.measured else _as_timing(estimate.sketch, estimate.total, estimate.error)


def _as_timing(sketch: QuantileSketch, total: float, error: float) -> Timing:
    p50, p95 = sketch.quantile(0.5) or 0.0, sketch.quantile(0.95) or 0.0
    return Timing(round(total, 4), round(p50, 4), round(p95, 4), sketch.count, round(error, 4))


def _work_of(device: _DeviceSums, share: Share) -> _Work:
    """Nothing to do takes no time. Of a backward that was not measured we know how long others like it took, and how
    long the whole call of backward was."""
    waits = _fill_missing(share.waits_ms())
    joint = share.read(lambda step: step.whole_backward_ms)
    if share.rows == 0:
        nothing: Column = [0.0] * len(joint)
        return _Work(share, waits, nothing, nothing, share.read(lambda step: step.comm_ms))
    backward, comm = share.backward_ms(), share.read(lambda step: step.comm_ms)
    for index, whole in enumerate(joint):
        took = backward[index]
        if took is not None:
            _add_usual_backward(device, took, share.rows or 0)
        elif whole is not None and device.usual_rows:
            backward[index] = likely = min(device.usual_ms / device.usual_rows * (share.rows or 0), whole)
            comm[index] = whole - likely if share.is_alone else None
    return _Work(share, waits, share.forward_ms(), backward, comm)


def _add_usual_backward(device: _DeviceSums, took: float, rows: int) -> None:
    """Those of the first steps are forgotten when there is another: libraries warm up in them."""
    if device.usual_steps == WARM_UP_STEPS:
        device.usual_ms, device.usual_rows = 0.0, 0
    device.usual_steps += 1
    device.usual_ms += took
    device.usual_rows += rows


def _add_share(device: _DeviceSums, share: Share, count: int) -> None:
    device.steps += count
    if share.rows is None:
        device.uncounted_steps += count
    elif share.rows == 0:
        device.idle_steps += count
    device.rows += (share.rows or 0) * count
    if share.steps is None:
        return
    peaks = _known_values(share.column([step.memory_peak_bytes for step in share.steps]))
    if peaks:
        device.memory_peak_bytes = max(device.memory_peak_bytes or 0, *map(int, peaks))
    joint = share.read(lambda step: step.whole_backward_ms)
    cycles = share.read(lambda step: step.cycle_ms)
    device.data_wait.add_all(_known_values(share.waits_ms()))
    device.optimizer.add_all(_known_values(share.read(lambda step: step.optimizer_ms)))
    if share.is_alone:
        device.comm.add_all(_sampled(share.read(lambda step: step.comm_ms), joint))
        device.joint_backward_ms = sum(_known_values(joint), device.joint_backward_ms)
    device.cycles_ms = sum(_known_values(cycles), device.cycles_ms)
    device.other.add_all([max(0.0, cycle - _accounted_ms(step)) for step, cycle in _with_cycles(share.steps, cycles)])
    if share.rows == 0:
        return
    forward, backward = _known_values(share.forward_ms()), share.backward_ms()
    device.forward.add_all(forward)
    device.backward.add_all(_sampled(backward, joint))
    device.forward_rows += (share.rows or 0) * len(forward)
    device.backward_rows += (share.rows or 0) * len(_known_values(backward))


def _sampled(column: Column, joint: Column) -> Column:
    """The entries of steps that have a value, measured or not: a backward took place where its whole is known."""
    pairs = zip(column, joint, strict=True)
    return [value for value, whole in pairs if value is not None or whole is not None]


def _with_cycles(steps: Sequence[Step], cycles: Column) -> Iterable[tuple[Step, float]]:
    return ((step, cycle) for step, cycle in zip(steps, cycles, strict=True) if cycle is not None)


def _copying_ms(step: Step) -> float:
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


def _known_values(column: Sequence[float | None]) -> list[float]:
    return [value for value in column if value is not None]


def _fill_missing(column: Column) -> list[float]:
    return [value or 0.0 for value in column]


def _add_columns(column: Column, other: Column) -> list[float]:
    return list(map(add, _fill_missing(column), _fill_missing(other)))


def _across_devices(take: Callable[[Iterable[float]], float], columns: Sequence[Sequence[float]]) -> list[float]:
    """The greatest or least of all devices, step by step."""
    return list(map(take, zip(*columns, strict=True)))


def sum_rates(devices: Sequence[DeviceMeasures]) -> float | None:
    """The rows per second of all devices together; `None` where that of one is not known."""
    rates = [device.rows_per_second for device in devices]
    known = [rate for rate in rates if rate is not None]
    return round(sum(known), 3) if known and len(known) == len(rates) else None


def _rows_per_second(device: _DeviceSums) -> float | None:
    """By the clock, as far as the time from step to step is known: not of the first one, which ends the start."""
    if device.uncounted_steps or not device.steps or not device.cycles_ms:
        return None
    rows = device.rows * device.other.count / device.steps
    return round(1000.0 * rows / device.cycles_ms, 3)


def _ms_per_row(device: _DeviceSums) -> float | None:
    forward = _round_ratio(device.forward.sketch.total, device.forward_rows)
    backward = _round_ratio(device.backward.sketch.total, device.backward_rows)
    return None if forward is None else round(forward + (backward or 0.0), 6)


def _max_over_mean(values: Sequence[float] | None) -> float | None:
    if not values:
        return None
    return _round_ratio(max(values), sum(values) / len(values))


def _round_ratio(value: float, whole: float) -> float | None:
    return round(value / whole, 6) if whole else None
