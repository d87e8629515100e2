"""Commands about pools, nodes and devices."""

import re
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from shardyard import formatting
from shardyard.cli.common import AsJson, Commands, Token, Url, connect_client, make_console, make_table, print_json
from shardyard.cli.fleet.device_history import print_device_history, suspicion_lines
from shardyard.contract.errors import Conflict, InvalidRequest, NotFound

if TYPE_CHECKING:
    from shardyard.client import Client
    from shardyard.contract.responses import NodeView

NodeId = Annotated[
    str, typer.Argument(metavar="NODE", help="The node's id from `shardyard nodes`.", show_default=False)
]
DeviceName = Annotated[
    str, typer.Argument(metavar="DEVICE", help="Its name, such as cuda:3, or its index.", show_default=False)
]
WAIT_SECONDS = 1.0
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}


def pools_command(url: Url = None, token: Token = None, as_json: AsJson = False) -> None:
    """List pools: their devices, how many are free, and how many jobs wait."""
    from shardyard.client import endpoints

    with connect_client(url, token) as client:
        if as_json:
            return print_json(client.json(endpoints.list_pools()))
        found = client.pools()
    columns = ("devices", "free", "leased", "quarantined", "queued")
    listing = make_table("POOL", *(f"#{column.upper()}" for column in columns), "#NODES UP")
    for pool in found:
        up = f"{pool.live_nodes} of {pool.nodes}"
        listing.add_row(pool.name, *(str(getattr(pool, column)) for column in columns), up)
    return make_console().print(listing if found else "no pools: no worker has registered yet")


