"""Rows of jobs that have ended are made once."""

from collections.abc import Sequence

import msgspec
import pytest

from api.jobs.finished_row_cache import KEPT_ROWS, EndedRows
from api.schemas import views
from jobs import store
from jobs.model.state import Reason, State
from jobs.store import PackedJob
from tests.unit.api.records import JOB, a_job


def labels(node: str, indexes: Sequence[int]) -> list[str]:
    return [f"{node}:{index}" for index in indexes]


def other_labels(node: str, indexes: Sequence[int]) -> list[str]:
    return ["another"] * len(indexes)


ENDED = {"state": State.SUCCEEDED, "reason": Reason.COMPLETED, "node": "n1", "leased": (0, 1), "finished": 5}


def test_a_row_is_what_a_list_shows_of_the_job() -> None:
    job = a_job(**ENDED)
    assert bytes(EndedRows().row(job, labels)) == msgspec.json.encode(views.listed(job, None, None, labels))


def test_a_row_is_made_once_and_anew_when_devices_have_other_names() -> None:
    rows, job = EndedRows(), a_job(**ENDED)
    first = rows.row(job, labels)
    assert rows.row(job, labels) is first
    assert b'"another"' in bytes(rows.row(job, other_labels))
    assert rows.row(job, labels) is not first


def test_two_tenants_and_an_archived_job_have_rows_of_their_own() -> None:
    rows = EndedRows()
    kinds = [a_job(**ENDED), a_job(**ENDED, tenant="other", name="theirs"), a_job(**ENDED, archived=True)]
    found = [bytes(rows.row(job, labels)) for job in kinds * 2]
    assert found[:3] == found[3:]
    assert len(set(found)) == 3


def test_no_more_rows_are_kept_than_there_is_room_for() -> None:
    rows = EndedRows()
    for number in range(KEPT_ROWS + 5):
        rows.row(a_job(**ENDED, id=str(number)), labels)
    assert len(rows._rows) == KEPT_ROWS


def packed(**changes: str) -> PackedJob:
    """A job as the store packs it, with fields as it has them."""
    fields = {
        "pool": "a100",
        "devices": "2",
        "priority": "-3",
        "name": 'a "name" \\ 100 % %(id)b 你好',
        "strategy": "ddp",
        "labels": '{"team":"50 %","greeting":"schöne \\"Grüße\\""}',
        "max_retries": "1",
        "retries": "0",
        "losses": "0",
        "created": "1795324261980470",
        "parent": "",
        "reason": "completed",
        "message": "",
        "node": "gpu-host-0",
        "leased": "1,0",
        "started": "1795324262000001",
        "first_step": "1795324263019281",
        "finished": "1795324361000000",
        "version": "5",
        "state": "succeeded",
        "attempt": "1",
    } | changes
    job = {name.encode(): value.encode() for name, value in fields.items()}
    return PackedJob("default", JOB, store.pack(store.Snapshot(job, b'{"kind":"any"}', ({b"state": b"ended"},))))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"state": "failed", "reason": "code_error", "message": 'rank 1 failed: "%s" \\ %(name)b'},
        {"state": "cancelled", "reason": "cancelled_by_user", "cancel": "1"},
        {"state": "cancelled", "started": "", "first_step": "", "node": "", "leased": "", "labels": ""},
        {"reason": "of_a_later_version"},
    ],
)
def test_a_row_of_a_packed_job_is_what_a_list_shows_of_its_record(changes: dict[str, str]) -> None:
    job = packed(**changes)
    row = bytes(EndedRows().row(job, labels))
    assert row == msgspec.json.encode(views.listed(job.record(), None, None, labels))


def test_a_row_of_a_packed_job_is_made_anew_when_it_or_the_name_of_a_device_has_changed() -> None:
    rows = EndedRows()
    first = rows.row(packed(), labels)
    assert rows.row(packed(), labels) is first
    assert b'"version 6"' in bytes(rows.row(packed(version="6", message="version 6"), labels))
    assert b'"another"' in bytes(rows.row(packed(), other_labels))
