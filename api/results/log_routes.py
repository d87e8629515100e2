"""Routes of logs and metrics."""

from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response

from api.data.attempt_files import LogQuery, SeriesQuery
from api.data.log_streams import parse_streams
from api.http import responses
from api.http.deps import Caller, JobId, LogStreamNames, WantsText
from api.http.operation_docs import TEXT, describe
from api.results.deps import ServiceDep
from api.results.service import ResultService
from jobs.files.metric_file import MAX_POINTS
from shardyard.contract.responses import LogPage, MetricList

router = APIRouter(tags=["logs"])


Index = Annotated[int | None, Query(ge=0)]
Attempt = Annotated[int | None, Query(ge=1)]
Step = Annotated[int | None, Query(ge=0, lt=2**63)]


@router.get("/v1/jobs/{job}/logs", **describe("Read log lines", LogPage, also=(TEXT,), refuses=("malformed_cursor",)))
async def logs(
    request: Request,
    who: Caller,
    results: ServiceDep,
    job: JobId,
    as_text: WantsText,
    device: Index = None,
    rank: Index = None,
    stream: LogStreamNames = "",
    after: Annotated[str, Query(description="`next` of the previous page")] = "",
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    tail: Annotated[int | None, Query(ge=1, le=10_000)] = None,
    from_step: Step = None,
    to_step: Step = None,
    from_line: Annotated[int | None, Query(ge=1, lt=2**63, description="number of the first line")] = None,
    before_line: Annotated[
        int | None, Query(ge=1, lt=2**63, description="with `tail`: the newest lines before this line")
    ] = None,
    search: Annotated[str, Query(max_length=200, description="text to search for, in upper or lower case")] = "",
    attempt: Attempt = None,
) -> Response:
    """Lines of all devices in order of time, or of one device. As text, the header `Link` has the address of the next
    page."""
    chosen = parse_streams(stream)
    query = LogQuery(device, rank, chosen, from_step, to_step, limit, tail, from_line, before_line, search)
    page = await results.read_logs(who, job, attempt, after, query)
    if not as_text:
        return await _json_in_thread(results, page)
    following = request.url.include_query_params(after=page.next) if page.next and not page.ended else None
    headers = {} if following is None else {"Link": f'<{following.path}?{following.query}>; rel="next"'}
    text = await results.compute(partial(_lines_as_text, page, with_device=device is None))
    return responses.text_response(text, headers)


@router.get("/v1/jobs/{job}/metrics", **describe("Read a job's metrics", MetricList))
async def metrics(
    who: Caller,
    results: ServiceDep,
    job: JobId,
    device: Annotated[int | None, Query(ge=-1, description="-1: the job as a whole")] = None,
    name: Annotated[str | None, Query(max_length=200)] = None,
    after: Annotated[int, Query(ge=0, description="number of the last point seen")] = 0,
    points: Annotated[
        int | None, Query(ge=1, le=MAX_POINTS, description="reduce each series to this many buckets")
    ] = None,
    source: Annotated[
        Literal["program", "hardware"],
        Query(description="program: what the program sends; hardware: what its node samples of the devices"),
    ] = "program",
    attempt: Attempt = None,
) -> Response:
    """Series of numbers. Those of the hardware come as buckets, whose steps are seconds since the first sample."""
    read = results.read_hardware if source == "hardware" else results.read_metrics
    found = await read(who, job, attempt, SeriesQuery(device, name, after, points))
    return await _json_in_thread(results, found)


async def _json_in_thread(results: ResultService, value: LogPage | MetricList) -> Response:
    """Of what may be large: it has to be encoded without holding up others."""
    return Response(await results.compute(partial(responses.encode_json, value)), media_type="application/json")


def _lines_as_text(page: LogPage, *, with_device: bool) -> str:
    """Lines as they were printed, with the device in front of each if there are several."""
    several = with_device and len({line.device for line in page.lines}) > 1
    return "".join(
        f"{f'[{line.device}] ' if several else ''}{line.text}{'' if line.continued else chr(10)}" for line in page.lines
    )
