"""Commands about secrets: secret put, list, rm, and new-key for operators."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shardyard import formatting
from shardyard.cli.common import AsJson, Token, Url, connect_client, make_console, make_table, print_answer, print_json
from shardyard.cli.framework.commands import make_app
from shardyard.cli.server_extra import require_server
from shardyard.contract.errors import InvalidRequest

if TYPE_CHECKING:
    from shardyard.contract.responses import SecretList

app = make_app(help="Values that jobs may use and nobody can read back.", no_args_is_help=True)

#: Of a value, as the service takes it, and the end of a line behind it.
MAX_VALUE_BYTES, MAX_LINE_END = 65_536, 2
#: What is shorter is not looked for in what jobs print (`workers.supervisor.redaction`).
MIN_HIDDEN = 8

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name by which jobs refer to it.", show_default=False)]


@app.command("put")
def put_command(
    name: Name,
    from_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A file with the value.", show_default=False)
    ] = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Store a secret, or replace it: its value comes from standard input, from a file, or from you, unseen.

    The end of the last line is not a part of it. It is not an argument, because others can see those of a process.
    """
    from shardyard.client import endpoints

    value = _read_value(name, from_file)
    call = endpoints.put_secret(name, value)
    with connect_client(url, token) as client:
        if as_json:
            return print_json(client.json(call))
        client.call(call)
    print(f"{name} is stored; jobs name it with --secret VARIABLE={name}")
    if len(value) < MIN_HIDDEN:
        print(f"! it is shorter than {MIN_HIDDEN} characters, so it is not redacted in job output", file=sys.stderr)
    return None


@app.command("list")
def list_command(url: Url = None, token: Token = None, as_json: AsJson = False) -> None:
    """List secrets, without their values."""
    from shardyard.client import endpoints

    print_answer(endpoints.list_secrets(), _print_secrets, url, token, as_json)


def _print_secrets(found: "SecretList") -> None:
    listing = make_table("NAME", "CREATED", "UPDATED")
    for each in found.secrets:
        listing.add_row(each.name, *map(formatting.local_time, (each.created_at, each.updated_at)))
    make_console().print(listing)


@app.command("rm")
def remove_command(name: Name, url: Url = None, token: Token = None) -> None:
    """Delete a secret. Jobs that name it can no longer start; running jobs keep its value."""
    with connect_client(url, token) as client:
        client.delete_secret(name)
    print(f"{name} is deleted")


@app.command("new-key")
def new_key_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="SHARDYARD_SECRET_KEY_FILE of your service.")],
) -> None:
    """For operators: put a new key into the file that encrypts everybody's secrets, which is created if needed."""
    require_server("secret new-key")
    from shardyard.service.secret_key_file import add_new_key

    print(add_new_key(file))


def _read_value(name: str, file: Path | None) -> str:
    """Raises InvalidRequest."""
    if file is None and sys.stdin.isatty():
        return str(typer.prompt(f"value of {name}", hide_input=True, prompt_suffix=" (not shown): "))
    try:
        most = MAX_VALUE_BYTES + MAX_LINE_END + 1
        if file is None:
            read = sys.stdin.buffer.read(most)
        else:
            with file.open("rb") as opened:
                read = opened.read(most)
        value = read.decode()
    except OSError as error:
        raise InvalidRequest(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidRequest("a secret is text in UTF-8; encode other bytes, for example with base64") from error
    value = value.removesuffix("\n").removesuffix("\r")
    if not value or len(value.encode()) > MAX_VALUE_BYTES:
        raise InvalidRequest(f"a secret has 1 to {MAX_VALUE_BYTES:,} bytes")
    return value
