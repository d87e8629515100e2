"""Dumps of a flight recorder as files that a user's program may have written."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from workers.runtime.collectives import DUMP_PREFIX
from workers.supervisor.hangs.diagnosis import find_hang
from workers.supervisor.hangs.flight_dumps import read_states


def entry(number: int, state: str, name: str = "nccl:all_reduce", **more: Any) -> dict[str, Any]:
    """As torch's `FlightRecorder::getCollectiveTrace` makes it."""
    frame = {"name": "average", "filename": "/home/me/train.py", "line": 31}
    return {
        "frames": [frame],
        "record_id": number,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": name,
        "time_created_ns": 1,
        "input_sizes": [[4]],
        "input_dtypes": ["Float"],
        "output_sizes": [[4]],
        "output_dtypes": ["Float"],
        "state": state,
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": state == "completed",
        "timeout_ms": 600000,
        "is_p2p": False,
        **more,
    }


def save(directory: Path, rank: int, entries: list[dict[str, Any]]) -> None:
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}}
    dump = {"version": "2.10", "entries": entries, "pg_config": groups, "pg_status": {}}
    (directory / f"{DUMP_PREFIX}{rank}").write_bytes(pickle.dumps(dump, protocol=2))


def test_the_dumps_of_a_time_out_name_the_rank_that_was_not_there(tmp_path: Path) -> None:
    for rank in (0, 2):
        save(tmp_path, rank, [entry(1, "completed"), entry(2, "started"), entry(3, "scheduled")])
    save(tmp_path, 1, [entry(1, "completed")])
    hang = find_hang(read_states(tmp_path), "/home/me")

    assert hang is not None
    assert hang.message == (
        "ranks 0 and 2 wait in all_reduce, collective number 2 (train.py, line 31, in average), which rank 1 has not "
        "called"
    )
    assert hang.rank == 1


def test_messages_between_two_ranks_are_no_collectives(tmp_path: Path) -> None:
    save(tmp_path, 0, [entry(0, "started", "nccl:recv 0<-1", is_p2p=True)])
    save(tmp_path, 1, [])
    assert find_hang(read_states(tmp_path)) is None


class Harmful:
    def __reduce__(self) -> Any:
        return os.mkdir, ("harm",)


BAD = {
    "code": pickle.dumps({"entries": [Harmful()]}),
    "a class": pickle.dumps({"entries": [Path("x")]}),
    "no pickle": b"not a pickle",
    "nothing": b"",
    "another shape": pickle.dumps(["entries"]),
    "entries of another shape": pickle.dumps({"entries": [{"state": "started"}]}),
    "ranks that are no list": pickle.dumps({"entries": [], "pg_config": {"0": {"ranks": "open('x')"}}}),
    "a huge claim": b"\x80\x05\x96" + (1 << 62).to_bytes(8, "little"),
}


@pytest.mark.parametrize("content", BAD.values(), ids=BAD.keys())
def test_what_is_no_dump_is_passed_over_and_runs_nothing(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save(tmp_path, 0, [entry(1, "started")])
    (tmp_path / f"{DUMP_PREFIX}1").write_bytes(content)
    assert [state.rank for state in read_states(tmp_path)] == [0]
    assert not (tmp_path / "harm").exists()


def test_links_pipes_and_other_names_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"")
    (tmp_path / f"{DUMP_PREFIX}0").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / f"{DUMP_PREFIX}1")
    (tmp_path / f"{DUMP_PREFIX}last").write_bytes(b"")
    assert read_states(tmp_path) == []
    assert read_states(tmp_path / "missing") == []
