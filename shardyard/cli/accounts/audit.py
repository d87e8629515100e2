"""The command about the audit."""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from shardyard import formatting
from shardyard.cli.common import Commands, NoColor, Token, Url, connect_client, make_console, parse_seconds
from shardyard.contract.errors import InvalidRequest

if TYPE_CHECKING:
    from shardyard.contract.audit import AuditEntry

EXAMPLES = "\n\n".join(
    (
        "[bold]Examples[/]",
        "shardyard audit                              the newest fifty entries",
        "shardyard audit --since 2d --tenant vision   what one tenant did in two days",
        "shardyard audit --action token_refused -f    refused tokens, as they come",
        "shardyard audit --since 30d --json > audit.jsonl",
    )
)


def audit_command(
    since: Annotated[
        str | None, typer.Option(help="From this time on: 90s, 10m, 2h, 1d ago, or 2026-01-31T12:00.")
    ] = None,
    until: Annotated[str | None, typer.Option(help="Before this time, in the same format.")] = None,
    action: Annotated[list[str] | None, typer.Option(help="Such as job_submitted; may be repeated.")] = None,
    tenant: Annotated[str | None, typer.Option(help="For operators; others see their own tenant.")] = None,
    by: Annotated[str | None, typer.Option(metavar="TOKEN", help="Id of the token that was used.")] = None,
    newest: Annotated[
        int, typer.Option("-n", min=1, max=100_000, help="Without --since: how many of the newest entries.")
    ] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Then print new entries as they arrive.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print each entry as a line of JSON.")] = False,
    no_color: NoColor = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Who did what: changes, downloads, sign-ins, refused tokens. Needs an admin token."""
    chosen: dict[str, Any] = {"action": ",".join(action or ()), "tenant": tenant, "token": by}
    if until is not None:
        chosen["until"] = _parse_time(until, "--until")
    start = None if since is None else _parse_time(since, "--since")
    out = make_console()
    with connect_client(url, token) as client:
        for entry in client.audit(newest=newest, since=start, follow=follow, **chosen):
            if as_json:
                print(_as_json(entry), flush=True)
            else:
                out.print(_line(entry), soft_wrap=True)


def _parse_time(given: str, option: str) -> datetime:
    """A time, or how long ago it is. Raises InvalidRequest."""
    try:
        return datetime.fromisoformat(given).astimezone(UTC)
    except ValueError:
        pass
    try:
        return datetime.now(UTC) - timedelta(seconds=parse_seconds(given, option))
    except (InvalidRequest, OverflowError):
        raise InvalidRequest(f"{option} {given!r} is not a time; write 90s, 10m, 2h, 1d, or 2026-01-31T12:00") from None


def _as_json(entry: "AuditEntry") -> str:
    """ASCII, so that nothing in it is a command to a terminal."""
    import json

    import msgspec

    return json.dumps(msgspec.to_builtins(entry))


def _line(entry: "AuditEntry") -> Text:
    who = f"{entry.tenant or '-'}/{entry.token_name or entry.token or '-'}"
    details = " ".join(f"{name}={value}" for name, value in entry.details.items())
    more = f" ({entry.repeated} more)" if entry.repeated else ""
    failed = not 200 <= entry.status < 400
    parts = (formatting.local_time(entry.at), who, entry.action + more, str(entry.status), entry.path, details)
    return Text("  ".join(formatting.single_line(part) for part in parts if part), "red" if failed else "")


COMMANDS: Commands = {"audit": audit_command}
