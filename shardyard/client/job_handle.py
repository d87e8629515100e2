"""What `Job` and `AsyncJob` have in common: what they know, and how they show it."""

from html import escape
from typing import TYPE_CHECKING, Final

from shardyard.client.models import JobStatus, JobSummary, Reason

if TYPE_CHECKING:
    from shardyard.client.report import SplitReport

#: Colours of states on a light and on a dark page alike; the word stands beside them.
_COLOURS: Final = {"queued": "#b45309", "succeeded": "#15803d", "failed": "#b91c1c", "cancelled": "#7e22ce"}
_RUNNING: Final = "#2f6bb3"


class JobHandle:
    """A job as it was when it was last looked at; `refresh()` looks again."""

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
    def reason(self) -> Reason:
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
        """What a list says of it."""
        return self._known

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.name!r}: {self.state}>"


def card(known: JobSummary, report: "SplitReport | None") -> str:
    """A job as HTML for a notebook: its state and why, how far it is, what was found, and the picture of the split.

    Names and messages are other people's, and are escaped.
    """
    colour = _COLOURS.get(known.state, _RUNNING)
    state = f"<span style='color:{colour};font-weight:600'>{escape(known.state)}</span>"
    why = f"<span style='opacity:.75'>{escape(_why(known))}</span>"
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


def _why(known: JobSummary) -> str:
    said = known.reason.message
    return "" if said == known.state else said
