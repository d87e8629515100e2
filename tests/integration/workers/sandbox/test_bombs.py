"""Bombs side by side with a neighbour's training, in each mode of the box: each hurts only its owner."""

import re
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from jobs.model.state import JobState, StateReason
from shardyard.service.backup.file_list import FileListWriter
from shardyard.service.backup.left_out import LeftOutCounter
from shardyard.service.backup.manifest import SHARED, STORAGE
from shardyard.service.backup.selection import StorageSelection
from shardyard.service.backup.storage_copy import StorageCopy
from tests.integration.workers import reachable
from tests.integration.workers.box_modes import LIMITS, QUICK_IN_FULL_BOX, BoxMode
from tests.integration.workers.places import a_place
from tests.integration.workers.service import Service, eventually

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(bool(reachable.why_not()), reason=reachable.why_not()),
    QUICK_IN_FULL_BOX,
]

MIB = 1 << 20
SCRIPTS = Path(__file__).parents[1] / "scripts"
#: How much more a supervisor takes than one whose job is harmless, whatever its ranks do.
SUPERVISOR_BYTES = 64 * MIB
#: Each ends by itself somewhat above its limit, so that a test can fail without harm.
BOMBS = {
    "memory": """
        kept = []
        for _ in range(1536):
            kept.append(os.urandom(4096) * 256)
    """,
    "processes": """
        for _ in range(300):
            with contextlib.suppress(BlockingIOError):
                if os.fork() == 0:
                    signal.pause()
    """,
    "log": """
        for _ in range(200):
            print("a flood " * 8192)
    """,
    "disk": """
        with open("bomb", "wb") as file:
            for _ in range(192):
                file.write(os.urandom(1 << 20))
    """,
}
#: Trains until it is told to end.
NEIGHBOUR = """
import os, torch
output = os.environ["SHARDYARD_OUTPUT_DIR"]
model = torch.nn.Linear(100, 100)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while not os.path.exists(f"{output}/end"):
    optimizer.zero_grad()
    model(torch.ones(10, 100)).sum().backward()
    optimizer.step()
    open(f"{output}/steps", "w").close()
"""
FORGED = ("Split", "Split of eight devices", "Split of very many devices")


#: A bomb may be over before anybody has looked, so it waits to be lit.
FUSE = """
import contextlib, os, signal, time
while not os.path.exists(os.environ["SHARDYARD_OUTPUT_DIR"] + "/lit"):
    time.sleep(0.01)
"""


def load_bomb(service: Service, source: str) -> str:
    lines = "\n".join(line[8:] for line in source.splitlines())
    return service.run_script({"train.py": f"{FUSE}{lines}\ntime.sleep(60)\n"})


def light_bomb(service: Service, job: str) -> None:
    output = service.files(job) / "artifacts"
    eventually(output.exists, f"the start of {job}")
    (output / "lit").touch()


def most_memory(service: Service, job: str) -> int:
    """What the supervisor of a job has taken at most until now, in bytes, with all that supervisors share; 0: it has
    ended."""
    with suppress(OSError, ValueError, IndexError, AttributeError):
        status = Path(f"/proc/{service.supervisor(service.attempt(job))}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        return int(found[1]) * 1024 if found else 0
    return 0


def test_bombs_end_for_what_they_are_and_their_neighbour_goes_on(boxed: Service) -> None:
    neighbour = boxed.run_script({"train.py": NEIGHBOUR})
    output = boxed.files(neighbour) / "artifacts"
    eventually((output / "steps").exists, "the neighbour trains")
    jobs = {name: load_bomb(boxed, source) for name, source in BOMBS.items()}
    forge = FUSE + (SCRIPTS / "forge.txt").read_text()
    forgers = [boxed.run_script({"train.py": forge}, kind, "12", "2", "0") for kind in FORGED]
    taken = dict.fromkeys((*jobs.values(), *forgers), 0)
    for job in taken:
        taken[job] = eventually(partial(most_memory, boxed, job), f"the supervisor of {job}")
        light_bomb(boxed, job)

    def have_ended() -> bool:
        for job in taken:
            taken[job] = max(taken[job], most_memory(boxed, job))
        return all(boxed.job(job).state is JobState.FAILED for job in taken)

    eventually(have_ended, "the end of all bombs", 120)
    for limit, job in jobs.items():
        record = boxed.ended(job)
        assert (record.reason, record.attempt) == (StateReason.RESOURCE_LIMIT, 1), record
        assert record.error is not None
        assert record.error["limit"] == limit
        assert record.error["used"] >= record.error["allowed"]
    for job in forgers:
        record = boxed.ended(job)
        assert (record.reason, record.attempt) == (StateReason.CODE_ERROR, 1), record
        assert "the rank's channel is corrupt" in record.message
    assert min(taken.values()) > 0
    assert max(taken.values()) - most_memory(boxed, neighbour) < SUPERVISOR_BYTES
    (output / "end").touch()
    record = boxed.ended(neighbour)
    assert (record.state, record.attempt) == (JobState.SUCCEEDED, 1), record.error


def test_what_a_log_keeps_of_a_flood_is_bounded(boxed: Service) -> None:
    job = load_bomb(boxed, BOMBS["log"])
    light_bomb(boxed, job)
    assert boxed.ended(job).reason is StateReason.RESOURCE_LIMIT
    assert len(boxed.text(job)) <= LIMITS["job_log_bytes"]


#: Leaves what used to end back-ups.
HOSTILE = r"""
import os, socket
os.chdir(os.environ["SHARDYARD_OUTPUT_DIR"])
with open("model.pt", "wb") as file:
    file.write(b"weights")
with open("sparse", "wb") as file:
    file.truncate(10 << 30)
os.mkfifo("pipe")
os.symlink("/etc/passwd", "link")
socket.socket(socket.AF_UNIX).bind("socket")
open(b"\xff\xfe two\nlines \x1b[2J", "wb").close()
with open("tool", "wb") as file:
    file.write(b"#!/bin/sh")
os.chmod("tool", 0o4755)
for _ in range(1000):
    os.mkdir("d")
    os.chdir("d")
open("deep", "w").close()
"""


def test_nothing_that_a_job_leaves_stops_a_back_up(mode: BoxMode, boxed: Service) -> None:
    job = boxed.run_script({"train.py": HOSTILE})
    assert boxed.ended(job).reason in (
        StateReason.COMPLETED,
        StateReason.RESOURCE_LIMIT,
    )  # it is too deep to be counted
    with a_place() as copy:  # what is deep there is removed, too
        for name in (STORAGE, SHARED):
            (copy / name).mkdir()
        left_out = LeftOutCounter()
        with FileListWriter(copy / "list") as steps:
            selection = StorageSelection(boxed.settings.storage, {f"default/{job}": 1})
            StorageCopy(selection, copy, steps, left_out, lambda: False).run()
        assert sum(found.entries for found in left_out.list_causes()) == 3  # a link, a pipe and a socket
        kept = copy / STORAGE / boxed.files(job).relative_to(boxed.settings.storage) / "artifacts"
        assert (kept / "model.pt").read_bytes() == b"weights"
        assert (kept / "sparse").stat().st_size == 10 << 30
        assert (kept / "sparse").stat().st_blocks * 512 < MIB
    if mode != "no root":  # where the job has the service's account all along
        tool = boxed.files(job) / "artifacts" / "tool"
        assert not tool.stat().st_mode & 0o6000, "nobody gets the rights of the service's account by it"
