"""Findings about devices that hold the others up: `slow-device`, `slow-node`.

Devices are compared window by window (`jobs.splits.step_windows`): the time that each needs for its part of a step,
waiting for its input included, against the median of its peers. A device is slow from the step on at which this ratio
left its noise for good. Nothing is found where less is lost than is worth a word: noise is no finding.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import median

from jobs.splits.findings.timed_run import TimedRun
from jobs.splits.step_windows import StepWindow
from jobs.splits.timings import Measures
from shardyard.contract.report import Finding, describe_seconds

#: A device is slow, and a warning is given, from these ratios to the median of its peers on.
SLOW_FROM, SLOW_WARNING = 1.10, 1.20
#: By how much a ratio may fall short of that: it is measured on devices that differ a little themselves.
TOLERANCE = 0.03
#: The same for a device that became slow: machines' speeds drift.
ONSET_TOLERANCE = 0.015
#: A slow device's ratio is more than this in nearly all windows.
SLOW_IN_WINDOW, NEARLY_ALL = 1.02, 0.8
#: Fewer windows than these need a large ratio, since their noise is not known; and a larger one where it is about
#: backward, of which a window has one measurement or two.
FEW_WINDOWS, NOISE_OF_FEW, NOISE_OF_FEW_BACKWARDS = 6, 0.10, 0.20
NOISE_AT_LEAST = 0.03
#: In each of few windows a slow device is slower by this part of what it typically is: on a crowded machine a rank
#: waits for a core now and then.
LEAST_OF_FEW = 0.5
#: So many measured backwards are needed; and so many of a device that became slow, where windows without one repeat the
#: one before.
MIN_BACKWARDS, MIN_BACKWARDS_SINCE = 3, 6
#: Larger ratios count as this one where noise is judged: a hiccup that turns 70 into 30 does not speak against a device
#: being slow.
CERTAIN_RATIO = 3.0
#: How many standard errors a slow device is away from its peers.
MIN_Z = 4.0
#: A device that became slow has been so for at least this time: a neighbour may have needed the machine.
MIN_ONSET_MS = 4_000.0
#: It was slow from the beginning on if what speaks for that is at least so much of what speaks for a later step.
FROM_THE_BEGINNING = 0.8
#: Virtual devices share the machine: a device is by so much slower in a step at least, and by this much where they work
#: in turn, since the first one finds cold caches.
MIN_VIRTUAL_MS, MIN_IN_TURN_MS = 0.3, 1.0
#: What is lost at least: device-seconds, and the share of the devices' time since the onset.
MIN_SLOW_COST, MIN_SLOW_SHARE = 0.3, 0.02
#: Devices that are named.
MAX_NAMED = 4


@dataclass(frozen=True, slots=True)
class SlowDevice:
    device: int
    ratio: float
    since: int | None  # the first step; None: from the beginning
    steps: int
    busy_ms: float
    peers_ms: float
    compute_ms: float  # more than the peers
    input_ms: float
    lost_ms: float  # of each device that waits for it
    elapsed_ms: float

    @property
    def cause(self) -> str:
        return "input" if self.input_ms > self.compute_ms else "compute"


@dataclass(frozen=True, slots=True)
class _DeviceComparison:
    """One device in one window."""

    window: StepWindow
    ratio: float
    peers_ms: float
    compute_ms: float  # more than the peers
    input_ms: float
    forward_ms: float  # of it


def find_slow_devices(windows: Sequence[StepWindow], measures: Measures, run: TimedRun) -> list[SlowDevice]:
    """The slowest first. `windows` are filled."""
    if not windows or len(windows[0].rows) < 2 or not measures.comparable:
        return []
    compared = list(zip(*(_compare_devices(window) for window in windows), strict=True))
    noise = _noise_of(compared)
    found = [_slow_since(device, history, noise) for device, history in enumerate(compared)]
    slow = [
        one
        for one, history in zip(found, compared, strict=True)
        if one is not None
        and _is_measured_often(one, history, compared)
        and (run.is_work_alike or one.cause == "input")
        and one.compute_ms + one.input_ms >= _least_difference_ms(run)
    ]
    return sorted(slow, key=lambda one: one.lost_ms, reverse=True)


def _least_difference_ms(run: TimedRun) -> float:
    if not run.virtual:
        return 0.0
    return MIN_IN_TURN_MS if run.works_in_turn else MIN_VIRTUAL_MS


def _compare_devices(window: StepWindow) -> list[_DeviceComparison]:
    devices = range(len(window.rows))
    compute = [window.compute(device) for device in devices]
    busy = [window.busy(device) for device in devices]
    columns = busy, compute, window.forward, window.wait, window.rows
    peers_busy, peers_compute, peers_forward, peers_wait, peers_rows = map(_medians_of_others, columns)
    compared = []
    for device in devices:
        peers_ms = peers_busy[device]
        at_equal_rows = compute[device] * peers_rows[device] / window.rows[device] if window.rows[device] else 0.0
        # A device with fewer rows may need longer for each, and hold nobody up.
        own = min(compute[device], at_equal_rows)
        ratio = (own + window.wait[device]) / peers_ms if peers_ms else 1.0
        excess = own - peers_compute[device], window.wait[device] - peers_wait[device]
        compared.append(
            _DeviceComparison(
                window, ratio, peers_ms, *excess, forward_ms=window.forward[device] - peers_forward[device]
            )
        )
    return compared


def _medians_of_others(values: Sequence[float]) -> list[float]:
    """For each value the median of the others."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranked = [values[index] for index in order]
    medians = [0.0] * len(values)
    low, high = (len(values) - 2) // 2, (len(values) - 1) // 2
    for place, index in enumerate(order):
        medians[index] = (ranked[low + (low >= place)] + ranked[high + (high >= place)]) / 2
    return medians


