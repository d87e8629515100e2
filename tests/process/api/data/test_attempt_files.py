from collections.abc import Callable
from pathlib import Path

import pytest

from api.data import attempt_files
from api.data.attempt_files import LogQuery, SeriesQuery
from jobs.files import paths
from jobs.files.log_file import CONTINUED, LineRun, LogWriter
from jobs.files.metric_file import MetricWriter
from jobs.protocol.records import MetricSample
from shardyard.contract.errors import NotFound


@pytest.fixture
def attempt(tmp_path: Path) -> Path:
    """Two devices that print in turn, ten lines each; device 1 is one second behind device 0."""
    paths.logs_dir(tmp_path).mkdir()
    for device in (0, 1):
        writer = LogWriter(paths.log_file(tmp_path, device))
        for line in range(10):
            text = f"device {device} line {line}".encode()
            writer.append([LineRun("stdout", device, line, 1000.0 + 2 * line + device, 0, [text])])
        writer.seal()
    return tmp_path


def follow(attempt: Path, devices: list[int], query: LogQuery) -> list[tuple[int, int]]:
    """Every (device, seq) of all pages, one after the other."""
    found, seen = [], dict[int, int]()
    for _ in range(100):
        page = attempt_files.read_logs(attempt, devices, seen, query)
        found += [(line.device, line.seq) for line in page.lines]
        seen = page.seen
        if page.at_end:
            return found
    raise AssertionError("the pages do not end")


def test_lines_of_several_devices_come_by_time(attempt: Path) -> None:
    page = attempt_files.read_logs(attempt, [0, 1], {}, LogQuery())
    assert [(line.device, line.seq) for line in page.lines] == [(d, s) for s in range(1, 11) for d in (0, 1)]
    assert page.at_end
    assert page.sealed


@pytest.mark.parametrize("limit", [1, 3, 7, 20, 100])
def test_pages_of_any_size_have_every_line_once(attempt: Path, limit: int) -> None:
    found = follow(attempt, [0, 1], LogQuery(limit=limit))
    assert found == [(d, s) for s in range(1, 11) for d in (0, 1)]


def test_the_tail_is_the_newest_lines_of_all_devices_and_goes_on_at_the_end(attempt: Path) -> None:
    page = attempt_files.read_logs(attempt, [0, 1], {}, LogQuery(tail=3))
    assert [(line.device, line.seq) for line in page.lines] == [(1, 9), (0, 10), (1, 10)]
    assert page.seen == {0: 10, 1: 10}
    assert page.at_end


def test_lines_can_be_asked_for_by_step(attempt: Path) -> None:
    page = attempt_files.read_logs(attempt, [1], {}, LogQuery(from_step=4, to_step=5))
    assert [line.text for line in page.lines] == ["device 1 line 4", "device 1 line 5"]


def test_lines_are_shown_without_control_characters_and_say_when_they_go_on(tmp_path: Path) -> None:
    paths.logs_dir(tmp_path).mkdir()
    writer = LogWriter(paths.log_file(tmp_path, 0))
    writer.append([LineRun("stderr", 0, None, 1.5, CONTINUED, [b"\x1b[31mred\x1b[0m \x07bell"])])
    (line,) = attempt_files.read_logs(tmp_path, [0], {}, LogQuery()).lines
    assert (line.text, line.continued, line.step) == ("red bell", True, None)
    assert line.at == "1970-01-01T00:00:01.500000Z"


def test_an_attempt_that_has_written_nothing_has_an_empty_log_and_no_series(tmp_path: Path) -> None:
    page = attempt_files.read_logs(tmp_path, [0, 1], {}, LogQuery())
    assert page.lines == []
    assert not page.sealed
    assert attempt_files.read_metrics(tmp_path, SeriesQuery()) == []
    assert attempt_files.read_report(tmp_path) is None


def test_a_value_that_is_no_number_is_null_in_a_series(tmp_path: Path) -> None:
    MetricWriter(paths.metrics_file(tmp_path)).append([MetricSample(-1, "loss", 0, float("nan"), 1.0)])
    (series,) = attempt_files.read_metrics(tmp_path, SeriesQuery(-1, "loss"))
    assert series.points[0].value is None


def test_removing_a_job_takes_its_files_and_no_others(tmp_path: Path) -> None:
    kept = paths.attempt_dir(tmp_path, "default", "b", 1)
    for directory in (paths.attempt_dir(tmp_path, "default", "a", 1), kept):
        directory.mkdir(parents=True)
        (directory / "report.json").write_text("{}")
    attempt_files.remove_job(tmp_path, "default", "a")
    attempt_files.remove_job(tmp_path, "default", "never-ran")
    assert [p.name for p in (tmp_path / "jobs" / "default").iterdir()] == ["b"]


def test_a_link_in_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    for directory in (mine, theirs):
        paths.logs_dir(directory).mkdir(parents=True)
    paths.report_file(theirs).write_text("{}")
    LogWriter(paths.log_file(theirs, 0)).append([LineRun("stdout", 0, None, 1.0, 0, [b"secret"])])
    paths.report_file(mine).symlink_to(paths.report_file(theirs))
    paths.log_file(mine, 0).symlink_to(paths.log_file(theirs, 0))
    paths.metrics_file(mine).symlink_to(paths.metrics_file(theirs))
    reads: list[Callable[[], object]] = [
        lambda: attempt_files.read_report(mine),
        lambda: attempt_files.read_logs(mine, [0], {}, LogQuery()),
        lambda: attempt_files.read_metrics(mine, SeriesQuery()),
    ]
    for read in reads:
        with pytest.raises(NotFound, match="regular file"):
            read()
