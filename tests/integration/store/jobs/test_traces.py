"""The spans of jobs that have ended, with a real store and a collector that decodes what it is sent."""

import fcntl
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from structlog.testing import capture_logs

from api.background.traces import exporter
from api.background.traces.collector import TraceCollector
from api.background.traces.exporter import JobTraceExporter
from jobs import store
from jobs.files import paths
from jobs.model.state import StateReason
from jobs.model.trace_context import TraceContext, job_span, trace_job
from jobs.protocol.names import job_ref
from jobs.store import AttemptId
from tests.integration.store.world import TENANT, World, a_spec
from tests.support.servers.trace_receiver import TraceReceiver, attributes_of, receiving_traces

pytestmark = pytest.mark.integration

CALLER = TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[TraceReceiver]:
    with receiving_traces() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-api-key=of-the-test")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "60")
        yield receiver


class Sender:
    """An exporter with a clock of its own, which has begun before any job ended."""

    def __init__(self, world: World, storage: Path) -> None:
        self.time = 0.0
        self.collector = TraceCollector()
        self.exporter = JobTraceExporter(world.store, storage, self.collector, lambda: self.time)
        self.send_all()

    def send_all(self) -> None:
        while self.exporter.send_ended():
            pass


@pytest.fixture
def sender(world: World, receiver: TraceReceiver, tmp_path: Path) -> Iterator[Sender]:
    sender = Sender(world, tmp_path)
    yield sender
    sender.collector.close()


def finished(world: World) -> str:
    attempt = world.running()
    assert world.mark(attempt, "first_step")
    world.finish_and_release(attempt)
    return attempt.job


def times_of(span: Span) -> tuple[int, int]:
    """In microseconds, as the store has them."""
    return span.start_time_unix_nano // 1000, span.end_time_unix_nano // 1000


def tree(spans: list[Span]) -> dict[str, list[str]]:
    """Names of the spans below each, in the order of their times."""
    names = {span.span_id: span.name for span in spans}
    below: dict[str, list[str]] = {}
    for span in sorted(spans, key=times_of):
        below.setdefault(names.get(span.parent_span_id, ""), []).append(span.name)
    return below


def test_a_job_that_succeeded_has_a_span_of_each_part_of_its_life(
    world: World, receiver: TraceReceiver, sender: Sender
) -> None:
    world.node()
    job = finished(world)
    sender.send_all()
    record, (attempt,) = world.job(job), world.history(job)
    assert tree(receiver.taken) == {
        "": ["job"],
        "job": ["queued", "attempt"],
        "attempt": ["claim", "start", "first step", "training"],
    }
    assert {span.name: times_of(span) for span in receiver.taken} == {
        "job": (record.created, record.finished),
        "queued": (record.created, attempt.created),
        "attempt": (attempt.created, attempt.ended),
        "claim": (attempt.created, attempt.claimed),
        "start": (attempt.claimed, attempt.started),
        "first step": (attempt.started, attempt.first_step),
        "training": (attempt.first_step, attempt.ended),
    }
    assert {span.trace_id.hex() for span in receiver.taken} == {job_span(job_ref(TENANT, job)).trace_id}
    (root,) = receiver.named("job")
    described = attributes_of(root)
    assert described["shardyard.job.id"] == job
    assert (described["shardyard.state"], described["shardyard.reason"]) == ("succeeded", "completed")
    assert (described["shardyard.tenant"], described["shardyard.devices"]) == (TENANT, 1)
    assert root.status.code == Status.STATUS_CODE_UNSET
    assert attributes_of(receiver.named("attempt")[0])["shardyard.placement"] == ["n1/0"]
    assert receiver.services == {"shardyard"}
    ((path, headers),) = receiver.requests
    assert (path, headers["x-api-key"]) == ("/v1/traces", "of-the-test")


