"""Jobs over two nodes: what their ranks see, what is known of them, and how they end."""

import ast
import math
import os
import signal
import time
import uuid
from collections.abc import Iterator

import pytest

from jobs import store
from jobs.files import paths
from jobs.files.frame_file import FrameKind, FrameReader
from jobs.model.state import JobState, StateReason
from jobs.store.accounts import tenant_secrets
from jobs.support import secret_keys
from tests.integration.training.rehearsed import SCRIPTS
from tests.integration.workers.service import NODE, TENANT, eventually, is_dead
from tests.integration.workers.two_nodes import NODES, OTHER, TwoNodes, end_process, two_nodes

pytestmark = pytest.mark.integration

#: All ranks of all nodes are dead so soon after the first one's death, beside the grace that handlers have.
ALL_DEAD_SECONDS = 3.0
ENVIRONMENT = """
import os
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "MASTER_ADDR")
print({name: os.environ[name] for name in names})
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor(float(dist.get_rank()))
dist.all_reduce(total)
print("sum of ranks", total.item())
(open(os.path.join(os.environ["SHARDYARD_OUTPUT_DIR"], f"of-rank-{dist.get_rank()}"), "w")).close()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoNodes]:
    with two_nodes(tmp_path_factory.mktemp("nodes")) as service:
        yield service


@pytest.fixture
def nodes(shared: TwoNodes) -> Iterator[TwoNodes]:
    """Both nodes, which tests share. Each leaves them as it found them."""
    yield shared
    try:
        shared.leaves_nothing()
    finally:
        shared.end_all()


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_job_trains_over_both_nodes_and_one_report_has_all_devices(nodes: TwoNodes, strategy: str) -> None:
    job = nodes.gang(strategy, rows=6)
    record = nodes.ended(job)
    assert (record.state, record.reason) == (JobState.SUCCEEDED, StateReason.COMPLETED), record
    report = nodes.report(job)
    assert [(pattern["rows"], pattern["steps"]) for pattern in report["patterns"]] == [([6] * 4, 4)]
    places = [node for place in record.placement for node in [place.node] * len(place.devices)]
    assert [device["node"] for device in report["devices"]] == places
    assert sorted(set(places)) == sorted(NODES)
    assert [place["rows"] for place in report["per_device"]] == [24] * 4
    assert [(one["node"], one["devices"], one["rows"]) for one in report["per_node"]] == [
        (places[0], [0, 1], 48),
        (places[2], [2, 3], 48),
    ]
    assert "parts of one machine" in report["notes"]["per_node"]


@pytest.mark.slow
def test_steps_that_come_fast_are_told_in_blocks_and_their_rows_are_exact(nodes: TwoNodes) -> None:
    job = nodes.gang(devices=1, steps=1500, rows=6)
    record = nodes.ended(job)
    assert record.state is JobState.SUCCEEDED, record
    report = nodes.report(job)
    assert [(pattern["rows"], pattern["steps"]) for pattern in report["patterns"]] == [([6, 6], 1500)]
    assert [(place["rows"], place["steps"]) for place in report["per_device"]] == [(9000, 1500)] * 2
    measured = [place["forward_ms"]["measured_steps"] for place in report["per_device"]]
    assert all(128 < count < 1500 for count in measured), measured
    assert "and the total is an estimate for all" in report["notes"]["per_device.forward_ms"]
    assert report["prediction"]["matches"] is True


def test_the_report_has_what_both_nodes_have_sampled_of_their_devices(nodes: TwoNodes) -> None:
    job = nodes.gang(steps=100, seconds=0.03)
    assert nodes.ended(job).state is JobState.SUCCEEDED
    assert [one["device"] for one in nodes.report(job)["hardware"]] == [0, 1, 2, 3]


def test_an_attempt_leaves_what_it_has_measured_in_the_history_of_the_devices_of_both_nodes(nodes: TwoNodes) -> None:
    job = nodes.gang(steps=40, seconds=0.01)
    assert nodes.ended(job).state is JobState.SUCCEEDED
    for device in (f"{node}:cpu:{index}" for node in NODES for index in (0, 1)):
        newest = nodes.run(store.read_history(device, limit=1)).lines[0]
        assert newest.attempt == str(nodes.attempt(job))
        assert newest.peers == 3
        assert newest.ms_per_row, device
        assert newest.relative, device


@pytest.mark.parametrize(("devices", "rows", "batch"), [(2, 90, 30), (1, 91, 20)])
def test_a_script_for_torchrun_on_two_hosts_gets_its_samplers_rows_on_each_rank(
    nodes: TwoNodes, devices: int, rows: int, batch: int
) -> None:
    """It asks for NCCL and CUDA, with `LOCAL_RANK` as the number of its device, so it rehearses."""
    files = {"train.py": (SCRIPTS / "ddp_sampler.py").read_text()}
    args = "--rows", str(rows), "--batch-size", str(batch), "--epochs", "2"
    job = nodes.run_script(files, *args, strategy="ddp", devices=devices, nodes=2, rehearse=True)
    record = nodes.ended(job)
    assert record.state is JobState.SUCCEEDED, record
    world = 2 * devices
    of_rank = math.ceil(rows / world)  # DistributedSampler repeats rows until every rank has as many
    full, rest = divmod(of_rank, batch)
    expected = {(batch,) * world: 2 * full, (rest,) * world: 2 * bool(rest)}
    report = nodes.report(job)
    found = {tuple(pattern["rows"]): pattern["steps"] for pattern in report["patterns"]}
    assert found == {split: steps for split, steps in expected.items() if steps}
    assert [place["rows"] for place in report["per_device"]] == [2 * of_rank] * world
    assert f"Let's use {devices} GPUs!" in nodes.text(job, 0)


@pytest.mark.parametrize(
    "env",
    [
        pytest.param({}, id="warm"),
        pytest.param({"OMP_NUM_THREADS": "1"}, id="cold", marks=pytest.mark.slow),  # which torch reads at import
    ],
)
def test_ranks_find_each_other_as_under_torchrun_and_each_device_has_its_log(
    nodes: TwoNodes, env: dict[str, str]
) -> None:
    job = nodes.run_script({"train.py": ENVIRONMENT}, strategy="ddp", devices=2, nodes=2, env=env)
    record = nodes.ended(job, 60)
    assert record.state is JobState.SUCCEEDED, record
    leader = nodes.records()[record.placement[0].node]
    for rank in range(4):
        seen, total = nodes.text(job, rank).splitlines()
        assert ast.literal_eval(seen) == {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank % 2),
            "WORLD_SIZE": "4",
            "LOCAL_WORLD_SIZE": "2",
            "GROUP_RANK": str(rank // 2),
            "NODE_RANK": str(rank // 2),
            "MASTER_ADDR": leader.address,
        }
        assert total == "sum of ranks 6.0"
    kept = {path.name for path in paths.artifacts_dir(nodes.files(job)).iterdir()}
    assert kept == {f"of-rank-{rank}" for rank in range(4)}


def test_each_node_writes_the_logs_of_its_own_devices(nodes: TwoNodes) -> None:
    program = """
