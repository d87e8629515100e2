"""`shardyard nodes --test`: measures the connections between the nodes of a pool, by a job on all of them."""

import json
import time
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from shardyard import formatting
from shardyard.cli.common import connect_client, make_console, make_table, print_json
from shardyard.contract.errors import InvalidRequest

if TYPE_CHECKING:
    from shardyard.client.client import Client, Job
    from shardyard.contract.fleet import NodeView

#: Of a pool with more nodes, so many are tested: pairs take their turn, a second or so each.
MAX_NODES = 16
#: For devices to be free on all nodes, for the job to start there, and for each pair.
START_SECONDS, PAIR_SECONDS = 90.0, 20.0
POLL_SECONDS = 0.2
#: Reasons for which a job waits until an operator changes something.
HOPELESS = frozenset({"node_has_no_address", "unboxed"})
SCRIPT = "measure_pairs.py"
MARK = "node-pair "


@dataclass(frozen=True, slots=True)
class NodePair:
    """The connection of two nodes; `error` says why it was not measured."""

    nodes: tuple[str, str]
    backend: str = ""
    latency_ms: float | None = None
    bytes_per_second: float | None = None
    error: str = ""


def test_nodes(pool: str, url: str | None, token: str | None, *, as_json: bool) -> None:
    """Measure each pair of nodes of a pool, and print what was found.

    Raises:
        InvalidRequest: fewer than two nodes of the pool take work.
        Exit: a pair could not be measured.
    """
    with connect_client(url, token) as client:
        nodes = [node for node in client.nodes() if node.pool == pool and _takes_work(node)]
        if len(nodes) < 2:
            raise InvalidRequest(
                f"pool {pool} has {formatting.count_noun(len(nodes), 'node')} that take work; a test needs two or more"
            )
        pairs, why = _run_job(client, pool, min(len(nodes), MAX_NODES))
    addresses = {node.id: node.address for node in nodes}
    if as_json:
        print_json({"pool": pool, "pairs": [asdict(pair) for pair in pairs], "error": why})
    else:
        _print_pairs(pairs, why, addresses, left_out=len(nodes) - MAX_NODES)
    if why or any(pair.error for pair in pairs):
        raise typer.Exit(1)


def _takes_work(node: "NodeView") -> bool:
    return node.alive and not (node.draining or node.stopping or node.unboxed or node.low_disk)


def _run_job(client: "Client", pool: str, nodes: int) -> tuple[list[NodePair], str]:
    """What a job found of each pair; and why it did not come to its end, "" if it did."""
    from shardyard.script import node_pairs

    directory = Path(next(iter(node_pairs.__path__)))
    job = client.submit_script(
        directory,
        entrypoint=SCRIPT,
        name="test of nodes",
        pool=pool,
        nodes=nodes,
        devices=1,
        strategy="ddp",
        observe="off",
        keep=[],
        max_retries=0,
    )
    try:
        why = _await_end(job, len(list(combinations(range(nodes), 2))))
        return _read_pairs(job), why
    finally:
        if not job.refresh().ended:
            job.cancel()


def _await_end(job: "Job", pairs: int) -> str:
    """Wait for the job's only attempt to end; why it failed, "" if it did not."""
    deadline = time.monotonic() + START_SECONDS
    started = False
    while not job.refresh().ended:
        status = job.status
        if status.attempt > 1 or (status.attempt == 1 and status.state == "queued"):
            break  # the service would try again: the first attempt has the answer
        if status.reason.code in HOPELESS:
            return status.reason.message
        if not started and status.state == "running":
            started, deadline = True, deadline + pairs * PAIR_SECONDS
        if time.monotonic() > deadline:
            return f"the job has not ended in time: {status.reason.message}"
        time.sleep(POLL_SECONDS)
    if job.succeeded:
        return ""
    reason = job.attempts()[0].reason if job.status.attempt else None
    return (reason or job.status.reason).message


def _read_pairs(job: "Job") -> list[NodePair]:
    attempts = job.attempts()
    if not attempts:
        return []
    names = [place.node for place in attempts[0].placement]
    lines = (line.text for line in job.logs(rank=0, stream="stdout", attempt=1))
    return [_as_pair(json.loads(text.removeprefix(MARK)), names) for text in lines if text.startswith(MARK)]


def _as_pair(found: dict[str, Any], names: list[str]) -> NodePair:
    first, second = found.pop("ranks")
    return NodePair((names[first], names[second]), **found)


def _print_pairs(pairs: list[NodePair], why: str, addresses: dict[str, str], left_out: int) -> None:
    out = make_console()
    if pairs:
        table = make_table("NODE", "NODE", "BACKEND", "#LATENCY", "#BANDWIDTH")
        for pair in pairs:
            measured = pair.latency_ms is not None and pair.bytes_per_second is not None
            cells = (
                (f"{pair.latency_ms:.3f} ms", f"{formatting.byte_count(pair.bytes_per_second)}/s")
                if measured
                else ("failed", "")
            )
            table.add_row(*pair.nodes, pair.backend, *cells)
        out.print(table)
    if left_out > 0:
        out.print(
            f"{formatting.count_noun(left_out, 'node')} of the pool were left out: at most {MAX_NODES} are tested"
        )
    for pair in pairs:
        if pair.error:
            named = " and ".join(f"{node} ({addresses.get(node) or 'no address'})" for node in pair.nodes)
            out.print(f"{named} do not reach each other: {pair.error}", soft_wrap=True)
    if why:
        out.print(f"the test did not end: {why}", soft_wrap=True)
    if why or any(pair.error for pair in pairs):
        out.print(
            "check that no firewall is between them (they connect to each other on any port), that each node's "
            "SHARDYARD_NODE_ADDRESS is one that the others reach, and that GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME, "
            "where a worker has them, name the interface with that address",
            soft_wrap=True,
        )
