"""The stream of one job, from a real API process with real servers, read over raw sockets."""

import random
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

import httpx
import psutil
import pytest

from api.__main__ import WANTED_DESCRIPTORS
from jobs import store
from jobs.model.state import JobState, StateReason
from jobs.store import JobFilter
from jobs.store.accounts import tokens
from jobs.store.accounts.tokens import Scope
from jobs.store.client import RedisStore
from tests.integration.api.conftest import ADMIN, bearer
from tests.integration.api.streams import Attempt, Event, Reader, finding, lines_of, pattern, points_of
from tests.integration.api.system.test_process import DRAIN_EXPIRED, Process, api_process, until
from tests.support.samples.hostile_zips import Part, zipped
from tests.support.samples.job_records import a_spec, a_spec_body, node_info
from tests.support.servers.redis_server import RedisServer, redis_server

pytestmark = pytest.mark.integration


#: Nobody beats for the node and the attempts of these tests.
UNHURRIED = {"NODE_SECONDS": "86400", "LEASE_SECONDS": "86400"}


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

    def revive(self) -> None:
        """Start the telemetry Redis again, if it is down."""
        if not self.telemetry.alive:
            self.telemetry.start()

    def close(self) -> None:
        self.client.close()
        self.control.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp("events")
    with (
        redis_server(directory / "control", appendonly="yes") as control,
        redis_server(directory / "telemetry") as telemetry,
        api_process(directory, control.url, TELEMETRY_URL=telemetry.url, **UNHURRIED) as process,
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


def test_a_script_is_followed_without_its_shard_lines_unless_they_are_asked_for(place: Place) -> None:
    zip_of_code = zipped(Part("train.py"))
    bundle = place.client.post("/v1/bundles", content=zip_of_code).json()["id"]
    program = {"kind": "script", "bundle": bundle, "entrypoint": "train.py"}
    job, attempt = place.started(program=program)
    attempt.print("one")
    attempt.shard_lines(*[f"In Model {step}" for step in range(700)])
    path = f"/v1/jobs/{job}"
    with (
        place.follow(job, "?logs=0") as own,
        place.follow(job, "?logs=0&stream=all") as every,
        place.follow(job, "?logs=0&stream=shard&tail=3") as shard,
        place.follow(job, "?logs=0&tail=1") as tail,
    ):
        own.until(lambda r: r.lines() == ["one"])  # an event of its own: what is there at once comes as one
        shard.until(lambda r: r.lines() == ["In Model 697", "In Model 698", "In Model 699"])
        tail.until(lambda r: r.lines() == ["one"])
        attempt.print("two")
        attempt.shard_lines("In Model 700")
        attempt.print("three")
        own.until(lambda r: r.lines() == ["one", "two", "three"])
        every.until(lambda r: len(r.lines()) == 704)
        shard.until(lambda r: r.lines()[-1] == "In Model 700")
        tail.until(lambda r: r.lines() == ["one", "two", "three"])
        cut = next(event.id for event in own.events if event.name == "log")
    with place.follow(job, "?logs=0", cut) as again:
        again.until(lambda r: r.lines() == ["two", "three"])
    attempt.end()
    with place.follow(job, "?logs=0") as late:
        late.to_end()
        assert late.lines() == ["one", "two", "three"]
        assert [line["seq"] for line in lines_of(late.events)] == [1, 702, 704]

    ask = place.client.get
    page = ask(f"{path}/logs").json()
    assert (page["streams"], [line["text"] for line in page["lines"]]) == (
        ["stdout", "stderr", "service"],
        ["one", "two", "three"],
    )
    assert page["ended"]
    first = ask(f"{path}/logs", params={"limit": 1}).json()
    others = ask(f"{path}/logs", params={"after": first["next"], "stream": "all"}).json()
    assert [line["seq"] for line in others["lines"]] == [702, 703, 704]  # from where the other streams were looked at
    mixed = ask(f"{path}/logs", params={"stream": "shard,stdout", "tail": 3}).json()
    assert [line["text"] for line in mixed["lines"]] == ["two", "In Model 700", "three"]
    before = ask(f"{path}/logs", params={"tail": 2, "before_line": 702}).json()
    assert [line["text"] for line in before["lines"]] == ["one"]
    assert len(ask(f"{path}/logs", params={"stream": "all"}).json()["lines"]) == 704


def test_a_recipe_is_followed_with_its_shard_lines_since_it_prints_nothing_else(place: Place) -> None:
    job, attempt = place.started()
    attempt.shard_lines("In Model", "Outside")
    with place.follow(job, "?logs=all") as reader:
        reader.until(lambda r: r.lines() == ["In Model", "Outside"])
    page = place.client.get(f"/v1/jobs/{job}/logs").json()
    assert page["streams"] == ["stdout", "stderr", "shard", "service"]
    assert [line["stream"] for line in page["lines"]] == ["shard", "shard"]
    attempt.end()


def test_jobs_of_the_whole_service_are_followed(place: Place) -> None:
    with Reader(place.port, "/v1/events") as reader:
        assert reader.until(lambda r: r.named("fleet"))[0]["etag"]
        job = place.submit(name="seen")
        reader.until(lambda r: [job for job in r.named("job") if job["state"] == "starting"])
        place.attempt(job).end()
        last = reader.until(lambda r: [seen for seen in r.named("job") if seen["state"] == "succeeded"])[0]
        listed = place.client.get("/v1/jobs").json()["jobs"][0]
        assert listed | last == listed
        cut = next(event.id for event in reader.events if event.name == "job")
    place.client.delete(f"/v1/jobs/{job}")
    with Reader(place.port, "/v1/events", cut) as again:
        again.until(lambda r: r.named("gone") == [{"job_id": job}])
        assert not again.named("resync")
    with Reader(place.port, "/v1/events", "1-1.0") as lost:
        assert lost.until(lambda r: r.named("resync"))[0]["reason"] == "unknown_id"


#: How often a connection breaks while the driver drives, and after how many bytes at most, mostly.
CUTS = 25
MOST_BYTES = 40_000


class Driver(threading.Thread):
    """Prints numbered lines on two devices, points, and new patterns, until it is told to end."""

    def __init__(self, attempt: Attempt, pause: float = 0.03) -> None:
        super().__init__(daemon=True)
        self.attempt, self.pause = attempt, pause
        self.stopping = threading.Event()
        self.lines = self.points = self.patterns = 0

    def run(self) -> None:
        while not self.stopping.wait(self.pause):
            batch = [f"line {self.lines + number}" for number in range(7)]
            self.attempt.print(*batch, device=0)
            self.attempt.print(*batch, device=1)
            self.lines += len(batch)
            self.attempt.points(*map(float, range(self.points, self.points + 3)))
            self.points += 3
            if self.lines % 91 == 0:
                self.patterns += 1
                patterns = [pattern([number, 0]) for number in range(self.patterns)]
                self.attempt.report(patterns=patterns, findings=[finding(f"f{number}") for number in range(3)])
                self.attempt.progress(step=self.lines)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self.join(60)

    def stop(self) -> None:
        self.stopping.set()
        self.join(60)
        patterns = [pattern([number, 0]) for number in range(self.patterns)]
        self.attempt.report(final=True, patterns=patterns, findings=[finding(f"f{number}") for number in range(3)])
        self.attempt.end()


def holds_everything_once(events: list[Event], driver: Driver) -> None:
    """Every line, point, split and finding that the driver made, in order, once."""
    for device in (0, 1):
        seqs = [line["seq"] for line in lines_of(events, device)]
        assert seqs == list(range(1, driver.lines + 1))
    assert points_of(events, "loss") == [(number + 1, float(number)) for number in range(driver.points)]
    splits = [event.data["pattern"]["rows"][0] for event in events if event.name == "split"]
    assert splits == list(range(driver.patterns))
    codes = [event.data["finding"]["code"] for event in events if event.name == "finding"]
    assert codes == (["f0", "f1", "f2"] if driver.patterns else [])
    ids = [event.id for event in events]
    assert len(set(ids)) == len(ids)


def follow_with_cuts(
    ports: Callable[[], int], job: str, chance: random.Random, done: Callable[[int], bool]
) -> tuple[list[Event], int]:
    """Read the stream to its end over connections that break after any number of bytes; the events, and the cuts."""
    events: list[Event] = []
    cuts = patience = 1
    over = False
    deadline = time.monotonic() + 100
    while not events or events[-1].name != "end":
        assert time.monotonic() < deadline
        last_id = events[-1].id if events else ""
        try:
            with Reader(ports(), f"/v1/jobs/{job}/events?logs=all", last_id) as reader:
                until_cut = chance.randrange(1, MOST_BYTES * patience * (10 if over else 1))
                quiet = chance.uniform(0.05, 0.4) * patience
                with suppress(TimeoutError):
                    while reader.received < until_cut and reader.read(quiet, chance.randrange(1, 8192)):
                        pass
                assert reader.status in (0, 200), reader.body
                assert not reader.named("resync")
                events += reader.events
                patience = 1 if reader.events else patience + 1  # an event may be long, and the first may take a while
        except (TimeoutError, ConnectionError):
            time.sleep(0.05)
        over = done(cuts)
        cuts += 1
    return events, cuts - 1


@pytest.mark.slow
def test_a_stream_that_breaks_anywhere_goes_on_without_a_gap_or_a_repeat(place: Place) -> None:
    job, attempt = place.started(devices=2)

    def done(cuts: int) -> bool:
        if cuts == CUTS:
            driver.stop()
        return cuts >= CUTS

    with Driver(attempt) as driver:
        events, cuts = follow_with_cuts(lambda: place.port, job, random.Random(7), done)
    assert cuts > CUTS
    holds_everything_once(events, driver)


def test_readers_who_share_what_they_are_sent_are_each_told_everything_once(place: Place) -> None:
    job, attempt = place.started(devices=2)
    with ExitStack() as stack, Driver(attempt) as driver:

        def follow(query: str) -> Reader:
            return stack.enter_context(place.follow(job, query))

        whole = [follow("?logs=all") for _ in range(12)]
        halves = [follow("?logs=1") for _ in range(4)]
        for reader in whole + halves:
            reader.until(lambda r: len(r.lines(1)) > 50)
        left, cut = whole.pop(), whole[0].events[-1].id
        left.close()
        late = [follow("?logs=all") for _ in range(4)]
        again = stack.enter_context(place.follow(job, "?logs=all", cut))
        before = len(whole[0].events)
        for reader in whole + late:
            reader.until(lambda r: len(r.lines(1)) > 150)
        driver.stop()
        for reader in (*whole, *halves, *late, again):
            reader.to_end()
    for reader in whole + late:
        holds_everything_once(reader.events, driver)
    for reader in halves:
        assert [line["seq"] for line in lines_of(reader.events, 1)] == list(range(1, driver.lines + 1))
        assert not lines_of(reader.events, 0)
    known = [event.id for event in whole[0].events[:before]].index(cut) + 1
    holds_everything_once(whole[0].events[:known] + again.events, driver)


def test_any_process_goes_on_where_another_one_was_killed(place: Place, tmp_path: Path) -> None:
    job, attempt = place.started(devices=2)
    settings = {"TELEMETRY_URL": place.telemetry.url, "STORAGE": str(place.storage)} | UNHURRIED
    with ExitStack() as stack, Driver(attempt) as driver:
        ports: list[int] = []

        def another() -> Process:
            directory = tmp_path / str(len(ports))
            directory.mkdir()
            process = stack.enter_context(api_process(directory, place.control_server.url, **settings))
            ports.append(process.port())
            return process

        process = another()

        def done(cuts: int) -> bool:
            nonlocal process
            if cuts in (8, 16):
                process.child.kill()
                process = another()
            if cuts == 24:
                driver.stop()
            return cuts >= 24

        events, _ = follow_with_cuts(lambda: ports[-1], job, random.Random(11), done)
    holds_everything_once(events, driver)


def test_who_is_amid_the_lines_when_an_attempt_ends_has_the_rest_though_its_windows_are_gone(place: Place) -> None:
    job, attempt = place.started()
    lines = [f"line {number} of some length, so that buffers fill up" for number in range(20_000)]
    with (
        Reader(place.port, f"/v1/jobs/{job}/events?logs=0", buffer=4096) as slow,
        Reader(place.port, f"/v1/jobs/{job}/events?logs=0", buffer=4096) as resumes,
    ):
        attempt.print(*lines[:10])
        attempt.points(0.5)
        for reader in (slow, resumes):
            reader.until(lambda r: r.lines() and points_of(r.events, "loss"))
        attempt.print(*lines[10:])
        attempt.points(0.25)
        attempt.logs.close()
        attempt.metrics.close()
        assert attempt.shipper.close(60) == []
        with place.telemetry.client() as telemetry:
            telemetry.flushall()  # as when their time is over
        attempt.finish()
        resumes.until(lambda r: len(r.lines()) > 1000)
        assert not resumes.named("end")
        slow.to_end()
    with place.follow(job, "?logs=0", resumes.events[-1].id) as again:
        events = resumes.events + again.to_end()
    for told in (slow.events, events):
        assert [line["text"] for line in lines_of(told)] == lines
        assert points_of(told, "loss") == [(1, 0.5), (2, 0.25)]
        assert told[-1].name == "end"


def test_while_the_telemetry_redis_is_away_lines_and_points_come_from_their_files(place: Place) -> None:
    job, attempt = place.started(devices=2)
    with ExitStack() as stack, place.follow(job, "?logs=all") as reader, Driver(attempt) as driver:
        stack.callback(place.revive)
        reader.until(lambda r: len(r.lines()) > 50)
        place.telemetry.kill()
        reader.until(lambda r: [notice["code"] for notice in r.named("notice")] == ["live_data_away"])
        before = len(reader.lines())
        reader.until(lambda r: len(r.lines()) > before + 50)
        place.revive()
        reader.until(lambda r: [notice["code"] for notice in r.named("notice")][-1] == "live_data_back")
        before = len(reader.lines())
        reader.until(lambda r: len(r.lines()) > before + 50)
        driver.stop()
        events = reader.to_end()
    holds_everything_once([event for event in events if event.name != "notice"], driver)


def test_lines_of_another_attempt_come_after_the_last_of_the_one_before(place: Place) -> None:
    job, first = place.started(limits={"max_retries": 1})
    with place.follow(job, "?logs=all") as reader:
        first.print("a", "b")
        reader.until(lambda r: r.lines() == ["a", "b"])
        cut = reader.events[-1].id
        first.print("c")
        first.end(StateReason.RANK_FAILED)
        second = place.attempt(job, 2)
        second.up()
        second.print("d")
        reader.until(lambda r: r.lines(attempt=2) == ["d"])
        assert reader.lines(attempt=1) == ["a", "b", "c"]
        attempts = [event.data["attempt"] for event in reader.events if event.name == "log"]
        assert attempts == sorted(attempts)
        assert 2 in [state["attempt"] for state in reader.named("state")]
    with place.follow(job, "?logs=all", cut) as again:
        again.until(lambda r: r.lines(attempt=2) == ["d"])
        assert again.lines(attempt=1) == ["c"]
        second.end()
        assert again.to_end()[-1].data == {"job_id": job, "state": "succeeded", "attempt": 2}


HOSTILE = [
    b"data: {}",
    b"x\rdata: injected\revent: end\r",
    b"nul \x00 here",
    "sep \u2028data: injected\u2029 and \x85 next".encode(),
    b"half \xe2\x82 and \xff\xfe",
    b"\x1b]0;title\x07</script><script>alert(1)</script>",
    "\u202etxt.exe".encode(),
    b"id: 1-1.0",
    b"",
    b":" * 70_000,
]


def test_hostile_lines_names_and_findings_stay_inside_their_data(place: Place) -> None:
    job, attempt = place.started(name="data: <script>")
    with place.follow(job, "?logs=0") as reader:
        reader.until(lambda r: r.events)
        attempt.print(*HOSTILE)
        attempt.points(1.0, name="loss\ndata: x\u2028\r\n\r\nevent: end")
        attempt.report(findings=[finding("idle", "m\r\n\r\nevent: end\ndata: {}\u2028")])
        attempt.report(final=True, findings=[finding("idle", "m\r\n\r\nevent: end\ndata: {}\u2028")])
        attempt.end()
        events = reader.to_end()
    whole = reader.whole
    for forbidden in (
        b"\r",
        b"\x00",
        "\u2028".encode(),
        "\u2029".encode(),
        "\x85".encode(),
        b"\x1b",
        "\u202e".encode(),
    ):
        assert forbidden not in whole
    assert [event.name for event in events].count("end") == 1
    lines = lines_of(events)
    assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))
    assert lines[0]["text"] == "data: {}"
    assert {event.data["name"] for event in events if event.name == "metric"} == {
        "loss\ndata: x\u2028\r\n\r\nevent: end"
    }
    assert reader.named("finding")[0]["finding"]["message"] == "m\r\n\r\nevent: end\ndata: {}\u2028"


