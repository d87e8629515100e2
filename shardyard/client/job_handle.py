"""What `Job` and `AsyncJob` have in common: the last known status of a job, and its form in a notebook."""

from html import escape
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from shardyard.client import endpoints
from shardyard.client.transport import HttpCall
from shardyard.contract.errors import ShardyardError
from shardyard.contract.responses import JobStatus, JobSummary, ReasonView

if TYPE_CHECKING:
    from shardyard.client.report import SplitReport

T = TypeVar("T")

#: Colours of states on a light and on a dark page alike; the word stands beside them.
_COLOURS: Final = {"queued": "#b45309", "succeeded": "#15803d", "failed": "#b91c1c", "cancelled": "#7e22ce"}
_RUNNING: Final = "#2f6bb3"


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


def render_job_card(known: JobSummary, report: "SplitReport | None") -> str:
    """A job as HTML for a notebook: its state and why, how far it is, what was found, and the picture of the split.

    Names and messages are other people's, and are escaped.
    """
    colour = _COLOURS.get(known.state, _RUNNING)
    state = f"<span style='color:{colour};font-weight:600'>{escape(known.state)}</span>"
    why = f"<span style='opacity:.75'>{escape(_reason_text(known))}</span>"
    parts = [f"<div><b>{escape(known.name)}</b> {state} {why}<br><code>{escape(known.id)}</code>"]
    progress = known.progress if isinstance(known, JobStatus) else None
    if progress is not None and not known.ended and progress.fraction is not None:
        parts.append(
            f"<br><progress max='1' value='{min(max(progress.fraction, 0.0), 1.0):.4f}'></progress> "
            f"{progress.fraction:.0%}"
        )
    if report is not None:
        warnings = [finding for finding in report.findings if finding.severity != "info"]
        parts += [f"<br>warning: {escape(finding.message)}" for finding in warnings]
        parts.append(f"<div style='margin-top:.5em;overflow-x:auto'>{report.svg()}</div>")
    return "".join([*parts, "</div>"])


def _reason_text(known: JobSummary) -> str:
    said = known.reason.message
    return "" if said == known.state else said
