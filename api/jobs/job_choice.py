"""The parameters by which lists and tables of jobs choose among them."""

from typing import Annotated

from fastapi import Depends, Query

from api.schemas.job_requests import parse_label
from jobs.model.state import JobState
from jobs.store import JobFilter

Search = Annotated[str, Query(max_length=200, description="a part of the id, the name or a label")]
Archived = Annotated[bool, Query(description="list archived jobs instead of the others")]


async def choose_jobs(
    state: JobState | None = None,
    pool: Annotated[str, Query(max_length=63)] = "",
    label: Annotated[str, Query(max_length=320, description="key=value")] = "",
    name: Annotated[str, Query(max_length=200)] = "",
    group: Annotated[str, Query(max_length=36, description="the id of a comparison or a sweep")] = "",
) -> JobFilter:
    return JobFilter(state, pool, parse_label(label), name, group)


ChosenJobs = Annotated[JobFilter, Depends(choose_jobs)]
