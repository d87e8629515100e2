from datetime import UTC, datetime

import msgspec
import pytest

from api.schemas import views
from api.schemas.fleet_facts import FleetFacts
from jobs.model.pool_policy import PoolPolicy
from jobs.model.provided_pool import Block, PoolOffer, ProvidedPool
from jobs.model.records import BOX_RIGHTS, AttemptRecord, BoxRights, Placement, QueueView
from jobs.model.state import JobState, StateReason
from jobs.store import FleetRecords, JobView
from shardyard.contract.responses import JobStatus, PlacementView, Progress
from tests.support.samples.job_records import JOB, a_boxed_node, a_job, a_node, a_spec, node_info
from tests.support.samples.script_streams import script_spec

FLEET = FleetFacts({"host-a": {index: f"cuda:{index}" for index in range(4)}})


def queue(ahead: int = 0, free: int = 0, largest_gap: int = 0, live_nodes: int = 1, total: int = 8) -> QueueView:
    return QueueView(ahead, free, largest_gap, live_nodes, total)


@pytest.mark.parametrize(
    ("behind", "code", "words"),
    [
        (queue(3, 2, 2), "waiting_for_devices", "needs 4 in pool a100: 2 of 8 free, 3 jobs ahead"),
        (queue(1, 0), "waiting_for_devices", "needs 4 in pool a100: 0 of 8 free, 1 job ahead"),
        (
            queue(0, 6, 3, 2),
            "waiting_for_devices",
            "needs 4 in pool a100: 6 of 8 free (at most 3 of them on one node), 0 jobs ahead",
        ),
        (
            queue(live_nodes=0),
            "no_live_node",
            (
                "needs 4 in pool a100, and none of its nodes takes work now: they are down, stopping or draining; "
                "`shardyard nodes` shows which"
            ),
        ),
        (
            queue(free=2, largest_gap=2, total=2),
            "waiting_for_devices",
            "needs 4 in pool a100, whose nodes have 2 now; start one with more devices, or cancel the job",
        ),
    ],
)
def test_a_queued_job_says_in_numbers_what_it_waits_for(behind: QueueView, code: str, words: str) -> None:
    reason = views.reason_view(a_job(), behind, FLEET)
    assert (reason.code, reason.message) == (code, words)


def test_a_job_whose_pool_demands_a_box_that_no_node_has_says_so_whether_or_not_others_take_work() -> None:
    policy = PoolPolicy("user")
    small = a_boxed_node("host-a", 2, BoxRights("full", {}), policy=policy)
    large = a_boxed_node("host-b", 8, BoxRights("none", {}), policy=policy)
    for nodes, behind in (((large,), queue(live_nodes=0)), ((small, large), queue(free=2, largest_gap=2, total=2))):
        reason = views.reason_view(a_job(), behind, FleetFacts.from_records(FleetRecords(nodes, {}, {"a100": policy})))
        assert (reason.code, reason.message) == (
            "unboxed",
            (
                "needs 4 in pool a100, which demands a box around its jobs: host-b has none; "
                "`shardyard nodes --box` shows why"
            ),
        )


def test_a_job_that_waits_for_several_nodes_says_when_those_of_its_pool_do_not_reach_each_other() -> None:
    nodes = tuple(a_boxed_node(f"host-{name}", 4, BoxRights("full", {})) for name in "ab")
    fleet = FleetFacts.from_records(FleetRecords(nodes, {}, {}))
    gang = a_job(devices=2, nodes=2, strategy="ddp")
    reason = views.reason_view(gang, queue(0, 8, 4, 2), fleet)
    assert (reason.code, reason.message) == (
        "node_has_no_address",
        (
            "needs 2 on each of 2 nodes in pool a100, whose nodes do not reach each other: host-a listens on "
            "127.0.0.1, host-b listens on 127.0.0.1; give each node an IP address that the others reach, with "
            "SHARDYARD_NODE_ADDRESS"
        ),
    )
    assert views.reason_view(gang, queue(live_nodes=0), fleet).code == "no_live_node"
    assert views.reason_view(a_job(devices=2), queue(0, 8, 4, 2), fleet).code == "waiting_for_devices"