def test_a_job_that_was_tried_again_has_a_wait_and_an_attempt_for_each_try(
    world: World, receiver: TraceReceiver, sender: Sender
) -> None:
    world.node()
    second = world.again(world.running(retries=1), StateReason.RANK_FAILED)
    assert world.finish(second, StateReason.CODE_ERROR)
    assert world.release(second) > 0
    sender.send_all()
    first_try, second_try = world.history(second.job)
    assert tree(receiver.taken)["job"] == ["queued", "attempt", "queued", "attempt"]
    waits = sorted(times_of(span) for span in receiver.named("queued"))
    assert waits[1] == (first_try.ended, second_try.created)
    attempts = sorted(receiver.named("attempt"), key=times_of)
    assert [attributes_of(span)["shardyard.reason"] for span in attempts] == ["rank_failed", "code_error"]
    assert [span.status.code for span in attempts] == [Status.STATUS_CODE_ERROR] * 2
    (root,) = receiver.named("job")
    assert (root.status.code, root.status.message) == (Status.STATUS_CODE_ERROR, "code_error")
    # The first had no first step, and the second not even a rank: the part in which each ended lasts until its end.
    parts = [[part.name for part in receiver.taken if part.parent_span_id == span.span_id] for span in attempts]
    assert parts == [["claim", "start", "first step"], ["claim", "start"]]


def test_a_job_that_was_cancelled_while_it_waited_has_a_wait_alone(
    world: World, receiver: TraceReceiver, sender: Sender
) -> None:
    world.node()
    job = world.submit()
    world.run(store.cancel(TENANT, job))
    sender.send_all()
    assert tree(receiver.taken) == {"": ["job"], "job": ["queued"]}
    record = world.job(job)
    assert times_of(receiver.named("queued")[0]) == (record.created, record.finished)
    assert attributes_of(receiver.named("job")[0])["shardyard.state"] == "cancelled"


def test_a_job_of_a_caller_is_in_the_callers_trace(world: World, receiver: TraceReceiver, sender: Sender) -> None:
    world.node()
    trace = trace_job("default/a", CALLER, traces_are_on=True)
    world.run(store.submit(TENANT, "a", a_spec(), trace=trace))
    assert world.job("a").trace == trace
    world.run(store.cancel(TENANT, "a"))
    unsampled = trace_job("default/b", TraceContext(CALLER.trace_id, CALLER.span_id, 0), traces_are_on=True)
    world.run(store.submit(TENANT, "b", a_spec(), trace=unsampled))
    world.run(store.cancel(TENANT, "b"))
    sender.send_all()
    assert {span.trace_id.hex() for span in receiver.taken} == {CALLER.trace_id}
    (root,) = receiver.named("job")
    assert root.parent_span_id.hex() == CALLER.span_id
    assert trace.traceparent == f"00-{CALLER.trace_id}-{root.span_id.hex()}-01"


def test_what_ended_while_the_collector_was_away_is_sent_when_it_is_back(
    world: World, receiver: TraceReceiver, sender: Sender
) -> None:
    world.node()
    jobs = {finished(world)}
    receiver.status = 500
    with capture_logs() as logs:
        sender.send_all()
        asked = len(receiver.requests)
        jobs.add(finished(world))
        receiver.status = 200
        sender.send_all()
        assert len(receiver.requests) == asked  # it rests
    assert [line["event"] for line in logs] == ["traces_not_sent"]
    assert "500" in logs[0]["why"]
    sender.time += exporter.FIRST_PAUSE_SECONDS
    sender.send_all()
    sender.send_all()
    assert {attributes_of(span)["shardyard.job.id"] for span in receiver.named("job")} == jobs
    assert len(receiver.taken) == len(receiver.by_id) == 14


