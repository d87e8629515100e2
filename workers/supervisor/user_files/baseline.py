"""Records what the bundle put into the working directory, so that the end of the attempt can tell what is new.

It is written before the ranks start, where no rank's account can write, together with all that decides what is kept: a
later process can keep the files of an attempt whose supervisor has died.
"""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from jobs.model.spec import JobSpec, ScriptProgram
from workers.runtime.launch import AttemptConfig, AttemptDirectory


class BundledFileStamp(NamedTuple):
    """What is compared of a file: whoever changes its contents changes one of these."""

    bytes: int
    mtime_ns: int
    inode: int


class Baseline(msgspec.Struct, frozen=True):
    """The files of the bundle by their paths, the patterns of `program.keep`, the limit of the job in bytes, and whom
    the files belong to (None: to the service itself). The layout grows at the end."""

    files: dict[str, BundledFileStamp]
    keep: tuple[str, ...] | None
    limit: int
    uid: int | None


def write_baseline(directory: AttemptDirectory, config: AttemptConfig, spec: JobSpec, files: Iterable[str]) -> None:
    """Record the files of a bundle that was just unpacked, unless none are to be kept in any case.

    Raises:
        OSError: the disk refuses.
    """
    program, asked = spec.program, spec.limits.artifact_bytes
    if not isinstance(program, ScriptProgram) or program.keep == ():
        return
    baseline = Baseline(
        files={path: _stamp_file(directory, path) for path in files},
        keep=program.keep,
        limit=config.max_artifact_bytes if asked is None else min(asked, config.max_artifact_bytes),
        uid=config.account.uid if config.account is not None else None,
    )
    directory.baseline.write_bytes(msgspec.json.encode(baseline))


def read_baseline(directory: AttemptDirectory) -> Baseline | None:
    """The record of an attempt; None where it keeps no files, or was started by an earlier version.

    Raises:
        OSError, msgspec.MsgspecError: it cannot be read.
    """
    try:
        return msgspec.json.decode(directory.baseline.read_bytes(), type=Baseline)
    except FileNotFoundError:
        return None


def _stamp_file(directory: AttemptDirectory, path: str) -> BundledFileStamp:
    found = (directory.work / path).lstat()
    return BundledFileStamp(found.st_size, found.st_mtime_ns, found.st_ino)
