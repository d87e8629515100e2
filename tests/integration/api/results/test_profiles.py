"""Asking for a profile of a running job, and reading what came of it."""

import pytest

from jobs import store
from jobs.files import paths, profiles
from jobs.store.accounts.tokens import Scope
from shardyard.contract.responses import ProfileView, RankProfile
from tests.integration.api.conftest import Api
from tests.integration.api.jobs.test_jobs import until_state

pytestmark = [pytest.mark.integration, pytest.mark.anyio]


async def a_running_job(api: Api) -> store.AttemptId:
    api.node()
    job = await api.submit()
    await until_state(api, job, "starting")
    attempt = store.AttemptId("default", job, 1)
    assert api.control.run(store.claim(attempt, "c", "host-a")).granted
    assert api.control.run(store.record_milestone(attempt, "c", "running"))
    return attempt


async def test_a_profile_is_listed_from_the_request_to_its_traces(api: Api) -> None:
    attempt = await a_running_job(api)
    path = f"/v1/jobs/{attempt.job}/profile"
    assert (await api.get(f"{path}s")) == {"profiles": [], "total": 0}
    answer = await api.client.post(path, json={"steps": 7})
    assert (answer.status_code, answer.json()["number"], answer.json()["steps"]) == (202, 1, 7)
    again = await api.client.post(path)
    assert (again.status_code, again.json()["code"]) == (409, "profile_running")
    (listed,) = (await api.get(f"{path}s"))["profiles"]
    assert (listed["state"], listed["ranks"]) == ("recording", [])
    assert listed["requested_at"] == answer.json()["requested_at"]

    files = paths.attempt_dir(api.storage, "default", attempt.job, 1)
    directory = paths.profile_dir(files, 1)
    directory.mkdir(parents=True)
    (directory / "rank-0.json.gz").write_bytes(b"a trace")
    (directory / ".rank-1.part").write_bytes(b"half a trace")
    ranks = [RankProfile(0, "profiles/1/rank-0.json.gz", 7, 7, 0.5), RankProfile(1, error="it did not step")]
    profiles.write_profile(directory, ProfileView(1, 1, 7, "finished", ranks=ranks))
    api.control.run(store.record_profile(attempt, "c", 1, "done"))
    (listed,) = (await api.get(f"{path}s?attempt=1"))["profiles"]
    assert (listed["state"], [rank["error"] for rank in listed["ranks"]]) == ("finished", [None, "it did not step"])
    found = await api.get(f"/v1/jobs/{attempt.job}/artifacts")
    assert [(one["path"], one["kind"]) for one in found["artifacts"]] == [("profiles/1/rank-0.json.gz", "profile")]
    trace = await api.client.get(f"/v1/jobs/{attempt.job}/artifacts/{listed['ranks'][0]['path']}")
    assert trace.content == b"a trace"


async def test_a_profile_whose_attempt_has_ended_is_lost(api: Api) -> None:
    attempt = await a_running_job(api)
    assert (await api.client.post(f"/v1/jobs/{attempt.job}/profile")).status_code == 202
    api.run_to_end(attempt.job)
    assert [one["state"] for one in (await api.get(f"/v1/jobs/{attempt.job}/profiles"))["profiles"]] == ["lost"]
    answer = await api.client.post(f"/v1/jobs/{attempt.job}/profile")
    assert (answer.status_code, answer.json()["code"]) == (409, "job_not_running")
    assert "succeeded" in answer.json()["detail"]


@pytest.mark.parametrize("steps", [0, 101, 1.5, "10", None, True])
async def test_steps_are_bounded(api: Api, steps: object) -> None:
    attempt = await a_running_job(api)
    answer = await api.client.post(f"/v1/jobs/{attempt.job}/profile", json={"steps": steps})
    assert (answer.status_code, [wrong["field"] for wrong in answer.json()["errors"]]) == (422, ["steps"])


async def test_who_may_not_submit_may_not_profile(api: Api) -> None:
    attempt = await a_running_job(api)
    path = f"/v1/jobs/{attempt.job}/profile"
    assert (await api.client.post(path, headers=api.token(Scope.READ))).status_code == 403
    other = api.token(Scope.SUBMIT, Scope.READ, tenant="other")
    assert (await api.client.post(path, headers=other)).status_code == 404
    assert (await api.client.get(f"{path}s", headers=other)).status_code == 404
