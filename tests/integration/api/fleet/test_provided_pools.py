"""Pools that a provider keeps, over HTTP."""

import pytest

from jobs import store
from jobs.model.provided_pool import Block, PoolOffer
from jobs.store.accounts.tokens import Scope
from jobs.store.pools import keep_pool, note_block
from tests.integration.api.conftest import Api
from tests.integration.store.world import node_info

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

OFFER = PoolOffer("slurm", "login:/etc/pools.toml", devices=2, nodes=3, error="")
PENDING = Block("shardyard-0-slurm-1", 1, id="4711", state="pending", why="Priority")


def keep(api: Api, *blocks: Block) -> None:
    assert api.control.run(keep_pool("slurm", OFFER.provider, 60, OFFER))
    for block in blocks:
        api.control.run(note_block("slurm", OFFER.provider, block))


def join(api: Api, node: str, block: str) -> None:
    info = node_info(2)
    api.control.run(store.register_node(node, "i", "slurm", "10.0.0.1", info, home=node, reach="network", block=block))


async def test_a_job_for_a_pool_without_nodes_is_accepted_and_says_which_block_it_waits_for(api: Api) -> None:
    keep(api, PENDING)
    job = await api.submit(2, pool="slurm")
    assert (await api.get(f"/v1/jobs/{job}"))["reason"] == {
        "code": "waiting_for_nodes",
        "message": "block 4711 is pending in Slurm: Priority",
    }
    refused = await api.client.post("/v1/jobs", json={"pool": "slurm", "resources": {"devices": 3}})
    assert refused.status_code == 422
    (pool,) = [pool for pool in (await api.get("/v1/pools"))["pools"] if pool["name"] == "slurm"]
    assert (pool["nodes"], pool["largest_node"], pool["queued"]) == (0, 2, 1)
    assert pool["engine"]["blocks"] == [{"id": "4711", "nodes": 1, "state": "pending", "why": "Priority"}]
    metrics = (await api.client.get("/metrics")).text
    assert 'shardyard_pool_wanted_nodes{pool="slurm"} 1.0' in metrics
    assert 'shardyard_pool_blocks{pool="slurm",state="pending"} 1.0' in metrics


async def test_an_epilogue_says_that_a_block_is_over(api: Api) -> None:
    keep(api)
    join(api, "a", "4711")
    join(api, "b", "4712")
    assert [node["block"] for node in (await api.get("/v1/nodes"))["nodes"]] == ["4711", "4712"]
    for _ in range(2):
        assert (await api.client.delete("/v1/pools/slurm/blocks/4711")).status_code == 204
    assert [node["id"] for node in (await api.get("/v1/nodes"))["nodes"]] == ["b"]
    other = api.token(Scope.ADMIN, tenant="acme")
    assert (await api.client.delete("/v1/pools/slurm/blocks/4712", headers=other)).status_code == 403
    assert (await api.client.delete("/v1/pools/slurm/blocks/%20", headers=None)).status_code == 422
