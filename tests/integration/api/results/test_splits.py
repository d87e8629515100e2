import pytest

from jobs.files import paths
from jobs.protocol import names
from shardyard.contract.report import Report, encode_report
from tests.integration.api.conftest import Api
from tests.integration.api.jobs.test_jobs import until_state
from tests.support.samples.job_records import a_spec
from tests.support.samples.record_streams import aggregator, rank_stream

pytestmark = [pytest.mark.integration, pytest.mark.anyio]


def a_report() -> Report:
    spec = a_spec(3)
    told = aggregator(spec, 100)
    for record in rank_stream(spec, 0, 100):
        told.add_record(0, record)
    return told.make_report(final=True)


async def started(api: Api) -> str:
    api.node()
    job = await api.submit(3)
    await until_state(api, job, "starting")
    return job


async def test_the_report_comes_from_telemetry_and_later_from_its_file(api: Api) -> None:
    job = await started(api)
    key = names.report_key("default", job, 1)
    api.control.client.set(key, encode_report(a_report()))
    live = await api.get(f"/v1/jobs/{job}/splits")
    assert [pattern["rows"] for pattern in live["patterns"]] == [[10, 10, 10], [4, 4, 2]]
    assert [device["rows"] for device in live["per_device"]] == [34, 34, 32]
    directory = paths.attempt_dir(api.storage, "default", job, 1)
    directory.mkdir(parents=True)
    paths.report_file(directory).write_bytes(encode_report(a_report()))
    api.control.client.delete(key)
    assert await api.get(f"/v1/jobs/{job}/splits") == live
    assert await api.get(f"/v1/jobs/{job}/splits?attempt=1") == live


async def test_the_report_can_be_had_for_one_device(api: Api) -> None:
    job = await started(api)
    api.control.client.set(names.report_key("default", job, 1), encode_report(a_report()))
    one = await api.get(f"/v1/jobs/{job}/splits?device=2")
    assert [device["device"] for device in one["per_device"]] == [2]
    assert [device["device"] for device in one["devices"]] == [2]
    assert len(one["patterns"]) == 2
    answer = await api.client.get(f"/v1/jobs/{job}/splits?device=3")
    assert answer.status_code == 404
    assert "numbered from 0" in answer.json()["detail"]


async def test_the_report_is_text_for_those_who_ask_for_text(api: Api) -> None:
    job = await started(api)
    api.control.client.set(names.report_key("default", job, 1), encode_report(a_report()))
    answer = await api.client.get(f"/v1/jobs/{job}/splits", headers={"Accept": "text/plain"})
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "10" in answer.text


@pytest.mark.parametrize("body", [b"", b"[]", b"\x80\x04.", b'{"job_id": 1}'])
async def test_bytes_that_are_no_report_are_never_shown(api: Api, body: bytes) -> None:
    job = await started(api)
    api.control.client.set(names.report_key("default", job, 1), body)
    answer = await api.client.get(f"/v1/jobs/{job}/splits")
    assert answer.status_code == 404
    assert "cannot be read" in answer.json()["detail"]


async def two_with_reports(api: Api) -> tuple[str, str]:
    job, other = await started(api), await api.submit()
    await until_state(api, other, "starting")
    for name in (job, other):
        api.control.client.set(names.report_key("default", name, 1), encode_report(a_report()))
    return job, other


async def test_two_reports_are_shown_side_by_side(api: Api) -> None:
    job, other = await two_with_reports(api)
    found = await api.get(f"/v1/jobs/{job}/splits/diff?against={other}")
    assert [(p["rows"], p["this_steps"], p["against_steps"]) for p in found["patterns"]] == [
        ([10, 10, 10], 3, 3),
        ([4, 4, 2], 1, 1),
    ]
    assert found["per_device"][2]["rows"] == {"this": 32, "against": 32, "ratio": 1.0}
    path = f"/v1/jobs/{job}/splits/diff?against={other}&attempt=1&against_attempt=1"
    text = await api.client.get(path, headers={"Accept": "text/plain"})
    assert text.headers["content-type"] == "text/plain; charset=utf-8"
    assert "Two split reports side by side" in text.text


async def test_what_cannot_be_compared_says_why(api: Api) -> None:
    job, other = await two_with_reports(api)
    missing = await api.client.get(f"/v1/jobs/{job}/splits/diff")
    assert (missing.status_code, missing.json()["errors"][0]["field"]) == (422, "against")
    stranger = await api.client.get(f"/v1/jobs/{job}/splits/diff?against=nonsense")
    assert (stranger.status_code, stranger.json()["code"]) == (404, "not_found")
    assert (await api.client.get(f"/v1/jobs/{job}/splits/diff?against={other}&against_attempt=2")).status_code == 404
