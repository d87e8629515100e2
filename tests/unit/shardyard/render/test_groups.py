"""Reports of comparisons and sweeps for people."""

from typing import Any
from xml.etree import ElementTree

import pytest

from shardyard.contract.groups import (
    ComparisonReport,
    CurvePoint,
    LeftOut,
    Recommendation,
    SweepReport,
    TrialResult,
    VariantResult,
)
from shardyard.render.group_text import render_comparison, render_sweep
from shardyard.render.svg.group_page import comparison_report_page, draw_comparison, draw_sweep, sweep_report_page

CURVE = [CurvePoint(step, 2.0 / (step + 1)) for step in range(20)]


def comparison(name: str = "digits") -> ComparisonReport:
    known: dict[str, Any] = {"strategy": "ddp", "batch_size": 24, "job": "j", "curve": CURVE}
    return ComparisonReport(
        id="c-1",
        name=name,
        state="succeeded",
        complete=True,
        steps=50,
        warm_up_steps=10,
        global_batch_size=48,
        variants=[
            VariantResult(number=0, devices=1, state="succeeded", rows_per_second=1000.0, efficiency=1.0, **known),
            VariantResult(number=1, devices=2, state="failed", reason="out_of_memory", **known),
        ],
        left_out=[LeftOut(strategy="single", devices=2, why="one device is all that it has")],
        recommendation=Recommendation(verdict="recommended", variant=0, reason="the fastest", price="1 device-second"),
        notes=["a note"],
    )


def sweep() -> SweepReport:
    trials = [
        TrialResult(number=n, values={"program.optimizer.args.lr": lr, "program.seed": n}, job="j", state="succeeded",
                    value=value, loss=value, curve=CURVE)
        for n, (lr, value) in enumerate([(0.1, 0.5), (0.2, 0.25), (0.4, None)])
    ]  # fmt: skip
    return SweepReport(
        id="s-1", name="rates", state="succeeded", complete=True, search="grid", metric="loss", mode="min", planned=3,
        paths=["program.optimizer.args.lr", "program.seed"], trials=trials, best=1,
    )  # fmt: skip


def test_a_comparison_as_text_has_its_variants_what_was_left_out_and_what_to_take() -> None:
    text = render_comparison(comparison())
    for words in (
        "ddp on 1",
        "1,000",
        "ddp on 2: failed, out_of_memory",
        "single on 2: one device",
        "the fastest",
        "a note",
    ):
        assert words in text
    assert max(map(len, text.splitlines())) <= 110


def test_a_sweep_as_text_has_the_best_first_and_what_has_no_value_last() -> None:
    lines = render_sweep(sweep()).splitlines()
    assert "best: trial 1, loss 0.250, program.optimizer.args.lr = 0.2, program.seed = 1" in lines
    rows = [line.split()[0] for line in lines if line.strip()[:1].isdigit()]
    assert rows == ["1", "0", "2"]
    assert any("lr" in line and "seed" in line and "program" not in line for line in lines)


@pytest.mark.parametrize("hostile", ["<script>alert(1)</script>", '"><img src=x>'])
def test_pages_and_pictures_are_well_formed_and_show_names_as_text(hostile: str) -> None:
    page = comparison_report_page(comparison(hostile))
    assert hostile not in page
    assert "<path" in page
    for drawn in (draw_comparison(comparison(hostile)), draw_sweep(sweep())):
        assert ElementTree.fromstring(drawn).tag.endswith("svg")
    assert "Trial 1" in sweep_report_page(sweep())


def test_a_group_without_curves_is_drawn_too() -> None:
    empty = SweepReport(id="s", name="", state="queued", metric="loss", mode="min")
    assert ElementTree.fromstring(draw_sweep(empty)).tag.endswith("svg")
    assert "No job has reported its loss yet" in sweep_report_page(empty)