import os, sys, torch, torch.distributed as dist
from torch import nn
dist.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(5, 2))
for step in range(3):
    model(torch.ones(4, 5)).sum().backward()
    print("step", step, "of rank", dist.get_rank(), flush=True)
print("to stderr", file=sys.stderr, flush=True)
dist.destroy_process_group()
"""
    job = nodes.run_script({"train.py": program}, strategy="ddp", devices=1, nodes=2)
    record = nodes.ended(job)
    assert record.state is JobState.SUCCEEDED, record
    for rank in range(2):
        assert nodes.text(job, rank).splitlines() == [f"step {number} of rank {rank}" for number in range(3)]
        assert "to stderr" in nodes.text(job, rank, "stderr")
        shard = "In Model: input size torch.Size([4, 5]) output size torch.Size([4, 2])"
        assert nodes.text(job, rank, "shard").splitlines().count(shard) == 3
        with FrameReader(paths.log_file(nodes.files(job), rank)) as log:
            newest = log.last()
            assert newest is not None
            assert newest.kind == FrameKind.SEAL


def test_a_secret_that_is_printed_on_either_node_is_not_in_the_log(nodes: TwoNodes) -> None:
    secret_keys.create_key_file(nodes.settings.secret_keys())
    value = uuid.uuid4().hex
    secret = secret_keys.encrypt_secret(secret_keys.read_keys(nodes.settings.secret_keys()), TENANT, "hf", value)
    nodes.run(tenant_secrets.put_secret(TENANT, "hf", secret))
    source = "import os; print('it is', os.environ['HF_TOKEN'], end='')"
    job = nodes.run_script({"train.py": source}, strategy="ddp", devices=2, nodes=2, secrets={"HF_TOKEN": "hf"})
    assert nodes.ended(job).state is JobState.SUCCEEDED
    assert [nodes.text(job, rank) for rank in range(4)] == ["it is [secret hf]"] * 4


@pytest.mark.parametrize("part", [0, 1])
def test_a_rank_that_is_killed_on_either_node_ends_all_and_the_error_names_it(nodes: TwoNodes, part: int) -> None:
    job = nodes.long_gang(limits={"max_retries": 0})
    attempt = nodes.attempt(job)
    node = nodes.job(job).placement[part].node
    everyone = [pid for one in NODES for pid in nodes.ranks_on(one, attempt)]
    assert len(everyone) == 4
    began = time.monotonic()
    end_process(max(nodes.ranks_on(node, attempt)))
    eventually(lambda: all(map(is_dead, everyone)), "all ranks are dead")
    assert time.monotonic() - began < ALL_DEAD_SECONDS + nodes.settings.grace_seconds
    record = nodes.ended(job)
    assert (record.state, record.reason) == (JobState.FAILED, StateReason.RANK_FAILED), record
    assert record.error is not None
    assert (record.error["node"], record.error["rank"] // 2, record.error["signal"]) == (node, part, "SIGKILL")
    assert f"on node {node} was killed by SIGKILL" in record.message


def test_an_error_on_the_follower_comes_with_its_traceback(nodes: TwoNodes) -> None:
    job = nodes.gang(fault="raise_error", rank=3, limits={"max_retries": 0})
    record = nodes.ended(job)
    assert record.reason is StateReason.CODE_ERROR, record
    assert record.error is not None
    assert (record.error["rank"], record.error["node"]) == (3, record.placement[1].node)
    assert "LookupError: this model fails on purpose" in record.error["traceback"]


@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_supervisor_that_dies_costs_an_attempt_and_the_next_one_resumes(nodes: TwoNodes, part: int) -> None:
    plain = nodes.gang(steps=60, checkpoint={"every_steps": 10})
    expected = nodes.ended(plain)
    job = nodes.gang(steps=60, seconds=0.02, checkpoint={"every_steps": 10})
    eventually(lambda: nodes.job(job).checkpoint, "a checkpoint")
    attempt, node = nodes.attempt(job), nodes.job(job).placement[part].node
    everyone = [pid for one in NODES for pid in nodes.ranks_on(one, attempt)]
    end_process(nodes.supervisor_on(node, attempt))
    eventually(lambda: all(map(is_dead, everyone)), "all ranks are dead", ALL_DEAD_SECONDS + 5)
    record = nodes.ended(job)
    assert record.state is JobState.SUCCEEDED, record
    assert record.result == expected.result
    first, second = nodes.attempts(job)
    assert first.reason is StateReason.SUPERVISOR_LOST
    assert second.resumed is not None


def test_a_follower_that_stands_still_is_cut_off_and_its_link_named(nodes: TwoNodes) -> None:
    job = nodes.long_gang()
    attempt, other = nodes.attempt(job), nodes.node_of_follower(job)
    ranks = nodes.ranks_on(other, attempt)
    supervisor = nodes.supervisor_on(other, attempt)
    os.kill(supervisor, signal.SIGSTOP)
    try:
        eventually(lambda: nodes.job(job).attempt == 2 or nodes.attempts(job)[0].reason, "the first attempt has ended")
        first = nodes.attempts(job)[0]
        assert first.reason is StateReason.LINK_LOST, first
        assert all(node in first.message for node in NODES)
        held = [ref for ref in nodes.records()[other].held.values() if str(attempt) == ref]
        assert len(held) == 2, "a part that is lost keeps its devices until they are proven free"
    finally:
        os.kill(supervisor, signal.SIGCONT)
    eventually(lambda: all(map(is_dead, ranks)), "it kills its ranks by itself")
    nodes.cancel(job)
    nodes.ended(job)


#: The last rank, which is on the second node, prepares something for ever.
LEAVES_OTHERS_WAITING = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
for step in range(4):
    if step == 3 and dist.get_rank() == 1:
        time.sleep(600)
    dist.all_reduce(torch.ones(2))
"""


