from pathlib import Path

import pytest

from jobs.support.disk_space import DiskSpace, LowDisks, read_space, read_spaces

GB = 10**9


def space(free: int, *, device: int = 1, files: int = 10_000) -> DiskSpace:
    return DiskSpace("storage", device, free, GB, files, 1_000)


def test_a_file_system_keeps_the_reserve_of_the_settings_or_a_twentieth_of_its_size(tmp_path: Path) -> None:
    small, large = read_space(tmp_path, 1), read_space(tmp_path, 2**62)
    assert small.reserve_bytes == 1
    assert small.free_bytes <= 20 * large.reserve_bytes < 2**62
    assert small.device == large.device == tmp_path.stat().st_dev


def test_a_reserve_of_nothing_is_never_low(tmp_path: Path) -> None:
    assert read_space(tmp_path, 0).level == float("inf")


@pytest.mark.parametrize(
    ("found", "level", "words"),
    [
        (space(GB // 4), 0.25, "250 MB free, and the service keeps 1,000 MB for itself"),
        (space(2 * GB, files=100), 0.1, "100 files free, and the service keeps 1,000 for itself"),
        (space(0, files=100), 0, "0 MB free, and the service keeps 1,000 MB for itself"),
    ],
)
def test_the_level_is_that_of_what_is_shortest(found: DiskSpace, level: float, words: str) -> None:
    assert found.level == level
    assert found.shortage == words


def test_directories_of_one_file_system_are_read_once_and_those_that_are_gone_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    found = read_spaces({"storage": tmp_path, "state": tmp_path / "state", "gone": tmp_path / "gone"}, 1)
    assert [one.name for one in found] == ["storage"]


def test_a_disk_that_was_low_is_so_until_it_has_clearly_more_than_its_reserve() -> None:
    disks = LowDisks()
    levels = (2.0, 1.0, 0.9, 1.2, 1.4, 1.5, 1.2, 0.99)
    low = [bool(disks.update([space(int(level * GB))])) for level in levels]
    assert low == [False, False, True, True, True, False, False, True]


def test_the_worst_disk_comes_first() -> None:
    worse, better = space(GB // 10, device=2), space(GB // 2, device=1)
    assert LowDisks().update([better, space(5 * GB, device=3), worse]) == [worse, better]
