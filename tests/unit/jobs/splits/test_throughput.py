"""Rows, tokens and FLOP per second, and the peaks of cards."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from jobs.protocol.records import FLOP_STEP, BatchSplit, ProgramBegan, Step
from jobs.splits.card_peaks import find_peaks
from jobs.splits.plan import predict_splits
from shardyard.contract.report import RATES, Report
from shardyard.contract.report_diff import compare_reports
from shardyard.render.diff_text import render_diff
from shardyard.render.report_text import render_report
from shardyard.render.svg.comparison_page import comparison_page
from shardyard.render.svg.report_page import NOTHING, report_page
from tests.support.samples.record_streams import step
from tests.support.samples.specs import make_spec
from workers.probe.flop_count import without_times
from workers.supervisor.report.leased_devices import LeasedDevice
from workers.supervisor.report.recipe_aggregator import RecipeAggregator

STEPS = 40
H100 = "NVIDIA H100 80GB HBM3"


def ids(number: int, device: int, rows: int, length: int) -> BatchSplit:
    shapes = ((rows, length),)
    return BatchSplit(number, "train", "", rows, (device,), (rows,), shapes, shapes, holds_tokens=True)


def ddp_stream(
    flop: dict[str, int] | None, lengths: Sequence[int] = (16,), *, cycle_ms: float = 10.0, card: str = "", **split: Any
) -> RecipeAggregator:
    """Two ranks of 8 rows, whose batches are as long as `lengths` says in turn. The FLOP are those of one token."""
    spec, kind = make_spec("ddp", 2, 8), "cuda" if card else "cpu"
    lease = [LeasedDevice(n, f"{kind}:{n}", "host-a", kind, card) for n in range(2)]
    told = RecipeAggregator("job-1", 1, spec, lease, predict_splits(spec, None))
    for rank in range(2):
        told.add_record(rank, ProgramBegan(1000.0))
        for number, length in enumerate(lengths):
            told.add_record(rank, msgspec.structs.replace(ids(number, rank, 8, length), **split))
    for number in range(STEPS):
        at = number % len(lengths)
        for rank in range(2):
            told.add_record(rank, _step(number, at, flop, 8 * lengths[at], cycle_ms))
    for rank in range(2):
        told.rank_ended(rank)
    return told


def _step(number: int, split: int, flop: dict[str, int] | None, tokens: int, cycle_ms: float) -> Step:
    made = step(number, [split], [8], cycle_ms=cycle_ms if number else None, whole_backward_ms=2.0, comm_ms=0.4)
    if flop is None or number != FLOP_STEP:
        return made
    return without_times(made, {name: (each * tokens,) for name, each in flop.items()})


def test_rates_times_the_time_of_the_steps_are_the_work_that_was_done() -> None:
    report = ddp_stream({"float32": 600}).make_report(final=True)
    seconds = STEPS * 0.010
    for device in report.per_device:
        assert (device.rows_per_second or 0) * seconds == pytest.approx(8 * STEPS)
        assert (device.tokens_per_second or 0) * seconds == pytest.approx(8 * 16 * STEPS)
        assert (device.flop_per_second or 0) * seconds == pytest.approx(600 * 8 * 16 * STEPS)
        assert device.flop_per_step == 600 * 8 * 16
    for name in ("rows_per_second", "tokens_per_second", "flop_per_step", "flop_per_second"):
        assert getattr(report, name) == pytest.approx(sum(getattr(device, name) for device in report.per_device))
    assert report.mfu is None


def test_batches_of_changing_length_have_the_flop_of_their_tokens() -> None:
    report = ddp_stream({"float32": 600}, (16, 32, 48)).make_report(final=True)
    mean = 8 * sum((16, 32, 48)[number % 3] for number in range(STEPS)) / STEPS

    assert report.per_device[0].flop_per_step == round(600 * mean)
    assert report.per_device[0].tokens_per_second == pytest.approx(100 * mean, rel=1e-6)


def test_rows_of_changing_shape_without_tokens_have_no_flop() -> None:
    report = ddp_stream({"float32": 600}, (16, 32, 48), holds_tokens=False).make_report(final=True)

    assert (report.tokens_per_second, report.flop_per_step, report.flop_per_second) == (None, None, None)
    assert report.notes["flop_per_second"].startswith("rows differ in shape from step to step")
    assert report.rows_per_second is not None


def test_the_step_that_was_counted_is_in_no_time_and_in_every_total() -> None:
    with_flop = ddp_stream({"float32": 600}).make_report(final=True)
    without = ddp_stream(None).make_report(final=True)
    for one, other in zip(with_flop.per_device, without.per_device, strict=True):
        for name in ("forward_ms", "backward_ms", "comm_ms"):
            mine, theirs = getattr(one, name), getattr(other, name)
            assert mine.total == pytest.approx(theirs.total)
            assert mine.measured_steps == theirs.measured_steps - 1
        assert one.rows_per_second == other.rows_per_second
    assert not any("estimate for all" in note for note in with_flop.notes.values())
    assert without.notes["flop_per_step"] == "no process has sent the FLOP of a step"


def test_mfu_is_the_part_of_the_cards_peak_in_the_arithmetic_that_was_used() -> None:
    flop = {"bfloat16": 900_000_000, "float32": 100_000_000}
    report = ddp_stream(flop, card=H100).make_report(final=True)
    device = report.per_device[0]
    # 128 tokens in 10 ms
    per_second = 1e9 * 128 * 100
    at_peak = (0.9 / 989.4e12 + 0.1 / 66.9e12) * per_second
    assert device.flop_per_second == pytest.approx(per_second)
    assert device.mfu == pytest.approx(at_peak, rel=1e-4)
    assert report.mfu == pytest.approx(at_peak, rel=1e-4)
    unknown = ddp_stream(flop, card="Some Card 1").make_report(final=True)
    assert unknown.mfu is None
    assert unknown.notes["mfu"] == "the peak of Some Card 1 in the arithmetic of this program is not in the table"


@pytest.mark.parametrize(
    ("name", "bfloat16"),
    [
        (H100, 989.4e12),
        ("NVIDIA H200", 989.4e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 NVL", 835.5e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A100 80GB PCIe", 312e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA L40S", 362.05e12),
        ("NVIDIA GeForce RTX 4090", 165.2e12),
    ],
)
def test_cards_are_known_by_the_name_that_torch_gives_them(name: str, bfloat16: float) -> None:
    peaks = find_peaks(name)
    assert peaks is not None
    assert peaks["bfloat16"] == pytest.approx(bfloat16)
    assert peaks["float32"] < peaks["bfloat16"]


@pytest.mark.parametrize(
    "name", ["NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA A10G", "NVIDIA GeForce RTX 3090 Ti", "virtual device", ""]
)
def test_parts_of_cards_and_unknown_cards_have_no_peak(name: str) -> None:
    assert find_peaks(name) is None


def test_older_cards_have_no_peak_in_arithmetic_that_they_lack() -> None:
    assert "bfloat16" not in (find_peaks("Tesla T4") or {"bfloat16": 0.0})
    assert "tf32" not in (find_peaks("Tesla V100-SXM2-16GB") or {"tf32": 0.0})


# -- where rates are shown ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shown() -> Report:
    report = ddp_stream({"bfloat16": 9_000_000_000}).make_report(final=True)
    devices = tuple(msgspec.structs.replace(device, mfu=0.41) for device in report.per_device)
    return msgspec.structs.replace(report, per_device=devices, mfu=0.41)


def test_every_view_of_a_report_has_the_same_rates(shown: Report) -> None:
    text, page = render_report(shown), report_page(shown)
    together = "1,600 rows/s, 25,600 tokens/s, 230 TFLOP/s, MFU 41.0% together"

    assert together in text
    assert together in page
    assert "0           800     12,800        1.15 T    115 T   41.0%" in text
    for title in ("rows/s", "tokens/s", "FLOP/s", "MFU"):
        assert f">{title}</th>" in page


def test_a_report_of_rows_alone_has_no_table_of_rates() -> None:
    report = ddp_stream(None, holds_tokens=False).make_report(final=True)
    assert "1,600 rows/s together" in render_report(report)
    assert "Throughput" not in render_report(report)
    assert "FLOP/s" not in report_page(report)


def test_comparisons_have_the_rates_of_both(shown: Report) -> None:
    slower = ddp_stream({"bfloat16": 9_000_000_000}, cycle_ms=20.0).make_report(final=True)
    found = compare_reports(shown, slower)
    text, page = render_diff(found), comparison_page((shown, NOTHING), (slower, NOTHING))

    assert [getattr(found.throughput, name).ratio for name in RATES] == pytest.approx([2.0, 2.0, 1.0, 2.0, None])
    assert "Throughput of all devices together" in text
    assert "230 T" in text
    assert "FLOP per second" in text
    assert "rows/s, all devices" in page
    assert ">rows/s<" in page
