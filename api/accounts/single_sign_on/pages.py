"""Pages that a browser gets from the routes of single sign-on: a person sees them, so errors are for people. Others
get it as they get all errors."""

from collections.abc import Callable, Coroutine
from html import escape
from typing import Any, Final

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from api.http import problems
from api.http.problems import PROBLEMS
from shardyard.contract.errors import InvalidRequest, ShardyardError

HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_PAGE: Final = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title} - Shardyard</title>
<h1>{title}</h1>
<p>{text}.</p>
<p><a href="/sign-in">Back to the sign-in</a></p>
</html>
"""


class PageRoute(APIRoute):
    """A route whose errors are pages, for those who ask for HTML."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            if "text/html" not in request.headers.get("accept", ""):
                return await handle(request)
            try:
                return await handle(request)
            except RequestValidationError:
                return error_page(InvalidRequest("the address of the sign-in is not complete; begin again"))
            except ShardyardError as error:
                return error_page(error)

        return handled


def error_page(error: ShardyardError) -> Response:
    """The page of an error, with the status and the headers that it has elsewhere."""
    status, title = PROBLEMS.get(error.code, PROBLEMS["internal_error"])
    headers = dict(problems.error_response(error, "").headers)
    kept = {name: value for name, value in headers.items() if name == "retry-after"}
    text = "; ".join([error.message, *(field.message for field in error.fields)])
    text = text[:1].upper() + text[1:]
    body = _PAGE.format(title=escape(title), text=escape(text))
    return Response(body, status, HEADERS | kept, "text/html; charset=utf-8")
