"""Names that a screen would obey: refused from now on, and shown where an earlier version has stored them."""

from typing import Any

import pytest

from jobs import store
from jobs.model.spec import JobSpec
from jobs.store.accounts.tokens import Scope
from tests.integration.api.conftest import Api
from tests.support.samples.job_records import a_spec_body

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

HOSTILE = "gpj\u202eexe"
JOB = "01980000-0000-7000-8000-000000000001"


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/jobs", a_spec_body() | {"name": HOSTILE}, "name"),
        ("/v1/jobs", a_spec_body() | {"labels": {"team": HOSTILE}}, "labels.team"),
        ("/v1/plan", a_spec_body() | {"name": HOSTILE}, "name"),
        ("/v1/tokens", {"name": HOSTILE, "scopes": ["read"]}, "name"),
        ("/v1/nodes/host-a/devices/0/quarantine", {"reason": HOSTILE}, "reason"),
    ],
)
async def test_the_refusal_names_the_field_and_the_character(
    api: Api, path: str, body: dict[str, Any], field: str
) -> None:
    api.node()
    answer = await api.client.post(path, json=body)
    assert (answer.status_code, [error["field"] for error in answer.json()["errors"]]) == (422, [field])
    assert "U+202E (RIGHT-TO-LEFT OVERRIDE)" in answer.json()["errors"][0]["message"]
    assert "\u202e" not in answer.text


@pytest.mark.parametrize("tenant", ["a\u202eb", "A", "a/b", "..", "a\n", "größe"])
async def test_a_tenant_is_letters_digits_and_dashes(api: Api, tenant: str) -> None:
    answer = await api.client.post("/v1/tokens", json={"name": "ci", "scopes": ["read"], "tenant": tenant})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "tenant")


@pytest.mark.parametrize("name", [b"\\ud800", b"\xed\xa0\x80", b"\xff"])
async def test_half_of_a_character_is_no_json(api: Api, name: bytes) -> None:
    answer = await api.client.post("/v1/jobs", content=b'{"name":"' + name + b'"}')
    assert (answer.status_code, answer.json()["code"]) == (400, "malformed_json")


async def test_a_job_of_an_earlier_version_with_such_a_name_is_still_listed_and_read(api: Api) -> None:
    api.node()
    old = JobSpec.model_validate(a_spec_body() | {"name": HOSTILE, "labels": {"team": "\u200f"}})
    api.control.run(store.submit("default", JOB, old))
    (listed,) = (await api.get("/v1/jobs", params={"name": HOSTILE}))["jobs"]
    assert (listed["id"], listed["name"]) == (JOB, HOSTILE)
    status = await api.get(f"/v1/jobs/{JOB}")
    assert (status["name"], status["labels"]) == (HOSTILE, {"team": "\u200f"})
    again = await api.client.post(f"/v1/jobs/{JOB}/resubmit", headers=api.token(Scope.SUBMIT))
    assert (again.status_code, again.json()["errors"][0]["field"]) == (422, "name")
    assert (await api.client.post(f"/v1/jobs/{JOB}/cancel")).status_code in (200, 202)
