"""What a job waits for, over HTTP: the numbers, and what is not said of other tenants."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from jobs.store.tokens import Scope
from tests.integration.api.conftest import Api
from tests.integration.api.test_jobs import until_state

pytestmark = [pytest.mark.integration, pytest.mark.anyio]


async def test_a_waiting_job_is_explained_without_a_word_about_whose_the_others_are(api: Api) -> None:
    acme = api.token(Scope.SUBMIT, tenant="acme")
    api.node(devices=2)
    theirs = await api.submit(2, headers=acme, name="secret-project")
    await until_state(api, theirs, "starting", headers=acme)
    urgent = await api.submit(1, headers=acme, name="secret-too", priority=7)
    mine = await api.submit(1, limits={"wall_seconds": 60})
    job = await api.submit(1)
    found = await api.get(f"/v1/jobs/{job}/explain")
    assert (found["state"], found["reason"]["code"], found["weight"]) == ("queued", "waiting_for_devices", 1.0)
    assert found["ahead"] == {"own": 1, "others": [1]}
    assert found["room"] == {
        "nodes": 1, "usable": 2, "free": 0, "largest_gap": 0, "own": 0, "others": 2, "quarantined": 0
    }  # fmt: skip
    assert (found["share"]["due_part"], found["share"]["devices"], found["kept"]) == (0.5, 0, None)
    latest = datetime.fromisoformat(found["start"]["latest_at"]) - datetime.now(UTC)
    assert timedelta(hours=23) < latest < timedelta(hours=25), "the wall limit of what has the devices"
    assert found["start"]["past_runs"] == 0
    assert found["summary"][0].startswith("queued: needs 1 in pool default")
    assert "before it: 1 job of yours, and of 1 other tenant 1" in found["summary"][2]
    for word in ("acme", "secret", theirs, urgent):
        assert word not in json.dumps(found)
    assert mine not in json.dumps(found)


async def test_a_job_that_runs_or_has_ended_is_explained_by_its_reason(api: Api) -> None:
    api.node()
    job = await api.submit()
    await until_state(api, job, "starting")
    found = await api.get(f"/v1/jobs/{job}/explain")
    assert (found["state"], found["ahead"], found["start"], len(found["summary"])) == ("starting", None, None, 1)
    api.run_to_end(job)
    found = await api.get(f"/v1/jobs/{job}/explain")
    assert (found["state"], found["reason"]["code"]) == ("succeeded", "completed")


async def test_another_tenants_job_is_not_explained(api: Api) -> None:
    api.node()
    job = await api.submit()
    answer = await api.client.get(f"/v1/jobs/{job}/explain", headers=api.token(Scope.READ, tenant="acme"))
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
