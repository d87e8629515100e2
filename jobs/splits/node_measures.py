"""What the devices of each node did together, where an attempt has several nodes: from the numbers of its devices."""

from collections.abc import Sequence
from statistics import fmean

from shardyard.contract.report import TIME_PARTS, DeviceMeasures, NodeMeasures


def measure_nodes(
    nodes: Sequence[str], devices: Sequence[DeviceMeasures], waited_ms: Sequence[float] | None
) -> tuple[NodeMeasures, ...]:
    """A row for each node, in the order of their devices; none where there is only one node.

    `nodes` has the node of each device, `waited_ms` how long each waited for the others, where that is known.
    """
    found = group_by_node(nodes)
    if len(found) < 2:
        return ()
    return tuple(_measure_node(node, [devices[index] for index in own], waited_ms) for node, own in found.items())


def find_slowest_node(nodes: Sequence[str], waited_ms: Sequence[float]) -> str | None:
    """The node whose devices waited least for the others, on average; `None` where there is only one."""
    waits = {node: fmean(waited_ms[index] for index in own) for node, own in group_by_node(nodes).items()}
    return min(waits, key=lambda node: waits[node]) if len(waits) > 1 else None


def group_by_node(nodes: Sequence[str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for device, node in enumerate(nodes):
        found.setdefault(node, []).append(device)
    return found


def _measure_node(node: str, own: Sequence[DeviceMeasures], waited_ms: Sequence[float] | None) -> NodeMeasures:
    indexes = tuple(device.device for device in own)
    rows = [device.rows for device in own if device.rows is not None]
    shares = [device.share for device in own if device.share is not None]
    times = {name: _mean_total(own, name) for name in TIME_PARTS}
    walls = [device.wall_ms for device in own if device.wall_ms is not None]
    return NodeMeasures(
        node=node,
        devices=indexes,
        rows=sum(rows) if len(rows) == len(own) else None,
        share=round(sum(shares), 6) if len(shares) == len(own) else None,
        steps=max(device.steps for device in own),
        slowest_device=None if waited_ms is None else min(indexes, key=waited_ms.__getitem__),
        wall_ms=round(fmean(walls), 4) if len(walls) == len(own) else None,
        **times,
    )


def _mean_total(devices: Sequence[DeviceMeasures], name: str) -> float | None:
    timings = [getattr(device, name) for device in devices]
    return None if None in timings else round(fmean(timing.total for timing in timings), 4)