def test_a_reader_that_is_too_slow_is_told_so_and_goes_on_with_the_newest_in_bounded_memory(place: Place) -> None:
    job, attempt = place.started()
    resident = psutil.Process(place.process.child.pid).memory_info
    with (
        place.follow(job, "?logs=0") as quick,
        Reader(place.port, f"/v1/jobs/{job}/events?logs=0", buffer=8192) as slow,
    ):
        attempt.print("first")
        quick.until(lambda r: r.lines())
        slow.until(lambda r: r.lines())
        before = resident().rss
        sent = 1
        while sent < 120_000:
            attempt.print(*[f"a line of some length, so that buffers fill up: {sent + n}" for n in range(500)])
            sent += 500
            if sent % 5000 == 1:  # an API that lags behind would find the slow one reading again
                quick.until(lambda r: any(line["seq"] >= sent for line in lines_of(r.events[-1:])))  # noqa: B023
                slow.read()  # who takes nothing for `VANISHED_SECONDS` is cut off
        missed = slow.until(lambda r: r.named("resync"))[0]
        assert missed["reason"] == "too_slow"
        assert resident().rss - before < 100e6

        def is_live(reader: Reader) -> bool:
            attempt.print("now")  # again and again: one line may be among those that are left out
            return [line["text"] for line in lines_of(reader.events[-1:])][-1:] == ["now"]

        slow.until(is_live)
        told = len(
            next(iter([lines_of(slow.events[: slow.events.index(e)]) for e in slow.events if e.name == "resync"]))
        )
    page = place.client.get(f"/v1/jobs/{job}/logs", params={"after": missed["logs_after"], "limit": 1}).json()
    assert page["lines"][0]["seq"] == told + 1
    attempt.end()


