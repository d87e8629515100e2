"""Routes of comparisons and sweeps."""

from collections.abc import Callable
from typing import Annotated, TypeVar

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from api.groups import service
from api.groups.searches import SweepSearches
from api.groups.service import GroupService
from api.http import negotiation, responses
from api.http.deps import Body, Caller, CallersTrace, IdempotencyKey, checked_id, service_of
from api.http.operation_docs import BYTES, HTML, JSON, SVG, TEXT, content_of, describe, json_body
from api.schemas import examples
from jobs.store.groups import MAX_LISTED_GROUPS, GroupPage
from shardyard.contract.groups import (
    Comparison,
    ComparisonList,
    ComparisonReport,
    GroupSummary,
    Sweep,
    SweepList,
    SweepReport,
)

Found = TypeVar("Found", ComparisonReport, SweepReport)
ServiceDep = Annotated[GroupService, Depends(service_of(GroupService))]
SearchesDep = Annotated[SweepSearches, Depends(service_of(SweepSearches))]
JOURNAL = "application/octet-stream"
router = APIRouter(tags=["groups"])

REPORT_MEDIA = (JSON, TEXT, HTML, SVG)
_REFUSED = (
    *("not_supported", "unknown_bundle", "unknown_secret", "unknown_pool", "too_large_for_pool", "invalid_spec"),
    *("idempotency_conflict", "storage_low", "store_full", "over_quota", "quota_exceeded", "too_many_reads"),
)


async def _comparison_id(comparison: Annotated[str, Path(description="id of a comparison")]) -> str:
    return checked_id(comparison, "comparison")


async def _sweep_id(sweep: Annotated[str, Path(description="id of a sweep")]) -> str:
    return checked_id(sweep, "sweep")


ComparisonId = Annotated[str, Depends(_comparison_id)]
SweepId = Annotated[str, Depends(_sweep_id)]
Limit = Annotated[int, Query(ge=1, le=MAX_LISTED_GROUPS)]


@router.post(
    "/v1/comparisons",
    status_code=201,
    **describe(
        "Compare strategies and numbers of devices",
        Comparison,
        statuses=(201, 200),
        refuses=_REFUSED,
        body=json_body("ComparisonRequest", examples.COMPARISONS),
    ),
)
async def compare(who: Caller, groups: ServiceDep, body: Body, key: IdempotencyKey, trace: CallersTrace) -> Response:
    """Runs a spec under each strategy on each number of devices, one after another, with the same rows in each step."""
    stored = await groups.compare(who, body, key, trace)
    return _submitted(await groups.read_comparison(who, stored.id), created=stored.created)


@router.get("/v1/comparisons", **describe("List comparisons", ComparisonList, refuses=("malformed_cursor",)))
async def list_comparisons(
    request: Request, who: Caller, groups: ServiceDep, limit: Limit = MAX_LISTED_GROUPS, cursor: str = ""
) -> Response:
    return _page(request, await groups.list_groups(who, "comparison", cursor, limit), ComparisonList)


@router.get("/v1/comparisons/{comparison}", **describe("Show a comparison", Comparison))
async def show_comparison(who: Caller, groups: ServiceDep, comparison: ComparisonId) -> Response:
    return responses.json_response(await groups.read_comparison(who, comparison))


@router.post(
    "/v1/comparisons/{comparison}/cancel",
    status_code=202,
    **describe("Cancel a comparison", Comparison, statuses=(202,)),
)
async def cancel_comparison(who: Caller, groups: ServiceDep, comparison: ComparisonId) -> Response:
    """Cancels all of its jobs that have not ended. It may be repeated."""
    await groups.cancel(who, comparison, "comparison")
    return responses.json_response(await groups.read_comparison(who, comparison), 202)


@router.get(
    "/v1/comparisons/{comparison}/report",
    **describe(
        "Show the report of a comparison",
        ComparisonReport,
        also=REPORT_MEDIA[1:],
        without_body=(304,),
        refuses=("not_acceptable", "too_many_reads"),
    ),
)
async def report_comparison(request: Request, who: Caller, groups: ServiceDep, comparison: ComparisonId) -> Response:
    """What it has found so far, as JSON, as text, as a page, or as a picture of the loss curves."""
    from shardyard.render import group_text
    from shardyard.render.svg import group_page

    found = await groups.report_comparison(who, comparison)
    return _report_response(
        request,
        found,
        group_text.render_comparison,
        group_page.comparison_report_page,
        group_page.draw_comparison,
        f"comparison-{comparison}",
    )


