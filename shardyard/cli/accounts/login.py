"""Commands about single sign-on: login, logout."""

import sys
import time
from typing import TYPE_CHECKING

from shardyard import formatting
from shardyard.cli.common import Commands, Url, connect_client, make_console
from shardyard.contract.errors import ShardyardError, SignInFailed, Unavailable

if TYPE_CHECKING:
    from shardyard.client import Client
    from shardyard.contract.responses import DeviceSignIn, NewToken

#: RFC 8628: how much longer to wait between two requests after `slow_down`.
SLOW_DOWN_SECONDS = 5

EXAMPLES = "\n\n".join(
    (
        "[bold]Examples[/]",
        "shardyard login --url https://shardyard.example.com     shows an address and a code for your browser",
        "shardyard list --url https://shardyard.example.com      uses what login has stored",
        "shardyard logout --url https://shardyard.example.com    ends it",
    )
)


def login_command(url: Url = None) -> None:
    """Sign in with the account of your organisation, in a browser on any machine.

    The token that this gives is stored for the service's address, and expires by itself. The service needs single
    sign-on.
    """
    from shardyard.client import sign_in_endpoints
    from shardyard.client.connection import default_data_dir
    from shardyard.client.logins import StoredLogin, store_login

    with connect_client(url, "") as client:
        begun = client.call(sign_in_endpoints.begin_device_sign_in())
        _print_begun(begun)
        token = _wait_for_token(client, begun)
        path = store_login(default_data_dir(), client.url, StoredLogin(token.token, token.expires_at))
        until = "" if token.expires_at is None else f" until {formatting.local_time(token.expires_at)}"
        scopes = ", ".join(token.scopes)
        make_console().print(
            f"signed in to {client.url} as {token.name}: tenant {token.tenant}, {scopes}{until}\nstored in {path}"
        )


def logout_command(url: Url = None) -> None:
    """End the login that `shardyard login` made: its token is revoked at the service, and forgotten here.

    If the service does not answer, the token is only forgotten, and stays valid until it expires by itself.
    """
    from shardyard.client import sign_in_endpoints
    from shardyard.client.connection import default_data_dir
    from shardyard.client.logins import read_login, remove_login

    with connect_client(url, "") as client:
        login = read_login(default_data_dir(), client.url)
        known = remove_login(default_data_dir(), client.url)
        if login is None:
            print(f"the login for {client.url} had ended" if known else f"there is no login for {client.url}")
            return
        try:
            client.call(sign_in_endpoints.sign_out(login.token))
        except ShardyardError as error:
            until = "it is revoked" if login.expires_at is None else formatting.local_time(login.expires_at)
            print(f"forgot the login for {client.url}, but its token works until {until}: {error.message}")
        else:
            print(f"signed out of {client.url}; its token is revoked")


def _print_begun(begun: "DeviceSignIn") -> None:
    """On standard error: what a pipe gets is the result alone."""
    there = begun.verification_uri_complete or begun.verification_uri
    console = make_console()
    console.file = sys.stderr
    console.print(f"Open {there}\nin a browser, and enter or compare the code {begun.user_code}")
    console.print(f"Waiting for at most {formatting.format_duration(begun.expires_in)}; Ctrl-C gives up.")


def _wait_for_token(client: "Client", begun: "DeviceSignIn") -> "NewToken":
    """Raises:
    SignInFailed: it was denied, or has taken too long.
    NoAccess: somebody has signed in who has no access.
    """
    from shardyard.client import sign_in_endpoints

    interval, deadline = begun.interval, time.monotonic() + begun.expires_in
    while time.monotonic() + interval < deadline:
        time.sleep(interval)
        try:
            found = client.call(sign_in_endpoints.finish_device_sign_in(begun.device_code))
        except Unavailable:  # it may be back at the next try
            continue
        if found.token is not None:
            return found.token
        if found.state == "slow_down":
            interval += SLOW_DOWN_SECONDS
    raise SignInFailed("nobody has signed in with this code in time; run `shardyard login` again")


COMMANDS: Commands = {"login": login_command, "logout": logout_command}