def test_why_a_collector_cannot_be_reached_is_said_without_its_address(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        monkeypatch.setenv(
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"http://127.0.0.1:{closed.getsockname()[1]}/?token=s3cret"
        )
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")
    world.node()
    sender = Sender(world, tmp_path)
    finished(world)
    with capture_logs() as logs:
        sender.send_all()
    sender.collector.close()
    assert [line["event"] for line in logs] == ["traces_not_sent"]
    assert logs[0]["why"].startswith("Connect")
    assert "s3cret" not in str(logs)


def test_a_process_that_is_killed_before_it_notes_what_it_sent_sends_the_same_spans_again(
    world: World, receiver: TraceReceiver, sender: Sender, tmp_path: Path
) -> None:
    world.node()
    position = paths.traces_dir(tmp_path) / "sent.json"
    before = position.read_bytes()
    finished(world)
    sender.send_all()
    position.write_bytes(before)
    Sender(world, tmp_path).collector.close()
    assert len(receiver.taken) == 14
    assert len(receiver.by_id) == 7


def test_what_the_collector_refuses_for_good_does_not_hold_up_the_rest(
    world: World, receiver: TraceReceiver, sender: Sender
) -> None:
    world.node()
    finished(world)
    receiver.status = 400
    with capture_logs() as logs:
        sender.send_all()
    assert [line["event"] for line in logs] == ["traces_refused"]
    receiver.status = 200
    job = finished(world)
    sender.send_all()
    assert [attributes_of(span)["shardyard.job.id"] for span in receiver.named("job")] == [job]


def test_many_jobs_go_in_requests_of_bounded_size_and_each_once(
    world: World, receiver: TraceReceiver, sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "MAX_SPANS", 5)
    monkeypatch.setattr(exporter, "MAX_JOBS", 4)
    world.node()
    jobs = {world.submit() for _ in range(9)}
    for job in jobs:
        world.run(store.cancel(TENANT, job))
    now = world.run(store.list_ended(0, "", 0)).now
    world.redis.zadd("sy:finished", {f"{TENANT}/{job}": now for job in jobs})  # all at once
    sender.send_all()
    assert {attributes_of(span)["shardyard.job.id"] for span in receiver.named("job")} == jobs
    assert len(receiver.taken) == len(receiver.by_id) == 18
    assert len(receiver.requests) >= 5


def test_what_ends_after_the_clock_was_set_back_is_sent(
    world: World, receiver: TraceReceiver, sender: Sender, tmp_path: Path
) -> None:
    world.node()
    position = paths.traces_dir(tmp_path) / "sent.json"
    position.write_text('{"finished":9000000000000000,"ref":""}')
    job = finished(world)
    sender.send_all()
    assert [attributes_of(span)["shardyard.job.id"] for span in receiver.named("job")] == [job]
    assert "9000000000000000" not in position.read_text()


def test_what_ended_before_traces_were_on_has_none(world: World, receiver: TraceReceiver, tmp_path: Path) -> None:
    world.node()
    finished(world)
    sender = Sender(world, tmp_path)
    job = finished(world)
    sender.send_all()
    sender.collector.close()
    assert [attributes_of(span)["shardyard.job.id"] for span in receiver.named("job")] == [job]


def test_one_process_sends_at_a_time(world: World, receiver: TraceReceiver, sender: Sender, tmp_path: Path) -> None:
    world.node()
    finished(world)
    with (paths.traces_dir(tmp_path) / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sender.send_all()
        assert receiver.requests == []
    sender.send_all()
    assert len(receiver.taken) == 7


def test_a_job_that_is_gone_is_passed_over(world: World, receiver: TraceReceiver, sender: Sender) -> None:
    world.node()
    gone, job = finished(world), finished(world)
    world.run(store.delete_job(TENANT, gone))
    sender.send_all()
    assert [attributes_of(span)["shardyard.job.id"] for span in receiver.named("job")] == [job]


def test_the_attempts_of_a_job_that_moved_without_end_are_the_newest_ones(
    world: World, receiver: TraceReceiver, sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.background.traces.job_spans.MAX_ATTEMPTS", 2)
    world.node()
    attempt: AttemptId = world.running()
    for _ in range(3):
        attempt = world.again(attempt, StateReason.DRAINED)
    world.finish_and_release(attempt)
    sender.send_all()
    numbers = sorted(int(str(attributes_of(span)["shardyard.attempt"])) for span in receiver.named("attempt"))
    assert numbers == [3, 4]
    waits = sorted(times_of(span) for span in receiver.named("queued"))
    assert waits[0] == (world.history(attempt.job)[1].ended, world.history(attempt.job)[2].created)