def test_a_rank_of_the_other_node_that_keeps_all_waiting_is_named_with_its_line(nodes: TwoNodes) -> None:
    files = {"train.py": LEAVES_OTHERS_WAITING}
    job = nodes.run_script(files, strategy="ddp", devices=1, nodes=2, limits={"stall_seconds": 2})
    record = nodes.ended(job)
    assert record.reason is StateReason.STALLED, record
    assert "rank 0 waits in all_reduce" in record.message
    assert "(train.py, line 7, in <module>)" in record.message
    assert "rank 1 is at train.py, line 6, in <module>" in record.message


def test_a_cancel_ends_the_ranks_of_both_nodes(nodes: TwoNodes) -> None:
    job = nodes.long_gang()
    attempt = nodes.attempt(job)
    everyone = [pid for one in NODES for pid in nodes.ranks_on(one, attempt)]
    nodes.cancel(job)
    record = nodes.ended(job)
    assert record.reason is StateReason.CANCELLED_BY_USER
    assert all(map(is_dead, everyone))


def test_a_drain_of_the_node_that_does_not_lead_sends_the_whole_job_back_at_no_cost(nodes: TwoNodes) -> None:
    plain = nodes.gang(steps=60, checkpoint={"every_steps": 10})
    expected = nodes.ended(plain)
    job = nodes.gang(steps=60, seconds=0.05, checkpoint={"every_steps": 10})
    eventually(lambda: nodes.job(job).first_step, "it trains")
    attempt, other = nodes.attempt(job), nodes.node_of_follower(job)
    everyone = [pid for one in NODES for pid in nodes.ranks_on(one, attempt)]
    nodes.run(store.drain_node(other, deadline_seconds=0))
    try:
        eventually(lambda: nodes.job(job).state is JobState.QUEUED, "it waits again")
        record = nodes.job(job)
        assert (record.reason, record.losses, record.retries) == (StateReason.DRAINED, 0, 0)
        assert all(map(is_dead, everyone))
    finally:
        nodes.run(store.undrain_node(other))
    record = nodes.ended(job)
    assert (record.state, record.result) == (JobState.SUCCEEDED, expected.result)
    assert nodes.attempts(job)[1].resumed is not None, "a drain leaves time for a checkpoint"


