"""What lists say of themselves (how many there are, where the next page is, what they are a version of), their orders,
and changes that are for what a client has seen."""

from typing import Any

import pytest

from api.background import retention
from api.jobs import list_order
from jobs import store
from jobs.model.settings import Settings
from jobs.support import secret_keys
from tests.integration.api.conftest import Api

pytestmark = [pytest.mark.integration, pytest.mark.anyio]


async def names(api: Api, query: str) -> list[str]:
    """Of all jobs of a list, by its `links`."""
    found: list[str] = []
    following: str | None = f"/v1/jobs?{query}"
    while following is not None:
        page = await api.get(following)
        found += [job["name"] for job in page["jobs"]]
        following = page["links"].get("next")
    return found


@pytest.fixture
async def seven(api: Api) -> Api:
    """Seven jobs, three of a team; priorities 1 to 7 in the order in which they were made."""
    api.node(devices=0)
    api.node(devices=1, node="host-b", pool="other")
    for number in range(7):
        labels = {"team": "vision"} if number % 3 == 0 else {}
        await api.submit(name=f"job-{number}", pool="other", labels=labels, priority=number + 1)
    return api


async def test_links_lead_through_all_pages_and_keep_the_filter(seven: Api) -> None:
    assert await names(seven, "limit=3") == [f"job-{number}" for number in range(6, -1, -1)]
    assert await names(seven, "limit=2&label=team%3Dvision") == ["job-6", "job-3", "job-0"]
    page = await seven.client.get("/v1/jobs?limit=3")
    assert page.headers["link"] == f'<{page.json()["links"]["next"]}>; rel="next"'
    assert page.json()["links"]["self"] == "/v1/jobs?limit=3"
    last = await seven.client.get("/v1/jobs")
    assert "next" not in last.json()["links"]
    assert "link" not in last.headers


@pytest.mark.parametrize(
    ("query", "total", "exact"),
    [
        ("", 7, True),
        ("limit=2", 7, True),
        ("pool=other", 7, True),
        ("pool=default", 0, True),
        ("label=team%3Dvision&limit=1", 3, True),
        ("name=job-4", 1, True),
        ("name=job-4&pool=default", 0, True),
        ("search=job-", 7, True),
        ("search=job-&limit=3", 3, False),
        ("archived=true", 0, True),
        ("sort=-priority&limit=2", 7, True),
    ],
)
async def test_a_list_says_how_many_match(seven: Api, query: str, total: int, exact: bool) -> None:
    page = await seven.get(f"/v1/jobs?{query}")
    assert (page["total"], page["total_is_exact"]) == (total, exact)


async def test_states_are_counted_whatever_there_is(seven: Api) -> None:
    counted = [await seven.get(f"/v1/jobs?state={state}&limit=1") for state in ("queued", "starting", "running")]
    assert sum(page["total"] for page in counted) == 7
    assert all(page["total_is_exact"] for page in counted)


async def test_more_than_are_counted_is_said_to_be_more(seven: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store.job_lists, "MAX_SCANNED", 4)
    page = await seven.get("/v1/jobs?label=team%3Dvision&limit=1")
    assert (page["total"], page["total_is_exact"]) == (2, False)
    monkeypatch.setattr(list_order, "MAX_SORTED", 4)
    monkeypatch.setattr(list_order, "PAGE_JOBS", 4)
    page = await seven.get("/v1/jobs?sort=priority&limit=1")
    assert (page["total"], page["total_is_exact"], page["jobs"][0]["name"]) == (4, False, "job-3")


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("sort=created_at", range(7)),
        ("sort=-created_at", range(6, -1, -1)),
        ("sort=priority", range(7)),
        ("sort=-priority", range(6, -1, -1)),
        ("sort=name", range(7)),
        ("sort=-name", range(6, -1, -1)),
        ("sort=created_at&label=team%3Dvision", (0, 3, 6)),
        ("sort=created_at&name=job-5", (5,)),
        ("sort=created_at&search=job", range(7)),
        ("sort=-priority&search=job", range(6, -1, -1)),
    ],
)
@pytest.mark.parametrize("limit", [2, 50])
async def test_a_list_comes_in_the_order_that_was_asked_for(seven: Api, query: str, wanted: Any, limit: int) -> None:
    assert await names(seven, f"{query}&limit={limit}") == [f"job-{number}" for number in wanted]


