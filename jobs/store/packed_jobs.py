"""Converts finished jobs that earlier versions packed, one compressed string a job, into the keys that all jobs have.

A packed job is the string `sy:packed:<ref>`: two bytes of length, big endian; a msgpack array of texts, the number of
the layout and the fields in `_HEAD`; then, under zstd with the dictionary `packed_jobs.dict`, the other fields, the
spec as JSON, and the fields of each attempt.

APIs of those versions read both forms, so they may run during the conversion. They pack jobs that have ended, but not
within a quarter of an hour after the time in `sy:packs`, which they set when it is missing. Each call of the
converter sets it again.
"""

import struct
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from itertools import islice
from typing import Any

import msgspec
import structlog
import zstandard

from jobs.store.call import Call, Word, call_function
from jobs.store.client import RedisStore, redis_errors
from jobs.store.specs import MAX_SPEC_BYTES, compress_spec

log = structlog.get_logger(__name__)

#: Jobs that are read, and written, in one exchange.
BATCH = 500
_PACKED, _HOLD = "sy:packed:", "sy:packs"
_LAYOUT = "1"
_HEAD = (b"version", b"state", b"attempt", b"pool", b"name", b"labels", b"bundle", b"idem")
_LENGTH = struct.Struct(">H")
_Hash = dict[bytes, bytes]
_head_decoder = msgspec.msgpack.Decoder(tuple[str, ...])
_body_decoder = msgspec.msgpack.Decoder(tuple[_Hash, bytes, tuple[_Hash, ...]])


class PackedJobConverter:
    """`convert` is called when an API starts, and again every few minutes: an API of an earlier version may still pack
    jobs beside it, or may have packed some during the first call."""

    def __init__(self, control: RedisStore) -> None:
        self._control = control
        self._called = False

    def convert(self) -> int:
        """Convert all packed jobs, and return how many there were. Where no earlier version has packed jobs, this is
        two short commands.

        Raises:
            Unavailable: the control Redis does not answer.
        """
        first, self._called = not self._called, True
        with redis_errors():
            if not self._hold():
                return 0
            found = sum(self._convert(refs) for refs in self._batches())
            if not found and not first:
                self._control.client.delete(_HOLD)
        if found:
            log.info("packed_jobs_converted", jobs=found)
        return found

    def _hold(self) -> bool:
        """Keep APIs of earlier versions from packing jobs. False where none of them has used the store."""
        seconds, microseconds = self._control.client.time()
        return bool(self._control.client.set(_HOLD, seconds * 1_000_000 + microseconds, xx=True))

    def _batches(self) -> Iterator[list[str]]:
        keys = self._control.client.scan_iter(match=f"{_PACKED}*", count=1000)
        refs = (key.decode().removeprefix(_PACKED) for key in keys)
        while batch := list(islice(refs, BATCH)):
            yield batch

    def _convert(self, refs: list[str]) -> int:
        packed: list[Any] = self._control.client.mget([f"{_PACKED}{ref}" for ref in refs])
        calls = [_put_unpacked(ref, data) for ref, data in zip(refs, packed, strict=True) if data]
        return sum(self._control.run_all([call for call in calls if call is not None]))


def _put_unpacked(ref: str, packed: bytes) -> Call[bool] | None:
    """Replaces a packed job by keys of its own; False: it was not there any more. None where it cannot be read."""
    try:
        job, spec, attempts = _unpack(packed)
    except (ValueError, struct.error, zstandard.ZstdError) as error:
        log.error("packed_job_not_converted", job=ref, error=str(error))
        return None
    hashes: list[Word] = []
    for fields in (job, *attempts):
        hashes.append(len(fields))
        for name, value in fields.items():
            hashes += (name, value)
    return call_function("unpack_job", bool, *hashes, ref=ref, spec=compress_spec(spec))


def _unpack(packed: bytes) -> tuple[_Hash, bytes, tuple[_Hash, ...]]:
    """Fields of the job, its spec as JSON, and the fields of its attempts.

    Raises:
        ValueError, struct.error, ZstdError: it is damaged, or laid out in another way.
    """
    end = _LENGTH.size + _LENGTH.unpack_from(packed)[0]
    layout, *head = _head_decoder.decode(packed[_LENGTH.size : end])
    if layout != _LAYOUT:
        raise ValueError(f"its layout is {layout}, and only {_LAYOUT} is known")
    body = zstandard.ZstdDecompressor(dict_data=_dictionary()).decompress(
        packed[end:], max_output_size=2 * MAX_SPEC_BYTES
    )
    job, spec, attempts = _body_decoder.decode(body)
    return job | dict(zip(_HEAD, map(str.encode, head), strict=True)), spec, attempts


@cache
def _dictionary() -> zstandard.ZstdCompressionDict:
    return zstandard.ZstdCompressionDict((files("jobs.store") / "packed_jobs.dict").read_bytes())
