"""Routes of jobs as a table, with columns from their specs and results."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from api.http import responses
from api.http.deps import Caller, service_of
from api.http.operation_docs import describe
from api.jobs.job_choice import Archived, ChosenJobs, Search
from api.jobs.table_service import TableService
from shardyard.contract.responses import JobColumnList, JobTable

ServiceDep = Annotated[TableService, Depends(service_of(TableService))]
router = APIRouter(tags=["jobs"])


@router.get("/v1/jobs/table", **describe("List jobs as a table", JobTable, refuses=("malformed_cursor",)))
async def read_table(
    request: Request,
    who: Caller,
    tables: ServiceDep,
    chosen: ChosenJobs,
    columns: Annotated[
        str,
        Query(
            max_length=16_384,
            description="names of columns, comma-separated, 200 at most: owner, rows_per_second, loss, metrics.<name>, "
            "spec.<path>; `GET /v1/jobs/columns` lists them",
        ),
    ] = "",
    search: Search = "",
    archived: Archived = False,
    limit: Annotated[int, Query(ge=1, le=200)] = 200,
    cursor: str = "",
) -> Response:
    """As the list of jobs, with values of the columns that are asked for. A spec of more than 32 KiB has none."""
    found = await tables.read_table(who, chosen, columns, cursor, limit, archived=archived, search=search)
    return responses.page_response(request, found, found.next)


@router.get("/v1/jobs/columns", **describe("List the columns that tables of jobs can have", JobColumnList))
async def list_columns(who: Caller, tables: ServiceDep) -> Response:
    """Of the newest 200 jobs."""
    return responses.json_response(await tables.list_columns(who))
