"""The command about shares: how much of the pools each tenant may use before others go first."""

from typing import TYPE_CHECKING, Annotated

import typer

from shardyard import formatting
from shardyard.cli.common import AsJson, Commands, Token, Url, make_console, make_table, print_answer
from shardyard.contract.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardyard.contract.scheduling import ShareView

MIN_WEIGHT, MAX_WEIGHT = 0.001, 1000.0


def share_command(
    tenant: Annotated[
        str | None, typer.Argument(metavar="TENANT", help="One tenant. Default: all.", show_default=False)
    ] = None,
    weight: Annotated[
        float | None,
        typer.Option(min=MIN_WEIGHT, max=MAX_WEIGHT, help="Set its weight; without one it is 1.", show_default=False),
    ] = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Show what tenants have used of the pools, or set the weight of one.

    Among jobs of the same priority, those of the tenant that has used the least for its weight go first. Use counts in
    device-seconds of a pool; that of a day ago counts half.
    """
    from shardyard.client import endpoints

    if tenant is None and weight is not None:
        raise InvalidRequest("say whose weight it is: shardyard share TENANT --weight 2")
    if tenant is None:
        return print_answer(endpoints.list_shares(), lambda found: _print_shares(found.shares), url, token, as_json)
    call = endpoints.get_share(tenant) if weight is None else endpoints.set_share(tenant, weight)
    return print_answer(call, lambda found: _print_shares([found]), url, token, as_json)


def _print_shares(shares: "Sequence[ShareView]") -> None:
    listing = make_table("TENANT", "#WEIGHT", "POOL", "#DEVICES", "#USED", "#PART", "#DUE")
    for share in shares:
        weight = f"{share.weight:g}"
        for pool in share.pools:
            used = formatting.format_duration(pool.device_seconds)
            parts = (f"{100 * pool.used_part:.0f} %", f"{100 * pool.due_part:.0f} %")
            listing.add_row(share.tenant, weight, pool.pool, str(pool.devices), used, *parts)
        if not share.pools:
            listing.add_row(share.tenant, weight, "-", "0", "-", "-", "-")
    make_console().print(listing if shares else "no tenant has used anything yet")


COMMANDS: Commands = {"share": share_command}
