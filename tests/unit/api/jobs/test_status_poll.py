import json
from typing import Any

from api.jobs import status_poll
from api.jobs.status_poll import StatusCache
from api.schemas.fleet_facts import FleetFacts
from jobs.model.records import QueueView
from jobs.model.state import JobState, StateReason
from jobs.store import JobView
from shardyard.contract.responses import Progress
from tests.support.samples.job_records import a_job, a_spec

FLEET = FleetFacts()


def a_view(**changes: Any) -> JobView:
    return JobView(a_job(**changes), a_spec(2), QueueView(1, 0, 0, 1, 4))


def test_a_status_is_answered_with_the_same_bytes_until_something_of_it_changes() -> None:
    statuses, view = StatusCache(), a_view()
    first = statuses.encode_status(view, None, FLEET)
    assert statuses.encode_status(view, None, FLEET) is first
    assert json.loads(first.body)["queue_position"] == 2
    assert first.tag.startswith('W/"1.')
    stepped = statuses.encode_status(view, Progress(step=3), FLEET)
    assert json.loads(stepped.body)["progress"]["step"] == 3
    assert stepped.tag != first.tag
    owned = statuses.encode_status(view, Progress(step=3), FLEET, "ana")
    assert json.loads(owned.body)["owner"] == "ana"
    assert statuses.encode_status(view, Progress(step=3), FLEET, "ana") is owned
    renamed = FleetFacts({"host-a": {0: "cuda:0"}})
    placed = a_view(node="host-a", leased=(0,))
    before, after = statuses.encode_status(placed, None, FLEET), statuses.encode_status(placed, None, renamed)
    devices = [json.loads(answer.body)["placement"][0]["devices"] for answer in (before, after)]
    assert devices == [["device:0"], ["cuda:0"]]


def test_jobs_of_two_tenants_with_one_id_are_not_mixed_up() -> None:
    statuses = StatusCache()
    for tenant in ("acme", "default"):
        statuses.encode_status(a_view(tenant=tenant, name=tenant), None, FLEET)
    kept = statuses.last_status("acme", a_job().id)
    assert kept is not None
    assert json.loads(kept.answer.body)["name"] == "acme"


def test_progress_is_final_when_a_job_has_ended_and_has_some() -> None:
    statuses = StatusCache()
    for state, progress, final in (
        (JobState.RUNNING, Progress(step=1), False),
        (JobState.SUCCEEDED, None, False),
        (JobState.SUCCEEDED, Progress(step=1), True),
    ):
        statuses.encode_status(a_view(state=state, reason=StateReason.RUNNING, attempt=1), progress, FLEET)
        kept = statuses.last_status("default", a_job().id)
        assert kept is not None
        assert kept.is_final is final


def test_few_are_kept_and_large_ones_are_not() -> None:
    statuses = StatusCache()
    statuses.encode_status(
        a_view(message="x" * status_poll.MAX_CACHED_BYTES, reason=StateReason.BACKING_OFF), None, FLEET
    )
    assert statuses.last_status("default", a_job().id) is None
    for number in range(status_poll.MAX_CACHED + 10):
        statuses.encode_status(a_view(id=str(number)), None, FLEET)
    assert statuses.last_status("default", "9") is None
    assert statuses.last_status("default", "10") is not None
