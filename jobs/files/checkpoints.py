"""Checkpoints of a job on disk: their contents, the choice of the one to resume from, and which ones are deleted.

    <job>/checkpoints/<step>-<attempt>/manifest.json   written last; names every other file, with its SHA-256
                                      /...             the files of the ranks, by names that they gave
                                      /report.state    the split report up to this step
                                      /metrics.bin     the points up to this step
    <job>/checkpoints/.<step>-<attempt>.part/          while it is put together
    <job>/<attempt>/drafts/<step>/                     where the ranks write

A directory with its final name is whole and on disk. It counts when the control Redis points to it: the pointer has
the SHA-256 of the manifest, which has that of every file. Whoever reads a checkpoint verifies all of them.
"""

import errno
import hashlib
import os
import re
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from jobs.files import paths

FORMAT = 1
MANIFEST: Final = "manifest.json"
REPORT: Final = "report.state"
METRICS: Final = paths.metrics_file(Path()).name
#: Weights that people take away, by the name that rank 0 gives them.
WEIGHTS: Final = "model.safetensors"
#: What ranks may not name a file of theirs.
RESERVED = frozenset((MANIFEST, REPORT, METRICS))
MAX_FILES_OF_A_RANK = 64
MAX_STEP = 10**12 - 1
MAX_MANIFEST_BYTES = 4 * 1024 * 1024
CHUNK_BYTES = 1024 * 1024

_PLAIN = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
_NAME = re.compile(r"(\d{12})-([1-9]\d{0,8})")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: Opening a pipe without O_NONBLOCK would wait for a writer.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class DamagedCheckpoint(Exception):
    """A checkpoint is not what was saved; the message says what is wrong with it."""


class ManifestFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    bytes: int
    sha256: str  # hex


class CheckpointManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a checkpoint consists of. `step` steps are done in it; `files` has every file but the manifest itself."""

    format: int
    step: int
    epoch: int
    attempt: int
    world_size: int
    strategy: str
    files: dict[str, ManifestFile]

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(file.bytes for file in self.files.values())

    def encode(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self)) + b"\n"


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """A checkpoint on disk, by the name of its directory."""

    step: int
    attempt: int
    directory: Path


@dataclass(frozen=True, slots=True)
class CheckpointPointer:
    """The newest checkpoint that was committed, as the control Redis has it."""

    step: int
    attempt: int
    sha256: str  # of the manifest


@dataclass(frozen=True, slots=True)
class VerifiedCheckpoint:
    """A checkpoint every byte of which is what was saved."""

    manifest: CheckpointManifest
    sha256: str  # of the manifest
    directory: Path


def decode_manifest(body: bytes) -> CheckpointManifest:
    """A manifest.

    Raises:
        Damaged: it is none of ours, or names what a checkpoint cannot have.
    """
    try:
        found = msgspec.json.decode(body, type=CheckpointManifest)
    except msgspec.MsgspecError as error:
        raise DamagedCheckpoint(f"{MANIFEST} cannot be read: {error}") from error
    if found.format != FORMAT:
        raise DamagedCheckpoint(f"{MANIFEST} has format {found.format}, and this version knows {FORMAT}")
    if not 0 <= found.step <= MAX_STEP or found.attempt < 1 or found.epoch < 0:
        raise DamagedCheckpoint(f"{MANIFEST} is of step {found.step}, epoch {found.epoch} and attempt {found.attempt}")
    for name, file in found.files.items():
        if name == MANIFEST or not _PLAIN.fullmatch(name) or file.bytes < 0 or not is_sha256(file.sha256):
            raise DamagedCheckpoint(f"{MANIFEST} names {name!r}, which is not the name of a checkpoint file")
    return found


def is_rank_file(name: str) -> bool:
    """Whether a rank may give a file this name."""
    return bool(_PLAIN.fullmatch(name)) and name not in RESERVED


def is_sha256(text: str) -> bool:
    """Whether this is a SHA-256 in hex, as a manifest must have it."""
    return bool(_SHA256.fullmatch(text))


# -- what there is -----------------------------------------------------------------------------------


def directory_name(step: int, attempt: int) -> str:
    return paths.checkpoint_dir(Path(), "-", "-", step, attempt).name


def parse_name(name: str) -> tuple[int, int] | None:
    """Step and attempt of a directory with this name; None for any other name."""
    match = _NAME.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2]))


def list_checkpoints(directory: Path) -> list[StoredCheckpoint]:
    """The checkpoints in a job's directory of them, newest first: by step, then by attempt."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    listed = [StoredCheckpoint(*parsed, directory / name) for name in names if (parsed := parse_name(name))]
    return sorted(listed, key=lambda one: (one.step, one.attempt), reverse=True)


