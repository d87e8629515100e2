"""Hosts that share nothing but a cable: network, mounts, /tmp, home and data are each one's own.

The first runs `shardyard up --listen`, the others `shardyard join` with the line that it has printed. Programs and
Python are the test's own installation, which all hosts see, as machines have that installed the same version.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil

from shardyard.client import Client
from shardyard.client.transport import trust_certificate
from tests.faults.inject.hosts import Hosts, running_hosts
from tests.faults.scene.machine import ROOT

#: Of what usually takes ten seconds.
START_SECONDS = 180.0
READY, JOINED = "Ctrl-C here stops the service", "node_registered"
SHARDYARD = (sys.executable, "-P", "-m", "shardyard")
SETTINGS = {
    "SHARDYARD_RESERVE_BYTES": str(16 << 20),
    "SHARDYARD_LEASE_SECONDS": "20",
    "SHARDYARD_NODE_SECONDS": "10",
    "SHARDYARD_BEAT_SECONDS": "1",
    "SHARDYARD_CARRY_BYTES": str(32 << 20),
}
#: Brings a port of a host to a socket here. The test's own network reaches no host.
_FORWARD = """
import asyncio, sys
async def copy(source, target):
    try:
        while data := await source.read(65536):
            target.write(data)
            await target.drain()
    except OSError:
        pass
    finally:
        target.transport.abort()
async def link(reader, writer):
    try:
        replies, commands = await asyncio.open_connection(sys.argv[2], int(sys.argv[3]))
    except OSError:
        writer.transport.abort()
        return
    await asyncio.gather(copy(reader, commands), copy(replies, writer))
async def main():
    async with await asyncio.start_unix_server(link, sys.argv[1]):
        print("listening", flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


class JoinedHost:
    """One machine. What it has below /tmp can be seen from here in `root`."""

    def __init__(self, hosts: Hosts, number: int, outputs: Path, tmp_size: str) -> None:
        self.number, self.name = number, f"box{number}"
        self.address = hosts.address(number)
        self._outputs = outputs
        self._started: list[subprocess.Popen[bytes]] = []
        draft = outputs / f"{self.name}-tmp"
        draft.mkdir()
        script = (
            f"hostname {self.name}; mount -t tmpfs -o mode=1777,size={tmp_size} tmpfs {draft}; mkdir {draft}/home; "
            f'for kept; do mkdir -p "{draft}/$kept"; mount --rbind "/tmp/$kept" "{draft}/$kept"; done; '
            f"mount --move {draft} /tmp; echo made; exec sleep infinity"
        )
        inside = ["unshare", "--mount", "--uts", "--propagation", "private", "sh", "-ec", script, "sh"]
        inside += _kept_below_tmp()
        self._holder = subprocess.Popen(hosts.command(number, *inside), stdout=subprocess.PIPE)
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"made\n", "the host's mounts could not be made (is this root?)"
        self.root = Path(f"/proc/{self._holder.pid}/root")

    def command(self, *arguments: str, **variables: str) -> list[str]:
        """A command line that runs on this host."""
        named = {"HOME": "/tmp/home", "TMPDIR": "/tmp"} | SETTINGS | variables
        kept = [f"{name}={os.environ[name]}" for name in ("PATH", "LANG", "CI") if name in os.environ]
        environment = [*kept, *(f"{name}={value}" for name, value in named.items())]
        spaces = ["nsenter", f"--target={self._holder.pid}", "--mount", "--net", "--uts", "--wd=/work"]
        return [*spaces[:-1], "env", "-i", "-C", "/tmp", *environment, *arguments]

    def run(self, *arguments: str, seconds: float = 120.0, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*SHARDYARD, *arguments, **variables), capture_output=True, text=True, timeout=seconds
        )

    def start(self, *arguments: str, until: str, **variables: str) -> str:
        """Start a command of ours that goes on, and wait until it has said something; what it said."""
        return self.start_program(*SHARDYARD, *arguments, until=until, **variables)

    def start_program(self, *words: str, until: str, **variables: str) -> str:
        """As `start`, of any program."""
        output = self._outputs / f"{self.name}-{len(self._started)}.txt"
        with output.open("wb") as file:
            command = self.command(*words, **variables)
            process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
        self._started.append(process)
        wait_for(
            lambda: until in output.read_text() or process.poll() is not None, START_SECONDS, lambda: output.read_text()
        )
        assert process.poll() is None, output.read_text()
        return output.read_text()

    def said(self) -> str:
        """What the newest of them has said."""
        return (self._outputs / f"{self.name}-{len(self._started) - 1}.txt").read_text()

    def processes(self) -> list[psutil.Process]:
        """All of this host, but for the one that keeps it."""
        mounts = (Path("/proc") / str(self._holder.pid) / "ns" / "net").stat().st_ino
        found = []
        for process in psutil.process_iter():
            with suppress(OSError, psutil.NoSuchProcess):
                if process.pid != self._holder.pid and os.stat(f"/proc/{process.pid}/ns/net").st_ino == mounts:
                    found.append(process)
        return found

    def lose_power(self) -> None:
        """Everything that runs there ends at once; its disk stays."""
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        for started in self._started:
            started.wait(30)

    def stop(self) -> None:
        for process in reversed(self._started):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(60)
        self.lose_power()

    def close(self) -> None:
        self._holder.kill()
        self._holder.wait()
        assert self._holder.stdout is not None
        self._holder.stdout.close()


