"""The service in containers, as docker-compose.yml says. The tests share one service, and each leaves it healthy."""

import json
import re

import httpx
import pytest

from shardyard.client import Client
from tests.compose.composed import (
    DEVICES,
    JOB_SECONDS,
    Composed,
    endless,
    example,
    wait_for_state,
    wait_for_steps,
    wait_until,
)

pytestmark = [pytest.mark.acceptance, pytest.mark.slow, pytest.mark.timeout(2400)]

SERVICES = ("control", "telemetry", "api", "worker")
TRAIN_ROWS = 1437  # of the digits; batches of 64 leave a last one of 29

#: Prints each process's id, parent and state.
PROCESSES = """
import glob, json
stats = [open(path).read() for path in glob.glob("/proc/[0-9]*/stat")]
fields = [[stat.split()[0], *stat[stat.rindex(")") + 2:].split()[:2]] for stat in stats]
print(json.dumps([[int(pid), int(parent), state] for pid, state, parent in fields]))
"""


def processes(composed: Composed) -> list[tuple[int, int, str]]:
    """(process id, parent, state) of everything in the worker's container."""
    return [tuple(row) for row in json.loads(composed.run_in("worker", "python", "-c", PROCESSES))]


def test_dp_on_three_devices_reports_what_each_got(client: Client) -> None:
    job = client.submit(example("dp", epochs=1)).id
    assert wait_for_state(client, job, "succeeded", "failed", "cancelled").state == "succeeded"
    report = client.job(job).report()
    train = [pattern for pattern in report.patterns if pattern.phase == "train"]
    assert [(pattern.rows, pattern.steps) for pattern in train] == [((22, 22, 20), 22), ((10, 10, 9), 1)]
    assert report.final
    assert report.prediction.matches


