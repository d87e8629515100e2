"""Back-up and restore of a whole service: what its control Redis holds, and its storage directory.

    <back-up>/manifest.json            written last: a directory without it is no back-up
             /control.msgpack.zst      every key of the control Redis, as it was at one moment
             /storage/...              the files of the storage directory
             /admin.token              of a service that `shardyard up` runs

Redis is read first and at one moment, the files after it. A file that Redis knew of then is there afterwards, or was
deleted by a user meanwhile; what came later is left out where it would be in the way. So the service may run while it
is backed up. Keys are kept by their contents, not as Redis would dump them, so any version of Redis or Valkey takes
them back.
"""

import contextlib
import hashlib
import os
import shutil
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import msgspec
import redis
import zstandard

import shardyard
from jobs import store
from jobs.files import checkpoints, paths
from jobs.files.identity import NONCE_FILE
from jobs.model.records import Fields
from jobs.model.state import TERMINAL
from jobs.store import KeyDump
from jobs.store.call import read_hash
from jobs.store.client import CONNECT_SECONDS, RedisStore
from jobs.store.packed_jobs import PackedJobConverter
from jobs.support.fs import sync_directory
from shardyard.contract.errors import InvalidRequest, ShardyardError
from shardyard.service import embedded_redis
from shardyard.service.processes import ProcessGroup, sole_owner

FORMAT = 1
MANIFEST, CONTROL, STORAGE, TOKEN = "manifest.json", "control.msgpack.zst", "storage", "admin.token"
#: One call reads all keys.
REPLY_SECONDS = 300.0
CHUNK = 1024 * 1024
#: Keys that are written to Redis at a time.
BATCH = 1000
_CHECKPOINTS = paths.checkpoints_dir(Path(), "", "").name
#: Of an attempt: what only its processes need.
_UNFINISHED = frozenset(part(Path()).name for part in (paths.drafts_dir, paths.resume_dir, paths.user_file_draft))
#: What a restore makes first, and what it may meet in a directory that counts as empty.
_PART, _LOCK = ".restoring", "up.lock"

Say = Callable[[str], None]


class BackupError(ShardyardError):
    """A back-up cannot be made, is not valid, or is damaged."""

    code = "backup_failed"


class BackedUpFile(msgspec.Struct, frozen=True, array_like=True):
    bytes: int
    sha256: str


class BackupManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a back-up holds. `jobs`: state -> how many."""

    format: int
    version: str  # of the program that made it
    made_at: float  # seconds since the epoch
    jobs: dict[str, int]
    files: dict[str, BackedUpFile]  # by path within the back-up


@dataclass(frozen=True, slots=True)
class BackupSource:
    """The service to back up. `token` is the file with its admin token, if that is known."""

    control: RedisStore
    storage: Path
    token: Path | None


# -- which service ---------------------------------------------------------------------------------


@contextlib.contextmanager
def embedded_service(data_dir: Path, say: Say) -> Iterator[BackupSource]:
    """The service of `shardyard up` on `data_dir`, running or stopped. A stopped one has its control Redis started for
    as long as this is entered.

    Raises:
        InvalidRequest: there is none.
        ServiceError: its Redis does not start.
    """
    if not (data_dir / "control" / "appendonlydir").is_dir():
        raise InvalidRequest(f"{data_dir} is not the data directory of a service; name it with --data-dir")
    server = embedded_redis.prepare_redis("control", data_dir, embedded_redis.find_server())
    with contextlib.ExitStack() as stack:
        if not embedded_redis.redis_answers(server):
            stack.enter_context(sole_owner(data_dir / _LOCK))
            stack.enter_context(_running_redis(server, say))
        control = stack.enter_context(connect_control(server.url))
        yield BackupSource(control, data_dir / STORAGE, data_dir / TOKEN)


@contextlib.contextmanager
def connect_control(url: str) -> Iterator[RedisStore]:
    """A service with its own control Redis."""
    control = RedisStore(
        redis.Redis.from_url(url, socket_timeout=REPLY_SECONDS, socket_connect_timeout=CONNECT_SECONDS)
    )
    try:
        yield control
    finally:
        control.close()


@contextlib.contextmanager
def _running_redis(server: embedded_redis.EmbeddedRedis, say: Say) -> Iterator[None]:
    processes = ProcessGroup(say=say)
    processes.start(server.service)
    try:
        embedded_redis.wait_until_it_answers(server)
        yield
    finally:
        processes.stop(server.name)


# -- back-up ---------------------------------------------------------------------------------------


def make_backup(service: BackupSource, destination: Path) -> BackupManifest:
    """Back up a service into an empty or new directory.

    Raises:
        InvalidRequest: the directory is not empty, or is part of what is backed up.
        BackupError: Redis and the storage directory are not of one service, or the disk refuses.
        Unavailable: Redis does not answer.
    """
    _refuse_unless_empty(destination, "the back-up needs a directory of its own")
    if destination.resolve().is_relative_to(service.storage.resolve()):
        raise InvalidRequest(f"{destination} is in the storage directory, which is what is backed up; name another")
    with _disk_errors():
        destination.mkdir(parents=True, exist_ok=True, mode=0o700)
        PackedJobConverter(service.control).convert()
        entries = service.control.run(store.dump_keys())
        _refuse_another_storage(entries, service.storage)
        files = {CONTROL: _write_file(destination / CONTROL, _pack_entries(entries))}
        if service.token is not None and service.token.is_file():
            files[TOKEN] = _copy_file(service.token, destination / TOKEN)
        for path in _stored_paths(service.storage, _count_attempts(entries)):
            with contextlib.suppress(FileNotFoundError):  # a user has just deleted the job
                name = f"{STORAGE}/{path}"
                files[name] = _copy_file(service.storage / path, destination / name)
        made = BackupManifest(
            format=FORMAT, version=shardyard.__version__, made_at=time.time(), jobs=_count_states(entries), files=files
        )
        os.sync()
        _write_file(destination / f".{MANIFEST}", msgspec.json.format(msgspec.json.encode(made)))
        (destination / f".{MANIFEST}").rename(destination / MANIFEST)
        sync_directory(destination)
    return made


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


def _stored_paths(storage: Path, attempts: Mapping[str, int]) -> Iterator[PurePosixPath]:
    """Paths within the storage directory that belong into a back-up."""
    for directory, _, names in os.walk(storage):
        for name in names:
            path = PurePosixPath(Path(directory, name).relative_to(storage))
            if _belongs_to_backup(path, storage, attempts):
                yield path


def _belongs_to_backup(path: PurePosixPath, storage: Path, attempts: Mapping[str, int]) -> bool:
    """Not what is still being written, and nothing of an attempt that Redis did not know of: after a restore the same
    number is given again, and its files must not be there. So it is with checkpoints; of those that Redis did not know
    of yet the newest may be all that is left, when older ones have gone meanwhile."""
    kind, *rest = path.parts
    if kind != "jobs":
        return not path.name.startswith(".") or path.name == NONCE_FILE
    if len(rest) < 4:
        return True
    tenant, job, attempt = rest[:3]
    known = attempts.get(f"{tenant}/{job}")
    if known is None:
        return paths.archive_file(storage, tenant, job).exists()
    if attempt == _CHECKPOINTS:
        saved = checkpoints.parse_name(rest[3])
        return saved is not None and saved[1] <= known
    return (not attempt.isdigit() or int(attempt) <= known) and rest[3] not in _UNFINISHED


def _copy_file(source: Path, target: Path) -> BackedUpFile:
    """Copy a file up to its current length; what is appended later is not copied.

    Raises:
        FileNotFoundError: it is gone, or no regular file.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if source.is_symlink():
            raise FileNotFoundError(f"{source} is a link") from error
        raise
    with open(descriptor, "rb") as reader:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise FileNotFoundError(f"{source} is not a regular file")
        digest, left = hashlib.sha256(), status.st_size
        with open(target, "xb", opener=lambda name, flags: os.open(name, flags, status.st_mode & 0o777)) as writer:
            while left and (part := reader.read(min(left, CHUNK))):
                digest.update(part)
                writer.write(part)
                left -= len(part)
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
    return BackedUpFile(status.st_size - left, digest.hexdigest())


def _write_file(path: Path, body: bytes) -> BackedUpFile:
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
    return BackedUpFile(len(body), hashlib.sha256(body).hexdigest())


