"""Verdicts on reports: what keeps a limit, what breaks it, and what is too noisy to tell."""

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from jobs.splits.gates.comparable import list_differences
from jobs.splits.gates.judge import judge_report, sum_up
from jobs.splits.gates.limits import GateLimits
from shardyard.contract.gate import GateCheck
from shardyard.contract.measuring.intervals import MIN_VALUES, typical_value
from shardyard.contract.measuring.time_blocks import make_blocks
from shardyard.contract.report import Finding, Pattern, Report, StepTimes
from tests.support.samples.job_records import a_spec
from tests.support.samples.record_streams import aggregator, rank_stream

SLOW = Finding("slow-device", "warning", "device 1 takes 1.5 times as long", "look at it")


def a_report(**changes: Any) -> Report:
    """A real report of 4 steps on three devices, with other parts as they are given."""
    told = aggregator(a_spec(3), 100)
    for record in rank_stream(a_spec(3), 0, 100):
        told.add_record(0, record)
    return msgspec.structs.replace(told.make_report(final=True), **changes)


def windows(steps_ms: Sequence[float], over_mean: Sequence[float] | None = None) -> tuple[StepTimes, ...]:
    ratios = over_mean or [1.0] * len(steps_ms)
    return tuple(
        StepTimes(10 + 10 * at, 10, took, 64.0, ratio)
        for at, (took, ratio) in enumerate(zip(steps_ms, ratios, strict=True))
    )


def noisy(rng: random.Random, centre: float, noise: float, count: int, memory: float = 0.0) -> list[float]:
    """Values around a centre; each hangs together with the one before, and one in twenty is far too large."""
    drift, values = rng.gauss(0, 1), []
    for _ in range(count):
        drift = memory * drift + math.sqrt(1 - memory**2) * rng.gauss(0, 1)
        spike = 1 + rng.expovariate(2) if rng.random() < 0.05 else 1.0
        values.append(centre * math.exp(noise * drift) * spike)
    return values


def only(checks: Sequence[GateCheck]) -> GateCheck:
    (check,) = checks
    return check


# -- what is counted -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "figure", "outcome"),
    [
        (GateLimits(max_idle=0), 0, "passed"),
        (GateLimits(max_row_imbalance=1.02), 1.02, "passed"),
        (GateLimits(max_row_imbalance=1.01), 1.02, "broken"),
    ],
)
def test_what_was_counted_keeps_a_limit_or_breaks_it(limits: GateLimits, figure: float, outcome: str) -> None:
    check = only(judge_report(limits, a_report()))

    assert (check.outcome, check.figure, check.low) == (outcome, figure, None)
    assert (" within " if outcome == "passed" else " above ") in check.message


def test_the_device_that_needs_most_memory_is_judged() -> None:
    report = a_report()
    peaks = (300, 900, 600)
    devices = tuple(
        msgspec.structs.replace(one, memory_peak_bytes=peak) for one, peak in zip(report.per_device, peaks, strict=True)
    )
    known = msgspec.structs.replace(report, per_device=devices)

    assert only(judge_report(GateLimits(max_memory=899), known)).outcome == "broken"
    assert only(judge_report(GateLimits(max_memory=900), known)).outcome == "passed"
    unknown = only(judge_report(GateLimits(max_memory=900), report))
    assert unknown.outcome == "unclear"
    assert report.notes["per_device.memory_peak_bytes"] in unknown.message


def test_findings_are_asked_for_by_code_or_as_any_warning() -> None:
    report, limits = a_report(findings=(SLOW,)), GateLimits(no_finding=("slow-device", "idle-devices", "warning"))

    found = {check.name: check.outcome for check in judge_report(limits, report)}

    assert found == {
        "no_finding.slow-device": "broken",
        "no_finding.idle-devices": "passed",
        "no_finding.warning": "broken",
    }
    assert SLOW.message in judge_report(limits, report)[0].message
    info = a_report(findings=(msgspec.structs.replace(SLOW, severity="info"),))
    assert only(judge_report(GateLimits(no_finding=("warning",)), info)).outcome == "passed"