def _noise_of(compared: Sequence[Sequence[_DeviceComparison]]) -> float:
    """The standard deviation of a ratio from one window to the next; a change does not matter to it."""
    return estimate_noise([[one.ratio for one in history] for history in compared])


def estimate_noise(histories: Sequence[Sequence[float]]) -> float:
    """The same of histories of ratios, which are of one length."""
    ratios = [[min(ratio, CERTAIN_RATIO) for ratio in history] for history in histories]
    jumps = [abs(later - earlier) for history in ratios for earlier, later in pairwise(history)]
    noise = 1.4826 * median(jumps) / math.sqrt(2) if jumps else 0.0
    few = not histories or len(histories[0]) < FEW_WINDOWS
    return max(noise, NOISE_OF_FEW if few else NOISE_AT_LEAST)


def _slow_since(device: int, history: Sequence[_DeviceComparison], noise: float) -> SlowDevice | None:
    if not history:
        return None
    onset = _find_onset([one.ratio for one in history])
    since = history[onset:]
    if not since:
        return None
    ratios = [one.ratio for one in since]
    if len(history) < FEW_WINDOWS and _is_about_backward(since):
        noise = max(noise, NOISE_OF_FEW_BACKWARDS)
    ratio, error = median(ratios), 1.25 * noise / math.sqrt(len(since))
    if len(history) < FEW_WINDOWS and min(ratios) - 1 < (min(ratio, CERTAIN_RATIO) - 1) * LEAST_OF_FEW:
        return None
    tolerance = ONSET_TOLERANCE if onset else TOLERANCE
    if ratio + tolerance < SLOW_FROM or min(ratio, CERTAIN_RATIO) - 1 < MIN_Z * error or not _is_mostly_slow(ratios):
        return None
    steps = [one.window.steps for one in since]
    elapsed_ms = sum(one.window.cycle_ms * one.window.steps for one in since)
    mean = _typical_times(since)
    lost_ms = max(0.0, mean[0] + mean[1]) * sum(steps)
    if onset and elapsed_ms < MIN_ONSET_MS:
        return None
    return SlowDevice(
        device=device,
        ratio=ratio,
        since=since[0].window.first_step if onset else None,
        steps=sum(steps),
        busy_ms=mean[2] + mean[0] + mean[1],
        peers_ms=mean[2],
        compute_ms=mean[0],
        input_ms=mean[1],
        lost_ms=min(lost_ms, elapsed_ms),
        elapsed_ms=elapsed_ms,
    )


