"""A back-up that was damaged, or made to harm: what its list does not say is not made, and nothing lies outside."""

import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from jobs.support import fs
from shardyard.service.backup.file_list import (
    EnteredDirectory,
    FileContents,
    LeftDirectories,
    SharedFile,
    StoredFile,
    StoredLink,
    WalkStep,
)
from shardyard.service.backup.manifest import SHARED, STORAGE
from shardyard.service.backup.refusals import BackupError
from shardyard.service.backup.storage_restore import restore_storage
from tests.support.samples.backed_up_trees import BackedUpTree

KEPT = FileContents(bytes=4, sha256="982d9e3eb996f559e633f4d194def3761d909f5a3b647d1a851fead67c32c9d1")


@pytest.fixture
def tree(tmp_path: Path) -> BackedUpTree:
    tree = BackedUpTree(tmp_path)
    (tree.artifacts / "kept").write_text("text")
    (tree.artifacts / "again").hardlink_to(tree.artifacts / "kept")
    (tree.artifacts / "alone").write_text("text")
    tree.copy()
    return tree


def in_copy(tree: BackedUpTree, name: str = "") -> Path:
    return tree.back_up / STORAGE / "jobs/t/j/1/artifacts" / name


def replace(make: Callable[[Path], object]) -> Callable[[BackedUpTree], None]:
    """Put something else in the place of a file of the back-up."""

    def harm(tree: BackedUpTree) -> None:
        in_copy(tree, "alone").unlink()
        make(in_copy(tree, "alone"))

    return harm


def replace_directory(tree: BackedUpTree) -> None:
    in_copy(tree).rename(tree.back_up / "aside")
    in_copy(tree).symlink_to(tree.back_up / "aside")


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (replace(lambda path: path.symlink_to("/etc/hostname")), "cannot be read"),
        (replace(os.mkfifo), "cannot be read: it is not a plain file"),
        (replace(lambda path: path.mkdir()), "cannot be read"),
        (replace(lambda path: path.write_text("TEXT")), "alone is not what was saved"),
        (replace(lambda path: path.write_text("text and more")), "alone is not what was saved"),
        (replace(lambda path: None), "artifacts/alone is missing"),
        (replace_directory, "artifacts cannot be read"),
        (lambda tree: (tree.back_up / SHARED / "1").unlink(), "shared/1 is missing"),
        (lambda tree: (tree.back_up / SHARED / "1").write_text("TEXT"), "shared/1 is not what was saved"),
        (lambda tree: fs.remove_tree(tree.back_up / STORAGE), "storage is missing"),
    ],
    ids=["link", "pipe", "directory", "other", "longer", "gone", "linked directory", "no shared", "shared", "nothing"],
)
def test_contents_that_are_not_what_was_saved_end_a_restore(
    tree: BackedUpTree, harm: Callable[[BackedUpTree], None], words: str
) -> None:
    harm(tree)
    with pytest.raises(BackupError, match=words):
        tree.restore()
    assert not (tree.restored / ".shared").exists()


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([EnteredDirectory("..", 0o700)], "not the name of a file"),
        ([EnteredDirectory("%2e%2e%2foutside", 0o700)], "not the name of a file"),
        ([StoredFile("%2Fetc%2Fcron.d%2Fevil", KEPT)], "not the name of a file"),
        ([LeftDirectories()], "leaves more directories"),
        ([EnteredDirectory("jobs", 0o700), LeftDirectories(2)], "leaves more directories"),
        ([EnteredDirectory("jobs", 0o700), LeftDirectories(-1)], "leaves more directories"),
        ([StoredLink("name", 7)], "shared file 7 before it has it"),
        ([SharedFile(1, KEPT), StoredLink("..", 1)], "not the name of a file"),
    ],
)
def test_a_list_that_leads_out_is_refused(tree: BackedUpTree, steps: Sequence[WalkStep], words: str) -> None:
    with pytest.raises(BackupError, match=words):
        restore_storage(tree.back_up, tree.restored, steps)
    assert [path for path in tree.restored.rglob("*") if not path.is_dir()] == []


def test_what_the_list_does_not_name_is_not_made(tree: BackedUpTree) -> None:
    in_copy(tree, "smuggled").write_text("text")
    tree.restore()
    made = tree.restored / STORAGE / "jobs/t/j/1/artifacts"
    assert sorted(os.listdir(made)) == ["again", "alone", "kept"]


def test_modes_of_a_list_make_no_file_that_acts_for_its_owner(tree: BackedUpTree) -> None:
    (tree.back_up / STORAGE / "top").write_text("text")
    contents = FileContents(bytes=4, sha256=KEPT.sha256, mode=0o6777)
    restore_storage(tree.back_up, tree.restored, [StoredFile("top", contents)])
    assert stat.S_IMODE((tree.restored / STORAGE / "top").stat().st_mode) == 0o777


def test_a_disk_without_hard_links_gets_copies(tree: BackedUpTree, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    tree.restore()
    made = [tree.restored / STORAGE / "jobs/t/j/1/artifacts" / name for name in ("kept", "again")]
    assert [(path.read_text(), path.stat().st_nlink, path.stat().st_mtime_ns) for path in made] == [
        ("text", 1, (tree.artifacts / "kept").stat().st_mtime_ns)
    ] * 2