def test_ddp_on_two_devices_gives_each_rank_its_share(client: Client) -> None:
    job = client.submit(example("ddp", epochs=1)).id
    assert wait_for_state(client, job, "succeeded", "failed", "cancelled").state == "succeeded"
    report = client.job(job).report()
    train = [pattern for pattern in report.patterns if pattern.phase == "train"]
    shares = [sum(((p.rows or ())[rank] or 0) * (p.steps or 0) for p in train) for rank in range(2)]
    assert shares == [(TRAIN_ROWS + 1) // 2] * 2
    assert report.prediction.matches


def test_ddp_does_not_wait_for_a_name_server_that_cannot_answer(client: Client) -> None:
    job = client.submit(example("ddp", epochs=1)).id
    status = wait_for_state(client, job, "succeeded", "failed", "cancelled")
    assert status.first_step_at is not None
    assert (status.first_step_at - status.created_at).total_seconds() < 8  # two tries of 5 s each, where it waits


def test_the_command_line_in_the_api_container_finds_its_service(composed: Composed) -> None:
    said = composed.run_in("api", "shardyard", "submit", "-", "--watch", stdin=json.dumps(example("dp", epochs=1)))
    assert "succeeded" in said


def test_the_image_of_the_api_has_no_torch(composed: Composed) -> None:
    find = "import importlib.util as i; print([name for name in ('torch', 'numpy', 'sklearn') if i.find_spec(name)])"
    assert composed.run_in("api", "python", "-c", find).strip() == "[]"


def test_the_image_of_the_api_has_the_dashboard(composed: Composed) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{composed.port}") as http:
        assets = re.findall(r'(?:src|href)="(/[^"]+[.](?:js|css))"', http.get("/").raise_for_status().text)
        assert {name.rpartition(".")[2] for name in assets} == {"js", "css"}
        assert {http.get(name).status_code for name in assets} == {200}


#: Rights of the worker, by their numbers (linux/capability.h): CHOWN, DAC_OVERRIDE, FOWNER, KILL, SETGID, SETUID,
#: NET_ADMIN, SYS_PTRACE, SYS_ADMIN, SETFCAP.
WORKER_CAPABILITIES = {0, 1, 3, 5, 6, 7, 12, 19, 21, 31}


def status_of_first_process(composed: Composed, service: str) -> dict[str, str]:
    return dict(line.split(":\t", 1) for line in composed.run_in(service, "cat", "/proc/1/status").splitlines())


@pytest.mark.parametrize("service", SERVICES)
def test_no_process_has_a_capability_but_the_workers_that_its_boxes_take(composed: Composed, service: str) -> None:
    status = status_of_first_process(composed, service)
    wanted = sum(1 << number for number in WORKER_CAPABILITIES) if service == "worker" else 0
    assert {int(status[name], 16) for name in ("CapPrm", "CapEff", "CapBnd")} == {wanted}
    assert status["NoNewPrivs"] == "1"
    assert status["Uid"].split() == ["0" if service == "worker" else "10001"] * 4


def test_jobs_get_a_full_box_and_no_network(client: Client) -> None:
    (node,) = [node for node in client.nodes() if node.alive]
    lacking = {right.name: right.why for right in node.box.rights if not right.has}
    assert (node.box.level, lacking.keys() - {"memory", "pids"}) == ("full", set()), lacking
    job = client.submit(example("ddp", epochs=1)).id
    assert wait_for_state(client, job, "succeeded", "failed").network == "none"


@pytest.mark.parametrize("service", SERVICES)
def test_the_root_file_system_is_read_only(composed: Composed, service: str) -> None:
    root = next(line for line in composed.run_in(service, "cat", "/proc/mounts").splitlines() if " / " in line)
    assert root.split()[3].split(",")[0] == "ro"


@pytest.mark.parametrize("service", ["control", "telemetry"])
def test_redis_wants_a_password_and_lets_nobody_administer_it(composed: Composed, service: str) -> None:
    assert "NOAUTH" in composed.run_in(service, "redis-cli", "ping")
    as_user = "REDISCLI_AUTH=$(cat /data/password) redis-cli --user shardyard --no-auth-warning config get dir"
    assert "NOPERM" in composed.run_in(service, "sh", "-c", as_user)


@pytest.mark.parametrize("service", ["control", "telemetry", "worker"])
def test_only_the_api_is_published(composed: Composed, service: str) -> None:
    published = {name: container["Publishers"] or [] for name, container in composed.containers().items()}
    assert not [port for port in published[service] if port["PublishedPort"]]
    assert {port["URL"] for port in published["api"] if port["PublishedPort"]} == {"127.0.0.1"}


@pytest.mark.parametrize("service", ["control", "telemetry", "worker"])
def test_only_the_api_is_on_a_network_with_a_way_out(composed: Composed, service: str) -> None:
    networks = composed.containers()[service]["Networks"].split(",")
    assert [composed.docker("network", "inspect", "--format", "{{.Internal}}", name) for name in networks] == ["true"]


def test_the_worker_does_not_see_the_admin_token(composed: Composed) -> None:
    assert composed.run_in("worker", "ls", "/run/shardyard").split() == ["accounts", "keys", "settings"]


@pytest.mark.parametrize("servers", [("control",), ("telemetry",), ("control", "telemetry")])
def test_a_restart_of_redis_does_not_touch_a_running_job(
    composed: Composed, client: Client, servers: tuple[str, ...]
) -> None:
    job = client.submit(endless()).id
    wait_for_steps(client, job)
    composed.compose("restart", *servers)
    wait_until(lambda: client.missing() == {}, JOB_SECONDS)
    after = wait_for_steps(client, job, more=200)
    assert after.state == "running"
    assert [attempt.ended_at for attempt in client.job(job).attempts()] == [None]
    client.job(job).cancel()
    wait_for_state(client, job, "cancelled")
    next_job = client.submit(example("ddp", epochs=1)).id
    assert wait_for_state(client, next_job, "succeeded", "failed").state == "succeeded"


def test_a_consumer_that_is_killed_comes_back_and_its_job_goes_on(composed: Composed, client: Client) -> None:
    job = client.submit(endless()).id
    wait_for_steps(client, job)
    consumer = min(pid for pid, parent, _ in processes(composed) if parent == 1)
    composed.run_in("worker", "python", "-c", f"import os; os.kill({consumer}, 9)")
    after = wait_for_steps(client, job, more=200)
    assert after.attempt == 1
    client.job(job).cancel()
    wait_for_state(client, job, "cancelled")
    next_job = client.submit(example("dp", epochs=1)).id
    assert wait_for_state(client, next_job, "succeeded", "failed").state == "succeeded"


def test_a_worker_container_that_is_killed_comes_back_as_the_same_node_and_its_job_starts_again(
    composed: Composed, client: Client
) -> None:
    job = client.submit(endless()).id
    wait_for_steps(client, job)
    composed.compose("kill", "--signal", "KILL", "worker")
    composed.compose("start", "worker")
    wait_until(lambda: client.job(job).status.attempt == 2, JOB_SECONDS, lambda: client.job(job).attempts())
    wait_for_steps(client, job)
    first = client.job(job).attempts()[0]
    assert getattr(first.reason, "code", None) == "supervisor_lost"
    assert len([node for node in client.nodes() if node.alive]) == 1
    client.job(job).cancel()
    wait_for_state(client, job, "cancelled")
    wait_until(lambda: client.pools()[0].leased == 0, JOB_SECONDS, client.nodes)


def test_the_worker_container_keeps_no_zombies(composed: Composed, client: Client) -> None:
    for _ in range(3):
        wait_for_state(client, client.submit(example("dp", epochs=1)).id, "succeeded")

    def zombies() -> list[tuple[int, int, str]]:
        return [process for process in processes(composed) if process[2] == "Z"]

    wait_until(lambda: not zombies(), 20, zombies)


def test_two_workers_are_two_nodes_and_the_one_that_goes_gives_its_job_back(composed: Composed, client: Client) -> None:
    composed.scale(2)
    nodes = wait_until(lambda: [n for n in client.nodes() if n.alive] if _alive(client) == 2 else [], JOB_SECONDS)
    assert {len(node.devices) for node in nodes} == {DEVICES}
    jobs = [client.submit(endless()).id for _ in nodes]
    at_work = {wait_for_steps(client, job).placement[0].node: job for job in jobs}
    assert set(at_work) == {node.id for node in nodes}

    composed.scale(1)
    wait_until(lambda: _alive(client) == 1, JOB_SECONDS)
    left, back = sorted(jobs, key=lambda job: client.job(job).status.state != "running")
    first = client.job(back).attempts()[0]
    assert getattr(first.reason, "code", None) == "service_stopped"
    assert [attempt.ended_at for attempt in client.job(left).attempts()] == [None]
    client.job(left).cancel()
    assert wait_for_steps(client, back).attempt == 2
    client.job(back).cancel()
    wait_for_state(client, back, "cancelled")


def test_down_and_up_finds_jobs_reports_and_the_token_again(composed: Composed, client: Client) -> None:
    job = client.submit(example("dp", epochs=1)).id
    wait_for_state(client, job, "succeeded")
    report, token = client.job(job).report(), composed.token()
    composed.down()
    composed.up()
    assert composed.token() == token
    assert client.job(job).report() == report
    next_job = client.submit(example("ddp", epochs=1)).id
    assert wait_for_state(client, next_job, "succeeded", "failed").state == "succeeded"


def _alive(client: Client) -> int:
    return sum(node.alive for node in client.nodes())