def test_a_gate_is_broken_if_one_check_is_and_unclear_if_one_is_and_none_is_broken() -> None:
    passed, broken, unclear = (GateCheck("x", one, "") for one in ("passed", "broken", "unclear"))
    assert sum_up([passed, passed]) == "passed"
    assert sum_up([passed, unclear, passed]) == "unclear"
    assert sum_up([unclear, broken, passed]) == "broken"


# -- what is measured ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "outcome", "words"),
    [
        (1.2, "broken", "is 1.5 (1."),
        (2.0, "passed", "within the limit 2"),
        (1.5, "unclear", "too noisy to judge by the limit 1.5; the figure is practically at the limit"),
        (1.54, "unclear", "times as many steps, or a quieter machine, would tell"),
        (1.46, "unclear", "times as many steps, or a quieter machine, would tell"),
    ],
)
def test_a_limit_on_times_is_judged_where_it_lies_outside_of_the_noise(limit: float, outcome: str, words: str) -> None:
    ratios = [1.4, 1.45, 1.5, 1.55, 1.6, 1.5, 1.42, 1.58, 1.47, 1.53]
    report = a_report(step_times=windows([10.0] * 10, ratios))

    check = only(judge_report(GateLimits(max_time_imbalance=limit), report))

    assert check.outcome == outcome
    assert words in check.message
    assert check.figure == pytest.approx(1.5)
    assert check.low is not None
    assert check.high is not None
    assert 1.42 < check.low < 1.5 < check.high < 1.58


def test_throughput_is_judged_from_below() -> None:
    report = a_report(step_times=windows([9.8, 10.0, 10.2, 10.1, 9.9, 10.0, 10.1, 9.9, 10.0, 10.0]))  # 6,400 rows/s
    outcomes = [only(judge_report(GateLimits(min_throughput=one), report)).outcome for one in (6000, 6400, 6800)]
    assert outcomes == ["passed", "unclear", "broken"]


def test_a_run_that_is_too_short_is_not_judged() -> None:
    report = a_report(step_times=windows([10.0] * (MIN_VALUES - 1)), notes={})
    check = only(judge_report(GateLimits(min_throughput=1.0), report))
    assert (check.outcome, check.figure) == ("unclear", None)
    assert "the times of 70 steps after the first ten are known, and 8 windows of ten are needed" in check.message


def test_a_slowdown_needs_windows_of_both_runs() -> None:
    rng = random.Random(1)
    base = a_report(step_times=windows(noisy(rng, 10, 0.01, 20)))
    same, slower = (a_report(step_times=windows(noisy(rng, centre, 0.01, 20))) for centre in (10.0, 11.0))
    limits = GateLimits(max_slowdown=1.05)

    assert only(judge_report(limits, same, base)).outcome == "passed"
    assert only(judge_report(limits, slower, base)).outcome == "broken"
    assert only(judge_report(limits, base, slower)).outcome == "passed"
    short = only(judge_report(limits, same, a_report()))
    assert short.outcome == "unclear"
    assert "the times of 200 and 0 steps" in short.message


def test_windows_of_a_long_run_become_blocks_of_one_size() -> None:
    old = tuple(StepTimes(10 + 80 * at, 80, 4.0, 64.0, 1.0) for at in range(4))
    new = tuple(StepTimes(330 + 10 * at, 10, 6.0, None if at == 9 else 64.0, 1.0) for at in range(20))

    blocks = make_blocks(old + new)

    assert [block.steps for block in blocks] == [80, 80, 80, 80, 80, 120]
    assert [block.step_ms for block in blocks] == [4.0] * 4 + [6.0] * 2
    assert [block.rows for block in blocks] == [64.0] * 5 + [None]
    assert make_blocks(()) == []