def order_candidates(found: Sequence[StoredCheckpoint], pointer: CheckpointPointer | None) -> list[StoredCheckpoint]:
    """In which order a new attempt tries them: the one that is pointed to, then older ones, and at last those above
    it, which are whole but were never committed; newest first. Without a pointer nothing was committed: none."""
    if pointer is None:
        return []
    pointed = [one for one in found if (one.step, one.attempt) == (pointer.step, pointer.attempt)]
    older = [one for one in found if one.step < pointer.step]
    newer = [one for one in found if one.step >= pointer.step and one not in pointed]
    return pointed + older + newer


def select_obsolete(
    found: Sequence[StoredCheckpoint], attempt: int, step: int, keep: int, pointed: Collection[int]
) -> list[StoredCheckpoint]:
    """What may go when `attempt` has committed its checkpoint of `step`: what earlier attempts saved at that step or
    beyond, and all but the newest `keep`. The control Redis points to one of the steps in `pointed`, which stay; so
    does what later attempts have saved, whose number is a proof that this one's supervisor was taken for dead."""
    overtaken = [one for one in found if one.step >= step and one.attempt < attempt]
    rest = [one for one in found if one not in overtaken and one.step <= step]
    return [one for one in overtaken + rest[keep:] if one.step not in pointed and one.attempt <= attempt]


# -- verification ------------------------------------------------------------------------------------

Progress = Callable[[int], None]


def read_checkpoint(directory: Path, sha256: str) -> VerifiedCheckpoint:
    """A checkpoint that was verified elsewhere, by its manifest, which must have this SHA-256.

    Raises:
        Damaged: it has another.
        OSError: the disk refuses.
    """
    top = _open_directory(directory)
    try:
        body = _read_contents(top, MANIFEST)
    finally:
        os.close(top)
    if hashlib.sha256(body).hexdigest() != sha256:
        raise DamagedCheckpoint(f"{MANIFEST} is not the one that was verified (its SHA-256 is another)")
    return VerifiedCheckpoint(decode_manifest(body), sha256, directory)


def _open_directory(checkpoint: Path) -> int:
    """A descriptor of it. Raises DamagedCheckpoint: there is none."""
    try:
        return os.open(checkpoint, _DIRECTORY)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DamagedCheckpoint("its directory is missing") from error


def verify_checkpoint(
    directory: Path, sha256: str | None = None, read: Progress = lambda _: None
) -> VerifiedCheckpoint:
    """Read every byte of a checkpoint. `sha256` is what its manifest must have, where that is known; `read` is told
    how many bytes were read, as they are.

    Raises:
        Damaged: a file is missing, is not a regular file, has another size or SHA-256, or is one too many.
        OSError: the disk refuses.
    """
    top = _open_directory(directory)
    try:
        body = _read_contents(top, MANIFEST)
        digest = hashlib.sha256(body).hexdigest()
        if sha256 not in (None, digest):
            raise DamagedCheckpoint(f"{MANIFEST} is not the one that was committed (its SHA-256 is another)")
        manifest = decode_manifest(body)
        there = set(os.listdir(top)) - {MANIFEST}
        if there != set(manifest.files):
            odd = min(there ^ set(manifest.files))
            raise DamagedCheckpoint(f"{odd} is missing" if odd in manifest.files else f"{odd!r} does not belong to it")
        for name, file in manifest.files.items():
            _check_file(top, name, file, read)
    finally:
        os.close(top)
    if directory.name != directory_name(manifest.step, manifest.attempt):
        raise DamagedCheckpoint(f"{MANIFEST} is of step {manifest.step} of attempt {manifest.attempt}")
    return VerifiedCheckpoint(manifest, digest, directory)


def _check_file(top: int, name: str, file: ManifestFile, read: Progress) -> None:
    with _open_plain_file(top, name) as fd:
        size = os.fstat(fd).st_size
        if size != file.bytes:
            raise DamagedCheckpoint(f"{name} has {size} bytes instead of {file.bytes}")
        digest = hashlib.sha256()
        for chunk in _read_chunks(fd):
            digest.update(chunk)
            read(len(chunk))
    if digest.hexdigest() != file.sha256:
        raise DamagedCheckpoint(f"{name} is not what was saved (its SHA-256 is another)")


def _read_contents(top: int, name: str) -> bytes:
    with _open_plain_file(top, name) as fd:
        if os.fstat(fd).st_size > MAX_MANIFEST_BYTES:
            raise DamagedCheckpoint(f"{name} is too large for a manifest")
        return b"".join(_read_chunks(fd))


@contextmanager
def _open_plain_file(top: int, name: str) -> Iterator[int]:
    """A plain file of a directory, open. Raises as `verify` does."""
    try:
        fd = os.open(name, _FILE, dir_fd=top)
    except FileNotFoundError as error:
        raise DamagedCheckpoint(f"{name} is missing") from error
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise DamagedCheckpoint(f"{name} is a link") from error
        raise
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise DamagedCheckpoint(f"{name} is not a regular file")
        yield fd
    finally:
        os.close(fd)


def _read_chunks(fd: int) -> Iterator[bytes]:
    while chunk := os.read(fd, CHUNK_BYTES):
        yield chunk
