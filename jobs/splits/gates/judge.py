"""Checks a split report against limits: what keeps them, what breaks them, and what is too noisy to be judged.

Rows, idle devices, memory and findings are counted, so a limit is kept or broken. Times were measured: the windows of a
run (`step_times`) say between which limits a figure lies with 95 % certainty (`shardyard.contract.measuring`). Where
the limit lies between them too, another run of the same program might fall on the other side of it, and the check is
neither passed nor broken but unclear. All figures are of the steps after the first ten, in which libraries warm up.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from jobs.splits.gates.limits import ANY_WARNING, GateLimits
from shardyard.contract.gate import GateCheck, Outcome
from shardyard.contract.measuring.intervals import MIN_VALUES, Interval, ratio_of, typical_value
from shardyard.contract.measuring.time_blocks import TimeBlock, make_blocks
from shardyard.contract.report import Report, describe_bytes

#: Two runs of one program on the same devices differ by so much, however little steps differ within each.
BETWEEN_RUNS = 1.01
#: More steps than so many times as many are no advice.
MAX_ADVISED = 50


@dataclass(frozen=True, slots=True)
class _Figure:
    """What is measured of a report: its name there, and how it is shown."""

    field: str
    show: Callable[[float], str]


def _show_rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 1000 else f"{rate:.3g}"


_TIME = _Figure("balance.time_max_over_mean", "{:.3g}".format)
_ROWS = _Figure("balance.rows_max_over_mean", "{:.3g}".format)
_IDLE = _Figure("balance.idle_device_steps", "{:,.0f}".format)
_RATE = _Figure("rows_per_second", _show_rate)
_MEMORY = _Figure("per_device.memory_peak_bytes", describe_bytes)
_SLOWDOWN = _Figure("time of a step over the other job's", "{:.3g}".format)


def judge_report(limits: GateLimits, report: Report, against: Report | None = None) -> list[GateCheck]:
    """A check for each limit, in the order in which they are declared. `against` is needed for `max_slowdown`, and can
    be compared (`jobs.splits.gates.comparable`)."""
    balance, blocks = report.balance, make_blocks(report.step_times)
    return [
        *_measured("max_time_imbalance", _TIME, limits.max_time_imbalance, lambda: _imbalance(blocks), report),
        *_counted("max_row_imbalance", _ROWS, limits.max_row_imbalance, balance.rows_max_over_mean, report),
        *_counted("max_idle", _IDLE, limits.max_idle, balance.idle_device_steps, report),
        *_measured("min_throughput", _RATE, limits.min_throughput, lambda: _throughput(blocks), report, at_least=True),
        *_counted("max_memory", _MEMORY, limits.max_memory, _memory_peak(report), report),
        *_measured("max_slowdown", _SLOWDOWN, limits.max_slowdown, lambda: _slowdown(blocks, against), report, against),
        *_findings(limits.no_finding, report),
    ]


def sum_up(checks: Sequence[GateCheck]) -> Outcome:
    """What all checks together come to."""
    found = {check.outcome for check in checks}
    return "broken" if "broken" in found else "unclear" if "unclear" in found else "passed"


# -- what was counted ------------------------------------------------------------------------------


def _counted(name: str, of: _Figure, limit: float | None, figure: float | None, report: Report) -> Iterator[GateCheck]:
    if limit is None:
        return
    if figure is None:
        yield _unknown(name, of, limit, report)
        return
    is_kept = figure <= limit
    shown = f"{of.field} is {of.show(figure)}, {'within' if is_kept else 'above'} the limit {of.show(limit)}"
    yield GateCheck(name, "passed" if is_kept else "broken", shown, figure, limit)


def _memory_peak(report: Report) -> int | None:
    """The largest of all devices; None where that of one is not known."""
    peaks = [device.memory_peak_bytes for device in report.per_device]
    known = [peak for peak in peaks if peak is not None]
    return max(known) if known and len(known) == len(peaks) else None


def _findings(unwanted: Sequence[str], report: Report) -> Iterator[GateCheck]:
    for code in unwanted:
        found = [one for one in report.findings if code in (one.code, one.severity)]
        name = f"no_finding.{code}"
        if found:
            told = "; ".join(f"{one.code}: {one.message}" for one in found)
            yield GateCheck(name, "broken", told, float(len(found)), 0.0)
        else:
            shown = "the report has no warning" if code == ANY_WARNING else f"the report has no finding {code}"
            yield GateCheck(name, "passed", shown, 0.0, 0.0)


# -- what was measured -----------------------------------------------------------------------------


def _imbalance(blocks: Sequence[TimeBlock]) -> Interval | None:
    return typical_value([block.time_max_over_mean for block in blocks if block.time_max_over_mean is not None])


def _throughput(blocks: Sequence[TimeBlock]) -> Interval | None:
    rates = [1000 * block.rows / block.step_ms for block in blocks if block.rows is not None and block.step_ms > 0]
    return typical_value(rates)


def _slowdown(blocks: Sequence[TimeBlock], against: Report | None) -> Interval | None:
    others = make_blocks(against.step_times) if against is not None else []
    found = ratio_of(*([block.step_ms for block in side if block.step_ms > 0] for side in (blocks, others)))
    return None if found is None else Interval(found.estimate, found.low / BETWEEN_RUNS, found.high * BETWEEN_RUNS)


def _measured(
    name: str,
    of: _Figure,
    limit: float | None,
    measure: Callable[[], Interval | None],
    *runs: Report | None,
    at_least: bool = False,
) -> Iterator[GateCheck]:
    """`runs` are those that are measured."""
    if limit is None:
        return
    found = measure()
    if found is None:
        yield _unknown(name, of, limit, *runs)
        return
    is_kept, is_broken = found.high <= limit, found.low > limit
    if at_least:
        is_kept, is_broken = found.low >= limit, found.high < limit
    outcome: Outcome = "passed" if is_kept else "broken" if is_broken else "unclear"
    where = {
        "passed": f"within the limit {of.show(limit)}",
        "broken": f"{'below' if at_least else 'above'} the limit {of.show(limit)}",
        "unclear": f"too noisy to judge by the limit {of.show(limit)}; {_advise(found, limit)}",
    }
    told = f"{of.field} is {of.show(found.estimate)} ({of.show(found.low)} to {of.show(found.high)}), {where[outcome]}"
    yield GateCheck(name, outcome, told, *(round(one, 6) for one in (found.estimate, limit, found.low, found.high)))


def _advise(found: Interval, limit: float) -> str:
    """An interval is half as wide with four times as many steps."""
    distance = abs(found.estimate - limit)
    width = found.high - found.estimate if limit > found.estimate else found.estimate - found.low
    times = (width / distance) ** 2 if distance else MAX_ADVISED + 1
    if times > MAX_ADVISED:
        return "the figure is practically at the limit: choose another limit"
    return f"about {max(2, round(times))} times as many steps, or a quieter machine, would tell"


def _unknown(name: str, of: _Figure, limit: float, *runs: Report | None) -> GateCheck:
    """A check without a figure, and why there is none: of the first run that lacks it."""
    known = [run for run in runs if run is not None]
    why = next((run.notes[of.field] for run in known if of.field in run.notes), "")
    return GateCheck(name, "unclear", f"{of.field} cannot be judged: {why or _describe_lack(known)}", limit=limit)


def _describe_lack(runs: Sequence[Report]) -> str:
    steps = " and ".join(str(sum(window.steps for window in run.step_times)) for run in runs)
    return f"the times of {steps} steps after the first ten are known, and {MIN_VALUES} windows of ten are needed"
