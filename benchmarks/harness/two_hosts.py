"""Two hosts on this machine, for figures of jobs over several: network namespaces, joined by a cable of their own.

The process that makes them is on the first one from then on, and so is everything that it starts, unless it names the
second. They share files, processors and the process table; only the network is a host's own. Needs root.
"""

import ctypes
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.service import Service, environment, service
from shardyard.service import embedded_redis
from shardyard.service.processes import ServiceError
from shardyard.service.secret_key_file import find_key_file

NAMESPACES = Path("/run/netns")
#: Of the first and of the second host.
ADDRESSES = ("10.78.0.1", "10.78.0.2")
READY_SECONDS = 120.0
END_SECONDS = 30.0
_CLONE_NEWNET = 0x40000000


@dataclass(frozen=True, slots=True)
class TwoHosts:
    """`names` of their network namespaces."""

    names: tuple[str, str]

    def command(self, host: int, *arguments: str) -> list[str]:
        """A command line that runs on a host, 0 or 1."""
        return ["nsenter", f"--net={NAMESPACES / self.names[host]}", *arguments]


@contextmanager
def two_hosts() -> Iterator[TwoHosts]:
    """This process is on the first one while it lasts; it must not have started a thread.

    Raises:
        PermissionError: the account may not make namespaces.
    """
    if os.geteuid():
        raise PermissionError("this benchmark makes network namespaces, so it must run as root")
    names = (f"shb{os.getpid()}x1", f"shb{os.getpid()}x2")
    with ExitStack() as stack:
        for name in names:
            _ip("netns", "add", name)
            stack.callback(_ip, "netns", "delete", name)
        _ip("-n", names[0], "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", names[1])
        for name, address in zip(names, ADDRESSES, strict=True):
            _ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            for link in ("eth0", "lo"):
                _ip("-n", name, "link", "set", link, "up")
        stack.enter_context(_in_namespace(NAMESPACES / names[0]))
        yield TwoHosts(names)


@contextmanager
def service_over(hosts: TwoHosts, devices: str = "cpu:1") -> Iterator[Service]:
    """`shardyard up` on the first host and a worker on the second, with Redis servers that both reach and a directory
    that both have.

    Raises:
        ServiceError: it did not get ready, or its end was not a clean one.
    """
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shardyard-bench-")))
        urls = {
            f"SHARDYARD_{name}_URL": stack.enter_context(redis_at(ADDRESSES[0], role, directory, port))
            for name, role, port in (("REDIS", "control", 6379), ("TELEMETRY", "telemetry", 6380))
        }
        stack.enter_context(environment({"SHARDYARD_NODE": "first", "SHARDYARD_NODE_ADDRESS": ADDRESSES[0]} | urls))
        running = stack.enter_context(service(devices))
        second = {
            "SHARDYARD_NODE": "second",
            "SHARDYARD_NODE_ADDRESS": ADDRESSES[1],
            "SHARDYARD_STATE_DIR": str(directory / "state"),
            "SHARDYARD_STORAGE": str(running.data_dir / "storage"),
            "SHARDYARD_SECRET_KEY_FILE": str(find_key_file(running.data_dir)),
        }
        worker = (sys.executable, "-P", "-m", "shardyard", "worker", "--devices", devices)
        stack.enter_context(_worker(hosts.command(1, *worker), second, directory / "worker.log"))
        deadline = time.monotonic() + READY_SECONDS
        while len(running.client.nodes()) < len(ADDRESSES):
            if time.monotonic() > deadline:
                raise ServiceError(
                    f"the second node did not register: {(directory / 'worker.log').read_text()[-2000:]}"
                )
            time.sleep(0.1)
        yield running


@contextmanager
def redis_at(listens: str, role: str, directory: Path, port: int) -> Iterator[str]:
    """The URL of a server as `shardyard up` starts it, which other hosts reach at an address of this one."""
    server = embedded_redis.prepare_redis(role, directory, embedded_redis.find_server())
    server.service.log_path.parent.mkdir(exist_ok=True)
    address = ("--port", str(port), "--bind", listens)
    with (directory / f"{role}.log").open("wb") as log:
        process = subprocess.Popen([*server.service.argv, *address], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        embedded_redis.wait_until_it_answers(server)
        yield f"redis://:{server.password}@{listens}:{port}"
    finally:
        process.kill()  # what it holds goes with its directory
        process.wait(END_SECONDS)


@contextmanager
def _worker(command: list[str], settings: dict[str, str], output: Path) -> Iterator[None]:
    with output.open("wb") as log:
        process = subprocess.Popen(
            command, env=os.environ | settings, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def _in_namespace(path: Path) -> Iterator[None]:
    with open("/proc/self/ns/net") as own, path.open() as other:
        _enter(other.fileno())
        try:
            yield
        finally:
            _enter(own.fileno())


def _enter(namespace: int) -> None:
    """Of the calling thread and of what it starts. (`os.setns` is newer than the Pythons that the project takes.)"""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, timeout=20)
