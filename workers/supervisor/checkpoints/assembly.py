"""Assembles a checkpoint under its final name, on disk, from what the ranks have written and the supervisor knows."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from jobs.files import checkpoints
from jobs.files.checkpoints import FORMAT, MANIFEST, METRICS, REPORT, CheckpointManifest, ManifestFile
from jobs.protocol.records import Saved
from jobs.support import failpoints, fs
from workers.runtime.launch import AttemptConfig
from workers.supervisor.checkpoints.directories import CheckpointDirectories
from workers.supervisor.checkpoints.takeover import copy_prefix, remove_if_there, sync_path, take_over_files, write_file


@dataclass(frozen=True, slots=True)
class BarrierState:
    """What the supervisor knows while all ranks wait at a checkpoint barrier. `report` is None where a fault in the
    report prevents its state."""

    saves: tuple[Saved, ...]  # of all ranks, in their order
    report: bytes | None
    metrics: tuple[Path, int]  # the attempt's file, and its length at the barrier
    at: float  # monotonic

    @property
    def step(self) -> int:
        return self.saves[0].step


@dataclass(frozen=True, slots=True)
class DurableCheckpoint:
    """A checkpoint that is complete and on disk."""

    manifest: CheckpointManifest
    sha256: str
    directory: Path
    at: float  # of its barrier

    @property
    def step(self) -> int:
        return self.manifest.step


@dataclass(frozen=True, slots=True)
class DraftSource:
    """Where the ranks of a part save, and the account that their files have; None: the service's own. `is_brought`:
    they save on a node that does not mount the storage, and brings the files there."""

    drafts: Path
    ranks: range
    uid: int | None
    is_brought: bool = False


def source_of(config: AttemptConfig, drafts: Path) -> DraftSource:
    """That of the part that `config` is of."""
    return DraftSource(drafts, config.ranks, None if config.account is None else config.account.uid)


def part_directory(config: AttemptConfig, directories: CheckpointDirectories, step: int) -> Path:
    """Where the checkpoint of a step is assembled."""
    return directories.kept / f".{checkpoints.directory_name(step, config.attempt.number)}.part"


def assemble_checkpoint(
    config: AttemptConfig, directories: CheckpointDirectories, state: BarrierState, sources: Sequence[DraftSource]
) -> DurableCheckpoint:
    """Assemble a checkpoint in a directory of its own, sync everything, and rename the directory to its final name.
    `sources` are those of all parts.

    Raises:
        OSError: the disk refuses.
        TakeoverRefused: the ranks' files are not what they reported.
    """
    part = part_directory(config, directories, state.step)
    final = directories.kept / checkpoints.directory_name(state.step, config.attempt.number)
    remove_if_there(part)
    part.mkdir(mode=0o700)
    files: dict[str, ManifestFile] = {}
    for source in sources:
        saves = [saved for saved in state.saves if saved.rank in source.ranks]
        files |= take_over_files(saves, source.drafts / str(state.step), part, source.uid)
    own = {METRICS: partial(copy_prefix, *state.metrics)}
    if state.report is not None:
        own[REPORT] = partial(write_file, state.report)
    for name, write in own.items():
        files[name] = write(part / name)
    manifest = CheckpointManifest(
        format=FORMAT,
        step=state.step,
        epoch=state.saves[0].epoch,
        attempt=config.attempt.number,
        world_size=config.world_size,
        strategy=config.strategy,
        files=dict(sorted(files.items())),
    )
    body = manifest.encode()
    write_file(body, part / MANIFEST)
    failpoints.reach("checkpoint.written")
    for name in (*own, MANIFEST):
        sync_path(part / name)
    sync_path(part)
    failpoints.reach("checkpoint.synced")
    if final.exists():  # a directory of that name is none of this run's
        fs.remove_tree(final)
    part.rename(final)
    failpoints.reach("checkpoint.renamed")
    sync_path(directories.kept)
    return DurableCheckpoint(manifest, hashlib.sha256(body).hexdigest(), final, state.at)
