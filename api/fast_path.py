"""The three requests that clients make all the time reach their route without the framework, which takes longer.

Nothing is decided here. What is asked for, and checked, comes from the functions of `api.http.deps` that the route
names, in the order in which the framework calls them, and then the route itself is called. A request that has more to
it, such as a query that is not plain, goes the long way, as all others do
([0035](../docs/decisions/0035-short-ways.md)).
"""

import re
from collections.abc import Awaitable, Callable

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from api.http import deps, problems
from api.jobs import routes
from jobs.model.state import State

Way = Callable[[Request], Awaitable[Response]]


async def _submit(request: Request) -> Response:
    who, service, body = await deps.principal(request), await deps.jobs(request), await deps.body(request)
    return await routes.submit(who, service, body, await deps.idempotency_key(_key(request.scope)))


async def _show(request: Request) -> Response:
    who, service = await deps.principal(request), await deps.jobs(request)
    return await routes.show(request, who, service, await deps.job_id(request.scope["path"].rpartition("/")[2]))


async def _list(request: Request) -> Response:
    who, service, asked = await deps.principal(request), await deps.jobs(request), _plain(request.scope["query_string"])
    assert asked is not None
    state = State(asked["state"]) if "state" in asked else None
    return await routes.list_jobs(
        who, service, state, limit=int(asked.get("limit", 50)), cursor=asked.get("cursor", "")
    )


def _route(endpoint: Callable[..., object]) -> APIRoute:
    return next(route for route in routes.router.routes if isinstance(route, APIRoute) and route.endpoint is endpoint)


#: What a plain query for a list may have, as it must be written to go the short way.
_PLAIN = {
    "limit": re.compile("[1-9][0-9]?|1[0-9][0-9]|200"),
    "cursor": re.compile("[A-Za-z0-9_-]{1,64}"),
    "state": re.compile("|".join(State)),
}
_SUBMIT, _SHOW, _LIST = _route(routes.submit), _route(routes.show), _route(routes.list_jobs)
_SHOWN = _SHOW.path.partition("{")[0]


class ShortWays:
    """Plain ASGI, between the limits that all requests pass and the framework's own layers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        way = _way(scope)
        if way is None:
            await self._app(scope, receive, send)
            return
        scope["route"], answer = way
        request = Request(scope, receive, send)
        try:
            await deps.authenticate(request)
            response = await answer(request)
        except Exception as error:  # noqa: BLE001  (a bug has an answer, too)
            response = await problems.answer(request, error)
        await response(scope, receive, send)


def _way(scope: Scope) -> tuple[APIRoute, Way] | None:
    if scope["type"] != "http":
        return None
    method, path = scope["method"], scope["path"]
    if method == "GET" and path == _LIST.path and _plain(scope["query_string"]) is not None:
        return _LIST, _list
    if scope["query_string"]:
        return None
    if method == "GET" and path.startswith(_SHOWN) and "/" not in path[len(_SHOWN) :] and len(path) > len(_SHOWN):
        return _SHOW, _show
    if method == "POST" and path == _SUBMIT.path and len(_key(scope)) <= deps.MAX_KEY_LENGTH:
        return _SUBMIT, _submit
    return None


def _plain(query: bytes) -> dict[str, str] | None:
    """What a query for a list asks for; None where more than that is in it."""
    asked: dict[str, str] = {}
    for part in query.decode("latin-1").split("&") if query else ():
        name, _, value = part.partition("=")
        if name in asked or name not in _PLAIN or not _PLAIN[name].fullmatch(value):
            return None
        asked[name] = value
    return asked


def _key(scope: Scope) -> str:
    return deps.header_of(scope, b"idempotency-key") or ""
