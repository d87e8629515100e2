"""The library of Lua functions on the control Redis, assembled from the files in `lua/`.

The shared parts come first: those beside each other in `lua/`, and in `lua/placing/` what decides which job gets which
devices. Each file in another folder is the body of one function. The library and its functions carry the digest of
their source in their names, so that versions of the service that run side by side each call their own. A server keeps
libraries with its data: it has them after a restart, and those of earlier versions, too.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from redis.exceptions import RedisError

#: The shared parts, each of which uses those before it only.
SHARED_PARTS = (
    "keys",
    "values",
    "notifications",
    "webhooks",
    "placing/usage",
    "dependencies",
    "groups",
    "transitions",
    "parts",
    "bundles",
    "stored_jobs",
    "placing/classes",
    "placing/shares",
    "placing/queues",
    "quotas",
    "placing/awaiting",
    "placing/history",
    "placing/policies",
    "placing/devices",
    "placing/gangs",
    "attempts",
    "placing/drains",
    "placing/preemptions",
    "blocks",
    "submits",
)
#: What a server that is short of memory, or cannot write, should still do. Reading needs no flag but the promise; what
#: brings new data is refused cleanly; everything else must go on, or running jobs could neither renew leases nor end.
_READING = frozenset(
    {
        "list_attempts",
        "read_bundle_nonces",
        "read_changes",
        "count_jobs",
        "count_matching",
        "read_columns",
        "dump_keys",
        "list_ended",
        "list_finished",
        "read_heartbeats",
        "read_fleet",
        "read_group",
        "read_history",
        "read_recent_history",
        "list_tokens",
        "list_deliveries",
        "list_secrets",
        "list_webhooks",
        "list_groups",
        "list_searches",
        "list_jobs",
        "newest_jobs",
        "read_command",
        "read_job",
        "read_profile",
        "read_quotas",
        "read_records",
        "snapshot",
        "read_versions",
        "read_shares",
        "read_queue",
        "read_demand",
        "list_offers",
    }
)
_REFUSED_WHEN_FULL = frozenset(
    {
        "post_test",
        "put_bundle",
        "put_secret",
        "put_webhook",
        "request_profile",
        "submit",
        "submit_group",
        "extend_group",
    }
)
#: Libraries of other versions that a server keeps. One that is deleted while a process still uses it is loaded again.
MAX_OTHER_LIBRARIES = 8
_NAME_PREFIX = "shardyard_"

_ARGUMENTS = re.compile(r"^local ([\w,\s]+?) =\s+unpack\(ARGV(?:, 1, \d+)?\)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class LuaFunction:
    """A function of the library: its name on the server, its named arguments in their order, and whether it may change
    anything."""

    registered_name: str
    arguments: tuple[str, ...]
    argument_set: frozenset[str]
    writes: bool


@dataclass(frozen=True, slots=True)
class FunctionLibrary:
    name: str
    source: str
    functions: dict[str, LuaFunction]

    @property
    def load_command(self) -> tuple[str, ...]:
        """REPLACE, since several processes may find at once that it is missing."""
        return ("FUNCTION", "LOAD", "REPLACE", self.source)

    @property
    def list_command(self) -> tuple[str, ...]:
        return ("FUNCTION", "LIST", "LIBRARYNAME", f"{_NAME_PREFIX}*")

    def delete_commands(self, listed: Sequence[Any]) -> list[tuple[str, ...]]:
        """Of the reply to `list_command`: what deletes the others, once there are more than `MAX_OTHER_LIBRARIES`."""
        others = sorted(set(map(_library_name, listed)) - {self.name})
        return [("FUNCTION", "DELETE", name) for name in others] if len(others) > MAX_OTHER_LIBRARIES else []


def is_function_missing(error: RedisError) -> bool:
    """Whether the server does not have the library: it is new or empty, or the library was deleted."""
    return "Function not found" in str(error)


@cache
def function_library() -> FunctionLibrary:
    lua = files("jobs.store") / "lua"
    shared = "\n".join((lua / f"{part}.lua").read_text() for part in SHARED_PARTS)
    bodies = {
        file.name.removesuffix(".lua"): file.read_text()
        for file in sorted(_function_files(lua), key=lambda file: file.name)
    }
    digest = hashlib.sha256("\0".join((shared, *bodies, *bodies.values())).encode()).hexdigest()[:12]
    return FunctionLibrary(
        name=_NAME_PREFIX + digest,
        source="\n".join((f"#!lua name={_NAME_PREFIX}{digest}", shared, *_registrations(bodies, digest))),
        functions={name: _declared(name, body, digest) for name, body in bodies.items()},
    )


def _function_files(lua: Traversable) -> Iterator[Traversable]:
    shared = {part.rpartition("/")[0] for part in SHARED_PARTS}
    for folder in lua.iterdir():
        if folder.is_dir() and folder.name not in shared:
            yield from (file for file in folder.iterdir() if file.name.endswith(".lua"))


def _registrations(bodies: dict[str, str], digest: str) -> Iterator[str]:
    for name, body in bodies.items():
        yield (
            f"redis.register_function{{function_name='{name}_{digest}', flags={{{_flag(name)}}}, "
            f"callback=function(_, ARGV)\n{body}\nend}}"
        )


def _flag(name: str) -> str:
    if name in _READING:
        return "'no-writes'"
    return "" if name in _REFUSED_WHEN_FULL else "'allow-oom'"


def _declared(name: str, body: str, digest: str) -> LuaFunction:
    found = _ARGUMENTS.search(body)
    arguments = tuple(re.findall(r"\w+", found[1])) if found else ()
    return LuaFunction(f"{name}_{digest}", arguments, frozenset(arguments), name not in _READING)


def _library_name(listed: Any) -> str:
    """Of one library in the reply to FUNCTION LIST: a mapping, or its keys and values in turn."""
    fields = listed if isinstance(listed, dict) else dict(zip(listed[::2], listed[1::2], strict=True))
    name: bytes = fields[b"library_name"]
    return name.decode()
