"""What an attempt and its node say to each other about a disk that runs full: on a real one, which is small."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jobs.files import paths
from jobs.model.state import StateReason
from tests.faults.inject.disk import fill, small_disk
from tests.faults.scene.machine import need
from tests.support.samples.attempts import ATTEMPT, a_launch
from workers.runtime import disk_ledger
from workers.runtime.disk_ledger import DiskUsage, DiskVerdict
from workers.runtime.launch import AttemptConfig, AttemptDirectory
from workers.runtime.limits import AttemptLimits
from workers.supervisor.ending.outcome import AttemptOutcome
from workers.supervisor.limits import full_disk
from workers.supervisor.limits.disk_cleanup import RemovedFiles, remove_newest_files
from workers.supervisor.limits.disk_meter import DiskMeter
from workers.supervisor.limits.disk_room import DiskRoom
from workers.supervisor.limits.full_disk import review_failed_start, review_failure
from workers.supervisor.limits.limit_watch import LimitWatch

MIB = 1024 * 1024
VERDICT = DiskVerdict("storage", used=9 * MIB, grown=8 * MIB, seconds=2.5, free=MIB, reserve=3 * MIB)
NO_SPACE = "OSError: [Errno 28] No space left on device"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AttemptConfig]:
    """An attempt whose storage is a disk of 64 MB, of which the service keeps 3.2 MB."""
    need("mounts")
    monkeypatch.setattr(full_disk, "VERDICT_SECONDS", 0.2)
    with small_disk(tmp_path / "storage", "64m"):
        config = replace(a_launch(tmp_path), reserve_bytes=2**30)
        AttemptDirectory.of(tmp_path, ATTEMPT).create()
        yield config


def ledger_of(config: AttemptConfig) -> Path:
    return AttemptDirectory.of(config.state_dir, config.attempt).disk_ledger


def failure(reason: StateReason, traceback: str = "", message: str = "rank 0: it failed") -> AttemptOutcome:
    error: dict[str, Any] = {"message": message, "traceback": traceback}
    return AttemptOutcome(reason, message, error)


def test_the_node_is_told_what_is_below_the_own_directories_and_in_the_log(config: AttemptConfig) -> None:
    room = DiskRoom(config)
    own = config.storage / "own"
    own.mkdir()
    (own / "file").write_bytes(b"x" * MIB)
    logs = paths.logs_dir(paths.attempt_dir(config.storage, ATTEMPT.tenant, ATTEMPT.job, ATTEMPT.number))
    logs.mkdir(parents=True)
    (logs / "device-0.log").write_bytes(b"x" * 2 * MIB)
    limits = AttemptLimits(2**40, 1000, 2**30, 2**40, 1000, 2**20, 2**20)
    meter = DiskMeter(limits, [own], lambda: (), room)
    meter.close()
    fill(config.storage)  # what is near its end is measured at once
    meter.measure()
    usage = disk_ledger.read_usage(ledger_of(config))
    disk = config.storage.stat().st_dev
    assert usage == DiskUsage({disk: 3 * MIB}, {disk: 2})


def test_a_verdict_is_a_breach_that_says_how_much_was_too_much(config: AttemptConfig) -> None:
    room = DiskRoom(config)
    watch = LimitWatch(None, [room])
    assert watch.find_breach(0.0) is None
    disk_ledger.write_verdict(ledger_of(config), VERDICT)
    breach = watch.find_breach(0.1)
    assert breach is not None
    assert (breach.limit, breach.used, breach.allowed, breach.is_urgent) == ("disk", 9 * MIB, 7 * MIB, True)
    assert breach.message == (
        "it has filled the disk of the service's storage, which had 1 MiB left: it grew by 8 MiB in 2 s"
    )


@pytest.mark.parametrize(
    ("outcome", "is_excused"),
    [
        (failure(StateReason.CODE_ERROR, f"Traceback ...\n{NO_SPACE}"), True),
        (failure(StateReason.CODE_ERROR, message=f"rank 0: {NO_SPACE}"), True),
        (failure(StateReason.CODE_ERROR, "RuntimeError: [enforce fail] unexpected pos 128 vs 64"), True),
        (failure(StateReason.STORAGE_FAILED), True),
        (failure(StateReason.START_FAILED), True),
        (failure(StateReason.CODE_ERROR, "ValueError: no"), False),
        (failure(StateReason.WALL_LIMIT, NO_SPACE), False),
        (AttemptOutcome(StateReason.COMPLETED), False),
    ],
)
def test_failures_that_a_full_disk_causes_go_back_to_the_queue(
    config: AttemptConfig, outcome: AttemptOutcome, is_excused: bool
) -> None:
    room = DiskRoom(config)
    assert review_failure(config, outcome, room) == outcome  # there is room: it is the program's own
    filler = fill(config.storage)
    for _ in range(2):
        found = review_failure(config, outcome, room)
        assert found.reason is (StateReason.STORAGE_LOW if is_excused else outcome.reason)
        filler.unlink(missing_ok=True)  # there is room again, but there was none a moment ago


def test_whoever_has_filled_the_disk_is_not_excused(config: AttemptConfig) -> None:
    room = DiskRoom(config)
    fill(config.storage)
    disk_ledger.write_verdict(ledger_of(config), VERDICT)
    found = review_failure(config, failure(StateReason.CODE_ERROR, NO_SPACE), room)
    assert found.reason is StateReason.RESOURCE_LIMIT
    assert found.error is not None
    assert (found.error["limit"], found.error["used"], found.error["allowed"]) == ("disk", 9 * MIB, 7 * MIB)


def test_an_attempt_that_cannot_start_on_a_full_disk_waits_for_room(config: AttemptConfig) -> None:
    failed = failure(StateReason.START_FAILED)
    assert review_failed_start(config, failed) == failed
    fill(config.storage)
    assert review_failed_start(config, failed).reason is StateReason.STORAGE_LOW
    rejected = failure(StateReason.REJECTED_BY_WORKER)
    assert review_failed_start(config, rejected) == rejected


def test_what_was_written_last_is_removed_and_nothing_else(tmp_path: Path) -> None:
    top, outside = tmp_path / "artifacts", tmp_path / "outside"
    (top / "a" / "b").mkdir(parents=True)
    outside.write_text("not theirs")
    (top / "old").write_bytes(b"x" * 4096)
    mark = tmp_path / "mark"
    while not mark.exists() or mark.stat().st_ctime == (top / "old").stat().st_ctime:  # the kernel's clock has ticks
        mark.write_text("")
        time.sleep(0.001)
    since = mark.stat().st_ctime
    for name in ("new", "a/b/new"):
        (top / name).write_bytes(b"x" * 4096)
    (top / "a" / "link").symlink_to(outside)
    assert remove_newest_files(top, since) == RemovedFiles(2, 8192)
    assert sorted(str(path.relative_to(top)) for path in top.rglob("*")) == ["a", "a/b", "a/link", "old"]
    assert outside.read_text() == "not theirs"
    assert remove_newest_files(tmp_path / "nowhere", since) == RemovedFiles()
