"""A bucket as remote storage: any that speaks S3, through obstore.

A file that is appended to is a row of objects, `<path>/.segments/<where it begins>`, until it is put whole, which
removes them. Whoever appends knows the row it has made; only its first call lists it. A list may be behind: the object
that would follow the last one listed is asked for by its name.

Small segments at the end of a row are joined: all of them when they have `SEGMENT_BYTES`, and as soon as there are
`MAX_SMALL`, the newest half with what lies before it, as long as that doubles at most. So a byte is written about
log2(`SEGMENT_BYTES`) times at most, however slowly a file grows, and a row has few objects.
"""

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import obstore
from obstore import exceptions
from obstore.store import S3Store

from jobs.storage.object_keys import SEGMENTS, key_of, parse_key, path_of, segment_key
from jobs.storage.remote import (
    CHUNK_BYTES,
    DigestMismatch,
    OffsetMismatch,
    RemoteError,
    RemoteFull,
    RemoteRefused,
    RemoteUnavailable,
    UnknownFile,
    check_path,
    digest_file,
)
from jobs.support.bounded_cache import keep_newest

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

#: How long one request may take, how long a connection, and for how long a call repeats what fails.
REQUEST_SECONDS, CONNECT_SECONDS, RETRY_SECONDS = 60, 10, 30
#: Rows of segments that a process remembers.
KNOWN_ROWS = 4096
#: What segments are joined to, and how many smaller ones a row has at most.
SEGMENT_BYTES, MAX_SMALL = 4 * 1024 * 1024, 64
#: Requests at a time for parts of one file.
PARTS_AT_ONCE = 8
#: How servers say that they have no room: a status, and codes of several makers.
_FULL = ("507 Insufficient", "StorageFull", "QuotaExceeded", "InsufficientStorage")
#: How servers say that they put no object on a condition.
_UNCONDITIONAL = ("501 Not Implemented", "NotImplemented")
_BAD_REQUEST = "400 Bad Request"
#: How a server says that it does not take a request, as often as it is sent; some say so of one that took too long.
_REFUSED = re.compile(r"status code: 4(?!08|25|29)\d\d ")
_TOO_LONG = "RequestTimeout"
#: What obstore adds to what has happened, for those who look for errors in it.
_DETAILS = "\n\nDebug source:"
#: What S3 copies in one request at most.
COPY_BYTES = 5 * 1024**3
#: Metadata of an object that was put whole: its SHA-256, by which a copy is known to be of the right one.
_DIGEST = "sha256"

T = TypeVar("T")
#: Where a segment begins and ends in its file.
Segment = tuple[int, int]


@dataclass(frozen=True, slots=True)
class StoredObject:
    """A file of the bucket. The tag changes whenever a whole file does; it is "" where the file is still appended
    to."""

    path: str
    bytes: int
    modified: float  # seconds since the epoch
    tag: str = ""


