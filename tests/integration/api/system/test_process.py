"""One real API process over TCP: how it starts, what it survives, how it ends."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from jobs import store
from jobs.store.client import RedisStore
from tests.integration.api.conftest import ADMIN, bearer
from tests.support.samples.job_records import a_spec_body, node_info
from tests.support.servers.redis_server import RedisServer, redis_server
from tests.support.timing import once_below

pytestmark = pytest.mark.integration


#: Logged where requests had to be cancelled, since they took longer than a drain may.
DRAIN_EXPIRED = "timeout graceful shutdown exceeded"


def environment_of(directory: Path, url: str, settings: dict[str, str]) -> dict[str, str]:
    """The settings of a process, with some chosen; those that are empty are left out."""
    usual = {
        "REDIS_URL": url,
        "STORAGE": str(directory / "storage"),
        "STATE_DIR": str(directory / "state"),
        "ADMIN_TOKEN": ADMIN,
        "PORT": "0",
        "RECONCILE_SECONDS": "0.1",
    }
    return {f"SHARDYARD_{name}": value for name, value in (usual | settings).items() if value}


class Process:
    def __init__(self, directory: Path, url: str, **settings: str) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("SHARDYARD_")}
        self.log_path = directory / "api.log"
        with self.log_path.open("wb") as log:
            self.child = subprocess.Popen(
                [sys.executable, "-m", "api"],
                env=inherited | environment_of(directory, url, settings),
                stdout=subprocess.PIPE,
                stderr=log,
            )

    def events(self) -> list[dict[str, Any]]:
        written = self.log_path.read_text().rpartition("\n")[0]  # the last line may be half written
        return [json.loads(line) for line in written.splitlines()]

    def port(self) -> int:
        def listening() -> int | None:
            assert self.child.poll() is None, self.log_path.read_text()
            return next((event["port"] for event in self.events() if event["event"] == "listening"), None)

        return int(until(listening))

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.child.send_signal(number)
        return self.child.wait(60)

    def output(self) -> bytes:
        assert self.child.stdout is not None
        return self.child.stdout.read()


def until(look: Callable[[], Any], seconds: float = 60) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"nothing after {seconds} s")


@contextmanager
def api_process(directory: Path, url: str, **settings: str) -> Iterator[Process]:
    process = Process(directory, url, **settings)
    try:
        yield process
    finally:
        if process.child.poll() is None:
            process.child.kill()
        process.child.wait()
        assert process.child.stdout is not None
        process.child.stdout.close()


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path / "redis", appendonly="yes", appendfsync="always") as server:
        yield server


@pytest.fixture
def process(tmp_path: Path, redis: RedisServer) -> Iterator[Process]:
    with api_process(tmp_path, redis.url) as process:
        yield process


@pytest.fixture
def client(process: Process) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://127.0.0.1:{process.port()}", headers=bearer(ADMIN), timeout=30) as client:
        yield client


def add_node(redis: RedisServer) -> None:
    control = RedisStore.from_url(redis.url)
    control.run(store.register_node("host-a", "i", "default", "127.0.0.1", node_info(4), home="state-dir"))
    control.close()


def test_importing_the_application_brings_neither_torch_nor_celery() -> None:
    code = "import sys, api.app, api.__main__; print({'torch', 'celery', 'numpy'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


def test_it_prints_only_its_log_and_a_sigterm_ends_it_well(process: Process, client: httpx.Client) -> None:
    assert client.get("/healthz").json() == {"status": "ok"}
    assert process.end() == 0
    assert process.output() == b""
    assert process.events()[-1]["event"] == "stopped"


def test_jobs_are_submitted_and_dispatched(redis: RedisServer, client: httpx.Client) -> None:
    add_node(redis)
    job = client.post("/v1/jobs", json=a_spec_body(2)).json()["id"]
    status = until(lambda: (s := client.get(f"/v1/jobs/{job}").json())["state"] == "starting" and s)
    assert status["placement"] == [{"node": "host-a", "devices": ["cpu:0", "cpu:1"], "ranks": [0]}]


def test_it_starts_without_redis_and_is_ready_by_itself_once_redis_is_there(tmp_path: Path, redis: RedisServer) -> None:
    redis.kill()
    with api_process(tmp_path, redis.url) as process, httpx.Client(headers=bearer(ADMIN), timeout=30) as client:
        base = f"http://127.0.0.1:{process.port()}"
        until(lambda: process.events()[-1]["event"] == "control_redis_unavailable" or len(process.events()) > 5)
        assert client.get(f"{base}/healthz").status_code == 200
        ready = client.get(f"{base}/readyz")
        assert (ready.status_code, ready.json()["checks"]["control_redis"]) == (503, "does not answer")
        redis.start()
        add_node(redis)
        until(lambda: client.get(f"{base}/readyz").status_code == 200)
        assert client.post(f"{base}/v1/jobs", json=a_spec_body()).status_code == 201


def test_an_outage_of_redis_answers_503_and_passes_by_itself(redis: RedisServer, client: httpx.Client) -> None:
    add_node(redis)
    first = client.post("/v1/jobs", json=a_spec_body(4)).json()["id"]
    redis.kill()
    answer = client.post("/v1/jobs", json=a_spec_body(), headers={"Idempotency-Key": "k"})
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert int(answer.headers["retry-after"]) > 0
    redis.start()
    answer = until(
        lambda: (a := client.post("/v1/jobs", json=a_spec_body(), headers={"Idempotency-Key": "k"})).is_success and a
    )
    assert {job["id"] for job in client.get("/v1/jobs").json()["jobs"]} == {first, answer.json()["id"]}


def test_hints_are_sent_again_after_redis_was_away(redis: RedisServer, client: httpx.Client) -> None:
    add_node(redis)
    client.post("/v1/jobs", json=a_spec_body())
    with redis.client() as control:
        until(lambda: control.llen("sy:celery:node.host-a"))
    redis.kill()
    redis.start()
    client.post("/v1/jobs", json=a_spec_body())
    with redis.client() as control:
        before = control.llen("sy:celery:node.host-a")
        until(lambda: control.llen("sy:celery:node.host-a") > before)


def test_progress_is_left_out_when_the_telemetry_redis_is_away(tmp_path: Path, redis: RedisServer) -> None:
    with (
        redis_server(tmp_path / "telemetry") as telemetry,
        api_process(tmp_path, redis.url, TELEMETRY_URL=telemetry.url) as process,
        httpx.Client(base_url=f"http://127.0.0.1:{process.port()}", headers=bearer(ADMIN), timeout=30) as client,
    ):
        add_node(redis)
        job = client.post("/v1/jobs", json=a_spec_body()).json()["id"]
        until(lambda: client.get(f"/v1/jobs/{job}").json()["state"] == "starting")
        telemetry.signal(signal.SIGSTOP)

        def answered() -> float:
            begun = time.monotonic()
            status = client.get(f"/v1/jobs/{job}")
            assert (status.status_code, status.json()["progress"]) == (200, None)
            return time.monotonic() - begun

        once_below(1.5, answered)
        telemetry.signal(signal.SIGCONT)


#: Settings that cannot work, and words of the reason.
REFUSED: list[tuple[dict[str, str], str]] = [
    ({"HOST": "0.0.0.0", "ADMIN_TOKEN": "", "INSECURE_HTTP": "1"}, "0.0.0.0 without an admin token"),
    ({"HOST": "0.0.0.0"}, "refusing to listen on 0.0.0.0 without TLS"),
    ({"TLS_CERT": "/nowhere", "TLS_KEY": "/nowhere"}, "SHARDYARD_TLS_CERT (--tls-cert): /nowhere cannot be read"),
    ({"ADMIN_TOKEN": "short"}, "admin token"),
    ({"PORT": "99999"}, "port"),
    ({"REDIS_URL": "amqp://host"}, "unix://"),
]
#: Has the program start with each of them in one process, since its imports take most of a start.
START_EACH = """
import json, os, sys
from api.__main__ import main
for environment in json.load(sys.stdin):
    os.environ.update(environment)
    print(main(), flush=True)
    for name in environment:
        del os.environ[name]
