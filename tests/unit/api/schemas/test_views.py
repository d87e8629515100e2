from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
import pytest

from api.schemas import views
from jobs.model.records import QueueView
from jobs.model.state import JobState, StateReason
from jobs.store import FleetRecords, JobView
from shardyard.contract.responses import JobStatus, PlacementView, Progress
from tests.support.job_records import JOB, a_job, a_node, a_spec
from tests.support.script_streams import script_spec


def labels(_node: str, indexes: Sequence[int]) -> list[str]:
    return [f"cuda:{index}" for index in indexes]


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
                "needs 4 in pool a100, and no node of it takes work now: they are down, stopping or draining; "
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
    reason = views.reason_view(a_job(), behind)
    assert (reason.code, reason.message) == (code, words)


def test_a_job_that_backs_off_says_why_and_nothing_of_a_queue_that_it_is_not_in() -> None:
    job = a_job(reason=StateReason.BACKING_OFF, message="attempt 1 ended: stalled; retry 1 of 3")
    reason = views.reason_view(job, queue(0, 8, 8))
    assert (reason.code, reason.message) == ("backing_off", "attempt 1 ended: stalled; retry 1 of 3")
    assert views.job_status(JobView(job, a_spec(), queue(0, 8, 8)), None, labels).queue_position is None


def test_a_job_of_a_stopped_service_is_in_the_queue_again() -> None:
    job = a_job(reason=StateReason.SERVICE_STOPPED, message="the service was stopped")
    reason = views.reason_view(job, queue(0, 2, 2))
    assert reason.message == "the service was stopped; needs 4 in pool a100: 2 of 8 free, 0 jobs ahead"


def test_an_ended_job_keeps_the_words_of_its_end() -> None:
    job = a_job(state=JobState.FAILED, reason=StateReason.OUT_OF_MEMORY, message="rank 1 was killed by SIGKILL")
    assert views.reason_view(job, None).message == "rank 1 was killed by SIGKILL"


def test_a_status_shows_the_position_in_the_queue_counted_from_one() -> None:
    status = views.job_status(JobView(a_job(), a_spec(), queue(ahead=2)), None, labels)
    assert status.queue_position == 3
    assert views.job_status(JobView(a_job(state=JobState.RUNNING), a_spec(), None), None, labels).queue_position is None


def test_times_are_utc_with_microseconds() -> None:
    status = views.job_status(JobView(a_job(), a_spec(), queue()), None, labels)
    sent = msgspec.json.decode(msgspec.json.encode(status))
    assert sent["created_at"] == "2023-11-14T22:13:20.000001Z"
    assert sent["finished_at"] is None


def test_a_client_reads_a_status_as_values_and_a_service_sends_every_field() -> None:
    running = a_job(state=JobState.RUNNING, reason=StateReason.RUNNING, node="host-a", leased=(1,))
    sent = msgspec.json.encode(views.job_status(JobView(running, a_spec(), None), Progress(step=3), labels))
    assert set(msgspec.json.decode(sent)) == set(JobStatus.__struct_fields__)
    read = msgspec.json.decode(sent, type=JobStatus)
    assert read.created_at == datetime(2023, 11, 14, 22, 13, 20, 1, tzinfo=UTC)
    assert (read.progress, read.placement) == (Progress(step=3), [PlacementView("host-a", ["cuda:1"])])
    assert read.spec["resources"]["devices"] == 1


def test_a_status_shows_both_batch_sizes() -> None:
    body = a_spec(2).model_dump()
    body["parallelism"]["strategy"] = "ddp"
    status = views.job_status(JobView(a_job(), type(a_spec()).model_validate(body), None), None, labels)
    assert (status.batch_size, status.global_batch_size) == (30, 60)


def test_a_status_says_how_a_script_starts_and_whether_its_gpus_are_acted() -> None:
    script = script_spec("dp", 2, rehearse=True, python="torch-2-8")
    cold, warm = (views.job_status(JobView(a_job(), spec, None), None, labels) for spec in (script, a_spec()))
    assert (cold.start, cold.rehearsal, cold.batch_size) == ("cold", True, None)
    assert (warm.start, warm.rehearsal) == ("warm", False)


def test_placement_names_devices_for_people() -> None:
    job = a_job(state=JobState.RUNNING, reason=StateReason.RUNNING, node="host-a", leased=(1, 3))
    (place,) = views.job_summary(job, labels).placement
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
