"""Answers as bytes: JSON from the shapes of `shardyard.contract.responses`, and ETags."""

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec
from fastapi import Request, Response
from starlette.datastructures import URL

from api.http.conventions.etags import make_tag, require_tag
from api.http.request_turns import end_turn
from shardyard.contract.errors import NotFound, PreconditionFailed
from shardyard.contract.responses import Answer

T = TypeVar("T")

TEXT = "text/plain; charset=utf-8"
#: The version in a tag of `TaggedJson`.
_VERSION = re.compile(r'W/"(\d{1,15})\.')


class TaggedJson(NamedTuple):
    """JSON, and an ETag of its content that begins with the version of what it shows."""

    body: bytes
    tag: str


def tag_json(version: int, body: bytes) -> TaggedJson:
    """`version` is of what a change may be made for, the tag also of all else that is shown."""
    return TaggedJson(body, f'W/"{version}.{hashlib.blake2b(body, digest_size=9).hexdigest()}"')


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status, headers, "application/json")


def encode_json(value: Any) -> bytes:
    return msgspec.json.encode(value)


def page_response(request: Request, page: Answer, following: str | None) -> Response:
    """A page of a list that has `links`, with the address of the next one there and in the header `Link`."""
    links, headers = page_links(request, following)
    return json_response(msgspec.structs.replace(page, links=links), headers=headers)


def page_links(request: Request, following: str | None) -> tuple[dict[str, str], dict[str, str]]:
    """The `links` of a page and its headers, by the cursor of the following one."""
    links = {"self": _address_of(request.url)}
    if following is None:
        return links, {}
    links["next"] = _address_of(request.url.include_query_params(cursor=following))
    return links, {"Link": f'<{links["next"]}>; rel="next"'}


def _address_of(url: URL) -> str:
    return f"{url.path}?{url.query}" if url.query else url.path


def text_response(value: str, headers: Mapping[str, str] | None = None) -> Response:
    """Text that a program printed: never to be taken for anything else by a browser."""
    return Response(value, 200, {"X-Content-Type-Options": "nosniff", **(headers or {})}, TEXT)


def content_response(request: Request, body: bytes, media: str, headers: Mapping[str, str] | None = None) -> Response:
    """Bytes of one of several media types, with an ETag of their content, or 304 when the client has them already."""
    tag = make_tag(body)
    named = {"ETag": tag, "Vary": "Accept", "X-Content-Type-Options": "nosniff", **(headers or {})}
    return Response(status_code=304, headers=named) if matches_tag(request, tag) else Response(body, 200, named, media)


def drawn_response(request: Request, drawn: str, media: str, file: str) -> Response:
    """A page or a picture, which a browser may only show, without the rights of this service's origin."""
    headers = {
        "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox",
        "Content-Disposition": f'inline; filename="{file}"',
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "private, no-cache",
    }
    return content_response(request, drawn.encode(), f"{media}; charset=utf-8", headers)


def conditional_response(request: Request, found: TaggedJson) -> Response:
    """What was found, or 304 when the client has it already."""
    if matches_tag(request, found.tag):
        return Response(status_code=304, headers={"ETag": found.tag})
    return Response(found.body, 200, {"ETag": found.tag}, "application/json")


def known_versions(request: Request) -> frozenset[int] | None:
    """Versions in the tags that the client has; None when it has not said that it has any."""
    header = request.headers.get("if-none-match")
    return None if header is None else versions_of(header)


def versions_of(tags: str) -> frozenset[int]:
    """Versions in tags of `TaggedJson`."""
    return frozenset(int(number) for number in _VERSION.findall(tags))


def matches_tag(request: Request, tag: str) -> bool:
    """Whether the client says that it has what `tag` stands for."""
    given = request.headers.get("if-none-match")
    return given is not None and tag in {part.strip() for part in given.split(",")}


def require_match(tags: str, current: Answer) -> None:
    """For a change of what GET shows as `current`.

    Raises:
        PreconditionFailed: it has none of the tags of an If-Match header any more.
    """
    require_tag(tags, msgspec.json.encode(current))


async def require_match_of(tags: str, current: Awaitable[Answer]) -> None:
    """As `require_match`, for a change that may also make what is not there yet: then it has no tag, and fails."""
    try:
        require_match(tags, await current)
    except NotFound as error:
        raise PreconditionFailed(f"{error.message}, so it has no ETag; leave out If-Match to make it") from None


async def wait_while_connected(request: Request, answer: Awaitable[T]) -> T | None:
    """The answer, or None as soon as the client has hung up: what it waited for is then let go."""
    end_turn(request.scope)
    waited, gone = asyncio.ensure_future(answer), asyncio.ensure_future(_wait_for_disconnect(request))
    try:
        await asyncio.wait((waited, gone), return_when=asyncio.FIRST_COMPLETED)
        return await waited if waited.done() else None
    finally:
        waited.cancel()
        gone.cancel()


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
