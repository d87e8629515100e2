import asyncio
import contextlib
import json
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.data.log_streams import ALL_STREAMS
from api.events import broadcast_cache, event_id, service
from api.events.broadcast_cache import BroadcastCache, BroadcastChunk, BroadcastKey
from api.events.event_id import ReaderPosition
from api.events.job_reader import JobReader
from api.events.service import StreamSlots, TooManyStreams
from api.events.windows import BATCH_LINES, BatchWindow, EventBatch, batches_from_page
from api.http import cursors
from jobs.files.log_file import StreamName
from jobs.files.log_page import DroppedRange, LogFilePage, LogRow
from shardyard.contract.errors import Unauthenticated, Unavailable
from shardyard.contract.stream_events import data

COUNTS = st.integers(0, 2**40)


@given(
    st.builds(
        ReaderPosition,
        attempt=COUNTS,
        state=COUNTS,
        points=COUNTS,
        findings=st.lists(COUNTS, max_size=5).map(tuple),
        lines=st.dictionaries(st.integers(0, 100), COUNTS, max_size=64),
        ended=st.booleans(),
    )
)
def test_an_id_is_one_line_and_stands_for_its_position(position: ReaderPosition) -> None:
    text = event_id.encode_position(position)
    assert text.isascii()
    assert text.replace("-", "").replace("_", "").isalnum()
    assert len(text) < 2048
    assert event_id.decode_position(text) == position


@given(st.one_of(st.text(), st.binary().map(cursors.encode_text)))
def test_an_id_that_somebody_made_up_stands_for_nothing_or_for_a_position(text: str) -> None:
    found = event_id.decode_position(text)
    assert found is None or found.attempt >= 0


@given(st.text())
def test_data_is_one_line_for_every_reader(text: str) -> None:
    assert len(data({"text": text}).splitlines()) == 1


def mixed_batch(dropped: list[DroppedRange]) -> EventBatch:
    """A line of stdout and one of stderr between two shard lines, as one event."""
    streams: list[StreamName] = ["shard", "stdout", "stderr", "shard"]
    lines = [LogRow(seq, 1.5, stream, 0, None, stream.encode()) for seq, stream in enumerate(streams, 1)]
    (batch,) = batches_from_page(LogFilePage(4, 4, lines=lines, dropped=dropped), 1, 0, 0)
    return batch


def test_a_batch_keeps_its_bytes_for_who_wants_all_and_only_the_chosen_lines_for_others() -> None:
    batch = mixed_batch([])
    assert batch.select_lines(ALL_STREAMS) is batch.data
    selected = json.loads(batch.select_lines(frozenset({"stdout", "stderr"})) or "")
    assert selected == json.loads(batch.data) | {"lines": json.loads(batch.data)["lines"][1:3]}
    assert batch.select_lines(frozenset({"service"})) is None


def test_losses_are_told_whatever_the_streams() -> None:
    selected = json.loads(mixed_batch([DroppedRange(5, 9, 70)]).select_lines(frozenset({"service"})) or "")
    assert (selected["lines"], selected["dropped"]) == ([], [{"from": 5, "to": 9, "bytes": 70}])


@given(st.integers(0, 1500), st.lists(st.integers(1, 1500), max_size=4, unique=True))
def test_a_page_becomes_batches_that_cover_every_line_and_every_loss(last: int, lost: list[int]) -> None:
    dropped = [DroppedRange(seq, seq, 1) for seq in sorted(lost) if seq <= last]
    gone = {part.first for part in dropped}
    lines = [LogRow(seq, 0.0, "stdout", 0, None, b"x") for seq in range(1, last + 1) if seq not in gone]
    batches = list(batches_from_page(LogFilePage(last, last, lines=lines, dropped=dropped), 1, 0, 0))
    assert [batch.first for batch in batches[1:]] == [batch.last + 1 for batch in batches[:-1]]
    assert (batches[0].first, batches[-1].last) == (1, last) if last else not batches
    decoded = [json.loads(batch.data) for batch in batches]
    told = [line["seq"] for batch in decoded for line in batch["lines"]]
    assert sorted(told + [part["from"] for batch in decoded for part in batch["dropped"]]) == list(range(1, last + 1))
    assert all(len(batch["lines"]) <= BATCH_LINES for batch in decoded)


def test_a_window_keeps_the_newest_and_knows_where_it_begins() -> None:
    window = BatchWindow(after=10, limit=30)
    assert (window.start, window.last) == (11, 10)
    window.add_batches([EventBatch(11, 12, "x" * 10), EventBatch(13, 13, "y" * 10)], 13)
    assert (window.batch_after(10), window.batch_after(12), window.batch_after(11)) == (
        EventBatch(11, 12, "x" * 10),
        EventBatch(13, 13, "y" * 10),
        None,
    )
    window.add_batches([EventBatch(14, 20, "z" * 20)], 20)
    assert (window.start, window.batch_after(10), window.batch_after(13)) == (13, None, EventBatch(14, 20, "z" * 20))


def test_slots_are_limited_for_the_process_for_a_tenant_and_for_a_token_and_come_back() -> None:
    slots = StreamSlots(most=4, of_token=2, of_tenant=3, own=0, reserve=0)
    with slots.acquire("acme", "a"), slots.acquire("acme", "a"):
        with pytest.raises(TooManyStreams, match="this token"), slots.acquire("acme", "a"):
            pass
        with slots.acquire("acme", "b"):
            with pytest.raises(TooManyStreams, match="tenant acme"), slots.acquire("acme", "c"):
                pass
            with slots.acquire("other", "d"), pytest.raises(Unavailable), slots.acquire("other", "e"):
                pass
        assert slots.open_count == 2
    assert slots.open_count == 0


