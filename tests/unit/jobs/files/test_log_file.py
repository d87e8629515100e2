"""The file of record of one device: written, read in pages, torn, refused by the disk."""

import hashlib
import tracemalloc
import zlib
from pathlib import Path

import pytest

from jobs.files.frame_file import CorruptFrame, Frame, FrameReader
from jobs.files.log_file import CONTINUED, LineRun, LogSeal, LogWriter, StreamName, read_seal
from jobs.files.log_page import DroppedRange, LogFilePage, LogRow, read_chunk, read_page
from tests.support.disks import largest_file


def run(
    *texts: bytes, stream: StreamName = "stdout", rank: int = 0, step: int | None = None, flags: int = 0
) -> LineRun:
    return LineRun(stream, rank, step, 1.5, flags, list(texts))


def texts(page: LogFilePage) -> list[bytes]:
    return [line.text for line in page.lines]


def numbers(page: LogFilePage) -> list[int]:
    return [line.seq for line in page.lines]


def write_lines(path: Path, count: int, chunk: int = 50) -> LogWriter:
    """`count` lines whose text and step are their own number."""
    writer = LogWriter(path)
    for first in range(1, count + 1, chunk):
        writer.append([run(b"%d" % n, step=n) for n in range(first, min(first + chunk, count + 1))])
    return writer


def all_pages(path: Path, limit: int) -> list[LogFilePage]:
    pages = [read_page(path, limit=limit)]
    while not pages[-1].sealed:
        pages.append(read_page(path, after=pages[-1].next, limit=limit))
    return pages


def test_a_line_comes_back_as_it_was_written(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "log")
    writer.append([run(b"a\x00\xff\x1b[1m\r", stream="stderr", rank=3, step=7, flags=CONTINUED)])
    writer.close()
    assert read_page(tmp_path / "log").lines == [LogRow(1, 1.5, "stderr", 3, 7, b"a\x00\xff\x1b[1m\r", CONTINUED)]


def test_lines_are_numbered_from_one_without_a_gap_over_chunks(tmp_path: Path) -> None:
    write_lines(tmp_path / "log", 137, chunk=10).seal()
    page = read_page(tmp_path / "log")
    assert numbers(page) == list(range(1, 138))
    assert texts(page) == [b"%d" % n for n in range(1, 138)]
    assert (page.next, page.last, page.sealed) == (137, 137, True)


@pytest.mark.parametrize("limit", [1, 7, 50, 51, 1000])
def test_pages_of_any_size_join_to_the_whole_log(tmp_path: Path, limit: int) -> None:
    write_lines(tmp_path / "log", 120, chunk=50).seal()
    pages = all_pages(tmp_path / "log", limit)
    assert [n for page in pages for n in numbers(page)] == list(range(1, 121))
    assert all(len(page.lines) <= limit for page in pages)


def test_every_line_can_be_found_from_its_cursor(tmp_path: Path) -> None:
    write_lines(tmp_path / "log", 200, chunk=3).close()
    for after in range(200):
        assert numbers(read_page(tmp_path / "log", after=after, limit=1)) == [after + 1]


def test_a_cursor_at_the_end_or_beyond_gives_an_empty_page_that_keeps_it(tmp_path: Path) -> None:
    write_lines(tmp_path / "log", 10).close()
    assert read_page(tmp_path / "log", after=10) == LogFilePage(next=10, last=10)
    assert read_page(tmp_path / "log", after=99) == LogFilePage(next=99, last=10)


def test_a_log_that_is_not_there_yet_is_empty(tmp_path: Path) -> None:
    assert read_page(tmp_path / "log", after=3) == LogFilePage(next=3, last=3)


def test_an_empty_log_can_be_sealed(tmp_path: Path) -> None:
    LogWriter(tmp_path / "log").seal()
    assert read_page(tmp_path / "log") == LogFilePage(next=0, last=0, sealed=True)
    assert read_page(tmp_path / "log", tail=5).sealed


