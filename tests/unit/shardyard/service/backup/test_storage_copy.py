"""Whatever a program leaves among its artifacts: a back-up is made, and all that can be kept comes back as it was."""

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jobs.support import fs
from jobs.support.directory_cursor import DirectoryCursor
from shardyard.service.backup import storage_copy
from shardyard.service.backup.left_out import MAX_NAMES, describe_left_out
from shardyard.service.backup.manifest import SHARED, STORAGE
from tests.support.samples.backed_up_trees import BackedUpTree, make_below


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[BackedUpTree]:
    tree = BackedUpTree(tmp_path / "tree")
    (tree.artifacts / "model.pt").write_bytes(b"weights")
    yield tree
    fs.remove_tree(tmp_path / "tree")  # pytest removes by recursion, which some of these are too deep for


def make_socket(directory: Path) -> None:
    here = os.getcwd()
    os.chdir(directory)  # the path of a socket may have 108 bytes
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("one")
    finally:
        os.chdir(here)


@pytest.mark.parametrize(("name", "levels"), [("d", 1000), ("d", 3000), ("n" * 255, 15), ("n" * 255, 100)])
def test_directories_may_be_deeper_than_a_path_can_say(tree: BackedUpTree, name: str, levels: int) -> None:
    make_below(tree.artifacts, name, levels, b"deep")
    assert tree.round_trip() == {}


@pytest.mark.parametrize("length", range(4080, 4100))
def test_paths_of_any_length_around_the_longest_are_kept(tree: BackedUpTree, length: int) -> None:
    inner = length - len("jobs/t/j/1/artifacts/") - len("/file")
    levels, rest = divmod(inner, 256)
    make_below(tree.artifacts, "n" * 255, levels, b"long")
    make_below(tree.artifacts, "r" * (rest or 1), 1, b"rest")
    assert tree.round_trip() == {}


@pytest.mark.parametrize(
    "name",
    [
        *(b"\xff\xfe\x80", b"two\nlines", b"\x1b[2J", b"-rf", b" ", b"...", b"%2e%2e", b"n" * 255, b"a\\b", b'"'),
        *(
            "\u202egpj.exe".encode(),
            "größe".encode(),
            "\U0001f4a9".encode(),
            b"manifest.json",
            b".restoring",
            b"drafts",
        ),
    ],
)
def test_any_name_is_kept(tree: BackedUpTree, name: bytes) -> None:
    (tree.artifacts / os.fsdecode(name)).write_bytes(b"file")
    directory = tree.artifacts / "directory" / os.fsdecode(name)
    directory.mkdir(parents=True)
    (directory / os.fsdecode(name)).write_bytes(b"below")
    assert tree.round_trip() == {}


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (lambda directory: os.mkfifo(directory / "one"), "pipe"),
        (make_socket, "socket"),
        (lambda directory: (directory / "one").symlink_to("/etc/passwd"), "link"),
        (lambda directory: (directory / "one").symlink_to("/"), "link"),
        (lambda directory: (directory / "one").symlink_to("one"), "link"),
        pytest.param(
            lambda directory: os.mknod(directory / "one", 0o600 | 0o020000, os.makedev(1, 5)),  # endless zeros
            "device",
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices"),
        ),
    ],
)
def test_what_has_no_contents_is_left_out_and_named(
    tree: BackedUpTree, make: Callable[[Path], None], cause: str
) -> None:
    make(tree.artifacts)
    left_out = tree.round_trip()
    assert {name: found.first for name, found in left_out.items()} == {cause: ["jobs/t/j/1/artifacts/one"]}
    assert not (tree.restored / STORAGE / "jobs/t/j/1/artifacts/one").exists()


def test_a_sparse_file_of_ten_gigabytes_costs_kilobytes_both_ways(tree: BackedUpTree) -> None:
    with (tree.artifacts / "sparse").open("wb") as file:
        file.write(b"begin")
        file.seek(7 << 30)
        file.write(b"middle")
        file.truncate(10 << 30)
    assert tree.round_trip() == {}
    for top in (tree.back_up, tree.restored):
        found = (top / STORAGE / "jobs/t/j/1/artifacts/sparse").stat()
        assert (found.st_size, found.st_blocks * 512 < 100_000) == (10 << 30, True)
    with (tree.restored / STORAGE / "jobs/t/j/1/artifacts/sparse").open("rb") as file:
        file.seek(7 << 30)
        assert file.read(6) == b"middle"


