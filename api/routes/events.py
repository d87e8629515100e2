"""Streams of server-sent events: one job, and the whole service."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent

from api.deps import Caller, EventsService, JobId, authenticate
from api.events_position import Event
from api.server import watch_client
from api.services.events import parse_wanted

router = APIRouter(tags=["events"])

#: How long a client waits before it comes again, in milliseconds.
RETRY_MS = 1000

LastEventId = Annotated[str, Header(alias="Last-Event-ID", max_length=8192)]
LastEventIdInQuery = Annotated[
    str, Query(alias="last_event_id", max_length=8192, description="as the header Last-Event-ID, which counts first")
]


async def _stream(request: Request, response: Response) -> None:
    """What every stream needs: nothing on the way may keep it, and a client that vanished is noticed."""
    response.headers["Cache-Control"] = "no-store"
    watch_client(request.scope)


async def _job_stream(
    request: Request,
    who: Caller,
    service: EventsService,
    job: JobId,
    logs: Annotated[str, Query(max_length=20_000, description="whose lines: all, or devices (0,3)")] = "",
    tail: Annotated[
        int | None, Query(ge=0, le=10_000, description="so many lines of each device from before, instead of all")
    ] = None,
    last_id: LastEventIdInQuery = "",
    last_id_header: LastEventId = "",
) -> AsyncIterator[AsyncIterator[Event]]:
    wanted = parse_wanted(logs, tail)
    check = partial(authenticate, request)
    async with service.follow(who, job, last_id_header or last_id, wanted, check) as events:
        yield events


async def _service_stream(
    request: Request,
    who: Caller,
    service: EventsService,
    last_id: LastEventIdInQuery = "",
    last_id_header: LastEventId = "",
) -> AsyncIterator[AsyncIterator[Event]]:
    async with service.follow_all(who, last_id_header or last_id, partial(authenticate, request)) as events:
        yield events


@router.get("/v1/jobs/{job}/events", response_class=EventSourceResponse, dependencies=[Depends(_stream)])
async def job_events(
    events: Annotated[AsyncIterator[Event], Depends(_job_stream)],
) -> AsyncIterator[ServerSentEvent]:
    """What happens to a job, as it happens; docs/api.md has the events. After the last one the stream ends, and who
    comes again with its id is answered 204."""
    async for event in _sent(events):
        yield event


@router.get("/v1/events", response_class=EventSourceResponse, dependencies=[Depends(_stream)])
async def service_events(
    events: Annotated[AsyncIterator[Event], Depends(_service_stream)],
) -> AsyncIterator[ServerSentEvent]:
    """Jobs of your tenant as they change, and word that nodes did."""
    async for event in _sent(events):
        yield event


async def _sent(events: AsyncIterator[Event]) -> AsyncIterator[ServerSentEvent]:
    retry: int | None = RETRY_MS
    async for event in events:
        yield ServerSentEvent(raw_data=event.data, event=event.name, id=event.id, retry=retry)
        retry = None
