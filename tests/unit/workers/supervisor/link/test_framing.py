"""Frames: whatever a network does to their bytes, a reader sees the payloads that were sent, or none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.supervisor.link.framing import (
    MAX_FRAME_BYTES,
    TAG_BYTES,
    BadFrame,
    LinkFrameReader,
    LinkFrameWriter,
    TagCounter,
)

KEY, OTHER_KEY = b"k" * 32, b"o" * 32

payloads = st.lists(st.binary(max_size=200), min_size=1, max_size=6)


def write(sent: list[bytes], key: bytes = KEY) -> list[bytes]:
    writer = LinkFrameWriter(key)
    return [writer.make_frame(payload) for payload in sent]


def read_until_bad(reader: LinkFrameReader, pieces: list[bytes]) -> tuple[list[bytes], bool]:
    """What is read, and whether the reader noticed that something is wrong."""
    found: list[bytes] = []
    try:
        for piece in pieces:
            found.extend(reader.feed(piece))
    except BadFrame:
        return found, True
    return found, False


@given(payloads, st.data())
def test_any_cut_of_the_bytes_yields_the_same_payloads(sent: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(write(sent))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    reader = LinkFrameReader(KEY)
    found: list[bytes] = []
    for piece in pieces:  # extended as they come: whatever is complete is not held back
        found.extend(reader.feed(piece))
    assert found == sent
    assert not reader.is_inside_frame


@given(payloads, st.data())
def test_any_flipped_bit_is_noticed_and_nothing_false_is_read(sent: list[bytes], data: st.DataObject) -> None:
    frames = write(sent)
    stream = bytearray(b"".join(frames))
    bit = data.draw(st.integers(0, len(stream) * 8 - 1))
    stream[bit // 8] ^= 1 << bit % 8
    found, bad = read_until_bad(LinkFrameReader(KEY), [bytes(stream)])
    assert bad
    whole = 0  # frames before the flipped bit
    while sum(map(len, frames[: whole + 1])) <= bit // 8:
        whole += 1
    assert found == sent[:whole]


@given(st.lists(st.binary(max_size=50), min_size=2, max_size=5, unique=True), st.data())
def test_frames_that_are_reordered_repeated_or_left_out_are_noticed(sent: list[bytes], data: st.DataObject) -> None:
    frames = write(sent)
    order = data.draw(st.lists(st.integers(0, len(frames) - 1), min_size=1, max_size=8))
    found, bad = read_until_bad(LinkFrameReader(KEY), [frames[index] for index in order])
    right = next((place for place, index in enumerate(order) if place != index), len(order))
    assert found == sent[:right]
    assert bad == (right < len(order))


@given(st.binary(min_size=64, max_size=2000))
def test_garbage_is_noticed_at_its_first_bytes(garbage: bytes) -> None:
    assert read_until_bad(LinkFrameReader(KEY), [garbage]) == ([], True)


def test_a_frame_of_the_other_direction_is_not_authentic() -> None:
    assert read_until_bad(LinkFrameReader(KEY), write([b"payload"], OTHER_KEY)) == ([], True)


def test_a_payload_over_the_limit_is_not_sent() -> None:
    writer = LinkFrameWriter(KEY)
    with pytest.raises(ValueError, match="split it"):
        writer.make_frame(bytes(MAX_FRAME_BYTES + 1))
    assert list(LinkFrameReader(KEY).feed(writer.make_frame(b"next"))) == [b"next"]  # no number was used up


def test_the_largest_payload_arrives() -> None:
    payload = bytes(MAX_FRAME_BYTES)
    (frame,) = write([payload])
    assert list(LinkFrameReader(KEY).feed(frame)) == [payload]


def test_an_authentic_length_over_the_limit_is_refused_before_its_payload() -> None:
    length = (MAX_FRAME_BYTES + 1).to_bytes(4)
    with pytest.raises(BadFrame, match="over the limit"):
        list(LinkFrameReader(KEY).feed(length + TagCounter(KEY).make_tag(length)))


def test_a_reader_holds_no_more_than_an_unfinished_frame() -> None:
    reader = LinkFrameReader(KEY)
    frames = write([bytes(1000)] * 100)
    for frame in frames:
        assert len(list(reader.feed(frame[:-1]))) == 0
        assert reader.is_inside_frame
        assert len(list(reader.feed(frame[-1:]))) == 1
        assert not reader.is_inside_frame


def test_tags_of_equal_data_differ() -> None:
    tags = TagCounter(KEY)
    made = {tags.make_tag(b"same") for _ in range(100)}
    assert len(made) == 100
    assert {len(tag) for tag in made} == {TAG_BYTES}
