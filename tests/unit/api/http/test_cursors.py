import base64
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.http import cursors
from api.http.cursors import LogCursor
from shardyard.contract.errors import MalformedCursor
from tests.support.samples.job_records import JOB


def test_a_job_cursor_comes_back_as_the_id_it_was_made_from() -> None:
    assert cursors.decode_job(cursors.encode_job(JOB)) == JOB


@given(st.integers(1, 1000), st.dictionaries(st.integers(0, 1023), st.integers(0, 2**63 - 1), max_size=64))
def test_a_log_cursor_comes_back_with_every_device(attempt: int, seen: dict[int, int]) -> None:
    cursor = LogCursor(attempt, seen)
    assert cursors.decode_log(cursors.encode_log(cursor)) == cursor


@given(st.text(max_size=200))
def test_any_other_text_is_refused_as_a_cursor_and_never_an_accident(text: str) -> None:
    with suppress(MalformedCursor):
        job = cursors.decode_job(text)
        assert cursors.decode_job(cursors.encode_job(job)) == job
    with suppress(MalformedCursor):
        position = cursors.decode_log(text)
        assert cursors.decode_log(cursors.encode_log(position)) == position


@pytest.mark.parametrize("value", [[0, {}], [1, {-1: 5}], [1, {0: -5}], [1, {0: 2**63}], [1], {}, b"x" * 50_000])
def test_a_log_cursor_with_impossible_numbers_is_refused(value: object) -> None:
    text = base64.urlsafe_b64encode(msgspec.msgpack.encode(value)).decode()
    with pytest.raises(MalformedCursor):
        cursors.decode_log(text)


def test_a_deeply_nested_cursor_is_refused() -> None:
    with pytest.raises(MalformedCursor):
        cursors.decode_log(base64.urlsafe_b64encode(b"\x91" * 20_000).decode())
