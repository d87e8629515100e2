"""Findings about time: devices that hold the others up, and runs that wait for input or communicate too long.

Devices are compared window by window (`jobs.splits.step_windows`): the time that each needs for its part of a step,
waiting for its input included, against the median of its peers. A device is slow from the step on at which this ratio
left its noise for good. Nothing is found before the 20th step, nor where less is lost than is worth a word: noise is no
finding.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import median

from jobs.splits.step_windows import StepWindow
from jobs.splits.timings import Measures
from shardyard.contract.report import Finding, describe_seconds

CODES = frozenset(
    {"slow-device", "slow-node", "input-bound", "communication-bound", "more-devices-are-slower"},
)

#: Steps from which on anything is found.
MIN_STEPS = 20
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
MIN_COST, MIN_VIRTUAL_COPYING_COST = 1.0, 3.0
#: Shares of a step, each for a finding and for a warning.
INPUT_FROM, INPUT_WARNING = 0.10, 0.20
COMM_FROM, COMM_WARNING = 0.20, 0.40
#: A shorter wait is that for the main process itself, and loaders with processes of their own would make it longer.
MIN_INPUT_MS = 1.0
#: Ranks on virtual devices wait for a core while they communicate, so less than this says nothing.
VIRTUAL_COMM_FROM, MIN_VIRTUAL_COMM_MS = 0.50, 10.0
#: Devices that are named.
MAX_NAMED = 4
MAX_WORKERS = 64


@dataclass(frozen=True, slots=True)
class TimedRun:
    """What the findings need to know of a run beside its times. `ranks` and `nodes` have an entry for each device."""

    scatters: bool  # DataParallel divides the batches
    virtual: bool
    is_script: bool
    ranks: Sequence[int]
    nodes: Sequence[str]
    walls_ms: Sequence[float | None]
    num_workers: int | None = None  # of the DataLoader, where that is known
    straggler: int | None = None  # the device that is slow on purpose
    is_work_alike: bool = True  # rows cost the same on every device: their shapes do not vary


def find_time_problems(measures: Measures, run: TimedRun) -> list[Finding]:
    windows = measures.sums.history.windows()
    if measures.steps < MIN_STEPS or not windows:
        return []
    slow = _find_slow_devices(windows, measures, run)
    waits = slow and any(one.cause == "input" for one in slow)
    found = _describe_slow(slow, measures, run)
    found += [] if waits else _input_bound(windows, measures, run)
    return found + (_more_devices_are_slower if run.scatters else _communication_bound)(measures, run)


# -- slow devices ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _SlowDevice:
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
class _Comparison:
    """One device in one window."""

    window: StepWindow
    ratio: float
    peers_ms: float
    compute_ms: float  # more than the peers
    input_ms: float
    forward_ms: float  # of it


def _find_slow_devices(windows: Sequence[StepWindow], measures: Measures, run: TimedRun) -> list[_SlowDevice]:
    """The slowest first."""
    devices = len(windows[0].rows)
    if devices < 2 or not measures.comparable:
        return []
    filled = _fill_backwards(windows)
    compared = list(zip(*(_compare_devices(window) for window in filled), strict=True))
    noise = _noise_of(compared)
    found = [_slow_since(device, history, noise) for device, history in enumerate(compared)]
    slow = [
        one
        for one in found
        if one is not None
        and (run.is_work_alike or one.cause == "input")
        and one.compute_ms + one.input_ms >= _least_difference_ms(run)
    ]
    return sorted(slow, key=lambda one: one.lost_ms, reverse=True)


def _least_difference_ms(run: TimedRun) -> float:
    if not run.virtual:
        return 0.0
    return MIN_IN_TURN_MS if _works_in_turn(run) else MIN_VIRTUAL_MS


def _works_in_turn(run: TimedRun) -> bool:
    """Whether one process has several virtual devices."""
    return run.virtual and len(set(run.ranks)) < len(run.ranks)


def _fill_backwards(windows: Sequence[StepWindow]) -> list[StepWindow]:
    """Windows in which no backward was measured have those of the window before."""
    filled: list[StepWindow] = []
    last: list[float | None] = [None] * len(windows[0].rows)
    for window in windows:
        last = [known if known is not None else before for known, before in zip(window.backward, last, strict=True)]
        if None in last and any(known is not None for known in last):
            continue
        if last != window.backward:
            window = StepWindow(
                window.first_step,
                window.steps,
                window.cycle_ms,
                window.rows,
                window.forward,
                list(last),
                window.wait,
            )
        filled.append(window)
    return filled


def _compare_devices(window: StepWindow) -> list[_Comparison]:
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
            _Comparison(window, ratio, peers_ms, *excess, forward_ms=window.forward[device] - peers_forward[device])
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


def _noise_of(compared: Sequence[Sequence[_Comparison]]) -> float:
    """The standard deviation of a ratio from one window to the next; a change does not matter to it."""
    ratios = [[min(one.ratio, CERTAIN_RATIO) for one in history] for history in compared]
    jumps = [abs(later - earlier) for history in ratios for earlier, later in pairwise(history)]
    noise = 1.4826 * median(jumps) / math.sqrt(2) if jumps else 0.0
    few = not compared or len(compared[0]) < FEW_WINDOWS
    return max(noise, NOISE_OF_FEW if few else NOISE_AT_LEAST)


def _slow_since(device: int, history: Sequence[_Comparison], noise: float) -> _SlowDevice | None:
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
    tolerance = ONSET_TOLERANCE if onset else TOLERANCE
    if ratio + tolerance < SLOW_FROM or min(ratio, CERTAIN_RATIO) - 1 < MIN_Z * error or not _is_mostly_slow(ratios):
        return None
    steps = [one.window.steps for one in since]
    elapsed_ms = sum(one.window.cycle_ms * one.window.steps for one in since)
    mean = _typical_times(since)
    lost_ms = max(0.0, mean[0] + mean[1]) * sum(steps)
    if onset and elapsed_ms < MIN_ONSET_MS:
        return None
    return _SlowDevice(
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


def _typical_times(since: Sequence[_Comparison]) -> tuple[float, float, float]:
    """Of the extra time to compute, the extra wait, and the peers' time."""
    return (
        median(one.compute_ms for one in since),
        median(one.input_ms for one in since),
        median(one.peers_ms for one in since),
    )


