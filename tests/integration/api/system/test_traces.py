"""Traces of jobs that are submitted over HTTP."""

import asyncio

import pytest

from api.background.traces.exporter import JobTraceExporter
from jobs import store
from jobs.model.settings import Settings
from jobs.model.trace_context import JobTrace, job_span
from tests.integration.api.conftest import Api, running
from tests.support.samples.job_records import a_spec_body
from tests.support.servers.trace_receiver import receiving_traces

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def trace_of(api: Api, job: str) -> JobTrace:
    return api.control.run(store.read_job("default", job)).record.trace


async def test_without_a_collector_a_job_keeps_the_span_of_its_caller_and_no_other(api: Api) -> None:
    api.node()
    headers = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
    job = await api.submit(headers=headers)
    assert trace_of(api, job) == JobTrace(headers["traceparent"])
    answer = await api.client.post(f"/v1/jobs/{job}/resubmit", headers=headers)
    assert trace_of(api, answer.json()["id"]) == JobTrace(headers["traceparent"])
    assert trace_of(api, await api.submit()) == JobTrace()


async def test_a_header_that_is_not_valid_or_comes_twice_is_ignored(api: Api) -> None:
    api.node()
    good, other = f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN[::-1]}-01"
    hostile = ["", "00", good.upper(), good + "\t;", "00-" + "0" * 32 + f"-{SPAN}-01", "x" * 8000]
    for headers in [*([("traceparent", text)] for text in hostile), [("traceparent", good), ("traceparent", other)]]:
        answer = await api.client.post("/v1/jobs", json=a_spec_body(), headers=headers)
        assert answer.status_code == 201, headers
        assert trace_of(api, answer.json()["id"]) == JobTrace()


async def test_an_api_with_a_collector_sends_what_ended_since_it_was_first_there(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, swept = asyncio.get_running_loop(), asyncio.Event()
    send_ended = JobTraceExporter.send_ended

    def send_and_tell(self: JobTraceExporter) -> bool:
        more = send_ended(self)
        loop.call_soon_threadsafe(swept.set)
        return more

    monkeypatch.setattr(JobTraceExporter, "send_ended", send_and_tell)
    with receiving_traces() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{receiver.url}/here")
        monkeypatch.setenv("OTEL_SERVICE_NAME", "training")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "60")
        async with running(settings) as api, asyncio.timeout(60):
            await swept.wait()  # from now on
            api.node()
            job = await api.submit(headers={"traceparent": f"00-{TRACE}-{SPAN}-01"})
            own = await api.submit()
            assert trace_of(api, job).caller_span == SPAN
            assert trace_of(api, own).traceparent == job_span(f"default/{own}").encode()
            for each in (job, own):
                answer = await api.client.post(f"/v1/jobs/{each}/cancel")
                assert answer.status_code == 202
        swept.clear()
        async with running(settings), asyncio.timeout(60):
            await swept.wait()  # its first sweep sends at once
        roots = {span.trace_id.hex(): span for span in receiver.named("job")}
        assert roots.keys() == {TRACE, own.replace("-", "")}
        assert roots[TRACE].parent_span_id.hex() == SPAN
        assert {path for path, _ in receiver.requests} == {"/here"}
        assert receiver.services == {"training"}
