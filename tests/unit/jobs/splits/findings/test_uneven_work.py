"""Rows of unequal size: devices with larger ones hold the others up, if time follows size."""

import random
from typing import Any

import msgspec
import pytest

from jobs.protocol.records import Outcome, ProgramBegan
from shardyard.contract.report import Finding
from tests.support.samples.record_streams import aggregator, split, step
from tests.support.samples.specs import make_spec

ROWS = 8


def found(ranks: int, *, spread: int, per_element_ms: float, fixed_ms: float = 0.0, steps: int = 120) -> list[Finding]:
    """Ranks whose sentences have 200 words, give or take, in batches of equally many rows."""
    told, chance, now = aggregator(make_spec("ddp", ranks, ROWS), None), random.Random(4), 0.0
    for rank in range(ranks):
        told.add_record(rank, ProgramBegan(0.0))
    for number in range(steps):
        lengths = [200 + chance.randint(-spread, spread) for _ in range(ranks)]
        times = [(fixed_ms + per_element_ms * ROWS * length) * chance.lognormvariate(0, 0.05) for length in lengths]
        now += 3 * max(times) / 1000
        for rank, (length, forward) in enumerate(zip(lengths, times, strict=True)):
            divided = msgspec.structs.replace(split(number, [rank], [ROWS]), input_shapes=((ROWS, length),))
            told.add_record(rank, divided)
            timed: dict[str, Any] = {
                "forward_ms": (forward,),
                "backward_ms": (2 * forward,),
                "comm_ms": 3 * (max(times) - forward),
                "cycle_ms": 3 * max(times),
            }
            told.add_record(rank, msgspec.structs.replace(step(number, [number], [ROWS], **timed), at=now))
    for rank in range(ranks):
        told.add_record(rank, Outcome(rank, 0, at=now))
        told.rank_ended(rank)
    return [one for one in told.make_report(final=True, now=now).findings if one.code != "communication-bound"]


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_rank_with_the_longest_rows_holds_the_others_up(ranks: int) -> None:
    (finding,) = found(ranks, spread=180, per_element_ms=0.01)

    assert (finding.code, finding.severity) == ("uneven-work", "warning" if ranks == 4 else "info")
    assert finding.numbers["max_over_mean"] > 1.2
    assert finding.numbers["slope"] == pytest.approx(1, abs=0.1)
    assert finding.numbers["correlation"] > 0.9
    lost = 110 * ranks * 3 * 16 * (finding.numbers["max_over_mean"] - 1) / 1000
    assert finding.cost_device_seconds == pytest.approx(lost, rel=0.15)
    assert "buckets of similar length" in finding.suggestion


@pytest.mark.parametrize(
    ("spread", "per_element_ms", "fixed_ms"),
    [
        (0, 0.01, 0.0),  # buckets of one length
        (30, 0.01, 0.0),
        (180, 0.0, 16.0),  # time does not follow size
        (180, 0.00001, 0.0),  # next to nothing is lost
    ],
)
def test_work_that_is_even_or_costs_the_same_is_no_finding(spread: int, per_element_ms: float, fixed_ms: float) -> None:
    assert found(4, spread=spread, per_element_ms=per_element_ms, fixed_ms=fixed_ms) == []
