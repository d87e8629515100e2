"""The state of a recipe's report, which a checkpoint carries from one attempt to the next.

It is taken at a checkpoint barrier: every rank has sent all its steps up to one, and none beyond. So no step waits for
other ranks, and what the ranks of the next attempt send adds up with it as if there had been one attempt. What belongs
to the processes themselves is left out, since they send it again: their splits, which they number from 0, their
devices, how they ended, and which shard line was printed last, since each attempt has a log of its own.

The bytes are msgpack, typed all the way down; nothing in them names code.
"""

from typing import Final

import msgspec

from jobs.splits.device_sums import Sums
from workers.supervisor.report.patterns import PatternCount
from workers.supervisor.report.step_joiner import Key

#: A state of another version is not read. Grows with every change of what is below, or of what it is made of.
VERSION: Final = 3
#: 1,024 devices with 256 splits of long shapes need some 20 MiB.
MAX_BYTES: Final = 64 * 1024 * 1024


class ReportIdentity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which report it is: a state is loaded only for the same job, with the same ranks, devices and counted phase."""

    job_id: str
    strategy: str
    ranks: int
    devices: int
    phase: str


class AggregatorState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    about: ReportIdentity
    attempt: int
    step: int  # of the main phase: how many there were
    gone: Key  # the last step that was released to be counted
    forced: int
    late: int
    measures: dict[str, Sums]
    patterns: list[PatternCount]
    other: PatternCount
    absent_from: dict[int, int]
    notes: dict[str, list[str]]
    malformed: int
    uncounted: int
    crowded: bool
    walls_ms: dict[int, float]  # by rank: how long its program had run


class _Versioned(msgspec.Struct, frozen=True):
    version: int


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AggregatorState)
_version_decoder = msgspec.msgpack.Decoder(_Versioned)


def encode_state(state: AggregatorState) -> bytes:
    """Raises:
    ValueError: a rank has sent numbers that no report can hold.
    """
    try:
        return _encoder.encode(state)
    except OverflowError as error:
        raise ValueError(f"the report's state has a number beyond 64 bits: {error}") from error


def decode_state(data: bytes, about: ReportIdentity) -> AggregatorState:
    """Read the state of a report like `about`.

    Raises:
        ValueError: these are no such bytes, or of another version, or of another report.
    """
    if len(data) > MAX_BYTES:
        raise ValueError(f"a report's state of {len(data):,} bytes is over the limit of {MAX_BYTES:,}")
    try:
        version = _version_decoder.decode(data).version
        if version != VERSION:
            raise ValueError(f"a report's state of version {version} cannot be read; this is version {VERSION}")
        state = _decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"these bytes are not a report's state: {error}") from error
    if state.about != about:
        raise ValueError(f"the state is of a different report: {state.about} instead of {about}")
    if any(count.first is None or len(count.first.rows) != about.devices for count in state.patterns):
        raise ValueError(f"a pattern of the report's state is not one of {about.devices} devices")
    if any(not sums.fits(about.devices) for sums in state.measures.values()):
        raise ValueError(f"the measures of the report's state are not those of {about.devices} devices")
    return state
