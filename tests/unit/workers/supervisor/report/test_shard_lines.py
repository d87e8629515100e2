"""The log lines of each device, in the words of PyTorch's tutorials."""

import pytest

from jobs.protocol.records import BatchSplit, Shape
from tests.support.samples.record_streams import aggregator, run, split, step
from tests.support.samples.specs import make_spec
from workers.supervisor.report.shard_lines import ALWAYS_PRINTED, ShardLine, lines_of_split


def texts(lines: list[ShardLine], number: int) -> list[tuple[int, str]]:
    return [(line.device, line.text) for line in lines if line.step == number]


def test_three_devices_print_their_shards_and_the_first_one_the_whole_batch() -> None:
    _, lines = run(make_spec("dp", 3, 30, mode="forward"), 100)

    assert texts(lines, 0) == [
        (0, "In Model: input size torch.Size([10, 5]) output size torch.Size([10, 2])"),
        (1, "In Model: input size torch.Size([10, 5]) output size torch.Size([10, 2])"),
        (2, "In Model: input size torch.Size([10, 5]) output size torch.Size([10, 2])"),
        (0, "Outside: input size torch.Size([30, 5]) output_size torch.Size([30, 2])"),
    ]
    assert texts(lines, 3) == [
        (0, "In Model: input size torch.Size([4, 5]) output size torch.Size([4, 2])"),
        (1, "In Model: input size torch.Size([4, 5]) output size torch.Size([4, 2])"),
        (2, "In Model: input size torch.Size([2, 5]) output size torch.Size([2, 2])"),
        (0, "Outside: input size torch.Size([10, 5]) output_size torch.Size([10, 2])"),
    ]
    assert {line.phase for line in lines} == {"forward"}


def test_idle_devices_print_nothing() -> None:
    _, lines = run(make_spec("dp", 8, 30), 100)

    assert [device for device, _ in texts(lines, 3)] == [0, 1, 2, 3, 4, 0]


def test_every_rank_of_four_prints_both_lines() -> None:
    _, lines = run(make_spec("ddp", 4, 30), 90)

    assert len(lines) == 8
    for device in range(4):
        assert [line.text for line in lines if line.device == device] == [
            "In Model: input size torch.Size([23, 5]) output size torch.Size([23, 2])",
            "Outside: input size torch.Size([23, 5]) output_size torch.Size([23, 2])",
        ]


def test_each_micro_batch_prints() -> None:
    told = aggregator(make_spec("single", 1, 30), None)
    told.add_record(0, split(0, [0], [30]))
    told.add_record(0, split(1, [0], [10]))

    lines = told.add_record(0, step(0, [0, 0, 1], [70]))

    assert [line.text[:42] for line in lines if line.text.startswith("In")] == [
        "In Model: input size torch.Size([30, 5]) o",
        "In Model: input size torch.Size([30, 5]) o",
        "In Model: input size torch.Size([10, 5]) o",
    ]


# -- how often -------------------------------------------------------------------------------------


def printed(observe: str, rows: list[int]) -> list[int]:
    """Numbers of the steps that print, when step n divides `rows[n]` rows."""
    told = aggregator(make_spec("single", 1, 30, observe=observe), None)
    for count in sorted(set(rows)):
        told.add_record(0, split(count, [0], [count]))
    return [n for n, count in enumerate(rows) if told.add_record(0, step(n, [count], [count]))]


def test_every_step_prints_when_asked_to() -> None:
    assert len(printed("every", [4] * 1500)) == 1500


def test_no_step_prints_when_switched_off() -> None:
    assert printed("off", [4] * 10) == []


def test_by_default_the_first_thousand_steps_print_and_then_only_changes() -> None:
    rows = [4] * 1200 + [2] + [4] * 100

    assert printed("auto", rows) == [*range(ALWAYS_PRINTED), 1200, 1201]


# -- shapes ----------------------------------------------------------------------------------------


def outside(shapes: list[Shape | None], dim: int) -> str:
    devices = tuple(range(len(shapes)))
    (*_, (_, text)) = lines_of_split(
        BatchSplit(0, "train", "", None, devices, (1,) * len(shapes), tuple(shapes), tuple(shapes)), dim
    )
    return text.removeprefix("Outside: input size ").partition(" output_size ")[0]


@pytest.mark.parametrize(
    ("shapes", "dim", "whole"),
    [
        ([(2, 5), (1, 5)], 0, "torch.Size([3, 5])"),
        ([(7, 3, 5), (7, 2, 5)], 1, "torch.Size([7, 5, 5])"),
        ([(7, 3), (7, 2)], -1, "torch.Size([7, 5])"),
        ([(7, 3, 4), (7, 2, 4)], -2, "torch.Size([7, 5, 4])"),
        ([(), (), ()], 0, "torch.Size([3])"),
        ([(2, 5), None], 0, "unknown"),
        ([(2, 5), (2, 6)], 0, "unknown"),
        ([(2,), (2, 6)], 0, "unknown"),
        ([(2,), (2,)], 1, "unknown"),
        ([(2, 5)], 3, "torch.Size([2, 5])"),
    ],
)
def test_shards_are_put_together_along_the_dimension_that_was_split(
    shapes: list[Shape | None], dim: int, whole: str
) -> None:
    assert outside(shapes, dim) == whole


def test_a_split_that_gave_nothing_to_anyone_prints_nothing() -> None:
    assert lines_of_split(split(0, [0, 1], [0, 0]), 0) == ()


def test_a_step_of_which_no_shape_was_seen_prints_nothing() -> None:
    assert lines_of_split(BatchSplit(0, "train", "", None, (0,), (None,), (None,), (None,)), 0) == ()


def test_a_shard_whose_rows_nobody_can_count_is_printed_all_the_same() -> None:
    lines = lines_of_split(BatchSplit(0, "train", "", None, (0, 1), (None, None), (None, None), ((2,), (2,))), 0)

    assert lines == (
        (0, "In Model: input size unknown output size torch.Size([2])"),
        (1, "In Model: input size unknown output size torch.Size([2])"),
        (0, "Outside: input size unknown output_size torch.Size([4])"),
    )
