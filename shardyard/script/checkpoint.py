"""A script's checkpoints on disk: stored completely or not at all, even if the machine stops during a save.

    <output>/checkpoints/<name>                     a copy of the file or directory of that name, the latest one
                        /.<nonce>.part              while it is written
    <output>/.checkpoints/<number>-<digest>.json    what is in it, with the SHA-256 of every file

`save` writes and syncs the copy, then its manifest, and only then gives the copy its name. From the manifest on the
checkpoint counts, under its name or still under that of the draft; `workers.supervisor.checkpoints.script_resume`
finds and verifies it when the job is started again. Numbers grow from one checkpoint of an attempt to the next; clocks
may jump.

Only the standard library is needed to import this module.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

VERSION: Final = 1
CHECKPOINTS: Final = "checkpoints"
MANIFESTS: Final = ".checkpoints"
#: In one checkpoint, directories included.
MAX_FILES: Final = 10_000
MAX_MANIFEST_BYTES: Final = 8 * 1024 * 1024
_CHUNK_BYTES: Final = 1024 * 1024


@dataclass(slots=True)
class _CheckpointContents:
    """The contents of a checkpoint, by their paths within it, with "/" between parts; "" is the checkpoint itself."""

    files: list[tuple[str, int, str]] = field(default_factory=list)  # path, bytes, SHA-256 in hex
    directories: list[str] = field(default_factory=list)  # from the outermost on

    def check(self) -> None:
        if len(self.files) + len(self.directories) > MAX_FILES:
            raise ValueError(f"checkpoint: there are more than {MAX_FILES:,} files in it; pack them into one")


def save_checkpoint(source: Path, output: Path) -> Path:
    """Store a copy of a file or directory in `output`. Returns the path of the copy.

    What lies there already is not copied, and must not be changed afterwards.

    Raises:
        ValueError: there are too many files in it.
        OSError: it cannot be read, or the copy cannot be written.
    """
    source = source.resolve()
    places = output / CHECKPOINTS
    target = places / source.name
    for directory in (places, output / MANIFESTS):
        directory.mkdir(parents=True, exist_ok=True)
    if source == target.resolve():
        contents = _copy_source(source, None)
        sync_directory(places)
        _record_checkpoint(output, source.name, "", contents)
        return target
    draft = places / f".{os.urandom(8).hex()}.part"
    with _removed_unless_done(draft):
        contents = _copy_source(source, draft)
        sync_directory(places)
        _record_checkpoint(output, source.name, draft.name, contents)
    _replace_target(draft, target)
    sync_directory(places)
    return target


@contextmanager
def _removed_unless_done(draft: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        _remove_path(draft)
        raise


# -- copies ----------------------------------------------------------------------------------------


def _copy_source(source: Path, draft: Path | None) -> _CheckpointContents:
    """Read `source` and sync it to disk: a copy at `draft`, or in place."""
    contents = _CheckpointContents()
    if source.is_dir():
        _take_directory(source, draft, "", contents)
    else:
        contents.files.append(("", *_take_file(source, draft)))
    return contents


def _take_directory(source: Path, draft: Path | None, path: str, contents: _CheckpointContents) -> None:
    if draft is not None:
        draft.mkdir()
    contents.directories.append(path)
    for name in sorted(os.listdir(source)):
        inner = f"{path}/{name}" if path else name
        below = draft / name if draft is not None else None
        if (source / name).is_dir():
            _take_directory(source / name, below, inner, contents)
        elif (source / name).exists():  # a link to nothing has no contents to keep
            contents.files.append((inner, *_take_file(source / name, below)))
            if below is not None:
                shutil.copystat(source / name, below)
        contents.check()
    sync_directory(draft or source)


def _take_file(source: Path, draft: Path | None) -> tuple[int, str]:
    """Size and SHA-256 of a file."""
    if not source.is_file():
        raise OSError(f"checkpoint: {source} is neither a file nor a directory")
    digest, size, chunk = hashlib.sha256(), 0, memoryview(bytearray(_CHUNK_BYTES))
    with source.open("rb", buffering=0) as given, (draft or Path(os.devnull)).open("wb") as kept:
        while count := given.readinto(chunk):
            digest.update(chunk[:count])
            size += count
            if draft is not None:
                kept.write(chunk[:count])
        kept.flush()
        os.fsync(given.fileno() if draft is None else kept.fileno())
    return size, digest.hexdigest()


def _replace_target(draft: Path, target: Path) -> None:
    """Rename a draft to its final name, and replace an earlier one. Until then the manifest names the draft."""
    if not (draft.is_dir() or target.is_dir()):
        draft.replace(target)
        return
    old = draft.with_suffix(".old")
    with suppress(FileNotFoundError):
        target.rename(old)
    try:
        draft.rename(target)
    except OSError:
        with suppress(FileNotFoundError):
            old.rename(target)
        raise
    _remove_path(old)


def _remove_path(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


# -- manifests -------------------------------------------------------------------------------------


def _record_checkpoint(output: Path, name: str, draft: str, contents: _CheckpointContents) -> None:
    """Write the manifest of a checkpoint that is on disk. It replaces the earlier one of that name."""
    places = output / MANIFESTS
    body = json.dumps(
        {
            "version": VERSION,
            "name": name,
            "draft": draft,
            "directories": contents.directories,
            "files": contents.files,
        }
    ).encode()
    if len(body) > MAX_MANIFEST_BYTES:
        raise ValueError("checkpoint: the names of the files in it are too long; pack them into one")
    digest = hashlib.sha256(os.fsencode(name)).hexdigest()[:16]
    there = [path for path in places.iterdir() if path.suffix == ".json"]
    number = 1 + max((int(path.name[:12]) for path in there if path.name[:12].isdecimal()), default=0)
    manifest = places / f"{number:012d}-{digest}.json"
    written = places / f".{os.urandom(8).hex()}.part"
    with _removed_unless_done(written):
        with written.open("wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        written.rename(manifest)
    sync_directory(places)
    sync_directory(output)
    for path in there:
        if path.name.endswith(f"-{digest}.json"):
            path.unlink(missing_ok=True)


def sync_directory(directory: Path) -> None:
    """Sync the names in a directory to disk.

    Raises:
        OSError: the disk refuses.
    """
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
