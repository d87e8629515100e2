"""An open file as an answer: whole or a range of it, read in a thread, closed whatever happens."""

from collections.abc import AsyncIterator
from functools import partial
from urllib.parse import quote

import anyio.to_thread
from fastapi import Request, Response
from starlette.responses import RedirectResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from api.data.artifacts import OpenArtifact, RangeNotSatisfiable, parse_range
from api.http import problems, responses
from api.http.conventions.methods import is_head

CHUNK_BYTES = 256 * 1024


def artifact_response(request: Request, artifact: OpenArtifact, range_header: str) -> Response:
    """200, 206, 304, 307 or 416. The file is closed when the answer is over, or at once where that has none of it."""
    headers = {"ETag": artifact.tag, "Accept-Ranges": "bytes", "X-Content-Type-Options": "nosniff"}
    if responses.matches_tag(request, artifact.tag):
        artifact.file.close()
        return Response(status_code=304, headers=headers)
    if artifact.url:
        artifact.file.close()
        return RedirectResponse(artifact.url, 307, headers | {"Cache-Control": "no-store"})
    same = request.headers.get("if-range", artifact.tag) == artifact.tag
    try:
        wanted = parse_range(range_header, artifact.size) if same else None
    except RangeNotSatisfiable as error:
        artifact.file.close()
        answer = problems.error_response(error, request.url.path)
        answer.headers["Content-Range"] = f"bytes */{artifact.size}"
        return answer
    first, last = wanted or (0, artifact.size - 1)
    headers |= {
        "Content-Length": str(last - first + 1),
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(artifact.name, safe='')}",
        "Content-Security-Policy": "default-src 'none'; sandbox",
    }
    if wanted is not None:
        headers["Content-Range"] = f"bytes {first}-{last}/{artifact.size}"
    if is_head(request.scope):
        artifact.file.close()
        return Response(None, 200 if wanted is None else 206, headers, "application/octet-stream")
    return _FileResponse(artifact, first, last, 200 if wanted is None else 206, headers)


class _FileResponse(StreamingResponse):
    def __init__(self, artifact: OpenArtifact, first: int, last: int, status: int, headers: dict[str, str]) -> None:
        self._artifact = artifact
        super().__init__(self._read_chunks(first, last), status, headers, "application/octet-stream")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._artifact.file.close()

    async def _read_chunks(self, first: int, last: int) -> AsyncIterator[bytes]:
        """The bytes from first to last. A file that shrinks meanwhile ends the connection: the length was promised."""
        file = self._artifact.file
        file.seek(first)
        left = last - first + 1
        while left:
            part = await anyio.to_thread.run_sync(partial(file.read, min(left, CHUNK_BYTES)))
            if not part:
                return
            left -= len(part)
            yield part
