"""Hosts on one machine: network namespaces with an address each, joined by a bridge, whose cables can be pulled.

Processes of all hosts share files and the process table with the test; only the network is a host's own. All interfaces
are within the namespaces, so nothing of this machine's own network is touched, and its addresses cannot be in the way.
"""

import itertools
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

NAMESPACES = Path("/run/netns")
SUBNET = "10.77.0"
_NAME = re.compile(r"sh(?P<pid>\d+)x\d+[bh]\d*")
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Hosts:
    """Hosts have the numbers 1 to `count`. `name` is what the names of their namespaces begin with."""

    name: str
    count: int

    @property
    def bridge(self) -> str:
        """The address of the bridge, where services listen that all hosts use."""
        return f"{SUBNET}.1"

    def address(self, host: int) -> str:
        return f"{SUBNET}.{10 + host}"

    def command(self, host: int, *arguments: str) -> list[str]:
        """A command line that runs on a host. (`ip netns exec` would hide the cgroups.)"""
        return ["nsenter", f"--net={NAMESPACES / self._host(host)}", *arguments]

    def command_at_bridge(self, *arguments: str) -> list[str]:
        return ["nsenter", f"--net={NAMESPACES / self._bridge}", *arguments]

    def processes(self, host: int) -> list[psutil.Process]:
        """What runs on a host, in the order in which it was started."""
        return _processes_in(self._host(host))

    # -- faults ----------------------------------------------------------------------------------------

    def cut(self, host: int) -> None:
        """Pull the cable of a host: it reaches nobody, and nobody reaches it."""
        _run(["ip", "-n", self._bridge, "link", "set", _port(host), "down"])

    def join(self, host: int) -> None:
        """Put its cable back."""
        _run(["ip", "-n", self._bridge, "link", "set", _port(host), "up"])

    @contextmanager
    def without(self, host: int) -> Iterator[None]:
        """A host's cable is out while this lasts."""
        self.cut(host)
        try:
            yield
        finally:
            self.join(host)

    @contextmanager
    def cut_between(self, one: int, other: int) -> Iterator[None]:
        """Two hosts do not reach each other while this lasts, but everything else: as behind a switch that is set up
        badly. Their packets vanish without a word."""
        ends = [(one, self.address(other)), (other, self.address(one))]
        rules = [(host, rule) for host, far in ends for rule in (("INPUT", "-s", far), ("OUTPUT", "-d", far))]
        for host, rule in rules:
            _run(self.command(host, "iptables", "-I", *rule, "-j", "DROP"))
        try:
            yield
        finally:
            for host, rule in rules:
                _run(self.command(host, "iptables", "-D", *rule, "-j", "DROP"))

    # -- to make and to remove -------------------------------------------------------------------------

    def make(self) -> None:
        _run(["ip", "netns", "add", self._bridge])
        for command in (
            "link add br0 type bridge",
            f"address add {self.bridge}/24 dev br0",
            "link set br0 up",
            "link set lo up",
        ):
            _run(["ip", "-n", self._bridge, *command.split()])
        for host in range(1, self.count + 1):
            name, port = self._host(host), _port(host)
            _run(["ip", "netns", "add", name])
            link = ["link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name]
            _run(["ip", "-n", self._bridge, *link])
            _run(["ip", "-n", self._bridge, "link", "set", port, "master", "br0", "up"])
            for command in (f"address add {self.address(host)}/24 dev eth0", "link set eth0 up", "link set lo up"):
                _run(["ip", "-n", name, *command.split()])

    def remove(self) -> None:
        """End what still runs on the hosts, and remove them. Interfaces go with their namespaces."""
        for name in [*map(self._host, range(1, self.count + 1)), self._bridge]:
            _remove(name)

    @property
    def _bridge(self) -> str:
        return f"{self.name}b"

    def _host(self, host: int) -> str:
        assert 1 <= host <= self.count, f"there is no host {host}"
        return f"{self.name}h{host}"


@contextmanager
def running_hosts(count: int) -> Iterator[Hosts]:
    """New hosts, and none of a test run that was killed. Needs root, `ip`, `nsenter` and `iptables`."""
    clear_leftovers()
    hosts = Hosts(f"sh{os.getpid()}x{next(_numbers)}", count)
    try:
        hosts.make()
        yield hosts
    finally:
        hosts.remove()


def clear_leftovers() -> None:
    """Remove hosts whose test run is gone."""
    for name in (path.name for path in NAMESPACES.glob("sh*")):
        match = _NAME.fullmatch(name)
        if match is not None and not psutil.pid_exists(int(match["pid"])):
            _remove(name)


def _port(host: int) -> str:
    """The bridge's end of a host's cable."""
    return f"port{host}"


def _processes_in(name: str) -> list[psutil.Process]:
    try:
        namespace = (NAMESPACES / name).stat().st_ino
    except FileNotFoundError:
        return []
    found = []
    for process in psutil.process_iter():
        with suppress(OSError, psutil.NoSuchProcess):
            if os.stat(f"/proc/{process.pid}/ns/net").st_ino == namespace:
                found.append(process)
    return found


def _remove(name: str) -> None:
    left = _processes_in(name)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=10)
    if (NAMESPACES / name).exists():
        _run(["ip", "netns", "delete", name])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=20)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
