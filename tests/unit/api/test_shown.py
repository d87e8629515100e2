import json
from typing import Any

from api.data.fleet_cache import labels_of
from api.jobs import status_cache
from api.jobs.status_cache import ShownStatuses
from jobs.model.records import QueueView
from jobs.model.state import Reason, State
from jobs.store import JobView
from tests.unit.api.records import a_job, a_spec

LABELS = labels_of({})


def a_view(**changes: Any) -> JobView:
    return JobView(a_job(**changes), a_spec(2), QueueView(1, 0, 0, 1, 4))


def test_a_status_is_answered_with_the_same_bytes_until_something_of_it_changes() -> None:
    statuses, view = ShownStatuses(), a_view()
    first = statuses.answer(view, None, LABELS)
    assert statuses.answer(view, None, LABELS) is first
    assert json.loads(first.body)["queue_position"] == 2
    assert first.tag.startswith('W/"1.')
    stepped = statuses.answer(view, {"step": 3}, LABELS)
    assert json.loads(stepped.body)["progress"] == {"step": 3}
    assert stepped.tag != first.tag
    renamed = labels_of({"host-a": {0: "cuda:0"}})
    placed = a_view(node="host-a", leased=(0,))
    before, after = statuses.answer(placed, None, LABELS), statuses.answer(placed, None, renamed)
    devices = [json.loads(answer.body)["placement"][0]["devices"] for answer in (before, after)]
    assert devices == [["device:0"], ["cuda:0"]]


def test_jobs_of_two_tenants_with_one_id_are_not_mixed_up() -> None:
    statuses = ShownStatuses()
    for tenant in ("acme", "default"):
        statuses.answer(a_view(tenant=tenant, name=tenant), None, LABELS)
    kept = statuses.last("acme", a_job().id)
    assert kept is not None
    assert json.loads(kept.answer.body)["name"] == "acme"


def test_progress_is_final_when_a_job_has_ended_and_has_some() -> None:
    statuses = ShownStatuses()
    for state, progress, final in (
        (State.RUNNING, {"step": 1}, False),
        (State.SUCCEEDED, None, False),
        (State.SUCCEEDED, {"step": 1}, True),
    ):
        statuses.answer(a_view(state=state, reason=Reason.RUNNING, attempt=1), progress, LABELS)
        kept = statuses.last("default", a_job().id)
        assert kept is not None
        assert kept.is_final is final


def test_few_are_kept_and_large_ones_are_not() -> None:
    statuses = ShownStatuses()
    statuses.answer(a_view(message="x" * status_cache.MAX_KEPT_BYTES, reason=Reason.BACKING_OFF), None, LABELS)
    assert statuses.last("default", a_job().id) is None
    for number in range(status_cache.MAX_KEPT + 10):
        statuses.answer(a_view(id=str(number)), None, LABELS)
    assert statuses.last("default", "9") is None
    assert statuses.last("default", "10") is not None
