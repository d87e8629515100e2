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
from collections.abc import Sequence
from operator import add, sub
from statistics import median

import msgspec

from jobs.splits.device_sums import (
    CoveredTotals,
    DeviceSums,
    DeviceWork,
    RowCost,
    Share,
    Sums,
    add_share,
    copying_ms,
    estimate_work,
    fill_missing,
    measured,
)
from jobs.splits.estimates import TimeEstimate, known_values
from jobs.splits.even_steps import EvenSteps, across_devices
from jobs.splits.node_measures import find_slowest_node
from jobs.splits.step_windows import StepColumns
from jobs.splits.throughput import NO_FACTS, WorkFacts, rate_device
from jobs.splits.what_if import predict_even_run
from jobs.support.quantiles import QuantileSketch
from shardyard.contract.report import Balance, DeviceMeasures, PrimitiveTimings, Timing, WhatIf

#: A cause is named when it costs at least this share of the time of the steps.
NOTABLE = 0.10


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

    @property
    def exposed_comm_ms(self) -> float | None:
        """Communication of a step that no work hides, without the wait for the slowest device; `None` where it was not
        measured."""
        return self.sums.totals.comm_ms / self.covered_steps if self.covered_steps else None

    def add(self, shares: Sequence[Share], count: int) -> None:
        """Add up `count` steps that were divided alike; `shares` has one entry for each leased device."""
        self.sums.steps += count
        for device, share in zip(self.sums.devices, shares, strict=True):
            add_share(device, share, count)
        self._add_balance(shares, max((len(share.steps or ()) for share in shares), default=0))
        self._add_primitives(shares)
        self._add_history(shares)

    def _add_primitives(self, shares: Sequence[Share]) -> None:
        """All devices of a step were served by the same four calls."""
        timed = ([step.primitives for step in share.steps or () if step.primitives] for share in shares)
        for primitives in next(filter(None, timed), ()):
            for sketch, value in zip(self.sums.primitives, msgspec.structs.astuple(primitives), strict=True):
                sketch.add_all(known_values([measured(value)]))
        if len(shares) > 1 and not shares[0].is_alone:
            self.sums.joint_backward.add_all(known_values(shares[0].read(lambda step: step.whole_backward_ms)))

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
                    fill_missing(share.waits_ms()),
                    share.read(lambda step: step.whole_backward_ms),
                )
                for process, share, forward in zip(processes, shares, forwards, strict=True)
            ],
        )

    def _add_balance(self, shares: Sequence[Share], count: int) -> None:
        """Add up the steps whose devices can be compared: with their backward once that is measured at all."""
        if not self.comparable or any(share.rows is None or share.steps is None for share in shares):
            return
        works = [estimate_work(device, share) for device, share in zip(self.sums.devices, shares, strict=True)]
        chosen = [index for index in range(count) if all(work.forward[index] is not None for work in works)]
        whole = [index for index in chosen if all(work.backward[index] is not None for work in works)]
        if whole and not self.sums.with_backward:
            self.sums.with_backward = True
            self._forget_balance()
        if self.sums.with_backward:
            chosen = whole
        if chosen:
            self._add_covered([work if len(chosen) == count else work.of_steps(chosen) for work in works])

    def _add_covered(self, works: Sequence[DeviceWork]) -> None:
        """Sums go step by step and column by column: floats add up to the same however many steps come at once."""
        totals = self.sums.totals
        columns = [work.share.steps or () for work in works]
        times, busy = [work.compute() for work in works], [work.busy() for work in works]
        elapsed = across_devices(max, [fill_missing([measured(step.step_ms) for step in steps]) for steps in columns])
        of_one_process = all(steps[0] is columns[0][0] for steps in columns)
        if self._in_turn and of_one_process:
            elapsed = self._reckon_in_turn(elapsed, times, works)
        waited = self._waited_for_others(works, busy)
        totals.steps += len(elapsed)
        totals.elapsed_ms = sum(elapsed, totals.elapsed_ms)
        self.sums.even.add([work.share.rows or 0 for work in works], times, busy, waited)
        least = across_devices(min, waited)
        for each in zip(least, *waited, strict=True):
            totals.wasted_ms += sum([wait - each[0] for wait in each[1:]])
        totals.input_ms = sum(across_devices(max, [work.waits for work in works]), totals.input_ms)
        if len(works) > 1 and of_one_process:
            copying = list(map(copying_ms, columns[0]))
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
                fill_missing(work.share.read(lambda step: step.cycle_ms)), device.covered_cycles_ms
            )

    def _reckon_in_turn(
        self, elapsed: list[float], times: list[list[float]], works: Sequence[DeviceWork]
    ) -> list[float]:
        """How long the steps would have taken if the devices, whose work one process did in turn, had run at once."""
        longest, together = across_devices(max, times), list(map(sum, zip(*times, strict=True)))
        arrivals = [fill_missing(work.share.arrivals_ms()) for work in works]
        spared_in_arrivals = map(sub, map(sum, zip(*arrivals, strict=True)), across_devices(max, arrivals))
        spared = [whole - top for whole, top in zip(together, longest, strict=True)]
        self.sums.totals.in_turn_ms = sum(map(add, spared, spared_in_arrivals), self.sums.totals.in_turn_ms)
        return [max(top, each - less) for top, each, less in zip(longest, elapsed, spared, strict=True)]

    def _waited_for_others(self, works: Sequence[DeviceWork], busy: Sequence[list[float]]) -> list[list[float]]:
        """How long each device waited for the others: what was measured of ranks, and what follows from the work of
        devices that one process serves."""
        steps: list[Sequence[float]] = []
        for comm, worked in zip(zip(*(work.comm for work in works), strict=True), zip(*busy, strict=True), strict=True):
            known = known_values(comm)
            steps.append(known if len(known) == len(works) else [max(worked) - each for each in worked])
        return [list(column) for column in zip(*steps, strict=True)]

    def _forget_balance(self) -> None:
        self.sums.totals, self.sums.even = CoveredTotals(), EvenSteps()
        for device in self.sums.devices:
            device.covered_ms = device.covered_wait_ms = device.covered_comm_ms = device.covered_cycles_ms = 0.0
            device.covered_rows = 0

    # -- what the report says ----------------------------------------------------------------------

    def devices(self, walls_ms: Sequence[float | None] = (), facts: WorkFacts = NO_FACTS) -> tuple[DeviceMeasures, ...]:
        """`walls_ms`: for each device how long its program has run so far; where that is not known it is the time
        from step to step."""
        counted = self._rows()
        total = sum(counted) if counted is not None else None
        return tuple(
            self._device(index, device, walls_ms[index] if index < len(walls_ms) else None, total, facts)
            for index, device in enumerate(self.sums.devices)
        )

    def _device(
        self, index: int, device: DeviceSums, wall_ms: float | None, total_rows: int | None, facts: WorkFacts
    ) -> DeviceMeasures:
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
            share=_round_ratio(device.rows, total_rows) if total_rows is not None else None,
            steps=device.steps,
            idle_steps=device.idle_steps,
            forward_ms=forward,
            backward_ms=backward,
            data_wait_ms=data_wait,
            comm_ms=comm,
            ms_per_row=RowCost.of(device).ms_per_row,
            memory_peak_bytes=device.memory_peak_bytes,
            optimizer_ms=optimizer,
            other_ms=other,
            wall_ms=None if wall_ms is None else round(wall_ms, 4),
            **msgspec.structs.asdict(rate_device(device, facts, facts.peaks_of(index))),
        )

    def _comm(self, device: DeviceSums) -> Timing | None:
        """Of a rank: what its backwards took beyond computing, which is known of all of them together."""
        comm = estimated_timing(device.comm)
        if comm is None or not device.joint_backward_ms or not device.joint_steps:
            return comm
        joint_ms = device.joint_backward_ms * (1 + device.unmeasured_steps / device.joint_steps)
        total = max(0.0, joint_ms - device.backward.total)
        return _as_timing(device.comm.sketch, total, device.backward.error)

    def _for_all_steps(self, covered: float) -> float:
        """What the covered steps add up to, for all steps."""
        return covered * self.sums.steps / self.covered_steps if self.covered_steps else 0.0

    def primitives(self) -> PrimitiveTimings | None:
        timings = [timing(sketch) for sketch in self.sums.primitives]
        known = [one for one in timings if one is not None]
        return PrimitiveTimings(*known) if len(known) == len(timings) else None

    def waited_ms(self) -> list[float] | None:
        """How long each device waited for the others, in the steps in which that is known of all of them."""
        if not self.covered_steps or len(self.sums.devices) < 2:
            return None
        return [device.covered_comm_ms for device in self.sums.devices]

    def balance(self, output_device: int | None, nodes: Sequence[str] = ()) -> Balance:
        """`output_device`: where DataParallel gathers on real devices; `None` when there is none. `nodes`: that of each
        device."""
        counted = self._rows()
        busy = [device.covered_ms + device.covered_wait_ms for device in self.sums.devices]
        times = busy if self.covered_steps else None
        wasted, waited = self._for_all_steps(self.sums.totals.wasted_ms), self.waited_ms()
        return Balance(
            rows_max_over_mean=_max_over_mean(counted),
            time_max_over_mean=_max_over_mean(times),
            slowest_device=None if waited is None else waited.index(min(waited)),
            cause=self._cause(),
            idle_device_steps=sum(device.idle_steps for device in self.sums.devices) if self.sums.steps else None,
            wasted_device_seconds=round(wasted / 1000, 6) if times else None,
            output_device_memory_skew=self._memory_skew(output_device),
            slowest_node=None if waited is None else find_slowest_node(nodes, waited),
        )

    def what_if(self, walls_ms: Sequence[float | None] = ()) -> WhatIf | None:
        """What the run would have taken without its slow devices. `None` where there is nothing to compare."""
        waited, walls = self.waited_ms(), [wall for wall in walls_ms if wall is not None]
        if waited is None or not walls:
            return None
        wall_ms = max(walls) - self._for_all_steps(self.sums.totals.in_turn_ms)
        slowest = waited.index(min(waited))
        return predict_even_run(self.sums.even, self.sums.devices, slowest, wall_ms, self._for_all_steps(1.0))

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
                measured, steps = estimate.measured, estimate.steps - device.work.counted_steps
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


def timing(sketch: QuantileSketch) -> Timing | None:
    """Of a time that every step measures."""
    return None if not sketch.count else _as_timing(sketch, sketch.total, 0.0)


def estimated_timing(estimate: TimeEstimate) -> Timing | None:
    return None if not estimate.measured else _as_timing(estimate.sketch, estimate.total, estimate.error)


def _as_timing(sketch: QuantileSketch, total: float, error: float) -> Timing:
    p50, p95 = sketch.quantile(0.5) or 0.0, sketch.quantile(0.95) or 0.0
    return Timing(round(total, 4), round(p50, 4), round(p95, 4), sketch.count, round(error, 4))


def _max_over_mean(values: Sequence[float] | None) -> float | None:
    if not values:
        return None
    return _round_ratio(max(values), sum(values) / len(values))


def _round_ratio(value: float, whole: float) -> float | None:
    return round(value / whole, 6) if whole else None
