"""Commands about machines that join a service: join, and invite on the service's machine."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from shardyard.cli.common import Commands, Token, Url, connect_client, make_console, parse_seconds
from shardyard.cli.server_extra import require_server

if TYPE_CHECKING:
    from shardyard.service.joining.checks import Check

STYLES = {"ok": "green", "look": "yellow", "failed": "bold red", "not checked": "dim"}
INDENT = " " * 15
EXAMPLES = "\n\n".join(
    (
        "[bold]Examples[/]",
        "shardyard join https://10.0.0.1:8000 --token sy_... --fingerprint sha256:...    as `shardyard up` prints it",
        "shardyard join https://... --token ... --devices cuda:0-3 --pool a100    with these devices, in that pool",
        "shardyard join https://... --token ... --systemd    as a unit of systemd, also after a reboot",
        "shardyard join --check                  what a machine that has joined finds now",
        "shardyard join                          start its worker again",
    )
)


def join_command(
    url: Annotated[
        str, typer.Argument(metavar="[URL]", help="Address of the service; without it: the one joined before.")
    ] = "",
    token: Annotated[str, typer.Option(envvar="SHARDYARD_TOKEN", help="Token to join with.", show_default=False)] = "",
    fingerprint: Annotated[
        str,
        typer.Option(
            metavar="sha256:...",
            help="Fingerprint of the service's certificate; without it, it must be signed by a CA of this system.",
            show_default=False,
        ),
    ] = "",
    name: Annotated[str, typer.Option(help="Name of the node; the host's name by default.", show_default=False)] = "",
    devices: Annotated[
        str, typer.Option(help="auto, cuda:0-3, cuda:0,2 or cpu:8, as for `shardyard worker`.", show_default="auto")
    ] = "",
    pool: Annotated[str, typer.Option(help="Pool that the devices belong to.", show_default="default")] = "",
    topology: Annotated[
        str, typer.Option(metavar="LABEL", help="Where the machine is, for example its rack.", show_default=False)
    ] = "",
    address: Annotated[
        str,
        typer.Option(
            help="Address by which other nodes reach this machine; by default the one on the route to the service.",
            show_default=False,
        ),
    ] = "",
    directory: Annotated[
        Path | None,
        typer.Option(help="Where the settings of the node are kept.", show_default="~/.config/shardyard"),
    ] = None,
    systemd: Annotated[
        bool, typer.Option("--systemd", help="Install a unit that runs the worker, and start it.")
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="Only check whether everything works.")] = False,
) -> None:
    """Turn this machine into a node: fetch what it needs from the service, check everything, and start the worker.

    May be run again at any time. The exit code is 1 if something is in the way.
    """
    require_server("join")
    from shardyard.service.joining import join
    from shardyard.service.joining.settings_file import default_directory

    os.environ.pop("SHARDYARD_TOKEN", None)  # not for the worker
    options = join.JoinOptions(
        url, token, fingerprint, name, address, devices, pool, topology, directory or default_directory()
    )
    console = make_console()
    failed = not join.prepare_node(options, lambda found: _show_check(console.print, found))
    if failed:
        console.print("\nthis machine cannot work as a node yet: see the rows above; then run the same command again")
        raise typer.Exit(1)
    if check:
        return
    if systemd:
        console.print(f"\nsystemd runs the worker: {join.install_service(options)}; `journalctl -u shardyard-worker`")
    elif join.is_running():
        console.print("\nits worker already runs here, with the settings that it was started with")
    else:
        console.print("\nstarting the worker; its log follows, and Ctrl-C stops it")
        join.start_worker()


def _show_check(show: "Callable[[Text], object]", found: "Check") -> None:
    line = Text.assemble((f"{found.result:<13}", STYLES[found.result]), f"{found.what:<29}{found.found}")
    show(line)
    if found.advice:
        show(Text(f"{INDENT}-> {found.advice}"))


def invite_command(
    node: Annotated[
        str | None,
        typer.Option(help="Name that the machine must join under; by default any.", show_default=False),
    ] = None,
    expires: Annotated[str, typer.Option(help="How long the token is valid: 30m, 12h, 7d at most.")] = "1d",
    url: Url = None,
    token: Token = None,
) -> None:
    """Print the command that turns another machine into a node, with a new token.

    Run it on the machine of `shardyard up --listen`, where the service's certificate is known. Whoever has the command
    can join machines until the token expires, or is revoked (`shardyard token revoke`).
    """
    require_server("invite")
    from shardyard.client.connection import find_service
    from shardyard.service.listening.invitations import invite

    service = find_service(url, token)
    with connect_client(url, token) as client:
        command = invite(client, service.url, service.certificate, node, round(parse_seconds(expires, "--expires")))
    print(command)


COMMANDS: Commands = {"join": join_command, "invite": invite_command}
