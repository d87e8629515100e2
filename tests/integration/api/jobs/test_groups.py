"""Comparisons and sweeps over HTTP."""

import asyncio
from typing import Any

import pytest

from api.groups import optuna_search, trials
from jobs import store
from jobs.store import groups
from jobs.store.accounts.tokens import Scope
from shardyard.contract.errors import FieldError, InvalidRequest
from tests.integration.api.conftest import Api
from tests.integration.store.invariants import violations

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

CLASSIFIER: dict[str, Any] = {
    "model": {"ref": "mlp", "args": {"in_features": 64, "hidden": [16], "out_features": 10}},
    "data": {"ref": "digits", "batch_size": 48},
    "loss": {"ref": "cross_entropy"},
    "optimizer": {"ref": "sgd", "args": {"lr": 0.1}},
}
SPEC: dict[str, Any] = {"name": "digits", "program": CLASSIFIER}
COMPARISON: dict[str, Any] = {"spec": SPEC, "strategies": ["single", "dp", "ddp"], "devices": [1, 2], "steps": 20}
SWEEP: dict[str, Any] = {"spec": SPEC, "grid": {"program.optimizer.args.lr": [0.1, 0.2], "program.seed": [1, 2]}}


async def post(api: Api, path: str, body: Any, **request: Any) -> Any:
    answer = await api.client.post(path, json=body, **request)
    assert answer.status_code in (201, 202), answer.text
    return answer.json()


async def fields_of_refusal(api: Api, path: str, body: Any) -> dict[str, str]:
    answer = await api.client.post(path, json=body)
    assert answer.status_code == 422, answer.text
    return {error["field"]: error["message"] for error in answer.json()["errors"]}


async def test_a_comparison_runs_each_strategy_on_each_number_of_devices_with_the_same_rows(api: Api) -> None:
    api.node(devices=2)
    found = await post(api, "/v1/comparisons", COMPARISON)
    assert found["global_batch_size"] == 48
    assert [(one["strategy"], one["devices"], one["batch_size"]) for one in found["variants"]] == [
        ("single", 1, 48),
        ("dp", 1, 48),
        ("ddp", 1, 48),
        ("dp", 2, 48),
        ("ddp", 2, 24),
    ]
    assert [(one["strategy"], one["devices"]) for one in found["left_out"]] == [("single", 2)]
    jobs = (await api.get(f"/v1/jobs?group={found['id']}"))["jobs"]
    assert {job["group"] for job in jobs} == {found["id"]}
    spec = (await api.get(f"/v1/jobs/{found['variants'][4]['job']}"))["spec"]
    assert (spec["program"]["max_steps"], spec["resources"]["devices"]) == (20, 2)
    assert await api.get(found["links"]["self"]) == await api.get(f"/v1/comparisons/{found['id']}")
    assert violations(api.control.client) == []


