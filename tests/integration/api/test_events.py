"""The stream of one job, from a real API process with real servers, read over raw sockets."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from jobs import store
from jobs.redis_store import RedisStore
from tests.integration.api.conftest import ADMIN, bearer
from tests.integration.api.streams import Attempt, Reader, finding, pattern, points_of
from tests.integration.api.test_process import Process, api_process, until
from tests.integration.redis_server import RedisServer, redis_server
from tests.unit.api.records import a_spec_body, node_info

pytestmark = pytest.mark.integration


class Place:
    """An API process, the two servers behind it, and one node."""

    def __init__(self, directory: Path, control: RedisServer, telemetry: RedisServer, process: Process) -> None:
        self.storage = directory / "storage"
        self.control_server, self.telemetry = control, telemetry
        self.process = process
        self.port = process.port()
        self.control = RedisStore.from_url(control.url)
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", headers=bearer(ADMIN), timeout=30)
        self.control.run(store.register_node("host-a", "i", "default", "127.0.0.1", node_info(4), home="state-dir"))

    def submit(self, devices: int = 1, **fields: object) -> str:
        answer = self.client.post("/v1/jobs", json=a_spec_body(devices) | fields)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def state(self, job: str) -> str:
        return str(self.client.get(f"/v1/jobs/{job}").json()["state"])

    def attempt(self, job: str, number: int = 1) -> Attempt:
        until(lambda: self.client.get(f"/v1/jobs/{job}").json()["attempt"] == number)
        return Attempt(self.control, self.telemetry.url, self.storage, job, number)

    def started(self, devices: int = 1, **fields: object) -> tuple[str, Attempt]:
        job = self.submit(devices, **fields)
        attempt = self.attempt(job)
        attempt.up()
        return job, attempt

    def follow(self, job: str, query: str = "", last_id: str = "") -> Reader:
        return Reader(self.port, f"/v1/jobs/{job}/events{query}", last_id)

    def close(self) -> None:
        self.client.close()
        self.control.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp("events")
    with (
        redis_server(directory / "control", appendonly="yes") as control,
        redis_server(directory / "telemetry") as telemetry,
        api_process(directory, control.url, TELEMETRY_URL=telemetry.url) as process,
    ):
        place = Place(directory, control, telemetry, process)
        yield place
        place.close()


def test_a_run_is_followed_from_its_start_to_its_end(place: Place) -> None:
    job = place.submit(devices=2)
    with place.follow(job, "?logs=all") as reader:
        first = reader.until(lambda r: r.events)[0]
        assert (reader.status, reader.headers["content-type"].partition(";")[0]) == (200, "text/event-stream")
        assert "no-store" in reader.headers["cache-control"]
        assert reader.headers["x-accel-buffering"] == "no"
        assert first.name == "state"
        assert first.data["job_id"] == job
        assert set(first.data["reason"]) == {"code", "message"}
        attempt = place.attempt(job)
        attempt.up()
        reader.until(lambda r: r.named("state")[-1]["state"] == "running")
        attempt.print("one", "two")
        attempt.print("other", device=1)
        attempt.progress(step=3, steps=10)
        attempt.report(patterns=[pattern([3, 2])], findings=[finding("uneven")])
        attempt.points(0.5, 0.25, float("nan"))
        reader.until(lambda r: r.lines(0) == ["one", "two"] and r.lines(1) == ["other"])
        reader.until(lambda r: r.named("progress") == [{"attempt": 1, "step": 3, "steps": 10}])
        split = reader.until(lambda r: r.named("split"))[0]
        assert (split["attempt"], split["pattern"]["rows"], split["devices"]) == (1, [3, 2], [{"device": 0}])
        assert reader.until(lambda r: r.named("finding"))[0]["finding"]["code"] == "uneven"
        assert reader.until(lambda r: r.named("report"))[0]["attempt"] == 1
        reader.until(lambda r: points_of(r.events, "loss") == [(1, 0.5), (2, 0.25), (3, None)])
        attempt.report(patterns=[pattern([3, 2]), pattern([1, 1])], findings=[finding("uneven", "more")])
        assert [
            split["pattern"]["rows"]
            for split in reader.until(lambda r: len(r.named("split")) == 2 and r.named("split"))
        ]
        attempt.report(final=True, patterns=[pattern([3, 2]), pattern([1, 1])], findings=[])
        attempt.print("last")
        attempt.end()
        events = reader.to_end()
        assert reader.lines(0) == ["one", "two", "last"]
        assert [state["state"] for state in reader.named("state")][-1] == "succeeded"
        assert len(reader.named("split")) == 2
        assert len(reader.named("finding")) == 1
        assert (events[-1].name, events[-1].data) == ("end", {"job_id": job, "state": "succeeded", "attempt": 1})


def test_a_finished_job_is_told_whole_and_who_comes_again_is_told_that_there_is_no_more(place: Place) -> None:
    job, attempt = place.started()
    attempt.print(*map(str, range(1200)))
    attempt.points(1.0, 2.0)
    attempt.report(final=True, patterns=[pattern([5])], findings=[finding("idle")])
    attempt.end()
    with place.follow(job, "?logs=0") as reader:
        events = reader.to_end()
        assert reader.lines() == [str(number) for number in range(1200)]
        assert points_of(events, "loss") == [(1, 1.0), (2, 2.0)]
        assert {event.name for event in events} == {"state", "split", "finding", "report", "metric", "log", "end"}
    with place.follow(job, "?logs=0", events[-1].id) as again:
        again.until(lambda r: r.status)
        assert again.status == 204
    with place.follow(job, "?logs=0", events[-2].id) as almost:
        assert [event.name for event in almost.to_end()] == ["end"]


def test_jobs_of_the_whole_service_are_followed(place: Place) -> None:
    with Reader(place.port, "/v1/events") as reader:
        assert reader.until(lambda r: r.named("fleet"))[0]["etag"]
        job = place.submit(name="seen")
        reader.until(lambda r: [job for job in r.named("job") if job["state"] == "starting"])
        place.attempt(job).end()
        last = reader.until(lambda r: [seen for seen in r.named("job") if seen["state"] == "succeeded"])[0]
        listed = place.client.get("/v1/jobs").json()["jobs"][0]
        assert last == listed
        cut = next(event.id for event in reader.events if event.name == "job")
    place.client.delete(f"/v1/jobs/{job}")
    with Reader(place.port, "/v1/events", cut) as again:
        again.until(lambda r: r.named("gone") == [{"job_id": job}])
        assert not again.named("resync")
    with Reader(place.port, "/v1/events", "1-1.0") as lost:
        assert lost.until(lambda r: r.named("resync"))[0]["reason"] == "unknown_id"
