"""Copies of files take no more room than they may, and each process has a directory of its own."""

import os
import time
from pathlib import Path

import pytest

from api.bucket.cache_room import USED_SECONDS, CacheRoom

KIB = 1024


def a_copy(room: CacheRoom, name: str, *, used: float, size: int = 64 * KIB) -> Path:
    """One that was used so many seconds ago."""
    path = room.files / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    os.utime(path, (time.time() - used, 0))
    room.add(size)
    return path


def test_each_process_has_a_directory_and_the_next_one_takes_over_what_was_left(tmp_path: Path) -> None:
    first, second = (CacheRoom.claim(tmp_path, "s3://b/p", KIB * KIB) for _ in range(2))
    elsewhere = CacheRoom.claim(tmp_path, "s3://b/other", KIB * KIB)
    assert len({first.files, second.files, elsewhere.files}) == 3
    copy = a_copy(first, "kept", used=0)
    (first.files / ".x.fetched").write_bytes(b"half")
    first.close()
    third = CacheRoom.claim(tmp_path, "s3://b/p", KIB * KIB)
    assert third.files == first.files
    assert third.touch(copy)
    assert not (first.files / ".x.fetched").exists()
    for room in (second, elsewhere, third):
        room.close()


def test_copies_that_were_used_longest_ago_go_first(tmp_path: Path) -> None:
    room = CacheRoom.claim(tmp_path, "s3://b/p", 300 * KIB)
    old, older, used = (
        a_copy(room, name, used=seconds) for name, seconds in (("a/1", 1e4), ("a/2", 2e4), ("b/3", 1e3))
    )
    assert room.touch(older)
    a_copy(room, "b/4", used=1e3)
    a_copy(room, "b/5", used=0)
    assert not old.exists()
    assert older.exists()
    assert not used.exists() or not (room.files / "b/4").exists()
    room.close()


def test_what_is_in_use_stays_even_where_a_disk_is_low(tmp_path: Path) -> None:
    room = CacheRoom.claim(tmp_path, "s3://b/p", KIB * KIB)
    (room.unsent / "audit").write_bytes(b"not in the bucket yet")
    old, new = a_copy(room, "old", used=USED_SECONDS + 60), a_copy(room, "new", used=0)
    room.empty()
    assert not old.exists()
    assert new.exists()
    assert (room.unsent / "audit").exists()
    room.close()


def test_a_copy_that_is_not_there_is_not_in_use(tmp_path: Path) -> None:
    room = CacheRoom.claim(tmp_path, "s3://b/p", KIB * KIB)
    assert not room.touch(room.files / "nothing")
    room.close()
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(room._lock)
