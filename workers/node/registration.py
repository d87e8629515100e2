"""Registers a node with the service."""

import socket
import time
import uuid
from importlib.metadata import version

import structlog

from jobs import store
from jobs.files import identity
from jobs.files.remote_proof import prove_remote
from jobs.model.records import NodeInfo
from jobs.protocol.names import DEFAULT_TENANT
from jobs.store.accounts import tokens
from jobs.store.client import RedisStore
from shardyard.contract.errors import UnboxedNodes
from shardyard.contract.unboxed import refusal_text
from workers.carrier.access import access_of
from workers.node.block.allocation import allocation_of, count_cores
from workers.node.config import NodeConfig
from workers.node.reach import find_reach, identify_loopback

log = structlog.get_logger(__name__)

_REFUSALS = {
    store.Registration.TAKEN: "node {node!r} is alive elsewhere; give this worker another name with SHARDYARD_NODE",
    store.Registration.STRANDED: "node {node!r} holds devices of attempts that were recorded in another state "
    "directory; start it with that SHARDYARD_STATE_DIR, or have the operator forget the node "
    "(DELETE /v1/nodes/{node})",
}


class BlockOver(Exception):
    """The engine has ended the block of this node."""


class NodeTaken(Exception):
    """Another worker serves this node already."""


def register_node(config: NodeConfig, control: RedisStore, instance: str) -> None:
    """Announce the node. `instance` is a name of this worker process that no other has.

    Raises:
        NodeTaken: another worker has this node, or its attempts are recorded elsewhere.
        BlockOver: the engine has ended its block.
        StorageMismatch: the storage is not that of the service.
        RemoteError: it is not mounted, and does not answer.
        UnboxedNodes: it puts no box around jobs, and the service has several tenants.
    """
    _prove_storage(config, control)
    if config.box is not None and config.box.why_none and not config.settings.jobs_unboxed:
        refuse_tenants(config.node_id, config.box.why_none, control)
    settings = config.settings
    info = NodeInfo(
        host=socket.gethostname(),
        cores=max(1, count_cores(allocation_of(settings)) // settings.nodes_here),
        version=version("shardyard"),
        devices=config.devices,
        environments=tuple(sorted(config.environments)),
        box=config.box,
        virtual=settings.virtual_node > 0,
    )
    announce = store.register_node(
        config.node_id,
        instance,
        settings.pool,
        settings.node_address,
        info,
        home=_state_dir_nonce(config),
        reach=find_reach(settings.node_address, identify_loopback()),
        topology=settings.topology,
        block=settings.block,
    )
    registered = control.run(announce)
    if registered is store.Registration.OVER:
        raise BlockOver(f"block {settings.block} is over, so that node {config.node_id} takes no more work")
    if registered is not store.Registration.OK:
        raise NodeTaken(_REFUSALS[registered].format(node=config.node_id))
    log.info("node_registered", node=config.node_id, pool=settings.pool, devices=len(config.devices))
    config.manager.tell_ready(f"node {config.node_id} takes jobs of pool {settings.pool}")


def refuse_tenants(node: str, why: str, control: RedisStore) -> None:
    """Refuse to run jobs of several tenants without a box, which `why` explains. The operator's is one of them, so any
    other is too many.

    Raises:
        UnboxedNodes: another tenant has a token that is valid.
    """
    cursor, now = 0, time.time_ns() // 1000
    while True:
        cursor, tenants = control.run(tokens.scan_tenants(cursor))
        for tenant in sorted(set(tenants) - {DEFAULT_TENANT}):
            if not all(tokens.is_expired(token, now=now) for token in control.run(tokens.list_tokens(tenant))):
                raise UnboxedNodes(refusal_text({node: why}, f"this service has a second tenant ({tenant})"))
        if not cursor:
            return


def _prove_storage(config: NodeConfig, control: RedisStore) -> None:
    remote = access_of(config.settings).open(config.target) if config.target.is_carried else None
    if remote is None:
        identity.prove_storage(control, config.storage)
    else:
        prove_remote(control, remote, config.storage)


def _state_dir_nonce(config: NodeConfig) -> str:
    """A worker with another state directory has another nonce, and cannot prove deaths for this node."""
    path = config.state_dir / "home"
    if not path.exists():
        path.write_text(uuid.uuid4().hex)
    return path.read_text()
