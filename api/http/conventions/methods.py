"""Which methods a path has: HEAD wherever it has GET, OPTIONS everywhere, and all of its routes in the header Allow."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Response
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http.audit import CHANGES

_HEAD = "shardyard.head"
#: Routes of their own for HEAD.
_OWN = "/v1/node/"


class HeadMiddleware:
    """Has the routes for GET answer HEAD as well; the server leaves out the body. A route that changes something does
    not."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or scope["method"] != "HEAD" or path.startswith(_OWN) or ("GET", path) in CHANGES:
            await self._app(scope, receive, send)
            return

        async def answer(message: Message) -> None:
            scope["method"] = "HEAD"  # for whoever looks at the answer
            await send(message)

        scope["method"], scope[_HEAD] = "GET", True
        try:
            await self._app(scope, receive, answer)
        finally:
            scope["method"] = "HEAD"


class OptionsMiddleware:
    """Answers OPTIONS at each path that leads to a route, whoever asks: it says what the public OpenAPI document says,
    and nothing of what is at the path."""

    def __init__(self, app: ASGIApp, routes: Sequence[APIRoute]) -> None:
        self._app = app
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http" and scope["method"] == "OPTIONS":
            allowed = allowed_methods(self._routes, scope["path"])
            if allowed:
                app = Response(status_code=204, headers={"Allow": ", ".join(allowed)})
        await app(scope, receive, send)


def is_head(scope: Mapping[str, Any]) -> bool:
    """Whether a request for a route of GET wants no body: one that is long, or has no end, need not be made."""
    return _HEAD in scope


def routes_of(routers: Iterable[APIRouter]) -> list[APIRoute]:
    return [route for router in routers for route in router.routes if isinstance(route, APIRoute)]


def allowed_methods(routes: Iterable[APIRoute], path: str) -> list[str]:
    """Methods of all routes that a path leads to, with those that every route has; none where there is no route."""
    found = {method for route in routes if route.path_regex.match(path) for method in route.methods or ()}
    if "GET" in found and ("GET", path) not in CHANGES:
        found.add("HEAD")
    return sorted(found | {"OPTIONS"}) if found else []