def _is_measured_often(
    one: SlowDevice, history: Sequence[_DeviceComparison], compared: Sequence[Sequence[_DeviceComparison]]
) -> bool:
    """Whether measured backwards alone show it too, where some windows repeat the one before: a repeated hiccup is
    still a single one."""
    fresh = [index for index, repeats in enumerate(_repeats_backward(history)) if not repeats]
    since = [history[index] for index in fresh if history[index].window.first_step >= (one.since or 0)]
    if not _is_about_backward(since or history):
        return True
    if len(fresh) == len(history) or len(since) < MIN_BACKWARDS:
        return len(since) >= MIN_BACKWARDS
    if one.since is not None and len(since) < MIN_BACKWARDS_SINCE:
        return False
    noise = estimate_noise([[other[index].ratio for index in fresh] for other in compared])
    ratios = [comparison.ratio for comparison in since]
    error = 1.25 * noise / math.sqrt(len(ratios))
    return min(median(ratios), CERTAIN_RATIO) - 1 >= MIN_Z * error and _is_mostly_slow(ratios)


def _repeats_backward(history: Sequence[_DeviceComparison]) -> list[bool]:
    return [False] + [later.window.backward == earlier.window.backward for earlier, later in pairwise(history)]


def _typical_times(since: Sequence[_DeviceComparison]) -> tuple[float, float, float]:
    """Of the extra time to compute, the extra wait, and the peers' time."""
    return (
        median(one.compute_ms for one in since),
        median(one.input_ms for one in since),
        median(one.peers_ms for one in since),
    )


def _is_about_backward(since: Sequence[_DeviceComparison]) -> bool:
    measured_ms = sum(one.input_ms + one.forward_ms for one in since)
    return measured_ms < sum(one.compute_ms - one.forward_ms for one in since)


def _is_mostly_slow(ratios: Sequence[float]) -> bool:
    return sum(one > SLOW_IN_WINDOW for one in ratios) >= NEARLY_ALL * len(ratios)


def _find_onset(ratios: Sequence[float]) -> int:
    """The window from which on the ratio stays high: where the sum of what is above the bound, up to the end, is
    greatest. Each window counts within limits, so that none decides alone."""
    middle = (1 + SLOW_FROM) / 2
    scores = [max(-0.1, min(0.1, ratio - middle)) for ratio in ratios]
    sums = list(accumulate(reversed(scores)))
    best = max(sums, default=0.0)
    if best <= 0:
        return len(ratios)
    if sums[-1] >= FROM_THE_BEGINNING * best and _is_mostly_slow(ratios):
        return 0
    return len(ratios) - 1 - max(index for index, value in enumerate(sums) if value == best)


def describe_slow_devices(slow: Sequence[SlowDevice], measures: Measures, run: TimedRun) -> list[Finding]:
    devices = len(run.ranks)
    waiting = devices - len(slow)
    worth = []
    for one in slow:
        cost = one.lost_ms * waiting / 1000
        if cost >= MIN_SLOW_COST and one.lost_ms >= MIN_SLOW_SHARE * one.elapsed_ms:
            worth.append((one, cost))
    node = _slow_node([one for one, _ in worth], run)
    if node is not None:
        return [_describe_node(node, worth, measures, run)]
    return [_describe_slow_device(one, cost, measures, run) for one, cost in worth[:MAX_NAMED]]


