"""Gives answers an ETag of their content, where their route gives none, and answers 304 when the client has it."""

from hashlib import blake2b

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shardyard.contract.errors import PreconditionFailed

#: Of an answer that gets a tag: lists and views, and not series of numbers.
MAX_BYTES = 1024 * 1024
_PREFIX = "/v1/"


def make_tag(body: bytes) -> str:
    return f'W/"{blake2b(body, digest_size=9).hexdigest()}"'


def has_tag(header: str, tag: str) -> bool:
    """Whether an If-Match or If-None-Match header has a tag. Ours are weak, and compared as such."""
    given = {part.strip().removeprefix("W/") for part in header.split(",")}
    return "*" in given or tag.removeprefix("W/") in given


def require_tag(header: str, body: bytes) -> None:
    """Raises:
    PreconditionFailed: an If-Match header does not have the tag of what is there now.
    """
    if not has_tag(header, make_tag(body)):
        raise PreconditionFailed("this has changed meanwhile; read it again, and decide again")


class TagMiddleware:
    """For answers in JSON to GET that come in one piece."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "GET" or not scope["path"].startswith(_PREFIX):
            await self._app(scope, receive, send)
            return
        head: Message | None = None

        async def tagged(message: Message) -> None:
            nonlocal head
            if message["type"] == "http.response.start":
                if _is_view(message):
                    head = message
                    return
            elif head is not None:
                start, head = head, None
                body = message.get("body", b"")
                if not message.get("more_body", False) and len(body) <= MAX_BYTES:
                    tag = make_tag(body)
                    MutableHeaders(raw=start["headers"])["ETag"] = tag
                    if has_tag(Headers(scope=scope).get("if-none-match", ""), tag):
                        start = {"type": start["type"], "status": 304, "headers": _without_body(start["headers"])}
                        message = {"type": message["type"], "body": b""}
                await send(start)
            await send(message)

        await self._app(scope, receive, tagged)


def _is_view(start: Message) -> bool:
    headers = Headers(raw=start["headers"])
    return start["status"] == 200 and headers.get("content-type") == "application/json" and "etag" not in headers


def _without_body(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [header for header in headers if header[0] not in (b"content-length", b"content-type")]
