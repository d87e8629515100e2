"""Rows 22, 23 and 24: output that is much, odd, or held open."""

import hashlib
import time

import psutil
import pytest

from jobs.files import paths
from jobs.files.log_file import CONTINUED, MAX_LINE_BYTES, UNENDED
from jobs.files.log_page import LogRow, clean_for_display, read_page
from jobs.model.state import JobState
from tests.faults.scene.checker import Footprint
from tests.faults.scene.site import Site
from tests.integration.workers.service import eventually

pytestmark = [pytest.mark.integration, pytest.mark.faults]

MILLION = 1_000_000
PRINTS_A_MILLION_LINES = f"""
import sys
for number in range({MILLION}):
    sys.stdout.write(f"line {{number}}\\n")
"""

#: What `write` gets; the pieces arrive one by one.
ODD = [
    b"x" * (10 << 20),  # 10 MB, no newline
    b"\n",
    b"\r10%\r50%\r100%\n",
    b"before\0after\n",
    b"\x1b[31mred\x1b[0m\x1b]0;title\x07\n",
    "half of \N{SNOWMAN}".encode()[:-1],
    "half of \N{SNOWMAN}".encode()[-1:] + b"\n",
    b"\xff\xfe not UTF-8\n",
    b"the last line has no newline",
]
PRINTS_ODD_THINGS = f"""
import os, time
for piece in {[piece if len(piece) < 100 else None for piece in ODD]!r}:
    data = memoryview(b"x" * (10 << 20) if piece is None else piece)
    while data:
        data = data[os.write(1, data):]
    time.sleep(0.02)
"""

LEAVES_A_GRANDCHILD = """
import subprocess
subprocess.Popen(["sh", "-c", "sleep 300 & sleep 300"])
print("done", flush=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_row_22_a_million_lines_are_whole_on_disk_and_take_no_memory(site: Site) -> None:
    before = Footprint.of(site.api.pid, site.telemetry.client())
    job = site.post_script(PRINTS_A_MILLION_LINES)
    eventually(lambda: site.job(job).attempt, "it is started")
    supervisor = eventually(
        lambda: site.marks(site.attempt(job)).session.exists() and site.supervisor(site.attempt(job)), "its supervisor"
    )
    process = psutil.Process(supervisor)
    first = most = process.memory_info().rss
    deadline = time.monotonic() + 240
    while site.job(job).finished is None:
        assert time.monotonic() < deadline
        try:
            most = max(most, process.memory_info().rss)
        except psutil.NoSuchProcess:
            break
        time.sleep(0.05)
    assert site.finished(job, 60).state is JobState.SUCCEEDED
    assert most - first < 100e6
    lines = [line for line in site.lines(job) if line.stream == "stdout"]
    assert len(lines) == MILLION
    assert all(line.text == b"line %d" % number for number, line in enumerate(lines))
    eventually(lambda: not Footprint.of(site.api.pid, site.telemetry.client()).grown(before), "all came back")


def test_row_23_odd_output_is_kept_byte_by_byte(site: Site) -> None:
    job = site.post_script(PRINTS_ODD_THINGS)
    assert site.finished(job, 60).state is JobState.SUCCEEDED
    lines = [line for line in site.lines(job) if line.stream == "stdout"]
    assert all(len(line.text) <= MAX_LINE_BYTES for line in lines)
    assert _joined(lines) == _digest(b"".join(ODD))
    assert sum(bool(line.flags & CONTINUED) for line in lines) >= (10 << 20) // MAX_LINE_BYTES - 1
    assert lines[-1].flags & UNENDED
    shown = "".join(clean_for_display(line.text) for line in lines[-8:])
    assert not {"\x1b", "\0", "\x07"} & set(shown)
    page = site.caller.call("GET", f"/v1/jobs/{job}/logs", params={"tail": 20})
    assert page.status_code == 200, page.text
    assert "half of \N{SNOWMAN}" in page.text


def _joined(lines: list[LogRow]) -> str:
    """The digest of a source's text, put together again as `jobs.files.log_file` says."""
    return _digest(b"".join(line.text if line.flags else line.text + b"\n" for line in lines))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_row_24_a_grandchild_that_keeps_stdout_open_does_not_keep_the_job(site: Site) -> None:
    job = site.post_script(LEAVES_A_GRANDCHILD)
    began = time.monotonic()
    assert site.finished(job).state is JobState.SUCCEEDED
    assert time.monotonic() - began < 30  # not the five minutes of the grandchild
    assert "done" in site.text(job)
    assert read_page(paths.log_file(site.files(job), 0)).sealed
