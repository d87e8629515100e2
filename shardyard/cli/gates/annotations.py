"""The verdict of a gate as GitHub's annotations: lines that its runner turns into remarks on the run."""

from collections.abc import Iterator

from shardyard.contract.gate import GateVerdict
from shardyard.contract.plain_text import escape_unsafe

_LEVELS = {"broken": "error", "unclear": "warning"}


def annotate(verdict: GateVerdict) -> Iterator[str]:
    """A line for each check that was not passed."""
    for check in verdict.checks:
        if check.outcome in _LEVELS:
            title = f"shardyard gate: {check.name} {'is ' if check.outcome == 'unclear' else ''}{check.outcome}"
            yield f"::{_LEVELS[check.outcome]} title={_escape_property(title)}::{_escape(check.message)}"


def _escape(words: str) -> str:
    """A line break would begin a line of its own, and with it a command of the runner."""
    return escape_unsafe(words, keep="\n").replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(words: str) -> str:
    return _escape(words).replace(":", "%3A").replace(",", "%2C")