def test_a_file_with_several_names_is_kept_once_and_has_them_again(tree: BackedUpTree) -> None:
    first = tree.artifacts / "model.pt"
    (tree.attempt / "files" / "deep").mkdir(parents=True)
    for name in ("artifacts/again", "files/deep/too"):
        (tree.attempt / name).hardlink_to(first)
    outside = tree.storage.parent / "outside"
    outside.write_text("of others")
    (tree.artifacts / "theirs").hardlink_to(outside)
    stored, left_out = tree.copy()
    assert (stored.files, stored.bytes, left_out) == (4, len("weights") + len("of others"), {})
    assert len(os.listdir(tree.back_up / SHARED)) == 2
    tree.restore()
    made = [tree.restored / STORAGE / "jobs/t/j/1" / name for name in ("artifacts/model.pt", "files/deep/too")]
    assert made[0].samefile(made[1])
    assert (made[0].stat().st_nlink, made[0].read_bytes()) == (3, b"weights")
    assert (tree.restored / STORAGE / "jobs/t/j/1/artifacts/theirs").stat().st_nlink == 1


def test_a_file_that_changed_between_two_of_its_names_is_kept_twice(tree: BackedUpTree) -> None:
    (tree.artifacts / "a").mkdir()
    (tree.artifacts / "a" / "again").hardlink_to(tree.artifacts / "model.pt")
    stored, _ = tree.copy(lambda: bool(_touch(tree.artifacts / "model.pt")))
    assert (stored.files, len(os.listdir(tree.back_up / SHARED))) == (2, 2)


def _touch(path: Path) -> int:
    """Change a file now and then: at every question of the time."""
    os.utime(path, ns=(path.stat().st_mtime_ns + 1,) * 2)
    return 0


def test_modes_and_times_come_back_and_no_directory_is_closed_to_its_owner(tree: BackedUpTree) -> None:
    closed = tree.artifacts / "closed"
    closed.mkdir()
    (closed / "file").write_text("in there")
    (closed / "file").chmod(0o4755)
    os.utime(closed / "file", (1, 1_000_000_000))
    closed.chmod(0o050)
    tree.attempt.chmod(0o711)
    _, left_out = tree.copy()
    if os.geteuid() != 0:
        assert set(left_out) == {"unreadable"}
        return
    assert [path.stat().st_mode & 0o777 for path in tree.back_up.rglob("file")] == [0o600]
    tree.restore()
    attempt = tree.restored / STORAGE / "jobs/t/j/1"
    file = attempt / "artifacts/closed/file"
    assert [path.stat().st_mode & 0o7777 for path in (attempt, file.parent, file)] == [0o711, 0o750, 0o755]
    assert file.stat().st_mtime == 1_000_000_000


# -- what happens meanwhile ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("instead", "cause"),
    [
        (lambda path: None, "vanished"),
        (lambda path: path.symlink_to("/etc/passwd"), "changed"),
        (os.mkfifo, "changed"),
        (lambda path: path.mkdir(), "changed"),
        (lambda path: make_socket(path.parent), "changed"),
    ],
    ids=["nothing", "link", "pipe", "directory", "socket"],
)
def test_a_file_that_becomes_something_else_before_it_is_opened_is_left_out(
    tree: BackedUpTree, monkeypatch: pytest.MonkeyPatch, instead: Callable[[Path], None], cause: str
) -> None:
    victim = tree.artifacts / "one"
    victim.write_text("a file")
    looked_at = os.stat

    def swap(name: str, **how: object) -> os.stat_result:
        found = looked_at(name, **how)  # type: ignore[arg-type]
        if name == "one":
            victim.unlink()
            instead(victim)
        return found

    monkeypatch.setattr(os, "stat", swap)
    _, left_out = tree.copy()
    assert {name: found.first for name, found in left_out.items()} == {cause: ["jobs/t/j/1/artifacts/one"]}
    monkeypatch.undo()
    tree.restore()
    assert os.listdir(tree.restored / STORAGE / "jobs/t/j/1/artifacts") == ["model.pt"]


