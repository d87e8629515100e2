"""How far a script is, whoever tells: itself, its bars, its DataLoader, or nobody."""

from typing import Any

import pytest

from jobs.protocol.packets import AnyRecord
from jobs.protocol.probe_records import Group, Loaded
from jobs.protocol.records import BatchSplit, MetricSample, Outcome, ProgramProgress, Step
from workers.supervisor.telemetry.script_progress import ScriptProgress
from workers.supervisor.telemetry.tqdm_parser import TqdmBar


def split(number: int = 0, rows: int = 4) -> BatchSplit:
    return BatchSplit(number, "train", "", rows, (0,), (rows,), ((rows, 5),), ((rows, 2),))


def step(number: int, at: float = 0.0, phase: str = "train", splits: tuple[int, ...] = (0,)) -> Step:
    return Step(number, 0, phase, splits, at, 1.0)


def loaded(number: int, complete: bool = True, loader: int = 0) -> Loaded:
    return Loaded(loader, number, 5, 20, 20, 4, "RandomSampler", None, None, 7, complete, True)


def told(*records: AnyRecord) -> ScriptProgress:
    progress = ScriptProgress()
    for record in records:
        progress.add_record(0, record)
    return progress


def shown(progress: ScriptProgress) -> dict[str, Any]:
    snapshot = progress.make_status()
    assert snapshot is not None
    return snapshot


def test_there_is_none_before_the_script_has_done_anything() -> None:
    assert told(Group(0, 1, "gloo")).make_status() is None


def test_steps_are_counted_where_nobody_says_how_many_there_will_be() -> None:
    snapshot = shown(told(split(), *(step(number, at=10.0 + number) for number in range(3))))

    assert (snapshot["step"], snapshot["steps"], snapshot["fraction"], snapshot["source"]) == (3, None, None, None)
    assert snapshot["rows_per_second"] == pytest.approx(4.0)
    assert snapshot["eta_seconds"] is None


def test_the_script_s_own_word_comes_before_its_bar() -> None:
    progress = told(step(0), ProgramProgress(30, 120, "sample"))
    progress.set_bars((TqdmBar(1, 4, "it", 9),))
    snapshot = shown(progress)

    assert (snapshot["step"], snapshot["steps"], snapshot["fraction"]) == (30, 120, 0.25)
    assert (snapshot["unit"], snapshot["source"], snapshot["steps_seen"]) == ("sample", "job", 1)


def test_a_bar_says_how_far_the_script_is_and_how_long_it_takes() -> None:
    progress = told(step(0))
    progress.set_bars((TqdmBar(1, 4, "batch", 9),))
    snapshot = shown(progress)

    assert (snapshot["step"], snapshot["steps"], snapshot["unit"]) == (1, 4, "batch")
    assert (snapshot["fraction"], snapshot["eta_seconds"], snapshot["source"]) == (0.25, 9, "tqdm")


def test_a_bar_around_another_counts_the_epochs() -> None:
    progress = told(step(0))
    progress.set_bars((TqdmBar(1, 4, "it", 60), TqdmBar(5, 10, "it", 3)))
    snapshot = shown(progress)

    assert (snapshot["epoch"], snapshot["epochs"], snapshot["step"], snapshot["steps"]) == (2, 4, 5, 10)
    assert (snapshot["fraction"], snapshot["eta_seconds"]) == (0.375, 60)


def test_a_bar_without_an_end_has_no_fraction() -> None:
    progress = told(step(0))
    progress.set_bars((TqdmBar(7, None, "it", None),))
    snapshot = shown(progress)

    assert (snapshot["step"], snapshot["steps"], snapshot["fraction"], snapshot["eta_seconds"]) == (7, None, None, None)


def test_a_second_pass_over_the_loader_is_expected_to_take_as_many_steps_as_the_first() -> None:
    first = [step(number) for number in range(5)]
    snapshot = shown(told(*first, loaded(0), step(5), step(6)))

    assert (snapshot["epoch"], snapshot["epochs"]) == (2, None)
    assert (snapshot["step"], snapshot["steps"], snapshot["fraction"]) == (2, 5, 0.4)
    assert (snapshot["source"], snapshot["steps_seen"]) == ("loader", 7)


