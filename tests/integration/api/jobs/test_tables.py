"""Jobs as a table: columns from specs, results and progress, beside the rows of a list."""

import pytest

from jobs import store
from tests.integration.api.conftest import Api, bearer
from tests.support.samples.job_records import a_spec_body

pytestmark = [pytest.mark.integration, pytest.mark.anyio]


@pytest.fixture(autouse=True)
def node(api: Api) -> None:
    api.node()


async def test_a_table_has_the_rows_of_a_list_and_a_value_for_each_column(api: Api) -> None:
    first = await api.submit(name="one", labels={"sweep": "a"})
    second = await api.submit(name="two")
    api.control.run(store.dispatch(60))  # by itself it would be between the table and the list, now and then
    columns = "owner,spec.program.kind,loss,metrics.accuracy,no.such"
    table = await api.get(f"/v1/jobs/table?columns={columns}")
    listed = await api.get("/v1/jobs")
    assert [job["id"] for job in table["jobs"]] == [second, first]
    assert table["jobs"] == listed["jobs"]
    assert table["columns"] == columns.split(",")
    assert [values[1:] for values in table["values"]] == [["recipe", None, None, None]] * 2
    assert all(isinstance(values[0], str) and values[0] for values in table["values"])
    assert (sum(table["counts"].values()), table["counts"]["failed"]) == (2, 0)


async def test_a_status_names_the_tenant_and_the_owner_as_a_table_does(api: Api) -> None:
    body = {"name": "ana's laptop", "scopes": ["read", "submit"], "tenant": "vision"}
    made = (await api.client.post("/v1/tokens", json=body)).json()
    hers = bearer(made["token"])
    answer = await api.client.post("/v1/jobs", json=a_spec_body(), headers=hers)
    job = answer.json()["id"]
    read = await api.get(f"/v1/jobs/{job}", headers=hers)
    assert [(one["tenant"], one["owner"]) for one in (answer.json(), read)] == [("vision", "ana's laptop")] * 2
    table = await api.get("/v1/jobs/table?columns=owner", headers=hers)
    assert table["values"] == [["ana's laptop"]]
    mine = await api.get(f"/v1/jobs/{await api.submit()}")
    assert (mine["tenant"], mine["owner"]) == ("default", "operator")


async def test_a_table_is_read_page_by_page_and_filtered_as_a_list_is(api: Api) -> None:
    jobs = [await api.submit(name=f"job-{number}", labels={"even": str(number % 2 == 0)}) for number in range(5)]
    page = await api.get("/v1/jobs/table?limit=2&columns=owner")
    assert ([job["id"] for job in page["jobs"]], page["total"], page["total_is_exact"]) == (jobs[:2:-1], 5, True)
    rest = await api.get(f"/v1/jobs/table?limit=10&cursor={page['next']}")
    assert ([job["id"] for job in rest["jobs"]], rest["next"]) == (jobs[2::-1], None)
    following = await api.client.get(page["links"]["next"])
    assert ([job["id"] for job in following.json()["jobs"]], following.json()["columns"]) == (jobs[2:0:-1], ["owner"])
    assert following.links["next"]["url"] == following.json()["links"]["next"]
    even = await api.get("/v1/jobs/table?label=even%3DTrue")
    assert ([job["name"] for job in even["jobs"]], even["total"]) == (["job-4", "job-2", "job-0"], 3)
    assert even["links"] == {"self": "/v1/jobs/table?label=even%3DTrue"}


async def test_columns_that_the_newest_jobs_have_are_listed_with_what_they_hold(api: Api) -> None:
    await api.submit(name="one")
    found = {column["name"]: column for column in (await api.get("/v1/jobs/columns"))["columns"]}
    assert found["spec.program.kind"] == {"name": "spec.program.kind", "kind": "text", "jobs": 1}
    assert found["spec.resources.devices"]["kind"] == "number"
    assert not any(name.startswith(("spec.program.env.", "spec.program.code")) for name in found)


async def test_too_many_columns_are_refused_with_the_field(api: Api) -> None:
    answer = await api.client.get("/v1/jobs/table", params={"columns": ",".join(f"c{n}" for n in range(201))})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "columns"
