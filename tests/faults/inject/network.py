"""A network namespace for a worker, and iptables in it that cut it off from the rest."""

import itertools
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Network:
    """A namespace that reaches this machine at `host`, and is `address` to it."""

    name: str
    host: str
    address: str

    def command(self, *arguments: str) -> list[str]:
        """A command line that runs in the namespace. (`ip netns exec` would hide the cgroups.)"""
        return ["nsenter", f"--net=/var/run/netns/{self.name}", *arguments]

    @contextmanager
    def cut_off(self) -> Iterator[None]:
        """Every packet from and to this machine is dropped without a word, as by a broken cable."""
        rules = [("OUTPUT", "-d", self.host), ("INPUT", "-s", self.host)]
        for rule in rules:
            _run(self.command("iptables", "-I", *rule, "-j", "DROP"))
        try:
            yield
        finally:
            for rule in rules:
                _run(self.command("iptables", "-D", *rule, "-j", "DROP"))


@contextmanager
def network() -> Iterator[Network]:
    """A new namespace, connected to this machine by a pair of interfaces."""
    number = next(_numbers)
    name = f"sy{os.getpid()}x{number}"
    inside, outside, subnet = f"{name}i"[:15], f"{name}o"[:15], f"10.{217 + number % 30}.{os.getpid() % 250}"
    made = Network(name, f"{subnet}.1", f"{subnet}.2")
    _run(["ip", "netns", "add", name])
    try:
        _run(["ip", "link", "add", outside, "type", "veth", "peer", "name", inside, "netns", name])
        _run(["ip", "address", "add", f"{made.host}/24", "dev", outside])
        _run(["ip", "link", "set", outside, "up"])
        for command in (f"address add {made.address}/24 dev {inside}", f"link set {inside} up", "link set lo up"):
            _run(["ip", "-n", name, *command.split()])
        yield made
    finally:
        with suppress(subprocess.CalledProcessError):
            _run(["ip", "link", "delete", outside])
        _run(["ip", "netns", "delete", name])


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=20)
