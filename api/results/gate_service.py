"""The service of gates: whether a job that has ended keeps limits, judged by its split report."""

from functools import partial

from api.data.job_repository import JobRepository
from api.http.auth import Principal
from api.results.service import ResultService
from api.schemas.result_requests import parse_gate
from jobs.model.records import JobRecord
from jobs.model.state import JobState
from jobs.splits.gates.comparable import list_differences
from jobs.splits.gates.judge import judge_report, sum_up
from shardyard.contract.errors import FieldError, InvalidRequest, JobNotFinished, NotComparable
from shardyard.contract.gate import GateCheck, GateVerdict
from shardyard.contract.report import Report


class GateService:
    def __init__(self, records: JobRepository, results: ResultService) -> None:
        self._records = records
        self._results = results

    async def judge_job(self, who: Principal, job: str, body: bytes) -> GateVerdict:
        """Hold the report of a job's newest attempt against limits.

        Raises:
            MalformedJson, InvalidRequest: the body does not say clearly which limits.
            JobNotFinished: one of the two jobs has not ended.
            NotFound: there is no such job, or no report of it.
            NotComparable: the other job is of another shape.
        """
        record = (await self._records.read_view(who.tenant, job)).record
        limits, other = parse_gate(body)
        if other == job:
            message = "this is the job itself; name another one to compare it with"
            raise InvalidRequest("the gate is not valid", fields=(FieldError("against", message),))
        succeeded = _check_success(record)
        report = await self._results.read_splits(who, job, None, None)
        against = None if other is None else await self._read_other(who, other, report)
        checks = await self._results.compute(partial(judge_report, limits, report, against))
        checks = [succeeded, *checks]
        return GateVerdict(job, report.attempt, sum_up(checks), tuple(checks), other)

    async def _read_other(self, who: Principal, other: str, report: Report) -> Report:
        _check_success((await self._records.read_view(who.tenant, other)).record)
        against = await self._results.read_splits(who, other, None, None)
        differences = list_differences(report, against)
        if differences:
            message = f"job {other} cannot be compared with this one: {'; '.join(differences)}"
            raise NotComparable(message, fields=(FieldError("against", "name a job of the same shape"),))
        return against


def _check_success(record: JobRecord) -> GateCheck:
    """Raises JobNotFinished."""
    if record.finished is None:
        raise JobNotFinished(f"job {record.id} is {record.state}; a gate judges jobs that have ended")
    if record.state is JobState.SUCCEEDED:
        return GateCheck("succeeded", "passed", "the job succeeded")
    return GateCheck("succeeded", "broken", f"the job is {record.state}: {record.message or record.reason}")