def provided(*blocks: Block, error: str = "", silent: bool = False, nodes: int = 2) -> FleetFacts:
    offer = PoolOffer("slurm", "login:/etc/pools.toml", devices=4, nodes=nodes, error=error)
    return FleetFacts.from_records(FleetRecords((), {}, {}, {"a100": ProvidedPool(offer, silent, blocks)}))


PENDING = Block("sy-1", 1, id="4711", state="pending", why="Priority")
STARTING = Block("sy-0", 1, id="4710", state="starting")


@pytest.mark.parametrize(
    ("fleet", "ahead", "words"),
    [
        (provided(PENDING), 0, "block 4711 is pending in Slurm: Priority"),
        (provided(PENDING), 2, "block 4711 is pending in Slurm: Priority, 2 jobs ahead"),
        (provided(PENDING, STARTING), 0, "block 4710 has begun in Slurm, and its nodes have not joined yet"),
        (provided(Block("sy-2", 2)), 0, "a block of 2 was requested from Slurm"),
        (
            provided(error="sbatch: error: invalid partition"),
            0,
            "Slurm gives no block: sbatch: error: invalid partition",
        ),
        (provided(), 0, "a block will be requested from Slurm"),
        (
            provided(PENDING, silent=True),
            0,
            "the provider of this pool (login:/etc/pools.toml) sends nothing; start `shardyard provider` again",
        ),
    ],
)
def test_a_job_says_which_block_it_waits_for(fleet: FleetFacts, ahead: int, words: str) -> None:
    reason = views.reason_view(a_job(devices=4), queue(ahead, live_nodes=0, total=0), fleet)
    assert (reason.code, reason.message) == ("waiting_for_nodes", words)


def test_a_job_waits_for_devices_where_they_are_free_or_no_more_nodes_will_come() -> None:
    assert views.reason_view(a_job(devices=2), queue(0, 4, 4), provided(PENDING)).code == "waiting_for_devices"
    there = Block("sy-1", 1, id="1", state="running", registered=1)
    full = provided(there, nodes=1)
    assert views.reason_view(a_job(devices=4), queue(1, 0, 0), full).code == "waiting_for_devices"


def test_a_job_that_waits_for_several_nodes_says_for_how_many() -> None:
    gang = a_job(devices=2, nodes=3, strategy="ddp")
    assert views.reason_view(gang, queue(0, 4, 2), FLEET).message == (
        "needs 2 on each of 3 nodes in pool a100: 4 of 8 free, 0 jobs ahead"
    )
    assert "whose nodes have 4 now" in views.reason_view(gang, queue(0, 4, 2, total=4), FLEET).message


def test_a_job_that_backs_off_says_why_and_nothing_of_a_queue_that_it_is_not_in() -> None:
    job = a_job(reason=StateReason.BACKING_OFF, message="attempt 1 ended: stalled; retry 1 of 3")
    reason = views.reason_view(job, queue(0, 8, 8), FLEET)
    assert (reason.code, reason.message) == ("backing_off", "attempt 1 ended: stalled; retry 1 of 3")
    assert views.job_status(JobView(job, a_spec(), queue(0, 8, 8)), None, FLEET).queue_position is None


def test_a_job_of_a_stopped_service_is_in_the_queue_again() -> None:
    job = a_job(reason=StateReason.SERVICE_STOPPED, message="the service was stopped")
    reason = views.reason_view(job, queue(0, 2, 2), FLEET)
    assert reason.message == "the service was stopped; needs 4 in pool a100: 2 of 8 free, 0 jobs ahead"


def test_an_ended_job_keeps_the_words_of_its_end() -> None:
    job = a_job(state=JobState.FAILED, reason=StateReason.OUT_OF_MEMORY, message="rank 1 was killed by SIGKILL")
    assert views.reason_view(job, None, FLEET).message == "rank 1 was killed by SIGKILL"


