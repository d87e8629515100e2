"""Rows of jobs that have ended are made once."""

from collections.abc import Sequence

import msgspec

from api import views
from api.listed import KEPT_ROWS, EndedRows
from jobs.state import Reason, State
from tests.unit.api.records import a_job


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
