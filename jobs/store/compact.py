"""Jobs that have ended, packed: one string in Redis for all that the store has about one, a quarter of its size.

First comes what scripts must know of the job (`_HEAD`): two bytes of length, big endian, and a msgpack array of texts.
Then come all the other fields of the job, the spec and the fields of the attempts, as they were, under zstd. Its
dictionary, `compact-1.dict`, was made by `tools.train_dictionary`, and is never changed: another one gets another
number.
"""

import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from typing import Any, NamedTuple

import msgspec
import zstandard

from jobs.model.records import Fields, JobRecord
from jobs.protocol.names import job_ref
from jobs.store.call import Call, call_function, read_hash
from jobs.store.specs import MAX_SPEC_BYTES, unpacked
from shardyard.contract.errors import UnreadableSpec

#: Grows when packed jobs are laid out in another way. `_lib.lua` has the same order.
LAYOUT = "1"
_HEAD = (b"version", b"state", b"attempt", b"pool", b"name", b"labels", b"bundle", b"idem")
_LEVEL = 9
#: Specs are bounded, and so is what ranks say of their errors.
_MAX_BYTES = 2 * MAX_SPEC_BYTES
#: Jobs that one call hands out to be packed. Redis answers nobody else meanwhile: 2 ms.
PACKED_AT_ONCE = 50

_Rest = tuple[dict[bytes, bytes], bytes, tuple[dict[bytes, bytes], ...]]
_encoder = msgspec.msgpack.Encoder()
_head_decoder = msgspec.msgpack.Decoder(tuple[str, ...])
_rest_decoder = msgspec.msgpack.Decoder(_Rest)
_job_decoder = msgspec.msgpack.Decoder(tuple[dict[bytes, bytes], msgspec.Raw, msgspec.Raw])
_LENGTH = struct.Struct(">H")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that the store has about a finished job, as it has it."""

    job: Fields
    spec: bytes  # JSON
    attempts: tuple[Fields, ...]

    @property
    def version(self) -> int:
        return int(self.job[b"version"])


def pack(found: Snapshot) -> bytes:
    head = _encoder.encode((LAYOUT, *(found.job.get(name, b"").decode() for name in _HEAD)))
    return _LENGTH.pack(len(head)) + head + _codec.compress(plain(found))


def plain(found: Snapshot) -> bytes:
    """What of a job is compressed."""
    rest = {name: value for name, value in found.job.items() if name not in _HEAD}
    return _encoder.encode((rest, found.spec, found.attempts))


def unpack(data: bytes) -> Snapshot:
    """Raises UnreadableSpec: another version of the service packed it, in a way that this one does not know."""
    head, rest = _parts(data)
    job, spec, attempts = _rest_decoder.decode(rest)
    return Snapshot(_with_head(job, head), spec, attempts)


def _parts(data: bytes) -> tuple[list[str], bytes]:
    """Values of `_HEAD`, and `plain`."""
    end = _LENGTH.size + _LENGTH.unpack_from(data)[0]
    layout, *head = _head_decoder.decode(data[_LENGTH.size : end])
    if layout != LAYOUT:
        raise UnreadableSpec(f"this version of the service cannot read packed jobs of layout {layout}")
    return head, _codec.decompress(data[end:], max_output_size=_MAX_BYTES)


def _with_head(job: dict[bytes, bytes], head: list[str]) -> dict[bytes, bytes]:
    job.update(zip(_HEAD, map(str.encode, head), strict=True))
    return job


class PackedJob(NamedTuple):
    """A finished job in a list, which shows less of it than there is, and has often shown it before.

    Calls raise UnreadableSpec, as `unpack` does.
    """

    tenant: str
    id: str
    packed: bytes

    def parts(self) -> tuple[list[str], dict[bytes, bytes]]:
        """Its version, state, attempt, pool, name, labels, bundle and Idempotency-Key, and its other fields."""
        head, rest = _parts(self.packed)
        return head, _job_decoder.decode(rest)[0]

    def record(self) -> JobRecord:
        head, job = self.parts()
        return JobRecord.read(self.tenant, self.id, _with_head(job, head))


@cache
def _dictionary() -> zstandard.ZstdCompressionDict:
    return zstandard.ZstdCompressionDict((files("jobs.store") / "compact-1.dict").read_bytes())


class _Codec(threading.local):
    """A thread's own: two threads may not use one at the same time."""

    @cached_property
    def compress(self) -> Callable[[bytes], bytes]:
        return zstandard.ZstdCompressor(level=_LEVEL, dict_data=_dictionary()).compress

    @cached_property
    def decompress(self) -> Callable[..., bytes]:
        return zstandard.ZstdDecompressor(dict_data=_dictionary()).decompress


_codec = _Codec()


# -- calls ---------------------------------------------------------------------------------------------


def snapshot_of(reply: Sequence[Any]) -> Snapshot | None:
    """Of a reply that has a job packed, or as its fields, its spec and its attempts; None where there is nothing."""
    if not reply:
        return None
    if len(reply) == 1:
        return unpack(reply[0])
    job, spec, *attempts = reply
    return Snapshot(read_hash(job), unpacked(spec), tuple(read_hash(attempt) for attempt in attempts))


@dataclass(frozen=True, slots=True)
class Unpacked:
    """Finished jobs that are not packed. `position` is what the next call begins after; `more`: it would find some."""

    position: int
    more: bool
    jobs: tuple[tuple[str, Snapshot], ...]  # by their refs


def find_unpacked(after: int, rest_seconds: float, upgrade_seconds: float) -> Call[Unpacked]:
    """Jobs that ended `rest_seconds` ago or earlier and are not packed, of those that ended after a position
    (microseconds since the epoch). None for `upgrade_seconds` after the first call on a store that an earlier version
    has used: its APIs cannot read packed jobs."""

    def decode(reply: Sequence[Any]) -> Unpacked:
        position, more, *rows = reply
        return Unpacked(int(position), more == 1, tuple(_found(rows)))

    return call_function(
        "find_unpacked",
        decode,
        after_us=after,
        rest_us=int(rest_seconds * 1e6),
        upgrade_us=int(upgrade_seconds * 1e6),
        limit=PACKED_AT_ONCE,
    )


def _found(rows: Sequence[Any]) -> Iterator[tuple[str, Snapshot]]:
    for ref, *reply in rows:
        found = snapshot_of(reply)
        if found is not None:
            yield ref.decode(), found


def put_packed(jobs: Sequence[tuple[str, int, bytes]]) -> Call[int]:
    """Put packed jobs, as (ref, version, `pack`), in place of those that are still of that version; how many were."""
    return call_function("put_packed", int, *(part for job in jobs for part in job))


def snapshot(tenant: str, job: str) -> Call[Snapshot | None]:
    """A finished job; None when it has not ended, or is not there."""
    return call_function("snapshot", snapshot_of, ref=job_ref(tenant, job))
