import asyncio
import json
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api import cursors, events_position
from api.events_batches import BATCH_LINES, Batch, Window, of_page
from api.events_position import Event, Position
from api.services import events
from api.services.events import Reader, Slots, TooManyStreams
from jobs.errors import Unauthenticated, Unavailable
from jobs.events import data
from jobs.logs import Dropped, Line, Page

COUNTS = st.integers(0, 2**40)


@given(
    st.builds(
        Position,
        attempt=COUNTS,
        state=COUNTS,
        points=COUNTS,
        findings=st.lists(COUNTS, max_size=5).map(tuple),
        lines=st.dictionaries(st.integers(0, 100), COUNTS, max_size=64),
        ended=st.booleans(),
    )
)
def test_an_id_is_one_line_and_stands_for_its_position(position: Position) -> None:
    text = events_position.encode(position)
    assert text.isascii()
    assert text.replace("-", "").replace("_", "").isalnum()
    assert len(text) < 2048
    assert events_position.decode(text) == position


@given(st.one_of(st.text(), st.binary().map(cursors.to_text)))
def test_an_id_that_somebody_made_up_stands_for_nothing_or_for_a_position(text: str) -> None:
    found = events_position.decode(text)
    assert found is None or found.attempt >= 0


@given(st.text())
def test_data_is_one_line_for_every_reader(text: str) -> None:
    assert len(data({"text": text}).splitlines()) == 1


@given(st.integers(0, 1500), st.lists(st.integers(1, 1500), max_size=4, unique=True))
def test_a_page_becomes_batches_that_cover_every_line_and_every_loss(last: int, lost: list[int]) -> None:
    dropped = [Dropped(seq, seq, 1) for seq in sorted(lost) if seq <= last]
    gone = {part.first for part in dropped}
    lines = [Line(seq, 0.0, "stdout", 0, None, b"x") for seq in range(1, last + 1) if seq not in gone]
    batches = list(of_page(Page(last, last, lines=lines, dropped=dropped), 1, 0, 0))
    assert [batch.first for batch in batches[1:]] == [batch.last + 1 for batch in batches[:-1]]
    assert (batches[0].first, batches[-1].last) == (1, last) if last else not batches
    decoded = [json.loads(batch.data) for batch in batches]
    told = [line["seq"] for batch in decoded for line in batch["lines"]]
    assert sorted(told + [part["from"] for batch in decoded for part in batch["dropped"]]) == list(range(1, last + 1))
    assert all(len(batch["lines"]) <= BATCH_LINES for batch in decoded)


def test_a_window_keeps_the_newest_and_knows_where_it_begins() -> None:
    window = Window(after=10, limit=30)
    assert (window.start, window.last) == (11, 10)
    window.add([Batch(11, 12, "x" * 10), Batch(13, 13, "y" * 10)], 13)
    assert (window.after(10), window.after(12), window.after(11)) == (
        Batch(11, 12, "x" * 10),
        Batch(13, 13, "y" * 10),
        None,
    )
    window.add([Batch(14, 20, "z" * 20)], 20)
    assert (window.start, window.after(10), window.after(13)) == (13, None, Batch(14, 20, "z" * 20))


def test_slots_are_limited_for_the_process_and_for_a_token_and_come_back() -> None:
    slots = Slots(most=3, of_token=2)
    with slots.hold("a"), slots.hold("a"):
        with pytest.raises(TooManyStreams), slots.hold("a"):
            pass
        with slots.hold("b"), pytest.raises(Unavailable), slots.hold("c"):
            pass
        assert slots.count == 2
    assert slots.count == 0


class Quiet:
    """A reader to whom nothing is told."""

    over = False

    def __init__(self) -> None:
        self.news = asyncio.Event()

    async def pending(self) -> list[Event]:
        return []


def collect(check: Any) -> list[Event]:
    async def run() -> list[Event]:
        told = events._told(cast(Reader, Quiet()), check)
        async with asyncio.timeout(5):
            return [event async for event in told]

    return asyncio.run(run())


def test_a_stream_ends_when_its_token_is_no_longer_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "CHECK_SECONDS", 0.01)
    asked: list[int] = []

    async def check() -> None:
        asked.append(1)
        if len(asked) == 2:
            raise Unavailable("nobody can say")
        if len(asked) == 4:
            raise Unauthenticated("revoked")

    assert collect(check) == []
    assert len(asked) == 4


def test_a_stream_ends_after_its_longest_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_STREAM_SECONDS", 0.01)

    async def check() -> None: ...

    assert collect(check) == []