def test_directories_that_are_moved_away_while_they_are_read_end_nothing(
    tree: BackedUpTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_below(tree.artifacts / "..", "files", 1, b"kept")
    below = tree.artifacts / "a" / "b" / "c"
    below.mkdir(parents=True)
    (below / "inner").write_text("inner")
    (tree.artifacts / "a" / "z").mkdir()
    enter = DirectoryCursor.enter

    def move(cursor: DirectoryCursor, name: str) -> None:
        enter(cursor, name)
        if name == "c" and (tree.artifacts / "a").exists():
            (tree.artifacts / "a" / "b").rename(tree.storage.parent / "b")
            (tree.artifacts / "a").rename(tree.storage.parent / "a")

    monkeypatch.setattr(DirectoryCursor, "enter", move)
    _, left_out = tree.copy()
    monkeypatch.undo()
    tree.restore()
    assert "vanished" in left_out
    made = tree.restored / STORAGE / "jobs/t/j/1"
    assert (made / "artifacts/a/b/c/inner").read_text() == "inner"
    assert (made / "artifacts/model.pt").read_bytes() == b"weights"
    assert (made / "files/file").read_bytes() == b"kept"


def test_a_file_that_cannot_be_read_to_its_end_is_left_out(tree: BackedUpTree, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree.artifacts / "bad").write_bytes(b"sector")
    bad, read = (tree.artifacts / "bad").stat().st_ino, os.pread

    def refuse(file: int, *where: int) -> bytes:
        if os.fstat(file).st_ino == bad:
            raise OSError(5, "Input/output error")
        return read(file, *where)

    monkeypatch.setattr("shardyard.service.backup.sparse_copy.os.pread", refuse)
    _, left_out = tree.copy()
    assert left_out["unreadable"].first == ["jobs/t/j/1/artifacts/bad"]
    assert [path.name for path in (tree.back_up / STORAGE).rglob("*") if path.is_file()] == ["model.pt"]


@pytest.mark.parametrize("number", [36, 84, 27])
def test_a_name_that_the_disk_of_the_back_up_refuses_is_left_out(
    tree: BackedUpTree, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    (tree.artifacts / "odd").write_bytes(b"file")
    (tree.artifacts / "odd directory" / "below").mkdir(parents=True)
    refuse_to_make(monkeypatch, number)
    _, left_out = tree.copy()
    monkeypatch.undo()
    assert sorted(left_out["name"].first) == ["jobs/t/j/1/artifacts/odd", "jobs/t/j/1/artifacts/odd directory"]
    tree.restore()


def refuse_to_make(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Have a disk that takes no name that begins with `odd`."""
    opened, made = os.open, os.mkdir

    def open_file(name: str, flags: int, *more: int, **how: int) -> int:
        if str(name).startswith("odd") and flags & os.O_CREAT:
            raise OSError(number, os.strerror(number))
        return opened(name, flags, *more, **how)

    def make_directory(name: str, *more: int, **how: int) -> None:
        if str(name).startswith("odd"):
            raise OSError(number, os.strerror(number))
        made(name, *more, **how)

    monkeypatch.setattr(os, "open", open_file)
    monkeypatch.setattr(os, "mkdir", make_directory)


def test_a_full_disk_ends_a_back_up_for_it_would_not_be_one(
    tree: BackedUpTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree.artifacts / "odd").write_bytes(b"file")
    refuse_to_make(monkeypatch, 28)
    with pytest.raises(OSError, match="No space left"):
        tree.copy()


# -- limits ----------------------------------------------------------------------------------------


def test_after_the_deadline_the_services_own_files_are_still_copied(tree: BackedUpTree) -> None:
    for path in ("1/logs/device-0.log", "1/files/late", "1/report.json", "checkpoints/000000000001-1/weights"):
        (tree.attempt.parent / path).parent.mkdir(parents=True, exist_ok=True)
        (tree.attempt.parent / path).write_text("text")
    stored, left_out = tree.copy(lambda: True)
    assert (stored.files, set(left_out)) == (3, {"deadline"})
    assert sorted(left_out["deadline"].first) == ["jobs/t/j/1/artifacts", "jobs/t/j/1/files"]
    tree.restore()
    assert (tree.restored / STORAGE / "jobs/t/j/1/report.json").read_text() == "text"


def test_a_copy_is_given_up_in_the_middle_of_a_file_at_the_deadline(tree: BackedUpTree) -> None:
    (tree.artifacts / "model.pt").write_bytes(b"x" * (8 << 20))
    answers = iter([False] * 4)
    _, left_out = tree.copy(lambda: next(answers, True))
    assert left_out["deadline"].first == ["jobs/t/j/1/artifacts/model.pt"]
    assert list((tree.back_up / STORAGE).rglob("model.pt")) == []


def test_a_directory_with_more_entries_than_anybody_looks_at_costs_only_itself(
    tree: BackedUpTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_copy, "MAX_ENTRIES", 10)
    for number in range(20):
        (tree.artifacts / f"directory-{number}").mkdir()
    for path in ("logs/device-0.log", "files/one"):
        (tree.attempt / path).parent.mkdir()
        (tree.attempt / path).write_text("text")
    stored, left_out = tree.copy()
    assert set(left_out) == {"count"}
    assert stored.files >= 2
    tree.restore()
    for path in ("logs/device-0.log", "files/one"):
        assert (tree.restored / STORAGE / "jobs/t/j/1" / path).read_text() == "text"


def test_so_many_names_are_kept_of_what_was_left_out_and_few_are_shown(tree: BackedUpTree) -> None:
    for number in range(MAX_NAMES + 50):
        (tree.artifacts / f"link-{number}\n\x1b").symlink_to("/")
    _, left_out = tree.copy()
    assert (left_out["link"].entries, len(left_out["link"].first)) == (MAX_NAMES + 50, MAX_NAMES)
    line = describe_left_out(left_out["link"])
    assert line.isprintable()
    assert len(line) < 500
    assert f"and {MAX_NAMES + 47} more" in line
    assert "\\x0a\\x1b" in line


def test_a_long_path_is_shown_by_its_ends(tree: BackedUpTree) -> None:
    os.mkfifo(tree.artifacts / ("p" * 250))
    _, left_out = tree.copy()
    (shown,) = left_out["pipe"].first
    assert shown.startswith("jobs/t/j/1/artifacts/pp")
    assert len(shown) < 210
