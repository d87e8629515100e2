"""How a job spec lies in Redis: JSON, compressed."""

import zstandard
from pydantic import ValidationError

from jobs.errors import (
    UnreadableSpec,
)
from jobs.spec import JobSpec

MAX_SPEC_BYTES = 16 * 1024 * 1024


def pack_spec(spec: JobSpec) -> bytes:
    """What is not set is left out, so that a worker of an earlier version reads every spec but those that ask for what
    it has not."""
    return zstandard.compress(spec.model_dump_json(exclude_none=True).encode())


def unpack_spec(data: bytes) -> JobSpec:
    """Raises UnreadableSpec: another version of the service wrote it, with fields that this one does not know."""
    return read_spec(unpacked(data))


def unpacked(spec: bytes) -> bytes:
    """The JSON of a stored spec."""
    found: bytes = zstandard.decompress(spec, max_output_size=MAX_SPEC_BYTES)
    return found


def read_spec(data: bytes) -> JobSpec:
    """A stored spec, from its JSON. Raises as `unpack_spec` does."""
    try:
        return JobSpec.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UnreadableSpec(
            f"this version of the service cannot read the stored spec: {where}: {first['msg']}"
        ) from error
