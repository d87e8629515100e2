"""Which trace a job belongs to, in the form of the W3C's Trace Context: `00-<trace>-<span>-<flags>`, in hex digits.

A job has a span that begins with its submission, and is the parent of all others of the job. The ids are made of the
job's own, so whoever sends its spans, and however often, sends the same ones.
"""

import hashlib
import re
from dataclasses import dataclass, replace

SAMPLED = 0x01
_FLAGS_THAT_ARE_KEPT = 0x03  # whether it is sampled, and whether its id is random; the others may not be passed on
_HEADER = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-[!-~]*)?")
#: Of a header: later versions of the standard may have more in it.
MAX_HEADER_LENGTH = 512


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A span of a trace."""

    trace_id: str
    span_id: str
    flags: int = SAMPLED

    @property
    def is_sampled(self) -> bool:
        return bool(self.flags & SAMPLED)

    def encode(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{self.flags:02x}"


@dataclass(frozen=True, slots=True)
class JobTrace:
    """What is stored with a job. `traceparent` is for its ranks: the job's own span where traces are on, else what the
    caller has sent; "" without both. `caller_span` is the span of the caller where `traceparent` is not."""

    traceparent: str = ""
    caller_span: str = ""


def parse_traceparent(header: str) -> TraceContext | None:
    """None for what is none: the standard has it ignored."""
    found = _HEADER.fullmatch(header) if len(header) <= MAX_HEADER_LENGTH else None
    if found is None or (found[1] == "00" and found[5] is not None):
        return None
    return TraceContext(found[2], found[3], int(found[4], 16) & _FLAGS_THAT_ARE_KEPT)


def span_id(job_ref: str, name: str) -> str:
    return hashlib.sha256(f"{job_ref} {name}".encode()).hexdigest()[:16]


def job_span(job_ref: str, caller: TraceContext | None = None) -> TraceContext:
    """The span of a job: in the caller's trace, or in one of its own, whose id is the job's without the dashes."""
    own = span_id(job_ref, "job")
    if caller is not None:
        return replace(caller, span_id=own)
    job = job_ref.partition("/")[2].replace("-", "")
    is_id = re.fullmatch("[0-9a-f]{32}", job) is not None
    return TraceContext(job if is_id else hashlib.sha256(job_ref.encode()).hexdigest()[:32], own)


def trace_job(job_ref: str, caller: TraceContext | None, *, traces_are_on: bool) -> JobTrace:
    """What is stored with a job that is submitted. Where no spans are sent, the caller's context goes on unchanged."""
    if not traces_are_on:
        return JobTrace() if caller is None else JobTrace(caller.encode())
    return JobTrace(job_span(job_ref, caller).encode(), "" if caller is None else caller.span_id)


def read_job_trace(job_ref: str, stored: JobTrace) -> tuple[TraceContext, TraceContext | None]:
    """The span of a job, and the caller's that it is below, of what was stored with it."""
    found = parse_traceparent(stored.traceparent)
    if found is None:
        return job_span(job_ref), None
    caller_span = stored.caller_span if found.span_id == span_id(job_ref, "job") else found.span_id
    return job_span(job_ref, found), replace(found, span_id=caller_span) if caller_span else None
