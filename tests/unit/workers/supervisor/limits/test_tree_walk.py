"""What is counted of trees that programs make as they like."""

import os
from pathlib import Path

import pytest

from workers.supervisor.limits import tree_walk
from workers.supervisor.limits.tree_walk import MAX_DEPTH, TreeUsage, add_tree


def walk(*roots: Path, enough: int = 10**9) -> TreeUsage:
    usage = TreeUsage()
    for root in roots:
        add_tree(root, usage, lambda usage: usage.entries > enough)
    return usage


def write(path: Path, size: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(os.urandom(size))
    return path


def nest(root: Path, depth: int) -> None:
    """Directories in one another."""
    fd = os.open(root, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)


def test_every_entry_counts_and_every_block(tmp_path: Path) -> None:
    sizes = [0, 1, 5000, 100_000]
    files = [write(tmp_path / f"a/{number}/file", size) for number, size in enumerate(sizes)]
    (tmp_path / "link").symlink_to("/")
    os.mkfifo(tmp_path / "pipe")
    usage = walk(tmp_path)
    assert usage.entries == len(files) + 1 + len(files) + 2
    assert usage.bytes >= sum(path.lstat().st_blocks * 512 for path in files) >= sum(sizes)


def test_holes_do_not_count_nor_does_what_a_link_leads_to(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    write(outside / "large", 1_000_000)
    inside.mkdir()
    (inside / "directory").symlink_to(outside)
    (inside / "file").symlink_to(outside / "large")
    with (inside / "sparse").open("wb") as file:
        file.truncate(2**40)
    usage = walk(inside)
    assert usage.entries == 3
    assert usage.bytes < 100_000


def test_a_file_with_several_names_counts_once(tmp_path: Path) -> None:
    first = write(tmp_path / "0", 1_000_000)
    for number in range(1, 10):
        os.link(first, tmp_path / str(number))
    usage = walk(tmp_path)
    assert usage.entries == 10
    assert 1_000_000 <= usage.bytes < 2_000_000


def test_names_that_are_no_text_are_walked_like_others(tmp_path: Path) -> None:
    inner = os.fsencode(tmp_path) + b"/\xff\xfe\n"
    os.mkdir(inner)
    Path(os.fsdecode(inner + b"/\x80")).write_bytes(b"x" * 5000)
    assert walk(tmp_path).entries == 2


def test_what_lies_too_deep_is_said(tmp_path: Path) -> None:
    nest(tmp_path, MAX_DEPTH - 1)
    usage = walk(tmp_path)
    assert (usage.entries, usage.is_too_deep) == (MAX_DEPTH - 1, False)
    (tmp_path / "other").mkdir()
    nest(tmp_path / "other", MAX_DEPTH + 10)
    usage = walk(tmp_path)
    assert usage.is_too_deep
    assert usage.entries == 2 * MAX_DEPTH - 1


def test_a_walk_ends_when_it_is_enough_and_leaves_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree_walk, "STRIDE", 4)
    for number in range(100):
        write(tmp_path / f"{number % 5}/{number}", 0)
    before = os.listdir("/proc/self/fd")
    assert 10 < walk(tmp_path, enough=10).entries < 20
    assert walk(tmp_path).entries == 105
    assert os.listdir("/proc/self/fd") == before


def test_directories_that_are_not_there_or_cannot_be_read_have_nothing(tmp_path: Path) -> None:
    write(tmp_path / "closed/file", 10)
    (tmp_path / "closed").chmod(0)
    assert walk(tmp_path / "nowhere").entries == 0
    assert walk(tmp_path).entries == (2 if os.geteuid() == 0 else 1)
    (tmp_path / "closed").chmod(0o700)


def test_another_file_system_is_not_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = write(tmp_path / "mounted/file", 10).parent
    real = os.fstat

    def fstat(fd: int) -> os.stat_result:
        found = real(fd)
        fields = list(found)
        if found.st_ino == inner.stat().st_ino:
            fields[2] += 1
        return os.stat_result(fields)

    monkeypatch.setattr(os, "fstat", fstat)
    assert walk(tmp_path).entries == 1
