"""What torch's own flight recorder tells of two ranks of gloo, one of which does not call what the other waits in."""

import subprocess
from pathlib import Path

import pytest

from jobs.protocol.packets import PacketDecoder
from jobs.protocol.records import CallsMade
from tests.support.samples.failing_scripts import run_script
from workers.runtime.collectives import DUMP_PREFIX
from workers.supervisor.hangs.diagnosis import RankState, find_hang
from workers.supervisor.hangs.flight_dumps import read_dumps
from workers.supervisor.limits.record_meter import read_own_memory

ONE_IS_MISSING = f"""
import os, sys, time, torch, torch.distributed as dist
from pathlib import Path
from jobs.protocol.packets import encode_packet
from workers.runtime.collectives import read_calls, report_calls
rank = 0 if (child := os.fork()) else 1
dist.init_process_group("gloo", store=dist.FileStore("store", 2), rank=rank, world_size=2)
dist.all_reduce(torch.ones(4))
# A thread of gloo notes that a call is over, a moment after the call has returned.
deadline = time.monotonic() + 60
while read_calls()[0].pending is not None:
    assert time.monotonic() < deadline
    time.sleep(0.01)
if rank == 0:
    work = dist.all_reduce(torch.ones(6), async_op=True)
report_calls(lambda record: Path(f"calls-{{rank}}").write_bytes(encode_packet([record])))
recorded = torch._C._distributed_c10d._dump_fr_trace(True, True, False)
Path(f"{DUMP_PREFIX}{{rank}}").write_bytes(recorded)
if rank == 1:
    while not Path("done").exists():
        time.sleep(0.01)
    os._exit(0)
Path("done").touch()
os.waitpid(child, 0)
"""
WAITS_FOR_ONE = "rank 0 waits in all_reduce, collective number "


@pytest.fixture(scope="module")
def left_behind(runner: "subprocess.Popen[str]", tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with what both ranks have written."""
    folder = tmp_path_factory.mktemp("ranks")
    run_script(runner, folder, ONE_IS_MISSING)
    return folder


def test_the_calls_that_ranks_report_name_the_missing_one(left_behind: Path) -> None:
    states = []
    for rank in range(2):
        ((record,),) = PacketDecoder().feed((left_behind / f"calls-{rank}").read_bytes())
        assert isinstance(record, CallsMade)
        assert [group.ranks for group in record.groups] == [(0, 1)]
        states.append(RankState(rank, record.groups))
    hang = find_hang(states)
    assert hang is not None
    assert hang.message.startswith(WAITS_FOR_ONE)
    assert hang.message.endswith("which rank 1 has not called")


def test_dumps_of_the_recorder_name_it_too_and_the_line(left_behind: Path) -> None:
    hang = find_hang(read_dumps(left_behind), str(left_behind))
    assert hang is not None
    assert hang.message.startswith(WAITS_FOR_ONE)
    assert "(train.py, line 15, in <module>), which rank 1 has not called" in hang.message


BOMBS = {
    "empty dicts": b"\x80\x02(" + b"}" * (8 << 20) + b"l.",
    "texts in texts": b"\x80\x02]q\x00" + b"]q\x00(h\x00h\x00h\x00h\x00e" * (1 << 20) + b".",
    "a claim of much": b"\x80\x05\x96" + (1 << 40).to_bytes(8, "little"),
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_a_dump_that_becomes_gigabytes_costs_its_reader_nothing(bomb: bytes, tmp_path: Path) -> None:
    for rank in range(3):
        (tmp_path / f"{DUMP_PREFIX}{rank}").write_bytes(bomb)
    before = read_own_memory()
    assert read_dumps(tmp_path) == []
    assert read_own_memory() - before < 32 << 20
