"""Rows 8, 9, 10 and 12: a control Redis that restarts, refuses, stalls, and applies commands without saying so."""

import io
import threading
import uuid
import zipfile
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redis

from api.background import retention
from jobs import store
from jobs.model.records import DeviceRecord, NodeInfo
from jobs.model.state import JobState, StateReason
from jobs.store.client import RedisStore
from tests.faults.inject import processes
from tests.faults.inject.proxy import Act, Rule
from tests.faults.scene.site import Site
from tests.integration.workers.service import TENANT, eventually
from workers.runtime.launch import AttemptDirectory

pytestmark = [pytest.mark.integration, pytest.mark.faults]

#: Less than three quarters of the lease, and more than any client waits for an answer.
OUTAGE_SECONDS = 5.5
#: A worker consumes again at the latest this long after a fault.
CONSUMES_AGAIN_SECONDS = 60.0


def pause(seconds: float) -> None:
    threading.Event().wait(seconds)


@pytest.mark.parametrize("way", [pytest.param("restarted", marks=pytest.mark.slow), "killed"])
def test_row_08_a_redis_that_goes_and_comes_back_leaves_runs_alone_and_keeps_what_was_accepted(
    site: Site, way: str
) -> None:
    job = site.post("single", 1, steps=120, seconds=0.02, talks=True, fault="wait_for_the_test", at_step=100)
    eventually(lambda: site.job(job).first_step, "first step")
    waits = [site.post("ddp", 8, steps=1) for _ in range(3)]
    steps = site.steps_done(job)
    if way == "killed":
        site.server.kill()
    else:
        site.server.stop()
    eventually(lambda: site.steps_done(job) > steps + 20, "steps while Redis is away")
    answer = site.caller.call("POST", "/v1/jobs", key=uuid.uuid4().hex, json=site.body())
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert int(answer.headers["retry-after"]) > 0
    site.server.start()
    site.let_go(job)
    site.all_ended([job, *waits], 90)
    assert [site.job(job).state for job in (job, *waits)] == [JobState.SUCCEEDED] * 4
    assert site.text(job).splitlines() == [f"step {step}" for step in range(120)]


@pytest.mark.parametrize(
    "worker_too",
    [pytest.param(False, id="supervisor"), pytest.param(True, id="supervisor and worker", marks=pytest.mark.slow)],
)
def test_row_08_an_end_that_was_reached_while_redis_was_away_is_told_though_its_supervisor_has_died_meanwhile(
    site: Site, worker_too: bool
) -> None:
    job = site.post("ddp", 2, steps=40, talks=True, fault="wait_for_the_test", at_step=10)
    site.held(job)
    marks = AttemptDirectory.of(site.state_dir / site.settings.node, site.attempt(job))
    supervisor = site.supervisor(site.attempt(job))
    site.server.kill()
    site.let_go(job)
    eventually(marks.pending_end.exists, "its end is kept", 60)
    processes.kill(supervisor)
    if worker_too:
        warmed = len(site.events("forkserver_warm"))
        site.kill_worker()
        site.spawn_worker()
        eventually(lambda: len(site.events("forkserver_warm")) > warmed, "another worker is warm", 60)
    site.server.start()
    record = site.finished(job, 60)
    assert (record.state, record.attempt, record.losses) == (JobState.SUCCEEDED, 1, 0)
    assert site.text(job).splitlines() == [f"step {step}" for step in range(40)]
    eventually(lambda: not site.held_by(job) and not marks.directory.exists(), "its devices are free, its marks gone")


def test_row_09_a_redis_that_refuses_writes_refuses_jobs_and_lets_those_that_run_beat_and_end(site: Site) -> None:
    job = site.post("single", 1, steps=40, talks=True, fault="wait_for_the_test", at_step=10)
    site.held(job)
    with site.server.client() as control, site.telemetry.client() as telemetry:
        for server in (control, telemetry):
            server.config_set("maxmemory", "1mb")
        try:
            answer = site.caller.call("POST", "/v1/jobs", key=uuid.uuid4().hex, json=site.body())
            # The second one where the API has looked at the server's memory meanwhile: it does so every few seconds.
            assert answer.status_code == 503
            assert answer.json()["code"] in ("unavailable", "store_full")
            assert int(answer.headers["retry-after"]) > 0
            heartbeat = site.attempts(job)[0].heartbeat
            eventually(lambda: site.attempts(job)[0].heartbeat > heartbeat, "it beats")
            site.let_go(job)
            assert site.finished(job).state is JobState.SUCCEEDED
            eventually(lambda: not site.held_by(job), "its devices are free")
        finally:
            for server in (control, telemetry):
                server.config_set("maxmemory", "0")
    assert site.finished(site.post("single", 1)).state is JobState.SUCCEEDED


def _kill_clients(site: Site) -> None:
    with site.server.client() as control:
        control.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


def _pause_clients(site: Site) -> None:
    with site.server.client() as control:
        control.execute_command("CLIENT", "PAUSE", int(OUTAGE_SECONDS * 1000), "ALL")
    pause(OUTAGE_SECONDS)


