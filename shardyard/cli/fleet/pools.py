"""Commands about pools, nodes and devices."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from shardyard import formatting
from shardyard.cli.common import (
    AsJson,
    Commands,
    Token,
    Url,
    connect_client,
    make_console,
    make_table,
    parse_seconds,
    print_answer,
    print_json,
)
from shardyard.cli.fleet.boxes import level_text, rights_table, unboxed_lines
from shardyard.cli.fleet.device_history import print_device_history, suspicion_lines
from shardyard.cli.fleet.node_pairs import test_nodes
from shardyard.cli.framework.completion import complete_nodes, complete_pools
from shardyard.contract.errors import Conflict, InvalidRequest, NotFound

if TYPE_CHECKING:
    from shardyard.client import Client
    from shardyard.contract.fleet import NodeView, PoolView

NodeId = Annotated[
    str,
    typer.Argument(
        metavar="NODE", help="The node's id from `shardyard nodes`.", show_default=False, autocompletion=complete_nodes
    ),
]
DeviceName = Annotated[
    str, typer.Argument(metavar="DEVICE", help="Its name, such as cuda:3, or its index.", show_default=False)
]
WAIT_SECONDS = 1.0


def pools_command(url: Url = None, token: Token = None, as_json: AsJson = False) -> None:
    """List pools: their devices, how many are free, how many jobs wait, and their policies."""
    from shardyard.client import endpoints

    print_answer(endpoints.list_pools(), lambda found: _print_pools(found.pools), url, token, as_json)


def _print_pools(pools: "list[PoolView]") -> None:
    columns = ("devices", "free", "leased", "quarantined", "queued")
    listing = make_table("POOL", *(f"#{column.upper()}" for column in columns), "#NODES UP", "BOX", "NETWORK")
    for pool in pools:
        up = f"{pool.live_nodes} of {pool.nodes}"
        listing.add_row(pool.name, *(str(getattr(pool, column)) for column in columns), up, pool.box, pool.network)
    out = make_console()
    out.print(listing if pools else "no pools: no worker has registered yet")
    for line in [*unboxed_lines(pools), *_engine_lines(pools)]:
        out.print(line, soft_wrap=True)


def _engine_lines(pools: "Iterable[PoolView]") -> Iterator[str]:
    """What providers have asked engines for, and why there is no more."""
    for pool in pools:
        if (engine := pool.engine) is None:
            continue
        nodes = formatting.count_noun(engine.max_nodes, "node")
        yield f"{pool.name} gets up to {nodes} of {engine.node_devices} devices from {engine.name} ({engine.provider})"
        if engine.silent:
            host = engine.provider.partition(":")[0]
            yield f"  nothing is heard from its provider; start `shardyard provider` on {host} again"
        if engine.error:
            yield f"  {engine.error}"
        for block in engine.blocks:
            why = f": {block.why}" if block.why else ""
            yield f"  block {block.id or '-'}, {formatting.count_noun(block.nodes, 'node')}, {block.state}{why}"


def nodes_command(
    history: Annotated[
        str | None,
        typer.Option(
            metavar="DEVICE",
            help="Show what attempts have recorded about one device, such as host-a:cuda:3.",
            show_default=False,
        ),
    ] = None,
    box: Annotated[
        bool, typer.Option("--box", help="Show what each node's box gives a job, and why it lacks the rest.")
    ] = False,
    test: Annotated[
        bool,
        typer.Option("--test", help="Measure latency and bandwidth between the nodes of a pool, with a job on them."),
    ] = False,
    pool: Annotated[
        str | None,
        typer.Option(help="For --test: the pool. Default: default.", show_default=False, autocompletion=complete_pools),
    ] = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """List nodes, their health, the box that they put around jobs, and the jobs on their devices. Devices that were
    slow lately are named.

    shardyard nodes --history host-a:cuda:3    how fast it was compared with its peers, and how its attempts ended

    shardyard nodes --box    what a job has for itself on each node

    shardyard nodes --test --pool a100    whether its nodes reach each other, and how fast
    """
    from shardyard.client import endpoints

    if pool is not None and not test:
        raise InvalidRequest("--pool says whose nodes are measured; add --test")
    if test:
        return test_nodes(pool or "default", url, token, as_json=as_json)
    if history is not None:
        return print_answer(endpoints.get_device_history(history), print_device_history, url, token, as_json)
    return print_answer(endpoints.list_nodes(), lambda found: _print_nodes(found.nodes, box), url, token, as_json)


def _print_nodes(nodes: "list[NodeView]", box: bool) -> None:
    out = make_console()
    if box and nodes:
        return out.print(rights_table(nodes))
    out.print(_node_table(nodes) if nodes else "no nodes: no worker has registered yet")
    for line in [*_low_disk_lines(nodes), *_quarantine_lines(nodes), *suspicion_lines(nodes)]:
        out.print(line, soft_wrap=True)
    return None


def _node_table(nodes: "list[NodeView]") -> Table:
    """A line for each node. What only some services have has a column only there."""
    columns: dict[str, Callable[[NodeView], str | Text]] = {
        "NODE": lambda node: node.id,
        "POOL": lambda node: node.pool,
        "STATE": _node_state,
        "BOX": lambda node: level_text(node.box.level),
        "DEVICES": lambda node: formatting.device_names(device.label for device in node.devices),
        "FREE": lambda node: _devices_in(node, "free"),
        "LEASED": lambda node: _devices_in(node, "leased"),
        "QUARANTINED": lambda node: _devices_in(node, "quarantined"),
    }
    if any(node.virtual for node in nodes):
        columns["HOST"] = lambda node: f"{node.host} (virtual)" if node.virtual else node.host
    if any(node.topology for node in nodes):
        columns["TOPOLOGY"] = lambda node: node.topology or "-"
    if any(node.block for node in nodes):
        columns["BLOCK"] = lambda node: node.block or "-"
    listing = make_table(*columns)
    for node in nodes:
        listing.add_row(*(show_column(node) for show_column in columns.values()))
    return listing


def _devices_in(node: "NodeView", state: str) -> str:
    return formatting.device_names(device.label for device in node.devices if device.state == state)


def drain_command(
    node: NodeId,
    deadline: Annotated[
        str | None,
        typer.Option(
            help="After this time, what still runs moves to other nodes: seconds, or 90s, 10m, 2h, 1d; 0: at once.",
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

    seconds = None if deadline is None else parse_seconds(deadline, "--deadline")
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

    print_answer(endpoints.undrain_node(node), lambda _: print(f"{node} takes work"), url, token, as_json)


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
        why = "unboxed" if node.unboxed else "disk low" if node.low_disk is not None else ""
        return Text(why, "yellow") if why else Text("up", "green")
    return Text(f"{'stopping' if node.stopping else 'draining'}{_remaining_work(node)}", "yellow")


def _low_disk_lines(nodes: Iterable["NodeView"]) -> Iterator[str]:
    """Why nodes take no work until there is room."""
    for node in nodes:
        disk = node.low_disk
        if disk is None:
            continue
        left, reserve = formatting.byte_count(disk.free_bytes), formatting.byte_count(disk.reserve_bytes)
        if disk.lacks_files:
            left, reserve = f"{disk.free_files:,} files", f"{disk.reserve_files:,}"
        yield f"{node.id} takes no work: the disk of its {disk.name} has {left} left, and the service keeps {reserve}"


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
