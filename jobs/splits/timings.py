"""What the splits cost: times and memory of each device, and how well they are balanced.

Only steps of the main phase (train, or forward in forward mode) count here. `forward_ms` and
`backward_ms` are a device's own work; the time in which a rank waits for others in an all-reduce is
`comm_ms`. A balance needs every device's time, so it is taken over the steps in which each device
that got rows was measured (`covered`).

The slowest device's excess over the mean factors exactly:

    time / mean time  =  (rows / mean rows)  *  (ms per row / overall ms per row)

so a device that got more rows is told apart from one that is slow.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import add
from statistics import median

import msgspec

from jobs.protocol.records import PrimitiveTimes, Step
from jobs.support.quantiles import QuantileSketch
from shardyard.contract.report import Balance, DeviceMeasures, PrimitiveTimings, Timing

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

    def waits_ms(self) -> Column:
        """How long this device waited for its rows: for the batch, and then for its own shard."""
        batches = [measured(step.data_wait_ms) for step in self.steps or ()]
        shards = self.column([step.arrival_ms for step in self.steps or ()])
        if not any(shards):
            return batches
        return [
            batch if shard is None else (batch or 0.0) + shard for batch, shard in zip(batches, shards, strict=True)
        ]

    def compute_ms(self) -> tuple[Column, Column]:
        """Forward and backward; nothing to do takes no time."""
        if self.rows == 0:
            return [0.0] * len(self.steps or ()), [0.0] * len(self.steps or ())
        return self.forward_ms(), self.backward_ms()

    def forward_ms(self) -> Column:
        return self.column([step.forward_ms for step in self.steps or ()])

    def backward_ms(self) -> Column:
        return self.column([step.backward_ms for step in self.steps or ()])

    def column(self, values: Sequence[Sequence[float | None]]) -> Column:
        """This device's entries of a per-device field; `None` where it was not measured."""
        position = self.position
        return [measured(each[position]) if position < len(each) else None for each in values]

    def of_steps(self, chosen: Sequence[int]) -> "Share":
        """Of some of the steps."""
        steps = self.steps
        return self if steps is None else Share(self.rows, [steps[index] for index in chosen], self.position)


class _DeviceSums(msgspec.Struct, array_like=True):
    rows: int = 0
    uncounted_steps: int = 0
    steps: int = 0
    idle_steps: int = 0
    forward: QuantileSketch = msgspec.field(default_factory=QuantileSketch)
    backward: QuantileSketch = msgspec.field(default_factory=QuantileSketch)
    data_wait: QuantileSketch = msgspec.field(default_factory=QuantileSketch)
    comm: QuantileSketch = msgspec.field(default_factory=QuantileSketch)
    forward_rows: int = 0
    backward_rows: int = 0
    memory_peak_bytes: int | None = None
    covered_ms: float = 0.0
    covered_wait_ms: float = 0.0
    covered_rows: int = 0


class _CoveredTotals(msgspec.Struct, array_like=True):
    """Over the covered steps."""

    steps: int = 0
    elapsed_ms: float = 0.0
    wasted_ms: float = 0.0
    input_ms: float = 0.0
    comm_ms: float = 0.0


class Sums(msgspec.Struct, array_like=True):
    """All that is known of the steps so far."""

    devices: list[_DeviceSums]
    primitives: list[QuantileSketch]
    totals: _CoveredTotals = msgspec.field(default_factory=_CoveredTotals)
    with_backward: bool = False
    steps: int = 0

    @classmethod
    def none(cls, devices: int) -> "Sums":
        return cls(
            [_DeviceSums() for _ in range(devices)], [QuantileSketch() for _ in PrimitiveTimes.__struct_fields__]
        )

    def fits(self, devices: int) -> bool:
        """Whether these are the sums of so many devices."""
        return (len(self.devices), len(self.primitives)) == (devices, len(PrimitiveTimes.__struct_fields__))


