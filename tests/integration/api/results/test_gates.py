"""`POST /v1/jobs/{job}/gate`: limits on the report of a job that has ended."""

from typing import Any

import msgspec
import pytest

from jobs.files import paths
from jobs.store.accounts.tokens import Scope
from shardyard.contract.report import Report, StepTimes, encode_report
from tests.integration.api.conftest import Api
from tests.integration.api.jobs.test_jobs import until_state
from tests.integration.api.results.test_splits import a_report

pytestmark = [pytest.mark.integration, pytest.mark.anyio]


def timed_report(step_ms: float, over_mean: float = 1.0, **changes: Any) -> Report:
    """Of twelve windows that differ by a hundredth."""
    times = [
        StepTimes(10 + 10 * at, 10, step_ms * (1 + 0.01 * (at % 3)), 30.0, over_mean + 0.001 * (at % 3))
        for at in range(12)
    ]
    return msgspec.structs.replace(a_report(), step_times=tuple(times), **changes)


async def ended(api: Api, report: Report | None) -> str:
    """A job that has succeeded, and left that report."""
    job = await api.submit(3)
    await until_state(api, job, "starting")
    api.run_to_end(job)
    if report is not None:
        directory = paths.attempt_dir(api.storage, "default", job, 1)
        directory.mkdir(parents=True)
        paths.report_file(directory).write_bytes(encode_report(report))
    return job


async def judge(api: Api, job: str, **limits: Any) -> tuple[int, Any]:
    answer = await api.client.post(f"/v1/jobs/{job}/gate", json=limits)
    return answer.status_code, answer.json()


async def test_a_gate_says_which_limits_are_kept_and_which_are_broken(api: Api) -> None:
    api.node()
    job = await ended(api, timed_report(10.0, 1.5))

    status, verdict = await judge(api, job, max_time_imbalance=1.2, max_idle=0, no_finding=["idle-devices"])

    assert status == 200
    assert (verdict["job_id"], verdict["attempt"], verdict["outcome"]) == (job, 1, "broken")
    assert [(check["name"], check["outcome"]) for check in verdict["checks"]] == [
        ("succeeded", "passed"),
        ("max_time_imbalance", "broken"),
        ("max_idle", "passed"),
        ("no_finding.idle-devices", "passed"),
    ]
    broken = verdict["checks"][1]
    assert (broken["figure"], broken["limit"]) == (pytest.approx(1.501), 1.2)
    assert broken["low"] <= broken["figure"] <= broken["high"]
    assert (await judge(api, job, max_time_imbalance=1.6))[1]["outcome"] == "passed"
    assert (await judge(api, job, max_time_imbalance=1.501))[1]["outcome"] == "unclear"


async def test_a_slowdown_is_judged_beside_another_job(api: Api) -> None:
    api.node()
    base, same, slower = [await ended(api, timed_report(step_ms)) for step_ms in (10.0, 10.05, 12.0)]

    for job, outcome in ((same, "passed"), (slower, "broken")):
        _, verdict = await judge(api, job, against=base, max_slowdown=1.1)
        assert (verdict["outcome"], verdict["against"]) == (outcome, base)


async def test_a_job_of_another_shape_is_refused_with_what_differs(api: Api) -> None:
    api.node()
    job = await ended(api, timed_report(10.0))
    other = await ended(api, timed_report(10.0, strategy="ddp", device_kind="cuda", virtual=False))

    status, refusal = await judge(api, job, against=other, max_slowdown=1.1)

    assert (status, refusal["code"]) == (409, "not_comparable")
    assert "strategy dp against ddp; kind of devices virtual cpu against cuda" in refusal["detail"]


async def test_jobs_that_have_not_ended_or_left_no_report_are_not_judged(api: Api) -> None:
    api.node()
    done = await ended(api, timed_report(10.0))
    runs = await api.submit(1)
    await until_state(api, runs, "starting")
    for job, against in ((runs, {}), (done, {"against": runs, "max_slowdown": 2.0})):
        status, refusal = await judge(api, job, max_idle=0, **against)
        assert (status, refusal["code"]) == (409, "job_not_finished")
    silent = await ended(api, None)
    status, refusal = await judge(api, silent, max_idle=0)
    assert (status, refusal["code"]) == (404, "not_found")
    assert "without a split report" in refusal["detail"]


async def test_a_job_that_was_cancelled_breaks_every_gate(api: Api) -> None:
    api.node()
    job = await api.submit(3)
    await until_state(api, job, "starting")
    await api.client.post(f"/v1/jobs/{job}/cancel")
    await until_state(api, job, "cancelled")
    directory = paths.attempt_dir(api.storage, "default", job, 1)
    directory.mkdir(parents=True)
    paths.report_file(directory).write_bytes(encode_report(timed_report(10.0)))

    _, verdict = await judge(api, job, max_idle=0)

    assert verdict["outcome"] == "broken"
    assert verdict["checks"][0]["name"] == "succeeded"
    assert "the job is cancelled" in verdict["checks"][0]["message"]


@pytest.mark.parametrize(
    ("limits", "field", "words"),
    [
        ({}, "max_time_imbalance", "give at least one limit: max_time_imbalance, max_row_imbalance, max_idle"),
        ({"no_finding": ["slow-devise"]}, "no_finding.0", "did you mean 'slow-device'?"),
        ({"against": "nonsense", "max_slowdown": 2.0}, "against", "the whole id of a job"),
        ({"max_slowdown": 1.05}, "against", "name the job"),
        ({"against": "01a206b6-a3c7-72da-9460-dc116caac623"}, "max_slowdown", "say how much slower"),
        ({"max_idle": -1}, "max_idle", "at least 0"),
        ({"max_idel": 1}, "max_idel", "did you mean 'max_idle'?"),
    ],
)
async def test_limits_that_are_wrong_are_refused_by_name(
    api: Api, limits: dict[str, Any], field: str, words: str
) -> None:
    api.node()
    status, refusal = await judge(api, await api.submit(), **limits)
    assert status == 422
    assert refusal["errors"][0]["field"] == field
    assert words in refusal["errors"][0]["message"]


async def test_a_gate_reads_and_is_for_the_jobs_of_ones_own_tenant(api: Api) -> None:
    api.node()
    job = await ended(api, timed_report(10.0))
    for headers, status in (
        (api.token(Scope.READ), 200),
        (api.token(Scope.READ, tenant="rival"), 404),
        ({"Authorization": "Bearer guess"}, 401),
    ):
        answer = await api.client.post(f"/v1/jobs/{job}/gate", json={"max_idle": 0}, headers=headers)
        assert answer.status_code == status, answer.text
    same = await api.client.post(f"/v1/jobs/{job}/gate", json={"against": job, "max_slowdown": 2.0})
    assert (same.status_code, same.json()["errors"][0]["field"]) == (422, "against")
