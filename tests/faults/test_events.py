"""Row 25: readers of event streams that vanish, reset, crowd or dawdle, and the resume behind the last id."""

import random
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from api.data.redis_pool import MAX_CONNECTIONS
from tests.faults.inject.network import network
from tests.faults.scene.checker import Footprint
from tests.faults.scene.machine import need
from tests.faults.scene.site import TOKEN, Api, Site
from tests.integration.api.streams import Event, Reader, lines_of
from tests.integration.workers.service import eventually
from tests.support.servers.redis_server import RedisServer

pytestmark = [pytest.mark.integration, pytest.mark.faults]

#: What a reader that is gone may hold on to its slot, its file and its connection.
RELEASED_SECONDS = 15.0
CROWD = 500
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close with a reset instead of a FIN


def streams(url: str) -> int:
    """Streams that an API process has open."""
    answer = httpx.get(f"{url}/metrics", headers={"Authorization": f"Bearer {TOKEN}"}, timeout=10)
    lines = answer.text.splitlines()
    return int(next(float(line.split()[1]) for line in lines if line.startswith("shardyard_event_streams ")))


def released(url: str, pid: int, files: int) -> None:
    """Slots and descriptors come back in time; connections to the telemetry Redis stay in their pool."""

    def back() -> bool:
        time.sleep(0.1)
        return streams(url) == 0 and psutil.Process(pid).num_fds() <= files + MAX_CONNECTIONS + 6

    eventually(back, "all is released", RELEASED_SECONDS)


def came_back(site: Site, before: Footprint) -> None:
    """Memory and threads too. Idle threads go when another one is asked for, after ten seconds."""

    def back() -> bool:
        time.sleep(0.1)
        streams(site.api.url)
        now = Footprint.of(site.api.pid, site.server.client())
        return not now.grown(before, handles=12 + MAX_CONNECTIONS)

    eventually(back, "all came back")


def reset(reader: Reader | socket.socket) -> None:
    connection = reader.socket if isinstance(reader, Reader) else reader
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    connection.close()


@contextmanager
def crowd(site: Site, job: str) -> Iterator[list[Reader]]:
    """Many readers of one job, each of which has had its first event."""
    with ExitStack() as stack:
        readers = []
        for number in range(CROWD):
            path = f"/v1/jobs/{job}/events" + ("?logs=all&tail=0" if number % 2 else "")
            readers.append(stack.enter_context(Reader(site.api.port, path, token=TOKEN)))
        for reader in readers:
            reader.until(lambda r: r.events, 60)
        yield readers


def calls(site: Site) -> int:
    """Commands that both servers have processed."""
    servers = (site.server, site.telemetry)
    return sum(int(server.client().info("stats")["total_commands_processed"]) for server in servers)


def connections(server: RedisServer) -> int:
    return len(server.client().client_list())


