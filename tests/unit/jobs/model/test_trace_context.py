"""Headers of callers, and the ids of a job's spans."""

import pytest

from jobs.model.trace_context import JobTrace, TraceContext, job_span, parse_traceparent, read_job_trace, trace_job

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
REF = "default/01a1faf7-950c-74f3-af12-cc10a45948be"
OTHER = "default/01a1faf7-950c-74f3-af12-cc10a45948bf"


@pytest.mark.parametrize(
    ("header", "flags"),
    [
        (f"00-{TRACE}-{SPAN}-01", 1),
        (f"00-{TRACE}-{SPAN}-00", 0),
        (f"00-{TRACE}-{SPAN}-ff", 3),
        (f"cc-{TRACE}-{SPAN}-01", 1),
        (f"cc-{TRACE}-{SPAN}-01-what-a-later-version-has", 1),
    ],
)
def test_a_valid_header_names_a_span(header: str, flags: int) -> None:
    assert parse_traceparent(header) == TraceContext(TRACE, SPAN, flags)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "00",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-01\n",
        f"00-{TRACE}-{SPAN}-0",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}g-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01, 00-{TRACE}-{SPAN}-01",
        f"cc-{TRACE}-{SPAN}-01.more",
        f"cc-{TRACE}-{SPAN}-01-{'x' * 1000}",
        f"00-{TRACE}-{SPAN}-\u0660\u0661",
    ],
)
def test_any_other_header_names_none(header: str) -> None:
    assert parse_traceparent(header) is None


def test_the_trace_of_a_job_has_the_jobs_id() -> None:
    assert job_span(REF).trace_id == REF.partition("/")[2].replace("-", "")
    assert parse_traceparent(job_span("default/any-name").encode()) == job_span("default/any-name")
    assert job_span(REF).span_id != job_span(OTHER).span_id


def test_a_job_of_a_caller_is_below_the_callers_span() -> None:
    caller = TraceContext(TRACE, SPAN, 0)
    stored = trace_job(REF, caller, traces_are_on=True)
    assert stored == JobTrace(job_span(REF, caller).encode(), SPAN)
    assert read_job_trace(REF, stored) == (job_span(REF, caller), caller)
    assert not job_span(REF, caller).is_sampled


def test_a_job_that_was_submitted_while_traces_were_off_passes_the_callers_span_on_and_is_below_it_later() -> None:
    caller = TraceContext(TRACE, SPAN)
    stored = trace_job(REF, caller, traces_are_on=False)
    assert stored == JobTrace(caller.encode())
    assert read_job_trace(REF, stored) == (job_span(REF, caller), caller)


def test_without_a_caller_a_job_has_a_trace_of_its_own() -> None:
    assert trace_job(REF, None, traces_are_on=False) == JobTrace()
    assert trace_job(REF, None, traces_are_on=True) == JobTrace(job_span(REF).encode())
    for stored in (JobTrace(), JobTrace(job_span(REF).encode())):
        assert read_job_trace(REF, stored) == (job_span(REF), None)
