"""A log that is renamed while processes write to it, in processes of its own: standard error is for a whole process."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from jobs.support.log_follower import LOG_VARIABLE
from shardyard.service import service_logs

PROGRAM = """
import logging, os, sys
import structlog
from jobs.support import log_follower, logging_config
log_follower.LOOK_SECONDS = 0
logging_config.configure_logging("INFO")
log = structlog.get_logger("api")
libraries = logging.getLogger("of-a-library")
"""
#: Writes a line for each that it is sent, by turns as ours, as a library's and as plain text.
WRITER = """
for number, line in enumerate(sys.stdin):
    name = line.strip()
    if number % 3 == 0:
        log.info(name)
    elif number % 3 == 1:
        libraries.warning(name)
    else:
        print(name, flush=True)
    os.write(3, b"x")
"""


@contextmanager
def writing(code: str, path: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A process with its log at `path`, and a pipe that it writes to as descriptor 3."""
    heard, told = os.pipe()
    program = PROGRAM + code.replace("os.write(3,", f"os.write({told},")
    with service_logs.open_log(path) as log:
        child = subprocess.Popen(
            [sys.executable, "-c", program],
            env=os.environ | {LOG_VARIABLE: str(path)},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=(told,),
        )
    os.close(told)
    try:
        yield child, heard
    finally:
        assert child.stdin is not None
        child.stdin.close()
        assert child.wait(60) == 0
        os.close(heard)


def say(child: subprocess.Popen[bytes], heard: int, name: str) -> None:
    assert child.stdin is not None
    child.stdin.write(name.encode() + b"\n")
    child.stdin.flush()
    assert os.read(heard, 1) == b"x"


def test_no_line_is_lost_when_a_log_is_rotated_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_logs, "MAX_LOG_BYTES", 500)
    monkeypatch.setattr(service_logs, "KEPT_LOGS", 50)
    path = tmp_path / "api.log"
    names = [f"line-{number:03d}-of-this-log" for number in range(60)]
    rotated = 0
    with writing(WRITER, path) as (child, heard):
        for name in names:
            say(child, heard, name)
            rotated += service_logs.rotate_log(path)
    files = list(tmp_path.iterdir())
    text = "".join(file.read_text() for file in files)
    assert [text.count(name) for name in names] == [1] * len(names)
    assert rotated > 5
    assert len(files) in (rotated, rotated + 1)
    assert all(file.stat().st_mode & 0o077 == 0 for file in files)


def test_a_process_that_has_pointed_standard_error_elsewhere_keeps_it_there(tmp_path: Path) -> None:
    path, elsewhere = tmp_path / "api.log", tmp_path / "elsewhere"
    code = f"""
os.dup2(os.open({str(elsewhere)!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
for line in sys.stdin:
    log.info(line.strip())
    os.write(3, b"x")
"""
    with writing(code, path) as (child, heard):
        say(child, heard, "one")
        path.rename(tmp_path / "api.log.1")
        say(child, heard, "two")
    assert not path.exists()
    assert elsewhere.read_text().count("\n") == 2


def test_only_so_many_logs_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_logs, "MAX_LOG_BYTES", 0)
    path = tmp_path / "api.log"
    for number in range(service_logs.KEPT_LOGS + 3):
        path.write_text(str(number))
        assert service_logs.rotate_log(path)
    assert sorted((file.name, file.read_text()) for file in tmp_path.iterdir()) == [
        (f"api.log.{place}", str(service_logs.KEPT_LOGS + 3 - place)) for place in range(1, service_logs.KEPT_LOGS + 1)
    ]
