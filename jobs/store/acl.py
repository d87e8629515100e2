"""What each role of the service may do on Redis, as rules of its access control lists (ACL).

    api          everything about jobs, tokens and secrets; loads the library of functions; schedules
    worker       nodes and attempts, the queue of its node; reads secrets, and whether tokens of other tenants exist
    supervisor   one attempt at a time: what its functions touch, and the telemetry

Functions run with the rights of who calls them, so a role has the keys that its functions touch. Only the API may load
functions: whoever can replace one can have the API run it. Nobody may change the server, empty it, or read what others
do; whoever installs a service, and makes back-ups, has a user of their own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from jobs.protocol.names import PREFIX


class RedisRole(StrEnum):
    API = "api"
    WORKER = "worker"
    SUPERVISOR = "supervisor"


class RedisServerKind(StrEnum):
    """What a server is for. One server may be both."""

    CONTROL = "control"
    TELEMETRY = "telemetry"


#: Reading and writing what the keys allow, and nothing that is about the server or all of its keys.
_COMMANDS: Final = (
    *("-@all", "+@read", "+@write", "+@connection", "+@transaction", "+time", "+wait"),
    *("-@dangerous", "-@scripting"),
    *("-randomkey", "-dbsize", "-scan", "-select", "+select|0"),
)
_PUBLISHING: Final = ("+publish", "+subscribe", "+unsubscribe")
#: Of kombu: scripts of its own, which it loads, and the channels that it subscribes to.
_CELERY: Final = ("+evalsha", "+script|load", "+psubscribe", "+punsubscribe")

#: Families of keys that hold what attempts and nodes are, whose transitions change most of them at once.
_JOBS: Final = (
    *("job", "spec", "packed", "attempt", "jobs", "names", "tails", "named", "finished", "changes", "seq"),
    *("queue", "gangs", "hold", "backoff", "leases", "outbox"),
    *("pools", "nodes", "policies", "pool", "node", "free", "held", "quarantine", "devices", "suspects", "history"),
    *("waiting", "turns", "use", "placed", "weights", "timed", "needed", "awaiting"),
    *("group", "groups", "children", "group_jobs", "active", "standby", "turns_due", "searches"),
    *("provided", "blocks", "block", "ended"),
    *("quotas", "parked", "usage"),
    *("webhooks", "webhook", "webhook_outbox", "delivery", "webhook_tenants", "webhook_fleet", "webhook_due"),
    *("bundle", "idle_bundles"),
)


@dataclass(frozen=True, slots=True)
class _Rights:
    """`commands` beside the usual ones; families of keys that may be changed, and that may be read only; `all_keys`
    stands for every key of the service."""

    commands: Sequence[str] = ()
    keys: Sequence[str] = ()
    read_only: Sequence[str] = ()
    all_keys: bool = False

    def rules(self) -> tuple[str, ...]:
        keys = [f"~{PREFIX}*"] if self.all_keys else [*_patterns("~", self.keys), *_patterns("%R~", self.read_only)]
        return (*_COMMANDS, *self.commands, *keys, f"&{PREFIX}*", f"&/{PREFIX}*")


def _patterns(sign: str, families: Sequence[str]) -> list[str]:
    return [f"{sign}{PREFIX}{family}{rest}" for family in families for rest in ("", ":*")]


_LIBRARY: Final = ("+function|load", "+function|list", "+function|delete")
_RIGHTS: Final[Mapping[RedisRole, Mapping[RedisServerKind, _Rights]]] = {
    RedisRole.API: {
        RedisServerKind.CONTROL: _Rights(
            ("+fcall", "+scan", "+info", *_LIBRARY, *_PUBLISHING, *_CELERY), all_keys=True
        ),
        RedisServerKind.TELEMETRY: _Rights(("+info",), all_keys=True),
    },
    RedisRole.WORKER: {
        RedisServerKind.CONTROL: _Rights(
            ("+fcall", "+scan", *_PUBLISHING, *_CELERY),
            (*_JOBS, "leader", "storage", "format", "celery"),
            ("secret", "token", "tokens"),
        ),
        RedisServerKind.TELEMETRY: _Rights(keys=("readings",)),
    },
    RedisRole.SUPERVISOR: {
        RedisServerKind.CONTROL: _Rights(("+fcall", *_PUBLISHING), _JOBS),
        RedisServerKind.TELEMETRY: _Rights(("+eval",), ("log", "metrics", "report", "progress", "hardware")),
    },
}


def user_name(role: RedisRole) -> str:
    return f"shardyard-{role}"


def acl_rules(role: RedisRole, *kinds: RedisServerKind) -> tuple[str, ...]:
    """What `ACL SETUSER` has after the name of the user and its password, on a server that is of these kinds."""
    rules = [rule for kind in kinds for rule in _RIGHTS[role][kind].rules()]
    # A later `-@all` would take away what an earlier kind gives.
    usual = [rule for rule in rules if rule in _COMMANDS]
    return tuple(dict.fromkeys([*usual, *(rule for rule in rules if rule not in usual)]))
