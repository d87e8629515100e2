"""Secrets of tenants in the control Redis."""

import pytest

from jobs.store.accounts import tenant_secrets
from jobs.store.accounts.tenant_secrets import MAX_SECRETS
from shardyard.contract.errors import NotFound, SecretQuota
from tests.integration.store.world import World

pytestmark = pytest.mark.integration

SEALED = b"\x01head\0\xff 12 34 \n" + bytes(range(256))


def test_a_secret_is_replaced_and_keeps_when_it_was_created(world: World) -> None:
    first, is_new = world.run(tenant_secrets.put_secret("acme", "hf", b"older"))
    assert is_new
    again, is_new = world.run(tenant_secrets.put_secret("acme", "hf", SEALED))
    assert (is_new, again.created, again.updated >= again.created) == (False, first.created, True)
    (listed,) = world.run(tenant_secrets.list_secrets("acme"))
    assert (listed.name, listed.created, listed.updated, listed.head) == (
        "hf",
        again.created,
        again.updated,
        SEALED[:5],
    )
    assert world.run(tenant_secrets.read_sealed_secrets("acme", ["hf", "gone", "hf"])) == {"hf": SEALED, "gone": None}


def test_tenants_do_not_meet(world: World) -> None:
    world.run(tenant_secrets.put_secret("acme", "hf", SEALED))
    world.run(tenant_secrets.put_secret("rival", "wandb", SEALED))
    assert world.run(tenant_secrets.read_secret_names("acme")) == {"hf"}
    assert world.run(tenant_secrets.read_sealed_secrets("rival", ["hf"])) == {"hf": None}
    with pytest.raises(NotFound):
        world.run(tenant_secrets.delete_secret("rival", "hf"))
    assert world.run(tenant_secrets.read_secret_tenants()) == ("acme", "rival")
    world.run(tenant_secrets.delete_secret("rival", "wandb"))
    assert world.run(tenant_secrets.read_secret_tenants()) == ("acme",)
    assert world.redis.keys("sy:secret:*") == [b"sy:secret:acme"]


def test_a_tenant_has_a_number_of_them_at_most(world: World) -> None:
    for number in range(MAX_SECRETS):
        world.run(tenant_secrets.put_secret("acme", f"s{number}", SEALED))
    with pytest.raises(SecretQuota, match=f"there may be {MAX_SECRETS} secrets"):
        world.run(tenant_secrets.put_secret("acme", "one-more", SEALED))
    world.run(tenant_secrets.put_secret("acme", "s0", b"replaced all the same"))
    world.run(tenant_secrets.put_secret("rival", "theirs", SEALED))
    assert len(world.run(tenant_secrets.list_secrets("acme"))) == MAX_SECRETS


def test_a_secret_that_has_changed_meanwhile_is_not_encrypted_anew(world: World) -> None:
    record, _ = world.run(tenant_secrets.put_secret("acme", "hf", SEALED))
    assert world.run(tenant_secrets.replace_sealed_secret("acme", "hf", SEALED, b"anew"))
    (listed,) = world.run(tenant_secrets.list_secrets("acme"))
    assert (listed.created, listed.updated) == (record.created, record.updated)
    assert not world.run(tenant_secrets.replace_sealed_secret("acme", "hf", SEALED, b"late"))
    assert not world.run(tenant_secrets.replace_sealed_secret("acme", "gone", SEALED, b"late"))
    assert world.run(tenant_secrets.read_sealed_secrets("acme", ["hf", "gone"])) == {"hf": b"anew", "gone": None}