def test_who_may_not_look_and_what_is_not_there_get_problems_and_no_stream(place: Place) -> None:
    job = place.submit(devices=2)
    text, record = tokens.issue_token("rival", [Scope.READ], "t", created=1)
    place.control.run(tokens.put_token(record))
    ask = place.client.get
    path = f"/v1/jobs/{job}/events"
    assert ask(path, headers={"Authorization": "Bearer nobody"}).status_code == 401
    assert ask(path, headers=bearer(text)).status_code == 404
    assert ask(path, params={"logs": "5"}).status_code == 404
    for wrong in ("-1", "0,,1", "any", "99999", "\u0663"):
        answer = ask(path, params={"logs": wrong})
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "logs"), wrong
    for wrong in ("none", "stdout,,shard", "all,shard", "STDOUT"):
        for where in (path, f"/v1/jobs/{job}/logs"):
            answer = ask(where, params={"stream": wrong})
            assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "stream"), wrong
    answer = ask(f"/v1/jobs/{job}/logs", params={"before_line": 3})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "before_line")
    with place.follow(job, "?logs=all", "nonsense") as reader:
        assert reader.until(lambda r: r.named("state"))
        assert [event.name for event in reader.events][:2] == ["resync", "state"]
    place.client.post(f"/v1/jobs/{job}/cancel")