def test_a_status_shows_the_position_in_the_queue_counted_from_one() -> None:
    status = views.job_status(JobView(a_job(), a_spec(), queue(ahead=2)), None, FLEET)
    assert status.queue_position == 3
    assert views.job_status(JobView(a_job(state=JobState.RUNNING), a_spec(), None), None, FLEET).queue_position is None


def test_times_are_utc_with_microseconds() -> None:
    status = views.job_status(JobView(a_job(), a_spec(), queue()), None, FLEET)
    sent = msgspec.json.decode(msgspec.json.encode(status))
    assert sent["created_at"] == "2023-11-14T22:13:20.000001Z"
    assert sent["finished_at"] is None


def test_a_client_reads_a_status_as_values_and_a_service_sends_every_field() -> None:
    running = a_job(state=JobState.RUNNING, reason=StateReason.RUNNING, node="host-a", leased=(1,))
    sent = msgspec.json.encode(views.job_status(JobView(running, a_spec(), None), Progress(step=3), FLEET))
    assert set(msgspec.json.decode(sent)) == set(JobStatus.__struct_fields__)
    read = msgspec.json.decode(sent, type=JobStatus)
    assert read.created_at == datetime(2023, 11, 14, 22, 13, 20, 1, tzinfo=UTC)
    assert (read.progress, read.placement) == (Progress(step=3), [PlacementView("host-a", ["cuda:1"], [0])])
    assert read.spec["resources"]["devices"] == 1


def test_a_job_on_several_nodes_lists_each_with_its_devices_and_ranks() -> None:
    gang = a_job(
        state=JobState.RUNNING,
        reason=StateReason.RUNNING,
        strategy="ddp",
        devices=2,
        nodes=3,
        node="host-b",
        leased=(2, 3),
        followers=(Placement("host-a", (0, 1)), Placement("gone", (4, 5))),
    )
    row = views.listed_job(gang, None, None, FLEET)
    assert (row.devices, row.nodes) == (2, 3)
    assert row.placement == [
        PlacementView("host-b", ["device:2", "device:3"], [0, 1]),
        PlacementView("host-a", ["cuda:0", "cuda:1"], [2, 3]),
        PlacementView("gone", ["device:4", "device:5"], [4, 5]),
    ]


def test_an_attempt_lists_the_nodes_of_all_its_parts() -> None:
    fields = {"node": "host-a", "leased": "0", "state": "claimed", "beat": "1", "created": "1", "parts": "2"}
    fields |= {"node.1": "host-b", "leased.1": "3", "state.1": "claimed", "beat.1": "1"}
    record = AttemptRecord.from_fields(1, {name.encode(): value.encode() for name, value in fields.items()})
    assert views.attempt_view(record, FLEET).placement == [
        PlacementView("host-a", ["cuda:0"]),
        PlacementView("host-b", ["device:3"]),
    ]


def test_a_node_says_that_it_is_virtual_and_where_it_stands() -> None:
    info = msgspec.structs.replace(node_info(1), virtual=True)
    node = a_node(1, info=msgspec.json.encode(info).decode(), topology="rack-4", reach_said_by="i")
    seen = views.node_view(node, "default", 0)
    assert (seen.virtual, seen.topology) == (True, "rack-4")


def test_what_an_earlier_worker_has_said_of_a_node_does_not_count() -> None:
    before = a_node(1, topology="rack-4", reach_said_by="an earlier one")
    seen = views.node_view(before, "default", 0)
    assert (seen.virtual, seen.topology) == (False, "")


def test_a_status_shows_both_batch_sizes() -> None:
    body = a_spec(2).model_dump()
    body["parallelism"]["strategy"] = "ddp"
    status = views.job_status(JobView(a_job(), type(a_spec()).model_validate(body), None), None, FLEET)
    assert (status.batch_size, status.global_batch_size) == (30, 60)


