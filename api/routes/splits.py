"""The split report of a job: as JSON, or as text for people."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from api import answers
from api.deps import Caller, JobId, OtherJobId, ResultsService, WantsText

router = APIRouter(tags=["splits"])


@router.get("/v1/jobs/{job}/splits")
async def splits(
    who: Caller,
    results: ResultsService,
    job: JobId,
    as_text: WantsText,
    attempt: Annotated[int | None, Query(ge=1)] = None,
    device: Annotated[int | None, Query(ge=0)] = None,
) -> Response:
    if as_text:
        return answers.text(await results.splits_text(who, job, attempt, device))
    return answers.json(await results.splits(who, job, attempt, device))


@router.get("/v1/jobs/{job}/splits/diff")
async def splits_diff(
    who: Caller,
    results: ResultsService,
    job: JobId,
    as_text: WantsText,
    against: OtherJobId,
    attempt: Annotated[int | None, Query(ge=1)] = None,
    against_attempt: Annotated[int | None, Query(ge=1)] = None,
) -> Response:
    """The reports of two jobs side by side, or of two attempts of one."""
    if as_text:
        return answers.text(await results.splits_diff_text(who, job, attempt, against, against_attempt))
    return answers.json(await results.splits_diff(who, job, attempt, against, against_attempt))
