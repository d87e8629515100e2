"""What a checkpoint on disk must be to count, which one is tried first, and which ones go."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from jobs.files import checkpoints
from jobs.files.checkpoints import (
    CheckpointManifest,
    CheckpointPointer,
    DamagedCheckpoint,
    ManifestFile,
    StoredCheckpoint,
)

FILES = {"model.safetensors": b"weights", "rank-0.pt": b"x" * 3_000_000, "report.state": b"", "metrics.bin": b"points"}


def write(parent: Path, step: int = 200, attempt: int = 1) -> tuple[Path, str]:
    """A whole checkpoint: its directory, and the SHA-256 of its manifest."""
    directory = parent / checkpoints.directory_name(step, attempt)
    directory.mkdir(parents=True)
    for name, body in FILES.items():
        (directory / name).write_bytes(body)
    files = {name: ManifestFile(len(body), hashlib.sha256(body).hexdigest()) for name, body in FILES.items()}
    made = CheckpointManifest(
        format=1, step=step, epoch=0, attempt=attempt, world_size=1, strategy="single", files=files
    ).encode()
    (directory / checkpoints.MANIFEST).write_bytes(made)
    return directory, hashlib.sha256(made).hexdigest()


def test_a_whole_checkpoint_verifies_and_every_byte_is_read(tmp_path: Path) -> None:
    directory, sha256 = write(tmp_path)
    read: list[int] = []
    found = checkpoints.verify_checkpoint(directory, sha256, read.append)
    assert (found.sha256, found.directory, found.manifest.step) == (sha256, directory, 200)
    assert sum(read) == found.manifest.size == sum(map(len, FILES.values()))
    assert checkpoints.verify_checkpoint(directory).manifest == found.manifest  # where nothing points to it


def _flip(directory: Path) -> None:
    path = directory / "rank-0.pt"
    body = bytearray(path.read_bytes())
    body[len(body) // 2] ^= 1
    path.write_bytes(body)


def _tear_manifest(directory: Path) -> None:
    path = directory / checkpoints.MANIFEST
    path.write_bytes(path.read_bytes()[:100])


def _replace_by_link(directory: Path) -> None:
    outside = directory.parent / "outside"
    (directory / "rank-0.pt").rename(outside)
    (directory / "rank-0.pt").symlink_to(outside)


def _replace_by_pipe(directory: Path) -> None:
    (directory / "rank-0.pt").unlink()
    os.mkfifo(directory / "rank-0.pt")


def _replace_by_directory(directory: Path) -> None:
    (directory / "rank-0.pt").unlink()
    (directory / "rank-0.pt").mkdir()


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (_flip, "rank-0.pt is not what was saved"),
        (lambda directory: (directory / "rank-0.pt").write_bytes(b"short"), "rank-0.pt has 5 bytes instead of 3000000"),
        (lambda directory: (directory / "metrics.bin").unlink(), "metrics.bin is missing"),
        (lambda directory: (directory / "extra").touch(), "'extra' does not belong to it"),
        (lambda directory: (directory / "manifest.json").unlink(), "manifest.json is missing"),
        (_tear_manifest, "manifest.json is not the one that was committed"),
        (_replace_by_link, "rank-0.pt is a link"),
        (_replace_by_pipe, "rank-0.pt is not a regular file"),
        (_replace_by_directory, "rank-0.pt is not a regular file"),
    ],
)
def test_a_checkpoint_that_is_not_what_was_saved_says_what_is_wrong_with_it(
    tmp_path: Path, damage: Callable[[Path], object], why: str
) -> None:
    directory, sha256 = write(tmp_path)
    damage(directory)
    with pytest.raises(DamagedCheckpoint, match=why):
        checkpoints.verify_checkpoint(directory, sha256)


def test_a_checkpoint_that_is_a_link_or_is_gone_does_not_verify(tmp_path: Path) -> None:
    directory, _ = write(tmp_path)
    link = tmp_path / checkpoints.directory_name(300, 1)
    link.symlink_to(directory)
    for path in (link, tmp_path / checkpoints.directory_name(400, 1)):
        with pytest.raises(DamagedCheckpoint, match="its directory is missing"):
            checkpoints.verify_checkpoint(path)


def test_a_checkpoint_under_the_name_of_another_step_does_not_verify(tmp_path: Path) -> None:
    directory, _ = write(tmp_path)
    renamed = directory.rename(tmp_path / checkpoints.directory_name(300, 1))
    with pytest.raises(DamagedCheckpoint, match="is of step 200 of attempt 1"):
        checkpoints.verify_checkpoint(renamed)


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"step": -1},
        {"step": 10**12},
        {"attempt": 0},
        {"step": "200"},
        {"more": 1},
        {"files": {"../x": {"bytes": 1, "sha256": "0" * 64}}},
        {"files": {"manifest.json": {"bytes": 1, "sha256": "0" * 64}}},
        {"files": {"x": {"bytes": -1, "sha256": "0" * 64}}},
        {"files": {"x": {"bytes": 1, "sha256": "0"}}},
        {"files": {"x": {"bytes": 1, "sha256": "0" * 64, "more": 1}}},
    ],
)
def test_a_manifest_that_cannot_be_ours_is_refused(change: dict[str, object]) -> None:
    whole = {"format": 1, "step": 1, "epoch": 0, "attempt": 1, "world_size": 1, "strategy": "single", "files": {}}
    assert checkpoints.decode_manifest(msgspec.json.encode(whole)).step == 1
    with pytest.raises(DamagedCheckpoint):
        checkpoints.decode_manifest(msgspec.json.encode(whole | change))


def test_ranks_may_not_choose_names_that_lead_elsewhere_or_are_ours() -> None:
    assert all(map(checkpoints.is_rank_file, ("model.safetensors", "rank-0.pt", "a" * 100)))
    odd = (
        "",
        ".",
        "..",
        ".x",
        "a/b",
        "A",
        "a b",
        "a\n",
        "ä",
        "a" * 101,
        "manifest.json",
        "report.state",
        "metrics.bin",
    )
    assert not any(map(checkpoints.is_rank_file, odd))


def _kept(*names: tuple[int, int]) -> list[StoredCheckpoint]:
    return [StoredCheckpoint(step, attempt, Path()) for step, attempt in sorted(names, reverse=True)]


def _names(found: list[StoredCheckpoint]) -> list[tuple[int, int]]:
    return [(one.step, one.attempt) for one in found]


def test_what_is_kept_is_listed_newest_first_and_nothing_else_is(tmp_path: Path) -> None:
    assert checkpoints.list_checkpoints(tmp_path / "none") == []
    for name in ("000000000200-1", "000000001000-1", "000000000200-2", ".000000000300-1.part", "1-1", "odd"):
        (tmp_path / name).mkdir()
    assert _names(checkpoints.list_checkpoints(tmp_path)) == [(1000, 1), (200, 2), (200, 1)]


def test_the_one_that_is_pointed_to_is_tried_first_then_older_ones_then_those_that_were_never_committed() -> None:
    found = _kept((100, 1), (200, 1), (300, 1), (300, 2), (400, 2), (500, 2))
    assert _names(checkpoints.order_candidates(found, CheckpointPointer(300, 1, ""))) == [
        (300, 1), (200, 1), (100, 1), (500, 2), (400, 2), (300, 2)
    ]  # fmt: skip
    assert _names(checkpoints.order_candidates(_kept((400, 1)), CheckpointPointer(300, 1, ""))) == [(400, 1)]
    assert checkpoints.order_candidates(found, None) == []


@pytest.mark.parametrize(
    ("found", "keep", "pointed", "gone"),
    [
        ([(100, 1), (200, 1), (300, 1)], 2, 300, [(100, 1)]),
        ([(100, 1), (200, 1), (300, 1)], 1, 300, [(200, 1), (100, 1)]),
        ([(100, 1), (200, 1), (300, 1)], 5, 300, []),
        ([(100, 1), (200, 1), (300, 1)], 1, 100, [(200, 1)]),  # Redis is away: the one that counts stays
        ([(100, 1), (200, 2), (300, 1), (300, 2)], 2, 200, [(300, 1), (100, 1)]),  # 300 of attempt 1 was damaged
    ],
)
def test_the_newest_are_kept_and_the_one_that_counts(
    found: list[tuple[int, int]], keep: int, pointed: int, gone: list[tuple[int, int]]
) -> None:
    newest = max(attempt for _, attempt in found)
    assert _names(checkpoints.select_obsolete(_kept(*found), newest, 300, keep, [pointed])) == gone


def test_a_supervisor_that_was_taken_for_dead_removes_nothing_of_later_attempts() -> None:
    found = _kept((100, 1), (200, 1), (300, 1), (250, 2), (400, 2))
    assert _names(checkpoints.select_obsolete(found, 1, 300, 1, [300])) == [(200, 1), (100, 1)]


def test_what_an_earlier_attempt_saved_beyond_this_ones_step_goes() -> None:
    found = _kept((200, 1), (300, 2), (400, 1), (500, 1))
    assert _names(checkpoints.select_obsolete(found, 2, 300, 2, [300])) == [(500, 1), (400, 1)]
