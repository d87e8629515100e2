"""Routes of server-sent events: of one job, and of the whole service."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import StreamingResponse

from api.events.service import EventService, parse_wanted
from api.http.conventions.methods import is_head
from api.http.deps import Caller, JobId, LogStreamNames, authenticate, service_of
from api.http.operation_docs import content_of, describe
from api.http.protocol import watch_client
from api.http.request_turns import end_turn
from shardyard.contract.stream_events import EventName

ServiceDep = Annotated[EventService, Depends(service_of(EventService))]
router = APIRouter(tags=["events"])

_EVENT = {
    "type": "object",
    "properties": {
        "event": {"type": "string", "enum": list(EventName)},
        "data": {"type": "string", "contentMediaType": "application/json"},
        "id": {"type": "string"},
        "retry": {"type": "integer"},
    },
}
_EVENTS = content_of("text/event-stream", _EVENT)

#: No proxy may cache or buffer a stream.
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class EventStream(StreamingResponse):
    """A stream of events that are encoded already; the framework would encode each event again for every client."""

    media_type = "text/event-stream"


LastEventId = Annotated[str, Header(alias="Last-Event-ID", max_length=8192)]
LastEventIdInQuery = Annotated[
    str,
    Query(alias="last_event_id", max_length=8192, description="like the header Last-Event-ID, which takes precedence"),
]


async def _job_stream(
    request: Request,
    who: Caller,
    service: ServiceDep,
    job: JobId,
    logs: Annotated[
        str, Query(max_length=20_000, description="devices whose lines to send: all, or their numbers (0,3)")
    ] = "",
    tail: Annotated[
        int | None,
        Query(ge=0, le=10_000, description="begin with this many of the newest lines of each device, instead of all"),
    ] = None,
    stream: LogStreamNames = "",
    last_id: LastEventIdInQuery = "",
    last_id_header: LastEventId = "",
) -> AsyncIterator[AsyncIterator[bytes]]:
    wanted = parse_wanted(logs, tail, stream)
    check = partial(authenticate, request)
    async with service.follow_job(who, job, last_id_header or last_id, wanted, check) as events:
        yield events


async def _service_stream(
    request: Request,
    who: Caller,
    service: ServiceDep,
    last_id: LastEventIdInQuery = "",
    last_id_header: LastEventId = "",
) -> AsyncIterator[AsyncIterator[bytes]]:
    async with service.follow_all(who, last_id_header or last_id, partial(authenticate, request)) as events:
        yield events


@router.get(
    "/v1/jobs/{job}/events",
    response_class=EventStream,
    **describe("Follow a job", _EVENTS, without_body=(204,), refuses=("unreadable_spec", "too_many_streams")),
)
async def job_events(request: Request, events: Annotated[AsyncIterator[bytes], Depends(_job_stream)]) -> Response:
    """Events of a job while they happen; docs/api.md lists them. The stream ends after the last event. A request with
    the id of that event gets a 204."""
    return _stream(request, events)


@router.get(
    "/v1/events", response_class=EventStream, **describe("Follow all jobs", _EVENTS, refuses=("too_many_streams",))
)
async def service_events(
    request: Request, events: Annotated[AsyncIterator[bytes], Depends(_service_stream)]
) -> Response:
    """Changes of all jobs of your tenant, and of nodes."""
    return _stream(request, events)


def _stream(request: Request, events: AsyncIterator[bytes]) -> Response:
    """The answer of a stream; it notices a client that disconnects silently."""
    if is_head(request.scope):  # a stream without its events would have no end
        return Response(headers=HEADERS, media_type=EventStream.media_type)
    watch_client(request.scope)
    end_turn(request.scope)
    return EventStream(events, headers=HEADERS)
