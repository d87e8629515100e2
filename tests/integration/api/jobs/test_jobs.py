import asyncio
import json
import time
from typing import Any

import msgspec
import pytest

from jobs.files import paths
from jobs.files.log_file import LineRun, LogWriter
from jobs.files.metric_file import MetricWriter
from jobs.protocol import names
from jobs.protocol.hardware import AttemptSamples, DeviceSamples, NodeReading, encode_readings, encode_samples
from jobs.protocol.records import MetricSample
from jobs.store.accounts.tokens import Scope
from shardyard.contract.responses import Progress
from tests.integration.api.conftest import Api
from tests.support.samples.job_records import JOB, a_spec_body

pytestmark = [pytest.mark.integration, pytest.mark.anyio]


async def until_state(api: Api, job: str, state: str, headers: dict[str, str] | None = None) -> Any:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        status = await api.get(f"/v1/jobs/{job}", headers=headers)
        if status["state"] == state:
            return status
        await asyncio.sleep(0.01)
    raise AssertionError(f"{job} did not become {state}: {status}")


async def test_a_submitted_job_is_leased_and_its_node_is_told_at_once(api: Api) -> None:
    api.node()
    answer = await api.client.post("/v1/jobs", json=a_spec_body(3))
    assert answer.status_code == 201
    job = answer.json()["id"]
    assert answer.headers["location"] == f"/v1/jobs/{job}"
    status = await until_state(api, job, "starting")
    assert status["placement"] == [{"node": "host-a", "devices": ["cpu:0", "cpu:1", "cpu:2"], "ranks": [0]}]
    assert status["attempt"] == 1
    assert status["spec"]["program"]["data"]["batch_size"] == status["batch_size"] == 30
    queue = f"{names.CELERY_KEY_PREFIX}{names.node_queue('host-a')}"
    deadline = time.monotonic() + 60
    while not (hints := api.control.client.lrange(queue, 0, -1)) and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    (hint,) = hints
    assert json.loads(hint)["headers"]["task"] == names.CELERY_TASK


async def test_a_queued_job_says_what_it_waits_for_and_where_it_stands(api: Api) -> None:
    api.node(devices=4)
    first = await api.submit(3)
    await until_state(api, first, "starting")
    await api.submit(2)
    status = await api.get(f"/v1/jobs/{await api.submit(4)}")
    assert status["reason"] == {
        "code": "waiting_for_devices",
        "message": "needs 4 in pool default: 1 of 4 free, 1 job ahead",
    }
    assert status["queue_position"] == 2


async def test_fifty_submits_at_once_with_one_key_make_one_job(api: Api) -> None:
    api.node()
    body, key = a_spec_body(), {"Idempotency-Key": "one"}
    answers = await asyncio.gather(*(api.client.post("/v1/jobs", json=body, headers=key) for _ in range(50)))
    assert {answer.json()["id"] for answer in answers} == {answers[0].json()["id"]}
    assert sorted(answer.status_code for answer in answers) == [200] * 49 + [201]
    assert len((await api.get("/v1/jobs"))["jobs"]) == 1


async def test_an_idempotency_key_with_another_body_is_a_conflict(api: Api) -> None:
    api.node()
    key = {"Idempotency-Key": "one"}
    assert (await api.client.post("/v1/jobs", json=a_spec_body(), headers=key)).status_code == 201
    answer = await api.client.post("/v1/jobs", json=a_spec_body(2), headers=key)
    assert (answer.status_code, answer.json()["code"]) == (409, "idempotency_conflict")


async def test_the_key_of_a_deleted_job_makes_a_new_one(api: Api) -> None:
    api.node()
    key = {"Idempotency-Key": "one"}
    job = await api.submit(headers=key)
    await api.client.post(f"/v1/jobs/{job}/cancel")
    assert (await api.client.delete(f"/v1/jobs/{job}")).status_code == 204
    answer = await api.client.post("/v1/jobs", json=a_spec_body(), headers=key)
    assert answer.status_code == 201
    assert answer.json()["id"] != job


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"prority": 1}, "prority"),
        ({"resources": {"devices": 0}}, "resources.devices"),
        ({"program": a_spec_body()["program"] | {"model": {"ref": "lineer"}}}, "program.model.ref"),
    ],
)
async def test_a_wrong_spec_is_refused_with_the_name_of_the_field(api: Api, change: Any, field: str) -> None:
    api.node()
    answer = await api.client.post("/v1/jobs", json=a_spec_body() | change)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert field in [error["field"] for error in answer.json()["errors"]]