def test_a_single_wild_window_hardly_moves_an_interval() -> None:
    calm = [10.0, 10.1, 9.9, 10.2, 9.8, 10.0, 10.1, 9.9, 10.0, 10.05, 9.95]
    plain, wild = typical_value([*calm, 10.0]), typical_value([*calm, 1000.0])
    assert plain is not None
    assert wild is not None
    assert wild.high < 10.2
    assert wild.estimate == pytest.approx(plain.estimate, rel=0.01)


# -- how often it is wrong -------------------------------------------------------------------------

RUNS = 500

#: Noise of a window, how it hangs together, and windows of each run.
NOISE = [(0.02, 0.0, 12), (0.05, 0.3, 30), (0.2, 0.3, 40), (0.5, 0.0, 20)]


def rates(judge: Callable[[random.Random], str], seed: int) -> Counter[str]:
    rng = random.Random(seed)
    return Counter(judge(rng) for _ in range(RUNS))


EMPTY = a_report()


def judge_slowdown(rng: random.Random, slowdown: float, limit: float, noise: float, memory: float, count: int) -> str:
    sides = [noisy(rng, centre, noise, count, memory) for centre in (10.0 * slowdown, 10.0)]
    report, against = (msgspec.structs.replace(EMPTY, step_times=windows(steps)) for steps in sides)
    return only(judge_report(GateLimits(max_slowdown=limit), report, against)).outcome


@pytest.mark.parametrize(("noise", "memory", "count"), NOISE)
def test_noise_alone_seldom_breaks_a_gate_and_a_slower_run_seldom_passes(
    noise: float, memory: float, count: int
) -> None:
    """At the limit itself, which is the worst case, each error may happen in one run of forty."""
    fair = rates(lambda rng: judge_slowdown(rng, 1.0, 1.0, noise, memory, count), seed=count)
    assert fair["broken"] / RUNS < 0.04
    assert fair["passed"] / RUNS < 0.04

    slower = rates(lambda rng: judge_slowdown(rng, 1.2, 1.1, noise, memory, count), seed=count + 1)
    alike = rates(lambda rng: judge_slowdown(rng, 1.0, 1.1, noise, memory, count), seed=count + 2)
    assert slower["passed"] / RUNS < 0.015
    assert alike["broken"] / RUNS < 0.015


def test_what_little_noise_leaves_clear_is_judged() -> None:
    slower = rates(lambda rng: judge_slowdown(rng, 1.2, 1.1, 0.02, 0.0, 12), seed=7)
    alike = rates(lambda rng: judge_slowdown(rng, 1.0, 1.1, 0.02, 0.0, 12), seed=8)
    assert slower["broken"] / RUNS > 0.95
    assert alike["passed"] / RUNS > 0.95


def test_great_noise_is_said_to_be_unclear() -> None:
    found = rates(lambda rng: judge_slowdown(rng, 1.0, 1.05, 0.5, 0.0, 20), seed=9)
    assert found["unclear"] / RUNS > 0.9


# -- what can be compared --------------------------------------------------------------------------


def test_only_runs_of_one_shape_are_compared() -> None:
    report = a_report()
    assert list_differences(report, a_report(job_id="another")) == []
    assert list_differences(a_report(strategy="ddp"), report) == ["strategy ddp against dp"]
    assert list_differences(report, a_report(devices=report.devices[:2])) == ["devices 3 against 2"]
    assert list_differences(report, a_report(device_kind="cuda", virtual=False)) == [
        "kind of devices virtual cpu against cuda"
    ]


def test_the_usual_batch_counts_and_not_the_last_one() -> None:
    report = a_report()
    last = report.patterns[-1]
    assert last.batch_rows == 10

    def with_last(rows: int) -> tuple[Pattern, ...]:
        return (*report.patterns[:-1], msgspec.structs.replace(last, batch_rows=rows))

    assert list_differences(report, a_report(patterns=with_last(20))) == []
    halves = tuple(msgspec.structs.replace(one, batch_rows=15) for one in report.patterns)
    assert list_differences(report, a_report(patterns=halves)) == ["global batch 30 against 15"]