def test_a_tenant_has_slots_of_its_own_when_others_hold_all() -> None:
    slots = StreamSlots(most=4, of_token=9, of_tenant=9, own=1, reserve=2)
    with contextlib.ExitStack() as held:
        for _ in range(4):
            held.enter_context(slots.acquire("greedy", "a"))
        with pytest.raises(Unavailable), slots.acquire("greedy", "a"):
            pass
        held.enter_context(slots.acquire("acme", "b"))
        with pytest.raises(Unavailable), slots.acquire("acme", "b"):
            pass
        held.enter_context(slots.acquire("other", "c"))
        with pytest.raises(Unavailable), slots.acquire("third", "d"):
            pass


class Quiet:
    """A reader that is sent `told` and then nothing. Its feed notifies it all the time."""

    over = False

    def __init__(self, *told: bytes) -> None:
        self.told = list(told)
        self.changed = asyncio.Event()
        asyncio.get_running_loop().call_later(0.01, self._tell)

    async def pending(self) -> bytes:
        return self.told.pop(0) if self.told else b""

    def _tell(self) -> None:
        told, self.changed = self.changed, asyncio.Event()
        told.set()
        asyncio.get_running_loop().call_later(0.001, self._tell)


def collect(check: Any, *told: bytes) -> list[bytes]:
    async def run() -> list[bytes]:
        stream = service._send_events(cast(JobReader, Quiet(*told)), check)
        async with asyncio.timeout(5):
            return [sent async for sent in stream]

    return asyncio.run(run())


def test_a_stream_ends_when_its_token_is_no_longer_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "CHECK_SECONDS", 0.01)
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
    monkeypatch.setattr(service, "MAX_STREAM_SECONDS", 0.01)

    async def check() -> None: ...

    assert collect(check) == []


def test_a_stream_begins_with_when_to_come_again_and_says_now_and_then_that_it_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(service, "MAX_STREAM_SECONDS", 0.5)
    monkeypatch.setattr(service, "PING_SECONDS", 0.02)

    async def check() -> None: ...

    first, second, *pings = collect(check, b"event: a\n\n", b"event: b\n\n")
    assert (first, second) == (b"retry: 1000\nevent: a\n\n", b"event: b\n\n")
    assert set(pings) == {service.PING}
    assert 2 <= len(pings) <= 25


# -- chunks that readers share ----------------------------------------------------------------------

HERE, THERE = BroadcastKey("a", (0,), live_data=True), BroadcastKey("b", (0,), live_data=True)


def a_chunk(size: int = 10, *, shared: bool = True, place: BroadcastKey = THERE) -> BroadcastChunk:
    return BroadcastChunk(b"x" * size, place, frozenset(), is_last=False, shared=shared)


class Maker:
    """Makes a step once it may; counts."""

    def __init__(self, step: BroadcastChunk | None) -> None:
        self.step = step
        self.made = 0
        self.may = asyncio.Event()

    async def __call__(self) -> BroadcastChunk | None:
        self.made += 1
        await self.may.wait()
        return self.step


def test_readers_at_one_position_are_sent_the_same_bytes_which_are_built_once() -> None:
    async def run() -> None:
        chunks, maker = BroadcastCache(), Maker(a_chunk())
        readers = [asyncio.create_task(chunks.next_chunk(HERE, maker)) for _ in range(5)]
        await asyncio.sleep(0)
        maker.may.set()
        told = await asyncio.gather(*readers)
        assert all(step is told[0] for step in told)
        assert await chunks.next_chunk(HERE, maker) is told[0]
        assert maker.made == 1
        await chunks.next_chunk(THERE, maker)
        assert maker.made == 2

    asyncio.run(run())


@pytest.mark.parametrize("first", [None, a_chunk(shared=False)])
def test_what_is_not_for_everybody_is_made_by_each_reader_for_itself(first: BroadcastChunk | None) -> None:
    async def run() -> None:
        chunks, maker, other = BroadcastCache(), Maker(first), Maker(a_chunk())
        one, two = (asyncio.create_task(chunks.next_chunk(HERE, each)) for each in (maker, other))
        await asyncio.sleep(0)
        maker.may.set()
        other.may.set()
        assert await one is first
        assert await two is other.step

    asyncio.run(run())


def test_a_reader_that_leaves_while_it_makes_a_step_leaves_that_to_the_others() -> None:
    async def run() -> None:
        chunks, maker = BroadcastCache(), Maker(a_chunk())
        one, two = (asyncio.create_task(chunks.next_chunk(HERE, maker)) for _ in range(2))
        await asyncio.sleep(0)
        one.cancel()
        maker.may.set()
        assert await asyncio.wait_for(two, 5) is maker.step

    asyncio.run(run())


def test_chunks_are_cached_within_bounds_the_newest_first() -> None:
    async def run() -> None:
        chunks = BroadcastCache()
        places = [BroadcastKey(str(number), (), live_data=True) for number in range(20)]
        for place in places:
            maker = Maker(a_chunk(broadcast_cache.CACHED_BYTES // 10))
            maker.may.set()
            await chunks.next_chunk(place, maker)
        again = Maker(a_chunk())
        again.may.set()
        for place in reversed(places):
            await chunks.next_chunk(place, again)
        assert 9 <= again.made <= 11

    asyncio.run(run())
