import json
from collections.abc import Iterator

import pytest

from api.http import problems
from shardyard.contract.errors import FieldError, ShardyardError


def tree(root: type[ShardyardError]) -> Iterator[type[ShardyardError]]:
    yield root
    for child in root.__subclasses__():
        yield from tree(child)


def test_every_error_that_the_domain_or_the_api_raises_has_a_status() -> None:
    mine = [kind for kind in tree(ShardyardError) if kind.__module__.startswith(("shardyard.contract.", "api."))]
    assert len(mine) > 15
    assert {kind.code for kind in mine} <= set(problems.PROBLEMS)


def test_a_problem_has_the_members_of_rfc_9457_and_names_the_fields() -> None:
    response = problems.problem_response(
        "invalid_spec", "two fields", "/v1/jobs", (FieldError("program.model", "missing"),)
    )
    assert response.status_code == 422
    assert response.headers["content-type"] == "application/problem+json"
    assert json.loads(bytes(response.body)) == {
        "type": "/docs/problems/invalid_spec",
        "title": "The job spec is not valid",
        "status": 422,
        "detail": "two fields",
        "code": "invalid_spec",
        "instance": "/v1/jobs",
        "errors": [{"field": "program.model", "message": "missing"}],
    }


def test_an_unknown_code_becomes_an_internal_error_that_says_nothing() -> None:
    response = problems.problem_response("service_failed", "the password is hunter2", "/v1/jobs")
    assert response.status_code == 500
    assert b"hunter2" not in bytes(response.body)


@pytest.mark.parametrize(
    ("code", "header"),
    [("unavailable", "retry-after"), ("unauthenticated", "www-authenticate"), ("body_too_large", "connection")],
)
def test_an_answer_carries_the_header_that_its_status_asks_for(code: str, header: str) -> None:
    assert header in problems.problem_response(code, "", "/").headers