@router.post(
    "/v1/sweeps",
    status_code=201,
    **describe(
        "Sweep over values of a spec",
        Sweep,
        statuses=(201, 200),
        refuses=_REFUSED,
        body=json_body("SweepRequest", examples.SWEEPS),
    ),
)
async def sweep(who: Caller, groups: ServiceDep, body: Body, key: IdempotencyKey, trace: CallersTrace) -> Response:
    """Runs a spec with each combination of the values of a grid, or with values drawn at random."""
    stored = await groups.sweep(who, body, key, trace)
    return _submitted(await groups.read_sweep(who, stored.id), created=stored.created)


@router.get("/v1/sweeps", **describe("List sweeps", SweepList, refuses=("malformed_cursor",)))
async def list_sweeps(
    request: Request, who: Caller, groups: ServiceDep, limit: Limit = MAX_LISTED_GROUPS, cursor: str = ""
) -> Response:
    return _page(request, await groups.list_groups(who, "sweep", cursor, limit), SweepList)


@router.get("/v1/sweeps/{sweep}", **describe("Show a sweep", Sweep))
async def show_sweep(who: Caller, groups: ServiceDep, sweep: SweepId) -> Response:
    return responses.json_response(await groups.read_sweep(who, sweep))


@router.post("/v1/sweeps/{sweep}/cancel", status_code=202, **describe("Cancel a sweep", Sweep, statuses=(202,)))
async def cancel_sweep(who: Caller, groups: ServiceDep, sweep: SweepId) -> Response:
    """Cancels all of its jobs that have not ended. It may be repeated."""
    await groups.cancel(who, sweep, "sweep")
    return responses.json_response(await groups.read_sweep(who, sweep), 202)


@router.get(
    "/v1/sweeps/{sweep}/report",
    **describe(
        "Show the report of a sweep",
        SweepReport,
        also=REPORT_MEDIA[1:],
        without_body=(304,),
        refuses=("not_acceptable", "too_many_reads"),
    ),
)
async def report_sweep(request: Request, who: Caller, groups: ServiceDep, sweep: SweepId) -> Response:
    """What it has found so far, as JSON, as text, as a page, or as a picture of the loss curves."""
    from shardyard.render import group_text
    from shardyard.render.svg import group_page

    found = await groups.report_sweep(who, sweep)
    return _report_response(
        request, found, group_text.render_sweep, group_page.sweep_report_page, group_page.draw_sweep, f"sweep-{sweep}"
    )


@router.get(
    "/v1/sweeps/{sweep}/study",
    response_class=Response,
    **describe("Download the study of a sweep", content_of(JOURNAL, BYTES)),
)
async def download_study(who: Caller, searches: SearchesDep, sweep: SweepId) -> Response:
    """The trials so far of a sweep with `search: optuna`, as a journal that Optuna and its dashboard open."""
    headers = {"Content-Disposition": f'attachment; filename="sweep-{sweep}.log"'}
    return Response(await searches.read_study(who, sweep), headers=headers, media_type=JOURNAL)


def _submitted(found: GroupSummary, *, created: bool) -> Response:
    return responses.json_response(found, 201 if created else 200, {"Location": found.links["self"]})


def _page(request: Request, page: GroupPage, kind: type[ComparisonList] | type[SweepList]) -> Response:
    following = service.next_cursor(page)
    shown = kind([service.summary(one) for one in page.groups], following, page.total)
    return responses.page_response(request, shown, following)


def _report_response(
    request: Request,
    found: Found,
    as_text: Callable[[Found], str],
    as_page: Callable[[Found], str],
    as_picture: Callable[[Found], str],
    file: str,
) -> Response:
    media = negotiation.choose_media_type(request.headers.get("accept", ""), REPORT_MEDIA)
    if media == JSON:
        return responses.content_response(request, responses.encode_json(found), JSON)
    if media == TEXT:
        return responses.content_response(request, as_text(found).encode(), responses.TEXT)
    draw, ending = (as_picture, "svg") if media == SVG else (as_page, "html")
    return responses.drawn_response(request, draw(found), media, f"{file}.{ending}")