def _describe_slow_device(one: SlowDevice, cost: float, measures: Measures, run: TimedRun) -> Finding:
    causes = {"input": "it waits longer for its input", "compute": "its forward and backward take longer"}
    since = "from the beginning on" if one.since is None else f"since step {one.since:,}"
    share = cost * 1000 / run.device_time_ms(measures)
    return Finding(
        "slow-device",
        "warning" if one.ratio >= SLOW_WARNING else "info",
        f"{run.name_device(one.device)} takes {one.ratio:.2f} times as long as the others for its part of a step "
        f"({one.busy_ms:.3g} ms against {one.peers_ms:.3g} ms), {since}, because {causes[one.cause]} "
        f"(cause: {one.cause}); the others have waited {describe_seconds(cost)} for it",
        _advice_on_device(one, run),
        numbers={
            "device": one.device,
            "ratio": round(one.ratio, 4),
            "since_step": one.since or 0,
            "steps": one.steps,
            "device_ms": round(one.busy_ms, 4),
            "peers_ms": round(one.peers_ms, 4),
            "compute_ms": round(one.compute_ms, 4),
            "input_ms": round(one.input_ms, 4),
        },
        cost_device_seconds=round(cost, 4),
        cost_share=round(share, 4),
    )


def _advice_on_device(one: SlowDevice, run: TimedRun) -> str:
    if run.straggler == one.device:
        return "leave out program.straggler, which makes it slow on purpose"
    who = f"rank {run.ranks[one.device]}" if len(set(run.ranks)) > 1 else f"device {one.device}"
    if one.cause == "input":
        return (
            f"find out what makes the batches of {who} slow (its storage, its transforms, other programs on its node)"
            f"; more num_workers in its DataLoader{_workers_now(run)} hide up to the time of a step"
        )
    return (
        f"check {run.nodes[one.device]} for other programs on device {one.device}, its clock and its temperature, "
        f"and run without it if it stays slow{_or_weigh(one, run)}"
    )


def _or_weigh(one: SlowDevice, run: TimedRun) -> str:
    """A device that always was slow may be given fewer rows."""
    if one.since is not None or not run.takes_weights or run.weights is not None:
        return ""
    weights = [1.0 if device == one.device else round(one.ratio, 2) for device in range(len(run.ranks))]
    return f"; if it always is, set parallelism.weights to {weights}"


def _workers_now(run: TimedRun) -> str:
    return "" if run.num_workers is None else f" (now {run.num_workers})"


def _slow_node(slow: Sequence[SlowDevice], run: TimedRun) -> str | None:
    """The node whose devices, two or more, are all slow, and no others."""
    nodes = {run.nodes[one.device] for one in slow}
    if len(nodes) != 1 or len(set(run.nodes)) < 2 or len(slow) < 2:
        return None
    node = nodes.pop()
    return node if sum(other == node for other in run.nodes) == len(slow) else None


def _describe_node(node: str, slow: Sequence[tuple[SlowDevice, float]], measures: Measures, run: TimedRun) -> Finding:
    worst, cost = slow[0]
    ratio = median(one.ratio for one, _ in slow)
    since = "from the beginning on" if worst.since is None else f"since step {worst.since:,}"
    return Finding(
        "slow-node",
        "warning" if ratio >= SLOW_WARNING else "info",
        f"all {len(slow)} devices on {node} take {ratio:.2f} times as long as those of other nodes for their part of "
        f"a step, {since} (cause: {worst.cause}); the others have waited {describe_seconds(cost)} for them",
        f"check {node} for other programs, its storage and its cooling, and run without it if it stays slow",
        numbers={"devices": len(slow), "ratio": round(ratio, 4), "since_step": worst.since or 0},
        cost_device_seconds=round(cost, 4),
        cost_share=round(cost * 1000 / run.device_time_ms(measures), 4),
    )