async def test_a_sweep_runs_all_of_a_grid_or_what_a_seed_draws(api: Api) -> None:
    api.node()
    found = await post(api, "/v1/sweeps", SWEEP)
    assert [tuple(one["values"].values()) for one in found["trials"]] == [(0.1, 1), (0.1, 2), (0.2, 1), (0.2, 2)]
    spec = (await api.get(f"/v1/jobs/{found['trials'][3]['job']}"))["spec"]
    assert (spec["program"]["optimizer"]["args"]["lr"], spec["program"]["seed"]) == (0.2, 2)
    drawn = {"program.optimizer.args.lr": {"min": 0.001, "max": 0.1, "log": True}, "program.seed": [3, 4]}
    body = {"spec": SPEC, "random": drawn, "trials": 5, "seed": 7}
    one, same = [await post(api, "/v1/sweeps", body) for _ in range(2)]
    assert [trial["values"] for trial in one["trials"]] == [trial["values"] for trial in same["trials"]]
    assert all(0.001 <= trial["values"]["program.optimizer.args.lr"] <= 0.1 for trial in one["trials"])
    assert {trial["values"]["program.seed"] for trial in one["trials"]} <= {3, 4}
    other = await post(api, "/v1/sweeps", body | {"seed": 8})
    assert [trial["values"] for trial in one["trials"]] != [trial["values"] for trial in other["trials"]]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"strategies": []}, "strategies"),
        ({"strategies": ["dp", "dp"]}, "strategies"),
        ({"devices": [0]}, "devices.0"),
        ({"steps": 0}, "steps"),
        ({"devices": [5]}, "spec.program.data.batch_size"),
        ({"strategies": ["single"], "devices": [2]}, "strategies"),
        ({"spec": {"program": CLASSIFIER | {"epochs": 0}}}, "spec.program.epochs"),
        ({"spec": {"program": CLASSIFIER | {"mode": "forward", "loss": None, "optimizer": None}}}, "spec.program.mode"),
        ({"spec": SPEC | {"pool": "other"}}, "spec.pool"),
        ({"more": 1}, "more"),
    ],
)
async def test_a_comparison_that_cannot_be_made_is_refused_by_its_field(
    api: Api, change: dict[str, Any], field: str
) -> None:
    api.node(devices=8)
    assert field in await fields_of_refusal(api, "/v1/comparisons", COMPARISON | change)
    assert (await api.get("/v1/jobs"))["total"] == 0


async def test_variants_that_no_node_has_devices_for_are_left_out(api: Api) -> None:
    api.node(devices=2)
    found = await post(api, "/v1/comparisons", COMPARISON | {"devices": [2, 4], "strategies": ["ddp"]})
    assert [one["devices"] for one in found["variants"]] == [2]
    assert found["left_out"] == [
        {"strategy": "ddp", "devices": 4, "why": "the largest node of pool default has 2 devices"}
    ]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"random": {"program.seed": [1]}, "trials": 2}, "grid"),
        ({"grid": None}, "grid"),
        ({"grid": {"program.seed": []}}, "grid.program.seed"),
        ({"grid": {"program.epochs": [1, 0]}}, "grid.program.epochs"),
        ({"grid": {"program.model.ref.x": [1]}}, "grid.program.model.ref.x"),
        ({"grid": {"program.seed": list(range(101)), "program.epochs": [1, 2]}}, "grid"),
        ({"trials": 4}, "trials"),
        ({"grid": None, "random": {"program.seed": [1]}}, "trials"),
        ({"grid": None, "random": {"program.seed": {"min": 2, "max": 1}}, "trials": 1}, "random.program.seed"),
        ({"metric": "accuracy"}, "metric"),
        ({"max_concurrent": 0}, "max_concurrent"),
    ],
)
async def test_a_sweep_that_cannot_be_made_is_refused_by_its_field(
    api: Api, change: dict[str, Any], field: str
) -> None:
    api.node()
    body = {name: value for name, value in (SWEEP | change).items() if value is not None}
    assert field in await fields_of_refusal(api, "/v1/sweeps", body)
    assert (await api.get("/v1/jobs"))["total"] == 0


@pytest.mark.parametrize(("path", "body"), [("/v1/comparisons", COMPARISON), ("/v1/sweeps", SWEEP)])
async def test_a_repeat_with_the_same_key_makes_nothing_new(api: Api, path: str, body: dict[str, Any]) -> None:
    api.node()
    key = {"Idempotency-Key": "once"}
    first = await post(api, path, body, headers=key)
    again = await api.client.post(path, json=body, headers=key)
    assert (again.status_code, again.json()["id"]) == (200, first["id"])
    other = await api.client.post(path, json=body | {"name": "other"}, headers=key)
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_conflict")
    assert (await api.get("/v1/jobs"))["total"] == first["jobs"]


