"""Commands about quotas: quota show, set, remove."""

from typing import TYPE_CHECKING, Annotated

import typer

from shardyard import formatting
from shardyard.cli.common import AsJson, Token, Url, connect_client, make_console, make_table, print_answer
from shardyard.cli.framework.commands import make_app
from shardyard.contract.errors import InvalidRequest

if TYPE_CHECKING:
    from shardyard.contract.quotas import QuotaLimit, QuotaView

app = make_app(help="What tenants and tokens may use.", no_args_is_help=True)

Tenant = Annotated[str, typer.Argument(help="The tenant.", show_default=False)]
TokenId = Annotated[
    str | None, typer.Option("--token-id", help="One of its tokens, from `shardyard token list`.", show_default=False)
]


@app.command("show")
def show_command(
    tenant: Annotated[
        str | None, typer.Option(help="Another tenant; by default your own, and your token.", show_default=False)
    ] = None,
    token_id: TokenId = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Show what you may use, what you use, and when there is room again.

    shardyard quota show                       your tenant and your token

    shardyard quota show --tenant acme         a tenant, for administrators
    """
    from shardyard.client import endpoints

    if tenant is not None:
        call = endpoints.get_quota(tenant, token_id)
        return print_answer(call, lambda found: _print_quotas([found]), url, token, as_json)
    if token_id is not None:
        raise InvalidRequest("--token-id names a token of a tenant; add --tenant")
    return print_answer(endpoints.get_own_quota(), lambda found: _print_quotas(found.quotas), url, token, as_json)


@app.command("set")
def set_command(
    tenant: Tenant,
    jobs: Annotated[int | None, typer.Option(help="Jobs that have not ended.", show_default=False)] = None,
    running: Annotated[int | None, typer.Option(help="Jobs that run at the same time.", show_default=False)] = None,
    devices: Annotated[
        int | None, typer.Option(help="Devices that they have at the same time.", show_default=False)
    ] = None,
    device_hours: Annotated[
        float | None, typer.Option(help="Device-hours within the window.", show_default=False)
    ] = None,
    window_hours: Annotated[int | None, typer.Option(help="The window; 24 by default.", show_default=False)] = None,
    spec_bytes: Annotated[int | None, typer.Option(help="Bytes of stored specs.", show_default=False)] = None,
    bundle_bytes: Annotated[int | None, typer.Option(help="Bytes of bundles.", show_default=False)] = None,
    file_bytes: Annotated[
        int | None, typer.Option(help="Bytes of logs, artifacts and checkpoints.", show_default=False)
    ] = None,
    token_id: TokenId = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Set what a tenant, or one of its tokens, may use. What is left out is not limited.

    shardyard quota set acme --running 8 --devices 8 --device-hours 96

    shardyard quota set acme --token-id 0123456789abcdef --running 2
    """
    from shardyard.client import endpoints

    limits = {
        "jobs": jobs,
        "running": running,
        "devices": devices,
        "device_hours": device_hours,
        "window_hours": window_hours,
        "spec_bytes": spec_bytes,
        "bundle_bytes": bundle_bytes,
        "file_bytes": file_bytes,
    }
    given = {name: limit for name, limit in limits.items() if limit is not None}
    if not given:
        raise InvalidRequest("name a limit, for example --running 8; `shardyard quota remove` takes a quota away")
    call = endpoints.set_quota(tenant, given, token_id)
    print_answer(call, lambda found: _print_quotas([found]), url, token, as_json)


@app.command("remove")
def remove_command(tenant: Tenant, token_id: TokenId = None, url: Url = None, token: Token = None) -> None:
    """Remove the quota of a tenant, or of one of its tokens."""
    from shardyard.client import endpoints

    with connect_client(url, token) as client:
        client.call(endpoints.remove_quota(tenant, token_id))
    print(f"{_whose(tenant, token_id)} has no quota")


def _print_quotas(found: "list[QuotaView]") -> None:
    out = make_console()
    for quota in found:
        whose = _whose(quota.tenant, quota.token)
        if quota.token is not None and all(limit.allowed is None for limit in quota.limits):
            print(f"{whose}: no limits of its own")
            continue
        print(f"{whose}:")
        listing = make_table("LIMIT", "#USED", "#ALLOWED", "FREE AGAIN")
        for limit in quota.limits:
            hours = f" in {quota.window_hours} h" if limit.name == "device_hours" else ""
            free = formatting.local_time(limit.free_at) if limit.free_at else ""
            listing.add_row(limit.name + hours, *_amounts(limit), free)
        out.print(listing)


def _amounts(limit: "QuotaLimit") -> tuple[str, str]:
    used, allowed = (None if n is None else f"{n:,.1f}".removesuffix(".0") for n in (limit.used, limit.allowed))
    return used or "-", allowed or "all"


def _whose(tenant: str, token: str | None) -> str:
    return f"tenant {tenant}" if token is None else f"token {token}"