def test_a_page_says_sealed_only_when_it_reaches_the_end(tmp_path: Path) -> None:
    write_lines(tmp_path / "log", 10).seal()
    assert not read_page(tmp_path / "log", limit=9).sealed
    assert read_page(tmp_path / "log", after=9, limit=9).sealed
    assert read_page(tmp_path / "log", after=10).sealed


def test_a_sealed_log_takes_no_more_lines_even_when_opened_again(tmp_path: Path) -> None:
    write_lines(tmp_path / "log", 3).seal()
    with pytest.raises(ValueError, match="sealed"):
        LogWriter(tmp_path / "log").append([run(b"late")])
    assert read_page(tmp_path / "log").last == 3


def test_the_seal_has_the_count_and_the_digest_of_all_text(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "log")
    writer.append([run(b"one", b"two")])
    writer.close()
    again = LogWriter(tmp_path / "log")  # what was there before counts too
    again.append([run(b"three", stream="stderr")])
    assert read_seal(tmp_path / "log") is None
    again.seal()
    digest = hashlib.blake2b(b"one\ntwo\nthree\n", digest_size=16).hexdigest()
    assert read_seal(tmp_path / "log") == LogSeal(3, 0, digest)


def test_filters_by_stream_rank_and_step_leave_the_numbers_alone(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "log")
    writer.append([run(b"a", step=1), run(b"b", stream="stderr", step=2), run(b"c", rank=1, step=3), run(b"d")])
    writer.close()
    path = tmp_path / "log"
    assert numbers(read_page(path, streams={"stderr"})) == [2]
    assert numbers(read_page(path, rank=1)) == [3]
    assert numbers(read_page(path, from_step=2)) == [2, 3]
    assert numbers(read_page(path, to_step=2)) == [1, 2]
    assert numbers(read_page(path, from_step=2, to_step=2, streams={"stdout"})) == []


def test_a_filter_that_matches_nothing_moves_the_cursor_on(tmp_path: Path) -> None:
    write_lines(tmp_path / "log", 3000, chunk=1).close()
    page = read_page(tmp_path / "log", search="nothing like it")
    assert page.lines == []
    assert 0 < page.next < 3000  # bounded: it did not look at everything
    while page.next < page.last:
        page = read_page(tmp_path / "log", after=page.next, search="nothing like it")
    assert page.next == 3000


def test_chunks_outside_the_asked_steps_are_passed_over_unread(tmp_path: Path) -> None:
    write_lines(tmp_path / "log", 2000, chunk=1).close()
    damaged = bytearray((tmp_path / "log").read_bytes())
    with FrameReader(tmp_path / "log") as reader:
        frames = list(reader.forward(reader.first()))
    for frame in frames[:1989]:
        damaged[frame.end - 5] ^= 0xFF
    (tmp_path / "log").write_bytes(damaged)
    page = read_page(tmp_path / "log", from_step=1990, to_step=1992)
    assert (numbers(page), page.dropped) == ([1990, 1991, 1992], [])


def mixed_log(path: Path) -> list[Frame]:
    """One line of stdout, a thousand chunks of a shard line, one line of stderr."""
    writer = LogWriter(path)
    writer.append([run(b"first")])
    for number in range(1000):
        writer.append([run(b"In Model", stream="shard", step=number)])
    writer.append([run(b"last", stream="stderr")])
    writer.close()
    with FrameReader(path) as reader:
        return list(reader.forward(reader.first()))


def test_chunks_of_other_streams_are_passed_over_unread(tmp_path: Path) -> None:
    frames = mixed_log(tmp_path / "log")
    damaged = bytearray((tmp_path / "log").read_bytes())
    for frame in frames[1:-1]:
        damaged[frame.end - 5] ^= 0xFF
    (tmp_path / "log").write_bytes(damaged)
    own: set[StreamName] = {"stdout", "stderr"}
    page = read_page(tmp_path / "log", streams=own)
    assert (numbers(page), page.next, page.dropped) == ([1, 1002], 1002, [])
    assert numbers(read_page(tmp_path / "log", streams=own, tail=2)) == [1, 1002]


