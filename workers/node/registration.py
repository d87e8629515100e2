"""Registers a node with the service."""

import os
import socket
import uuid
from importlib.metadata import version

import structlog

from jobs import store
from jobs.files import identity
from jobs.model.records import NodeInfo
from jobs.store.client import RedisStore
from workers.node.config import NodeConfig

log = structlog.get_logger(__name__)

_REFUSALS = {
    store.Registration.TAKEN: "node {node!r} is alive elsewhere; give this worker another name with SHARDYARD_NODE",
    store.Registration.STRANDED: "node {node!r} holds devices of attempts that were recorded in another state "
    "directory; start it with that SHARDYARD_STATE_DIR, or have the operator forget the node "
    "(DELETE /v1/nodes/{node})",
}


class NodeTaken(Exception):
    """Another worker serves this node already."""


def register_node(config: NodeConfig, control: RedisStore, instance: str) -> None:
    """Announce the node. `instance` is a name of this worker process that no other has.

    Raises:
        NodeTaken: another worker has this node, or its attempts are recorded elsewhere.
        StorageMismatch: the storage directory is not that of the service.
    """
    identity.prove_storage(control, config.storage)
    info = NodeInfo(
        host=socket.gethostname(),
        cores=len(os.sched_getaffinity(0)),
        version=version("shardyard"),
        devices=config.devices,
        environments=tuple(sorted(config.environments)),
    )
    pool, address = config.settings.pool, config.settings.node_address
    home = _state_dir_nonce(config)
    registered = control.run(store.register_node(config.node_id, instance, pool, address, info, home=home))
    if registered is not store.Registration.OK:
        raise NodeTaken(_REFUSALS[registered].format(node=config.node_id))
    log.info("node_registered", node=config.node_id, pool=pool, devices=len(config.devices))


def _state_dir_nonce(config: NodeConfig) -> str:
    """A worker with another state directory has another nonce, and cannot prove deaths for this node."""
    path = config.state_dir / "home"
    if not path.exists():
        path.write_text(uuid.uuid4().hex)
    return path.read_text()
