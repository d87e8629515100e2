"""Makes a service from a back-up: in a data directory of its own, or in a Redis server and a storage directory."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import msgspec
import redis
import zstandard

from jobs import store
from jobs.store import KeyDump
from jobs.store.client import RedisStore
from jobs.support import fs
from shardyard.contract.errors import InvalidRequest
from shardyard.service import embedded_redis
from shardyard.service.backup.bucket_mirror import BackupBucket
from shardyard.service.backup.file_list import WalkStep, list_paths, read_file_list
from shardyard.service.backup.manifest import (
    CONTROL,
    FILE_LIST,
    FIRST_FORMAT,
    STORAGE,
    TOKEN,
    BackupManifest,
    read_manifest,
)
from shardyard.service.backup.refusals import BackupError, disk_errors, refuse_unless_empty
from shardyard.service.backup.secret_notice import find_unreadable_secrets
from shardyard.service.backup.small_files import copy_file
from shardyard.service.backup.source import LOCK, Say, connect_control, running_redis
from shardyard.service.backup.storage_restore import restore_storage
from shardyard.service.processes import sole_owner
from shardyard.service.secret_key_file import SECRET_KEY_FILE, find_key_file

#: Keys that are written to Redis at a time.
BATCH = 1000
#: What a restore makes first, and what it may meet in a directory that counts as empty.
_PART = ".restoring"
_KNOWN = frozenset((_PART, LOCK))


def restore_data_dir(source: Path, data_dir: Path, say: Say, bucket: BackupBucket | None = None) -> BackupManifest:
    """Make a data directory from a back-up, so that `shardyard up` on it finds every job. What ran when the back-up was
    made is queued again. The file of secret keys may be in the directory already. `bucket`: where the files of the
    storage go instead.

    Raises:
        InvalidRequest: the directory is not empty.
        BackupError: the back-up is not whole; the directory is then left empty.
        ServiceError: the Redis server does not start.
    """
    made = read_manifest(source)
    refuse_unless_empty(data_dir, "a restore needs a data directory of its own", {*_KNOWN, SECRET_KEY_FILE})
    if bucket is not None:
        bucket.require_empty()
    part = data_dir / _PART
    with disk_errors(), sole_owner(data_dir / LOCK), _removed_afterwards(part):
        _unpack_files(source, made, part)
        server = embedded_redis.prepare_redis("control", part, embedded_redis.find_server())
        with running_redis(server, say), connect_control(server.url) as control:
            _load_keys(control, part / CONTROL)
            unreadable = find_unreadable_secrets(control, find_key_file(data_dir), made)
        if bucket is not None:
            bucket.fill(part / STORAGE)
        for name in (*(() if bucket is not None else (STORAGE,)), TOKEN, "control"):
            if (part / name).exists():
                (part / name).rename(data_dir / name)
        fs.sync_directory(data_dir)
    if unreadable is not None:
        say(unreadable)
    return made


def restore_outside(
    source: Path, control: RedisStore, storage: Path, bucket: BackupBucket | None = None
) -> BackupManifest:
    """Restore into the caller's own Redis server and a storage directory, both empty; or into a bucket by way of that
    directory.

    Raises:
        InvalidRequest: one of the two is not empty.
        BackupError: the back-up is not whole; both are then left empty.
        Unavailable: Redis does not answer.
    """
    made = read_manifest(source)
    refuse_unless_empty(storage, "a restore needs a storage directory of its own", _KNOWN)
    if next(control.client.scan_iter(match="sy:*", count=BATCH), None) is not None:
        raise InvalidRequest("this Redis server holds a service already; a restore needs an empty one")
    if bucket is not None:
        bucket.require_empty()
    part = storage / _PART
    with disk_errors(), _removed_afterwards(part):
        _unpack_files(source, made, part)
        if bucket is not None:
            bucket.fill(part / STORAGE)
        for path in () if bucket is not None else sorted((part / STORAGE).iterdir()):
            path.rename(storage / path.name)
        fs.sync_directory(storage)
        _load_keys(control, part / CONTROL)
    return made


def _unpack_files(source: Path, made: BackupManifest, part: Path) -> None:
    """Copy every file of a back-up, and check it against the manifest."""
    for name in (CONTROL, TOKEN, FILE_LIST):
        if name in made.files:
            _unpack_file(source, made, name, part)
    with _open_steps(made, part) as steps:
        restore_storage(source, part, steps)
    os.sync()


def _unpack_file(source: Path, made: BackupManifest, name: str, part: Path) -> None:
    try:
        copied = copy_file(source / name, part / name)
    except FileNotFoundError:
        raise BackupError(f"the back-up is not complete: {name} is missing") from None
    if copied != made.files[name]:
        raise BackupError(f"the back-up is damaged: {name} is not what was saved (its SHA-256 is another)")


@contextlib.contextmanager
def _open_steps(made: BackupManifest, part: Path) -> Iterator[Iterator[WalkStep]]:
    """What is in the storage directory, from the checked copy of the list."""
    if made.format == FIRST_FORMAT:
        paths = {PurePosixPath(path): file for path, file in made.files.items()}
        yield list_paths({path.parts[1:]: file for path, file in paths.items() if path.parts[0] == STORAGE})
    else:
        with (part / FILE_LIST).open("rb") as file:
            yield read_file_list(file)


def _load_keys(control: RedisStore, file: Path) -> None:
    """Put the keys into an empty Redis, and end what ran."""
    entries = msgspec.msgpack.decode(zstandard.decompress(file.read_bytes()), type=tuple[KeyDump, ...])
    for start in range(0, len(entries), BATCH):
        with control.client.pipeline(transaction=False) as pipe:
            for entry in entries[start : start + BATCH]:
                _restore_key(pipe, entry)
            pipe.execute()
    control.run(store.requeue_restored())


def _restore_key(pipe: "redis.client.Pipeline", entry: KeyDump) -> None:
    pairs = zip(entry.values[::2], entry.values[1::2], strict=False)
    match entry.kind:
        case "string":
            pipe.set(entry.key, entry.values[0])
        case "hash":
            pipe.hset(entry.key, mapping=dict(pairs))
        case "set":
            pipe.sadd(entry.key, *entry.values)
        case "zset":
            pipe.zadd(entry.key, {member: float(score) for member, score in pairs})
        case kind:
            raise BackupError(f"the back-up has a key of the unknown kind {kind!r}")
    if entry.milliseconds > 0:
        pipe.pexpire(entry.key, entry.milliseconds)


@contextlib.contextmanager
def _removed_afterwards(directory: Path) -> Iterator[None]:
    """An empty directory for the restore, without remains of one that was killed."""
    fs.remove_tree(directory)
    directory.mkdir(parents=True, mode=0o700)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            fs.remove_tree(directory)