"""


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, dict[str, Any]]]:
    """For each of `REFUSED` the exit code and the one event that was logged."""
    directory = tmp_path_factory.mktemp("refused")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SHARDYARD_")}
    with redis_server(directory / "redis") as redis:
        environments = [environment_of(directory, redis.url, settings) for settings, _ in REFUSED]
        command = [sys.executable, "-c", START_EACH]
        said = subprocess.run(
            command, env=inherited, input=json.dumps(environments), capture_output=True, text=True, timeout=120
        )
    codes, events = map(int, said.stdout.split()), map(json.loads, said.stderr.splitlines())
    return list(zip(codes, events, strict=True))


@pytest.mark.parametrize("number", range(len(REFUSED)), ids=[words for _, words in REFUSED])
def test_settings_that_cannot_work_are_refused_with_the_reason(
    refusals: list[tuple[int, dict[str, Any]]], number: int
) -> None:
    code, event = refusals[number]
    assert (code, event["event"]) == (2, "cannot_start")
    assert REFUSED[number][1] in event["error"]


def test_a_redis_cluster_is_refused(tmp_path: Path) -> None:
    with (
        redis_server(tmp_path / "cluster", **{"cluster-enabled": "yes"}) as cluster,
        api_process(tmp_path, cluster.url) as process,
    ):
        assert process.child.wait(60) == 2
        assert "Cluster" in process.events()[-1]["error"]


def test_a_control_redis_that_may_lose_jobs_is_said_to(tmp_path: Path) -> None:
    careless = {"appendonly": "no", "maxmemory-policy": "allkeys-lru"}
    with redis_server(tmp_path / "careless", **careless) as server, api_process(tmp_path, server.url) as process:
        process.port()
        doubts = [event["why"] for event in process.events() if event["event"] == "control_redis_may_lose_jobs"]
    assert ["appendonly" in doubts[0], "allkeys-lru" in doubts[1], len(doubts)] == [True, True, 2]


def test_a_port_that_is_taken_is_refused(tmp_path: Path, redis: RedisServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with api_process(tmp_path, redis.url, PORT=port) as process:
            assert process.child.wait(60) == 2
            assert port in process.events()[-1]["error"]


def test_a_storage_directory_of_another_service_ends_the_process(tmp_path: Path, redis: RedisServer) -> None:
    with api_process(tmp_path, redis.url) as first:
        first.port()
        until((tmp_path / "storage" / ".shardyard-storage").exists)
        assert first.end() == 0
    with api_process(tmp_path, redis.url, STORAGE=str(tmp_path / "elsewhere")) as process:
        assert process.child.wait(60) == os.EX_SOFTWARE
        assert "SHARDYARD_STORAGE" in process.events()[-1]["error"]


def converse(port: int, *parts: bytes) -> bytes:
    """Send bytes as they are, and return everything that comes back until the other side closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        for part in parts:
            try:
                connection.sendall(part)
            except (BrokenPipeError, ConnectionResetError):
                break
        answer = b""
        try:
            while data := connection.recv(65536):
                answer += data
        except ConnectionResetError:
            pass
        return answer


