"""The manifest of a back-up: what it holds, and what was left out and why."""

from pathlib import Path, PurePosixPath
from typing import Final

import msgspec

from jobs.model.state import TERMINAL
from jobs.support.fs import sync_directory
from shardyard import formatting
from shardyard.service.backup.left_out import LeftOutEntries
from shardyard.service.backup.refusals import BackupError
from shardyard.service.backup.small_files import BackedUpFile, write_file

#: The first had no list of files of its own: its manifest names them all.
FIRST_FORMAT: Final = 1
FORMAT: Final = 2
MANIFEST, CONTROL, TOKEN = "manifest.json", "control.msgpack.zst", "admin.token"
FILE_LIST, STORAGE, SHARED = "files.jsonl.zst", "storage", "shared"


class StoredTotals(msgspec.Struct, frozen=True, kw_only=True):
    """How many entries of the storage directory a back-up holds. `bytes`: those that the files take in it."""

    directories: int
    files: int
    bytes: int


class EncryptedSecrets(msgspec.Struct, frozen=True, kw_only=True):
    """The secrets of users in a back-up. They are encrypted, and the file with the keys is not in it."""

    count: int
    key_file_left_out: str  # its path at the time


class BackupManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a back-up holds. `jobs`: state -> how many. `files` are those beside the manifest, by name; in the first
    format all files, by their paths within the back-up, and `stored` is None. `secrets`: None where there are none."""

    format: int
    version: str  # of the program that made it
    made_at: float  # seconds since the epoch
    jobs: dict[str, int]
    files: dict[str, BackedUpFile]
    stored: StoredTotals | None = None
    left_out: list[LeftOutEntries] = []
    secrets: EncryptedSecrets | None = None


def write_manifest(directory: Path, made: BackupManifest) -> None:
    """Make a back-up valid. Raises OSError."""
    write_file(directory / f".{MANIFEST}", msgspec.json.format(msgspec.json.encode(made)))
    (directory / f".{MANIFEST}").rename(directory / MANIFEST)
    sync_directory(directory)


def read_manifest(source: Path) -> BackupManifest:
    """Raises:
    BackupError: there is no back-up, or one that this version does not know.
    """
    try:
        found = msgspec.json.decode((source / MANIFEST).read_bytes(), type=BackupManifest)
    except FileNotFoundError:
        raise BackupError(f"{source} is not a complete back-up: it has no {MANIFEST}") from None
    except (OSError, msgspec.MsgspecError) as error:
        raise BackupError(f"{source / MANIFEST} cannot be read: {error}") from error
    if found.format not in (FIRST_FORMAT, FORMAT):
        raise BackupError(f"{source} has format {found.format}, and this version knows {FORMAT}; install a newer one")
    needed = {CONTROL} if found.format == FIRST_FORMAT else {CONTROL, FILE_LIST}
    outside = [path for path in found.files if not _is_within(PurePosixPath(path), found.format)]
    if outside or not needed <= found.files.keys():
        raise BackupError(
            f"{source / MANIFEST} is not the manifest of a back-up" + (f": it names {outside[0]!r}" if outside else "")
        )
    return found


def describe_backup(made: BackupManifest) -> str:
    """A back-up in words."""
    jobs = sum(made.jobs.values())
    waiting = sum(count for state, count in made.jobs.items() if state not in TERMINAL)
    files, size = len(made.files), sum(file.bytes for file in made.files.values())
    if made.stored is not None:
        files, size = files + made.stored.files, size + made.stored.bytes
    return f"{jobs} jobs ({waiting} of them not ended), {formatting.count_noun(files, 'file')}, {size / 1e6:.1f} MB"


def _is_within(path: PurePosixPath, layout: int) -> bool:
    if layout == FIRST_FORMAT and path.parts[:1] == (STORAGE,):
        return ".." not in path.parts
    return path.parts in ((CONTROL,), (TOKEN,), (FILE_LIST,))
