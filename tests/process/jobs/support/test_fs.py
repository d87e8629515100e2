"""Directories as a program may leave them."""

import os
import socket
import tempfile
from pathlib import Path

import pytest

from jobs.support import fs
from jobs.support.directory_cursor import DirectoryCursor


def a_deep_directory(top: Path, levels: int) -> None:
    """Deeper than a path can say, so it is made step by step."""
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=here)
        above, here = here, os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(above)
    os.close(here)


@pytest.mark.parametrize("levels", [3, 1500, 20_000])
def test_a_directory_of_any_depth_is_removed(tmp_path: Path, levels: int) -> None:
    a_deep_directory(tmp_path / "top", levels)
    fs.remove_tree(tmp_path / "top")
    assert list(tmp_path.iterdir()) == []


def test_what_a_link_names_stays(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "top").mkdir()
    (tmp_path / "top" / "link").symlink_to(tmp_path / "kept")
    fs.remove_tree(tmp_path / "top")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_directories_that_are_closed_to_their_owner_are_removed() -> None:
    place = Path(tempfile.mkdtemp())
    place.chmod(0o777)
    try:
        assert os.waitstatus_to_exitcode(os.waitpid(_fork_as_nobody(place), 0)[1]) == 0
        assert [path.name for path in place.iterdir()] == ["kept"]
        assert (place / "kept").stat().st_mode & 0o777 == 0o500
    finally:
        fs.remove_tree(place)


def _fork_as_nobody(place: Path) -> int:
    """Close directories and remove them, as somebody to whom they can be closed, which root is not."""
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setresuid(65_534, 65_534, 65_534)
            (place / "kept").mkdir()
            (place / "top" / "inner").mkdir(parents=True)
            (place / "top" / "inner" / "file").touch()
            (place / "top" / "link").symlink_to(place / "kept")
            for path in ("top/inner", "top", "kept"):
                (place / path).chmod(0o500)
            fs.remove_tree(place / "top")
            os._exit(0)
        finally:
            os._exit(1)
    return child


@pytest.mark.skipif(os.geteuid() != 0, reason="others remove only what is of their own account")
def test_a_link_that_takes_the_place_of_a_directory_leads_root_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kept").mkdir(mode=0o500)
    (tmp_path / "kept" / "file").touch()
    (tmp_path / "top").mkdir()
    entered = DirectoryCursor.enter

    def swap(cursor: DirectoryCursor, name: str) -> None:
        (tmp_path / "top").rmdir()
        (tmp_path / "top").symlink_to(tmp_path / "kept")
        entered(cursor, name)

    monkeypatch.setattr(DirectoryCursor, "enter", swap)
    with pytest.raises(OSError, match="top cannot be removed"):
        fs.remove_tree(tmp_path / "top")
    monkeypatch.undo()
    fs.remove_tree(tmp_path / "top")
    assert os.listdir(tmp_path / "kept") == ["file"]
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o500


def test_a_directory_that_is_gone_is_no_error(tmp_path: Path) -> None:
    fs.remove_tree(tmp_path / "gone")
    fs.remove_tree(tmp_path / "gone" / "too")


def test_a_directory_with_anything_in_it_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top = tmp_path / "top"
    (top / os.fsdecode(b"\xff\n")).mkdir(parents=True)
    (top / os.fsdecode(b"\xff\n") / ("n" * 255)).touch()
    os.mkfifo(top / "pipe")
    (top / "broken").symlink_to("nowhere")
    monkeypatch.chdir(top)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        fs.remove_tree(top)
    assert list(tmp_path.iterdir()) == []


def test_what_can_be_removed_goes_although_something_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / "top" / name).mkdir(parents=True)
    removed = os.rmdir

    def refuse(name: str, **how: int) -> None:
        if name == "b":
            raise OSError(16, "Device or resource busy")
        removed(name, **how)

    monkeypatch.setattr(os, "rmdir", refuse)
    with pytest.raises(OSError, match="busy"):
        fs.remove_tree(tmp_path / "top")
    assert os.listdir(tmp_path / "top") == ["b"]


def test_what_cannot_be_removed_is_named() -> None:
    with pytest.raises(OSError, match="/proc/self cannot be removed"):
        fs.remove_tree(Path("/proc/self"))


def test_space_that_is_allocated_takes_room_before_anything_is_written(tmp_path: Path) -> None:
    file = tmp_path / "file"
    fs.allocate_file(file, 1 << 20)
    assert (file.stat().st_size, file.stat().st_blocks * 512) == (1 << 20, 1 << 20)
    log = tmp_path / "log"
    log.write_bytes(b"line\n")
    fs.allocate_ahead(log, 1 << 20)
    assert log.read_bytes() == b"line\n"
    assert log.stat().st_blocks * 512 >= 1 << 20
    with log.open("ab") as appended:
        appended.write(b"x" * (1 << 19))
    assert log.stat().st_blocks * 512 < 3 << 19  # nothing was allocated for it beside what was


def test_a_file_that_is_overwritten_uses_the_space_that_it_has(tmp_path: Path) -> None:
    file = tmp_path / "file"
    fs.overwrite_file(file, b"a longer body")
    inode = file.stat().st_ino
    fs.overwrite_file(file, b"short")
    assert (file.read_bytes(), file.stat().st_ino) == (b"short", inode)
