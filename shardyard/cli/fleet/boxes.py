"""The boxes that nodes put around jobs, and what pools demand of them."""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from shardyard import formatting
from shardyard.cli.common import AsJson, Token, Url, connect_client, make_table, print_json
from shardyard.cli.framework.commands import make_app
from shardyard.cli.framework.completion import complete_pools
from shardyard.contract.errors import InvalidRequest

if TYPE_CHECKING:
    from shardyard.contract.fleet import NodeView, PoolView

LEVEL_STYLES = {"full": "green", "user": "yellow", "none": "red"}
#: What jobs of a pool have, by its policy.
NETWORKS = {
    "none": "its jobs have no network where the box has one of its own",
    "closed": "its jobs have no network where the box has one of its own, and none may run on several nodes",
    "host": "its jobs have the node's network",
}

app = make_app(help="Policies of pools.", no_args_is_help=True)


class BoxDemand(StrEnum):
    ANY = "any"
    USER = "user"
    FULL = "full"


class PoolNetwork(StrEnum):
    NONE = "none"
    CLOSED = "closed"
    HOST = "host"


@app.callback()
def describe_group() -> None:
    """Policies of pools: which box a node must have to take work, and which network jobs get."""


@app.command("set")
def set_command(
    pool: Annotated[
        str, typer.Argument(metavar="POOL", help="The pool's name.", show_default=False, autocompletion=complete_pools)
    ],
    box: Annotated[
        BoxDemand | None,
        typer.Option(help="What a node must have to take work: any, user (a box without root is enough) or full."),
    ] = None,
    network: Annotated[
        PoolNetwork | None,
        typer.Option(
            help="What jobs get in a box: none (a loopback of their own), closed (that, and none may run on several "
            "nodes, which takes their network) or host (the node's network)."
        ),
    ] = None,
    preempt: Annotated[
        bool | None,
        typer.Option(
            "--preempt/--no-preempt",
            help="Whether jobs of a higher priority take the devices of others, which save and wait.",
            show_default=False,
        ),
    ] = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Set what a pool demands of its nodes, and allows its jobs. What is not named stays as it is.

    It applies to jobs that start from then on. A node that lacks the box takes no work, and stays in `shardyard nodes`.

    shardyard pool set default --box full

    shardyard pool set downloads --network host

    shardyard pool set a100 --preempt
    """
    if box is None and network is None and preempt is None:
        raise InvalidRequest("say what to set: --box any, user or full; --network none, closed or host; --preempt")
    from shardyard.client import endpoints

    with connect_client(url, token) as client:
        before = next((found for found in client.pools() if found.name == pool), None)
        call = endpoints.set_pool_policy(
            pool,
            box=box or (before.box if before is not None else BoxDemand.ANY),
            network=network or (before.network if before is not None else PoolNetwork.NONE),
            preempt=((before is not None and before.preempt) or None) if preempt is None else preempt,
        )
        if as_json:
            return print_json(client.json(call))
        found = client.call(call)
    for line in policy_lines(found):
        print(line)
    return None


def policy_lines(pool: "PoolView") -> Iterator[str]:
    """What the policy of a pool means now."""
    demand = {"any": "takes nodes with any box, or none", "user": "takes nodes with a box"}
    words = demand.get(pool.box, f"takes nodes with a {pool.box} box")
    yield f"{pool.name} {words}; {NETWORKS.get(pool.network, pool.network)}"
    if pool.preempt:
        yield f"jobs of {pool.name} give their devices to those of a higher priority"
    if not pool.nodes:
        yield f"no node serves {pool.name} now; this applies to those that join it"
    yield from unboxed_lines([pool])


def unboxed_lines(pools: Iterable["PoolView"]) -> Iterator[str]:
    """Pools in which nodes take no work for want of a box, a line for each."""
    for pool in pools:
        if pool.unboxed:
            nodes = formatting.count_noun(pool.unboxed, "live node")
            lacking = f"{pool.name}: {nodes} without the box that it demands ({pool.box})"
            yield f"{lacking}; `shardyard nodes --box` shows why"


def level_text(level: str) -> Text:
    return Text(level, LEVEL_STYLES.get(level, ""))


def rights_table(nodes: Iterable["NodeView"]) -> Table:
    """Every right of every node's box, with the reason where it is missing."""
    listing = make_table("NODE", "BOX", "RIGHT", "HAS", "WHY NOT")
    for node in nodes:
        if not node.box.rights:
            listing.add_row(node.id, level_text(node.box.level), "-", "-", "its worker is of an earlier version")
        for right in node.box.rights:
            has = Text("yes", "green") if right.has else Text("no", "red")
            listing.add_row(node.id, level_text(node.box.level), right.name, has, right.why or "")
    return listing
