"""Values of environment variables are shown to those who may submit jobs, and to nobody else."""

import pytest

from api.background import retention
from jobs.store.accounts.tokens import Scope
from tests.integration.api.conftest import ADMIN, Api, bearer
from tests.integration.api.http.test_access import every_route
from tests.integration.api.jobs.test_bundles import script, submit, upload
from tests.integration.api.jobs.test_jobs import until_state
from tests.support.samples.job_records import JOB

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

VALUE = "wandb-local-Zq7wvT4mB2"
ENV = {"TOKEN": VALUE, "EMPTY": ""}
HIDDEN = {"TOKEN": "[hidden]", "EMPTY": "[hidden]"}


async def a_job_with_env(api: Api) -> str:
    """One that has ended, with a value in `program.env`."""
    api.node()
    await upload(api)
    body = script()
    body["program"]["env"] = ENV
    job = str((await submit(api, body)).json()["id"])
    await until_state(api, job, "starting")
    api.run_to_end(job)
    return job


@pytest.mark.parametrize("query", ["", "?wait=0", "?wait=1"])
async def test_a_status_shows_the_values_to_those_who_may_submit(api: Api, query: str) -> None:
    job = await a_job_with_env(api)
    path = f"/v1/jobs/{job}{query}"
    for scopes, shown in (
        ((Scope.READ,), HIDDEN),
        ((Scope.SUBMIT,), ENV),
        ((Scope.ADMIN,), ENV),
        ((Scope.READ,), HIDDEN),
    ):
        for _ in range(2):  # the second is answered from what the first has left
            status = await api.get(path, headers=api.token(*scopes))
            assert status["spec"]["program"]["env"] == shown, scopes
            assert status["spec"]["program"]["entrypoint"] == "src/train.py"
    assert not retention.sweep_finished_jobs(api.control, api.storage, 1e-6, 0)
    archived = await api.get(path, headers=api.token(Scope.READ))
    assert (archived["archived"], archived["spec"]["program"]["env"]) == (True, HIDDEN)


async def test_a_session_of_a_reader_shows_them_as_its_token_does(api: Api) -> None:
    job = await a_job_with_env(api)
    for scope, shown in ((Scope.READ, HIDDEN), (Scope.SUBMIT, ENV)):
        token = api.token(scope)["Authorization"].removeprefix("Bearer ")
        signed_in = await api.client.post("/v1/sign-in", json={"token": token}, headers=bearer(""))
        cookie = signed_in.headers["set-cookie"].partition(";")[0]
        api.client.cookies.clear()
        del api.client.headers["Authorization"]
        status = await api.get(f"/v1/jobs/{job}", headers={"Cookie": cookie})
        assert status["spec"]["program"]["env"] == shown
        api.client.headers["Authorization"] = f"Bearer {ADMIN}"


async def test_what_changes_a_job_answers_with_the_values(api: Api) -> None:
    """Submit, resubmit and cancel need the scope that may see them."""
    job = await a_job_with_env(api)
    submitter = api.token(Scope.SUBMIT)
    again = await api.client.post(f"/v1/jobs/{job}/resubmit", headers=submitter)
    assert again.json()["spec"]["program"]["env"] == ENV
    cancelled = await api.client.post(f"/v1/jobs/{again.json()['id']}/cancel", headers=submitter)
    assert cancelled.json()["spec"]["program"]["env"] == ENV


async def test_no_route_shows_the_values_to_a_reader(api: Api) -> None:
    job = await a_job_with_env(api)
    other = str((await api.client.post(f"/v1/jobs/{job}/resubmit")).json()["id"])
    reader, asked = api.token(Scope.READ), 0
    for method, path in every_route(api):
        if method != "GET" or path.endswith("/events") or path.startswith("/assets"):
            continue
        path = path.replace(f"against={JOB}", f"against={other}").replace(JOB, job)
        for accept in ("application/json", "text/html", "text/plain"):
            answer = await api.client.get(path, headers=reader | {"Accept": accept})
            assert VALUE not in answer.text, path
            asked += answer.status_code == 200
    assert asked > 20
    events = await api.client.get(f"/v1/jobs/{job}/events?logs=all", headers=reader)  # it ends as the job has
    assert "event: " in events.text
    assert VALUE not in events.text


async def test_a_sweep_shows_them_as_its_jobs_do(api: Api) -> None:
    api.node()
    await upload(api)
    body = script()
    body["program"]["env"] = ENV
    wanted = {"spec": body, "grid": {"program.env.RATE": [VALUE + "1", VALUE + "2"]}}
    answer = await api.client.post("/v1/sweeps", json=wanted)
    assert answer.status_code == 201, answer.text
    assert answer.json()["spec"]["program"]["env"] == ENV
    assert answer.json()["trials"][1]["values"] == {"program.env.RATE": VALUE + "2"}
    path = f"/v1/sweeps/{answer.json()['id']}"
    for asked in (path, f"{path}/report"):
        for accept in ("application/json", "text/html", "text/plain"):
            shown = await api.client.get(asked, headers=api.token(Scope.READ) | {"Accept": accept})
            if asked == path and accept != "application/json":
                continue
            assert shown.status_code == 200, shown.text
            assert VALUE not in shown.text
