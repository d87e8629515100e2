"""What comes of jobs: errors of `wait`, lists that are indexed, tables of pandas, and displays in a notebook."""

import asyncio
import pickle
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pandas  # type: ignore[import-untyped]
import pytest

from shardyard import errors
from shardyard.client import AsyncClient, Client, endpoints
from shardyard.client.transport import ConnectionOptions, _request_arguments
from tests.unit.shardyard.client.test_client import JOB, Service, ok, service
from tests.unit.shardyard.client.test_client import STATUS as RUNNING

__all__ = ["service"]  # a fixture

STATUS: dict[str, Any] = RUNNING | {"name": "digits"}
ENDED: dict[str, Any] = {"finished_at": "2026-01-02T03:05:05Z", "started_at": "2026-01-02T03:04:06Z"}
FAILED = STATUS | ENDED | {
    "state": "failed",
    "reason": {"code": "code_error", "message": "rank 0: ValueError: boom"},
    "error": {"message": "boom", "traceback": 'Traceback\n  File "<a>.py"\nValueError: boom', "advice": "mend it"},
}  # fmt: skip
SUCCEEDED = STATUS | ENDED | {"state": "succeeded", "result": {"loss": 0.25, "metrics": {"accuracy": 0.5}}}


# -- waiting ---------------------------------------------------------------------------------------


def test_waiting_for_a_job_that_fails_raises_with_its_traceback(service: Callable[..., Service]) -> None:
    job = service(ok(STATUS), ok(FAILED, ETag="x")).client().job(JOB)
    with pytest.raises(errors.JobFailed) as raised:
        job.wait(timeout=5)
    assert str(raised.value) == (
        "job digits (00000001) failed: rank 0: ValueError: boom\n\n"
        'Traceback\n  File "<a>.py"\nValueError: boom\n\nmend it'
    )
    assert (raised.value.code, raised.value.status.state, job.state) == ("job_failed", "failed", "failed")
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


def test_waiting_without_a_check_returns_whatever_became_of_the_job(service: Callable[..., Service]) -> None:
    assert service(ok(STATUS), ok(FAILED, ETag="x")).client().job(JOB).wait(5, check=False).state == "failed"
    cancelled = STATUS | {
        "state": "cancelled",
        "reason": {"code": "cancelled_by_user", "message": "a user cancelled it"},
    }
    with pytest.raises(errors.JobFailed, match=r"was cancelled: a user cancelled it$"):
        service(ok(STATUS), ok(cancelled, ETag="x")).client().job(JOB).wait(5)


# -- lists -----------------------------------------------------------------------------------------


def pages(*names: str, size: int = 2) -> list[httpx.Response]:
    rows = [STATUS | {"id": f"{JOB[:-2]}{number:02}", "name": name} for number, name in enumerate(names)]
    parts = [rows[first : first + size] for first in range(0, len(rows), size)]
    return [ok({"jobs": part, "next": "c" if part is not parts[-1] else None}) for part in parts]


def test_a_list_is_read_as_far_as_an_index_needs(service: Callable[..., Service]) -> None:
    answers = service(*pages("a", "b", "c", "d", "e"))
    jobs = answers.client().jobs()
    assert answers.seen == []
    assert jobs[0].name == "a"
    assert [job.name for job in jobs[:2]] == ["a", "b"]
    assert len(answers.seen) == 1
    assert jobs[2].name == "c"
    assert len(answers.seen) == 2
    assert (jobs[-1].name, len(answers.seen)) == ("e", 3)
    with pytest.raises(IndexError):
        jobs[5]


def test_a_list_is_read_anew_by_each_loop_and_goes_on_by_next(service: Callable[..., Service]) -> None:
    jobs = service(*pages("a", "b"), *pages("c"), *pages("d", "e")).client().jobs()
    assert [job.name for job in jobs] == ["a", "b"]
    assert [job.name for job in jobs] == ["c"]
    assert [next(jobs).name, next(jobs).name] == ["d", "e"]


def test_an_awaited_list_can_be_indexed_too(service: Callable[..., Service]) -> None:
    answers = [*pages("a", "b", "c"), *pages("a", "b", "c"), *pages("a")]

    async def names() -> list[str]:
        mock = httpx.MockTransport(lambda request: answers.pop(0))
        async with AsyncClient("http://service", "t", transport=mock) as client:
            jobs = client.jobs()
            found = [(await jobs[2]).name, *(job.name for job in await jobs[1:3])]
            return found + [job.name async for job in jobs]

    assert asyncio.run(names()) == ["c", "b", "c", "a"]