def _is_about_backward(since: Sequence[_Comparison]) -> bool:
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


def _describe_slow(slow: Sequence[_SlowDevice], measures: Measures, run: TimedRun) -> list[Finding]:
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


def _describe_slow_device(one: _SlowDevice, cost: float, measures: Measures, run: TimedRun) -> Finding:
    causes = {"input": "it waits longer for its input", "compute": "its forward and backward take longer"}
    since = "from the beginning on" if one.since is None else f"since step {one.since:,}"
    share = cost * 1000 / _device_time_ms(measures, run)
    return Finding(
        "slow-device",
        "warning" if one.ratio >= SLOW_WARNING else "info",
        f"{_name_device(one.device, run)} takes {one.ratio:.2f} times as long as the others for its part of a step "
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


def _name_device(device: int, run: TimedRun) -> str:
    rank = f" (rank {run.ranks[device]})" if len(set(run.ranks)) > 1 else ""
    return f"device {device}{rank}"


def _advice_on_device(one: _SlowDevice, run: TimedRun) -> str:
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
        "and run without it if it stays slow"
    )


def _workers_now(run: TimedRun) -> str:
    return "" if run.num_workers is None else f" (now {run.num_workers})"


def _slow_node(slow: Sequence[_SlowDevice], run: TimedRun) -> str | None:
    """The node whose devices, two or more, are all slow, and no others."""
    nodes = {run.nodes[one.device] for one in slow}
    if len(nodes) != 1 or len(set(run.nodes)) < 2 or len(slow) < 2:
        return None
    node = nodes.pop()
    return node if sum(other == node for other in run.nodes) == len(slow) else None


def _describe_node(node: str, slow: Sequence[tuple[_SlowDevice, float]], measures: Measures, run: TimedRun) -> Finding:
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
        cost_share=round(cost * 1000 / _device_time_ms(measures, run), 4),
    )


# -- input, communication, and too many devices ----------------------------------------------------