class ObjectStorage:
    """RemoteStorage below a prefix of a bucket. May be used by several threads."""

    #: Each piece is an object of its own, and readers have the telemetry Redis for what is newer.
    append_seconds = 60.0

    def __init__(
        self,
        url: str,
        *,
        request_seconds: float = REQUEST_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
        **options: Any,
    ) -> None:
        """`url`: `s3://bucket/prefix`. Credentials, region and endpoint come from variables `AWS_...`, or `options`.

        Raises:
            ValueError: it is no such URL, or what it needs is not set.
        """
        settings: ClientConfig = {
            "timeout": f"{request_seconds}s",
            "connect_timeout": f"{min(CONNECT_SECONDS, request_seconds)}s",
            "allow_http": True,
        }
        retry: RetryConfig = {"max_retries": 8, "retry_timeout": timedelta(seconds=retry_seconds)}
        try:
            self._store = S3Store.from_url(url, client_options=settings, retry_config=retry, **options)
        except exceptions.BaseError as error:
            raise ValueError(f"{url}: {error}") from error
        self._rows: OrderedDict[str, list[tuple[int, int]]] = OrderedDict()  # path: (begins, ends) of its segments
        self._lock = threading.Lock()

    def append(self, path: str, offset: int, data: bytes) -> None:
        _check_new(path)
        if len(data) > CHUNK_BYTES:
            raise ValueError(f"at most {CHUNK_BYTES} bytes are appended at a time")
        with _translated(path):
            while True:
                end = self._end_of_row(path)
                known = end - offset
                if known < 0 or self._read_row(path, offset, min(known, len(data))) != data[: max(0, known)]:
                    raise OffsetMismatch(path, offset, end)
                rest = data[known:]
                if not rest:
                    return
                if self._put_segment(path, end, rest):
                    break
                self._row(path, fresh=True)  # another process, or an answer of ours that was lost
            self._note(path, (end, end + len(rest)))
            self._join_small(path)

    def _put_segment(self, path: str, begins: int, data: bytes) -> bool:
        """False: another process has begun the file. The first segment decides that, so that files of two never mix."""
        key = segment_key(path, begins)
        if not begins:
            try:
                obstore.put(self._store, key, data, mode="create")
                return True
            except exceptions.AlreadyExistsError:
                return False
            except exceptions.BaseError as error:
                if not any(sign in str(error) for sign in _UNCONDITIONAL):
                    raise
        obstore.put(self._store, key, data)
        return True

    def put(self, path: str, file: Path, digest: str) -> None:
        _check_new(path)
        if digest_file(file) != digest:
            raise DigestMismatch(f"{path}: the file is not what its digest says")
        with _translated(path):
            obstore.put(self._store, key_of(path), file, attributes={_DIGEST: digest})
            self._drop_row(path)

    def copy(self, source: str, path: str, size: int, digest: str) -> None:
        check_path(source)
        _check_new(path)
        if size > COPY_BYTES:
            raise RemoteError(f"{source}: a bucket copies {COPY_BYTES} bytes at most")
        with _translated(path):
            self._require_digest(source, size, digest)
            obstore.copy(self._store, key_of(source), key_of(path))
            self._require_digest(path, size, digest)  # some servers say that they have copied, and add that they failed
            self._drop_row(path)

    def _require_digest(self, path: str, size: int, digest: str) -> None:
        found = obstore.get(self._store, key_of(path), options={"head": True})
        if found.meta["size"] != size or found.attributes.get(_DIGEST) != digest:
            raise DigestMismatch(f"{path} is not what the digest says")

    def size(self, path: str) -> int | None:
        found = self.find(path)
        return None if found is None else found.bytes

    def read(self, path: str, offset: int, limit: int) -> bytes:
        check_path(path)
        limit = min(limit, CHUNK_BYTES)
        with _translated(path):
            try:
                found = self._head(path)
            except FileNotFoundError:
                if not self._row(path, fresh=True):
                    raise UnknownFile(f"{path}: there is no such file") from None
                return self._read_row(path, offset, limit)
            return self._range(str(found["path"]), offset, min(int(found["size"]), offset + limit))

    def read_parts(self, path: str, offset: int = 0, *, whole: bool = False) -> Iterator[bytes]:
        """As the port says; several parts are on their way at a time. `whole`: a file that is appended to is none."""
        check_path(path)
        with _translated(path), ThreadPoolExecutor(PARTS_AT_ONCE) as pool:
            parts = self._parts(path, offset, whole)
            for start in range(0, len(parts), PARTS_AT_ONCE):
                yield from pool.map(lambda part: part(), parts[start : start + PARTS_AT_ONCE])

    def _parts(self, path: str, offset: int, whole: bool) -> list["partial[bytes]"]:
        try:
            found = self._head(path)
        except FileNotFoundError:
            row = [] if whole else self._row(path, fresh=True)
            if not row:
                raise
            left = [(max(0, offset - begins), _length((begins, ends)), begins) for begins, ends in row if ends > offset]
            return [partial(self._range, segment_key(path, begins), start, end) for start, end, begins in left]
        key, size = str(found["path"]), int(found["size"])
        starts = range(offset, size, CHUNK_BYTES)
        return [partial(self._range, key, start, min(size, start + CHUNK_BYTES)) for start in starts]

    def names(self, prefix: str) -> list[str]:
        check_path(prefix)
        return self._names(f"{key_of(prefix)}/")

    def all_names(self) -> list[str]:
        """The paths of all files, sorted. Raises RemoteError."""
        return self._names("")

    def _names(self, prefix: str) -> list[str]:
        with _translated(prefix):
            return sorted({parse_key(str(meta["path"]))[0] for meta in self._listed(prefix)})

    def remove(self, prefix: str) -> None:
        check_path(prefix)
        with _translated(prefix):
            key = key_of(prefix)
            keys = [key, *(str(meta["path"]) for meta in self._listed(f"{key}/"))]
            for start in range(0, len(keys), 1000):
                _delete(self._store, keys[start : start + 1000])
        with self._lock:
            for path in [one for one in self._rows if one == prefix or one.startswith(f"{prefix}/")]:
                del self._rows[path]

    # -- for whoever reads much of it, as the API does -------------------------------------------------

    def find(self, path: str, *, whole: bool = False) -> StoredObject | None:
        """A file, whole or, unless only those are meant, still appended to. Raises RemoteError."""
        check_path(path)
        with _translated(path):
            try:
                return _stored_object(self._head(path))
            except FileNotFoundError:
                row = [] if whole else self._row(path, fresh=True)
                return StoredObject(path, row[-1][1], 0.0) if row else None

    def read_range(self, path: str, start: int, end: int, tag: str) -> bytes:
        """Bytes of a whole file. Raises UnknownFile where it is another one by now, RemoteError."""
        with _translated(path):
            try:
                options: Any = {"range": (start, end), "if_match": tag}
                if start >= end:
                    return b""
                return self._of_either(path, lambda key: bytes(obstore.get(self._store, key, options=options).bytes()))
            except exceptions.PreconditionError as error:
                raise UnknownFile(f"{path} has been replaced") from error

    def list_files(self, prefix: str) -> Iterator[StoredObject]:
        """The files below a directory, sorted by path: those that are put whole, and rows. Raises RemoteError."""
        check_path(prefix)
        with _translated(prefix):
            last = StoredObject("", 0, 0.0)
            for meta in self._listed(f"{key_of(prefix)}/"):
                path, begins = parse_key(str(meta["path"]))
                if path == last.path and last.tag:
                    continue  # what a crash has left of its row
                if path != last.path:
                    if last.bytes or last.tag:
                        yield last
                    last = StoredObject(path, 0, 0.0)
                before = last.bytes
                if begins is None:
                    last = _stored_object(meta)
                elif begins == before:
                    last = StoredObject(path, before + int(meta["size"]), meta["last_modified"].timestamp())
            if last.bytes or last.tag:
                yield last

    def list_names(self, prefix: str) -> list[str]:
        """Names of files and directories in a directory. Raises RemoteError."""
        check_path(prefix)
        with _translated(prefix):
            found = obstore.list_with_delimiter(self._store, prefix=f"{key_of(prefix)}/")
            paths = [*map(str, found["common_prefixes"]), *(str(meta["path"]) for meta in found["objects"])]
            return sorted({path_of(path.rstrip("/").rpartition("/")[2]) for path in paths})

    def sign(self, path: str, lifetime: timedelta) -> str:
        """A URL that whoever has it may read a whole file by, for a time. Raises RemoteError."""
        check_path(path)
        with _translated(path):
            return str(obstore.sign(self._store, "GET", key_of(path), lifetime))

    # -- rows of segments ------------------------------------------------------------------------------

    def _end_of_row(self, path: str) -> int:
        row = self._row(path)
        return row[-1][1] if row else 0

    def _row(self, path: str, *, fresh: bool = False) -> list[Segment]:
        """The segments of a path without a gap. `fresh`: as they are now, whoever has added or joined some."""
        with self._lock:
            row = self._rows.get(path)
        if row is not None and not fresh:
            return row
        known: list[Segment] = []
        for meta in sorted(self._listed(f"{key_of(path)}{SEGMENTS}"), key=lambda one: str(one["path"])):
            begins = int(str(meta["path"]).rpartition("/")[2])
            if begins == (known[-1][1] if known else 0):
                known.append((begins, begins + int(meta["size"])))
        with suppress(FileNotFoundError):
            while known:  # a list may be behind
                end = known[-1][1]
                known.append((end, end + int(obstore.head(self._store, segment_key(path, end))["size"])))
        with self._lock:
            keep_newest(self._rows, path, known, KNOWN_ROWS)
        return known

    def _note(self, path: str, segment: Segment) -> None:
        with self._lock:
            self._rows.setdefault(path, []).append(segment)

    def _read_row(self, path: str, offset: int, limit: int) -> bytes:
        return self._read_segments(path, self._row(path), offset, limit)

    def _read_segments(self, path: str, row: Sequence[Segment], offset: int, limit: int) -> bytes:
        wanted = []
        for begins, ends in row:
            first, last = max(begins, offset), min(ends, offset + limit)
            if first < last:
                wanted.append(partial(self._range, segment_key(path, begins), first - begins, last - begins))
        if len(wanted) < 2:
            return b"".join(part() for part in wanted)
        with ThreadPoolExecutor(PARTS_AT_ONCE) as pool:
            return b"".join(pool.map(lambda part: part(), wanted))

    def _join_small(self, path: str) -> None:
        """Make one segment of many at the end of a row. It takes the place of the first of them, and is there before
        the others go, so a reader finds the row without a gap; what a crash leaves of the others is no part of it."""
        row = self._row(path)
        joined = choose_joined(row)
        if not joined:
            return
        begins, ends = joined[0][0], joined[-1][1]
        obstore.put(self._store, segment_key(path, begins), self._read_segments(path, joined, begins, ends - begins))
        _delete(self._store, [segment_key(path, one) for one, _ in joined[1:]])
        with self._lock:
            self._rows[path] = [*row[: -len(joined)], (begins, ends)]

    def _drop_row(self, path: str) -> None:
        """Remove all segments, also those that a crash has left beside the row."""
        _delete(self._store, [str(meta["path"]) for meta in self._listed(f"{key_of(path)}{SEGMENTS}")])
        with self._lock:
            self._rows.pop(path, None)

    def _head(self, path: str) -> Any:
        return self._of_either(path, lambda key: obstore.head(self._store, key))

    def _of_either(self, path: str, ask: Callable[[str], T]) -> T:
        """What is said of a whole file. Version 0.2.0 has put all files under their paths, which few keys are not.

        Raises:
            FileNotFoundError: there is none.
        """
        key = key_of(path)
        try:
            return ask(key)
        except FileNotFoundError:
            if key != path:
                with suppress(ValueError), _suppressed_refusal():  # where that is no key
                    return ask(path)
            raise

    def _range(self, key: str, start: int, end: int) -> bytes:
        return bytes(obstore.get_range(self._store, key, start=start, end=end)) if start < end else b""

    def _listed(self, prefix: str) -> Iterator[Any]:
        for batch in obstore.list(self._store, prefix=prefix or None):
            yield from batch


