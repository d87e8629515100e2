"""What a real service cannot be made to answer: faults of proxies, lost connections, streams cut anywhere."""

import asyncio
import inspect
import io
import json
import re
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_type_hints

import httpx
import msgspec
import pytest

from shardyard import AsyncClient, AsyncJob, Client, Job, errors
from shardyard.client import endpoints, events, operations
from shardyard.client.events import EventParser
from shardyard.client.groups import endpoints as group_endpoints
from shardyard.client.transport import BlockingTransport, PauseStep
from shardyard.contract import errors as tree
from shardyard.contract import responses
from shardyard.contract import stream_events as told

JOB = "01980000-0000-7000-8000-000000000001"
STATUS: dict[str, Any] = {"id": JOB, "name": "a", "state": "running", "created_at": "2026-01-02T03:04:05.000006Z"}
ENDED = STATUS | {"state": "succeeded"}
Answers = list[httpx.Response | Exception]


class Service:
    """Answers request after request; pauses are counted and not slept."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self.answers = list(answers)
        self.seen: list[httpx.Request] = []
        self.pauses: list[float] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        request.read()
        self.seen.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def client(self) -> Client:
        return Client("http://service", "secret", transport=httpx.MockTransport(self))


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Service]:
    def made(*answers: httpx.Response | Exception) -> Service:
        found = Service(*answers)
        outcome = BlockingTransport._carry_out

        def at_once(wire: BlockingTransport, step: Any, opened: Any) -> Any:
            if isinstance(step, PauseStep):
                found.pauses.append(step.seconds)
                return None
            return outcome(wire, step, opened)

        monkeypatch.setattr(BlockingTransport, "_carry_out", at_once)
        return found

    return made


def ok(body: Any, status: int = 200, **headers: str) -> httpx.Response:
    return httpx.Response(status, json=body, headers=headers)


def no(status: int, code: str = "", **headers: str) -> httpx.Response:
    return httpx.Response(status, json={"code": code, "detail": "no"} if code else None, headers=headers)


LOST = httpx.ReadError("reset")
REFUSED = httpx.ConnectError("refused")


# -- requests that are repeated --------------------------------------------------------------------


def test_a_submit_whose_answer_got_lost_is_sent_again_under_its_key(service: Callable[..., Service]) -> None:
    away = service(LOST, no(503, "unavailable"), httpx.Response(502, text="<html>"), ok(STATUS, 201))
    assert away.client().submit({"name": "a"}).id == JOB
    assert len({request.headers["Idempotency-Key"] for request in away.seen}) == 1
    assert len(away.seen) == 4


def test_the_traceback_of_a_refused_spec_names_what_is_wrong(service: Callable[..., Service]) -> None:
    problem = {"code": "invalid_spec", "detail": "no", "errors": [{"field": "resorces", "message": "unknown field"}]}
    with pytest.raises(errors.InvalidSpec) as refused:
        service(httpx.Response(422, json=problem)).client().submit({"resorces": 1})
    assert "resorces: unknown field" in "".join(traceback.format_exception(refused.value))


def test_a_token_is_not_made_twice_unless_nothing_was_sent(service: Callable[..., Service]) -> None:
    lost = service(LOST)
    with pytest.raises(errors.Unavailable, match="http://service cannot be reached"):
        lost.client().create_token("a")
    assert len(lost.seen) == 1
    refused = service(REFUSED, REFUSED, ok({"id": "t", "token": "s"}, 201))
    made = refused.client().create_token("a")
    assert made.token == "s"
    assert "'s'" not in repr(made)


def test_attempts_are_bounded(service: Callable[..., Service]) -> None:
    away = service(REFUSED)
    with pytest.raises(errors.Unavailable):
        away.client().pools()
    assert len(away.seen) == operations.ATTEMPTS
    assert len(away.pauses) == operations.ATTEMPTS - 1
    assert sum(away.pauses) < 5


def test_the_service_says_how_long_to_wait(service: Callable[..., Service]) -> None:
    busy = service(no(429, "too_many_uploads", **{"Retry-After": "3"}), ok({"pools": []}))
    assert busy.client().pools() == []
    assert busy.pauses == [3.0]


def test_who_asks_for_too_long_a_pause_is_not_waited_for(service: Callable[..., Service]) -> None:
    busy = service(no(503, "unavailable", **{"Retry-After": "3600"}))
    with pytest.raises(errors.Unavailable):
        busy.client().pools()
    assert busy.pauses == []


@pytest.mark.parametrize("value", ["soon", "-1", "inf", "nan", "Wed, 21 Oct 2026 07:28:00 GMT"])
def test_a_pause_that_is_no_number_of_seconds_is_passed_over(service: Callable[..., Service], value: str) -> None:
    busy = service(no(503, "unavailable", **{"Retry-After": value}), ok({"pools": []}))
    assert busy.client().pools() == []
    assert busy.pauses[0] < 1


# -- errors ----------------------------------------------------------------------------------------


def test_an_error_is_the_class_of_its_code_with_its_fields(service: Callable[..., Service]) -> None:
    wrong = [{"field": "a.b", "message": "unknown"}]
    refused = service(ok({"code": "invalid_spec", "detail": "not valid", "errors": wrong}, 422))
    with pytest.raises(errors.InvalidSpec, match="not valid") as caught:
        refused.client().submit({})
    assert caught.value.fields == (errors.FieldError("a.b", "unknown"),)


def test_a_code_of_a_newer_service_keeps_its_name(service: Callable[..., Service]) -> None:
    refused = service(ok({"code": "from_the_future", "detail": "no"}, 409))
    with pytest.raises(errors.Conflict) as caught:
        refused.client().pools()
    assert caught.value.code == "from_the_future"
    assert errors.Conflict.code == "conflict"


@pytest.mark.parametrize("body", ["<html>", "[]", '{"code": 5}', '{"errors": 3}', "\xff", ""])
def test_an_error_that_is_none_of_ours_is_told_by_its_status(service: Callable[..., Service], body: str) -> None:
    strange = service(httpx.Response(404, content=body.encode("latin1")))
    with pytest.raises(errors.NotFound, match="404 Not Found"):
        strange.client().pools()


@pytest.mark.parametrize("body", ["<html>", "[]", "{}", '{"pools": 3}', ""])
def test_an_answer_that_is_not_what_was_asked_for_says_so(service: Callable[..., Service], body: str) -> None:
    strange = service(httpx.Response(200, text=body))
    with pytest.raises(errors.ShardyardError, match="the answer to GET /v1/pools is not a PoolList"):
        strange.client().pools()


def test_every_error_can_be_imported_and_is_the_same_class() -> None:
    kinds = {name for name, kind in vars(tree).items() if inspect.isclass(kind) and kind.__module__ == tree.__name__}
    # what only the service raises towards itself has no code that is answered
    assert kinds - set(errors.__all__) <= {"FormatMismatch"}
    assert all(getattr(errors, name) is getattr(tree, name) for name in errors.__all__ if name != "JobFailed")


def test_an_address_that_is_none_is_refused() -> None:
    for url in ("http://a:b", "ftp://x", "nonsense"):
        with pytest.raises(errors.InvalidRequest), Client(url, "t", attempts=1) as client:
            client.pools()


def test_a_spec_that_is_no_json_or_no_file_is_refused_before_anything_is_sent(service: Callable[..., Service]) -> None:
    unused = service(LOST)
    for spec in ({"a": object()}, "/no/such/file.json"):
        with pytest.raises(errors.InvalidRequest):
            unused.client().submit(spec)
    assert unused.seen == []


# -- waiting ---------------------------------------------------------------------------------------


def test_waiting_asks_the_service_to_hold_the_request_and_names_what_it_knows(
    service: Callable[..., Service],
) -> None:
    held = service(ok(STATUS, ETag='W/"3.x"'), httpx.Response(304), LOST, no(503), ok(ENDED, ETag='W/"4.x"'))
    assert held.client().run(operations.wait_for_end(JOB, None)).state == "succeeded"
    assert "If-None-Match" not in held.seen[0].headers
    assert {request.headers["If-None-Match"] for request in held.seen[1:]} == {'W/"3.x"'}
    assert {request.url.params["wait"] for request in held.seen[1:]} == {"25.0"}


def test_waiting_gives_up_when_the_service_stays_away(
    service: Callable[..., Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "PATIENCE_SECONDS", -1)
    with pytest.raises(errors.Unavailable):
        service(ok(STATUS, ETag="x"), REFUSED).client().run(operations.wait_for_end(JOB, None))


def test_waiting_is_over_in_time_also_while_the_service_is_away(service: Callable[..., Service]) -> None:
    away = service(ok(STATUS, ETag="x"), REFUSED)
    with pytest.raises(TimeoutError, match=r"within 0\.05 seconds; it is running"):
        away.client().run(operations.wait_for_end(JOB, 0.05))
    assert all(0 <= seconds <= 0.05 for seconds in away.pauses)


@pytest.mark.parametrize("path", ["", "..", "a/.."])
def test_a_download_without_a_name_writes_nothing(
    service: Callable[..., Service], path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    unused = service(LOST)
    with pytest.raises(errors.InvalidRequest, match="does not end in the name of a file"):
        Job(unused.client(), msgspec.convert(STATUS, responses.JobStatus)).download(path)
    assert (list(tmp_path.iterdir()), unused.seen) == ([], [])


def test_a_download_that_breaks_leaves_no_half_of_it(service: Callable[..., Service], tmp_path: Path) -> None:
    def broken() -> Iterator[bytes]:
        yield b"half"
        raise LOST

    job = Job(service(httpx.Response(200, content=broken())).client(), msgspec.convert(STATUS, responses.JobStatus))
    with pytest.raises(errors.Unavailable):
        job.download("a/file", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_waiting_for_a_job_that_is_not_there_ends_at_once(service: Callable[..., Service]) -> None:
    with pytest.raises(errors.NotFound):
        service(no(404, "not_found")).client().run(operations.wait_for_end(JOB, 5))


def test_pages_without_lines_do_not_end_a_log_that_goes_on(service: Callable[..., Service]) -> None:
    def page(next_: str, *texts: str, ended: bool = False) -> httpx.Response:
        lines = [{"device": 0, "text": text} for text in texts]
        return httpx.Response(200, json={"attempt": 1, "lines": lines, "next": next_, "ended": ended})

    skipping = service(page("a"), page("b"), page("c", "far behind"), page("c"))
    pages = list(skipping.client().items(operations.log_pages(JOB, stream=["stdout", "stderr"])))
    assert [line.text for found in pages for line in found.lines] == ["far behind"]
    assert [request.url.params.get("after") for request in skipping.seen] == [None, "a", "b", "c"]
    assert {request.url.params["stream"] for request in skipping.seen} == {"stdout,stderr"}


# -- events ----------------------------------------------------------------------------------------


def sse(*parts: tuple[str, str, Any]) -> str:
    return "".join(f"id: {number}\nevent: {name}\ndata: {json.dumps(data)}\n\n" for number, name, data in parts)


STATE = {"job_id": JOB, "state": "running", "reason": {"code": "running", "message": ""}, "attempt": 1, "version": 3}
END = {"job_id": JOB, "state": "succeeded", "attempt": 1}


def stream(text: str) -> httpx.Response:
    return httpx.Response(200, text=text, headers={"Content-Type": "text/event-stream"})


def test_a_stream_that_breaks_goes_on_behind_its_last_event_and_says_nothing_twice(
    service: Callable[..., Service],
) -> None:
    progress = {"attempt": 1, "step": 5}
    broken = service(
        stream(": hello\n\n" + sse(("a", "state", STATE), ("b", "progress", progress)) + "id: c\nevent: prog"),
        LOST,
        no(503, "unavailable"),
        stream(sse(("c", "state", STATE), ("d", "from_the_future", {}), ("e", "end", END))),
    )
    followed = list(broken.client().items(operations.follow_job(JOB, [0, 3])))
    assert [type(event).__name__ for event in followed] == ["StateChanged", "Progressed", "Ended"]
    assert [event.event_id for event in followed] == ["a", "b", "e"]
    assert [request.headers.get("Last-Event-ID") for request in broken.seen] == [None, "b", "b", "b"]
    assert broken.seen[0].url.params["logs"] == "0,3"


def test_a_reader_who_was_told_the_end_is_told_nothing_more(service: Callable[..., Service]) -> None:
    assert list(service(httpx.Response(204)).client().items(operations.follow_job(JOB, after="z"))) == []


def test_following_ends_when_the_service_stays_away_or_refuses(
    service: Callable[..., Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(errors.NotFound):
        list(service(no(404, "not_found")).client().items(operations.follow_job(JOB)))
    monkeypatch.setattr(operations, "PATIENCE_SECONDS", -1)
    with pytest.raises(errors.Unavailable):
        list(service(REFUSED).client().items(operations.follow_job(JOB)))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_are_whole_wherever_a_stream_is_cut(size: int) -> None:
    raw = (
        "﻿: x\r\nretry: 5\r\n" + sse(("1", "a", {"ä": "\n"}), ("2", "b", 2)) + "data: one\ndata:two\n\nid\n\n"
    ).encode()
    parser = EventParser()
    found = [message for at in range(0, len(raw), size) for message in parser.feed(raw[at : at + size])]
    assert [(message.event, message.data, message.id) for message in found] == [
        ("a", '{"\\u00e4": "\\n"}', "1"),
        ("b", "2", "2"),
        ("message", "one\ntwo", "2"),
    ]


def test_an_event_without_an_end_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_EVENT_BYTES", 1000)
    parser = EventParser()
    for _ in range(10):
        parser.feed(b"data: " + b"x" * 90 + b"\n")
    with pytest.raises(errors.ShardyardError, match="more than 1000 bytes"):
        parser.feed(b"data: " + b"x" * 90)


def test_an_event_that_is_not_what_its_name_says_is_an_error(service: Callable[..., Service]) -> None:
    for data in ("[]", '{"attempt": 1}', "{"):
        with pytest.raises(errors.ShardyardError, match="an event 'state' that cannot be read"):
            list(service(stream(f"event: state\ndata: {data}\n\n")).client().items(operations.follow_job(JOB)))


def test_the_client_knows_every_event_of_the_service() -> None:
    assert set(events.KINDS) == set(told.EventName)


# -- answers --------------------------------------------------------------------------------------

#: Routes for others than programs: monitoring, browsers, the document of the API itself.
NOT_FOR_PROGRAMS = ("/metrics", "/openapi.json", "/docs", "/healthz", "/v1/me", "/v1/sign-", "/v1/node/")


def test_every_route_of_the_api_has_a_call() -> None:
    table = (Path(__file__).parents[4] / "docs" / "api.md").read_text().split("## Routes", 1)[1].split("\n## ", 1)[0]
    documented = {tuple(route.split(" ")) for route in re.findall(r"^\| `(\w+ /\S*)` \|", table, re.MULTILINE)}
    routes = {(method, path) for method, path in documented if not path.startswith(NOT_FOR_PROGRAMS)}
    e, g = endpoints, group_endpoints
    made = [
        e.submit_job({}), e.plan_job({}), e.list_jobs(), e.get_job("a"), e.resolve_job("a"), e.cancel_job("a"),
        e.cancel_many(),
        e.resubmit_job("a"), e.delete_job("a"), e.list_attempts("a"), e.request_profile("a"),
            e.list_profiles("a"), e.get_report("a"), e.compare_reports("a", "b"), e.judge_job("a"),
        e.read_logs("a"), e.read_metrics("a"), e.list_artifacts("a"), e.download_artifact("a", "b/c"),
        e.job_events("a"), e.service_events(), e.upload_bundle(io.BytesIO()), e.get_bundle("a"), e.delete_bundle("a"),
        e.list_recipes(), e.read_job_table(["loss"]), e.list_job_columns(), e.list_device_use(),
        e.list_pools(), e.get_pool("a"), e.set_pool_policy("a"), e.end_block("a", "b"), e.list_nodes(),
        e.get_device_history("a"), e.get_secret("a"),
        e.drain_node("a"), e.undrain_node("a"), e.quarantine_device("a", 0, "b"),
        e.unquarantine_device("a", 0), e.forget_node("a"), e.list_tokens(), e.create_token("a", scopes=[]),
        e.revoke_token("a"), e.list_secrets(), e.put_secret("a", "b"), e.delete_secret("a"), e.check_readiness(),
        e.read_audit(), e.suspend_job("a"), e.resume_job("a"), e.explain_job("a"), e.list_shares(), e.get_share("a"),
        e.set_share("a", 2), e.get_own_quota(), e.get_quota("a"), e.set_quota("a", {}), e.remove_quota("a"),
        e.list_webhooks(), e.create_webhook("a", events=[], form="json", name=""), e.show_webhook("a"),
        e.change_webhook("a", active=True), e.delete_webhook("a"), e.rotate_webhook("a", overlap_seconds=0),
        e.test_webhook("a"), e.list_deliveries("a", state="", cursor="", limit=1), e.redeliver("a", "b"),
        g.compare({}, strategies=[], devices=[]), g.list_comparisons(), g.get_comparison("a"), g.cancel_comparison("a"),
        g.get_comparison_report("a"), g.sweep({}), g.list_sweeps(), g.get_sweep("a"), g.cancel_sweep("a"),
        g.get_sweep_report("a"), g.get_study("a"),
    ]  # fmt: skip

    def called(method: str, path: str) -> bool:
        pattern = re.sub(r"\{\w+:path\}", ".+", path)
        pattern = re.sub(r"\{\w+\}", "[^/]+", pattern)
        return any(call.method == method and re.fullmatch(pattern, call.path) for call in made)

    assert len(routes) > 20
    assert sorted(route for route in routes if not called(*route)) == []


def test_times_are_times_and_unknown_fields_do_not_matter() -> None:
    status = msgspec.convert(STATUS | {"from_the_future": {"a": 1}}, responses.JobStatus)
    assert status.created_at == datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    assert status.progress is None


# -- the twins -------------------------------------------------------------------------------------


def test_an_awaiting_client_repeats_and_follows_as_the_other_does() -> None:
    seen: list[httpx.Request] = []
    answers: Iterator[httpx.Response] = iter(
        [no(503), ok(STATUS, 201), stream(sse(("a", "state", STATE))), stream(sse(("b", "end", END))), ok(ENDED)]
    )

    async def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return next(answers)

    async def run() -> list[str]:
        async with AsyncClient("http://service", "t", transport=httpx.MockTransport(answer)) as client:
            job = await client.submit({})
            return [event.event_id async for event in job.follow()]

    assert asyncio.run(run()) == ["a", "b"]
    assert [request.headers.get("Last-Event-ID") for request in seen] == [None, None, None, "a", None]
    assert seen[-1].url.path == f"/v1/jobs/{JOB}"  # its status at the end


def test_the_types_of_both_clients_can_be_looked_up() -> None:
    import ssl

    from shardyard.client.report import SplitReport
    from shardyard.client.scripts import ScriptOptions

    late = {"ssl": ssl, "Event": events.Event, "SplitReport": SplitReport, "ScriptOptions": ScriptOptions}
    for kind in (Client, AsyncClient, Job, AsyncJob):
        for _, method in inspect.getmembers(kind, inspect.isfunction):
            get_type_hints(method, localns=late)
    assert endpoints.MAX_WAIT_SECONDS >= operations.HELD_SECONDS