def _stall(site: Site) -> None:
    site.proxy.stall()
    pause(OUTAGE_SECONDS)
    site.proxy.flow()


def _freeze(site: Site) -> None:
    with processes.frozen(site.server.pid):
        pause(OUTAGE_SECONDS)


def _refuse(site: Site) -> None:
    site.proxy.refuse()
    pause(OUTAGE_SECONDS)
    site.proxy.accept()


BREAKS: dict[str, Callable[[Site], None]] = {
    "reset": lambda site: site.proxy.cut(reset=True),
    "closed": lambda site: site.proxy.cut(),
    "killed": _kill_clients,
    "paused": _pause_clients,
    "half-open": _stall,
    "frozen": _freeze,
    "refused": _refuse,
}

COMMANDS_OF_LOSSES = ("reap", "release", "refuse", "cancel", "renew_node", "acquire_lead")
#: Much like "half-open" to a client.
ALIKE = ("frozen", "half-open", "refused")


@pytest.mark.parametrize("way", [pytest.param(way, marks=pytest.mark.slow) if way in ALIKE else way for way in BREAKS])
def test_row_10_connections_that_break_or_stall_are_mended_and_runs_go_on(site: Site, way: str) -> None:
    job = site.running("ddp", 2, talks=True)
    ranks = processes.ranks_of(site.supervisor(site.attempt(job)))
    BREAKS[way](site)
    other = site.post("single", 1, steps=1)
    assert site.finished(other, CONSUMES_AGAIN_SECONDS).state is JobState.SUCCEEDED
    assert processes.ranks_of(site.supervisor(site.attempt(job))) == ranks
    site.cancel(job)
    assert site.finished(job).attempt == 1


@pytest.mark.parametrize(
    "command", ["submit", "dispatch", "claim", "record_milestone", "renew_lease", "read_command", "finish"]
)
def test_row_12_a_command_that_a_job_needs_is_repeated_harmlessly_when_its_reply_is_lost(
    site: Site, command: str
) -> None:
    rule = site.proxy.add(Rule(command, Act.DROP_REPLY))
    job = site.post("ddp", 2, steps=3, seconds=0.3)
    record = site.finished(job, 60)
    assert (record.state, record.attempt) == (JobState.SUCCEEDED, 1)
    eventually(lambda: rule.hits == 1, f"a reply to {command} was lost")


def test_row_12_the_commands_of_losses_refusals_and_cancels_are_repeated_harmlessly_too(site: Site) -> None:
    site.allow(losses={StateReason.SUPERVISOR_LOST})
    rules = [site.proxy.add(Rule(name, Act.DROP_REPLY)) for name in COMMANDS_OF_LOSSES]
    lost = site.running("single", 1)
    processes.kill(site.supervisor(site.attempt(lost)))
    site.reaches(lost, JobState.RUNNING, attempt=2)
    refused = site.post_script("print('hello')", python="an-environment-that-is-not-here")
    assert site.finished(refused).reason is StateReason.REJECTED_BY_WORKER
    assert site.caller.insist("POST", f"/v1/jobs/{lost}/cancel").status_code == 202
    assert site.finished(lost).state is JobState.CANCELLED
    eventually(lambda: [rule.hits for rule in rules] == [1] * len(rules), "every reply was lost once")
    assert len(site.attempts(lost)) == 2


def test_jobs_that_are_gone_leave_no_key_in_either_redis(site: Site) -> None:
    def live_and_go() -> list[str]:
        jobs = [site.post("ddp", 2, talks=True), site.post_script("print('hello')"), site.post("single", 1, every=2)]
        for job in jobs:
            assert site.ended(job, 60).state is JobState.SUCCEEDED
            eventually(partial(expire, job), f"what is in the telemetry Redis of {job} expires")
            assert site.caller.insist("DELETE", f"/v1/jobs/{job}").status_code == 204
        return jobs

    def lasting(control: redis.Redis) -> set[Any]:
        """Without the keys of jobs, which other tests may have."""
        own = (b"sy:job:", b"sy:spec:", b"sy:attempt:")
        keys: list[Any] = control.keys("*")
        return {key for key in keys if not key.startswith(own)}

    def expire(job: str) -> bool:
        keys = list(telemetry.scan_iter(f"sy:*{job}*", count=1000))
        report = telemetry.ttl(f"sy:report:{TENANT}/{job}/1")
        return bool(keys) and all(telemetry.ttl(key) != -1 for key in keys) and report != -1 and report <= 5

    with site.server.client() as control, site.telemetry.client() as telemetry:
        live_and_go()
        keys = lasting(control)
        jobs = live_and_go()
        eventually(lambda: lasting(control) <= keys, "nothing that was not there before")
        assert [key for key in control.keys("*") if any(job in key.decode() for job in jobs)] == []
        assert [key for key in telemetry.keys("*") if any(job in key.decode() for job in jobs)] == []