def choose_joined(row: Sequence[Segment]) -> Sequence[Segment]:
    """The segments at the end of a row that are to become one; none while they are few and small."""
    count = total = 0
    while count < len(row) and (size := _length(row[-1 - count])) < SEGMENT_BYTES:
        count, total = count + 1, total + size
    if count > 1 and total >= SEGMENT_BYTES:
        return row[-count:]
    if count < MAX_SMALL:
        return ()
    joined = MAX_SMALL // 2
    total = sum(map(_length, row[-joined:]))
    while joined < count and _length(row[-1 - joined]) <= total:
        total += _length(row[-1 - joined])
        joined += 1
    return row[-joined:]


def _length(segment: Segment) -> int:
    return segment[1] - segment[0]


def _stored_object(meta: Any) -> StoredObject:
    modified = meta["last_modified"].timestamp()
    return StoredObject(path_of(str(meta["path"])), int(meta["size"]), modified, str(meta["e_tag"] or ""))


def _check_new(path: str) -> None:
    """Raises ValueError."""
    check_path(path)
    check_path(key_of(path))  # which may be longer


def _delete(store: S3Store, keys: list[str]) -> None:
    try:
        if keys:
            obstore.delete(store, keys)
    except FileNotFoundError:  # S3 itself does not mind
        return


@contextmanager
def _suppressed_refusal() -> Iterator[None]:
    try:
        yield
    except exceptions.GenericError as error:
        if _BAD_REQUEST not in str(error):
            raise


@contextmanager
def _translated(path: str) -> Iterator[None]:
    """Errors of obstore as those of the port."""
    try:
        yield
    except FileNotFoundError as error:
        raise UnknownFile(f"{path}: there is no such object or bucket") from error
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
        raise RemoteRefused(f"{path}: {_said_by(error)}") from error
    except exceptions.GenericError as error:
        raise _kind_of(text := _said_by(error))(f"{path}: {text}") from error
    except exceptions.BaseError as error:
        raise RemoteError(f"{path}: {_said_by(error)}") from error


def _kind_of(said: str) -> type[RemoteError]:
    if any(sign in said for sign in _FULL):
        return RemoteFull
    return RemoteError if _REFUSED.search(said) and _TOO_LONG not in said else RemoteUnavailable


def _said_by(error: Exception) -> str:
    return str(error).partition(_DETAILS)[0]