def test_row_25_five_hundred_idle_readers_share_one_and_leave_nothing_behind(site: Site) -> None:
    job = site.running(seconds=0.2)
    before, files = Footprint.of(site.api.pid, site.server.client()), psutil.Process(site.api.pid).num_fds()
    connected = connections(site.telemetry)
    with Reader(site.api.port, f"/v1/jobs/{job}/events?logs=all&tail=0", token=TOKEN) as alone:
        alone.until(lambda r: r.named("progress"))
        one = rate(site)
    with crowd(site, job) as readers:
        assert streams(site.api.url) == CROWD
        # What waits for an answer has a connection of its own, and on a busy machine several do at once.
        assert connections(site.telemetry) <= connected + MAX_CONNECTIONS
        assert connections(site.server) <= before.connections + MAX_CONNECTIONS
        many = rate(site)
        assert many < 1.5 * one + 100, f"{one} commands a second for one reader, {many} for {CROWD}"
        for reader in readers[: CROWD // 2]:
            reset(reader)
        for reader in readers[CROWD // 2 :]:
            reader.close()
        released(site.api.url, site.api.pid, files)
    site.cancel(job)
    came_back(site, before)


def rate(site: Site) -> float:
    """Commands a second, over a while."""
    first, began = calls(site), time.monotonic()
    time.sleep(1.5)
    return (calls(site) - first) / (time.monotonic() - began)


def test_row_25_readers_that_reset_before_the_first_byte_leave_nothing_behind(site: Site) -> None:
    job = site.running()
    before, files = Footprint.of(site.api.pid, site.server.client()), psutil.Process(site.api.pid).num_fds()
    head = f"GET /v1/jobs/{job}/events?logs=all HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    chance = random.Random(25)
    for _ in range(300):
        connection = socket.create_connection(("127.0.0.1", site.api.port))
        connection.sendall(head.encode()[: None if chance.random() < 0.8 else chance.randrange(len(head))])
        time.sleep(chance.choice((0, 0, 0.001, 0.005)))
        reset(connection)
    released(site.api.url, site.api.pid, files)
    site.cancel(job)
    came_back(site, before)


#: Connects, and takes what comes. Every reader has had its first event when it says so.
VANISHING = """
import socket, sys, threading
def take(s):
    while s.recv(65536):
        pass
for path in sys.argv[4:]:
    s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
    head = f"GET {path} HTTP/1.1\\r\\nHost: {sys.argv[1]}\\r\\nAuthorization: Bearer {sys.argv[3]}\\r\\n\\r\\n"
    s.sendall(head.encode())
    told = b""
    while b"event: state" not in told:
        told += s.recv(65536) or exit("the stream has ended")
    threading.Thread(target=take, args=(s,)).start()
print("ready", flush=True)
"""


@pytest.mark.slow
def test_row_25_readers_whose_machine_is_gone_are_let_go_in_time(site: Site, tmp_path: Path) -> None:
    need("network namespaces")
    busy = site.running(seconds=0.1, talks=True)
    quiet = site.post("dp", 8)  # it waits for devices: nothing is told of it but comments
    with network() as net:
        api = Api(tmp_path, site._environment())
        api.start(SHARDYARD_HOST="0.0.0.0", SHARDYARD_INSECURE_HTTP="1", SHARDYARD_ALLOWED_HOSTS=net.host)
        try:
            files = psutil.Process(api.pid).num_fds()
            paths = [f"/v1/jobs/{busy}/events?logs=all", f"/v1/jobs/{quiet}/events"] * 10
            command = [sys.executable, "-c", VANISHING, net.host, str(api.port), TOKEN, *paths]
            with subprocess.Popen(net.command(*command), stdout=subprocess.PIPE, text=True) as readers:
                try:
                    assert readers.stdout is not None
                    assert readers.stdout.readline() == "ready\n"
                    assert streams(api.url) == len(paths)
                    with net.cut_off():
                        released(api.url, api.pid, files)
                finally:
                    readers.kill()
        finally:
            api.close()
    for job in (quiet, busy):
        site.cancel(job)


def test_row_25_a_slow_reader_and_a_resumed_one_get_every_line_of_a_real_run(site: Site) -> None:
    job = site.post("ddp", 2, steps=150, seconds=0.01, rows=4, talks=True)
    path = f"/v1/jobs/{job}/events?logs=all"
    chance = random.Random(5)
    with Reader(site.api.port, path, token=TOKEN, buffer=4096) as slow:
        events: list[Event] = []
        while not events or events[-1].name != "end":
            wanted = chance.randrange(1, 40)
            with Reader(site.api.port, path, events[-1].id if events else "", token=TOKEN) as reader:
                while len(reader.events) < wanted and not reader.ended:
                    reader.read(60)
                events += reader.events
        slow.to_end(60)
    for told in (events, slow.events):
        assert [event.name for event in told].count("end") == 1
        for device in (0, 1):
            lines = site.lines(job, device)
            assert len(lines) > 100
            assert [line["seq"] for line in lines_of(told, device)] == [line.seq for line in lines]