def test_a_status_says_how_a_script_starts_and_whether_its_gpus_are_acted() -> None:
    script = script_spec("dp", 2, rehearse=True, python="torch-2-8")
    cold, warm = (views.job_status(JobView(a_job(), spec, None), None, FLEET) for spec in (script, a_spec()))
    assert (cold.start, cold.rehearsal, cold.batch_size) == ("cold", True, None)
    assert (warm.start, warm.rehearsal) == ("warm", False)


def test_placement_names_devices_for_people() -> None:
    job = a_job(state=JobState.RUNNING, reason=StateReason.RUNNING, node="host-a", leased=(1, 3))
    (place,) = views.job_summary(job, FLEET).placement
    assert (place.node, place.devices) == ("host-a", ["cuda:1", "cuda:3"])


def test_only_a_job_that_has_not_ended_links_to_its_cancel() -> None:
    assert views.job_links(JOB, JobState.RUNNING)["cancel"] == f"/v1/jobs/{JOB}/cancel"
    assert "cancel" not in views.job_links(JOB, JobState.SUCCEEDED)


def test_a_device_says_which_job_holds_it_only_to_that_jobs_tenant() -> None:
    record = a_node(3, held={0: f"default/{JOB}/2", 1: f"other/{JOB}/1"})
    mine, theirs, free = views.node_view(record, "default", 0).devices
    assert (mine.state, mine.job, mine.attempt) == ("leased", JOB, 2)
    assert (theirs.state, theirs.job, theirs.attempt) == ("leased", "another tenant", None)
    assert (free.state, free.job) == ("free", None)


def test_a_pool_adds_up_its_nodes_and_counts_no_free_device_of_a_node_that_is_down() -> None:
    down = a_node(4, alive="")
    (pool,) = views.pool_views(FleetRecords((a_node(2, held={0: f"default/{JOB}/1"}), down), {"a100": 5}))
    assert (pool.devices, pool.free, pool.leased, pool.queued) == (6, 1, 1, 5)
    assert (pool.nodes, pool.live_nodes, pool.largest_node) == (2, 1, 4)


def test_a_node_shows_every_right_of_its_box_with_the_reason_where_it_lacks_one() -> None:
    user = a_boxed_node(
        "host-a", 1, BoxRights("user", {"account": "the worker is not root"}), policy=PoolPolicy("full")
    )
    view = views.node_view(user, "default", 0)
    assert (view.box.level, view.unboxed) == ("user", True)
    assert [right.name for right in view.box.rights] == list(BOX_RIGHTS)
    assert {right.name: right.why for right in view.box.rights if not right.has} == {
        "account": "the worker is not root"
    }
    none = views.node_view(a_boxed_node("host-a", 1, BoxRights("none", {"network": "no"})), "default", 0)
    assert {right.name for right in none.box.rights if right.has} == set()
    assert all(right.why for right in none.box.rights)
    old = views.node_view(a_node(1), "default", 0)
    assert (old.box.level, old.box.rights, old.unboxed) == ("none", [], False)


def test_a_pool_shows_its_policy_and_counts_the_boxes_of_its_live_nodes() -> None:
    policy = PoolPolicy("full", "host")
    boxes = [BoxRights("full", {}), BoxRights("user", {}), None]
    nodes = [a_boxed_node(f"host-{i}", 2, box, policy=policy) for i, box in enumerate(boxes)]
    down = a_boxed_node("host-9", 2, boxes[1], policy=policy, alive="")
    fleet = FleetRecords((*nodes, down), {"a100": 1}, {"a100": policy, "empty": PoolPolicy("user")})
    pool, empty = views.pool_views(fleet)
    assert (pool.box, pool.network, pool.free) == ("full", "host", 2)
    assert (pool.boxes, pool.unboxed) == ({"none": 1, "user": 1, "full": 1}, 2)
    assert (empty.name, empty.box, empty.network, empty.nodes) == ("empty", "user", "none", 0)