def test_a_stream_ends_when_its_job_is_deleted(place: Place) -> None:
    job, attempt = place.started()
    with place.follow(job) as reader:
        reader.until(lambda r: r.events)
        attempt.end()
        ended = reader.to_end()[-1]
    assert place.client.delete(f"/v1/jobs/{job}").status_code == 204
    with place.follow(job, last_id=ended.id) as again:
        again.until(lambda r: r.status)
        assert again.status == 404


def test_a_process_that_is_told_to_stop_ends_its_streams_at_once(place: Place, tmp_path: Path) -> None:
    job, attempt = place.started()
    settings = {"TELEMETRY_URL": place.telemetry.url, "STORAGE": str(place.storage)} | UNHURRIED
    with api_process(tmp_path, place.control_server.url, **settings) as process, ExitStack() as stack:
        port = process.port()
        paths = [f"/v1/jobs/{job}/events?logs=all", "/v1/events"] * 20
        readers = [stack.enter_context(Reader(port, path)) for path in paths]
        for reader in readers:
            reader.until(lambda r: r.events)
        assert process.end() == 0
        assert DRAIN_EXPIRED not in process.log_path.read_text()
        for reader in readers:
            reader.to_end()
        assert not [event for event in process.events() if event["event"] in ("request_failed", "feed_failed")]
    attempt.end()