HEAD = f"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {ADMIN}\r\n".encode()


@pytest.mark.slow
def test_a_client_that_stalls_is_cut_off(process: Process) -> None:
    begun = time.monotonic()
    assert converse(process.port(), b"GET /healthz HTTP/1.1\r\nHost: loc") == b""
    assert converse(process.port(), HEAD + b"Content-Length: 10\r\n\r\nx").startswith(b"HTTP/1.1 408")
    assert time.monotonic() - begun < 30


def test_a_request_that_is_being_answered_is_finished_before_the_end(process: Process) -> None:
    with socket.create_connection(("127.0.0.1", process.port()), timeout=60) as connection:
        connection.sendall(HEAD + b"Content-Length: 2\r\nExpect: 100-continue\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 100")  # the service waits for the body
        process.child.send_signal(signal.SIGTERM)
        until(lambda: "Shutting down" in process.log_path.read_text())
        connection.sendall(b"{}")
        assert connection.recv(100).startswith(b"HTTP/1.1 422")
    assert process.child.wait(60) == 0


def test_jobs_survive_a_restart_of_the_service(tmp_path: Path, redis: RedisServer) -> None:
    add_node(redis)
    with api_process(tmp_path, redis.url) as process:
        base = f"http://127.0.0.1:{process.port()}"
        job = httpx.post(f"{base}/v1/jobs", json=a_spec_body(), headers=bearer(ADMIN)).json()["id"]
        process.end(signal.SIGKILL)
    redis.kill()
    redis.start()
    with api_process(tmp_path, redis.url) as process:
        base = f"http://127.0.0.1:{process.port()}"
        status = httpx.get(f"{base}/v1/jobs/{job}", headers=bearer(ADMIN))
        assert (status.status_code, status.json()["id"]) == (200, job)


