"""Compresses large answers, if the client accepts that.

Starlette's middleware decides what is compressed: no parts of files, nothing that is compressed already, no stream of
events. Large answers are compressed in a thread. Answers to status polls are small, and never pass here.
"""

from collections.abc import Iterable
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import zstandard
from starlette.middleware.gzip import DEFAULT_EXCLUDED_CONTENT_TYPES, GZipResponder, IdentityResponder
from starlette.types import ASGIApp, Receive, Scope, Send

from api.http.negotiation import parse_quality

#: Smaller answers gain less than they cost. It also keeps out answers with a new token or secret in them, whose length
#: would otherwise depend on what they repeat of a request.
MIN_BYTES = 4096
#: What takes longer than a millisecond to compress is done in a thread.
MIN_BYTES_OF_THREAD = 64 * 1024
GZIP_LEVEL, ZSTD_LEVEL = 5, 3
#: Compressions at a time.
THREADS = 4
#: Files of jobs and of nodes, which may be anything.
_LEFT_ALONE = (*DEFAULT_EXCLUDED_CONTENT_TYPES, "application/octet-stream")

_limiter: anyio.lowlevel.RunVar[anyio.CapacityLimiter] = anyio.lowlevel.RunVar("shardyard_compression")


class CompressionMiddleware:
    """gzip and zstd, whichever the Accept-Encoding header likes better, and zstd where it likes both."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        coding = choose_coding(scope["headers"]) if scope["type"] == "http" else ""
        if not coding:
            await self._app(scope, receive, send)
        elif coding == "zstd":
            await _ZstdResponder(self._app, MIN_BYTES, exclude_content_types=_LEFT_ALONE)(scope, receive, send)
        else:
            gzip = GZipResponder(
                self._app,
                MIN_BYTES,
                GZIP_LEVEL,
                thread_minimum_size=MIN_BYTES_OF_THREAD,
                exclude_content_types=_LEFT_ALONE,
            )
            await gzip(scope, receive, send)


class _ZstdResponder(IdentityResponder):
    content_encoding = "zstd"

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._compressor: zstandard.ZstdCompressionObj | None = None

    async def apply_compression(self, body: bytes, *, more_body: bool) -> bytes:
        if len(body) < MIN_BYTES_OF_THREAD:
            return self._compress(body, more_body=more_body)
        try:
            limiter = _limiter.get()
        except LookupError:
            limiter = anyio.CapacityLimiter(THREADS)
            _limiter.set(limiter)
        return await anyio.to_thread.run_sync(lambda: self._compress(body, more_body=more_body), limiter=limiter)

    def _compress(self, body: bytes, *, more_body: bool) -> bytes:
        if self._compressor is None:
            self._compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL).compressobj()
        end = zstandard.COMPRESSOBJ_FLUSH_BLOCK if more_body else zstandard.COMPRESSOBJ_FLUSH_FINISH
        compressed: bytes = self._compressor.compress(body) + self._compressor.flush(end)
        return compressed


def choose_coding(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """`zstd`, `gzip` or "": what an Accept-Encoding header likes best (RFC 9110, section 12.5.3)."""
    given = b",".join(value for name, value in headers if name == b"accept-encoding").decode("latin-1").lower()
    if "zstd" not in given and "gzip" not in given and "*" not in given:
        return ""
    liked = {}
    for part in given.split(",")[:64]:
        coding, *parameters = (piece.strip() for piece in part.split(";"))
        liked[coding] = parse_quality(parameters)
    others = liked.get("*", 0.0)
    zstd, gzip = liked.get("zstd", others), liked.get("gzip", liked.get("x-gzip", others))
    if max(zstd, gzip) <= 0 or max(zstd, gzip) < liked.get("identity", 0.0):
        return ""
    return "zstd" if zstd >= gzip else "gzip"
