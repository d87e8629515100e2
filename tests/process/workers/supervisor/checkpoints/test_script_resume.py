"""What an attempt of a script goes on from, and what hostile ranks may have put in its place."""

import errno
import hashlib
import json
import os
import shutil
import socket
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from jobs.files import paths
from jobs.store import AttemptId
from jobs.support import fs
from shardyard.script import checkpoint
from workers.supervisor.checkpoints.script_resume import MAX_TRIED, SearchResult, copy_newest_checkpoint

THIRD = AttemptId("default", "job-1", 3)
NOTHING = hashlib.sha256().hexdigest()


class Job(NamedTuple):
    directory: Path

    @property
    def into(self) -> Path:
        return self.directory / "resume"

    def output(self, number: int) -> Path:
        """Where an attempt keeps its files."""
        return paths.artifacts_dir(paths.attempt_dir(self.directory / "storage", THIRD.tenant, THIRD.job, number))

    def save(self, number: int, text: str = "", name: str = "model.pt") -> Path:
        """Have an attempt save a file; its copy."""
        source = self.directory / name
        source.write_text(text or f"of attempt {number}")
        return checkpoint.save_checkpoint(source, self.output(number))

    def look(self, attempt: AttemptId = THIRD) -> SearchResult:
        return copy_newest_checkpoint(self.directory / "storage", attempt, self.into)

    def describe(self, number: int, **changes: Any) -> None:
        """Change the only manifest of an attempt."""
        (path,) = (self.output(number) / checkpoint.MANIFESTS).iterdir()
        path.write_text(json.dumps(json.loads(path.read_bytes()) | changes))


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_a_job_that_never_saved_has_nothing_to_go_on_from(job: Job) -> None:
    (job.output(1)).mkdir(parents=True)

    search = job.look()

    assert (search.found, search.damaged) == (None, [])
    assert not job.into.exists()


def test_the_newest_attempt_that_saved_anything_counts(job: Job) -> None:
    job.save(1)
    assert read(job.look()) == "of attempt 1"  # the second died before it saved
    job.save(2)
    fs.remove_tree(job.into)
    assert read(job.look()) == "of attempt 2"


def test_neither_this_attempt_nor_a_later_one_is_looked_at(job: Job) -> None:
    for number in (1, 2, 3):
        job.save(number)

    assert read(job.look(AttemptId("default", "job-1", 2))) == "of attempt 1"


def test_the_copy_is_there_for_reading_only_and_is_not_the_file_that_was_saved(job: Job) -> None:
    kept = job.save(2)

    found = job.look().found

    assert found is not None
    assert (found.name, found.attempt, os.listdir(found.directory)) == ("model.pt", 2, ["model.pt"])
    assert stat.S_IMODE(found.directory.stat().st_mode) == 0o555
    assert stat.S_IMODE((found.directory / "model.pt").stat().st_mode) == 0o444
    kept.write_text("changed meanwhile")
    assert (found.directory / "model.pt").read_text() == "of attempt 2"
    fs.remove_tree(found.directory)
    assert not found.directory.exists()


def test_a_checkpoint_that_is_torn_gives_way_to_the_one_before_it(job: Job) -> None:
    job.save(1)
    job.save(2, "an earlier one of attempt 2", "earlier.pt")
    job.save(2).write_text("of attempt 9")

    search = job.look()

    assert read(search, "earlier.pt") == "an earlier one of attempt 2"
    assert search.damaged == ["a checkpoint of attempt 2 is not what was saved: 'model.pt' has another SHA-256"]


def read(search: SearchResult, name: str = "model.pt") -> str:
    assert search.found is not None, search.damaged
    return (search.found.directory / name).read_text()


# -- hostile attempts --------------------------------------------------------------------------------


def _truncated(job: Job) -> None:
    os.truncate(job.save(2), 3)


def _link_to_the_same(job: Job) -> None:
    kept = job.save(2)
    (job.directory / "elsewhere").write_bytes(kept.read_bytes())
    kept.unlink()
    kept.symlink_to(job.directory / "elsewhere")


def _checkpoints_are_a_link(job: Job) -> None:
    places = job.save(2).parent
    places.rename(job.directory / "elsewhere")
    places.symlink_to(job.directory / "elsewhere")


