"""Directories of an attempt's checkpoints: creates and cleans them, opens them to the ranks, publishes weights."""

import os
import shutil
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from jobs.files import checkpoints, paths
from jobs.files.checkpoints import WEIGHTS, VerifiedCheckpoint
from jobs.support import fs
from workers.runtime.launch import AttemptConfig
from workers.sandbox import run_as
from workers.sandbox.box.box import Box
from workers.supervisor.checkpoints.takeover import remove_if_there, sync_path


@dataclass(frozen=True, slots=True)
class CheckpointDirectories:
    """Directories of one attempt; the ranks know only those that they need."""

    drafts: Path
    kept: Path  # of the job: all its checkpoints
    attempt: Path


def directories_of(config: AttemptConfig) -> CheckpointDirectories:
    """Where the checkpoints of an attempt go."""
    attempt = config.attempt
    directory = paths.dir_of_attempt(config.storage, attempt).absolute()
    kept = paths.checkpoints_dir(config.storage, attempt.tenant, attempt.job).absolute()
    return CheckpointDirectories(paths.drafts_dir(directory, config.part), kept, directory)


def prepare_directories(config: AttemptConfig, directories: CheckpointDirectories, box: Box | None) -> None:
    """Create the directories of the leader's part, and remove what earlier attempts have left unfinished.

    Raises:
        OSError: the disk refuses.
    """
    directories.kept.mkdir(parents=True, exist_ok=True)
    directories.kept.chmod(0o700)  # no rank's account may pass, whatever the modes of the files in it
    sync_ancestors(config.storage.absolute(), directories.kept)
    for name in os.listdir(directories.kept):
        if name.startswith("."):
            fs.remove_tree(directories.kept / name)
    for number in range(1, config.attempt.number):
        remove_drafts(directories.attempt.with_name(str(number)))
    prepare_drafts(config, directories, box)


def prepare_drafts(config: AttemptConfig, directories: CheckpointDirectories, box: Box | None) -> None:
    """Create the directory in which the ranks of this part save, instead of one that is there.

    Raises:
        OSError: the disk refuses.
    """
    for own in (directories.drafts, paths.resume_dir(directories.attempt, config.part)):
        remove_if_there(own)
    directories.drafts.mkdir(parents=True, mode=0o700)
    if config.account is not None:
        run_as.give_tree(directories.drafts, config.account)
    if box is not None:
        box.bind(directories.drafts, writable=True)
    elif config.account is not None:
        run_as.make_passable(config.storage.absolute(), directories.drafts.parent)


def sync_ancestors(storage: Path, directory: Path) -> None:
    """Sync all directories from the storage down to this one: what is synced in it must survive a power cut.

    Raises:
        OSError: the disk refuses.
    """
    for above in takewhile(lambda above: above != storage.parent, directory.parents):
        sync_path(above)


def remove_drafts(attempt: Path) -> None:
    """Remove what only a running attempt needs of its checkpoints. What cannot be removed is logged."""
    for directory in (paths.drafts_dir(attempt), paths.resume_dir(attempt), paths.parts_dir(attempt)):
        remove_if_there(directory)


def make_readable(
    config: AttemptConfig, directories: CheckpointDirectories, found: VerifiedCheckpoint, box: Box | None
) -> Path:
    """A directory from which the ranks can read a checkpoint: its own, or one with links to the ranks' files in it,
    which only their account can enter. The files belong to the service, and are read-only.

    Raises:
        OSError: the disk refuses.
    """
    if config.account is None:
        if box is not None:
            box.bind(found.directory, writable=False)
        return found.directory
    directory = paths.resume_dir(directories.attempt, config.part)
    directory.mkdir(parents=True, mode=0o700)
    for name in found.manifest.files:
        if name not in checkpoints.RESERVED:
            _link_or_copy(found.directory / name, directory / name)
            (directory / name).chmod(0o444)
    os.chown(directory, config.account.uid, config.account.gid)
    directory.chmod(0o500)
    if box is not None:
        box.bind(directory, writable=False)
    return directory


def publish_weights(directories: CheckpointDirectories, directory: Path) -> bool:
    """Make the weights of a checkpoint an artifact of the attempt, all of whose processes are dead. False: it has no
    such file, or the attempt left one of its own.

    Raises:
        OSError: the disk refuses.
    """
    source, target = directory / WEIGHTS, paths.artifacts_dir(directories.attempt) / WEIGHTS
    if not source.exists():
        return False
    target.parent.mkdir(exist_ok=True)
    try:
        _link_or_copy(source, target)
    except FileExistsError:
        return False
    return True


def _link_or_copy(source: Path, target: Path) -> None:
    """Make a hard link to a file, or a copy where the file system has none."""
    try:
        os.link(source, target, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError:
        with source.open("rb") as reader, target.open("xb") as writer:
            shutil.copyfileobj(reader, writer, checkpoints.CHUNK_BYTES)