@pytest.mark.parametrize(("path", "body"), [("/v1/comparisons", COMPARISON), ("/v1/sweeps", SWEEP)])
async def test_a_group_is_listed_cancelled_and_another_tenants_is_not_there(
    api: Api, path: str, body: dict[str, Any]
) -> None:
    api.node()
    older, newer = [(await post(api, path, body))["id"] for _ in range(2)]
    page = await api.get(f"{path}?limit=1")
    (groups,) = (value for name, value in page.items() if name in ("comparisons", "sweeps"))
    assert ([one["id"] for one in groups], page["total"]) == ([newer], 2)
    page = await api.get(page["links"]["next"])
    (groups,) = (value for name, value in page.items() if name in ("comparisons", "sweeps"))
    assert ([one["id"] for one in groups], page["next"]) == ([older], None)
    for _ in range(2):
        found = await post(api, f"{path}/{older}/cancel", None)
        assert (found["state"], set(found["counts"])) == ("cancelled", {"cancelled"})
    stranger = api.token(Scope.SUBMIT, tenant="acme")
    for wanted in (f"{path}/{newer}", f"{path}/{newer}/report", f"{path}/x"):
        answer = await api.client.get(wanted, headers=stranger)
        assert answer.status_code == 404, wanted
    assert (await api.client.post(f"{path}/{newer}/cancel", headers=stranger)).status_code == 404
    reader = api.token(Scope.READ)
    assert (await api.client.post(path, json=body, headers=reader)).status_code == 403


@pytest.mark.parametrize(("path", "body"), [("/v1/comparisons", COMPARISON), ("/v1/sweeps", SWEEP)])
async def test_a_report_is_there_from_the_beginning_in_every_form(api: Api, path: str, body: dict[str, Any]) -> None:
    api.node()
    found = await post(api, path, body)
    report = await api.get(f"{path}/{found['id']}/report")
    assert not report["complete"]
    for media, words in (("text/plain", found["id"]), ("text/html", "<!DOCTYPE html>"), ("image/svg+xml", "<svg")):
        answer = await api.client.get(f"{path}/{found['id']}/report", headers={"Accept": media})
        assert answer.headers["content-type"].startswith(media)
        assert words in answer.text


async def test_a_group_whose_jobs_are_deleted_one_by_one_is_shown_until_the_last(api: Api) -> None:
    api.node()
    found = await post(api, "/v1/sweeps", SWEEP)
    await post(api, f"/v1/sweeps/{found['id']}/cancel", None)
    for place, trial in enumerate(found["trials"]):
        shown = await api.get(f"/v1/sweeps/{found['id']}")
        assert [one["state"] for one in shown["trials"]] == ["deleted"] * place + ["cancelled"] * (4 - place)
        api.control.run(store.delete_job("default", trial["job"]))
    assert (await api.client.get(f"/v1/sweeps/{found['id']}")).status_code == 404


SEARCH: dict[str, Any] = {
    "spec": SPEC,
    "random": {"program.optimizer.args.lr": {"min": 1e-4, "max": 0.5, "log": True}, "program.seed": [1, 2, 3]},
    "trials": 6,
    "search": "optuna",
    "max_concurrent": 2,
}


def refuse_all(*_: Any) -> None:
    raise InvalidRequest("the sweep is not valid", fields=(FieldError("random.x", "no"),))


async def until_there_are(api: Api, sweep: str, trials: int, state: str = "running") -> Any:
    async with asyncio.timeout(30):
        while True:
            found = await api.get(f"/v1/sweeps/{sweep}")
            if len(found["trials"]) == trials and found["state"] == state:
                return found
            await asyncio.sleep(0.05)


async def end_trial(api: Api, job: str, loss: float) -> None:
    async with asyncio.timeout(30):
        while (await api.get(f"/v1/jobs/{job}"))["state"] != "starting":
            await asyncio.sleep(0.05)
    api.run_to_end(job, loss=loss)


