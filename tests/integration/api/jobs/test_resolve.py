"""`GET /v1/jobs/resolve`: the job that people mean."""

import json
from typing import Any

import pytest

from api.background import retention
from jobs import store
from jobs.model.spec_rules import parse_spec
from jobs.store.accounts.tokens import Scope
from tests.integration.api.conftest import Api
from tests.support.samples.job_records import a_spec_body

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

#: Two of one moment, and one of a later one that ends as the first does.
FIRST, SECOND = "01980000-0000-7000-8000-0000000a0001", "01980000-0000-7000-8000-0000000b0002"
THIRD = "01990000-0000-7000-8000-0000000c0001"


def put(api: Api, job: str, name: str = "", *, tenant: str = "default", token: str = "") -> str:
    spec = parse_spec(json.dumps(a_spec_body() | {"name": name or f"job-{job[-6:]}"}))
    return api.control.run(store.submit(tenant, job, spec, token=token)).job


def end(api: Api, *jobs: str) -> None:
    for job in jobs:
        api.control.run(store.cancel("default", job))


async def resolve(api: Api, ref: str, **request: Any) -> Any:
    return await api.get("/v1/jobs/resolve", params={"ref": ref}, **request)


async def refused(api: Api, ref: str, **request: Any) -> tuple[int, str, Any]:
    answer = await api.client.get("/v1/jobs/resolve", params={"ref": ref}, **request)
    return answer.status_code, answer.json()["code"], answer.json()


@pytest.fixture
def jobs(api: Api) -> Api:
    api.node(devices=1)
    for job in (FIRST, SECOND, THIRD):
        put(api, job)
    return api


@pytest.mark.parametrize(
    ("ref", "matched", "job"),
    [
        (FIRST, "id", FIRST),
        (FIRST.upper(), "id", FIRST),
        ("0199", "prefix", THIRD),
        ("0002", "suffix", SECOND),
        ("B0002", "suffix", SECOND),
        ("job-0a0001", "name", FIRST),
        (f" {FIRST[-8:]} ", "suffix", FIRST),
    ],
)
async def test_a_job_is_found_by_its_id_a_part_of_it_or_its_name(jobs: Api, ref: str, matched: str, job: str) -> None:
    found = await resolve(jobs, ref)
    assert (found["id"], found["matched"], found["others"]) == (job, matched, [])
    assert found["spec"] == (await jobs.get(f"/v1/jobs/{job}"))["spec"]


@pytest.mark.parametrize(("ref", "candidates"), [("0198", [FIRST, SECOND]), ("0001", [THIRD, FIRST])])
async def test_a_part_that_several_ids_have_is_refused_with_those_jobs(
    jobs: Api, ref: str, candidates: list[str]
) -> None:
    status, code, problem = await refused(jobs, ref)
    assert (status, code) == (409, "ambiguous_reference")
    assert sorted(job["id"] for job in problem["candidates"]) == sorted(candidates)
    assert {job["name"] for job in problem["candidates"]} == {f"job-{job[-6:]}" for job in candidates}
    assert candidates[0] in problem["detail"]


async def test_the_newest_of_a_name_is_meant_and_the_others_are_said(jobs: Api) -> None:
    same = [put(jobs, f"01a00000-0000-7000-8000-{number:012x}", "night run") for number in range(13)]
    found = await resolve(jobs, "night run")
    assert (found["id"], found["matched"]) == (same[-1], "name")
    assert [job["id"] for job in found["others"]] == same[2:12][::-1]
    assert found["others"][0].keys() == {"id", "name", "state", "created_at"}


async def test_a_name_that_is_a_part_of_another_jobs_id_is_never_a_guess(jobs: Api) -> None:
    other = put(jobs, "01a00000-0000-7000-8000-000000000009", "0002")
    status, code, problem = await refused(jobs, "0002")
    assert (status, code) == (409, "ambiguous_reference")
    assert [job["id"] for job in problem["candidates"]] == [SECOND, other]


async def test_last_counts_the_jobs_of_the_callers_token(jobs: Api) -> None:
    mine = jobs.token(Scope.SUBMIT)
    assert (await resolve(jobs, "@last", headers=mine))["id"] == THIRD  # it has submitted none
    own = [await jobs.submit(headers=mine) for _ in range(2)]
    others = await jobs.submit()
    for ref, job in (("@last", own[1]), ("@last~0", own[1]), ("@last~1", own[0])):
        found = await resolve(jobs, ref, headers=mine)
        assert (found["id"], found["matched"]) == (job, "last")
    assert (await resolve(jobs, "@last"))["id"] == others
    status, _, problem = await refused(jobs, "@last~2", headers=mine)
    assert (status, problem["detail"]) == (404, "there is no job @last~2; the oldest one there is @last~1")
    assert (await refused(jobs, "@latest"))[0] == 404


@pytest.mark.parametrize(
    ("ref", "hint"),
    [
        ("job-0a0011", "did you mean 'job-0a0001'"),
        ("JOB-0A0011", "did you mean 'job-0a0001'"),
        ("zebra", "give an id, a beginning or an end of one, a name, or @last"),
        ("../../etc", "give an id"),
        ("\u202egpj", "'\\u202egpj'"),
        ("*", "give an id"),
    ],
)
async def test_what_nothing_fits_is_refused_with_what_may_be_meant(jobs: Api, ref: str, hint: str) -> None:
    status, code, problem = await refused(jobs, ref)
    assert (status, code) == (404, "not_found")
    assert hint in problem["detail"]


async def test_jobs_of_another_tenant_are_not_found(jobs: Api) -> None:
    other = put(jobs, "01a00000-0000-7000-8000-0000000000ff", "theirs", tenant="other")
    for ref in (other, "01a0", "00ff", "theirs"):
        assert (await refused(jobs, ref))[0] == 404
    theirs = jobs.token(Scope.READ, tenant="other")
    assert (await resolve(jobs, "@last", headers=theirs))["id"] == other
    assert (await refused(jobs, FIRST, headers=theirs))[0] == 404


async def test_archived_jobs_are_found_when_no_other_fits(jobs: Api) -> None:
    end(jobs, FIRST, SECOND, THIRD)
    assert not retention.sweep_finished_jobs(jobs.control, jobs.storage, 1e-6, 0)
    put(jobs, "01a00000-0000-7000-8000-000000000001", "job-0b0002")
    for ref, job in ((FIRST, FIRST), ("0199", THIRD), ("b0002", SECOND), ("job-0a0001", FIRST)):
        found = await resolve(jobs, ref)
        assert (found["id"], found["archived"]) == (job, True)
    assert (await resolve(jobs, "job-0b0002"))["archived"] is False
    assert (await refused(jobs, "0198"))[:2] == (409, "ambiguous_reference")


@pytest.mark.parametrize("query", ["", "?ref=", "?ref=" + "x" * 201])
async def test_a_reference_is_needed(jobs: Api, query: str) -> None:
    answer = await jobs.client.get(f"/v1/jobs/resolve{query}")
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "ref")
