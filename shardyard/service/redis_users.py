"""Users of the service's roles for a Redis of the operator's own, as lines of its configuration or of its ACL file."""

import hashlib
import secrets
from collections.abc import Mapping, Sequence

from jobs.store.acl import RedisRole, RedisServerKind, acl_rules, user_name

#: Which variable gets the URL with the user of a role; the last two are the worker's as well.
VARIABLES: Mapping[tuple[RedisServerKind, RedisRole], str] = {
    (RedisServerKind.CONTROL, RedisRole.API): "SHARDYARD_REDIS_URL of the API",
    (RedisServerKind.CONTROL, RedisRole.WORKER): "SHARDYARD_REDIS_URL of workers",
    (RedisServerKind.CONTROL, RedisRole.SUPERVISOR): "SHARDYARD_SUPERVISOR_REDIS_URL of workers",
    (RedisServerKind.TELEMETRY, RedisRole.API): "SHARDYARD_TELEMETRY_URL of the API",
    (RedisServerKind.TELEMETRY, RedisRole.WORKER): "SHARDYARD_TELEMETRY_URL of workers",
    (RedisServerKind.TELEMETRY, RedisRole.SUPERVISOR): "SHARDYARD_SUPERVISOR_TELEMETRY_URL of workers",
}


def server_kinds(named: str) -> list[RedisServerKind]:
    """What a server is for: "control", "telemetry", or "both"."""
    return list(RedisServerKind) if named == "both" else [RedisServerKind(named)]


def make_passwords() -> dict[RedisRole, str]:
    return {role: secrets.token_hex(32) for role in RedisRole}


def user_lines(passwords: Mapping[RedisRole, str], kinds: Sequence[RedisServerKind]) -> list[str]:
    """A line for each role; a server is of one kind or of both. It has the digest of the password, not itself."""
    return [
        f"user {user_name(role)} reset on #{digest(passwords[role])} {' '.join(acl_rules(role, *kinds))}"
        for role in RedisRole
    ]


def digest(password: str) -> str:
    return hashlib.sha256(password.encode()).hexdigest()


def url_lines(passwords: Mapping[RedisRole, str], kinds: Sequence[RedisServerKind]) -> list[str]:
    """Which variable gets which user and password."""
    return [
        f"{VARIABLES[kind, role]}: rediss://{user_name(role)}:{passwords[role]}@HOST:6379"
        for kind in kinds
        for role in RedisRole
    ]
