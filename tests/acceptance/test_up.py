"""The whole service on one machine, from the outside: what its stop, its death and its next start do to a job."""

import os
import signal
import socket
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shardyard.cli import demo
from shardyard.client import Client
from shardyard.contract.errors import UnboxedNodes
from shardyard.service import embedded_redis
from shardyard.service.processes import ProcessGroup
from tests.acceptance.harness import SERVICES, Up, wait_for_state, wait_until
from tests.support.samples.certificates import make_certificate

pytestmark = pytest.mark.acceptance


def digits(epochs: int) -> dict[str, Any]:
    spec = demo.load_example("digits-dp3")
    program = spec["program"] | {"epochs": epochs}
    del program["evaluate"]
    return spec | {"program": program, "observe": "off"}


def says(up: Up, words: str) -> bool:
    return words in up.output.read_text()


def steps(client: Client, job: str) -> int:
    """Steps done; 0 while the progress cannot be read."""
    progress = client.job(job).status.progress
    return (progress and progress.step) or 0


def is_past(client: Client, job: str, step: int) -> bool:
    return steps(client, job) > step


@pytest.mark.slow
def test_the_demo_trains_both_models_shows_both_reports_and_ends_cleanly(up: Up) -> None:
    command = [*up.command()[:3], "demo", "--devices", "cpu:3"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("Split report of job") == 2
    assert "strategy dp, 3 virtual cpu devices" in run.stdout
    assert "strategy ddp, 2 virtual cpu devices" in run.stdout
    assert run.stdout.count("%  ok") == 2


@pytest.mark.slow
def test_a_stop_puts_the_job_back_in_the_queue_and_the_next_start_goes_on_with_it(up: Up) -> None:
    client = up.start()
    (node,) = client.nodes()
    assert node.box is not None
    wait_until(partial(says, up, f"  box         {node.box.level}"), 60, up.output.read_text)
    spec = digits(epochs=100_000)
    spec["program"]["checkpoint"] = {"every_steps": 1_000_000}  # none but that of the stop
    job = client.submit(spec).id
    wait_until(partial(is_past, client, job, 0), 60, partial(client.job, job))
    assert up.stop(signal.SIGINT) == 0
    assert up.pids() == {}

    client = up.start()
    wait_for_state(client, job, "running")
    first, second = client.job(job).attempts()
    assert first.reason is not None
    assert first.reason.code == "service_stopped"
    assert second.reason is None
    status = client.job(job).status
    assert status.retries == 0
    assert status.checkpoint is not None
    assert second.resumed_from is not None
    assert (second.resumed_from.step, second.resumed_from.attempt) == (status.checkpoint.step, 1)
    saved = [file.path for file in client.job(job).artifacts() if file.path.startswith("checkpoints/")]
    assert f"checkpoints/step-{status.checkpoint.step}/model.safetensors" in saved

    client.job(job).cancel()
    assert wait_for_state(client, job, "cancelled").reason.code == "cancelled_by_user"


@pytest.mark.slow
def test_a_killed_up_leaves_the_job_running_and_the_next_one_takes_everything_over(up: Up) -> None:
    client = up.start()
    port = client.url.rpartition(":")[2]
    job = client.submit(digits(epochs=100_000)).id
    wait_for_state(client, job, "running")

    refused = subprocess.run(up.command(), capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 3
    assert f"already runs on {up.data_dir} (pid {up.process and up.process.pid})" in refused.stderr

    before = up.pids()
    assert set(before) == set(SERVICES)
    up.kill()
    client = up.start("--port", port)
    assert up.pids() == before
    status = client.job(job).status
    assert (status.state, status.attempt) == ("running", 1)


@pytest.mark.slow
def test_each_killed_part_comes_back_and_the_job_does_not_notice(up: Up) -> None:
    client = up.start()
    job = client.submit(digits(epochs=100_000)).id
    wait_for_state(client, job, "running")
    for victim in SERVICES:
        os.kill(up.pids()[victim], signal.SIGKILL)
        wait_until(partial(says, up, f"{victim} is running again"), 60, up.output.read_text)
        wait_until(lambda: client.missing() == {}, 60, client.missing)
        wait_until(partial(is_past, client, job, steps(client, job)), 60, partial(client.job, job))
    status = client.job(job).status
    assert (status.state, status.attempt) == ("running", 1), status

    client.job(job).cancel()
    wait_for_state(client, job, "cancelled")
    assert up.stop() == 0


def test_a_taken_port_is_said_before_anything_starts(tmp_path: Path, up: Up) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        run = subprocess.run(up.command("--port", str(port)), capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 3
    assert f"cannot listen on 127.0.0.1 port {port}: Address already in use" in run.stderr
    assert not (tmp_path / "control").exists()


def test_an_option_that_cannot_be_is_said_before_anything_starts(tmp_path: Path, up: Up) -> None:
    run = subprocess.run(up.command("--devices", "tpu:4"), capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 3
    assert run.stderr.startswith("error: --devices: 'tpu:4' names no devices; use auto")
    assert not (tmp_path / "control").exists()


def test_a_part_that_cannot_start_ends_up_with_the_last_words_of_its_log_in_one_line(up: Up) -> None:
    broken = os.environ | {"SHARDYARD_ENVIRONMENTS": "mine=/nonexistent/python"}
    run = subprocess.run(up.command(), capture_output=True, text=True, timeout=120, check=False, env=broken)
    assert run.returncode == 3
    (line,) = run.stderr.splitlines()
    assert line.startswith(
        "error: worker ended with exit code 2: environment 'mine': /nonexistent/python is not a working"
    )
    assert "Traceback" not in line
    assert up.pids() == {}


@pytest.mark.slow
def test_without_a_box_the_screen_says_so_and_there_is_no_second_tenant(
    up: Up, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDYARD_BOX", "off")
    client = up.start()
    warned = "!   box         none (SHARDYARD_BOX is off): jobs run as the service itself"
    wait_until(partial(says, up, warned), 60, up.output.read_text)
    wait_until(partial(says, up, "--jobs-unboxed"), 60, up.output.read_text)
    with pytest.raises(UnboxedNodes, match=r"second tenant \(acme\).*SHARDYARD_BOX is off"):
        client.create_token("ci", tenant="acme")


@pytest.mark.slow
def test_without_a_box_others_are_served_only_if_the_operator_agrees(up: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDYARD_BOX", "off")
    up.start()  # it makes the admin token, without which no other address is served at all
    assert up.stop() == 0
    command = up.command("--host", "0.0.0.0", "--insecure-http")
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 3
    for words in ("refusing to listen on 0.0.0.0", "SHARDYARD_BOX is off", "user namespaces", "--jobs-unboxed"):
        assert words in run.stderr
    assert up.pids() == {}
    client = up.start("--host", "0.0.0.0", "--insecure-http", "--jobs-unboxed")
    assert client.create_token("ci", tenant="acme").tenant == "acme"


def test_another_address_is_not_served_without_tls_unless_the_operator_agrees(up: Up) -> None:
    run = subprocess.run(up.command("--host", "0.0.0.0"), capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 3
    for words in ("refusing to listen on 0.0.0.0 without TLS", "--tls-cert", "--tls-key", "--insecure-http"):
        assert words in " ".join(run.stderr.split())
    assert not (up.data_dir / "control").exists(), "nothing was started"


@pytest.mark.slow
def test_https_is_served_with_a_certificate_for_another_name_and_local_commands_accept_it(
    up: Up, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path_factory.mktemp("tls")
    chain, key = make_certificate(directory, name="train.example.org")
    monkeypatch.setenv("SHARDYARD_DATA_DIR", str(up.data_dir))
    up.start()  # it makes the admin token, without which no other address is served at all
    assert up.stop() == 0
    client = up.start("--host", "0.0.0.0", "--jobs-unboxed", "--tls-cert", str(chain), "--tls-key", str(key))
    assert client.url.startswith("https://127.0.0.1:")
    assert says(up, client.url)
    job = client.submit(digits(epochs=1)).id
    wait_for_state(client, job, "succeeded")
    for command in (["list"], ["logs", job], ["nodes"]):
        run = subprocess.run([*up.command()[:3], *command], capture_output=True, text=True, timeout=60, check=False)
        assert run.returncode == 0, run.stderr
    assert job[-8:] in subprocess.run([*up.command()[:3], "list"], capture_output=True, text=True, check=True).stdout

    make_certificate(directory, name="train.example.org")  # renewed: the API and the commands have it soon
    with Client() as renewed:
        wait_until(lambda: renewed.missing() == {}, 60, renewed.missing)
    assert up.stop() == 0


@pytest.mark.slow
def test_an_external_redis_serves_in_the_place_of_the_built_in_ones(up: Up, tmp_path: Path) -> None:
    server = embedded_redis.prepare_redis("control", tmp_path / "external", embedded_redis.find_server())
    manager = ProcessGroup(say=print)
    manager.start(server.service)
    try:
        embedded_redis.wait_until_it_answers(server)
        client = up.start("--redis-url", server.url)
        assert set(up.pids()) == {"api", "worker"}
        job = client.submit(digits(epochs=1)).id
        wait_for_state(client, job, "succeeded")
        assert up.stop() == 0
    finally:
        manager.stop("control")
