"""A device that is made slow on purpose is named by the report, with the right cause, every time."""

from typing import Any

import pytest

from jobs.splits.findings.time_findings import CODES
from shardyard.contract.report import Report
from tests.integration.training.ranks import report_of, run_ranks
from tests.support.training_runs import VECTORS, report_here, spec_of

CAUSES = {"input": "input", "forward": "compute", "backward": "compute"}
#: How often, and how slow. The quick ones run beside others: what those take from a rank must be little against it.
QUICK, QUICK_MS = 2, 150
THOROUGH, THOROUGH_MS = 20, 50


def program(where: str, milliseconds: int, **who: int) -> dict[str, Any]:
    data = {"ref": "random_vectors", "args": {"rows": 96, "features": 5}, "batch_size": 6}
    slow = {**who, "where": where, "milliseconds": milliseconds}
    return {**VECTORS, "model": {"ref": "mlp", "args": {"in_features": 5, "out_features": 2}}, "data": data} | {
        "straggler": slow,
        "max_steps": 6,
    }


def named(report: Report) -> tuple[int | None, str | None]:
    return report.balance.slowest_device, report.balance.cause


def under_ddp(ranks: int, where: str, milliseconds: int) -> tuple[int | None, str | None]:
    spec = spec_of(program(where, milliseconds, rank=1), devices=ranks, strategy="ddp")
    runs = run_ranks(spec)
    assert [run.exit_code for run in runs] == [0] * ranks
    return named(report_of(spec, runs))


def under_dp(where: str, milliseconds: int) -> tuple[int | None, str | None]:
    return named(report_here(spec_of(program(where, milliseconds, device=1), devices=3, strategy="dp")))


#: In the forward pass is found as in the backward one.
WHERE = [pytest.param(where, marks=pytest.mark.slow if where == "forward" else ()) for where in CAUSES]


@pytest.mark.parametrize("where", WHERE)
def test_a_slow_device_is_named_with_its_cause_under_dp(where: str) -> None:
    assert [under_dp(where, QUICK_MS) for _ in range(QUICK)] == [(1, CAUSES[where])] * QUICK


@pytest.mark.integration
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_slow_rank_is_named_with_its_cause_under_ddp(ranks: int, where: str) -> None:
    assert [under_ddp(ranks, where, QUICK_MS) for _ in range(QUICK)] == [(1, CAUSES[where])] * QUICK


@pytest.mark.integration
@pytest.mark.parametrize("where", WHERE)
def test_a_slow_rank_is_a_finding_with_its_cause_and_without_it_there_is_none(where: str) -> None:
    slow = program(where, 40, rank=1) | {"max_steps": 80, "epochs": 10}
    spec, twin = (spec_of(each, devices=2, strategy="ddp") for each in (slow, slow | {"straggler": None}))
    (finding,) = (one for one in report_of(spec, run_ranks(spec)).findings if one.code in CODES)

    assert (finding.code, finding.severity, finding.numbers["device"]) == ("slow-device", "warning", 1)
    assert f"(cause: {CAUSES[where]})" in finding.message
    assert finding.suggestion == "leave out program.straggler, which makes it slow on purpose"
    assert (finding.cost_device_seconds or 0.0) >= 50 * 0.04 * 0.8
    assert not {one.code for one in report_of(twin, run_ranks(twin)).findings} & CODES


@pytest.mark.slow
@pytest.mark.parametrize("where", CAUSES)
def test_a_slow_device_is_named_twenty_times_of_twenty_under_dp(where: str) -> None:
    assert [under_dp(where, THOROUGH_MS) for _ in range(THOROUGH)] == [(1, CAUSES[where])] * THOROUGH


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize("where", CAUSES)
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_slow_rank_is_named_twenty_times_of_twenty_under_ddp(ranks: int, where: str) -> None:
    assert [under_ddp(ranks, where, THOROUGH_MS) for _ in range(THOROUGH)] == [(1, CAUSES[where])] * THOROUGH