def _inner_directory_is_a_link(job: Job) -> None:
    (job.directory / "state" / "part").mkdir(parents=True)
    (job.directory / "state" / "part" / "a").write_text("a")
    kept = checkpoint.save_checkpoint(job.directory / "state", job.output(2))
    (kept / "part").rename(job.directory / "elsewhere")
    (kept / "part").symlink_to(job.directory / "elsewhere")


def _in_place_of_an_empty_file(make: Callable[[Path], None]) -> Callable[[Job], None]:
    """Something that is not a regular file, and has no size either."""

    def do(job: Job) -> None:
        kept = job.save(2)
        job.describe(2, files=[["", 0, NOTHING]])
        kept.unlink()
        make(kept)

    return do


def _device(path: Path) -> None:
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))  # /dev/null


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(path.parent)  # a socket's path is short
        listener.bind(path.name)


def _leads_out(path: str) -> Callable[[Job], None]:
    """A path that the copy would follow too, to where the attempt's own files lie."""

    def do(job: Job) -> None:
        (job.directory / "state").mkdir()
        (job.directory / "state" / "a").write_text("secret")
        kept = checkpoint.save_checkpoint(job.directory / "state", job.output(2))
        (kept / path).write_text("secret")
        digest = hashlib.sha256(b"secret").hexdigest()
        job.describe(2, files=[["a", 6, digest], [path, 6, digest]])

    return do


def _directory(job: Job) -> None:
    kept = job.save(2)
    kept.unlink()
    kept.mkdir()


def _described(**changes: Any) -> Callable[[Job], None]:
    def do(job: Job) -> None:
        job.save(2)
        job.describe(2, **changes)

    return do


def _manifest(body: bytes) -> Callable[[Job], None]:
    def do(job: Job) -> None:
        job.save(2)
        (path,) = (job.output(2) / checkpoint.MANIFESTS).iterdir()
        path.write_bytes(body)

    return do


def _manifest_is_a_link(job: Job) -> None:
    job.save(2)
    (path,) = (job.output(2) / checkpoint.MANIFESTS).iterdir()
    path.rename(job.directory / "manifest")
    path.symlink_to(job.directory / "manifest")


def _manifest_is_a_pipe(job: Job) -> None:
    job.save(2)
    (path,) = (job.output(2) / checkpoint.MANIFESTS).iterdir()
    path.unlink()
    os.mkfifo(path)


