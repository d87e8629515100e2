"""The command that explains why a job is in its state."""

from shardyard.cli.common import AsJson, Commands, JobId, Token, Url, make_console, print_answer
from shardyard.contract.plain_text import escape_unsafe


def explain_command(job: JobId, url: Url = None, token: Token = None, as_json: AsJson = False) -> None:
    """Explain why a job is in its state, and when it may start.

    A job waits for those of a higher priority, for tenants that have used less of the pool for their weight, and for
    its own tenant's earlier ones. The estimate plays the pool forward, with lengths of past runs and wall limits.
    """
    from shardyard.client import endpoints

    def show(lines: list[str]) -> None:
        for line in lines:
            make_console().print(escape_unsafe(line), soft_wrap=True, markup=False, highlight=False)

    print_answer(endpoints.explain_job(job), lambda found: show(found.summary), url, token, as_json)


COMMANDS: Commands = {"explain": explain_command}