def _pack_entries(entries: tuple[KeyDump, ...]) -> bytes:
    packed: bytes = zstandard.compress(msgspec.msgpack.encode(entries))
    return packed


# -- restore ---------------------------------------------------------------------------------------


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
    if found.format != FORMAT:
        raise BackupError(f"{source} has format {found.format}, and this version knows {FORMAT}; install a newer one")
    outside = [path for path in found.files if not _is_within(PurePosixPath(path))]
    if outside or CONTROL not in found.files:
        raise BackupError(
            f"{source / MANIFEST} is not the manifest of a back-up" + (f": it names {outside[0]!r}" if outside else "")
        )
    return found


def restore_data_dir(source: Path, data_dir: Path, say: Say) -> BackupManifest:
    """Make a data directory from a back-up, so that `shardyard up` on it finds every job. What ran when the back-up was
    made is queued again.

    Raises:
        InvalidRequest: the directory is not empty.
        BackupError: the back-up is not whole; the directory is then left empty.
        ServiceError: the Redis server does not start.
    """
    made = read_manifest(source)
    _refuse_unless_empty(data_dir, "a restore needs a data directory of its own")
    part = data_dir / _PART
    with _disk_errors(), sole_owner(data_dir / _LOCK), _removed_afterwards(part):
        _unpack_files(source, made, part)
        server = embedded_redis.prepare_redis("control", part, embedded_redis.find_server())
        with _running_redis(server, say), connect_control(server.url) as control:
            _load_keys(control, part / CONTROL)
        for name in (STORAGE, TOKEN, "control"):
            if (part / name).exists():
                (part / name).rename(data_dir / name)
        sync_directory(data_dir)
    return made


def restore_outside(source: Path, control: RedisStore, storage: Path) -> BackupManifest:
    """Restore into the caller's own Redis server and a storage directory, both empty.

    Raises:
        InvalidRequest: one of the two is not empty.
        BackupError: the back-up is not whole; both are then left empty.
        Unavailable: Redis does not answer.
    """
    made = read_manifest(source)
    _refuse_unless_empty(storage, "a restore needs a storage directory of its own")
    if next(control.client.scan_iter(match="sy:*", count=BATCH), None) is not None:
        raise InvalidRequest("this Redis server holds a service already; a restore needs an empty one")
    part = storage / _PART
    with _disk_errors(), _removed_afterwards(part):
        _unpack_files(source, made, part)
        for path in sorted((part / STORAGE).iterdir()):
            path.rename(storage / path.name)
        sync_directory(storage)
        _load_keys(control, part / CONTROL)
    return made


def _unpack_files(source: Path, made: BackupManifest, part: Path) -> None:
    """Copy every file of a back-up, and check it against the manifest."""
    for name, file in made.files.items():
        try:
            copied = _copy_file(source / name, part / name)
        except FileNotFoundError:
            raise BackupError(f"the back-up is not complete: {name} is missing") from None
        if copied != file:
            raise BackupError(f"the back-up is damaged: {name} is not what was saved (its SHA-256 is another)")
    (part / STORAGE).mkdir(parents=True, exist_ok=True)
    os.sync()


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


# -- both ------------------------------------------------------------------------------------------


def describe_backup(made: BackupManifest) -> str:
    """A back-up in words."""
    jobs = sum(made.jobs.values())
    waiting = sum(count for state, count in made.jobs.items() if state not in TERMINAL)
    size = sum(file.bytes for file in made.files.values())
    return f"{jobs} jobs ({waiting} of them not ended), {len(made.files)} files, {size / 1e6:.1f} MB"


def _refuse_unless_empty(directory: Path, why: str) -> None:
    if directory.exists() and set(os.listdir(directory)) - {_PART, _LOCK}:
        raise InvalidRequest(f"{directory} is not empty; {why}")


def _is_within(path: PurePosixPath) -> bool:
    return not path.is_absolute() and ".." not in path.parts and path.parts[:1] in ((STORAGE,), (CONTROL,), (TOKEN,))


@contextlib.contextmanager
def _removed_afterwards(directory: Path) -> Iterator[None]:
    """An empty directory for the restore, without remains of one that was killed."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True, mode=0o700)
    try:
        yield
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def _disk_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BackupError(f"cannot write to the disk: {error}") from error