async def test_a_job_that_could_never_run_is_refused(api: Api) -> None:
    api.node(devices=2)
    large = await api.client.post("/v1/jobs", json=a_spec_body(3))
    assert (large.status_code, large.json()["code"]) == (422, "too_large_for_pool")
    nowhere = await api.client.post("/v1/jobs", json=a_spec_body() | {"pool": "gpus"})
    assert (nowhere.status_code, nowhere.json()["code"]) == (422, "unknown_pool")


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "malformed_json"),
        (b"{", 400, "malformed_json"),
        (b'{"a":' * 100_000, 400, "malformed_json"),
        (b"[" * 500_000, 400, "malformed_json"),
        (json.dumps({f"key{i}": 0 for i in range(60_000)}).encode(), 422, "invalid_spec"),
        (b"x" * 1_100_000, 413, "body_too_large"),
    ],
)
async def test_a_hostile_body_is_refused_quickly(api: Api, body: bytes, status: int, code: str) -> None:
    await api.client.post("/v1/jobs", json={})  # what is loaded once has been loaded
    begun = time.process_time()
    answer = await api.client.post("/v1/jobs", content=body)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert time.process_time() - begun < 5


async def test_a_number_beyond_64_bits_in_the_arguments_comes_back_as_it_was_given(api: Api) -> None:
    api.node()
    body = a_spec_body()
    body["program"]["model"] = {"ref": "my.code:Model", "args": {"seed": 2**80}}
    answer = await api.client.post("/v1/jobs", json=body)
    assert answer.status_code == 201
    assert answer.json()["spec"]["program"]["model"]["args"] == {"seed": 2**80}


async def test_pages_have_every_job_once_newest_first(api: Api) -> None:
    api.node()
    submitted = [await api.submit() for _ in range(7)]
    listed, cursor = [], ""
    for _ in range(10):
        page = await api.get("/v1/jobs", params={"limit": 3, "cursor": cursor})
        listed += [job["id"] for job in page["jobs"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert listed == submitted[::-1]


async def test_jobs_can_be_listed_by_state_pool_label_and_name(api: Api) -> None:
    api.node()
    wanted = await api.submit(labels={"team": "vision"}, name="digits")
    other = await api.submit(labels={"team": "audio"})
    for params in ({"label": "team=vision"}, {"name": "digits"}):
        assert [job["id"] for job in (await api.get("/v1/jobs", params=params))["jobs"]] == [wanted]
    await api.client.post(f"/v1/jobs/{other}/cancel")
    assert [job["id"] for job in (await api.get("/v1/jobs?state=cancelled"))["jobs"]] == [other]
    assert (await api.get("/v1/jobs?pool=elsewhere"))["jobs"] == []


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("cursor=nonsense", 400, "malformed_cursor"),
        ("limit=0", 422, "invalid_request"),
        ("limit=201", 422, "invalid_request"),
        ("state=sleeping", 422, "invalid_request"),
        ("label=team", 422, "invalid_request"),
    ],
)
async def test_a_wrong_query_is_refused(api: Api, query: str, status: int, code: str) -> None:
    answer = await api.client.get(f"/v1/jobs?{query}")
    assert (answer.status_code, answer.json()["code"]) == (status, code)


async def test_a_status_carries_the_progress_that_the_supervisor_published(api: Api) -> None:
    api.node()
    job = await api.submit()
    await until_state(api, job, "starting")
    progress = Progress(epoch=2, epochs=10, step=120, steps=600, fraction=0.2, rows_per_second=9100.0)
    api.control.client.set(names.progress_key("default", job, 1), msgspec.json.encode(progress))
    assert (await api.get(f"/v1/jobs/{job}"))["progress"] == msgspec.structs.asdict(progress)
    api.control.client.set(names.progress_key("default", job, 1), b"\xff")
    assert (await api.get(f"/v1/jobs/{job}"))["progress"] is None


async def test_an_etag_spares_an_unchanged_status(api: Api) -> None:
    api.node()
    job = await api.submit()
    await until_state(api, job, "starting")
    tag = (await api.client.get(f"/v1/jobs/{job}")).headers["etag"]
    known = {"If-None-Match": tag}
    assert (await api.client.get(f"/v1/jobs/{job}", headers=known)).status_code == 304
    await api.client.post(f"/v1/jobs/{job}/cancel")
    assert (await api.client.get(f"/v1/jobs/{job}", headers=known)).status_code == 200


