"""Routes of split reports: as JSON, as text, as a picture, or as a complete page."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from api.http import negotiation, responses
from api.http.deps import Caller, JobId, OtherJobId
from api.http.operation_docs import HTML, JSON, SVG, TEXT, describe
from api.results.deps import ServiceDep
from shardyard.contract.report import Report
from shardyard.contract.report_diff import ReportDiff
from shardyard.render.svg.palette import By

router = APIRouter(tags=["splits"])

REPORT_MEDIA = (JSON, TEXT, HTML, SVG)
DIFF_MEDIA = (JSON, TEXT, HTML)

Attempt = Annotated[int | None, Query(ge=1)]
WantsNotes = Annotated[bool, Query(description="whether text tells why numbers are missing or count differently")]


@router.get(
    "/v1/jobs/{job}/splits",
    **describe(
        "Show the split report", Report, also=REPORT_MEDIA[1:], without_body=(304,), refuses=("not_acceptable",)
    ),
)
async def splits(
    request: Request,
    who: Caller,
    results: ServiceDep,
    job: JobId,
    attempt: Attempt = None,
    device: Annotated[int | None, Query(ge=0)] = None,
    by: Annotated[By, Query(description="what the cells of a picture show")] = "rows",
    notes: WantsNotes = False,
) -> Response:
    media = negotiation.choose_media_type(request.headers.get("accept", ""), REPORT_MEDIA)
    if media == JSON:
        return responses.content_response(request, await results.splits_json(who, job, attempt, device), JSON)
    if media == TEXT:
        return _text_response(request, await results.splits_text(who, job, attempt, device, notes=notes))
    if media == SVG:
        drawn = await results.splits_picture(who, job, attempt, device, by)
        return responses.drawn_response(request, drawn, SVG, f"split-{job}.svg")
    drawn = await results.splits_page(who, job, attempt, device, by)
    return responses.drawn_response(request, drawn, HTML, f"split-{job}.html")


@router.get(
    "/v1/jobs/{job}/splits/diff",
    **describe(
        "Show two split reports side by side",
        ReportDiff,
        also=DIFF_MEDIA[1:],
        without_body=(304,),
        refuses=("not_acceptable",),
    ),
)
async def splits_diff(
    request: Request,
    who: Caller,
    results: ServiceDep,
    job: JobId,
    against: OtherJobId,
    attempt: Attempt = None,
    against_attempt: Attempt = None,
    notes: WantsNotes = False,
) -> Response:
    """The reports of two jobs side by side, or of two attempts of one."""
    media = negotiation.choose_media_type(request.headers.get("accept", ""), DIFF_MEDIA)
    if media == JSON:
        found = await results.splits_diff(who, job, attempt, against, against_attempt)
        return responses.content_response(request, responses.encode_json(found), JSON)
    if media == TEXT:
        text = await results.splits_diff_text(who, job, attempt, against, against_attempt, notes=notes)
        return _text_response(request, text)
    drawn = await results.splits_diff_page(who, job, attempt, against, against_attempt)
    return responses.drawn_response(request, drawn, HTML, f"splits-{job}-{against}.html")


def _text_response(request: Request, words: str) -> Response:
    return responses.content_response(request, words.encode(), responses.TEXT)
