"""Gathers all that a service has written, to look for what must be nowhere."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import redis
import zstandard

#: Every frame of zstd begins with this.
MAGIC = b"\x28\xb5\x2f\xfd"


def read_everything(directory: Path, *servers: redis.Redis) -> bytes:
    """Names and contents of all files below a directory, and keys and values of Redis servers; what is compressed, also
    as it was before."""
    return b"\n".join([*_files(directory), *(part for server in servers for part in _keys(server))])


def _files(directory: Path) -> Iterator[bytes]:
    for path in directory.rglob("*"):
        yield str(path).encode()
        if path.is_file():
            yield from _unpack(path.read_bytes())


def _keys(server: redis.Redis) -> Iterator[bytes]:
    client: Any = server
    for key in client.keys("*"):
        yield key
        kind = client.type(key)
        if kind == b"string":
            yield from _unpack(client.get(key))
        elif kind == b"hash":
            for field, value in client.hgetall(key).items():
                yield from (field, *_unpack(value))
        elif kind == b"stream":
            for _, fields in client.xrange(key):
                yield from (part for value in fields.values() for part in _unpack(value))
        else:
            yield client.dump(key)


def _unpack(body: bytes) -> Iterator[bytes]:
    yield body
    at = body.find(MAGIC)
    while at >= 0:
        with suppress(zstandard.ZstdError):
            yield zstandard.ZstdDecompressor().decompressobj().decompress(body[at:])
        at = body.find(MAGIC, at + 1)
