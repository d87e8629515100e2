"""Ranks under ddp count the FLOP of a step, and their rates times the time of their steps are what they did."""

import pytest

from jobs.protocol.records import Step
from tests.integration.training.ranks import report_of, run_ranks
from tests.support.training_runs import spec_of
from tests.unit.workers.probe.test_flop_count import STEPS, counted, flop_of_mlp, recipe


def test_ranks_under_ddp_have_the_flop_of_their_rows_and_the_rates_of_the_clock() -> None:
    spec = spec_of(recipe(8, max_steps=STEPS // 2 + 8, epochs=2), devices=2, strategy="ddp")
    runs = run_ranks(spec)
    assert [run.exit_code for run in runs] == [0, 0], [run.records[-1] for run in runs]
    report = report_of(spec, runs)

    for rank, run in enumerate(runs):
        assert counted(run).flop == {"float32": (flop_of_mlp(8),)}
        device = report.per_device[rank]
        timed = [step for step in run.of(Step) if step.phase == "train" and step.cycle_ms is not None]
        seconds = sum(step.cycle_ms or 0.0 for step in timed) / 1000
        assert device.flop_per_step == flop_of_mlp(8)
        assert (device.rows_per_second or 0) * seconds == pytest.approx(8 * len(timed), rel=1e-3)
        assert (device.flop_per_second or 0) * seconds == pytest.approx(flop_of_mlp(8) * len(timed), rel=1e-3)
    assert report.flop_per_step == 2 * flop_of_mlp(8)
