"""What `Job` and `AsyncJob` have in common: the last known status of a job, and its form in a notebook."""

from typing import Protocol, TypeVar

from shardyard.client import endpoints
from shardyard.client.notebook import render_job_card
from shardyard.client.transport import HttpCall
from shardyard.contract.errors import ShardyardError
from shardyard.contract.responses import JobStatus, JobSummary, ReasonView
from shardyard.errors import JobFailed

T = TypeVar("T")


class JobHandle:
    """A job with the status that was last fetched; `refresh()` fetches it again."""

    def __init__(self, known: JobSummary) -> None:
        self._known = known

    @property
    def id(self) -> str:
        return self._known.id

    @property
    def name(self) -> str:
        return self._known.name

    @property
    def state(self) -> str:
        """queued, starting, running, succeeded, failed or cancelled."""
        return self._known.state

    @property
    def reason(self) -> ReasonView:
        """Why it is in that state."""
        return self._known.reason

    @property
    def ended(self) -> bool:
        return self._known.ended

    @property
    def succeeded(self) -> bool:
        return self._known.state == "succeeded"

    @property
    def summary(self) -> JobSummary:
        """The fields of the job that a list has."""
        return self._known

    def _raise_unless_succeeded(self) -> None:
        """Raises JobFailed if the job has ended otherwise."""
        if self.ended and not self.succeeded:
            raise JobFailed(self._known)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.name!r}: {self.state}>"


class EndpointCaller(Protocol):
    """What a handle needs of its client."""

    def call(self, call: HttpCall[T], /) -> T: ...


class BlockingJobHandle(JobHandle):
    """A job that may ask the service about itself whenever that is needed."""

    _client: EndpointCaller

    @property
    def status(self) -> JobStatus:
        """The job's status that was last fetched. The status of a job from a list is fetched now."""
        if isinstance(self._known, JobStatus):
            return self._known
        self._known = status = self._client.call(endpoints.get_job(self.id))
        return status

    def _repr_html_(self) -> str:
        """For a notebook: its state and the picture of its split."""
        report = None
        try:
            self._known = self._client.call(endpoints.get_job(self.id))
            report = self._client.call(endpoints.get_report(self.id))
        except ShardyardError:
            pass  # it is shown as it was, and without a report where there is none
        return render_job_card(self._known, report)


class AwaitedJobHandle(JobHandle):
    """A job that asks the service only in what is awaited."""

    @property
    def status(self) -> JobStatus:
        """Everything about the job as it was when it was last looked at.

        Raises:
            RuntimeError: it came from a list, and `refresh()` has not been awaited since.
        """
        if not isinstance(self._known, JobStatus):
            raise RuntimeError(  # noqa: TRY004  (it is not what the caller gave)
                f"job {self.id} came from a list, which has fewer fields: await job.refresh() first"
            )
        return self._known

    def _repr_html_(self) -> str:
        """For a notebook, which does not await: its state when it was last looked at, without the picture."""
        return render_job_card(self._known, None)