class Measures:
    """Adds up the steps of the main phase; memory does not grow with their number.

    With `in_turn` the devices of one process ran one after another (virtual devices under dp), and the
    time of a step is reckoned as if they had run at once. Devices that are not `comparable` (they hold different
    modules) have no balance of times.
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
        """Steps in which the time of every device that got rows was measured."""
        return self.sums.totals.steps

    def add(self, shares: Sequence[Share], count: int) -> None:
        """Add up `count` steps that were divided alike; `shares` has one entry for each leased device."""
        self.sums.steps += count
        for device, share in zip(self.sums.devices, shares, strict=True):
            _add_share(device, share, count)
        self._add_balance(shares, count)
        self._add_primitives(shares)

    def _add_primitives(self, shares: Sequence[Share]) -> None:
        """All devices of a step were served by the same four calls."""
        timed = ([step.primitives for step in share.steps or () if step.primitives] for share in shares)
        for primitives in next(filter(None, timed), ()):
            for sketch, value in zip(self.sums.primitives, msgspec.structs.astuple(primitives), strict=True):
                sketch.add_all(_known_values([measured(value)]))

    def _add_balance(self, shares: Sequence[Share], count: int) -> None:
        """Add up the steps whose devices can be compared: with their backward once that is measured at all."""
        if not self.comparable or any(share.rows is None or share.steps is None for share in shares):
            return
        computed = [share.compute_ms() for share in shares]
        chosen = [index for index in range(count) if all(forward[index] is not None for forward, _ in computed)]
        whole = [index for index in chosen if all(backward[index] is not None for _, backward in computed)]
        if whole and not self.sums.with_backward:
            self.sums.with_backward = True
            self._forget_balance()
        if self.sums.with_backward:
            chosen = whole
        if chosen:
            self._add_covered([share if len(chosen) == count else share.of_steps(chosen) for share in shares])

    def _add_covered(self, shares: Sequence[Share]) -> None:
        """Sums go step by step and column by column: floats add up to the same however many steps come at once."""
        totals = self.sums.totals
        columns = [share.steps or () for share in shares]
        times = [list(map(add, *map(_fill_missing, share.compute_ms()))) for share in shares]
        waits = [_fill_missing(share.waits_ms()) for share in shares]
        busy = [list(map(add, *each)) for each in zip(times, waits, strict=True)]
        elapsed = _across_devices(max, [_fill_missing([measured(step.step_ms) for step in steps]) for steps in columns])
        if self._in_turn and all(steps[0] is columns[0][0] for steps in columns):
            longest, all_times = _across_devices(max, times), map(sum, zip(*times, strict=True))
            elapsed = [max(top, each - sum_ + top) for top, each, sum_ in zip(longest, elapsed, all_times, strict=True)]
        slowest = _across_devices(max, busy)
        totals.steps += len(slowest)
        totals.elapsed_ms = sum(elapsed, totals.elapsed_ms)
        for each in zip(slowest, *busy, strict=True):
            totals.wasted_ms += sum([each[0] - time for time in each[1:]])
        totals.input_ms = sum(_across_devices(max, waits), totals.input_ms)
        comm = [_fill_missing([measured(step.comm_ms) for step in steps]) for steps in columns]
        totals.comm_ms = sum(_across_devices(min, comm), totals.comm_ms)
        for device, time, wait, share in zip(self.sums.devices, times, waits, shares, strict=True):
            device.covered_ms = sum(time, device.covered_ms)
            device.covered_wait_ms = sum(wait, device.covered_wait_ms)
            device.covered_rows += (share.rows or 0) * len(time)

    def _forget_balance(self) -> None:
        self.sums.totals = _CoveredTotals()
        for device in self.sums.devices:
            device.covered_ms, device.covered_wait_ms, device.covered_rows = 0.0, 0.0, 0

    # -- what the report says ----------------------------------------------------------------------

    def devices(self) -> tuple[DeviceMeasures, ...]:
        counted = self._rows()
        total = sum(counted) if counted is not None else 0
        return tuple(
            DeviceMeasures(
                device=index,
                rows=None if device.uncounted_steps else device.rows,
                share=_round_ratio(device.rows, total) if counted is not None else None,
                steps=device.steps,
                idle_steps=device.idle_steps,
                forward_ms=timing(device.forward),
                backward_ms=timing(device.backward),
                data_wait_ms=timing(device.data_wait),
                comm_ms=timing(device.comm),
                ms_per_row=_ms_per_row(device),
                memory_peak_bytes=device.memory_peak_bytes,
            )
            for index, device in enumerate(self.sums.devices)
        )

    def primitives(self) -> PrimitiveTimings | None:
        timings = [timing(sketch) for sketch in self.sums.primitives]
        known = [one for one in timings if one is not None]
        return PrimitiveTimings(*known) if len(known) == len(timings) else None

    def balance(self, output_device: int | None) -> Balance:
        """`output_device`: where DataParallel gathers on real devices; `None` when there is none."""
        counted = self._rows()
        times = [device.covered_ms for device in self.sums.devices] if self.covered_steps else None
        several = len(self.sums.devices) > 1
        busy = [device.covered_ms + device.covered_wait_ms for device in self.sums.devices]
        return Balance(
            rows_max_over_mean=_max_over_mean(counted),
            time_max_over_mean=_max_over_mean(times),
            slowest_device=busy.index(max(busy)) if times and several else None,
            cause=self._cause(),
            idle_device_steps=sum(device.idle_steps for device in self.sums.devices) if self.sums.steps else None,
            wasted_device_seconds=round(self.sums.totals.wasted_ms / 1000, 6) if times else None,
            output_device_memory_skew=self._memory_skew(output_device),
        )

    def partly_measured(self) -> dict[str, tuple[int, int]]:
        """Times that were taken in some steps only: field -> (fewest measured, steps that have one)."""
        partly: dict[str, tuple[int, int]] = {}
        for device in self.sums.devices:
            busy = device.steps - device.idle_steps
            for name, sketch, steps in (
                ("forward_ms", device.forward, busy),
                ("backward_ms", device.backward, busy),
                ("data_wait_ms", device.data_wait, device.steps),
                ("comm_ms", device.comm, device.steps),
            ):
                if 0 < sketch.count < steps and sketch.count < partly.get(name, (steps, steps))[0]:
                    partly[name] = sketch.count, steps
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
    p50, p95 = sketch.quantile(0.5), sketch.quantile(0.95)
    if p50 is None or p95 is None:
        return None
    return Timing(round(sketch.total, 4), round(p50, 4), round(p95, 4))


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
    device.data_wait.add_all(_known_values(share.waits_ms()))
    device.comm.add_all(_known_values([measured(step.comm_ms) for step in share.steps]))
    if share.rows == 0:
        return
    forward, backward = _known_values(share.forward_ms()), _known_values(share.backward_ms())
    device.forward.add_all(forward)
    device.backward.add_all(backward)
    device.forward_rows += (share.rows or 0) * len(forward)
    device.backward_rows += (share.rows or 0) * len(backward)


def _known_values(column: Column) -> list[float]:
    return [value for value in column if value is not None]


def _fill_missing(column: Column) -> list[float]:
    return [value or 0.0 for value in column]


def _across_devices(take: Callable[[Iterable[float]], float], columns: Sequence[Sequence[float]]) -> list[float]:
    """The greatest or least of all devices, step by step."""
    return list(map(take, zip(*columns, strict=True)))


def _ms_per_row(device: _DeviceSums) -> float | None:
    forward = _round_ratio(device.forward.total, device.forward_rows)
    backward = _round_ratio(device.backward.total, device.backward_rows)
    return None if forward is None else round(forward + (backward or 0.0), 6)


def _max_over_mean(values: Sequence[float] | None) -> float | None:
    if not values:
        return None
    return _round_ratio(max(values), sum(values) / len(values))


def _round_ratio(value: float, whole: float) -> float | None:
    return round(value / whole, 6) if whole else None
