"""Answers as bytes: JSON from the shapes of `api.schemas`, and ETags."""

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import Request, Response

TEXT = "text/plain; charset=utf-8"


def json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status, headers, "application/json")


def text(value: str, headers: Mapping[str, str] | None = None) -> Response:
    """Text that a program printed: never to be taken for anything else by a browser."""
    return Response(value, 200, {"X-Content-Type-Options": "nosniff", **(headers or {})}, TEXT)


def tagged(request: Request, value: Any) -> Response:
    """JSON with an ETag of its content, or 304 when the client has it already."""
    body = msgspec.json.encode(value)
    tag = f'W/"{hashlib.blake2b(body, digest_size=9).hexdigest()}"'
    known = {part.strip() for part in request.headers.get("if-none-match", "").split(",")}
    if tag in known:
        return Response(status_code=304, headers={"ETag": tag})
    return Response(body, 200, {"ETag": tag}, "application/json")