async def test_jobs_without_the_value_come_last_in_both_orders(seven: Api) -> None:
    await seven.client.post("/v1/jobs/cancel", json={"name": "job-2"})
    for sort in ("finished_at", "-finished_at"):
        assert (await names(seven, f"sort={sort}"))[0] == "job-2"


async def test_an_order_that_is_not_there_is_refused(seven: Api) -> None:
    for query, field in (("sort=colour", "sort"), ("sort=name&archived=true", "sort")):
        answer = await seven.client.get(f"/v1/jobs?{query}")
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, field)
    cursor = (await seven.get("/v1/jobs?limit=1"))["next"]
    answer = await seven.client.get(f"/v1/jobs?sort=name&cursor={cursor}")
    assert (answer.status_code, answer.json()["code"]) == (400, "malformed_cursor")


#: Not shares, whose numbers change by themselves while jobs run.
LISTS = ("jobs", "pools", "nodes", "recipes", "secrets", "webhooks", "tokens", "quota", "me")


@pytest.mark.parametrize("name", LISTS)
async def test_a_list_has_a_tag_and_is_not_sent_again(seven: Api, name: str) -> None:
    first = await seven.client.get(f"/v1/{name}")
    tag = first.headers["etag"]
    for given in (tag, f'"other", {tag}', "*"):
        again = await seven.client.get(f"/v1/{name}", headers={"If-None-Match": given})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    other = await seven.client.get(f"/v1/{name}", headers={"If-None-Match": 'W/"other"'})
    assert other.content == first.content


async def test_the_tag_of_a_list_changes_with_the_list(seven: Api) -> None:
    tag = (await seven.client.get("/v1/jobs?limit=2")).headers["etag"]
    await seven.submit(pool="other")
    assert (await seven.client.get("/v1/jobs?limit=2", headers={"If-None-Match": tag})).status_code == 200


# -- If-Match ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/suspend"), ("POST", "/resume"), ("POST", "/cancel"), ("DELETE", "")],
)
async def test_a_change_is_for_the_job_as_the_client_has_seen_it(api: Api, method: str, path: str) -> None:
    api.node(devices=1)
    await api.submit()
    job = await api.submit()
    if method == "DELETE":
        await api.client.post(f"/v1/jobs/{job}/cancel")
    seen = (await api.client.get(f"/v1/jobs/{job}")).headers["etag"]
    for stale in ('W/"0.abc"', '"nothing"', ""):
        answer = await api.client.request(method, f"/v1/jobs/{job}{path}", headers={"If-Match": stale})
        assert (answer.status_code, answer.json()["code"]) == (412, "precondition_failed"), stale
    assert (await api.client.get(f"/v1/jobs/{job}")).headers["etag"] == seen
    answer = await api.client.request(method, f"/v1/jobs/{job}{path}", headers={"If-Match": f'W/"0.a", {seen}'})
    assert answer.status_code in (202, 204), answer.text


async def test_any_version_will_do_where_a_star_says_so(api: Api) -> None:
    api.node(devices=1)
    job = await api.submit()
    answer = await api.client.post(f"/v1/jobs/{job}/cancel", headers={"If-Match": "*"})
    assert answer.status_code == 202


async def test_an_archived_job_has_its_version_too(api: Api) -> None:
    api.node(devices=1)
    job = await api.submit()
    await api.client.post(f"/v1/jobs/{job}/cancel")
    seen = (await api.client.get(f"/v1/jobs/{job}")).headers["etag"]
    assert not retention.sweep_finished_jobs(api.control, api.storage, 1e-6, 0)
    stale = await api.client.delete(f"/v1/jobs/{job}", headers={"If-Match": 'W/"0.abc"'})
    assert stale.status_code == 412
    assert (await api.client.delete(f"/v1/jobs/{job}", headers={"If-Match": seen})).status_code == 204


