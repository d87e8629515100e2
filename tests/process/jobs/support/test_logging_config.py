"""The service's log, in a process of its own: configuring it is for the whole process."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import logging, sys, threading
import structlog
from jobs.support import logging_config as service_log
service_log.configure_logging("INFO")
log = structlog.get_logger("api.of-ours")
"""


def said(code: str, stderr: Any = subprocess.PIPE) -> tuple[int, list[dict[str, Any]]]:
    done = subprocess.run([sys.executable, "-c", PROGRAM + code], stderr=stderr, timeout=60)
    return done.returncode, [json.loads(line) for line in (done.stderr or b"").splitlines()]


def test_our_events_and_those_of_libraries_are_lines_of_one_form() -> None:
    _, (ours, theirs) = said(
        'log.info("begun", port=1, path=b"\\xff")\nlogging.getLogger("kombu").warning("lost %s", 3)\n'
    )
    assert ours.items() >= {"event": "begun", "level": "info", "logger": "api.of-ours", "port": 1}.items()
    assert theirs.items() >= {"event": "lost 3", "level": "warning", "logger": "kombu"}.items()
    assert ours["at"].endswith("Z")
    assert theirs["at"].endswith("Z")


def test_what_is_below_the_level_is_left_out() -> None:
    _, lines = said('log.debug("no")\nlogging.getLogger("x").debug("no")\nlog.warning("yes")\n')
    assert [line["event"] for line in lines] == ["yes"]


def test_an_exception_comes_with_its_traceback() -> None:
    _, (line,) = said('try:\n    1 / 0\nexcept Exception:\n    log.exception("failed")\n')
    assert line["level"] == "error"
    assert line["exception"].endswith("ZeroDivisionError: division by zero")


def test_lines_of_threads_stay_whole() -> None:
    code = """
def work():
    for _ in range(200):
        log.info("x" * 500)
threads = [threading.Thread(target=work) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""
    assert len(said(code)[1]) == 800


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_fails_nobody_who_logs() -> None:
    with open("/dev/full", "wb") as full:
        assert said('log.info("lost")\nlog.info("lost")\nimport os\nos._exit(7)\n', full)[0] == 7


def test_lines_of_ours_and_of_libraries_pass_through_what_cleans_them() -> None:
    _, lines = said(
        'log.info("before secret-value")\n'
        'service_log.clean_log_lines(lambda line: line.replace(b"secret-value", b"[secret x]"))\n'
        'log.info("after secret-value", path="/secret-value")\n'
        'logging.getLogger("kombu").warning("lost %s", "secret-value")\n'
        'try:\n    raise ValueError("secret-value")\nexcept ValueError:\n    log.exception("failed")\n'
    )
    assert [line["event"] for line in lines] == ["before secret-value", "after [secret x]", "lost [secret x]", "failed"]
    assert lines[1]["path"] == "/[secret x]"
    assert "secret-value" not in lines[3]["exception"]
