"""Routes of artifacts: list, download."""

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response

from api.http import responses
from api.http.conventions.file_paths import FILE_PATH
from api.http.deps import Caller, JobId
from api.http.operation_docs import BYTES, content_of, describe
from api.results import file_response
from api.results.deps import ServiceDep
from shardyard.contract.responses import ArtifactList

router = APIRouter(tags=["artifacts"])

Attempt = Annotated[int | None, Query(ge=1, description="default: the newest")]


@router.get("/v1/jobs/{job}/artifacts", **describe("List a job's files", ArtifactList))
async def list_artifacts(who: Caller, results: ServiceDep, job: JobId, attempt: Attempt = None) -> Response:
    return responses.json_response(await results.list_artifacts(who, job, attempt))


@router.get(
    f"/v1/jobs/{{job}}/artifacts/{FILE_PATH}",
    response_class=Response,
    **describe(
        "Download one of a job's files",
        content_of("application/octet-stream", BYTES),
        statuses=(200, 206),
        without_body=(304, 307),
        refuses=("range_not_satisfiable",),
    ),
)
async def download(
    request: Request,
    who: Caller,
    results: ServiceDep,
    job: JobId,
    path: str,
    attempt: Attempt = None,
    range_: Annotated[str, Header(alias="Range", max_length=200, description="bytes=first-last")] = "",
) -> Response:
    """The bytes of one file. Always as an attachment: a browser must not take it for a page of this service."""
    return file_response.artifact_response(request, await results.open_artifact(who, job, attempt, path), range_)