@pytest.mark.parametrize(
    ("path", "first", "second"),
    [
        ("/v1/quotas/acme", {"jobs": 1}, {"jobs": 2}),
        ("/v1/shares/acme", {"weight": 2}, {"weight": 3}),
        ("/v1/pools/default", {"network": "host"}, {"box": "full"}),
        ("/v1/secrets/hf", {"value": "the-value-of-one"}, {"value": "the-value-of-two"}),
    ],
)
async def test_two_administrators_do_not_overwrite_each_other(
    api: Api, settings: Settings, path: str, first: dict[str, Any], second: dict[str, Any]
) -> None:
    api.node()
    secret_keys.create_key_file(settings.secret_keys())
    if path == "/v1/secrets/hf":
        early = await api.client.put(path, json=first, headers={"If-Match": "*"})
        assert (early.status_code, (await api.client.get(path)).status_code) == (412, 404)
        await api.client.put(path, json=first)
    tag = (await api.client.get(path)).headers["etag"]
    assert (await api.client.put(path, json=first, headers={"If-Match": tag})).status_code == 200
    late = await api.client.put(path, json=second, headers={"If-Match": tag})
    assert (late.status_code, late.json()["code"]) == (412, "precondition_failed")
    tag = (await api.client.get(path)).headers["etag"]
    assert (await api.client.put(path, json=second, headers={"If-Match": tag})).status_code == 200


async def test_a_pool_is_as_it_was_while_its_policy_is(api: Api) -> None:
    assert (await api.client.get("/v1/pools/default")).json()["code"] == "not_found"
    api.node()
    seen = await api.client.get("/v1/pools/default")
    assert seen.json() == (await api.get("/v1/pools"))["pools"][0]
    tag = seen.headers["etag"]
    assert (await api.client.get("/v1/pools/default", headers={"If-None-Match": tag})).status_code == 304
    await api.submit()
    later = await api.client.get("/v1/pools/default", headers={"If-None-Match": tag})
    assert (later.status_code, later.headers["etag"] != tag) == (200, True)
    answer = await api.client.put("/v1/pools/default", json={"preempt": True}, headers={"If-Match": tag})
    assert (answer.status_code, answer.json()["preempt"]) == (200, True)
    for stale in (tag, later.headers["etag"], "", '"x"'):
        answer = await api.client.put("/v1/pools/default", json={}, headers={"If-Match": stale})
        assert (answer.status_code, answer.json()["code"]) == (412, "precondition_failed"), stale
    assert (await api.client.put("/v1/pools/default", json={}, headers={"If-Match": "*"})).status_code == 200


async def test_what_is_taken_away_or_replaced_is_what_the_client_has_seen(api: Api, settings: Settings) -> None:
    secret_keys.create_key_file(settings.secret_keys())
    await api.client.put("/v1/quotas/acme", json={"jobs": 1})
    await api.client.put("/v1/secrets/hf", json={"value": "a-long-value"})
    made = await api.client.post("/v1/webhooks", json={"url": "https://hooks.example/x", "events": ["*"]})
    webhook = f"/v1/webhooks/{made.json()['id']}"
    for method, path, change in (
        ("DELETE", "/v1/quotas/acme", ""),
        ("DELETE", "/v1/secrets/hf", ""),
        ("POST", webhook, "/rotate"),
        ("DELETE", webhook, ""),
    ):
        tag = (await api.client.get(path)).headers["etag"]
        stale = await api.client.request(method, path + change, headers={"If-Match": 'W/"0.abc"'})
        assert (stale.status_code, stale.json()["code"]) == (412, "precondition_failed"), path
        assert (await api.client.get(path)).headers["etag"] == tag
        assert (await api.client.request(method, path + change, headers={"If-Match": tag})).is_success, path
