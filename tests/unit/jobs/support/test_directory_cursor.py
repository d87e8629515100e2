import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.support.directory_cursor import DirectoryCursor, walk_directories


@pytest.fixture
def cursor(tmp_path: Path) -> Iterator[DirectoryCursor]:
    (tmp_path / "top" / "a" / "b" / "c").mkdir(parents=True)
    with contextlib.closing(DirectoryCursor(tmp_path / "top")) as cursor:
        yield cursor


def enter_all(cursor: DirectoryCursor) -> None:
    for name in ("a", "b", "c"):
        cursor.enter(name)


def test_directories_are_left_in_the_order_in_which_they_were_entered(cursor: DirectoryCursor) -> None:
    enter_all(cursor)
    left = [cursor.leave() for _ in range(3)]
    assert (left, cursor.names, os.listdir(cursor.fd)) == ([1, 1, 1], [], ["a"])


def test_a_link_or_a_file_is_not_entered(cursor: DirectoryCursor, tmp_path: Path) -> None:
    (tmp_path / "top" / "link").symlink_to(tmp_path)
    (tmp_path / "top" / "file").touch()
    for name in ("link", "file", "missing"):
        with pytest.raises(OSError):  # each kind has its own errno
            cursor.enter(name)
    assert (cursor.names, sorted(os.listdir(cursor.fd))) == ([], ["a", "file", "link"])


def test_a_directory_that_was_moved_does_not_lead_elsewhere(cursor: DirectoryCursor, tmp_path: Path) -> None:
    enter_all(cursor)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "top" / "a" / "b" / "c").rename(tmp_path / "elsewhere" / "c")
    assert (cursor.leave(), cursor.names, os.listdir(cursor.fd)) == (1, ["a", "b"], [])


def test_what_is_gone_on_the_way_back_is_passed_over(cursor: DirectoryCursor, tmp_path: Path) -> None:
    enter_all(cursor)
    (tmp_path / "top" / "a" / "b").rename(tmp_path / "b")
    (tmp_path / "top" / "a" / "b").mkdir()
    assert (cursor.leave(), cursor.names) == (1, ["a", "b"]), "what it lies in is still the one that was entered"
    assert (cursor.leave(), cursor.names, os.listdir(cursor.fd)) == (1, ["a"], ["b"])
    cursor.enter("b")
    (tmp_path / "top" / "a").rename(tmp_path / "a")
    (tmp_path / "a" / "b").rename(tmp_path / "moved")
    assert (cursor.leave(), cursor.names, os.listdir(cursor.fd)) == (2, [], [])


def test_two_descriptors_are_open_at_any_depth(cursor: DirectoryCursor) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3000):
        os.mkdir("d", dir_fd=cursor.fd)
        cursor.enter("d")
    assert len(os.listdir("/proc/self/fd")) == before
    for _ in range(3000):
        assert cursor.leave() == 1
        os.rmdir("d", dir_fd=cursor.fd)
    assert os.listdir(cursor.fd) == ["a"]


def test_a_walk_has_every_directory_once_and_follows_no_link(tmp_path: Path) -> None:
    for path in ("top/a/b", "top/c", "elsewhere/d"):
        (tmp_path / path).mkdir(parents=True)
    (tmp_path / "top" / "a" / "file").touch()
    os.mkfifo(tmp_path / "top" / "a" / "pipe")
    (tmp_path / "top" / "link").symlink_to(tmp_path / "elsewhere")
    assert sorted(sorted(names) for _, names in walk_directories(tmp_path / "top")) == [
        [],
        [],
        ["a", "c", "link"],
        ["b", "file", "pipe"],
    ]
    with pytest.raises(OSError, match="link"):
        next(walk_directories(tmp_path / "top" / "link"))
