"""A script's checkpoints on disk, whatever the moment at which the script dies."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobs.files import paths
from jobs.store import AttemptId
from shardyard.script import checkpoint as saving
from workers.supervisor.checkpoints.script_resume import copy_newest_checkpoint

SECOND = AttemptId("default", "job-1", 2)


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Where the job's first attempt keeps its files."""
    return paths.artifacts_dir(paths.attempt_dir(tmp_path / "storage", SECOND.tenant, SECOND.job, 1))


def contents(path: Path) -> dict[str, bytes]:
    """Of a file, or of all files in a directory."""
    files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def resumed(tmp_path: Path, attempt: AttemptId = SECOND) -> dict[str, bytes] | None:
    """What the next attempt would find."""
    search = copy_newest_checkpoint(tmp_path / "storage", attempt, tmp_path / "resume")
    if search.found is None:
        return None
    (checkpoint,) = search.found.directory.iterdir()
    assert checkpoint.name == search.found.name
    found = contents(checkpoint)
    for path in [search.found.directory, *search.found.directory.rglob("*")]:
        path.chmod(0o700)
    shutil.rmtree(search.found.directory)
    return found


def write(path: Path, text: str) -> Path:
    """A file, or a directory of two files where the name has no suffix."""
    if path.suffix:
        path.write_text(text)
    else:
        (path / "part").mkdir(parents=True, exist_ok=True)
        (path / "a").write_text(text)
        (path / "part" / "b").write_text(text)
    return path


def manifests(output: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_bytes()) for path in sorted((output / ".checkpoints").iterdir())]


def test_a_manifest_names_every_file_with_its_size_and_its_digest(tmp_path: Path, output: Path) -> None:
    saving.save_checkpoint(write(tmp_path / "state", "hello"), output)

    (manifest,) = manifests(output)

    digest = hashlib.sha256(b"hello").hexdigest()
    assert manifest["name"] == "state"
    assert manifest["directories"] == ["", "part"]
    assert manifest["files"] == [["a", 5, digest], ["part/b", 5, digest]]


@pytest.mark.parametrize("name", ["model.pt", "state"])
def test_a_script_that_dies_while_it_saves_leaves_the_earlier_checkpoint_or_the_new_one(
    tmp_path: Path, output: Path, name: str
) -> None:
    saving.save_checkpoint(write(tmp_path / name, "old"), output)
    old, before = contents(tmp_path / name), shutil.copytree(output, tmp_path / "before")
    new = contents(write(tmp_path / name, "new"))
    found, calls = [], 0
    while (died := _saves_and_dies(lambda: saving.save_checkpoint(tmp_path / name, output), calls)) is not None:
        found.append(resumed(tmp_path))
        shutil.rmtree(output)
        shutil.copytree(before, output)
        calls += 1
        assert died == 9

    changes = found.index(new)
    assert found[:changes] == [old] * changes
    assert found[changes:] == [new] * (calls - changes)
    assert 5 < changes < calls - 2, "it died both before and after the new one counted"
    assert resumed(tmp_path) == new


def _saves_and_dies(save: Callable[[], object], calls: int) -> int | None:
    """Do it in a process that is gone after so many changes of the disk. None: it needs no more than these."""
    child = os.fork()
    if child == 0:
        left = calls

        def counted(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                nonlocal left
                if left == 0:
                    os._exit(9)
                left -= 1
                return function(*args, **kwargs)

            return call

        for function in ("fsync", "mkdir", "rename", "replace", "rmdir", "unlink"):
            setattr(os, function, counted(getattr(os, function)))
        try:
            save()
        except BaseException:  # noqa: BLE001  (the exit code says so)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) or None


def test_everything_is_on_disk_before_the_manifest_says_so(
    tmp_path: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    at_commit: list[str] = []
    fsync, rename = os.fsync, os.rename

    def record(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    def watch(old: Any, new: Any) -> None:
        if str(new).endswith(".json"):
            at_commit.extend(synced)
        rename(old, new)

    monkeypatch.setattr(os, "fsync", record)
    monkeypatch.setattr(os, "rename", watch)
    saving.save_checkpoint(write(tmp_path / "state", "hello"), output)

    draft = output / "checkpoints" / manifests(output)[0]["draft"]
    assert {str(draft / path) for path in ("", "a", "part", "part/b")} <= set(at_commit)
    assert str(output / "checkpoints") in at_commit
    assert any(path.startswith(str(output / ".checkpoints" / ".")) for path in at_commit)
    assert synced[len(at_commit) :][:2] == [str(output / ".checkpoints"), str(output)]


def test_of_several_names_the_one_that_was_saved_last_is_gone_on_from(tmp_path: Path, output: Path) -> None:
    for name in ("b.pt", "a.pt", "c.pt", "a.pt"):
        saving.save_checkpoint(
            write(tmp_path / name, f"{name} again" if (output / "checkpoints" / name).exists() else name), output
        )

    assert resumed(tmp_path) == {".": b"a.pt again"}
    assert [manifest["name"] for manifest in manifests(output)] == ["b.pt", "c.pt", "a.pt"]


def test_what_lies_among_the_checkpoints_already_is_vouched_for_where_it_is(tmp_path: Path, output: Path) -> None:
    (output / "checkpoints").mkdir(parents=True)
    path = write(output / "checkpoints" / "model.pt", "in place")

    assert saving.save_checkpoint(path, output) == path

    assert resumed(tmp_path) == {".": b"in place"}


def test_a_directory_with_too_many_files_is_refused_in_words(
    tmp_path: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "MAX_FILES", 3)
    with pytest.raises(ValueError, match="more than 3 files"):
        saving.save_checkpoint(write(tmp_path / "state", "hello"), output)

    assert os.listdir(output / "checkpoints") == os.listdir(output / ".checkpoints") == []
