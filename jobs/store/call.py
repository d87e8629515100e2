"""A call on the control Redis, as a value: one command, and how to read its reply."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from jobs.model.records import Fields
from jobs.store.function_library import function_library
from shardyard.contract.errors import NotFound

T = TypeVar("T")
Word = str | bytes | int


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One command, as it is sent. `decode` turns the raw reply into `T`, or raises the error that it stands for.
    `writes`: it may change something."""

    command: tuple[Word, ...]
    decode: Callable[[Any], T]
    writes: bool = False


def call_function(name: str, decode: Callable[[Any], T], /, *more: Word, **arguments: Word) -> Call[T]:
    """A call of the Lua function `name`, by the names that its file gives to its arguments. `more` comes after those.

    Raises:
        TypeError: the function has arguments of other names.
    """
    function = function_library().functions[name]
    if arguments.keys() != function.argument_set:
        raise TypeError(f"{name} takes {', '.join(function.arguments)}, not {', '.join(arguments)}")
    words = (arguments[argument] for argument in function.arguments)
    return Call(("FCALL", function.registered_name, 0, *words, *more), decode, writes=function.writes)


def read_hash(reply: Iterable[bytes] | Fields) -> Fields:
    """The fields of a hash: RESP2 lists them flat, RESP3 as a mapping."""
    if isinstance(reply, Mapping):
        return reply
    items = list(reply)
    return dict(zip(items[::2], items[1::2], strict=True))


def is_ok(reply: bytes) -> bool:
    return reply == b"ok"


def raise_if_missing(error: NotFound) -> Callable[[bytes], None]:
    """A decoder for calls that have nothing to answer but that there is no such thing."""

    def decode(reply: bytes) -> None:
        if reply == b"missing":
            raise error

    return decode


def ignore_reply(_: Any) -> None:
    """For calls that have nothing to answer."""


def encode_json(value: Mapping[str, Any] | Mapping[int, Any] | None) -> bytes:
    return b"" if value is None else msgspec.json.encode(value)
