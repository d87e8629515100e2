"""A call on the control Redis, as a value: which script, with what arguments, and how to read the reply."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Generic, TypeVar

import msgspec

from jobs.model.records import Fields

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One script call: `parse` turns the raw reply into `T`, or raises an error of `shardyard.contract.errors`."""

    script: str
    args: tuple[str | bytes | int, ...]
    parse: Callable[[Any], T]


#: What a server that is short of memory, or cannot write, should still do. Reading needs no flag but the promise; a
#: new job is refused cleanly; everything else must go on, or running jobs could neither beat nor end.
_READING = (
    "attempts",
    "bundle_nonces",
    "changes",
    "count_jobs",
    "dump",
    "finished",
    "leases",
    "nodes",
    "orders",
    "page",
    "quarantine",
    "read_job",
    "records",
    "session_read",
    "snapshot",
    "token_list",
    "token_read",
    "versions",
)
_FLAGS = dict.fromkeys(_READING, " flags=no-writes") | {"submit": "", "put_bundle": ""}


@cache
def source(script: str) -> str:
    """Lua source of a script, with its flags and what it needs of the shared library before it."""
    body = (files("jobs.store") / "lua" / f"{script}.lua").read_text()
    return f"#!lua{_FLAGS.get(script, ' flags=allow-oom')}\n{_library_for(body)}{body}"


def _library_for(body: str) -> str:
    """The parts of `_lib.lua` that a script uses, or that those use: Lua makes every function that it meets anew in
    each call, which takes longer than many a script. An empty line is between two parts, and none uses a later one."""
    needed, used = [], _words(body)
    for part in reversed(_library()):
        if used & set(re.findall(r"^local (?:function )?(\w+)", part, re.MULTILINE)):
            needed.append(part)
            used |= _words(part)
    return "".join(f"{part}\n\n" for part in reversed(needed))


@cache
def _library() -> tuple[str, ...]:
    return tuple(re.split(r"\n\n(?=local |--)", (files("jobs.store") / "lua" / "_lib.lua").read_text().strip()))


def _words(lua: str) -> set[str]:
    return set(re.findall(r"\w+", re.sub("--.*", "", lua)))


def fields_of(flat: Iterable[bytes] | Fields) -> Fields:
    """A hash reply: RESP2 lists it flat, RESP3 as a mapping."""
    if isinstance(flat, Mapping):
        return flat
    items = list(flat)
    return dict(zip(items[::2], items[1::2], strict=True))


def is_ok(reply: bytes) -> bool:
    return reply == b"ok"


def packed_json(value: Mapping[str, Any] | None) -> bytes:
    return b"" if value is None else msgspec.json.encode(value)
