"""Sinks of processes that descend from a rank: when they connect, what they send, and what they never do."""

import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest

from jobs.protocol.packets import AnyRecord, PacketDecoder
from jobs.protocol.probe_records import Activity, Group
from jobs.protocol.records import Began, Hello, MetricSample, Note, Step
from tests.support.probe_socket import Listening
from workers.probe import descendants
from workers.probe.descendants import ChildSink, Family, FamilySink
from workers.runtime.context import ChannelSink, RankContext, RankDevice

BEGAN = Began(0, "train", 1.0)
STEP = Step(0, 0, "train", (), 1.0, 1.0)
ACTIVITY = Activity(1, 1, 1, 0)
DEVICES = (RankDevice(0, "cpu", "cpu:0"), RankDevice(1, "cpu", "cpu:1"))


def a_family(address: str = "/nowhere", rank: int = 0, world_size: int = 1) -> Family:
    return Family(rank, world_size, DEVICES, 2, 1, address, rehearsed=False, output="/tmp")


def in_a_child(act: Callable[[], object]) -> int:
    """Run something in a forked process, which then ends as those of multiprocessing do; its process id."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            act()
            from multiprocessing.util import _exit_function  # type: ignore[attr-defined]

            _exit_function()
            code = 0
        finally:
            os._exit(code)
    return pid


def ended(listening: Listening, pid: int) -> int:
    """Serve until a child has ended; its exit code."""
    codes: list[int] = []

    def dead() -> bool:
        found, status = os.waitpid(pid, os.WNOHANG)
        codes.extend([os.waitstatus_to_exitcode(status)] if found else [])
        return bool(found)

    listening.until(dead)
    listening.children.drain()
    return codes[0]


def test_a_family_survives_the_environment() -> None:
    family = a_family(rank=3, world_size=4)
    assert Family.decode(descendants.environment(family)[descendants.FAMILY]) == family


# -- forked children -------------------------------------------------------------------------------


def test_a_forked_child_writes_to_the_socket_and_never_to_its_parents_pipe() -> None:
    reader, writer = os.pipe()
    with Listening() as listening:
        sink = FamilySink(ChannelSink(writer), a_family(str(listening.path)))
        sink.emit(Note("field", "of the parent"))

        def act() -> None:
            sink.become_child("forked")
            sink.emit(BEGAN)

        assert ended(listening, in_a_child(act)) == 0
        assert listening.records == [(0, 1, BEGAN)]
        sink.emit(STEP)
        decoder, heard = PacketDecoder(), list[AnyRecord]()
        while STEP not in heard:
            heard += chain.from_iterable(decoder.feed(os.read(reader, 4096)))
        assert heard == [Note("field", "of the parent"), STEP]
    os.close(reader)


def test_a_child_that_has_nothing_to_tell_never_connects() -> None:
    with Listening() as listening:
        sink = FamilySink(ChannelSink(-1), a_family(str(listening.path)))

        def act() -> None:
            sink.become_child("forked")
            for record in (Note("field", "reason"), ACTIVITY):
                sink.emit(record)

        assert ended(listening, in_a_child(act)) == 0
        assert listening.children.accepted_count == 0


def test_what_was_known_before_the_work_began_comes_first() -> None:
    with Listening() as listening:
        sink = FamilySink(ChannelSink(-1), a_family(str(listening.path)))

        def act() -> None:
            sink.become_child("forked")
            for record in (Note("field", "reason"), BEGAN, STEP):
                sink.emit(record)

        assert ended(listening, in_a_child(act)) == 0
        assert [record for _, _, record in listening.records] == [Note("field", "reason"), BEGAN, STEP]


def test_workers_of_a_data_loader_never_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = SimpleNamespace(_worker_info=object())
    monkeypatch.setitem(sys.modules, "torch.utils.data._utils.worker", worker)
    with Listening() as listening:
        sink = FamilySink(ChannelSink(-1), a_family(str(listening.path)))

        def act() -> None:
            sink.become_child("forked")
            sink.emit(BEGAN)

        assert ended(listening, in_a_child(act)) == 0
        assert listening.children.accepted_count == 0


def test_a_childs_child_has_a_connection_of_its_own() -> None:
    with Listening() as listening:
        sink = FamilySink(ChannelSink(-1), a_family(str(listening.path)))

        def grandchild() -> None:
            sink.become_child("forked")
            sink.emit(STEP)

        def child() -> None:
            sink.become_child("forked")
            sink.emit(BEGAN)
            assert os.waitpid(in_a_child(grandchild), 0)[1] == 0
            sink.emit(ACTIVITY)

        assert ended(listening, in_a_child(child)) == 0
        by_source = {source: [r for _, s, r in listening.records if s == source] for source in (1, 2)}
        assert sorted(map(len, by_source.values())) == [1, 2]
        assert [STEP] in by_source.values()
        assert [BEGAN, ACTIVITY] in by_source.values()


def test_what_is_owed_at_the_end_is_sent() -> None:
    with Listening() as listening:
        sink = FamilySink(ChannelSink(-1), a_family(str(listening.path)))
        sink.before_end(lambda: sink.emit(ACTIVITY))

        def act() -> None:
            sink.become_child("forked")
            sink.emit(BEGAN)

        assert ended(listening, in_a_child(act)) == 0
        assert [record for _, _, record in listening.records] == [BEGAN, ACTIVITY]


def test_threads_that_begin_at_once_share_one_connection() -> None:
    with Listening() as listening:
        sink = FamilySink(ChannelSink(-1), a_family(str(listening.path)))

        def act() -> None:
            sink.become_child("forked")
            start = threading.Barrier(8)

            def work() -> None:
                start.wait()
                for _ in range(100):
                    sink.emit(STEP)

            threads = [threading.Thread(target=work) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        assert ended(listening, in_a_child(act)) == 0
        assert listening.children.accepted_count == 1
        assert len(listening.records) == 800


def test_a_child_that_leaves_by_os_exit_sends_what_is_owed_too() -> None:
    with Listening() as listening:
        sink = FamilySink(ChannelSink(-1), a_family(str(listening.path)))
        sink.before_end(lambda: sink.emit(ACTIVITY))

        def act() -> None:
            sink.become_child("forked")
            sink.emit(BEGAN)
            os._exit(7)

        assert ended(listening, in_a_child(act)) == 7
        assert [record for _, _, record in listening.records] == [BEGAN, ACTIVITY]


def test_records_go_out_while_a_child_is_busy() -> None:
    with Listening() as listening:
        sink = FamilySink(ChannelSink(-1), a_family(str(listening.path)))

        def act() -> None:
            sink.become_child("forked")
            sink.emit(BEGAN)
            time.sleep(60)

        pid = in_a_child(act)
        listening.until(lambda: bool(listening.records))
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        listening.until(lambda: listening.ended == [(0, 1)])


def test_a_child_hears_that_its_attempt_is_to_end() -> None:
    with Listening() as listening:
        sink = FamilySink(ChannelSink(-1), a_family(str(listening.path)))

        def act() -> None:
            sink.become_child("forked")
            sink.emit(BEGAN)
            while not sink.told_to_stop():
                time.sleep(0.01)

        pid = in_a_child(act)
        listening.until(lambda: bool(listening.records))
        listening.children.send_stop()
        assert ended(listening, pid) == 0


# -- nobody listens --------------------------------------------------------------------------------


def a_sink(address: str) -> ChildSink:
    return ChildSink(address, Hello(os.getpid(), os.getppid(), "forked"), lambda: None)


def test_a_child_goes_on_where_nobody_listens() -> None:
    sink = a_sink("/nowhere/at/all")
    for _ in range(100_000):
        sink.emit(STEP)
    sink._at_end()


def test_a_supervisor_that_does_not_answer_holds_up_an_end_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descendants, "FLUSH_SECONDS", 0.1)
    with TemporaryDirectory(prefix="sy-") as directory, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(Path(directory) / "probe"))
        listener.listen(1)
        sink = a_sink(str(Path(directory) / "probe"))
        sink.emit(STEP)
        began = time.monotonic()
        sink._at_end()
        assert time.monotonic() - began < 30
    sink.abandon()


def test_a_queue_of_callers_that_is_full_is_waited_for() -> None:
    with TemporaryDirectory(prefix="sy-") as directory, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(Path(directory) / "probe"))
        listener.listen(0)
        sinks = [a_sink(str(Path(directory) / "probe")) for _ in range(5)]
        for sink in sinks:
            sink.emit(STEP)
        listener.settimeout(60)
        for _ in sinks:
            connection, _ = listener.accept()
            with connection:
                connection.send(descendants.ADMITTED)
                assert connection.recv(1 << 16)
        for sink in sinks:
            sink.abandon()


def test_a_child_that_was_cut_off_goes_on() -> None:
    with Listening() as listening:

        def act() -> None:
            sink = a_sink(str(listening.path))
            sink.emit(MetricSample(0, "loss", 1, 1.0, 1.0))
            while sink._channel is None or not sink._channel._off:
                sink.emit(STEP)
                time.sleep(0.001)
            sink.emit(STEP)

        pid = in_a_child(act)
        listening.until(lambda: listening.children.open_count == 1)
        (live,) = listening.children._connections.values()
        listening.children._reject_connection(live, "for the test")
        assert ended(listening, pid) == 0


# -- whose series ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rank", "world_size", "group", "device"),
    [
        (0, 1, None, -1),
        (0, 1, Group(0, 2, "gloo"), -1),
        (0, 1, Group(1, 2, "gloo"), 1),
        (0, 1, Group(2, 4, "gloo"), 0),  # processes in excess share the devices
        (1, 2, None, 1),
        (1, 2, Group(0, 2, "gloo"), 1),  # a rank of the job's own keeps its device
    ],
)
def test_series_belong_to_the_job_or_to_the_device_of_the_process(
    rank: int, world_size: int, group: Group | None, device: int
) -> None:
    sink = FamilySink(ChannelSink(-1), a_family(rank=rank, world_size=world_size))
    sink.become_child("forked")
    if group is not None:
        sink.emit(group)
    assert sink.device == device


def test_a_rank_keeps_its_own_sink_and_gives_its_programs_what_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in descendants.environment(a_family()):
        monkeypatch.setenv(name, "")  # so that all are as they were afterwards
    reader, writer = os.pipe()
    own = ChannelSink(writer)
    context = RankContext(0, 1, DEVICES, 2, 1, own)
    followed = descendants.follow(context, "/address", "/output", rehearsed=True)
    followed.sink.emit(STEP)
    assert list(PacketDecoder().feed(os.read(reader, 4096))) == [(STEP,)]
    assert Family.decode(os.environ[descendants.FAMILY]).rehearsed
    assert os.environ["PYTHONPATH"] == str(descendants.BOOT)
    assert (descendants.BOOT / "sitecustomize.py").exists()
    own.close()
    os.close(reader)