# -- tables ----------------------------------------------------------------------------------------


def test_jobs_are_a_table_with_real_types(service: Callable[..., Service]) -> None:
    rows = [STATUS | {"labels": {"team": "vision"}}, STATUS | ENDED | {"id": "b", "state": "failed", "progress": None}]
    table = service(ok({"jobs": rows, "next": None})).client().jobs().to_pandas()
    assert list(table.index) == [JOB, "b"]
    assert str(table["created_at"].dtype) == "datetime64[us, UTC]"
    assert str(table["finished_at"].dtype) == "datetime64[us, UTC]"
    assert (str(table["state"].dtype), str(table["devices"].dtype), str(table["step"].dtype)) == (
        "category",
        "int64",
        "Int64",
    )
    assert table["took_seconds"].tolist()[1] == 59.0
    assert table["label.team"].tolist()[0] == "vision"
    assert table["finished_at"].isna().tolist() == [True, False]


def test_attempts_and_metrics_are_tables_with_real_types(service: Callable[..., Service]) -> None:
    attempt = {
        "attempt": 1,
        "state": "failed",
        "created_at": "2026-01-02T03:04:05Z",
        "resumed_from": {"attempt": 1, "step": 7},
    }
    points = [{"step": 1, "value": 2.0, "at": "2026-01-02T03:04:05.5Z"}, {"step": 2, "value": None}]
    bucket = {"count": 3, "first": {"step": 1, "value": 1}, "last": {"step": 3, "value": 3}, "mean": 2.0}
    series = [{"device": -1, "name": "loss", "points": points}, {"device": 0, "name": "lr", "buckets": [bucket]}]
    client = service(ok(STATUS), ok({"attempts": [attempt]}), ok({"series": series}), ok({"series": []})).client()
    job = client.job(JOB)

    attempts = job.attempts()
    assert attempts[0].attempt == 1
    assert [line.split()[:2] for line in repr(attempts).splitlines()] == [["attempt", "state"], ["1", "failed"]]
    table = attempts.to_pandas()
    assert (str(table["created_at"].dtype), str(table["resumed_step"].dtype)) == ("datetime64[us, UTC]", "Int64")

    metrics = job.metrics().to_pandas()
    assert metrics[["step", "value"]].fillna(-1).to_numpy().tolist() == [[1, 2.0], [2, -1], [3, 2.0]]
    assert (str(metrics["name"].dtype), str(metrics["value"].dtype), str(metrics["step"].dtype)) == (
        "category", "float64", "Int64"
    )  # fmt: skip
    assert str(metrics["at"].dtype) == "datetime64[us, UTC]"
    assert isinstance(job.metrics().to_pandas(), pandas.DataFrame)


# -- notebooks -------------------------------------------------------------------------------------


def test_a_failed_job_shows_its_traceback_and_what_to_do_and_escapes_both(service: Callable[..., Service]) -> None:
    card = service(ok(STATUS), ok(FAILED), httpx.Response(404)).client().job(JOB)._repr_html_()
    assert "File &quot;&lt;a&gt;.py&quot;" in card
    assert "mend it" in card
    done = service(ok(STATUS), ok(SUCCEEDED), httpx.Response(404)).client().job(JOB)._repr_html_()
    assert "loss 0.25, accuracy 0.5" in done


def test_lists_and_plans_show_themselves(service: Callable[..., Service]) -> None:
    shown = service(*pages("<b>", "c")).client().jobs()._repr_html_()
    assert "&lt;b&gt;" in shown
    assert shown.count("<tr>") == 3
    finding = {"severity": "warning", "code": "idle-devices", "message": "1 < 2", "suggestion": "", "data": {}}
    pattern: dict[str, Any] = {"phase": "train", "batch_rows": 5, "steps": 2, "rows": [3, 2], "module": ""}
    pattern |= dict.fromkeys(("shapes_vary", "input_shapes", "output_shapes", "first_step", "last_step"))
    plan: dict[str, Any] = {"patterns": [pattern], "findings": [finding]}
    shown = service(ok(plan)).client().plan({})._repr_html_()
    assert "device 1" in shown
    assert "warning: 1 &lt; 2" in shown


