"""Commands about the machines: pools, nodes, drain, forget."""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from shardyard import text
from shardyard.cli.common import AsJson, Commands, Token, Url, connect, console, print_json, table

if TYPE_CHECKING:
    from shardyard.client.models import Node


def pools(url: Url = None, token: Token = None, as_json: AsJson = False) -> None:
    """List pools: their devices, how many are free, and how many jobs wait."""
    from shardyard.client import calls

    with connect(url, token) as client:
        if as_json:
            return print_json(client.json(calls.pools()))
        found = client.pools()
    columns = ("devices", "free", "leased", "quarantined", "queued")
    listing = table("POOL", *(f"#{column.upper()}" for column in columns), "#NODES UP")
    for pool in found:
        up = f"{pool.live_nodes} of {pool.nodes}"
        listing.add_row(pool.name, *(str(getattr(pool, column)) for column in columns), up)
    return console().print(listing if found else "no pools: no worker has registered yet")


def nodes(url: Url = None, token: Token = None, as_json: AsJson = False) -> None:
    """List nodes, their health and who holds their devices."""
    from shardyard.client import calls

    with connect(url, token) as client:
        if as_json:
            return print_json(client.json(calls.nodes()))
        found = client.nodes()
    listing = table("NODE", "POOL", "STATE", "DEVICES", "FREE", "LEASED", "QUARANTINED")
    for node in found:
        labels = [device.label for device in node.devices]
        by_state = [
            text.device_names(device.label for device in node.devices if device.state == state)
            for state in ("free", "leased", "quarantined")
        ]
        listing.add_row(node.id, node.pool, _state(node), text.device_names(labels), *by_state)
    return console().print(listing if found else "no nodes: no worker has registered yet")


def drain(
    node: Annotated[str, typer.Argument(help="The node's id from `shardyard nodes`.", show_default=False)],
    undo: Annotated[bool, typer.Option("--undo", help="Give it work again.")] = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Give a node no new work. What runs there goes on; a restart of its worker changes nothing."""
    from shardyard.client import calls

    with connect(url, token) as client:
        if as_json:
            return print_json(client.json(calls.drain(node, undo=undo)))
        found = client.drain(node, undo=undo)
    busy = sum(device.state == "leased" for device in found.devices)
    words = f"takes no new work; {text.plural(busy, 'device')} still leased" if found.draining else "takes work"
    return print(f"{found.id} {words}")


def forget(
    node: Annotated[str, typer.Argument(help="The node's id from `shardyard nodes`.", show_default=False)],
    url: Url = None,
    token: Token = None,
) -> None:
    """Drop a node that is down for good, with what it held and its quarantine."""
    with connect(url, token) as client:
        client.forget(node)
    print(f"{node} is forgotten")


def _state(node: "Node") -> Text:
    if not node.alive:
        return Text("down", "red")
    if node.stopping:
        return Text("stopping", "yellow")
    return Text("draining", "yellow") if node.draining else Text("up", "green")


COMMANDS: Commands = {"pools": pools, "nodes": nodes, "drain": drain, "forget": forget}
