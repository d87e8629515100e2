"""What a script may tell its job, connected to one and not."""

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from jobs.protocol.packets import AnyRecord
from jobs.protocol.records import MetricSample, ProgramProgress
from shardyard.script import job
from shardyard.script import job as script_job


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A process that nobody has connected yet, in a directory of its own."""
    monkeypatch.setattr(job, "_link", None)
    monkeypatch.setattr(job, "_said", set())
    for variable in (job.OUTPUT_VARIABLE, job.RESUME_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)


class Connected:
    """A job that listens."""

    def __init__(self, output: Path) -> None:
        self.records: list[AnyRecord] = []
        self.stops = False
        self.holds: list[bool] = []  # what is said next of the node's room; at the end there is some
        self.output = output
        job.connect(
            self.records.append,
            lambda: self.stops,
            output,
            metric=MetricSample,
            progress=ProgramProgress,
            holding=lambda: self.holds.pop(0) if self.holds else False,
        )

    def points(self) -> list[tuple[str, int, float]]:
        return [(record.name, record.step, record.value) for record in self.records if isinstance(record, MetricSample)]


@pytest.fixture
def connected(tmp_path: Path) -> Connected:
    return Connected(tmp_path / "artifacts")


# -- within a job ----------------------------------------------------------------------------------


def test_a_logged_number_is_a_point_of_the_jobs_own_series(connected: Connected) -> None:
    job.log("loss", 0.5, 7)

    (record,) = connected.records
    assert isinstance(record, MetricSample)
    assert (record.device, record.name, record.step, record.value) == (-1, "loss", 7, 0.5)
    assert record.at > 1e9


def test_other_ranks_log_to_their_device() -> None:
    records: list[Any] = []
    job.connect(records.append, lambda: False, Path("out"), device=2, metric=MetricSample, progress=ProgramProgress)

    job.log("loss", 1.0)

    assert records[0].device == 2


def test_a_tensor_of_one_element_is_logged_as_its_number(connected: Connected) -> None:
    job.log("loss", torch.tensor(0.25, requires_grad=True), torch.tensor(3))
    job.log("loss", torch.tensor([[0.5]]), 4)

    assert connected.points() == [("loss", 3, 0.25), ("loss", 4, 0.5)]


def test_points_without_a_step_are_counted_series_by_series(connected: Connected) -> None:
    for value in (1, 2):
        job.log("a", value)
        job.log("b", value)

    assert connected.points() == [("a", 0, 1.0), ("b", 0, 1.0), ("a", 1, 2.0), ("b", 1, 2.0)]


def test_numbers_that_are_not_finite_are_kept_as_they_are(connected: Connected) -> None:
    job.log("loss", math.nan)
    job.log("loss", math.inf)

    (_, _, first), (_, _, second) = connected.points()
    assert math.isnan(first)
    assert second == math.inf


def test_progress_is_said_in_the_scripts_own_steps(connected: Connected) -> None:
    job.progress(3, 10)
    job.progress(4)

    assert connected.records == [ProgramProgress(3, 10), ProgramProgress(4, None)]


def test_a_script_hears_that_it_should_stop(connected: Connected) -> None:
    assert not job.should_stop()
    connected.stops = True
    assert job.should_stop()


def test_the_output_directory_exists(connected: Connected) -> None:
    assert job.output_dir() == connected.output
    assert connected.output.is_dir()


def test_more_names_than_a_job_keeps_are_not_sent(
    connected: Connected, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(job, "MAX_NAMES", 2)
    for name in ("a", "b", "c", "d", "a"):
        job.log(name, 1)

    assert [name for name, _, _ in connected.points()] == ["a", "b", "a"]
    assert capsys.readouterr().err.count("more than 2 different names") == 1


# -- wrong arguments, everywhere -------------------------------------------------------------------


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("", 1.0), "name"),
        (("a\nb", 1.0), "name"),
        (("a" * 201, 1.0), "name"),
        ((5, 1.0), "name is a int"),
        (("loss", "much"), "value of 'loss'"),
        (("loss", torch.zeros(2)), "value of 'loss'"),
        (("loss", None), "value of 'loss'"),
        (("loss", 1.0, -1), "step is -1"),
        (("loss", 1.0, 2**63), "step is"),
        (("loss", 1.0, 1.5), "step is a float"),
    ],
)
def test_what_cannot_be_logged_is_refused_in_words(
    inside: bool, arguments: tuple[Any, ...], message: str, tmp_path: Path
) -> None:
    if inside:
        Connected(tmp_path)
    with pytest.raises((TypeError, ValueError), match=message):
        job.log(*arguments)


def test_progress_in_other_things_than_whole_numbers_is_refused() -> None:
    with pytest.raises(TypeError, match="steps is a str"):
        job.progress(1, "ten")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="step is -1"):
        job.progress(-1)


# -- checkpoints -----------------------------------------------------------------------------------


def test_a_checkpoint_is_a_copy_under_its_own_name(connected: Connected) -> None:
    Path("model.pt").write_text("one")

    kept = job.checkpoint("model.pt")
    Path("model.pt").write_text("two, unfinished")

    assert kept == connected.output / "checkpoints" / "model.pt"
    assert kept.read_text() == "one"


def test_a_newer_checkpoint_takes_the_place_of_the_older(connected: Connected) -> None:
    for text in ("one", "two"):
        Path("model.pt").write_text(text)
        kept = job.checkpoint(Path("model.pt"))

    assert kept.read_text() == "two"
    assert [path.name for path in kept.parent.iterdir()] == ["model.pt"]


def test_a_directory_is_kept_whole_and_replaces_the_older(connected: Connected) -> None:
    Path("state").mkdir()
    Path("state/old").write_text("old")
    job.checkpoint("state")
    Path("state/old").unlink()
    Path("state/new").write_text("new")
    Path("state/latest").symlink_to("new")
    Path("state/nowhere").symlink_to("gone")

    kept = job.checkpoint("state/")

    assert {path.name: path.read_text() for path in kept.iterdir()} == {"new": "new", "latest": "new"}
    assert not (kept / "latest").is_symlink()
    assert [path.name for path in kept.parent.iterdir()] == ["state"]


def test_a_file_may_follow_a_directory_of_its_name_and_the_other_way_round(connected: Connected) -> None:
    Path("a").mkdir()
    assert job.checkpoint("a").is_dir()
    Path("a").rmdir()
    Path("a").write_text("file")
    assert job.checkpoint("a").read_text() == "file"
    Path("a").unlink()
    Path("a").mkdir()
    assert job.checkpoint("a").is_dir()


def test_a_file_that_lies_among_the_checkpoints_stays_as_it_is(connected: Connected) -> None:
    path = job.output_dir() / "checkpoints" / "model.pt"
    path.parent.mkdir()
    path.write_text("here already")

    assert job.checkpoint(path) == path
    assert path.read_text() == "here already"


def test_a_checkpoint_that_is_not_there_is_an_error_inside_and_outside(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        job.checkpoint("model.pt")
    Connected(tmp_path)
    with pytest.raises(FileNotFoundError):
        job.checkpoint("model.pt")


def test_a_copy_that_fails_leaves_the_older_checkpoint_and_no_half_of_the_new(connected: Connected) -> None:
    Path("state").mkdir()
    Path("state/a").write_text("whole")
    kept = job.checkpoint("state")
    os.mkfifo("state/b")

    with pytest.raises(OSError):  # a pipe cannot be copied
        job.checkpoint("state")

    assert [path.name for path in kept.iterdir()] == ["a"]
    assert [path.name for path in kept.parent.iterdir()] == ["state"]


# -- without a job ---------------------------------------------------------------------------------


def test_outside_a_job_nothing_happens_and_one_line_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    Path("model.pt").write_text("one")

    job.log("loss", 1.0)
    job.progress(1, 2)

    assert job.output_dir() == Path("output").absolute()
    assert job.checkpoint("model.pt") == Path("model.pt")
    assert not job.should_stop()
    assert job.resume_dir() is None
    assert capsys.readouterr().err.splitlines() == [
        "shardyard.job: not running in a job: nothing is recorded, and output goes to ./output"
    ]
    assert sorted(path.name for path in Path().iterdir()) == ["model.pt", "output"]


def test_what_to_go_on_from_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(job.RESUME_VARIABLE, str(tmp_path / "resume"))
    assert job.resume_dir() == tmp_path / "resume"


def test_a_process_of_a_job_that_is_not_connected_still_finds_the_output_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(job.OUTPUT_VARIABLE, str(tmp_path / "kept"))
    Path("model.pt").write_text("one")

    assert job.output_dir() == tmp_path / "kept"
    assert job.checkpoint("model.pt").read_text() == "one"
    assert capsys.readouterr().err == ""
    job.log("loss", 1.0)
    job.log("loss", 1.0)
    assert "no connection to its job" in capsys.readouterr().err


def test_a_forked_child_does_not_speak_through_its_parents_connection(connected: Connected) -> None:
    child = os.fork()
    if child == 0:
        os.close(2)
        job.log("loss", 1.0)
        os._exit(len(connected.records))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_helper_needs_nothing_but_the_standard_library() -> None:
    program = """
import sys
before = {name.partition(".")[0] for name in sys.modules}
import shardyard.job
new = {name.partition(".")[0] for name in sys.modules} - before
print(sorted(new - set(sys.stdlib_module_names)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['shardyard']"


def test_a_checkpoint_waits_until_the_node_has_room(
    connected: Connected, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(script_job, "ROOM_POLL_SECONDS", 0.0)
    (tmp_path / "state").write_text("1")
    connected.holds = [True] * 5
    assert job.checkpoint(tmp_path / "state").read_text() == "1"
    assert connected.holds == []
    assert "checkpoint() waits" in capsys.readouterr().err


def test_the_last_checkpoint_of_a_job_that_must_end_does_not_wait(connected: Connected, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("1")
    connected.holds, connected.stops = [True] * 5, True
    assert job.checkpoint(tmp_path / "state").read_text() == "1"
    assert len(connected.holds) == 3


def test_a_checkpoint_that_has_waited_for_long_goes_on(
    connected: Connected, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(script_job, "ROOM_SECONDS", 0.0)
    (tmp_path / "state").write_text("1")
    connected.holds = [True] * 50
    assert job.checkpoint(tmp_path / "state").read_text() == "1"
    assert "continues without room" in capsys.readouterr().err