@pytest.mark.slow
def test_the_time_limit_of_a_job_ends_the_ranks_of_both_nodes(nodes: TwoNodes) -> None:
    job = nodes.gang(steps=10_000, seconds=0.05, limits={"wall_seconds": 3.0})
    eventually(lambda: nodes.job(job).first_step, "it trains")
    attempt = nodes.attempt(job)
    everyone = [pid for one in NODES for pid in nodes.ranks_on(one, attempt)]
    assert len(everyone) == 4
    record = nodes.ended(job)
    assert (record.state, record.message) == (JobState.FAILED, "ran longer than limits.wall_seconds (3 s)")
    assert all(map(is_dead, everyone))


@pytest.mark.slow
def test_a_part_that_does_not_join_sends_the_attempt_back_at_no_cost(nodes: TwoNodes) -> None:
    stopped = [nodes.other_worker.pid]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        job = nodes.gang(steps=4)
        eventually(lambda: nodes.attempts(job)[0].reason, "the first attempt has ended")
        first = nodes.attempts(job)[0]
        assert first.reason in (StateReason.LEASE_EXPIRED, StateReason.NODE_LOST)  # which of them depends on the clock
        assert OTHER in first.message
        record = nodes.job(job)
        assert (record.retries, record.losses) == (0, 0)
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    assert nodes.ended(job, 120).state is JobState.SUCCEEDED


def test_a_hint_for_a_part_that_comes_twice_or_late_changes_nothing(nodes: TwoNodes) -> None:
    job = nodes.long_gang()
    attempt = nodes.attempt(job)
    before = [nodes.supervisor_on(node, attempt) for node in NODES]
    for node in NODES:
        nodes.send(store.Hint(node, attempt))
    nodes.send(store.Hint(NODE, store.AttemptId(attempt.tenant, attempt.job, 7)))
    time.sleep(1.0)
    assert [nodes.supervisor_on(node, attempt) for node in NODES] == before
    assert nodes.job(job).state is JobState.RUNNING
    nodes.cancel(job)
    nodes.ended(job)
