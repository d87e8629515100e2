"""Encodes job specs for Redis, as compressed JSON, and decodes them."""

import threading
from functools import lru_cache

import zstandard
from pydantic import ValidationError

from jobs.model.spec import JobSpec
from shardyard.contract.errors import UnreadableSpec

MAX_SPEC_BYTES = 16 * 1024 * 1024
#: Decoded specs that are cached, and how large each may be: polls ask for the same few again and again.
CACHED_SPECS, MAX_CACHED_BYTES = 256, 8192
#: Most specs have about a kilobyte: the default, 3, takes longer and makes them no smaller.
LEVEL = 1


class _Codec(threading.local):
    """A thread's own: two threads may not use one at the same time, and to make one takes longer than what it does."""

    def __init__(self) -> None:
        self.compress = zstandard.ZstdCompressor(level=LEVEL).compress
        self.decompress = zstandard.ZstdDecompressor().decompress


_codec = _Codec()


def encode_spec(spec: JobSpec) -> bytes:
    return compress_spec(spec.as_json)


def compress_spec(json: bytes) -> bytes:
    compressed: bytes = _codec.compress(json)
    return compressed


def decode_spec(data: bytes) -> JobSpec:
    """Raises UnreadableSpec: another version of the service wrote it, with fields that this one does not know."""
    return decode_spec_json(decompress_spec(data))


def decompress_spec(spec: bytes) -> bytes:
    """The JSON of a stored spec."""
    found: bytes = _codec.decompress(spec, max_output_size=MAX_SPEC_BYTES)
    return found


def decode_spec_json(data: bytes) -> JobSpec:
    """A stored spec, from its JSON. Others may have the same one: change nothing in it. Raises as `decode_spec`."""
    try:
        return _decode_cached(data) if len(data) <= MAX_CACHED_BYTES else JobSpec.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UnreadableSpec(
            f"this version of the service cannot read the stored spec: {where}: {first['msg']}"
        ) from error


_decode_cached = lru_cache(CACHED_SPECS)(JobSpec.model_validate_json)
