"""What is kept of a working directory, and what is not."""

import errno
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jobs.files import paths, user_files
from jobs.files.user_files import UserFilesRecord
from jobs.model.spec import Limits
from shardyard.contract.responses import LeftOutFiles
from tests.support.samples.attempts import a_launch
from tests.unit.workers.supervisor.test_working_dir import a_bundle, a_script
from workers.runtime.launch import AttemptConfig, AttemptDirectory, RankAccount
from workers.supervisor import working_dir
from workers.supervisor.user_files import collection, file_mover
from workers.supervisor.user_files.baseline import write_baseline

BUNDLE = {"train.py": "pass", "src/model.py": "x = 1", "rows.csv": "1,2"}
MIB = 1024 * 1024


def never() -> bool:
    return False


class Attempt:
    """An attempt with an unpacked bundle, whose program the test is."""

    def __init__(self, directory: Path, number: int = 1, limit: int | None = None, **program: Any) -> None:
        launch = a_launch(directory)
        self.config: AttemptConfig = replace(launch, attempt=replace(launch.attempt, number=number))
        self.marks = AttemptDirectory.of(self.config.state_dir, self.config.attempt)
        self.marks.create()
        stored = paths.bundle_dir(self.config.storage, self.config.attempt.tenant)
        bundle = a_bundle(self.config, BUNDLE) if not stored.exists() else f"sha256:{next(stored.iterdir()).name[:64]}"
        wanted = a_script(bundle, **program).model_copy(update={"limits": Limits(artifact_bytes=limit)})
        place = working_dir.prepare_working_directory(self.config, wanted, None)
        assert place is not None
        self.work = place.root
        self.stored = paths.attempt_dir(self.config.storage, *self.key)

    @property
    def key(self) -> tuple[str, str, int]:
        attempt = self.config.attempt
        return attempt.tenant, attempt.job, attempt.number

    def write(self, path: str, size: int = 1, age: float = 0.0) -> Path:
        """Write a file of the program's; `age` is how many seconds ago it was written."""
        target = self.work / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(b"x" * size)
        written = target.stat().st_mtime_ns - int(age * 1e9)
        os.utime(target, ns=(written, written))
        return target

    def keep(self, is_time_up: Callable[[], bool] = never) -> UserFilesRecord | None:
        return collection.keep_files(self.marks, self.config.storage, self.config.attempt, is_time_up)

    def kept(self) -> dict[str, int]:
        """What the storage has of it: sizes by path."""
        top = paths.user_files_dir(self.stored)
        return {str(file.relative_to(top)): file.stat().st_size for file in top.rglob("*") if file.is_file()}

    def left_out(self) -> dict[str, LeftOutFiles]:
        record = user_files.read_record(self.stored)
        assert record is not None
        return {group.reason: group for group in record.left_out}


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return Attempt(tmp_path)


@pytest.fixture(params=["rename", "copy"])
def transfer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways into the storage: within one file system, and from one to another."""
    if request.param == "copy":
        force_copies(monkeypatch)
    return str(request.param)


def force_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the working directory lie in another file system than the storage."""
    rename = os.rename

    def refuse(*args: Any, **options: Any) -> None:
        if options:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        rename(*args)

    monkeypatch.setattr(os, "rename", refuse)


def test_new_and_changed_files_are_kept_and_those_of_the_bundle_are_not(attempt: Attempt, transfer: str) -> None:
    written = attempt.write("runs/1/model.pt", 5000, age=60).stat().st_mtime_ns
    attempt.write("empty", 0)
    (attempt.work / "rows.csv").write_text("3,4")  # as long as before
    (attempt.work / "src" / "model.py").unlink()
    record = attempt.keep()
    assert record == UserFilesRecord(files=3, bytes=5003, left_out=[])
    assert attempt.kept() == {"runs/1/model.pt": 5000, "empty": 0, "rows.csv": 3}
    status = (paths.user_files_dir(attempt.stored) / "runs/1/model.pt").stat()
    assert (status.st_mtime_ns, status.st_mode & 0o777) == (written, 0o640)
    assert not paths.user_file_draft(attempt.stored).exists()


