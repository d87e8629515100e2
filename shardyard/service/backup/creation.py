"""Makes a back-up of a service, which may keep running."""

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import zstandard

import shardyard
from jobs import store
from jobs.files.identity import NONCE_FILE
from jobs.model.records import Fields
from jobs.protocol.names import secrets_key
from jobs.store import KeyDump
from jobs.store.call import read_hash
from jobs.store.packed_jobs import PackedJobConverter
from shardyard.contract.errors import InvalidRequest
from shardyard.service.backup.file_list import FileListWriter
from shardyard.service.backup.left_out import LeftOutCounter
from shardyard.service.backup.manifest import (
    CONTROL,
    FILE_LIST,
    FORMAT,
    SHARED,
    STORAGE,
    TOKEN,
    BackupManifest,
    EncryptedSecrets,
    StoredTotals,
    write_manifest,
)
from shardyard.service.backup.refusals import BackupError, disk_errors, refuse_unless_empty
from shardyard.service.backup.selection import StorageSelection
from shardyard.service.backup.small_files import BackedUpFile, copy_file, write_file
from shardyard.service.backup.source import BackupSource
from shardyard.service.backup.storage_copy import StorageCopy

#: After this long the files of users' programs that were not copied yet are left out: a day.
DEADLINE_SECONDS = 86_400.0


def make_backup(service: BackupSource, destination: Path, deadline_seconds: float = DEADLINE_SECONDS) -> BackupManifest:
    """Back up a service into an empty or new directory. Its own files are copied whenever that ends, files of users'
    programs until the deadline.

    Raises:
        InvalidRequest: the directory is not empty, or is part of what is backed up.
        BackupError: Redis and the storage directory are not of one service, or the disk refuses.
        Unavailable: Redis does not answer.
    """
    deadline = time.monotonic() + deadline_seconds
    refuse_unless_empty(destination, "the back-up needs a directory of its own")
    if destination.resolve().is_relative_to(service.storage.resolve()):
        raise InvalidRequest(f"{destination} is in the storage directory, which is what is backed up; name another")
    with disk_errors():
        destination.mkdir(parents=True, exist_ok=True, mode=0o700)
        PackedJobConverter(service.control).convert()
        entries = service.control.run(store.dump_keys())
        service.fetch(service.storage)  # after Redis was read, as all files are
        _refuse_another_storage(entries, service.storage)
        files = {CONTROL: write_file(destination / CONTROL, _pack_entries(entries))}
        if service.token is not None and service.token.is_file():
            files[TOKEN] = copy_file(service.token, destination / TOKEN)
        left_out = LeftOutCounter()
        selection = StorageSelection(service.storage, _count_attempts(entries))
        stored, files[FILE_LIST] = _copy_storage(selection, destination, left_out, deadline)
        made = BackupManifest(
            format=FORMAT,
            version=shardyard.__version__,
            made_at=time.time(),
            jobs=_count_states(entries),
            files=files,
            stored=stored,
            left_out=left_out.list_causes(),
            secrets=_describe_secrets(entries, service.key_file),
        )
        os.sync()
        write_manifest(destination, made)
    return made


def _copy_storage(
    selection: StorageSelection, destination: Path, left_out: LeftOutCounter, deadline: float
) -> tuple[StoredTotals, BackedUpFile]:
    """Copy the storage directory; how much that was, and the list of it."""
    for directory in (STORAGE, SHARED):
        (destination / directory).mkdir(mode=0o700)
    with FileListWriter(destination / FILE_LIST) as steps:
        copy = StorageCopy(selection, destination, steps, left_out, lambda: time.monotonic() > deadline)
        stored = copy.run()
    return stored, steps.written


def _refuse_another_storage(entries: Iterable[KeyDump], storage: Path) -> None:
    nonce = next((entry.values[0].decode() for entry in entries if entry.key == b"sy:storage"), None)
    if nonce is None:
        raise BackupError("no service has used this Redis server yet, so there is nothing to back up")
    mark = storage / NONCE_FILE
    if not mark.is_file() or mark.read_text() != nonce:
        raise BackupError(f"{storage} is not the storage directory of the service that uses this Redis server")


def _count_attempts(entries: Iterable[KeyDump]) -> dict[str, int]:
    """How many attempts each job has had."""
    return {ref: int(fields[b"attempt"]) for ref, fields in _read_jobs(entries)}


def _count_states(entries: Iterable[KeyDump]) -> dict[str, int]:
    return dict(Counter(fields[b"state"].decode() for _, fields in _read_jobs(entries)))


def _read_jobs(entries: Iterable[KeyDump]) -> Iterator[tuple[str, Fields]]:
    """Refs and fields of all jobs."""
    for entry in entries:
        kind, _, ref = entry.key.decode().removeprefix("sy:").partition(":")
        if kind == "job":
            yield ref, read_hash(entry.values)


def _describe_secrets(entries: Iterable[KeyDump], key_file: Path) -> EncryptedSecrets | None:
    prefix = secrets_key("").encode()
    count = sum(len(read_hash(entry.values)) for entry in entries if entry.key.startswith(prefix))
    return EncryptedSecrets(count=count, key_file_left_out=str(key_file)) if count else None


def _pack_entries(entries: tuple[KeyDump, ...]) -> bytes:
    packed: bytes = zstandard.compress(msgspec.msgpack.encode(entries))
    return packed
