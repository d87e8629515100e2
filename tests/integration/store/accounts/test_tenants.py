"""A worker without a box joins no service that has several tenants."""

import time
from pathlib import Path

import pytest

from jobs import store
from jobs.model.records import BoxRights
from jobs.model.settings import Settings
from jobs.store.accounts import tokens
from jobs.store.accounts.tokens import Scope
from shardyard.contract.errors import UnboxedNodes
from tests.integration.store.world import World, node_info
from workers.node.config import NodeConfig
from workers.node.registration import refuse_tenants, register_node

pytestmark = pytest.mark.integration


def give_token(world: World, tenant: str, *, expires: int | None = None) -> str:
    _, record = tokens.issue_token(tenant, [Scope.SUBMIT], "a test", created=1, expires=expires)
    world.run(tokens.put_token(record))
    return record.id


def test_another_tenants_token_keeps_a_worker_without_a_box_away(world: World) -> None:
    give_token(world, "default")
    refuse_tenants("n1", "user namespaces are off", world.store)
    token = give_token(world, "acme")
    with pytest.raises(
        UnboxedNodes,
        match=r"second tenant \(acme\): n1 \(user namespaces are off\) puts no box.*as root.*--jobs-unboxed",
    ):
        refuse_tenants("n1", "user namespaces are off", world.store)
    world.run(tokens.revoke_token("acme", token))
    refuse_tenants("n1", "user namespaces are off", world.store)


@pytest.mark.parametrize(
    ("box", "accepted", "joins"),
    [
        (BoxRights("none", {"files": "user namespaces are off"}), False, False),
        (BoxRights("none", {"files": "user namespaces are off"}), True, True),
        (BoxRights("user", {"account": "not root"}), False, True),
        (None, False, True),
    ],
)
def test_a_node_joins_several_tenants_with_a_box_or_where_the_operator_accepts_none(
    world: World, tmp_path: Path, box: BoxRights | None, accepted: bool, joins: bool
) -> None:
    give_token(world, "acme")
    (tmp_path / "n1").mkdir()
    places = {"storage": tmp_path / "storage", "state_dir": tmp_path}
    settings = Settings.model_validate({"node": "n1", "jobs_unboxed": accepted} | places)
    config = NodeConfig(settings, node_info(2).devices, box=box)
    if joins:
        register_node(config, world.store, "i1")
    else:
        with pytest.raises(UnboxedNodes, match="user namespaces are off"):
            register_node(config, world.store, "i1")
    assert [node.id for node in world.run(store.read_fleet()).nodes] == (["n1"] if joins else [])


def test_a_token_that_has_expired_keeps_nobody_away(world: World) -> None:
    now = time.time_ns() // 1000
    give_token(world, "acme", expires=now - 1_000_000)
    refuse_tenants("n1", "user namespaces are off", world.store)
    give_token(world, "acme", expires=now + 3_600_000_000)
    with pytest.raises(UnboxedNodes):
        refuse_tenants("n1", "user namespaces are off", world.store)


def test_a_tenant_is_found_among_many_other_keys(world: World) -> None:
    world.redis.mset({f"sy:idem:default/{number}": "x y" for number in range(5 * tokens.SCANNED_KEYS)})
    give_token(world, "acme")
    with pytest.raises(UnboxedNodes):
        refuse_tenants("n1", "user namespaces are off", world.store)