ATTACKS: dict[str, Callable[[Job], None]] = {
    "truncated": _truncated,
    "link": _link_to_the_same,
    "directory of checkpoints is a link": _checkpoints_are_a_link,
    "inner directory is a link": _inner_directory_is_a_link,
    "pipe": _in_place_of_an_empty_file(os.mkfifo),
    "device": _in_place_of_an_empty_file(_device),
    "socket": _in_place_of_an_empty_file(_socket),
    "directory": _directory,
    "manifest is a link": _manifest_is_a_link,
    "manifest is a pipe": _manifest_is_a_pipe,
    "manifest is no JSON": _manifest(b"\x80"),
    "manifest is deep": _manifest(b"[" * 1_000_000),
    "manifest is large": _manifest(b" " * (checkpoint.MAX_MANIFEST_BYTES + 1)),
    "manifest has a huge number": _manifest(b'{"version": ' + b"9" * 5000 + b"}"),
    "version": _described(version=2),
    "name leads out": _described(name="../../../../secret"),
    "name is absolute": _described(name="/etc/passwd"),
    "name is a parent": _described(name=".."),
    "name is empty": _described(name=""),
    "name has a nul": _described(name="a\0b"),
    "name is long": _described(name="a" * 256),
    "name is half a character": _described(name="\ud800"),
    "draft leads out": _described(draft="../../secret"),
    "file leads out of the checkpoint": _leads_out("../out"),
    "file leads out of the directory": _leads_out("../../out"),
    "file is absolute": _described(directories=[""], files=[["/etc/passwd", 6, NOTHING]]),
    "file in no directory": _described(directories=[""], files=[["a/b", 0, NOTHING]]),
    "file in a file": _described(directories=[""], files=[["a", 0, NOTHING], ["a/b", 0, NOTHING]]),
    "file twice": _described(directories=[""], files=[["a", 0, NOTHING], ["a", 0, NOTHING]]),
    "file and directory": _described(directories=["", "a"], files=[["a", 0, NOTHING]]),
    "directory leads out": _described(directories=["", ".."]),
    "directory twice": _described(directories=["", "a", "a"]),
    "directories too deep": _described(directories=["", *("a/" * n + "a" for n in range(40))]),
    "directory after its child": _described(directories=["", "a/b", "a"]),
    "negative size": _described(files=[["", -1, NOTHING]]),
    "size is a word": _described(files=[["", "large", NOTHING]]),
    "no digest": _described(files=[["", 12, "none"]]),
    "more files than there can be": _described(directories=["", *(f"{n}" for n in range(checkpoint.MAX_FILES))]),
    "nothing in it": _described(directories=[], files=[]),
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
def test_what_is_not_what_was_saved_is_left_alone_and_said(
    job: Job, attack: Callable[[Job], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(job.directory)
    (job.directory / "storage" / "jobs").mkdir(parents=True)
    (job.directory / "storage" / "jobs" / "secret").write_text("secret")
    job.save(1)
    try:
        attack(job)
    except PermissionError:
        pytest.skip("only root can make devices")

    search = job.look()

    assert read(search) == "of attempt 1"
    assert not (job.directory / "out").exists()
    assert len(search.damaged) == 1
    assert search.damaged[0].startswith("a checkpoint of attempt 2 is not what was saved: ")
    assert len(search.damaged[0]) < 1000
    assert search.damaged[0].isprintable()


def test_a_file_that_changes_while_it_is_read_is_not_taken(job: Job) -> None:
    job.save(1)
    kept = job.save(2, "a" * 3_000_000)

    def meddle(_: int) -> None:
        with kept.open("r+b") as file:
            file.seek(2_500_000)
            file.write(b"b")

    search = copy_newest_checkpoint(job.directory / "storage", THIRD, job.into, meddle)

    assert read(search) == "of attempt 1"


def test_a_file_that_grows_without_end_is_read_no_further_than_it_was_long(job: Job) -> None:
    kept = job.save(2, "a" * 3_000_000)
    bytes_read = 0

    def feed(count: int) -> None:
        nonlocal bytes_read
        bytes_read += count
        with kept.open("ab") as file:
            file.write(b"a" * 2_000_000)

    assert read(copy_newest_checkpoint(job.directory / "storage", THIRD, job.into, feed)) == "a" * 3_000_000
    assert bytes_read == 3_000_000


def test_only_so_many_checkpoints_are_tried(job: Job) -> None:
    job.save(1)
    for number in range(MAX_TRIED + 3):
        os.truncate(job.save(2, name=f"{number}.pt"), 1)

    search = job.look()

    assert search.found is None
    assert len(search.damaged) == MAX_TRIED


def test_a_checkpoint_for_which_there_is_no_room_is_an_error_and_not_a_start_from_nothing(
    job: Job,
) -> None:
    kept = job.save(2)
    size = shutil.disk_usage(job.directory).free + (1 << 30)
    os.truncate(kept, size)  # takes no room itself
    job.describe(2, files=[["", size, NOTHING]])

    with pytest.raises(OSError, match=f"has {size:,} bytes") as raised:
        job.look()

    assert raised.value.errno == errno.ENOSPC
    assert not job.into.exists()


def test_a_disk_that_refuses_is_told_from_a_checkpoint_that_is_not_whole(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.save(2)

    def refuse(fd: int, count: int) -> bytes:
        raise OSError(errno.EIO, "the disk refuses")

    monkeypatch.setattr(os, "read", refuse)
    with pytest.raises(OSError, match="the disk refuses"):
        job.look()


def test_a_search_can_be_broken_off(job: Job) -> None:
    job.save(2, "a" * 3_000_000)
    stop = threading.Event()

    def read_until(_: int) -> None:
        if stop.is_set():
            raise InterruptedError
        stop.set()

    with pytest.raises(InterruptedError):
        copy_newest_checkpoint(job.directory / "storage", THIRD, job.into, read_until)