# -- the whole service -----------------------------------------------------------------------------


def test_a_tenant_is_told_of_its_own_jobs_alone_and_resumes_behind_what_it_was_told(place: Place) -> None:
    text, record = tokens.issue_token("rival", [Scope.SUBMIT], "t", created=1)
    place.control.run(tokens.put_token(record))
    with Reader(place.port, "/v1/events", token=text) as theirs, Reader(place.port, "/v1/events") as ours:
        for reader in (theirs, ours):
            reader.until(lambda r: r.named("fleet"))
        submitted = [place.submit() for _ in range(3)]
        other = place.client.post("/v1/jobs", json=a_spec_body(), headers=bearer(text)).json()["id"]
        seen = ours.until(lambda r: set(submitted) <= {job["id"] for job in r.named("job")} and r.named("job"))
        assert other not in {job["id"] for job in seen}
        theirs.until(lambda r: {job["id"] for job in r.named("job")} == {other})
        cut = ours.events[-1].id
    for job in submitted:
        place.client.post(f"/v1/jobs/{job}/cancel")
    with Reader(place.port, "/v1/events", cut) as again:
        again.until(lambda r: {job["id"] for job in r.named("job") if job["state"] == "cancelled"} == set(submitted))
        assert not again.named("resync")
        told = [(job["id"], job["state"], job["reason"]["code"]) for job in again.named("job")]
        assert len(told) == len(set(told))