def test_a_pass_that_was_left_early_says_nothing_about_the_next() -> None:
    snapshot = shown(told(step(0), loaded(0, complete=False), step(1)))

    assert (snapshot["step"], snapshot["steps"], snapshot["source"]) == (2, None, None)


def test_the_passes_of_a_second_loader_are_not_counted_as_well() -> None:
    snapshot = shown(told(step(0), loaded(0), loaded(0, loader=1), step(1), loaded(1), loaded(1, loader=1)))

    assert (snapshot["epoch"], snapshot["step"], snapshot["steps"]) == (2, 1, 1)


def test_what_the_probe_says_of_the_loader_comes_before_what_is_reckoned() -> None:
    snapshot = shown(told(step(0), loaded(0), step(1), ProgramProgress(3, 5, "batch", "loader"), step(2)))

    assert (snapshot["epoch"], snapshot["step"], snapshot["steps"], snapshot["unit"]) == (2, 3, 5, "batch")


def test_a_loader_of_another_length_is_not_what_the_script_trains_on() -> None:
    told_of_both = told(
        ProgramProgress(4, 5, "batch", "loader"), step(0), loaded(0), ProgramProgress(9, 30, "batch", "loader")
    )

    snapshot = shown(told_of_both)
    assert (snapshot["epoch"], snapshot["step"], snapshot["steps"]) == (1, 5, 5)


def test_passes_over_a_loader_that_is_made_for_each_of_them_are_counted() -> None:
    records: list[AnyRecord] = []
    for number in range(3):
        records += [ProgramProgress(3, 5, "batch", "loader"), step(number), loaded(0, loader=number)]

    snapshot = shown(told(*records))
    assert (snapshot["epoch"], snapshot["step"], snapshot["steps"]) == (3, 5, 5)


def test_a_script_that_succeeded_is_at_its_end() -> None:
    left: list[AnyRecord] = [ProgramProgress(2, 5, "batch", "loader"), step(1), loaded(1, complete=False)]

    snapshot = shown(told(step(0), loaded(0), *left, Outcome(0, 0)))
    assert (snapshot["epoch"], snapshot["fraction"], snapshot["eta_seconds"]) == (2, 1.0, None)
    assert snapshot["step"] == snapshot["steps"]
    assert shown(told(step(0), loaded(0), *left, Outcome(0, 1)))["steps"] == 5


def test_processes_that_the_script_started_are_counted_by_their_rank_in_the_group() -> None:
    progress = ScriptProgress()
    for rank in range(2):
        progress.add_record(0, Group(rank, 2, "gloo"), source=rank + 1)
        progress.add_record(0, split((rank + 7) << 32, rows=4), source=rank + 1)
    for number in range(3):
        for rank in range(2 if number < 2 else 1):
            progress.add_record(0, step(number, at=float(number), splits=((rank + 7) << 32,)), source=rank + 1)
    snapshot = shown(progress)

    assert snapshot["steps_seen"] == 2
    assert snapshot["rows_per_second"] == pytest.approx(16 / 2)


def test_a_process_that_follows_another_goes_on_counting() -> None:
    progress = ScriptProgress()
    for source in (1, 2):
        for number in range(3):
            progress.add_record(0, step(number), source=source)

    assert shown(progress)["steps_seen"] == 6


def test_a_script_that_only_evaluates_is_counted_by_that() -> None:
    assert shown(told(step(0, phase="eval"), step(1, phase="eval")))["steps_seen"] == 2


def test_the_loss_of_the_job_is_shown() -> None:
    assert (
        shown(told(step(0), MetricSample(-1, "loss", 0, 0.5, 0.0), MetricSample(0, "loss", 0, 0.9, 0.0)))["loss"] == 0.5
    )


def test_ranks_that_all_speak_are_not_mixed() -> None:
    progress = ScriptProgress()
    for rank, done in ((1, 9), (0, 3), (1, 10)):
        progress.add_record(rank, ProgramProgress(done, 20))

    assert shown(progress)["step"] == 3