def _input_bound(windows: Sequence[StepWindow], measures: Measures, run: TimedRun) -> list[Finding]:
    """What the lower half of the devices waits for at least: a single one that waits is a slow device."""
    devices = range(len(windows[0].rows))
    cycles = [_cycle_at_once(window, run) for window in windows]
    pairs = [(window, cycle) for window, cycle in zip(windows, cycles, strict=True) if cycle > 0]
    if not pairs:
        return []
    shares = sorted(median(window.wait[device] / cycle for window, cycle in pairs) for device in devices)
    share = min(1.0, shares[(len(shares) - 1) // 2])
    step_ms = median(cycle for _, cycle in pairs)
    wait_ms = share * step_ms
    cost = wait_ms * measures.steps * len(devices) / 1000
    if share < INPUT_FROM or wait_ms < MIN_INPUT_MS or cost < MIN_COST:
        return []
    needed = _workers_needed(step_ms, wait_ms, run.num_workers)
    numbers = {"share": round(share, 4), "data_wait_ms": round(wait_ms, 4), "step_ms": round(step_ms, 4)}
    numbers |= {"num_workers": float(run.num_workers)} if run.num_workers is not None else {}
    return [
        Finding(
            "input-bound",
            "warning" if share >= INPUT_WARNING else "info",
            f"each step waits {wait_ms:.3g} ms of its {step_ms:.3g} ms for the next batch ({share:.0%})",
            _advice_on_input(needed, run),
            numbers=numbers | {"num_workers_needed": float(needed)},
            cost_device_seconds=round(cost, 4),
            cost_share=round(min(1.0, cost * 1000 / _device_time_ms(measures, run)), 4),
        )
    ]


def _cycle_at_once(window: StepWindow, run: TimedRun) -> float:
    """How long a step takes if virtual devices, whose work one process does in turn, work at once."""
    if not _works_in_turn(run):
        return window.cycle_ms
    compute = [window.compute(device) for device in range(len(window.rows))]
    return max(max(compute), window.cycle_ms - sum(compute) + max(compute))


def _workers_needed(step_ms: float, wait_ms: float, workers: int | None) -> int:
    """Loader processes that make batches as fast as steps take them. Without any, a step waits for the whole making of
    its batch; with n of them that are too slow, one batch comes in each nth of the time that making one takes."""
    making_ms = workers * step_ms if workers else wait_ms
    return min(MAX_WORKERS, max((workers or 0) + 1, math.ceil(making_ms / max(step_ms - wait_ms, 0.01 * step_ms))))


def _advice_on_input(needed: int, run: TimedRun) -> str:
    if run.num_workers is None:
        return (
            "give the DataLoader num_workers, or more of them, or make its batches cheaper; "
            f"if it has none now, {needed} would keep up"
        )
    where = "num_workers in the DataLoader" if run.is_script else "program.data.num_workers"
    return f"set {where} to {needed} (now {run.num_workers}), or make a batch cheaper"


def _communication_bound(measures: Measures, run: TimedRun) -> list[Finding]:
    sums, covered = measures.sums, measures.covered_steps
    devices = len(sums.devices)
    cycles_ms = min((device.covered_cycles_ms for device in sums.devices), default=0.0)
    if devices < 2 or not covered or cycles_ms <= 0:
        return []
    comm_ms, step_ms = sums.totals.comm_ms / covered, cycles_ms / covered
    share, cost = comm_ms / step_ms, comm_ms * measures.steps * devices / 1000
    least_share, least_ms = (VIRTUAL_COMM_FROM, MIN_VIRTUAL_COMM_MS) if run.virtual else (COMM_FROM, 0.0)
    if share < least_share or comm_ms < least_ms or cost < MIN_COST:
        return []
    batch = "batch_size" if run.is_script else "program.data.batch_size"
    accumulate_how = (
        "several batches to an optimizer step, all but the last under no_sync()"
        if run.is_script
        else "program.accumulate_steps"
    )
    return [
        Finding(
            "communication-bound",
            "warning" if share >= COMM_WARNING else "info",
            f"each step communicates for {comm_ms:.3g} ms of its {step_ms:.3g} ms ({share:.0%}), in which no device "
            "computes; waiting for the slowest device is not counted",
            f"compute more between two reductions: a larger {batch}, or {accumulate_how}",
            numbers={"share": round(share, 4), "comm_ms": round(comm_ms, 4), "step_ms": round(step_ms, 4)},
            cost_device_seconds=round(cost, 4),
            cost_share=round(min(1.0, cost * 1000 / _device_time_ms(measures, run)), 4),
        )
    ]


def _more_devices_are_slower(measures: Measures, run: TimedRun) -> list[Finding]:
    """DataParallel's copies take longer than is won by dividing the work."""
    copies = measures.primitives()
    shards, devices = measures.shards_ms(), len(run.ranks)
    if copies is None or shards is None or devices < 2:
        return []
    timings = (copies.replicate_ms, copies.scatter_ms, copies.gather_ms)
    copying_ms = sum(timing.p50 for timing in timings)
    alone_ms, shard_ms = shards
    spared_ms, together_ms = alone_ms - shard_ms, shard_ms + copying_ms
    cost = (copying_ms - spared_ms) * measures.steps * devices / 1000
    least_cost = MIN_VIRTUAL_COPYING_COST if run.virtual else MIN_COST
    if copying_ms < spared_ms or cost < least_cost or (run.virtual and together_ms < SLOW_WARNING * alone_ms):
        return []
    return [
        Finding(
            "more-devices-are-slower",
            "warning" if together_ms >= SLOW_WARNING * alone_ms and not run.virtual else "info",
            f"one device would need {alone_ms:.3g} ms for a step, these {devices} need {together_ms:.3g} ms: copying "
            f"the model, the batch and the outputs takes {copying_ms:.3g} ms, and {spared_ms:.3g} ms are won",
            "run it on 1 device, or divide larger batches",
            numbers={
                "one_device_ms": round(alone_ms, 4),
                "devices_ms": round(together_ms, 4),
                "copying_ms": round(copying_ms, 4),
                "won_ms": round(spared_ms, 4),
            },
            cost_device_seconds=round(cost, 4),
            cost_share=round(min(1.0, cost * 1000 / _device_time_ms(measures, run)), 4),
        )
    ]


def _device_time_ms(measures: Measures, run: TimedRun) -> float:
    """How long all devices together have run."""
    walls = [wall for wall in run.walls_ms if wall is not None]
    steps_ms = sum(window.cycle_ms * window.steps for window in measures.sums.history.windows())
    return max(max(walls, default=0.0), steps_ms, 1.0) * len(run.ranks)
