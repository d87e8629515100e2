"""Trials of candidates as short jobs of a service, one after another."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardyard.contract.errors import InvalidRequest, NotFound, ShardyardError
from shardyard.tuning.candidates import Candidate
from shardyard.tuning.measurements import TuningTrial, read_rates
from shardyard.tuning.variants import make_trial_spec

if TYPE_CHECKING:
    from shardyard.client import Client, Job


@dataclass(frozen=True, slots=True)
class TrialJobs:
    """Runs the candidates of `spec`. `ended` is told of each trial."""

    client: "Client"
    spec: Mapping[str, Any]
    labels: Mapping[str, str]
    ended: Callable[[TuningTrial], object]

    def run(self, candidate: Candidate, steps: int) -> TuningTrial:
        """A job of so many steps, which is cancelled if the search is interrupted."""
        trial = self._run(candidate, steps)
        self.ended(trial)
        return trial

    def _run(self, candidate: Candidate, steps: int) -> TuningTrial:
        try:
            job = self.client.submit(make_trial_spec(self.spec, candidate, steps, self.labels))
        except InvalidRequest as error:
            return TuningTrial(candidate, 0, problem=_describe_refusal(error))
        try:
            job.wait(check=False)
        except BaseException:
            self._cancel(job)
            raise
        return read_trial(job, candidate)

    def _cancel(self, job: "Job") -> None:
        with suppress(ShardyardError):  # it has ended, or the service is away: what is raised already matters more
            job.cancel()


def read_trial(job: "Job", candidate: Candidate) -> TuningTrial:
    """What a job that has ended says."""
    status = job.status
    try:
        report = job.report().data
    except NotFound:
        report = None
    steps = max((device.steps for device in report.per_device), default=0) if report is not None else 0
    if status.state != "succeeded":
        return TuningTrial(candidate, steps, problem=_describe_end(job), job=job.id)
    rates = read_rates(report) if report is not None else ()
    problem = "" if rates else "its report has no times of steps"
    return TuningTrial(candidate, steps, rates, problem, job.id)


def _describe_end(job: "Job") -> str:
    reason = job.status.reason
    return reason.code if reason.code == "out_of_memory" else f"{job.status.state}: {reason.message or reason.code}"


def _describe_refusal(error: InvalidRequest) -> str:
    first = next(iter(error.fields), None)
    return error.message if first is None else f"{first.field}: {first.message}"
