"""The route of the audit."""

from datetime import UTC, datetime
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Depends, Query, Request, Response

from api.audit.service import AuditService
from api.http import responses
from api.http.deps import Admin, service_of
from api.http.negotiation import choose_media_type
from api.http.operation_docs import JSON, describe
from jobs.files.audit_files import AuditQuery
from shardyard.contract.audit import AuditPage

ServiceDep = Annotated[AuditService, Depends(service_of(AuditService))]
router = APIRouter(tags=["audit"])

JSON_LINES: Final = "application/x-ndjson"
_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_FAR: Final = datetime(9999, 1, 1, tzinfo=UTC)


@router.get(
    "/v1/audit",
    **describe("Read the audit", AuditPage, also=(JSON_LINES,), refuses=("malformed_cursor", "not_acceptable")),
)
async def read_audit(
    request: Request,
    who: Admin,
    entries: ServiceDep,
    action: Annotated[str, Query(max_length=400, description="such as job_submitted; several with commas")] = "",
    tenant: Annotated[str, Query(max_length=63, description="for operators; others see their own tenant only")] = "",
    token: Annotated[str, Query(max_length=32, description="id of a token")] = "",
    since: Annotated[datetime, Query(description="first time, as 2026-01-31T12:00:00Z")] = _EPOCH,
    until: Annotated[datetime, Query(description="time before which entries are")] = _FAR,
    order: Annotated[Literal["newest", "oldest"], Query(description="which come first")] = "newest",
    limit: Annotated[int, Query(ge=1, le=5000)] = 100,
    cursor: Annotated[str, Query(max_length=32)] = "",
    as_format: Annotated[
        Literal["json", "jsonl", ""], Query(alias="format", description="in place of an Accept header")
    ] = "",
) -> Response:
    """Who did what: changes, downloads, sign-ins, refused tokens and scopes. The header `Link` has the address of the
    next page."""
    query = AuditQuery(
        tenant=tenant,
        token=token,
        actions=frozenset(part.strip() for part in action.split(",") if part.strip()),
        since=_microseconds(since),
        until=_microseconds(until),
        after=cursor,
        oldest_first=order == "oldest",
        limit=limit,
    )
    accept = request.headers.get("accept", "")
    media = choose_media_type(accept, (JSON, JSON_LINES)) if not as_format else JSON
    page = await entries.read_page(who, query)
    if media == JSON and as_format != "jsonl":
        return responses.page_response(request, page, page.next)
    _, headers = responses.page_links(request, page.next)
    return Response(page.as_lines(), 200, headers, JSON_LINES)


def _microseconds(time: datetime) -> int:
    known = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return max(0, int(known.timestamp() * 1_000_000))
