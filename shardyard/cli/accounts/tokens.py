"""Commands about bearer tokens: token create, list, revoke, show."""

from typing import TYPE_CHECKING, Annotated

import typer

from shardyard import formatting
from shardyard.cli.common import AsJson, Token, Url, connect_client, make_console, make_table, print_answer
from shardyard.cli.framework.commands import make_app
from shardyard.contract.errors import Unavailable

if TYPE_CHECKING:
    from shardyard.contract.responses import TokenList

app = make_app(help="Tokens for people and programs.", no_args_is_help=True)


@app.command("create")
def create_command(
    name: Annotated[str, typer.Argument(help="What it is for, so that you recognise it later.", show_default=False)],
    scope: Annotated[
        list[str],
        typer.Option(
            help="read, submit, priority (jobs ahead of those of others) or admin; may be repeated. Or node, alone."
        ),
    ] = ["read", "submit"],  # noqa: B006
    tenant: Annotated[
        str | None, typer.Option(help="Owner of the jobs that it submits; yours by default.", show_default=False)
    ] = None,
    node: Annotated[
        str | None,
        typer.Option(help="With --scope node: the node that uploads its files with the token.", show_default=False),
    ] = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Create a token. Its secret is shown only this once.

    Examples: shardyard token create ci --scope submit
    shardyard token create gpu-1 --scope node --node gpu-1
    """
    from shardyard.client import endpoints

    call = endpoints.create_token(name, scopes=scope, tenant=tenant, node=node)
    print_answer(call, lambda created: print(created.token), url, token, as_json)


@app.command("list")
def list_tokens(url: Url = None, token: Token = None, as_json: AsJson = False) -> None:
    """List tokens, without their secrets."""
    from shardyard.client import endpoints

    print_answer(endpoints.list_tokens(), _print_tokens, url, token, as_json)


def _print_tokens(found: "TokenList") -> None:
    listing = make_table("TOKEN", "NAME", "TENANT", "SCOPES", "CREATED")
    for each in found.tokens:
        scopes = f"node {each.node}" if each.node else ", ".join(each.scopes)
        listing.add_row(each.id, each.name, each.tenant, scopes, formatting.local_time(each.created_at))
    make_console().print(listing)


@app.command("revoke")
def revoke_command(
    token_id: Annotated[str, typer.Argument(metavar="TOKEN", help="Its id from `shardyard token list`.")],
    url: Url = None,
    token: Token = None,
) -> None:
    """Revoke a token: requests with it are refused from now on."""
    with connect_client(url, token) as client:
        client.revoke_token(token_id)
    print(f"{token_id} is revoked")


@app.command("show")
def show_command() -> None:
    """Print the path of the file with this machine's admin token."""
    from shardyard.client.connection import default_data_dir, local_service

    local = local_service(default_data_dir())
    if local is None:
        raise Unavailable("no service is running on this machine; start one with `shardyard up`")
    print(local.token_file)