async def test_a_search_gets_a_trial_for_each_that_ends_until_all_are_there(api: Api) -> None:
    api.node()
    found = await post(api, "/v1/sweeps", SEARCH)
    assert (found["search"], found["planned"], len(found["trials"])) == ("optuna", 6, 2)
    for ended in range(6):
        trial = found["trials"][ended]
        await end_trial(api, trial["job"], loss=trial["values"]["program.optimizer.args.lr"])
        there = min(ended + 3, 6)
        found = await until_there_are(api, found["id"], there, "succeeded" if ended == 5 else "running")
        assert violations(api.control.client) == []
    assert [one["number"] for one in found["trials"]] == list(range(6))
    for one in found["trials"]:
        spec = (await api.get(f"/v1/jobs/{one['job']}"))["spec"]["program"]
        assert spec["optimizer"]["args"]["lr"] == one["values"]["program.optimizer.args.lr"]
        assert spec["seed"] == one["values"]["program.seed"]
    report = await api.get(f"/v1/sweeps/{found['id']}/report")
    rates = [one["values"]["program.optimizer.args.lr"] for one in found["trials"]]
    assert report["best"] == rates.index(min(rates))
    study = await api.client.get(f"/v1/sweeps/{found['id']}/study")
    assert study.headers["content-type"] == "application/octet-stream"
    assert len(study.content.splitlines()) >= 6
    assert violations(api.control.client) == []


async def test_a_cancelled_search_gets_no_more_trials(api: Api) -> None:
    api.node()
    found = await post(api, "/v1/sweeps", SEARCH)
    found = await post(api, f"/v1/sweeps/{found['id']}/cancel", None)
    assert (found["state"], len(found["trials"])) == ("cancelled", 2)
    assert api.control.run(groups.list_searches()) == []
    assert violations(api.control.client) == []


async def test_a_search_that_finds_no_valid_trial_ends_with_a_note(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    api.node()
    found = await post(api, "/v1/sweeps", SEARCH | {"max_concurrent": 1, "trials": 3})
    monkeypatch.setattr(trials, "make_spec", refuse_all)
    await end_trial(api, found["trials"][0]["job"], loss=1.0)
    found = await until_there_are(api, found["id"], 1, "succeeded")
    assert found["note"] == "no more trials after this: the sweep is not valid; random.x: no"
    assert api.control.run(groups.list_searches()) == []
    assert (await api.get(f"/v1/sweeps/{found['id']}/report"))["notes"] == [found["note"]]


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"grid": SWEEP["grid"], "random": None, "trials": None}, "search", "the values are in `grid`"),
        ({"trials": None}, "trials", "say how many"),
        (
            {"random": {"program.data.batch_size": {"min": -9, "max": -1}}},
            "random.program.data.batch_size",
            "at least 1",
        ),
    ],
)
async def test_a_search_that_cannot_be_made_is_refused_by_its_field(
    api: Api, change: dict[str, Any], field: str, words: str
) -> None:
    body = {name: value for name, value in (SEARCH | change).items() if value is not None}
    assert words in (await fields_of_refusal(api, "/v1/sweeps", body))[field]


async def test_without_optuna_a_search_is_refused_with_what_to_do(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optuna_search, "is_installed", lambda: False)
    assert "shardyard[optuna]" in (await fields_of_refusal(api, "/v1/sweeps", SEARCH))["search"]


async def test_the_study_is_for_those_who_may_submit_and_of_searches_alone(api: Api) -> None:
    api.node()
    search, sweep = [await post(api, "/v1/sweeps", body) for body in (SEARCH, SWEEP)]
    path = f"/v1/sweeps/{search['id']}/study"
    assert (await api.client.get(path, headers=api.token(Scope.READ))).status_code == 403
    assert (await api.client.get(path, headers=api.token(Scope.SUBMIT, tenant="other"))).status_code == 404
    assert (await api.client.get(f"/v1/sweeps/{sweep['id']}/study")).status_code == 404
