"""The API as remote storage: a node uploads and fetches files over HTTP, with a token of its own.

Imported by whoever has chosen it (`target.py`), since httpx is: it lies here and not with the client for users, which
workers may not import.
"""

import base64
import random
import ssl
import time
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

import httpx
import msgspec

from jobs.storage.remote import (
    CHUNK_BYTES,
    DigestMismatch,
    OffsetMismatch,
    RemoteElsewhere,
    RemoteError,
    RemoteFull,
    RemoteRefused,
    RemoteUnavailable,
    UnknownFile,
    check_path,
    digest_file,
    read_in_turn,
)

#: How long a connection may take, a silence within a request, and a call that gets nowhere, with its repeats.
CONNECT_SECONDS, SILENCE_SECONDS, CALL_SECONDS = 10.0, 60.0, 60.0
#: Pauses between repeats: the first, and the longest that does not follow from `Retry-After`.
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.1, 5.0
#: What one request brings of a file, and what is read of it at a time.
UPLOAD_BYTES, READ_BYTES = 16 * 1024 * 1024, 256 * 1024
#: A file of more than this is asked for before it is sent: a part of it may be there.
ASKED_BYTES = 1024 * 1024
#: How fast the service reads a file again at least, to check it, before it answers.
CHECKED_BYTES_PER_SECOND = 50e6
_REPEATED = frozenset({408, 425, 429, 500, 502, 503, 504})
_REFUSED = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})


class ListedFiles(msgspec.Struct):
    """A page of paths."""

    files: list[str]
    next: str | None = None


