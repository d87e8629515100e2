"""A bucket as remote storage: any that speaks S3, by obstore.

A file that is appended to is a row of objects, `<path>/.segments/<where it begins>`, until it is put whole, which
removes them. Whoever appends or reads knows what it has seen of a row; only the first call of a process lists it.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import obstore
from obstore import exceptions
from obstore.store import S3Store

from jobs.storage.remote import (
    CHUNK_BYTES,
    DigestMismatch,
    OffsetMismatch,
    RemoteError,
    RemoteRefused,
    RemoteUnavailable,
    UnknownFile,
    check_path,
    digest_file,
)

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig

#: How long one request may take, how long a connection, and for how long a call repeats what fails.
REQUEST_SECONDS, CONNECT_SECONDS, RETRY_SECONDS = 60, 10, 30
#: Rows of segments that a process remembers.
KNOWN_ROWS = 4096
_SEGMENTS = "/.segments/"


class ObjectStorage:
    """RemoteStorage below a prefix of a bucket. May be used by several threads."""

    def __init__(self, url: str, **options: Any) -> None:
        """`url`: `s3://bucket/prefix`. Credentials, region and endpoint come from variables `AWS_...`, or `options`.

        Raises:
            ValueError: it is no such URL, or what it needs is not set.
        """
        settings: ClientConfig = {
            "timeout": f"{REQUEST_SECONDS}s",
            "connect_timeout": f"{CONNECT_SECONDS}s",
            "allow_http": True,
        }
        retry: RetryConfig = {"max_retries": 8, "retry_timeout": timedelta(seconds=RETRY_SECONDS)}
        try:
            self._store = S3Store.from_url(url, client_options=settings, retry_config=retry, **options)
        except exceptions.BaseError as error:
            raise ValueError(f"{url}: {error}") from error
        self._rows: OrderedDict[str, list[tuple[int, int]]] = OrderedDict()  # path: (begins, ends) of its segments
        self._lock = threading.Lock()

    def append(self, path: str, offset: int, data: bytes) -> None:
        check_path(path)
        if len(data) > CHUNK_BYTES:
            raise ValueError(f"at most {CHUNK_BYTES} bytes are appended at a time")
        with _translated(path):
            end = self._end_of_row(path)
            known = end - offset
            if known < 0 or self._read_row(path, offset, min(known, len(data))) != data[: max(0, known)]:
                raise OffsetMismatch(path, offset, end)
            rest = data[known:]
            if rest:
                obstore.put(self._store, _segment(path, end), rest)
                self._note(path, (end, end + len(rest)))

    def put(self, path: str, file: Path, digest: str) -> None:
        check_path(path)
        if digest_file(file) != digest:
            raise DigestMismatch(f"{path}: the file is not what its digest says")
        with _translated(path):
            obstore.put(self._store, path, file)
            self._drop_row(path)

    def size(self, path: str) -> int | None:
        check_path(path)
        with _translated(path):
            try:
                return int(obstore.head(self._store, path)["size"])
            except FileNotFoundError:
                row = self._row(path, fresh=True)
                return row[-1][1] if row else None

    def read(self, path: str, offset: int, limit: int) -> bytes:
        check_path(path)
        limit = min(limit, CHUNK_BYTES)
        with _translated(path):
            try:
                size = int(obstore.head(self._store, path)["size"])
            except FileNotFoundError:
                if not self._row(path, fresh=True):
                    raise UnknownFile(f"{path}: there is no such file") from None
                return self._read_row(path, offset, limit)
            return self._range(path, offset, min(size, offset + limit))

    def names(self, prefix: str) -> list[str]:
        check_path(prefix)
        with _translated(prefix):
            return sorted({key.partition(_SEGMENTS)[0] for key in self._keys(f"{prefix}/")})

    def remove(self, prefix: str) -> None:
        check_path(prefix)
        with _translated(prefix):
            keys = [prefix, *self._keys(f"{prefix}/")]
            for start in range(0, len(keys), 1000):
                _delete(self._store, keys[start : start + 1000])
        with self._lock:
            for path in [one for one in self._rows if one == prefix or one.startswith(f"{prefix}/")]:
                del self._rows[path]

    # -- rows of segments ------------------------------------------------------------------------------

    def _end_of_row(self, path: str) -> int:
        row = self._row(path)
        return row[-1][1] if row else 0

    def _row(self, path: str, *, fresh: bool = False) -> list[tuple[int, int]]:
        """The segments of a path without a gap. `fresh`: also those that another process has added."""
        with self._lock:
            row = self._rows.get(path)
        if row is not None and not fresh:
            return row
        known = list(row or [])
        after = _segment(path, known[-1][0]) if known else None
        for batch in obstore.list(self._store, prefix=f"{path}{_SEGMENTS}", offset=after):
            for meta in sorted(batch, key=lambda one: str(one["path"])):
                begins = int(str(meta["path"]).rpartition("/")[2])
                if begins == (known[-1][1] if known else 0):
                    known.append((begins, begins + int(meta["size"])))
        with self._lock:
            self._rows[path] = known
            self._rows.move_to_end(path)
            while len(self._rows) > KNOWN_ROWS:
                self._rows.popitem(last=False)
        return known

    def _note(self, path: str, segment: tuple[int, int]) -> None:
        with self._lock:
            self._rows.setdefault(path, []).append(segment)

    def _read_row(self, path: str, offset: int, limit: int) -> bytes:
        found = b""
        for begins, ends in self._row(path):
            first, last = max(begins, offset), min(ends, offset + limit)
            if first < last:
                found += self._range(_segment(path, begins), first - begins, last - begins)
        return found

    def _drop_row(self, path: str) -> None:
        row = self._row(path, fresh=True)
        _delete(self._store, [_segment(path, begins) for begins, _ in row])
        with self._lock:
            self._rows.pop(path, None)

    def _range(self, key: str, start: int, end: int) -> bytes:
        return bytes(obstore.get_range(self._store, key, start=start, end=end)) if start < end else b""

    def _keys(self, prefix: str) -> Iterator[str]:
        for batch in obstore.list(self._store, prefix=prefix):
            for meta in batch:
                yield str(meta["path"])


def _segment(path: str, begins: int) -> str:
    return f"{path}{_SEGMENTS}{begins:020}"


def _delete(store: S3Store, keys: list[str]) -> None:
    try:
        if keys:
            obstore.delete(store, keys)
    except FileNotFoundError:  # S3 itself does not mind
        return


@contextmanager
def _translated(path: str) -> Iterator[None]:
    """Errors of obstore as those of the port."""
    try:
        yield
    except FileNotFoundError as error:
        raise UnknownFile(f"{path}: there is no such object or bucket") from error
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
        raise RemoteRefused(f"{path}: {error}") from error
    except exceptions.GenericError as error:
        raise RemoteUnavailable(f"{path}: {error}") from error
    except exceptions.BaseError as error:
        raise RemoteError(f"{path}: {error}") from error