def nodes_command(
    history: Annotated[
        str | None,
        typer.Option(
            metavar="DEVICE",
            help="Show what attempts have left about one device, such as host-a:cuda:3.",
            show_default=False,
        ),
    ] = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """List nodes, their health and the jobs on their devices. Devices that were slow lately are named.

    shardyard nodes --history host-a:cuda:3    how fast it was beside its peers, and how its attempts ended
    """
    from shardyard.client import endpoints

    with connect_client(url, token) as client:
        if history is not None:
            if as_json:
                return print_json(client.json(endpoints.get_device_history(history)))
            return print_device_history(client.device_history(history), make_console())
        if as_json:
            return print_json(client.json(endpoints.list_nodes()))
        found = client.nodes()
    listing = make_table("NODE", "POOL", "STATE", "DEVICES", "FREE", "LEASED", "QUARANTINED")
    for node in found:
        labels = [device.label for device in node.devices]
        by_state = [
            formatting.device_names(device.label for device in node.devices if device.state == state)
            for state in ("free", "leased", "quarantined")
        ]
        listing.add_row(node.id, node.pool, _node_state(node), formatting.device_names(labels), *by_state)
    out = make_console()
    out.print(listing if found else "no nodes: no worker has registered yet")
    for line in [*_quarantine_lines(found), *suspicion_lines(found)]:
        out.print(line, soft_wrap=True)
    return None


def drain_command(
    node: NodeId,
    deadline: Annotated[
        str | None,
        typer.Option(
            help="What still runs then moves to other nodes: seconds, or 90s, 10m, 2h, 1d; 0 at once.",
            show_default=False,
        ),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until nothing runs on the node any more.")] = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Give a node no new work. Running attempts continue. The node stays drained when its worker restarts.

    With a deadline, attempts that still run then save a checkpoint if they can, and continue on another node. That uses
    none of the job's retries. A second drain replaces the deadline.

    shardyard drain host-a --wait    before a reboot, when jobs may take their time

    shardyard drain host-a --deadline 10m --wait && ssh host-a reboot

    shardyard undrain host-a    gives it work again
    """
    from shardyard.client import endpoints

    seconds = None if deadline is None else _parse_seconds(deadline)
    with connect_client(url, token) as client:
        if as_json and not wait:
            return print_json(client.json(endpoints.drain_node(node, deadline_seconds=seconds)))
        found = client.drain(node, deadline_seconds=seconds)
        if not as_json:
            print(f"{found.id} takes no new work{_remaining_work(found)}")
        while wait and found.attempts:
            time.sleep(WAIT_SECONDS)
            found = next((other for other in client.nodes() if other.id == node), found)
            if not found.draining:
                raise Conflict(f"node {node} takes work again: its drain was cancelled")
        if as_json:
            return print_json(
                next(other for other in client.json(endpoints.list_nodes())["nodes"] if other["id"] == node)
            )
        return print(f"{node} is empty") if wait else None


def undrain_command(node: NodeId, url: Url = None, token: Token = None, as_json: AsJson = False) -> None:
    """Cancel the drain of a node: it gets work again."""
    from shardyard.client import endpoints

    with connect_client(url, token) as client:
        if as_json:
            return print_json(client.json(endpoints.undrain_node(node)))
        client.undrain(node)
    return print(f"{node} takes work")


def quarantine_command(
    node: NodeId,
    device: DeviceName,
    reason: Annotated[str, typer.Option(help="The reason, shown with the node.", show_default=False)],
    url: Url = None,
    token: Token = None,
) -> None:
    """Lease a device to no job until `shardyard unquarantine`. A job that runs on it continues.

    shardyard quarantine host-a cuda:3 --reason "falls off the bus about once a week"
    """
    with connect_client(url, token) as client:
        client.quarantine(node, _device_index(client, node, device), reason)
    print(f"{node} {device} is in quarantine")


def unquarantine_command(node: NodeId, device: DeviceName, url: Url = None, token: Token = None) -> None:
    """Release a device from quarantine, whatever the reason was.

    A device whose processes would not die comes back by itself when they are gone and it can compute; this does not
    wait for that.
    """
    with connect_client(url, token) as client:
        client.unquarantine(node, _device_index(client, node, device))
    print(f"{node} {device} may be used again")


def forget_command(
    node: NodeId,
    url: Url = None,
    token: Token = None,
) -> None:
    """Remove a node that is down for good, with its leases and its quarantine."""
    with connect_client(url, token) as client:
        client.forget(node)
    print(f"{node} is forgotten")


def _node_state(node: "NodeView") -> Text:
    if not node.alive:
        return Text("down", "red")
    if not node.stopping and not node.draining:
        return Text("up", "green")
    return Text(f"{'stopping' if node.stopping else 'draining'}{_remaining_work(node)}", "yellow")


def _quarantine_lines(nodes: Iterable["NodeView"]) -> Iterator[str]:
    """Why devices are in quarantine, a line for each."""
    for node in nodes:
        for device in node.devices:
            if device.quarantine is not None:
                since = f" since {formatting.local_time(device.quarantined_at)}" if device.quarantined_at else ""
                yield f"{node.id} {device.label} is in quarantine{since}: {device.quarantine}"


def _remaining_work(node: "NodeView") -> str:
    """The work that is left on a draining node."""
    if not node.attempts:
        return ", empty"
    until = f" until {formatting.local_time(node.drain_deadline_at)}" if node.drain_deadline_at else ""
    return f", {formatting.count_noun(node.attempts, 'attempt')} left{until}"


def _parse_seconds(given: str) -> float:
    """The seconds of a duration such as 10m. Raises InvalidRequest."""
    match = _TIME.fullmatch(given.strip())
    if match is None:
        raise InvalidRequest(f"--deadline {given!r} is not a time; write seconds, or 90s, 10m, 2h, 1d")
    return float(match[1]) * _UNITS[match[2]]


def _device_index(client: "Client", node: str, device: str) -> int:
    """The index of a device, from its index or its name.

    Raises:
        NotFound: there is no such node, or no such device of that name.
    """
    if device.isdecimal():
        return int(device)
    found = next((other for other in client.nodes() if other.id == node), None)
    if found is None:
        raise NotFound(f"there is no node {node!r}")
    index = next((other.device for other in found.devices if other.label == device), None)
    if index is None:
        labels = formatting.device_names(other.label for other in found.devices)
        raise NotFound(f"node {node} has no device {device!r}; it has {labels}")
    return index


COMMANDS: Commands = {
    "pools": pools_command,
    "nodes": nodes_command,
    "drain": drain_command,
    "undrain": undrain_command,
    "quarantine": quarantine_command,
    "unquarantine": unquarantine_command,
    "forget": forget_command,
}