def test_a_reader_of_all_jobs_is_told_when_nodes_change(place: Place) -> None:
    with Reader(place.port, "/v1/events") as reader:
        reader.until(lambda r: r.named("fleet"))
        place.control.run(store.register_node("host-b", "i", "other", "127.0.0.1", node_info(1), home="elsewhere"))
        reader.until(lambda r: len(r.named("fleet")) == 2)
        for _ in range(3):
            place.control.run(store.renew_node("host-b", "i"))
        etag = reader.named("fleet")[-1]["etag"]
        known = reader.events[-1].id
    with Reader(place.port, "/v1/events", known) as again:
        job = place.submit()
        again.until(lambda r: job in {seen["id"] for seen in r.named("job")})
        assert etag not in {fleet["etag"] for fleet in again.named("fleet")}
    place.client.post(f"/v1/jobs/{job}/cancel")


def test_who_comes_with_an_id_from_before_redis_began_anew_is_told_to_begin_anew(place: Place) -> None:
    with Reader(place.port, "/v1/events") as reader:
        reader.until(lambda r: r.named("fleet"))
        place.submit()
        known = reader.until(lambda r: r.named("job") and r.events[-1].id)
        place.control.client.delete("sy:changes")
        job = place.submit()
        with Reader(place.port, "/v1/events", known) as again:
            assert again.until(lambda r: r.named("resync"))[0]["reason"] == "unknown_id"
            place.client.post(f"/v1/jobs/{job}/cancel")
            again.until(lambda r: [seen for seen in r.named("job") if seen["id"] == job])
        reader.until(lambda r: r.named("resync"))


@pytest.mark.slow
def test_a_hundred_readers_of_a_thousand_jobs_cost_no_more_than_one(place: Place) -> None:
    spec = a_spec(4)
    for number in range(1000):
        place.control.run(store.submit("default", f"01a1ffff-0000-7000-8000-{number:012x}", spec))

    def calls() -> int:
        return sum(int(stat["calls"]) for stat in place.control.client.info("commandstats").values())

    def rate() -> float:
        first, began = calls(), time.monotonic()
        time.sleep(1.5)
        return (calls() - first) / (time.monotonic() - began)

    with ExitStack() as stack:
        readers = [stack.enter_context(Reader(place.port, "/v1/events"))]
        readers[0].until(lambda r: r.named("fleet"))
        one = rate()
        readers += [stack.enter_context(Reader(place.port, "/v1/events")) for _ in range(99)]
        for reader in readers:
            reader.until(lambda r: r.named("fleet"))
        many = rate()
        assert many < 1.5 * one + 20, f"{one} commands a second for one reader, {many} for a hundred"
        job = f"01a1ffff-0000-7000-8000-{7:012x}"
        place.client.post(f"/v1/jobs/{job}/cancel")
        for reader in readers:
            assert reader.until(lambda r: r.named("job"))[0]["id"] == job
    place.control.run(store.cancel_many("default", JobFilter(JobState.QUEUED), after="02"))


def test_a_process_takes_more_descriptors_where_it_began_with_few(place: Place, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < WANTED_DESCRIPTORS:
        pytest.skip(f"this account may have {hard} descriptors only")
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        with api_process(tmp_path, place.control_server.url, STORAGE=str(place.storage)) as process:
            process.port()
            assert resource.prlimit(process.child.pid, resource.RLIMIT_NOFILE) == (WANTED_DESCRIPTORS, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
