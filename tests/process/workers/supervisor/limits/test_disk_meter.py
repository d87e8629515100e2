"""When the files of an attempt are walked, and what is found: real files, whose free space a test tells."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from workers.runtime.limits import AttemptLimits
from workers.supervisor.limits import disk_meter
from workers.supervisor.limits.breach import LimitBreach
from workers.supervisor.limits.disk_meter import DiskMeter, FreeSpace
from workers.supervisor.limits.tree_walk import MAX_DEPTH

MIB = 1024 * 1024
FREE = FreeSpace(2**40, 10**9)

Meters = Callable[..., DiskMeter]


@pytest.fixture
def meter_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Meters:
    """Meters of `tmp_path` that measure when a test calls `measure`, and not by themselves. A walk is due at once."""
    monkeypatch.setattr(disk_meter, "WALK_SECONDS", 0.0)

    def make(disk: int = 2**40, files: int = 10**6, pids: tuple[int, ...] = ()) -> DiskMeter:
        limits = AttemptLimits(2**40, 1000, 2**30, disk, files, 2**20, 2**20)
        meter = DiskMeter(limits, [tmp_path, tmp_path / "nowhere"], lambda: pids)
        meter.close()
        return meter

    return make


def test_bytes_and_files_beyond_the_limits_are_a_breach(meter_of: Meters, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * MIB)
    for meter, limit in ((meter_of(disk=MIB), None), (meter_of(disk=MIB - 1), "disk"), (meter_of(files=0), "files")):
        meter.measure()
        assert (meter.breach and meter.breach.limit) == limit


def test_directories_in_one_another_without_an_end_are_a_breach(meter_of: Meters, tmp_path: Path) -> None:
    (tmp_path / "/".join("d" * (MAX_DEPTH + 1))).mkdir(parents=True)
    meter = meter_of()
    meter.measure()
    assert meter.breach is not None
    assert meter.breach.limit == "files"
    assert str(MAX_DEPTH) in meter.breach.advice


def test_a_removed_file_counts_while_a_process_has_it_open(meter_of: Meters, tmp_path: Path) -> None:
    path = tmp_path / "removed"
    with path.open("wb") as file:
        file.write(b"x" * MIB)
        file.flush()
        path.unlink()
        # A process of its own: pytest has removed files open as well, which hold what tests print.
        with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, pass_fds=[file.fileno()]) as holder:
            for pids, breach in (((), None), ((holder.pid,), LimitBreach("disk", MIB, MIB - 1))):
                meter = meter_of(disk=MIB - 1, pids=pids)
                meter.measure()
                assert meter.breach == breach


def test_no_walk_comes_before_it_is_due_unless_free_space_calls_for_it(
    meter_of: Meters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = [FREE]
    monkeypatch.setattr(disk_meter, "read_free_space", lambda directories: free[-1])
    meters = [meter_of(disk=10 * MIB, files=10), meter_of(disk=10 * MIB, files=10)]
    monkeypatch.setattr(disk_meter, "WALK_SECONDS", 3600.0)
    for meter in meters:
        meter.measure()
    (tmp_path / "large").write_bytes(b"x" * 11 * MIB)
    free.append(FreeSpace(FREE.bytes - 4 * MIB, 10**9 - 4))
    for meter in meters:
        meter.measure()
        assert meter.breach is None
    for meter, less in zip(
        meters, (FreeSpace(FREE.bytes - 6 * MIB, 10**9), FreeSpace(FREE.bytes, 10**9 - 6)), strict=True
    ):
        free.append(less)
        meter.measure()
        assert meter.breach is not None


@pytest.mark.slow
def test_walks_of_many_files_leave_the_core_to_others(
    meter_of: Meters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3000):
        (tmp_path / str(number)).touch()
    meter = meter_of()
    walks: list[float] = []
    real = disk_meter.measure_directories

    def measure(*args: object) -> object:
        began = time.monotonic()
        found = real(*args)  # type: ignore[arg-type]
        walks.append(time.monotonic() - began)
        return found

    monkeypatch.setattr(disk_meter, "measure_directories", measure)
    begin = time.monotonic()
    while len(walks) < 4:
        meter.measure()
    assert time.monotonic() - begin > 10 * sum(walks[:3])


def test_what_was_written_last_is_found_when_the_meter_is_closed(
    meter_of: Meters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = [FREE]
    monkeypatch.setattr(disk_meter, "read_free_space", lambda directories: free[-1])
    monkeypatch.setattr(disk_meter, "WALK_SECONDS", 3600.0)
    meter = meter_of(disk=MIB)
    (tmp_path / "large").write_bytes(b"x" * 2 * MIB)
    meter.close()
    assert meter.breach is None  # next to nothing can have been written since the last look
    free.append(FreeSpace(FREE.bytes - 2 * MIB, FREE.files))
    meter.close()
    assert meter.breach is not None


def test_a_meter_measures_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_meter, "WALK_SECONDS", 0.0)
    (tmp_path / "large").write_bytes(b"x" * MIB)
    meter = DiskMeter(AttemptLimits(2**40, 1000, 2**30, 1, 1000, 2**20, 2**20), [tmp_path], lambda: ())
    deadline = time.monotonic() + 60
    while meter.check(0.0) is None:
        assert time.monotonic() < deadline
    meter.close()