async def test_a_finished_job_cannot_be_cancelled_but_deleted_with_everything_it_left(api: Api) -> None:
    api.node()
    job = await api.submit()
    await until_state(api, job, "starting")
    assert (await api.client.delete(f"/v1/jobs/{job}")).json()["code"] == "job_not_finished"
    api.run_to_end(job)
    answer = await api.client.post(f"/v1/jobs/{job}/cancel")
    assert (answer.status_code, answer.json()["code"]) == (409, "job_finished")
    directory = paths.attempt_dir(api.storage, "default", job, 1)
    directory.mkdir(parents=True)
    api.control.client.set(names.report_key("default", job, 1), b"{}")
    assert (await api.client.delete(f"/v1/jobs/{job}")).status_code == 204
    assert not paths.job_dir(api.storage, "default", job).exists()
    assert not [key for key in api.control.client.keys("*") if job.encode() in key]
    assert (await api.client.get(f"/v1/jobs/{job}")).status_code == 404


async def test_a_finished_job_shows_its_result_and_its_attempts(api: Api) -> None:
    api.node()
    job = await api.submit(2)
    await until_state(api, job, "starting")
    api.run_to_end(job)
    status = await api.get(f"/v1/jobs/{job}")
    assert (status["state"], status["reason"]["code"]) == ("succeeded", "completed")
    assert status["result"] == {"loss": 0.5, "metrics": {}}
    assert status["created_at"] < status["started_at"] < status["finished_at"]
    (attempt,) = (await api.get(f"/v1/jobs/{job}/attempts"))["attempts"]
    assert attempt["placement"] == [{"node": "host-a", "devices": ["cpu:0", "cpu:1"], "ranks": []}]
    assert attempt["reason"]["code"] == "completed"


async def test_logs_are_followed_page_by_page_until_they_end(api: Api) -> None:
    api.node()
    job = await api.submit(2)
    empty = await api.get(f"/v1/jobs/{job}/logs")
    assert (empty["lines"], empty["ended"]) == ([], False)
    await until_state(api, job, "starting")
    directory = paths.attempt_dir(api.storage, "default", job, 1)
    paths.logs_dir(directory).mkdir(parents=True)
    writers = [LogWriter(paths.log_file(directory, device)) for device in (0, 1)]
    for device, writer in enumerate(writers):
        writer.append([LineRun("stdout", 0, step, 100.0 + step, 0, [f"{device} {step}".encode()]) for step in range(5)])
    first = await api.get(f"/v1/jobs/{job}/logs", params={"limit": 4})
    assert [line["text"] for line in first["lines"]] == ["0 0", "1 0", "0 1", "1 1"]
    assert not first["ended"]
    rest = await api.get(f"/v1/jobs/{job}/logs", params={"after": first["next"]})
    assert len(rest["lines"]) == 6
    for writer in writers:
        writer.seal()
    api.run_to_end(job)
    last = await api.get(f"/v1/jobs/{job}/logs", params={"after": rest["next"]})
    assert (last["lines"], last["ended"]) == ([], True)
    text = await api.client.get(f"/v1/jobs/{job}/logs?device=1&tail=2", headers={"Accept": "text/plain"})
    assert (text.text, text.headers["content-type"]) == ("1 3\n1 4\n", "text/plain; charset=utf-8")
    assert (await api.client.get(f"/v1/jobs/{job}/logs?device=2")).status_code == 404
    assert (await api.client.get(f"/v1/jobs/{job}/logs?after=zzz")).json()["code"] == "malformed_cursor"


async def test_metrics_come_as_series(api: Api) -> None:
    api.node()
    job = await api.submit()
    await until_state(api, job, "starting")
    directory = paths.attempt_dir(api.storage, "default", job, 1)
    directory.mkdir(parents=True)
    MetricWriter(paths.metrics_file(directory)).append(
        [MetricSample(-1, "loss", s, 1.0 / (s + 1), 5.0) for s in range(8)]
    )
    (series,) = (await api.get(f"/v1/jobs/{job}/metrics?name=loss&after=6"))["series"]
    assert [point["number"] for point in series["points"]] == [7, 8]
    (sampled,) = (await api.get(f"/v1/jobs/{job}/metrics?points=2"))["series"]
    assert [bucket["count"] for bucket in sampled["buckets"]] == [4, 4]


async def test_samples_of_the_hardware_come_as_series(api: Api) -> None:
    api.node()
    job = await api.submit()
    await until_state(api, job, "starting")
    path = f"/v1/jobs/{job}/metrics?source=hardware"
    assert (await api.get(path)) == {"attempt": 1, "series": []}
    samples = AttemptSamples(5.0, 8.0, 2.0, [DeviceSamples(0)])
    for second in range(4):
        samples.devices[0].add_value("power_watts", second, 100.0 + second, 1.0)
    key = names.hardware_key("default", job, 1)
    telemetry = api.control.client  # the same server here
    telemetry.set(key, encode_samples(samples))
    (series,) = (await api.get(f"{path}&points=2&device=0"))["series"]
    assert (series["name"], [bucket["mean"] for bucket in series["buckets"]]) == ("power_watts", [100.5, 102.5])
    telemetry.delete(key)
    directory = paths.attempt_dir(api.storage, "default", job, 1)
    directory.mkdir(parents=True)
    paths.hardware_file(directory).write_bytes(encode_samples(samples))
    assert len((await api.get(path))["series"]) == 1
    assert (await api.get(f"{path}&name=loss"))["series"] == []
    assert (await api.client.get(f"/v1/jobs/{job}/metrics?source=elsewhere")).status_code == 422


