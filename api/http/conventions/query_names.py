"""Refuses parameters of a query that a route does not have: ignoring a misspelt filter would answer with everything."""

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qsl

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from jobs.model.error_words import show_name, unknown_name
from jobs.model.validation import MAX_REPORTED_ERRORS
from shardyard.contract.errors import FieldError, InvalidRequest

#: Parameters that are read of one query.
MAX_PARAMETERS = 100
#: Where others decide what comes with a request: an identity provider that sends a browser back.
_OPEN = frozenset({"/v1/sign-in/oidc/callback"})
#: Names of the parameters of routes, by their functions.
_NAMES: dict[Callable[..., Any], tuple[str, ...]] = {}


def refuse_unknown_parameters(request: Request) -> None:
    """Raises:
    InvalidRequest: the query has a parameter that the route does not have, or one of them twice.
    """
    route, query = request.scope["route"], request.scope["query_string"]
    if not query or not route.path.startswith("/v1/") or route.path in _OPEN:
        return
    known, seen, wrong = _parameter_names(route), set[str](), dict[str, FieldError]()
    try:
        names = [name for name, _ in parse_qsl(query.decode("latin-1"), True, max_num_fields=MAX_PARAMETERS)]
    except ValueError:
        raise InvalidRequest(f"a query may have {MAX_PARAMETERS} parameters at most") from None
    for name in names:
        if name not in known:
            wrong[name] = FieldError(show_name(name), unknown_name(name, known, "parameter"))
        elif name in seen:
            wrong[name] = FieldError(name, "given more than once; give it only once")
        seen.add(name)
    if wrong:
        found = tuple(wrong.values())[:MAX_REPORTED_ERRORS]
        raise InvalidRequest("the query of the request is not valid", fields=found)


def _parameter_names(route: APIRoute) -> tuple[str, ...]:
    known = _NAMES.get(route.endpoint)
    if known is None:
        known = _NAMES[route.endpoint] = tuple(_names_of(route.dependant))
    return known


def _names_of(dependant: Dependant) -> Iterator[str]:
    """What a route is asked for by comes before how much of it, which the route itself takes."""
    for dependency in dependant.dependencies:
        yield from _names_of(dependency)
    yield from (field.alias for field in dependant.query_params)