def test_row_12_a_cancel_of_a_waiting_job_whose_reply_is_lost_is_a_cancel(site: Site) -> None:
    running = site.running("dp", 8)
    waits = site.post("dp", 8)
    rule = site.proxy.add(Rule("cancel", Act.DROP_REPLY))
    answer = site.caller.insist("POST", f"/v1/jobs/{waits}/cancel")
    assert rule.hits == 1
    assert answer.status_code == 202
    assert site.job(waits).state is JobState.CANCELLED
    site.cancel(running)
    site.finished(running)


def test_row_12_a_delete_whose_reply_is_lost_removes_the_job_with_its_files(site: Site) -> None:
    job = site.post("single", 1)
    site.ended(job)
    rule = site.proxy.add(Rule("delete_job", Act.DROP_REPLY))
    assert site.caller.insist("DELETE", f"/v1/jobs/{job}").status_code == 204
    assert rule.hits == 1
    assert site.caller.call("GET", f"/v1/jobs/{job}").status_code == 404
    assert not site.files(job).parent.exists()
    site.files(job).mkdir(parents=True)  # as an API leaves it that is killed between the two halves of a delete
    assert site.caller.insist("DELETE", f"/v1/jobs/{job}").status_code == 204
    assert not site.files(job).parent.exists()
    assert site.caller.insist("DELETE", f"/v1/jobs/{job}").status_code == 404


@pytest.mark.slow
def test_row_12_what_the_operator_says_of_nodes_is_repeated_harmlessly_when_replies_are_lost(site: Site) -> None:
    commands = ("drain_node", "quarantine_device", "unquarantine", "forget_node", "register_node")
    rules = [site.proxy.add(Rule(name, Act.DROP_REPLY)) for name in commands]
    node = site.settings.node
    device = f"/v1/nodes/{node}/devices/3/quarantine"
    apart = site.caller.insist("POST", device, json={"reason": "it is flaky"}).json()["devices"][3]
    assert (apart["state"], apart["quarantine"]) == ("quarantined", "it is flaky")
    assert site.caller.insist("DELETE", device).json()["devices"][3]["state"] == "free"
    drained = site.caller.insist("POST", f"/v1/nodes/{node}/drain")
    assert (drained.status_code, drained.json()["draining"]) == (200, True)
    taken_back = site.caller.insist("DELETE", f"/v1/nodes/{node}/drain")
    assert (taken_back.status_code, taken_back.json()["draining"]) == (200, False)

    gone = NodeInfo(host="h", cores=1, version="1", devices=(DeviceRecord(0, "cpu", 0, "cpu:0", "CPU"),))
    site.run(store.register_node("gone", "instance", "default", "127.0.0.1", gone, home="home"))
    site.run(store.take_down_node("gone", None))
    assert site.caller.insist("DELETE", "/v1/nodes/gone").status_code == 204
    assert [it["id"] for it in site.caller.insist("GET", "/v1/nodes").json()["nodes"]] == [node]

    site.stop_worker()
    site.start_worker()
    assert [rule.hits for rule in rules] == [1] * len(rules)
    assert site.finished(site.post("dp", 8)).state is JobState.SUCCEEDED


def test_row_12_an_upload_whose_reply_is_lost_keeps_one_file_that_jobs_can_use(site: Site) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("train.py", f"print('{uuid.uuid4()}')")
    before = {path for path in (site.settings.storage / "bundles").rglob("*") if path.is_file()}
    rule = site.proxy.add(Rule("put_bundle", Act.DROP_REPLY))
    answer = site.caller.insist("POST", "/v1/bundles", content=packed.getvalue())
    assert (answer.status_code, rule.hits) == (201, 1)
    after = {path for path in (site.settings.storage / "bundles").rglob("*") if path.is_file()}
    assert len(after - before) == 1
    program = {"kind": "script", "bundle": answer.json()["id"], "entrypoint": "train.py"}
    assert site.finished(site.caller.submit({"program": program})).state is JobState.SUCCEEDED
    assert site.run(store.read_bundle(TENANT, answer.json()["id"])).jobs == 1  # type: ignore[union-attr]


def test_row_12_an_archive_call_whose_reply_is_lost_loses_no_job(site: Site) -> None:
    job = site.post("single", 1, name="kept")
    site.ended(job)
    rule = site.proxy.add(Rule("archive_job", Act.DROP_REPLY))
    through = RedisStore.from_url(site.proxy.url)
    try:
        retention.sweep_finished_jobs(through, site.settings.storage, 1e-6, 0)
    finally:
        through.close()
    assert rule.hits == 1
    found = site.caller.job(job)
    assert (found["state"], found["name"]) == ("succeeded", "kept")
    assert site.caller.call("GET", f"/v1/jobs/{job}/splits").status_code == 200


def test_row_12_a_token_whose_revocation_was_not_heard_of_is_revoked(site: Site) -> None:
    token = site.caller.insist("POST", "/v1/tokens", json={"name": "short-lived", "scopes": ["read"]}).json()["id"]
    rule = site.proxy.add(Rule("delete_token", Act.DROP_REPLY))
    assert site.caller.insist("DELETE", f"/v1/tokens/{token}").status_code == 204
    assert rule.hits == 1
    assert site.caller.insist("DELETE", f"/v1/tokens/{token}").status_code == 404
