"""The command about the users of a Redis of one's own: redis-acl."""

import sys
from typing import Annotated, Literal

import typer

from shardyard.cli.common import Commands
from shardyard.cli.server_extra import require_server

EXAMPLES = "\n\n".join(
    (
        "[bold]Examples[/]",
        "shardyard redis-acl > users.acl         one Redis for everything",
        "shardyard redis-acl --server control    the users of the control Redis",
    )
)


def redis_acl_command(
    server: Annotated[
        Literal["both", "control", "telemetry"], typer.Option(help="What the Redis is for; both: one server for all.")
    ] = "both",
) -> None:
    """Print users for a Redis of your own, one for each role of the service, with new passwords.

    The lines are for its configuration or its ACL file. The passwords, which the lines do not have, are printed on
    standard error, this once.
    """
    require_server("redis-acl")
    from shardyard.service import redis_users

    kinds = redis_users.server_kinds(server)
    passwords = redis_users.make_passwords()
    print("\n".join(redis_users.user_lines(passwords, kinds)))
    print("\n".join(redis_users.url_lines(passwords, kinds)), file=sys.stderr)


COMMANDS: Commands = {"redis-acl": redis_acl_command}