def _kept_below_tmp() -> list[str]:
    """Where Python and this source tree lie, as far as a host's own /tmp would hide them."""
    needed = {place for path in (sys.prefix, sys.base_prefix, ROOT) for place in (Path(path), Path(path).resolve())}
    return sorted(str(place.relative_to("/tmp")) for place in needed if place.is_relative_to("/tmp"))


class JoinedService:
    """A service on the first of some hosts, which the others have joined, and a client of it."""

    def __init__(self, hosts: Hosts, machines: Mapping[int, JoinedHost], client: Client, invitation: list[str]) -> None:
        self.hosts, self.machines, self.client = hosts, machines, client
        #: Arguments of `shardyard` that join a machine.
        self.invitation = invitation

    @property
    def storage(self) -> Path:
        """The files of the service, as they lie on the first host."""
        return self.machines[1].root / "tmp" / "data" / "storage"

    def join(self, number: int, *options: str, **variables: str) -> str:
        """Join a machine and start its worker; what that said."""
        return self.machines[number].start(*self.invitation, "--devices", "cpu:1", *options, until=JOINED, **variables)

    @contextmanager
    def only(self, number: int) -> Iterator[None]:
        """Jobs start on this machine alone while this lasts."""
        others = [node.id for node in self.client.nodes() if node.id != self.machines[number].name]
        for other in others:
            self.client.drain(other)
        try:
            yield
        finally:
            for other in others:
                self.client.undrain(other)

    @contextmanager
    def api_away(self, number: int) -> Iterator[None]:
        """A machine does not reach the API while this lasts, and everything else."""
        rule = ["-p", "tcp", "--dport", "8000", "-j", "REJECT", "--reject-with", "tcp-reset"]
        where = ["OUTPUT", "-d", self.machines[1].address]
        command = self.hosts.command(number, "iptables")
        subprocess.run([*command, "-I", *where, *rule], check=True, timeout=30)
        try:
            yield
        finally:
            subprocess.run([*command, "-D", *where, *rule], check=True, timeout=30)


def wait_for(condition: Any, seconds: float, explain: Any = lambda: "") -> Any:
    """What a condition says when it is true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, explain()
        time.sleep(0.05)
    return found


@contextmanager
def joined_hosts(
    directory: Path,
    count: int = 2,
    tmp_size: str = "2g",
    before: Callable[[JoinedHost], object] = lambda first: None,
    **settings: str,
) -> Iterator[JoinedService]:
    """A service on the first of so many hosts, and no other that has joined yet. `settings` are of `up` alone; `before`
    starts what the service needs on its host."""
    with ExitStack() as stack:
        hosts = stack.enter_context(running_hosts(count))
        machines = {}
        for number in range(1, count + 1):
            machines[number] = JoinedHost(hosts, number, directory, tmp_size)
            stack.callback(machines[number].close)
            stack.callback(machines[number].stop)
        first = machines[1]
        before(first)
        options = ("--listen", first.address, "--devices", "cpu:1", "--data-dir", "/tmp/data")
        said = first.start("up", *options, until=READY, **settings)
        (line,) = re.findall(r"^ +shardyard (join .*)$", said, re.MULTILINE)
        client = stack.enter_context(_client_over(directory, hosts, first))
        yield JoinedService(hosts, machines, client, shlex.split(line))


@contextmanager
def _client_over(directory: Path, hosts: Hosts, first: JoinedHost) -> Iterator[Client]:
    socket = directory / "api.sock"
    command = hosts.command_at_bridge(sys.executable, "-c", _FORWARD, str(socket), first.address, "8000")
    with subprocess.Popen(command, stdout=subprocess.PIPE) as forward:
        try:
            assert forward.stdout is not None
            assert forward.stdout.readline() == b"listening\n"
            data = first.root / "tmp" / "data"
            record = json.loads((data / "service.json").read_text())
            trusted = trust_certificate(data / "tls" / "service.pem")
            transport = httpx.HTTPTransport(uds=str(socket), verify=trusted)
            token = (data / "admin.token").read_text().strip()
            with Client(record["url"], token, transport=transport) as client:
                yield client
        finally:
            forward.kill()
