"""The finding `unlike-devices`: cards of different kinds get equal rows, and the faster ones wait.

A card that takes longer for each row, from the beginning on and steadily, is not out of order: it is another card. So
`slow-device` is silent about it, unless it is also slower than the others of its own kind.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from jobs.splits.findings.slow_devices import (
    CERTAIN_RATIO,
    FEW_WINDOWS,
    MIN_SLOW_COST,
    MIN_SLOW_SHARE,
    MIN_Z,
    NEARLY_ALL,
    NOISE_OF_FEW_BACKWARDS,
    SLOW_FROM,
    SlowDevice,
    estimate_noise,
)
from jobs.splits.findings.timed_run import TimedRun
from jobs.splits.step_windows import StepWindow
from jobs.splits.timings import Measures
from jobs.splits.weight_use import fitting_rows, fitting_weights
from shardyard.contract.report import Finding, describe_rows

#: The slowest kind takes so many times as long for a row as the fastest, typically and in nearly all windows.
UNLIKE_FROM, UNLIKE_IN_WINDOW = 1.25, 1.15
#: Rows that differ by no more are the same.
SAME_ROWS = 1.02


@dataclass(frozen=True, slots=True)
class UnlikeDevices:
    """`slower` are the devices whose kind is slower than the fastest, and which are no slower than their kind."""

    findings: tuple[Finding, ...] = ()
    slower: frozenset[int] = frozenset()

    def explains(self, slow: SlowDevice) -> bool:
        """Whether a device is slow because it is another card."""
        return slow.device in self.slower and slow.cause == "compute" and slow.since is None


def find_unlike_devices(windows: Sequence[StepWindow], measures: Measures, run: TimedRun) -> UnlikeDevices:
    """`windows` are filled."""
    kinds = sorted(set(run.cards))
    if len(kinds) < 2 or not windows or not measures.comparable or not run.is_work_alike:
        return UnlikeDevices()
    if not all(_has_same_rows(window) for window in windows):
        return UnlikeDevices()
    members = {kind: [device for device, card in enumerate(run.cards) if card == kind] for kind in kinds}
    per_row = [median(window.compute(device) / window.rows[device] for window in windows) for device in _all(windows)]
    speed = {kind: median(per_row[device] for device in devices) for kind, devices in members.items()}
    fastest, slowest = min(kinds, key=lambda kind: speed[kind]), max(kinds, key=lambda kind: speed[kind])
    ratios = [_mean_ms(window, members[slowest]) / _mean_ms(window, members[fastest]) for window in windows]
    if speed[fastest] <= 0 or not _is_steady(ratios):
        return UnlikeDevices()
    slower = [
        device
        for kind, devices in members.items()
        for device in devices
        if speed[kind] >= SLOW_FROM * speed[fastest] and per_row[device] <= SLOW_FROM * speed[kind]
    ]
    finding = _describe_kinds(fastest, slowest, [speed[card] for card in run.cards], windows, measures, run)
    return UnlikeDevices(() if finding is None else (finding,), frozenset(slower if finding is not None else ()))


def _all(windows: Sequence[StepWindow]) -> range:
    return range(len(windows[0].rows))


def _has_same_rows(window: StepWindow) -> bool:
    return min(window.rows) > 0 and max(window.rows) <= SAME_ROWS * min(window.rows)


def _mean_ms(window: StepWindow, devices: Sequence[int]) -> float:
    return max(sum(window.compute(device) for device in devices) / len(devices), 1e-9)


def _is_steady(ratios: Sequence[float]) -> bool:
    """Whether one kind is slower all along, by more than noise between windows explains."""
    noise = max(estimate_noise([ratios]), NOISE_OF_FEW_BACKWARDS if len(ratios) < FEW_WINDOWS else 0.0)
    error = 1.25 * noise / math.sqrt(len(ratios))
    ratio = median(ratios)
    mostly = sum(one >= UNLIKE_IN_WINDOW for one in ratios) >= NEARLY_ALL * len(ratios)
    return ratio >= UNLIKE_FROM and mostly and min(ratio, CERTAIN_RATIO) - 1 >= MIN_Z * error


def _describe_kinds(
    fastest: str,
    slowest: str,
    per_row: Sequence[float],
    windows: Sequence[StepWindow],
    measures: Measures,
    run: TimedRun,
) -> Finding | None:
    """`per_row` has the time that each device's kind takes for a row."""
    rows = [round(count) for count in windows[-1].rows]
    fitting = fitting_rows(sum(rows), per_row)
    now_ms, then_ms = _longest_ms(rows, per_row), _longest_ms(fitting, per_row)
    cost = (now_ms - then_ms) * measures.steps * len(rows) / 1000
    step_ms = median(window.cycle_ms for window in windows)
    if cost < MIN_SLOW_COST or now_ms - then_ms < MIN_SLOW_SHARE * step_ms:
        return None
    slow_ms, fast_ms = max(per_row), min(per_row)
    return Finding(
        "unlike-devices",
        "info",
        f"{slowest} ({_name_devices(slowest, run)}) takes {slow_ms / fast_ms:.2f} times as long for a row as {fastest} "
        f"({_name_devices(fastest, run)}): {slow_ms:.3g} ms against {fast_ms:.3g} ms; all get {rows[0]} rows, so the "
        "faster devices wait in every step",
        f"{_advice(per_row, run)}; of the {sum(rows)} rows of a step these could take {describe_rows(fitting)}, "
        f"in {then_ms:.3g} ms instead of {now_ms:.3g} ms",
        numbers={
            "ratio": round(slow_ms / fast_ms, 4),
            "fastest_ms_per_row": round(fast_ms, 6),
            "slowest_ms_per_row": round(slow_ms, 6),
            "fastest_rows": max(fitting),
            "slowest_rows": min(fitting),
            "step_work_ms": round(now_ms, 4),
            "fitting_work_ms": round(then_ms, 4),
        },
        cost_device_seconds=round(cost, 4),
        cost_share=run.cost_share(cost, measures),
    )


def _advice(per_row: Sequence[float], run: TimedRun) -> str:
    weights = fitting_weights(per_row)
    if run.takes_weights:
        return f"set parallelism.weights to {weights}"
    if run.is_script:
        return f"run it on devices of one kind, or divide rows by weights such as {weights} (shardyard.job.weights)"
    return "run it on devices of one kind"


def _longest_ms(rows: Sequence[int], per_row: Sequence[float]) -> float:
    return max(count * each for count, each in zip(rows, per_row, strict=True))


def _name_devices(kind: str, run: TimedRun) -> str:
    devices = [device for device, card in enumerate(run.cards) if card == kind]
    if len(devices) == 1:
        return f"device {devices[0]}"
    if len(devices) == 2:
        return f"devices {devices[0]} and {devices[1]}"
    adjacent = devices[-1] - devices[0] == len(devices) - 1
    return f"devices {devices[0]} to {devices[-1]}" if adjacent else f"{len(devices)} devices"