class ServiceStorage:
    """RemoteStorage behind the API at `url`. May be used by several threads. `authority`: a PEM file with what to trust
    beside the usual authorities. `call_seconds`: how long a call tries that gets nowhere."""

    append_seconds = 0.0

    def __init__(
        self, url: str, token: str, authority: Path | None = None, *, call_seconds: float = CALL_SECONDS
    ) -> None:
        """Raises:
        ValueError: `url` is not one of HTTP, or the authority's file cannot be used.
        """
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"{url[:200]!r} is not an address of the service: it begins with http:// or https://")
        self._call_seconds = call_seconds
        self._client = httpx.Client(
            base_url=url.rstrip("/"),
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(min(SILENCE_SECONDS, call_seconds), connect=min(CONNECT_SECONDS, call_seconds)),
            verify=_trusted(authority),
            limits=httpx.Limits(max_connections=8, keepalive_expiry=30.0),
        )

    def close(self) -> None:
        """Close the connections. Calls after that fail."""
        self._client.close()

    def append(self, path: str, offset: int, data: bytes) -> None:
        url = _url(path)
        if len(data) > CHUNK_BYTES:
            raise ValueError(f"at most {CHUNK_BYTES} bytes are appended at a time")
        headers = {"Upload-Offset": str(offset), "Content-Type": "application/octet-stream"}
        for attempt in self._attempts():
            with attempt:
                answer = self._client.patch(url, content=data, headers=headers)
                if answer.status_code == HTTPStatus.CONFLICT and "upload-offset" in answer.headers:
                    raise OffsetMismatch(path, offset, _offset(answer))
                _require_success(answer, path)

    def put(self, path: str, file: Path, digest: str) -> None:
        url = _url(path)
        if digest_file(file) != digest:
            raise DigestMismatch(f"{path}: the file is not what its digest says")
        length = file.stat().st_size
        known = {"Repr-Digest": _named_digest(digest)}
        progress = _Progress(self._call_seconds)
        with file.open("rb") as reader:
            offset: int | None = 0 if length <= ASKED_BYTES else None
            while True:
                try:
                    if offset is None:
                        offset = self._uploaded(url, path, length, known)
                        progress.note(offset)
                    offset, is_whole = self._upload(url, path, reader, offset, length, known)
                    if is_whole:
                        return
                    progress.note(offset)
                except (RemoteFull, httpx.HTTPError, RemoteUnavailable) as error:
                    progress.wait(error, path)
                    offset = None

    def copy(self, source: str, path: str, size: int, digest: str) -> None:
        check_path(source)
        url, headers = _url(path), {"Repr-Digest": _named_digest(digest), "Upload-Length": str(size)}
        for attempt in self._attempts():
            with attempt:
                query = {"source": source}
                answer = self._client.post(url, params=query, headers=headers, timeout=self._checking(2 * size))
                _require_success(answer, path)

    def _uploaded(self, url: str, path: str, length: int, known: Mapping[str, str]) -> int:
        answer = self._client.head(url, headers=dict(known), timeout=self._checking(length))
        _require_success(answer, path)
        return _offset(answer)

    def _upload(
        self, url: str, path: str, reader: BinaryIO, offset: int, length: int, known: Mapping[str, str]
    ) -> tuple[int, bool]:
        """Send a part of a file; how much has come then, and whether the file is in its place."""
        size = min(UPLOAD_BYTES, max(0, length - offset))
        headers = {"Upload-Offset": str(offset), "Upload-Length": str(length), "Content-Length": str(size), **known}
        timeout = self._checking(length if offset + size == length else 0)
        answer = self._client.put(url, content=_parts(reader, offset, size), headers=headers, timeout=timeout)
        if answer.status_code == HTTPStatus.CONFLICT and "upload-offset" in answer.headers:
            raise RemoteUnavailable(f"{path}: the upload goes on at byte {_offset(answer)}")
        _require_success(answer, path)
        return _offset(answer), answer.status_code == HTTPStatus.NO_CONTENT

    def _checking(self, length: int) -> httpx.Timeout:
        """The limits of a request before whose answer the service reads so many bytes."""
        usual = self._client.timeout
        silence = (usual.read or SILENCE_SECONDS) + length / CHECKED_BYTES_PER_SECOND
        return httpx.Timeout(connect=usual.connect, read=silence, write=usual.write, pool=usual.pool)

    def size(self, path: str) -> int | None:
        url = _url(path)
        for attempt in self._attempts():
            with attempt:
                answer = self._client.head(url)
                if answer.status_code == HTTPStatus.NOT_FOUND:
                    return None
                _require_success(answer, path)
                return _offset(answer)
        raise AssertionError("the last attempt returns or raises")

    def read(self, path: str, offset: int, limit: int) -> bytes:
        url, end = _url(path), offset + min(limit, CHUNK_BYTES)
        found = bytearray()
        progress = _Progress(self._call_seconds)
        while offset + len(found) < end:
            try:
                if self._read_range(url, path, offset + len(found), end, found):
                    break
            except (httpx.HTTPError, RemoteUnavailable) as error:
                progress.note(len(found))
                progress.wait(error, path)
        return bytes(found)

    def _read_range(self, url: str, path: str, first: int, end: int, found: bytearray) -> bool:
        """Add what is there of a range; whether that is all of it."""
        with self._client.stream("GET", url, headers={"Range": f"bytes={first}-{end - 1}"}) as answer:
            if answer.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                return True
            if answer.status_code != HTTPStatus.PARTIAL_CONTENT:
                answer.read()
                _require_success(answer, path)
                raise RemoteError(f"{path}: the answer is not the range that was asked for")
            for part in answer.iter_raw(READ_BYTES):
                found += part[: end - first]
        return True

    def read_parts(self, path: str, offset: int = 0) -> Iterator[bytes]:
        return read_in_turn(self, path, offset)

    def names(self, prefix: str) -> list[str]:
        check_path(prefix)
        found: list[str] = []
        cursor: str | None = ""
        while cursor is not None:
            page = self._page(prefix, cursor)
            found += page.files
            cursor = page.next
        return found

    def _page(self, prefix: str, cursor: str) -> ListedFiles:
        for attempt in self._attempts():
            with attempt:
                answer = self._client.get("/v1/node/files", params={"prefix": prefix, "cursor": cursor})
                _require_success(answer, prefix)
                return msgspec.json.decode(answer.content, type=ListedFiles)
        raise AssertionError("the last attempt returns or raises")

    def remove(self, prefix: str) -> None:
        url = _url(prefix)
        for attempt in self._attempts():
            with attempt:
                answer = self._client.delete(url)
                if answer.status_code != HTTPStatus.NOT_FOUND:
                    _require_success(answer, prefix)

    def _attempts(self) -> "Iterator[_Attempt]":
        """Attempts at a call, until one succeeds or the time is over."""
        progress = _Progress(self._call_seconds)
        while True:
            attempt = _Attempt(progress)
            yield attempt
            if attempt.has_succeeded:
                return


