"""The socket of the children: who may speak there, what they may say, and what becomes of the rest."""

import os
import random
import signal
import struct
import subprocess
import sys

import pytest

from jobs.protocol.packets import DESCENDANT_PACKET_BYTES, encode_packet
from jobs.protocol.records import Began, Hello, Note, Outcome, RankUp, Result, Returned, Saved
from tests.support.probe_socket import Caller, Listening
from workers.supervisor import descendants
from workers.supervisor.descendants import STOPPING

BEGAN = Began(0, "train", 1.0)


def a_child(listening: Listening, rank: int = 0) -> Caller:
    """One that has been let in and has said hello."""
    caller = Caller(listening)
    assert caller.let_in()
    caller.hello(rank)
    return caller


def forked(path: str, records: int) -> int:
    """A process that connects, says hello, sends, and leaves."""
    pid = os.fork()
    if pid == 0:
        try:
            import socket

            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(30)
            connection.connect(path)
            connection.recv(1)
            connection.sendall(encode_packet([Hello(os.getpid(), os.getppid(), "forked"), *[BEGAN] * records]))
        finally:
            os._exit(0)
    return pid


def test_what_a_child_says_counts_for_its_rank_under_a_number_of_its_own() -> None:
    with Listening() as listening:
        first, second = a_child(listening), a_child(listening)
        first.send(BEGAN)
        second.send(BEGAN)
        listening.until(lambda: len(listening.records) == 2)
        assert sorted(listening.records) == [(0, 1, BEGAN), (0, 2, BEGAN)]
        first.socket.close()
        listening.until(lambda: listening.ended == [(0, 1)])


def test_fifty_processes_are_heard_at_once() -> None:
    with Listening() as listening:
        pids = [forked(str(listening.path), 20) for _ in range(50)]
        listening.until(lambda: len(listening.ended) == 50)
        for pid in pids:
            os.waitpid(pid, 0)
        assert len(listening.records) == 1000
        assert {source for _, source, _ in listening.records} == set(range(1, 51))


def test_a_killed_child_has_ended() -> None:
    with Listening() as listening:
        code = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.recv(1); s.recv(1)"
        child = subprocess.Popen([sys.executable, "-c", code, str(listening.path)])
        listening.until(lambda: listening.children.accepted_count == 1)
        child.send_signal(signal.SIGKILL)
        child.wait()
        listening.until(lambda: listening.children.open_count == 0)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (struct.pack(">I", DESCENDANT_PACKET_BYTES + 1), "over the limit"),
        (struct.pack(">I", 4) + b"\xc1\xc1\xc1\xc1", "does not decode"),
        (struct.pack(">I", 3) + b"\x93\x01\x02", "does not decode"),
        (b"GET / HTTP/1.1\r\n\r\n", "over the limit"),
        (encode_packet([BEGAN]), "its first record was Began"),
        (encode_packet([Hello(1, 1, "forked"), Outcome(0, 0)]), "Outcome may come only from a rank"),
        (encode_packet([Hello(1, 1, "forked"), RankUp(0)]), "RankUp may come only from a rank"),
        (encode_packet([Hello(1, 1, "forked"), Result(0.0, {})]), "Result may come only from a rank"),
        (
            encode_packet([Hello(1, 1, "forked"), Returned(Outcome(0, 0), "threads")]),
            "Returned may come only from a rank",
        ),
        (encode_packet([Hello(1, 1, "forked"), Saved(0, 1, 0, ())]), "Saved may come only from a rank"),
        (encode_packet([Hello(1, 1, "forked"), Hello(1, 1, "forked")]), "Hello may come only from a rank"),
    ],
)
def test_a_child_that_does_not_keep_to_the_rules_is_cut_off_with_a_note(data: bytes, why: str) -> None:
    with Listening() as listening:
        good, bad = a_child(listening), Caller(listening)
        assert bad.let_in()
        bad.socket.sendall(data)
        listening.until(lambda: bool(listening.of(Note)))
        (note,) = listening.of(Note)
        assert isinstance(note, Note)
        assert why in note.reason
        assert f"process {os.getpid()} " in note.reason
        assert bad.socket.recv(1) == b""
        good.send(BEGAN)
        listening.until(lambda: (0, 1, BEGAN) in listening.records)


def test_no_bytes_whatever_disturb_the_loop() -> None:
    dice = random.Random(0)
    packet = encode_packet([Hello(1, 1, "forked"), *[BEGAN] * 5])
    with Listening() as listening:
        for _ in range(60):
            bad = Caller(listening)
            assert bad.let_in()
            data = bytearray(packet)
            for _ in range(dice.randrange(1, 6)):
                data[dice.randrange(len(data))] = dice.randrange(256)
            bad.socket.sendall(bytes(data[: dice.randrange(1, len(data) + 1)]))
            bad.socket.close()
            listening.until(lambda: listening.children.open_count == 0)
        good = a_child(listening)
        good.send(BEGAN)
        listening.until(lambda: (0, listening.children.accepted_count, BEGAN) in listening.records)


def test_a_stranger_is_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        with Listening(ranks={}) as listening:
            # As if the other one were the supervisor: this process does not descend from it.
            monkeypatch.setattr("workers.supervisor.descendants.os.getpid", lambda: other.pid)
            caller = Caller(listening)
            assert not caller.let_in()
            assert listening.children.accepted_count == 0
    finally:
        other.kill()
        other.communicate()


def test_an_orphan_counts_for_the_rank_that_it_names() -> None:
    with Listening(ranks={2**22: 0, 2**22 + 1: 1}) as listening:  # this process is the supervisor then, and no rank
        for said, counted in ((1, 1), (0, 0), (7, 0), (-1, 0)):
            a_child(listening, said).send(BEGAN)
            listening.until(lambda: bool(listening.records))
            assert listening.records.pop()[0] == counted


def test_more_connections_than_can_be_followed_are_refused_and_noted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descendants, "MAX_LIVE", 3)
    with Listening() as listening:
        callers = [a_child(listening) for _ in range(3)]
        refused = [Caller(listening) for _ in range(2)]
        assert not any(caller.let_in() for caller in refused)
        assert len(listening.of(Note)) == 1
        callers[0].socket.close()
        listening.until(lambda: listening.children.open_count == 2)
        assert Caller(listening).let_in()


def test_what_was_sent_before_the_end_is_taken_in() -> None:
    with Listening() as listening:
        child = a_child(listening)
        late = Caller(listening)  # nobody has heard it yet
        child.send(*[BEGAN] * 1000)
        late.hello()
        late.send(BEGAN)
        listening.children.close()
        assert len(listening.records) == 1001
        assert listening.ended == [(0, 1), (0, 2)]
        listening.children.close()  # once more does no harm


def test_children_are_told_that_the_end_has_come() -> None:
    with Listening() as listening:
        child = a_child(listening)
        listening.children.send_stop()
        assert child.socket.recv(1) == STOPPING