def test_frames_of_earlier_versions_name_no_streams_and_are_read(tmp_path: Path) -> None:
    frames = mixed_log(tmp_path / "log")
    old = bytearray((tmp_path / "log").read_bytes())
    for frame in frames:
        old[frame.offset + 5] = 0
        header = bytes(old[frame.offset : frame.offset + 56])
        payload = bytes(old[frame.offset + 60 : frame.end - 4])
        old[frame.offset + 56 : frame.offset + 60] = zlib.crc32(payload, zlib.crc32(header)).to_bytes(4, "little")
    (tmp_path / "log").write_bytes(old)
    found: list[int] = []
    page = read_page(tmp_path / "log", streams={"stderr"})
    while page.next < page.last:
        page = read_page(tmp_path / "log", after=page.next, streams={"stderr"})
        found += numbers(page)
    assert (found, page.dropped) == ([1002], [])


def test_the_tail_before_a_line_ends_there(tmp_path: Path) -> None:
    mixed_log(tmp_path / "log")
    page = read_page(tmp_path / "log", tail=3, before=1001)
    assert (numbers(page), page.next) == ([998, 999, 1000], 1000)
    assert numbers(read_page(tmp_path / "log", tail=3, before=1002, streams={"stdout"})) == [1]
    assert numbers(read_page(tmp_path / "log", tail=1, before=5000)) == [1002]


def test_the_tail_is_the_newest_lines_in_order(tmp_path: Path) -> None:
    write_lines(tmp_path / "log", 130).seal()
    page = read_page(tmp_path / "log", tail=60)
    assert numbers(page) == list(range(71, 131))
    assert (page.next, page.sealed) == (130, True)
    assert numbers(read_page(tmp_path / "log", tail=999)) == list(range(1, 131))
    assert numbers(read_page(tmp_path / "log", tail=2, to_step=100)) == [99, 100]
    assert numbers(read_page(tmp_path / "log", tail=60, after=128)) == [129, 130]


def test_a_page_holds_no_more_bytes_than_asked_but_at_least_one_line(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "log")
    writer.append([run(*[b"x" * 1000] * 20)])
    writer.close()
    assert len(read_page(tmp_path / "log", max_bytes=3500).lines) == 3
    assert numbers(read_page(tmp_path / "log", after=4, max_bytes=1)) == [5]


