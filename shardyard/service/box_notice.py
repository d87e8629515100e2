"""What `up` says about the box that jobs get, and when it refuses to start without one."""

from collections.abc import Sequence

from api.http.exposure import is_loopback
from shardyard.contract.fleet import BoxView, NodeView
from shardyard.contract.unboxed import RISK, WAYS_OUT, refusal_text
from shardyard.service.processes import ServiceError

#: What a job has for itself, by the right that gives it.
_OWN = {"account": "account", "processes": "processes", "files": "files"}
_LIMITED = {"memory": "memory", "pids": "processes"}


def has_no_box(node: NodeView) -> bool:
    """Whether a node has said that it puts no box around jobs. One whose worker is of an earlier version says nothing:
    its list of rights is empty."""
    return node.box.level == "none" and bool(node.box.rights)


def describe_box(box: BoxView, network: str) -> str:
    """A line about the box that jobs get in a pool with that policy for the network."""
    if not box.rights:
        return "not known: the worker is of an earlier version"
    if box.level == "none":
        return f"none ({_reason(box)}): jobs run as the service itself. {RISK} {WAYS_OUT}"
    has = {right.name for right in box.rights if right.has}
    own = [word for right, word in _OWN.items() if right in has]
    limited = [word for right, word in _LIMITED.items() if right in has]
    parts = [
        f"own {', '.join(own)}" if own else "",
        "network lo only" if "network" in has and network == "none" else "the node's network",
        f"{' and '.join(limited)} limited" if limited else "",
    ]
    lacks = ", ".join(right.name for right in box.rights if not right.has)
    why = f"; lacks: {lacks} (`shardyard nodes --box` says why)" if lacks else ""
    return f"{box.level}: {', '.join(part for part in parts if part)}{why}"


def _reason(box: BoxView) -> str:
    """Why there is no box: the same for every right."""
    return next((right.why for right in box.rights if right.why), "no reason is given")


def refuse_unboxed(nodes: Sequence[NodeView], host: str) -> None:
    """Refuse to serve other machines from nodes that put no box around jobs.

    Raises:
        ServiceError: the address is not this machine's own, and a node has no box.
    """
    unboxed = {node.id: _reason(node.box) for node in nodes if has_no_box(node)}
    if unboxed and not is_loopback(host):
        raise ServiceError(refusal_text(unboxed, f"refusing to listen on {host}"))
