from asyncio import Transport
from collections.abc import Iterable
from typing import cast

from api.server import OneWrite


class Wire:
    """What is written at once is one entry."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def writelines(self, parts: Iterable[bytes]) -> None:
        self.writes.append(b"".join(parts))

    def close(self) -> None:
        self.writes.append(b"closed")


HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n"
STREAM = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def written(*parts: bytes) -> tuple[OneWrite, Wire]:
    wire = Wire()
    one = OneWrite(cast(Transport, wire))
    for part in parts:
        one.write(part)
    return one, wire


def test_the_head_of_an_answer_goes_out_with_its_body() -> None:
    assert written(HEAD, b"bo", b"dy")[1].writes == [HEAD + b"bo", b"dy"]


def test_a_body_is_not_taken_for_a_head() -> None:
    assert written(HEAD, b"1", HEAD)[1].writes == [HEAD + b"1", HEAD]
    assert written(STREAM, HEAD)[1].writes == [STREAM, HEAD]


def test_the_head_of_a_stream_goes_out_at_once_and_so_does_leave_to_send_a_body() -> None:
    leave = b"HTTP/1.1 100 Continue\r\n\r\n"
    assert written(STREAM)[1].writes == [STREAM]
    assert written(leave, HEAD, b"body")[1].writes == [leave, HEAD + b"body"]


def test_a_head_without_a_body_goes_out_with_the_end_of_the_answer_or_of_the_connection() -> None:
    one, wire = written(HEAD)
    assert wire.writes == []
    one.flush()
    assert wire.writes == [HEAD]
    one, wire = written(HEAD)
    one.close()
    assert wire.writes == [HEAD, b"closed"]