def test_a_list_of_jobs_is_a_table_of_text_in_a_terminal(service: Callable[..., Service]) -> None:
    answers = service(*pages("short", "a name\x1b[31m", "漢字", *("later",) * 20, size=30))
    jobs = answers.client().jobs()
    lines = repr(jobs).splitlines()
    assert lines[0].split() == ["job", "name", "state", "runs", "age"]
    assert lines[1].startswith("00000000  short ")
    assert "a name\\x1b[31m" in lines[2]
    assert lines[3].startswith(
        "00000002  漢字" + " " * (lines[1].index("running") - len("00000002  漢字漢字")) + "running"
    )
    assert (len(lines), lines[-1]) == (22, "and more")
    assert repr(jobs) == "\n".join(lines)
    assert len(answers.seen) == 1
    assert repr(jobs[:2]).splitlines() == [line.rstrip() for line in repr(jobs[:2]).splitlines()]
    assert len(repr(jobs[:2]).splitlines()) == 3
    assert jobs[:2]._repr_html_().count("<tr>") == 3
    assert list(jobs[:2].to_pandas()["name"]) == ["short", "a name\x1b[31m"]
    assert repr(jobs[30:]) == "no jobs"


def test_a_list_that_cannot_be_read_says_why_and_one_that_is_awaited_what_to_do(
    service: Callable[..., Service],
) -> None:
    refused = httpx.Response(403, json={"code": "forbidden", "detail": "the token lacks the scope read"})
    assert repr(service(refused).client().jobs()) == "<BlockingPages: the token lacks the scope read>"

    async def shown() -> tuple[str, str]:
        transport = httpx.MockTransport(lambda request: pages("a")[0])
        async with AsyncClient("http://service", "t", transport=transport) as client:
            return repr(client.jobs()), repr(await client.jobs()[:1])

    lazy, read = asyncio.run(shown())
    assert lazy == "<AwaitedPages of jobs: await jobs[:20], or async for job in jobs>"
    assert read.splitlines()[1].startswith("00000000  a ")


# -- connections -----------------------------------------------------------------------------------


def test_a_timeout_counts_for_each_answer_beside_what_the_service_holds_it_for() -> None:
    def read(timeout: float | None, wait: float | None) -> Any:
        return _request_arguments(endpoints.get_job(JOB, wait=wait), ConnectionOptions(timeout))["timeout"]

    assert (read(None, None).connect, read(None, None).read, read(None, 25).read) == (5.0, 30.0, 55.0)
    assert (read(2, None).connect, read(2, None).read, read(2, 25).read) == (2, 2, 27.0)


def test_settings_of_a_connection_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    refused: list[tuple[dict[str, Any], str]] = [
        ({"proxy": "gopher://proxy"}, "the proxy 'gopher://proxy' cannot be used"),
        ({"verify": tmp_path / "ca.pem"}, "has no certificates that can be used"),
        ({"verify": tmp_path / "missing.pem"}, "missing.pem has no certificates"),
    ]
    for how, words in refused:
        with pytest.raises(errors.InvalidRequest, match=words):
            Client("https://service", "t", **how)
    taken: list[dict[str, Any]] = [{"proxy": "http://proxy:3128"}, {"verify": False}]
    for how in (*taken, {"verify": ssl.create_default_context()}):
        Client("https://service", "t", **how).close()


def test_a_watched_job_is_drawn_in_its_place_until_it_has_ended(
    service: Callable[..., Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[tuple[str, str]] = []

    class Handle:
        def update(self, card: Any) -> None:
            shown.append(("update", card.data))

    def display(card: Any, display_id: bool) -> Handle:
        shown.append(("display", card.data))
        return Handle()

    monkeypatch.setattr("IPython.display.display", display)
    state = f'event: state\nid: 1\ndata: {{"job_id": "{JOB}", "state": "running", "attempt": 1}}\n\n'
    end = f'event: end\nid: 2\ndata: {{"job_id": "{JOB}", "state": "failed", "attempt": 1}}\n\n'
    stream = httpx.Response(200, content=(state + end).encode())
    no_report = httpx.Response(404, json={"code": "not_found", "detail": "no"})
    job = service(ok(STATUS), stream, ok(STATUS), no_report, ok(FAILED), no_report, ok(FAILED)).client().job(JOB)

    assert job.watch().state == "failed"

    assert [how for how, _ in shown] == ["display", *["update"] * (len(shown) - 1)]
    assert "running" in shown[0][1]
    assert "ValueError: boom" in shown[-1][1]
