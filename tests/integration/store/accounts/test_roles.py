"""Each role of the service with its own user of Redis: it can do its work, and nothing more."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, TypeVar

import pytest
import redis

from jobs import store
from jobs.protocol import names
from jobs.store.accounts import sessions, tenant_secrets, tokens
from jobs.store.acl import RedisRole, RedisServerKind, acl_rules, user_name
from jobs.store.call import Word
from jobs.store.client import RedisStore, connect
from jobs.store.function_library import function_library
from shardyard.contract.errors import Unavailable
from tests.integration.store.accounts import test_quotas, test_shares, test_webhooks
from tests.integration.store.attempts import (
    test_checkpoints,
    test_dispatch,
    test_ends,
    test_gangs,
    test_profiles,
    test_transitions,
)
from tests.integration.store.jobs import test_bundles, test_packed_jobs, test_suspended
from tests.integration.store.nodes import test_device_history, test_nodes, test_policies, test_registration
from tests.integration.store.world import World
from workers.supervisor.telemetry import shipper

T = TypeVar("T")

SUPERVISOR = frozenset(
    {
        *("abandon", "claim", "commit_checkpoint", "finish", "hand_back", "read_command", "read_heartbeats"),
        *("read_job", "read_profile", "record_milestone", "record_profile", "record_resume", "record_script_resume"),
        *("refuse", "release", "renew_lease"),
    }
)
WORKER = frozenset(
    {
        *("evict_node", "identify_storage", "list_tokens", "read_fleet", "read_job", "reap", "refuse"),
        *("register_node", "release", "relieve_node", "renew_node", "retain_quarantine", "stop_node"),
        *("take_down_node", "unquarantine"),
    }
)
FUNCTIONS = {RedisRole.SUPERVISOR: SUPERVISOR, RedisRole.WORKER: WORKER}
#: Whose user a function is called with that several roles call: the first of these.
ORDERS = ((RedisRole.SUPERVISOR, RedisRole.WORKER), (RedisRole.WORKER, RedisRole.SUPERVISOR))
MODULES: tuple[ModuleType, ...] = (
    *(test_bundles, test_device_history, test_packed_jobs, test_policies),
    *(test_checkpoints, test_dispatch, test_ends, test_gangs, test_nodes, test_profiles, test_registration),
    *(test_transitions, test_quotas, test_shares, test_suspended, test_webhooks),
)
CASES = [
    case
    for module in MODULES
    for name, case in vars(module).items()
    if name.startswith("test_") and list(inspect.signature(case).parameters) == ["world"]
    if not any(mark.name == "slow" for mark in getattr(case, "pytestmark", ()))
]


def role_url(server_url: str, role: RedisRole) -> str:
    return server_url.replace("unix://", f"unix://{user_name(role)}:{role}@")


@pytest.fixture(scope="module")
def urls(server_url: str) -> dict[RedisRole, str]:
    with redis.Redis.from_url(server_url) as client:
        for role in RedisRole:
            rules = acl_rules(role, RedisServerKind.CONTROL)
            client.execute_command("ACL", "SETUSER", user_name(role), "reset", "on", f">{role}", *rules)
    return {role: role_url(server_url, role) for role in RedisRole}


class RoleStore(RedisStore):
    """Sends each call with the user of a role that makes it: the first in `order` that does, else the API."""

    def __init__(self, server_url: str, urls: dict[RedisRole, str], order: Sequence[RedisRole]) -> None:
        super().__init__(connect(server_url))  # of the tests' own look at the keys
        self._clients = {role: connect(url) for role, url in urls.items()}
        self._order = order

    def _send_all(self, commands: Sequence[tuple[Word, ...]], *, writes: bool) -> list[Any]:
        return [self._send(command) for command in commands]

    def _send(self, command: tuple[Word, ...]) -> Any:
        name = str(command[1]).rpartition("_")[0] if command[0] == "FCALL" else ""
        role = next((role for role in self._order if name in FUNCTIONS[role]), RedisRole.API)
        return self._clients[role].execute_command(*command)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        super().close()
        for client in self._clients.values():
            client.close()


@pytest.fixture
def world(server_url: str, urls: dict[RedisRole, str], order: tuple[RedisRole, ...]) -> Iterator[World]:
    world = World(server_url)
    world.store.close()
    world.store = RoleStore(server_url, urls, order)
    world.redis.flushall()
    yield world
    world.store.close()


def test_the_tables_name_functions_that_there_are() -> None:
    assert function_library().functions.keys() >= SUPERVISOR | WORKER


@pytest.mark.parametrize("order", ORDERS, ids=["supervisor", "worker"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.__module__.rpartition('.')[2]}-{case.__name__}")
def test_the_roles_can_do_what_the_tests_of_transitions_do(world: World, case: Callable[[World], None]) -> None:
    case(world)


@pytest.mark.parametrize("order", [()])
def test_the_api_keeps_tokens_sessions_and_secrets(world: World) -> None:
    _, record = tokens.issue_token("t", {tokens.Scope.READ}, "n", created=1)
    world.run(tokens.put_token(record))
    assert world.run(tokens.list_tokens("t")) == (record,)
    world.run(sessions.begin_session("s", record.id, record.digest))
    assert world.run(sessions.read_session("s")) is not None
    world.run(sessions.end_session("s"))
    world.run(tenant_secrets.put_secret("t", "n", b"sealed"))
    assert world.run(tenant_secrets.read_secret_names("t")) == {"n"}
    assert world.run(tenant_secrets.read_secret_tenants()) == ("t",)
    world.run(tokens.revoke_token("t", record.id))


@pytest.mark.parametrize("order", [()])
def test_a_worker_reads_what_it_needs_of_tokens_and_secrets(world: World, urls: dict[RedisRole, str]) -> None:
    _, record = tokens.issue_token("t", {tokens.Scope.READ}, "n", created=1)
    world.run(tokens.put_token(record))
    world.run(tenant_secrets.put_secret("t", "n", b"sealed"))
    worker = RedisStore.from_url(urls[RedisRole.WORKER])
    assert worker.run(tokens.scan_tenants(0))[1] == ("t",)
    assert worker.run(tokens.list_tokens("t")) == (record,)
    assert worker.run(tenant_secrets.read_sealed_secrets("t", ["n"])) is not None
    assert worker.run(store.list_quarantined("n1")) is not None
    changes = (
        tokens.put_token(record),
        tokens.revoke_token("t", record.id),
        tenant_secrets.delete_secret("t", "n"),
    )
    for changing in changes:
        with pytest.raises(redis.ResponseError, match=r"ACL|permission"):
            worker.run(changing)
    assert world.run(tokens.list_tokens("t")) == (record,)
    worker.close()


REFUSED: dict[str, tuple[str, ...]] = {
    "config": ("CONFIG", "GET", "requirepass"),
    "flushall": ("FLUSHALL",),
    "flushdb": ("FLUSHDB",),
    "swapdb": ("SWAPDB", "0", "1"),
    "another database": ("SELECT", "1"),
    "keys": ("KEYS", "*"),
    "monitor": ("MONITOR",),
    "debug": ("DEBUG", "SLEEP", "0"),
    "shutdown": ("SHUTDOWN", "NOSAVE"),
    "replicaof": ("REPLICAOF", "127.0.0.1", "1"),
    "module": ("MODULE", "LIST"),
    "acl": ("ACL", "LIST"),
    "clients": ("CLIENT", "LIST"),
    "kill": ("CLIENT", "KILL", "TYPE", "normal"),
    "save": ("BGREWRITEAOF",),
    "slow log": ("SLOWLOG", "GET"),
    "eval": ("EVAL", "return 1", "0"),
    "flush of functions": ("FUNCTION", "FLUSH"),
    "restore of functions": ("FUNCTION", "RESTORE", "x"),
    "other keys": ("GET", "another-service"),
    "other channels": ("PUBLISH", "another-service", "x"),
}
OF_THE_API_ALONE: dict[str, tuple[str, ...]] = {
    "load of functions": ("FUNCTION", "LOAD", "REPLACE", "#!lua name=x\n"),
    "delete of functions": ("FUNCTION", "DELETE", "x"),
    "a token": ("SET", names.token_key("a"), "x"),
    "a session": ("SET", names.session_key("a"), "x"),
    "a session's owner": ("GET", names.session_key("a")),
    "a secret": ("HSET", names.secrets_key("t"), "n", "x"),
}
OF_NO_SUPERVISOR: dict[str, tuple[str, ...]] = {
    "scan": ("SCAN", "0"),
    "reading a token": ("HGETALL", names.token_key("a")),
    "reading secrets": ("HGETALL", names.secrets_key("t")),
    "a node's queue": ("LPUSH", "sy:celery:node.n1", "x"),
    "a script": ("EVALSHA", "0" * 40, "0"),
}


@pytest.mark.parametrize("role", RedisRole)
def test_a_role_is_refused_what_it_does_not_need(server_url: str, urls: dict[RedisRole, str], role: RedisRole) -> None:
    refused = dict(REFUSED)
    if role is not RedisRole.API:
        refused |= OF_THE_API_ALONE
    if role is RedisRole.SUPERVISOR:
        refused |= OF_NO_SUPERVISOR
    allowed = []
    with redis.Redis.from_url(server_url) as operator, connect(urls[role]) as client:
        for name, command in refused.items():
            if operator.execute_command("ACL", "DRYRUN", user_name(role), *command) == b"OK":
                allowed.append(name)  # it is not tried then: it may be SHUTDOWN
            else:
                with pytest.raises(redis.ResponseError):
                    client.execute_command(*command)
    assert allowed == []


def test_a_process_that_may_not_load_functions_says_what_to_do(server_url: str, urls: dict[RedisRole, str]) -> None:
    with redis.Redis.from_url(server_url) as client:
        client.function_flush()
    worker, api = RedisStore.from_url(urls[RedisRole.WORKER]), RedisStore.from_url(urls[RedisRole.API])
    with pytest.raises(Unavailable, match="start the API of this version first"):
        worker.run(store.read_fleet())
    api.run(store.read_fleet())
    assert worker.run(store.read_fleet()) is not None
    worker.close()
    api.close()


def test_telemetry_has_rights_of_its_own(server_url: str) -> None:
    attempt = ("t", "j", 1)
    stream, readings = names.log_stream(*attempt, 0), names.readings_key("n1")
    with redis.Redis.from_url(server_url) as client:
        for role in RedisRole:
            rules = acl_rules(role, RedisServerKind.TELEMETRY)
            client.execute_command("ACL", "SETUSER", f"{user_name(role)}-t", "reset", "on", f">{role}", *rules)
    clients = {
        role: connect(server_url.replace("unix://", f"unix://{user_name(role)}-t:{role}@")) for role in RedisRole
    }
    supervisor, worker, api = (clients[role] for role in (RedisRole.SUPERVISOR, RedisRole.WORKER, RedisRole.API))
    supervisor.eval(shipper._SHIP, 1, stream, "0-0", "0-0", 60, "1-1", "x")
    supervisor.set(names.report_key(*attempt), "r", ex=60)
    worker.set(readings, "x", ex=60)
    assert api.xread({stream: "0"})
    assert api.get(readings) == b"x"
    assert api.unlink(stream, names.report_key(*attempt)) == 2
    refused: list[tuple[redis.Redis, tuple[str, ...]]] = [
        (worker, ("XLEN", stream)),
        (worker, ("EVAL", "return 1", "0")),
        (supervisor, ("GET", readings)),
        (supervisor, ("SET", names.token_key("a"), "x")),
        (supervisor, ("EVAL", f"return redis.call('GET', '{readings}')", "0")),
        (supervisor, ("FCALL", "x", "0")),
        (api, ("FLUSHALL",)),
        (api, ("EVAL", "return 1", "0")),
    ]
    for client, command in refused:
        with pytest.raises(redis.ResponseError, match="permission"):
            client.execute_command(*command)  # type: ignore[no-untyped-call]
    for client in clients.values():
        client.close()
