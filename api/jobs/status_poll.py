"""Answers status polls quickly: from the bytes of the last answer, and without the framework's routing.

Clients ask `GET /v1/jobs/{id}` again and again. The middleware calls the dependencies of the route and then the route
itself, so the rules stand there; a request with a query takes the framework's way, as all others do
([0035](../../docs/decisions/0035-shared-connections-and-short-status-polls.md)).
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send

from api.http import deps, problems
from api.http.audit_middleware import AuditMiddleware
from api.http.responses import TaggedJson, tag_json
from api.schemas import views
from api.schemas.fleet_facts import FleetFacts
from jobs.model.state import TERMINAL
from jobs.store import JobView
from jobs.support.bounded_cache import keep_newest
from shardyard.contract.responses import Progress

#: Of the id of a job; what is shorter or longer may be another route.
ID_LENGTH = 36
#: Jobs whose last answer is cached, and the largest answer that is.
MAX_CACHED, MAX_CACHED_BYTES = 512, 8192


@dataclass(frozen=True, slots=True)
class CachedStatus:
    """A status and what it was made from. `fleet` is the same object as long as it is the same."""

    view: JobView
    progress: Progress | None
    fleet: FleetFacts
    owner: str | None
    answer: TaggedJson

    @property
    def is_final(self) -> bool:
        """Whether progress cannot change any more."""
        return self.progress is not None and self.view.record.state in TERMINAL

    def is_of(self, view: JobView, progress: Progress | None, fleet: FleetFacts, owner: str | None) -> bool:
        """Whether it was made from these."""
        unchanged = self.view is view and self.fleet is fleet
        return unchanged and (self.progress, self.owner) == (progress, owner)


class StatusCache:
    """The last answers by tenant and job, with the values of environment variables or without. Not safe for several
    threads."""

    def __init__(self, *, shows_env: bool = True) -> None:
        self._shows_env = shows_env
        self._cached: OrderedDict[tuple[str, str], CachedStatus] = OrderedDict()

    def last_status(self, tenant: str, job: str) -> CachedStatus | None:
        return self._cached.get((tenant, job))

    def encode_status(
        self, view: JobView, progress: Progress | None, fleet: FleetFacts, owner: str | None = None
    ) -> TaggedJson:
        """The cached answer where it was made from the same parts, else a new one."""
        key = view.record.tenant, view.record.id
        last = self._cached.get(key)
        if last is not None and last.is_of(view, progress, fleet, owner):
            return last.answer
        body = msgspec.json.encode(views.job_status(view, progress, fleet, owner, shows_env=self._shows_env))
        answer = tag_json(view.record.version, body)
        self._cached.pop(key, None)
        if len(body) <= MAX_CACHED_BYTES:
            keep_newest(self._cached, key, CachedStatus(view, progress, fleet, owner, answer), MAX_CACHED)
        return answer


class StatusPollMiddleware:
    """Calls the route of a status poll directly; passes every other request on to the application. The audit has
    nothing to say of a poll but that it was refused."""

    def __init__(self, app: AuditMiddleware, route: APIRoute, service: Callable[[Request], Awaitable[Any]]) -> None:
        self._app = app
        self._route = route
        self._service = service
        self._prefix = route.path.partition("{")[0]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        job = self._polled_job(scope)
        if job is None:
            await self._app(scope, receive, send)
            return
        scope["route"] = self._route
        request = Request(scope, receive, send)
        try:
            response = await self._call_route(request, job)
        except Exception as error:  # noqa: BLE001  (the handlers answer a bug as well)
            refusal = await problems.handle_error(request, error)
            await self._app.run(refusal, scope, receive, send)
        else:
            await response(scope, receive, send)

    def _polled_job(self, scope: Scope) -> str | None:
        if scope["type"] != "http" or scope["method"] != "GET" or scope["query_string"]:
            return None
        path: str = scope["path"]
        job = path[len(self._prefix) :]
        return job if len(job) == ID_LENGTH and path.startswith(self._prefix) and "/" not in job else None

    async def _call_route(self, request: Request, job: str) -> Response:
        await deps.authenticate(request)
        who, service = await deps.principal(request), await self._service(request)
        response: Response = await self._route.endpoint(request, who, service, await deps.job_id(job))
        return response