def test_what_a_supervisor_that_died_has_moved_counts_and_nothing_is_kept_twice(attempt: Attempt) -> None:
    attempt.write("a", 10)
    (paths.user_files_dir(attempt.stored)).mkdir(parents=True)
    (paths.user_files_dir(attempt.stored) / "b").write_bytes(b"x" * 20)
    collection.keep_files_of_dead_supervisor(attempt.marks, attempt.config.storage, attempt.config.attempt)
    assert user_files.read_record(attempt.stored) == UserFilesRecord(files=2, bytes=30, left_out=[])
    attempt.write("late")
    assert attempt.keep() is None
    assert attempt.kept() == {"a": 10, "b": 20}


def test_caches_and_what_has_no_contents_are_left_out_without_a_word(attempt: Attempt) -> None:
    for path in ("__pycache__/a.bin", "src/module.pyc", ".git/HEAD", "pkg/.cache/x", ".venv/bin/python"):
        attempt.write(path)
    (attempt.work / "src" / "latest").symlink_to("../train.py")
    os.mkfifo(attempt.work / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        here = os.open(attempt.work, os.O_RDONLY)
        server.bind(f"/proc/self/fd/{here}/socket")
        os.close(here)
        assert attempt.keep() == UserFilesRecord(files=0, bytes=0, left_out=[])
    assert attempt.kept() == {}


def test_links_and_odd_names_are_named_and_nothing_outside_is_touched(attempt: Attempt, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (attempt.work / "to-a-file").symlink_to(secret)
    (attempt.work / "to-a-directory").symlink_to(tmp_path)
    os.link(secret, attempt.work / "hard")
    attempt.write("line\nbreak")
    (Path(os.fsdecode(os.fsencode(attempt.work) + b"/\xff"))).write_bytes(b"abc")
    attempt.write("/".join(["deep"] * 40))
    assert attempt.keep() is not None
    assert attempt.kept() == {}
    links, names = attempt.left_out()["link"], attempt.left_out()["name"]
    assert (links.files, names.files) == (3, 3)
    assert links.message.endswith("only plain files are kept, no links and no files with several names")
    assert names.message.isprintable()
    assert secret.read_text() == "secret"


def test_data_sets_that_torchvision_downloads_are_kept_only_on_request(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    for path in ("data/MNIST/raw/train-images", "data/cifar-10-python.tar.gz", "data/mine.csv"):
        attempt.write(path, 7)
    attempt.keep()
    assert attempt.kept() == {"data/mine.csv": 7}
    group = attempt.left_out()["data_set"]
    assert (group.files, group.bytes) == (2, 14)
    again = Attempt(tmp_path, 2, keep=["data/"])
    again.write("data/MNIST/raw/train-images", 7)
    again.write("other")
    assert again.keep() == UserFilesRecord(files=1, bytes=7, left_out=[])


@pytest.mark.parametrize(
    ("patterns", "kept"),
    [
        (["*.pt"], {"model.pt", "runs/best.pt"}),
        (["runs/", "!*.log"], {"runs/best.pt"}),
        (["!data/"], {"model.pt", "runs/best.pt", "runs/1.log"}),
        (["/model.pt"], {"model.pt"}),
    ],
)
def test_patterns_say_what_is_kept(tmp_path: Path, patterns: list[str], kept: set[str]) -> None:
    attempt = Attempt(tmp_path, keep=patterns)
    for path in ("model.pt", "runs/best.pt", "runs/1.log", "data/rows.bin"):
        attempt.write(path)
    attempt.keep()
    assert set(attempt.kept()) == kept
    assert attempt.left_out() == {}


def test_an_empty_list_of_patterns_keeps_nothing(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, keep=[])
    attempt.write("model.pt")
    assert attempt.keep() is None
    assert attempt.kept() == {}


def test_within_the_limit_the_newest_files_are_kept_and_the_others_named(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, limit=3 * MIB)
    attempt.write("data.bin", 2 * MIB, age=50)
    attempt.write("huge.bin", 4 * MIB, age=10)
    attempt.write("dump.bin", 5 * MIB, age=20)
    attempt.write("model.pt", 2 * MIB)
    attempt.write("first.log", 10, age=100)
    record = attempt.keep()
    assert attempt.kept() == {"model.pt": 2 * MIB, "first.log": 10}
    assert record is not None
    (group,) = record.left_out
    assert (group.reason, group.files, group.bytes) == ("limit", 3, 11 * MIB)
    assert (group.newest, group.largest) == ("huge.bin", "dump.bin")
    assert group.message == (
        "3 files (11.0 MiB) were not kept, the newest is huge.bin (4.0 MiB), the largest dump.bin (5.0 MiB): "
        "the files of a job may have 3.0 MiB together (limits.artifact_bytes)"
    )


def test_the_operators_limit_holds_whatever_a_job_asks_for(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, limit=10)
    attempt.config = replace(attempt.config, max_artifact_bytes=5)
    (attempt.marks.baseline).unlink()
    wanted = a_script("sha256:" + "0" * 64).model_copy(update={"limits": Limits(artifact_bytes=10)})
    write_baseline(attempt.marks, attempt.config, wanted, BUNDLE)
    attempt.write("six", 6)
    attempt.write("five", 5)
    attempt.keep()
    assert attempt.kept() == {"five": 5}


def test_the_newest_attempt_comes_first_where_a_job_has_more_than_its_limit(tmp_path: Path) -> None:
    for number, size in ((1, 4), (2, 4), (3, 3)):
        attempt = Attempt(tmp_path, number, limit=10)
        attempt.write("model.pt", size)
        attempt.keep()
    stored = [paths.attempt_dir(attempt.config.storage, *attempt.key[:2], number) for number in (1, 2, 3)]
    assert [paths.user_files_dir(directory).exists() for directory in stored] == [False, True, True]
    record = user_files.read_record(stored[0])
    assert record is not None
    assert (record.files, record.bytes, record.left_out[0].reason) == (0, 0, "replaced")
    assert record.left_out[0].message == "1 file (4 B) was removed to make room for those of attempt 3"


def test_when_time_is_up_the_newest_files_are_there(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    force_copies(monkeypatch)
    for number in range(4):
        attempt.write(f"{number}.bin", 10, age=number)
    attempt.keep(lambda: len(attempt.kept()) == 2)
    assert set(attempt.kept()) == {"0.bin", "1.bin"}
    assert attempt.left_out()["time"].files == 2
    assert not paths.user_file_draft(attempt.stored).exists()


def test_a_full_storage_keeps_its_last_room_for_reports(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    force_copies(monkeypatch)
    monkeypatch.setattr(file_mover, "RESERVED_BYTES", 2**62)
    attempt.write("a", 10)
    attempt.write("b", 10)
    assert attempt.keep() is not None
    assert attempt.kept() == {}
    assert attempt.left_out()["disk"].files == 2


def test_files_of_another_account_are_not_taken(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path)
    account = RankAccount(os.geteuid() + 1, os.getegid(), (), "other")
    write_baseline(attempt.marks, replace(attempt.config, account=account), a_script("sha256:" + "0" * 64), BUNDLE)
    attempt.write("model.pt")
    attempt.keep()
    assert attempt.kept() == {}
    assert attempt.left_out()["unreadable"].files == 1


def test_a_working_directory_that_is_gone_ends_nothing(attempt: Attempt) -> None:
    AttemptDirectory.of(attempt.config.state_dir, attempt.config.attempt).remove()
    assert attempt.keep() is None