@pytest.mark.parametrize("wrong", [{"after": -1}, {"limit": 0}, {"tail": 0}, {"max_bytes": 0}])
def test_bounds_that_make_no_sense_are_refused_by_name(tmp_path: Path, wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        read_page(tmp_path / "log", **wrong)  # type: ignore[arg-type]


def test_a_frame_torn_at_any_byte_is_ignored_and_then_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "log"
    writer = LogWriter(path)
    writer.append([run(b"one")])
    whole = path.read_bytes()
    writer.append([run(b"two")])
    writer.close()
    both = path.read_bytes()
    for length in range(len(whole), len(both)):
        path.write_bytes(both[:length])
        assert texts(read_page(path)) == texts(read_page(path, tail=9)) == [b"one"]
    again = LogWriter(path)
    again.append([run(b"other")])
    again.close()
    assert [(line.seq, line.text) for line in read_page(path).lines] == [(1, b"one"), (2, b"other")]


def test_zeros_that_a_power_cut_left_at_the_end_are_ignored(tmp_path: Path) -> None:
    write_lines(tmp_path / "log", 5).close()
    whole = (tmp_path / "log").read_bytes()
    (tmp_path / "log").write_bytes(whole + bytes(4096))
    assert numbers(read_page(tmp_path / "log")) == [1, 2, 3, 4, 5]
    again = LogWriter(tmp_path / "log")
    again.append([run(b"6")])
    again.close()
    assert texts(read_page(tmp_path / "log"))[-1] == b"6"


def test_a_damaged_chunk_in_the_middle_is_reported_as_dropped(tmp_path: Path) -> None:
    write_lines(tmp_path / "log", 30, chunk=10).close()
    damaged = bytearray((tmp_path / "log").read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    (tmp_path / "log").write_bytes(damaged)
    page = read_page(tmp_path / "log")
    assert numbers(page) == [*range(1, 11), *range(21, 31)]
    assert [(lost.first, lost.last) for lost in page.dropped] == [(11, 20)]


def test_lines_that_the_disk_refuses_keep_their_numbers_in_one_dropped_record(tmp_path: Path) -> None:
    path = tmp_path / "log"
    writer = write_lines(path, 3)
    with largest_file(path.stat().st_size + 40):
        for _ in range(5):
            with pytest.raises(OSError, match="File too large"):
                writer.append([run(b"lost", b"lost too")])
    assert writer.dropped == 10
    assert numbers(read_page(path)) == [1, 2, 3]
    writer.append([run(b"back")])
    writer.seal()
    page = read_page(path)
    assert page.dropped == [DroppedRange(4, 13, 60)]
    assert [(line.seq, line.text) for line in page.lines[3:]] == [(14, b"back")]
    assert read_page(path, after=6).dropped == [DroppedRange(7, 13, 60)]
    assert read_page(path, tail=1).lines[0].seq == 14


def test_lines_lost_until_the_end_are_in_the_log_before_the_seal(tmp_path: Path) -> None:
    writer = write_lines(tmp_path / "log", 3)
    with largest_file(writer.end), pytest.raises(OSError, match="File too large"):
        writer.append([run(b"lost")])
    with largest_file(writer.end), pytest.raises(OSError, match="File too large"):
        writer.seal()
    assert not read_page(tmp_path / "log").sealed
    writer.seal()
    page = read_page(tmp_path / "log")
    assert (page.dropped, page.sealed, page.next) == ([DroppedRange(4, 4, 4)], True, 4)


def test_a_file_that_cannot_even_be_made_counts_its_lines_until_it_can(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "later" / "log")
    with pytest.raises(FileNotFoundError):
        writer.append([run(b"lost")])
    (tmp_path / "later").mkdir()
    writer.append([run(b"kept")])
    writer.close()
    page = read_page(tmp_path / "later" / "log")
    assert (page.dropped, numbers(page)) == ([DroppedRange(1, 1, 4)], [2])


def test_a_chunk_can_be_read_by_itself_from_a_cursor(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "log")
    writer.append([run(b"1", b"2")])
    chunk = writer.append([run(b"3", b"4")])
    writer.close()
    assert texts(read_chunk(chunk)) == [b"3", b"4"]
    assert texts(read_chunk(chunk, after=3)) == [b"4"]
    with pytest.raises(CorruptFrame):
        read_chunk(chunk[:-1])


def test_a_page_from_the_middle_of_a_long_log_reads_little_and_holds_little(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "log")
    for first in range(0, 100_000, 50):
        writer.append([run(*(b"line %d" % n for n in range(first + 1, first + 51)))])
    writer.close()
    tracemalloc.start()
    page = read_page(tmp_path / "log", after=50_000, limit=100)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert texts(page) == [b"line %d" % n for n in range(50_001, 50_101)]
    assert peak < 512 * 1024
    with FrameReader(tmp_path / "log") as reader:
        seen = 0
        frame_at = reader.frame_at

        def counting(offset: int) -> object:
            nonlocal seen
            seen += 1
            return frame_at(offset)

        reader.frame_at = counting  # type: ignore[method-assign, assignment]
        assert reader.locate(777) is not None
        assert seen < 120  # of 2,000 headers
