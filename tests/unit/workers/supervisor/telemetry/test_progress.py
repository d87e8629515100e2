import pytest

from jobs.protocol.records import BatchSplit, MetricSample, Outline, Step
from workers.supervisor.telemetry.progress import WINDOW_SECONDS, RecipeProgress


def outline(total: int | None = 10) -> Outline:
    return Outline(epochs=2, steps_per_epoch=5, total_steps=total, batch_size=4, dataset_rows=20)


def split(rows: int = 4) -> BatchSplit:
    return BatchSplit(0, "train", "", rows, (0,), (rows,), ((rows, 5),), ((rows, 2),))


def step(number: int, at: float, phase: str = "train", epoch: int = 0) -> Step:
    return Step(number, epoch, phase, (0,), at, 1.0)


def test_there_is_none_before_the_program_has_said_anything() -> None:
    assert RecipeProgress(2).make_status() is None


def test_it_counts_the_steps_of_the_rank_that_is_furthest_behind() -> None:
    progress = RecipeProgress(2)
    progress.add_record(0, outline())
    for number in range(4):
        progress.add_record(0, step(number, at=float(number)))
    progress.add_record(1, step(0, at=4.0))
    snapshot = progress.make_status()
    assert snapshot is not None
    assert (snapshot["step"], snapshot["steps"], snapshot["fraction"]) == (1, 10, 0.1)


def test_speed_counts_the_rows_of_all_ranks_and_says_when_the_job_will_be_done() -> None:
    progress = RecipeProgress(2)
    progress.add_record(0, outline())
    for rank in range(2):
        progress.add_record(rank, split(4))
    for number in range(5):
        for rank in range(2):
            progress.add_record(rank, step(number, at=100.0 + number))
    snapshot = progress.make_status()
    assert snapshot is not None
    assert snapshot["rows_per_second"] == pytest.approx((9 * 4) / 4)  # since the first record, which began the window
    assert snapshot["eta_seconds"] == pytest.approx(5 / (5 / 4))


def test_a_slow_start_is_out_of_the_window_after_a_while() -> None:
    progress = RecipeProgress(1)
    progress.add_record(0, outline(1000))
    progress.add_record(0, step(0, at=0.0))
    for number in range(1, 102):
        progress.add_record(0, step(number, at=1000.0 + number * WINDOW_SECONDS / 100))
    snapshot = progress.make_status()
    assert snapshot is not None
    assert snapshot["eta_seconds"] == pytest.approx((1000 - 102) / (100 / WINDOW_SECONDS), rel=0.02)


def test_evaluation_is_no_step_of_the_job_and_a_device_s_loss_not_the_job_s() -> None:
    progress = RecipeProgress(1)
    progress.add_record(0, outline())
    assert progress.add_record(0, step(0, at=0.0))
    assert not progress.add_record(0, step(7, at=1.0, phase="eval"))
    progress.add_record(0, MetricSample(-1, "loss", 0, 0.5, 0.0))
    progress.add_record(0, MetricSample(0, "loss", 0, 0.9, 0.0))
    snapshot = progress.make_status()
    assert snapshot is not None
    assert (snapshot["step"], snapshot["loss"]) == (1, 0.5)


def test_a_length_that_nobody_knows_has_no_fraction_and_no_end() -> None:
    progress = RecipeProgress(1)
    progress.add_record(0, outline(None))
    for number in range(3):
        progress.add_record(0, step(number, at=float(number)))
    snapshot = progress.make_status()
    assert snapshot is not None
    assert (snapshot["steps"], snapshot["fraction"], snapshot["eta_seconds"]) == (None, None, None)


def test_a_clock_that_was_set_back_gives_no_speed_rather_than_a_wrong_one() -> None:
    progress = RecipeProgress(1)
    progress.add_record(0, outline())
    progress.add_record(0, step(0, at=50.0))
    progress.add_record(0, step(1, at=10.0))
    snapshot = progress.make_status()
    assert snapshot is not None
    assert (snapshot["rows_per_second"], snapshot["eta_seconds"]) == (None, None)
