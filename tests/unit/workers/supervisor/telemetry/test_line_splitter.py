"""Bytes of a pipe become the same lines, however they are cut."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from jobs.files.log_file import CONTINUED, MAX_LINE_BYTES, REDRAWN, UNENDED
from workers.supervisor.telemetry.line_splitter import LineSplitter

Flat = list[tuple[bytes, int]]


def split(pieces: list[bytes]) -> Flat:
    splitter = LineSplitter()
    parts = [part for piece in pieces for part in splitter.add_bytes(piece)] + splitter.take_unended()
    return [(text, flags) for texts, flags in parts for text in texts]


def joined(lines: Flat) -> bytes:
    return b"".join(text if flags else text + b"\n" for text, flags in lines)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    marks = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(marks)]


#: Bytes that matter to the splitter, and lines around the longest length.
pieces_of_output = st.lists(
    st.one_of(
        st.binary(max_size=30),
        st.sampled_from([b"\n", b"\r", b"\r\n", b"\x00", b"\x1b[1m", "é".encode()[:1], b"\n\n\n"]),
        st.integers(MAX_LINE_BYTES - 2, MAX_LINE_BYTES + 2).map(lambda n: b"x" * n),
    ),
    max_size=8,
).map(b"".join)


@given(pieces_of_output, st.lists(st.integers(min_value=0), max_size=6))
def test_any_cut_of_the_same_bytes_gives_the_same_lines(data: bytes, places: list[int]) -> None:
    assert split(cut(data, places)) == split([data])


@given(pieces_of_output, st.lists(st.integers(min_value=0), max_size=6))
def test_the_texts_and_newlines_give_back_the_bytes(data: bytes, places: list[int]) -> None:
    lines = split(cut(data, places))
    assert joined(lines) == data
    assert all(len(text) <= MAX_LINE_BYTES for text, _ in lines)
    assert all(b"\n" not in text for text, _ in lines)


@given(st.lists(st.tuples(st.binary(max_size=20), st.booleans()), max_size=10))
def test_showing_a_progress_bar_loses_no_byte(pieces: list[tuple[bytes, bool]]) -> None:
    splitter, lines = LineSplitter(), []
    for piece, redraw in pieces:
        lines += splitter.add_bytes(piece)
        if redraw and splitter.is_redrawing:
            lines += splitter.take_redrawn()
    lines += splitter.take_unended()
    assert joined([(text, flags) for texts, flags in lines for text in texts]) == b"".join(p for p, _ in pieces)


def test_one_byte_at_a_time_is_enough() -> None:
    data = b"a\n\nb\r\nc"
    assert split([bytes([byte]) for byte in data]) == [(b"a", 0), (b"", 0), (b"b\r", 0), (b"c", UNENDED)]


def test_a_line_of_exactly_the_longest_length_is_whole() -> None:
    assert split([b"x" * MAX_LINE_BYTES, b"\n"]) == [(b"x" * MAX_LINE_BYTES, 0)]
    assert split([b"x" * MAX_LINE_BYTES]) == [(b"x" * MAX_LINE_BYTES, UNENDED)]


def test_a_line_of_ten_megabytes_is_split_with_marks() -> None:
    data = b"y" * 10_000_000
    lines = split(cut(data, list(range(0, len(data), 65_536))))
    assert len(lines) == 153
    assert [flags for _, flags in lines] == [CONTINUED] * 152 + [UNENDED]
    assert joined(lines) == data


def test_a_thousand_redraws_of_a_progress_bar_are_one_line() -> None:
    bar = b"".join(b"\r%3d%%" % (n // 10) for n in range(1000))
    assert split([bar, b"\ndone\n"]) == [(bar, 0), (b"done", 0)]


def test_a_progress_bar_is_handed_out_when_asked_for() -> None:
    splitter = LineSplitter()
    splitter.add_bytes(b"line\rmore\r")
    assert splitter.is_redrawing
    assert splitter.take_redrawn() == [([b"line\rmore"], REDRAWN)]
    assert splitter.add_bytes(b"\n") == [([b"\r"], 0)]


def test_a_lone_carriage_return_at_the_end_is_no_progress_bar() -> None:
    splitter = LineSplitter()
    splitter.add_bytes(b"line\r")
    assert not splitter.is_redrawing