async def test_a_job_without_a_report_says_why(api: Api) -> None:
    api.node(devices=1)
    running, waiting = await api.submit(), await api.submit()
    await until_state(api, running, "starting")
    for job, words in ((running, "no step yet"), (waiting, "has not started")):
        answer = await api.client.get(f"/v1/jobs/{job}/splits")
        assert answer.status_code == 404
        assert words in answer.json()["detail"]
    assert "there is no attempt 2" in (await api.client.get(f"/v1/jobs/{running}/splits?attempt=2")).json()["detail"]


@pytest.mark.parametrize("path", ["nonsense", "..%2f..%2fx", JOB.upper(), f"{JOB}%00", "1" * 5000])
async def test_an_id_that_is_not_one_of_ours_is_not_found(api: Api, path: str) -> None:
    answer = await api.client.get(f"/v1/jobs/{path}")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


async def test_a_plan_shows_the_split_and_creates_nothing(api: Api) -> None:
    answer = await api.client.post("/v1/plan", json=a_spec_body(3))
    plan = answer.json()
    assert (plan["rows"], plan["batch_size"], plan["global_batch_size"]) == (100, 30, 30)
    assert [pattern["rows"] for pattern in plan["patterns"]] == [[10, 10, 10], [4, 4, 2]]
    assert "ragged-last-batch" in [finding["code"] for finding in plan["findings"]]
    assert (await api.get("/v1/jobs"))["jobs"] == []


async def test_a_plan_beside_a_job_names_steps_that_have_grown_at_the_same_learning_rate(api: Api) -> None:
    api.node(devices=4)
    wanted = a_spec_body(3)
    wanted["program"] |= {"mode": "train", "loss": {"ref": "cross_entropy"}, "optimizer": {"ref": "sgd"}}
    job = (await api.client.post("/v1/jobs", json=wanted)).json()["id"]
    wanted["parallelism"] = {"strategy": "ddp"}
    alone, beside = [
        (await api.client.post(f"/v1/plan{query}", json=wanted)).json() for query in ("", f"?against={job}")
    ]
    grown = [finding for finding in beside["findings"] if finding not in alone["findings"]]
    assert [(finding["code"], finding["numbers"]["rows"], finding["numbers"]["rows_before"]) for finding in grown] == [
        ("global-batch-grew", 90, 30)
    ]
    assert (await api.client.post("/v1/plan?against=nonsense", json=wanted)).status_code == 404


async def test_pools_nodes_and_recipes_show_what_there_is(api: Api) -> None:
    api.node(devices=4)
    job = await api.submit(3)
    await until_state(api, job, "starting")
    (pool,) = (await api.get("/v1/pools"))["pools"]
    assert (pool["name"], pool["devices"], pool["free"], pool["leased"]) == ("default", 4, 1, 3)
    (node,) = (await api.get("/v1/nodes"))["nodes"]
    assert [device["job"] for device in node["devices"]] == [job] * 3 + [None]
    assert "linear" in (await api.get("/v1/recipes"))["models"]
    readings = encode_readings([NodeReading(2, {"power_watts": 250.0})])
    api.control.client.set(names.readings_key("host-a"), readings)  # the telemetry Redis is the same server here
    text = (await api.client.get("/metrics", headers=api.token(Scope.READ))).text
    assert 'shardyard_device_power_watts{device="2",node="host-a"} 250.0' in text
    assert 'shardyard_devices{pool="default",state="leased"} 3.0' in text
    assert 'shardyard_jobs{state="starting"} 1.0' in text
    assert 'route="/v1/jobs/{job}"' in text
    assert job not in text


async def test_the_service_is_ready_when_a_job_could_start(api: Api) -> None:
    not_yet = await api.client.get("/readyz")
    assert not_yet.status_code == 503
    assert not_yet.json()["checks"]["nodes"] == "none takes work"
    assert "retry-after" in not_yet.headers
    api.node()
    deadline = time.monotonic() + 60
    while (answer := await api.client.get("/readyz")).status_code != 200 and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    assert answer.json()["ready"] is True