def waiting(client: httpx.Client) -> float:
    (line,) = [
        line for line in client.get("/metrics").text.splitlines() if line.startswith("shardyard_waiting_requests ")
    ]
    return float(line.split()[1])


def a_queued_job(client: httpx.Client, redis: RedisServer) -> str:
    """A job that waits, because another one has all devices."""
    add_node(redis)
    first = client.post("/v1/jobs", json=a_spec_body(4)).json()["id"]
    until(lambda: client.get(f"/v1/jobs/{first}").json()["state"] == "starting")
    return str(client.post("/v1/jobs", json=a_spec_body(4)).json()["id"])


def hold(process: Process, job: str) -> socket.socket:
    """A connection on which a status is waited for."""
    connection = socket.create_connection(("127.0.0.1", process.port()), timeout=60)
    head = f"GET /v1/jobs/{job}?wait=60 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {ADMIN}\r\n\r\n"
    connection.sendall(head.encode())
    return connection


def test_clients_that_hang_up_while_they_wait_are_let_go(
    process: Process, client: httpx.Client, redis: RedisServer
) -> None:
    job = a_queued_job(client, redis)
    held = [hold(process, job) for _ in range(100)]
    until(lambda: waiting(client) == 100)
    for connection in held[:60]:
        connection.close()
    until(lambda: waiting(client) == 40)
    client.post(f"/v1/jobs/{job}/cancel")
    for connection in held[60:]:
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
        connection.close()
    until(lambda: waiting(client) == 0)


def test_those_who_wait_are_answered_before_the_process_ends(
    process: Process, client: httpx.Client, redis: RedisServer
) -> None:
    with hold(process, a_queued_job(client, redis)) as connection:
        until(lambda: waiting(client) == 1)
        assert process.end() == 0
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
        assert DRAIN_EXPIRED not in process.log_path.read_text()


@pytest.mark.parametrize("way", ["killed and started", "cut off again and again", "asleep for a while"])
def test_who_waits_for_a_change_while_redis_goes_and_comes_is_told_of_it_soon(
    redis: RedisServer, client: httpx.Client, way: str
) -> None:
    job = a_queued_job(client, redis)
    tag = client.get(f"/v1/jobs/{job}").headers["etag"]
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(
            client.get, f"/v1/jobs/{job}", params={"wait": 60}, headers={"If-None-Match": tag}, timeout=90
        )
        with httpx.Client(base_url=client.base_url, headers=bearer(ADMIN), timeout=30) as other:
            until(lambda: waiting(other))
            match way:
                case "killed and started":
                    redis.kill()
                    redis.start()
                case "cut off again and again":
                    for _ in range(50):
                        with redis.client() as control:
                            control.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
                case _:
                    redis.signal(signal.SIGSTOP)
                    time.sleep(3)
                    redis.signal(signal.SIGCONT)
            assert not asked.done()
            control = RedisStore.from_url(redis.url)
            control.run(store.cancel("default", job))
            control.close()
            answer = asked.result(30)
    assert (answer.status_code, answer.json()["state"]) == (200, "cancelled")
