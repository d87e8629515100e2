"""Files of an attempt that its job has replaced by something else: nobody waits for that, and nothing else is read."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from api.data import attempt_files, hardware_series
from api.data.attempt_files import LogQuery, SeriesQuery
from jobs.files import paths, profiles, user_files
from jobs.support.fs import read_plain_file
from shardyard.contract.errors import NotFound


def make_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the path of a socket must be short
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    finally:
        os.chdir(here)


READERS: dict[str, tuple[Callable[[Path], Path], Callable[[Path], object], object]] = {
    "report": (paths.report_file, attempt_files.read_report, None),
    "hardware": (paths.hardware_file, hardware_series.read_samples, None),
    "log": (
        lambda attempt: paths.log_file(attempt, 0),
        lambda attempt: attempt_files.read_logs(attempt, [0], {}, LogQuery()).lines,
        [],
    ),
    "metrics": (paths.metrics_file, lambda attempt: attempt_files.read_metrics(attempt, SeriesQuery()), []),
    "kept files": (paths.user_files_record, user_files.read_record, None),
    "profiles": (lambda attempt: paths.profile_dir(attempt, 1) / "profile.json", profiles.list_profiles, []),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "make",
    [os.mkfifo, make_socket, Path.mkdir, lambda path: path.symlink_to("/etc/passwd"), lambda path: None],
    ids=["pipe", "socket", "directory", "link", "nothing"],
)
def test_what_is_no_plain_file_is_as_if_there_were_none(
    tmp_path: Path, reader: str, make: Callable[[Path], None]
) -> None:
    where, read, nothing = READERS[reader]
    path = where(tmp_path.resolve())
    path.parent.mkdir(parents=True, exist_ok=True)
    make(path)
    try:
        assert read(tmp_path.resolve()) == nothing
    except NotFound as error:
        assert os.path.lexists(path)
        assert "not a regular file" in error.message  # noqa: PT017


def test_so_much_of_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    assert read_plain_file(tmp_path / "file", 4) == b"0123"
    assert read_plain_file(tmp_path / "file", 100) == b"0123456789"
