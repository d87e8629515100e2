"""The command that lists a job's attempts."""

from typing import TYPE_CHECKING

from shardyard import formatting
from shardyard.cli.common import AsJson, Commands, JobId, Token, Url, make_console, make_table, print_answer

if TYPE_CHECKING:
    from shardyard.contract.responses import AttemptList, AttemptView


def attempts_command(job: JobId, url: Url = None, token: Token = None, as_json: AsJson = False) -> None:
    """List a job's attempts: where each ran, for how long, how it ended and why."""
    from shardyard.client import endpoints

    print_answer(endpoints.list_attempts(job), _print_attempts, url, token, as_json)


def _print_attempts(found: "AttemptList") -> None:
    listing = make_table("#ATTEMPT", "WHERE", "NETWORK", "FROM", "STARTED", "TOOK", "ENDED", "WHY")
    for attempt in found.attempts:
        where = ", ".join(formatting.place_names(attempt.placement))
        took = formatting.format_duration(formatting.seconds_between(attempt.started_at, attempt.ended_at))
        started = formatting.local_time(attempt.started_at)
        ended = attempt.reason.code if attempt.reason is not None else attempt.state
        begins = f"step {attempt.resumed_from.step}" if attempt.resumed_from is not None else "-"
        listing.add_row(
            str(attempt.attempt),
            where or "-",
            attempt.network or "-",
            begins,
            started,
            took,
            ended,
            _error_text(attempt),
        )
    make_console().print(listing if found.attempts else "no attempts yet: the job has not been given any devices")


def _error_text(attempt: "AttemptView") -> str:
    """The message of an attempt's end, or, without a message, the last line of its error."""
    said = attempt.reason.message if attempt.reason is not None else ""
    return said or str((attempt.error or {}).get("message") or "-")


COMMANDS: Commands = {"attempts": attempts_command}
