import json

import pytest

from api.schemas.job_requests import MAX_KEPT_BYTES, parse_cancel, parse_spec
from api.schemas.request_body import refuse_body
from jobs.model.state import JobState
from jobs.store import JobFilter
from shardyard.contract.errors import InvalidRequest, MalformedJson
from tests.support.samples.job_records import a_spec_body


@pytest.mark.parametrize(
    ("body", "chosen"),
    [
        ({"all": True}, JobFilter()),
        ({"state": "queued"}, JobFilter(state=JobState.QUEUED)),
        ({"pool": "a100", "name": "digits"}, JobFilter(pool="a100", name="digits")),
        ({"label": "team=vision"}, JobFilter(label=("team", "vision"))),
        ({"label": "team="}, JobFilter(label=("team", ""))),
    ],
)
def test_a_cancel_request_names_jobs_by_what_it_has(body: dict[str, object], chosen: JobFilter) -> None:
    assert parse_cancel(json.dumps(body).encode()) == chosen


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "all"),
        ({"all": False}, "all"),
        ({"all": True, "pool": "a100"}, "all"),
        ({"all": 1}, "all"),
        ({"state": "succeeded"}, "state"),
        ({"state": "sleeping"}, "state"),
        ({"pool": ""}, "pool"),
        ({"label": "team"}, "label"),
        ({"label": ""}, "label"),
        ({"names": "x"}, "names"),
    ],
)
def test_a_cancel_request_that_is_not_clear_cancels_nothing(body: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_cancel(json.dumps(body).encode())
    assert [error.field for error in refused.value.fields] == [field]


def test_a_cancel_request_that_is_no_json_is_refused() -> None:
    with pytest.raises(MalformedJson):
        parse_cancel(b"")


@pytest.mark.parametrize("body", [b"", b" ", b"{}", b" {}\n"])
def test_no_body_is_no_body(body: bytes) -> None:
    refuse_body(body)


@pytest.mark.parametrize("body", [b"x", b'{"priority": 3}', b"[]", b"null"])
def test_a_body_that_would_be_ignored_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match="takes no body"):
        refuse_body(body)


def test_a_spec_that_comes_again_is_not_read_again_unless_it_is_large() -> None:
    body = json.dumps(a_spec_body() | {"name": "comes-again"}).encode()
    assert parse_spec(bytes(bytearray(body))) is parse_spec(body)
    large = body + b" " * MAX_KEPT_BYTES
    assert parse_spec(large) is not parse_spec(large)
    assert parse_spec(large) == parse_spec(body)


def test_a_spec_that_was_refused_is_refused_again() -> None:
    for _ in range(2):
        with pytest.raises(MalformedJson):
            parse_spec(b"{")