class _Progress:
    """How long a call may still try, and how long it pauses. Whatever brings it further starts the time anew."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._reached = 0
        self._until = time.monotonic() + seconds
        self._pause = FIRST_PAUSE_SECONDS

    def note(self, reached: int) -> None:
        if reached > self._reached:
            self._reached = reached
            self._until = time.monotonic() + self._seconds
            self._pause = FIRST_PAUSE_SECONDS

    def wait(self, error: Exception, path: str = "") -> None:
        """Pause before a repeat.

        Raises:
            RemoteUnavailable: there is no time for one.
        """
        asked = error.retry_after if isinstance(error, RemoteUnavailable) else 0.0
        pause = max(asked, self._pause * random.uniform(0.5, 1.0))  # noqa: S311  (not a secret)
        if isinstance(error, RemoteFull) or time.monotonic() + pause > self._until:
            if isinstance(error, RemoteUnavailable):
                raise error
            raise RemoteUnavailable(f"{path or 'the service'}: {type(error).__name__}: {error}") from error
        time.sleep(pause)
        self._pause = min(2 * self._pause, MAX_PAUSE_SECONDS)


class _Attempt:
    """One attempt at a call, as a context: what may be repeated is swallowed after a pause."""

    def __init__(self, progress: _Progress) -> None:
        self._progress = progress
        self.has_succeeded = False

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        self.has_succeeded = error is None
        if isinstance(error, httpx.HTTPError | RemoteUnavailable):
            self._progress.wait(error)
            return True
        return False


def _trusted(authority: Path | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context()
        if authority is not None:
            context.load_verify_locations(authority)
    except (OSError, ssl.SSLError) as error:
        raise ValueError(f"the certificates of {authority} cannot be used: {error}") from error
    return context


def _url(path: str) -> str:
    """Raises ValueError."""
    check_path(path)
    return f"/v1/node/files/{quote(path, errors='strict')}"


def _named_digest(digest: str) -> str:
    return f"sha-256=:{base64.b64encode(bytes.fromhex(digest)).decode()}:"


def _parts(reader: BinaryIO, offset: int, size: int) -> Iterator[bytes]:
    reader.seek(offset)
    while size and (part := reader.read(min(size, READ_BYTES))):
        size -= len(part)
        yield part


def _offset(answer: httpx.Response) -> int:
    text = answer.headers.get("upload-offset", "")
    if not text.isdigit():
        raise RemoteUnavailable(f"{answer.url.path}: what answers is not this service, or in another version")
    return int(text)


def _require_success(answer: httpx.Response, path: str) -> None:
    """Raises RemoteError."""
    status = answer.status_code
    if status < HTTPStatus.BAD_REQUEST and status // 100 == 2:
        return
    said = f"{path}: {_detail(answer)}"
    after = answer.headers.get("retry-after", "")
    seconds = float(after) if after.isdigit() else 0.0
    if status == HTTPStatus.INSUFFICIENT_STORAGE:
        raise RemoteFull(said, seconds)
    if status in _REPEATED:
        raise RemoteUnavailable(said, seconds)
    if status == HTTPStatus.FORBIDDEN and b'"files_in_bucket"' in answer.content:
        raise RemoteElsewhere(_detail(answer))
    if status in _REFUSED:
        raise RemoteRefused(said)
    if status == HTTPStatus.NOT_FOUND:
        raise UnknownFile(said)
    if status == HTTPStatus.UNPROCESSABLE_ENTITY and b'"wrong_digest"' in answer.content:
        raise DigestMismatch(said)
    raise RemoteError(said)


def _detail(answer: httpx.Response) -> str:
    try:
        return f"{answer.status_code}: {answer.json()['detail']}"[:500]
    except (ValueError, KeyError, TypeError):
        return f"the service answers {answer.status_code}"
