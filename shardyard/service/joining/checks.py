"""Checks before a machine works as a node: each says what it found, and what to do if that is bad.

`failed` keeps the worker from starting, `doubtful` does not. What nobody here can find out is a row as well.
"""

import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path

import redis

from jobs.files.paths import MAX_CHECK_BYTES, node_check
from jobs.model.settings import Settings
from jobs.storage.remote import RemoteElsewhere, RemoteError, RemoteFull, RemoteStorage, digest_file
from jobs.storage.service import ServiceStorage
from jobs.storage.target import target_of
from jobs.support.disk_space import read_space
from shardyard.contract.joins import NodeSetup
from shardyard.service.joining.settings_file import bucket_variables
from workers.node.devices import discover_devices
from workers.sandbox.box.choice import choose_box

REDIS_SECONDS, BUCKET_SECONDS, TORCH_SECONDS = 5.0, 20.0, 180.0
#: Clocks of nodes order log lines of a job over several of them, and a certificate is valid from a moment on.
DOUBTFUL_CLOCK_SECONDS, WRONG_CLOCK_SECONDS = 0.1, 300.0
_TORCH = "import torch; print(torch.__version__, torch.cuda.device_count() if torch.cuda.is_available() else 0)"


class CheckResult(StrEnum):
    PASSED = "ok"
    DOUBTFUL = "look"
    FAILED = "failed"
    UNKNOWN = "not checked"


@dataclass(frozen=True, slots=True)
class Check:
    """A row: what was looked at, how it is, what was found, and what to do about it."""

    what: str
    result: CheckResult
    found: str
    advice: str = ""


def check_version(setup: NodeSetup) -> Check:
    here = metadata.version("shardyard")
    if here == setup.version:
        return Check("version", CheckResult.PASSED, f"shardyard {here}, as the service")
    return Check(
        "version",
        CheckResult.FAILED,
        f"shardyard {here} here, {setup.version} there",
        f'install the service\'s: pip install "shardyard[server]=={setup.version}"',
    )


def check_name(setup: NodeSetup, *, runs_here: bool) -> Check:
    if not setup.alive_on or runs_here:
        remark = "; its worker runs here already" if runs_here else ""
        return Check("name", CheckResult.PASSED, f"{setup.node}{remark}")
    return Check(
        "name",
        CheckResult.FAILED,
        f"{setup.node} is alive on the host {setup.alive_on!r}",
        "if that is another machine, choose a name with --name; if it was this one a moment ago, wait half a minute",
    )


def check_clock(setup: NodeSetup, asked: float, answered: float) -> Check:
    """`asked` and `answered` are times of this machine's clock."""
    apart = (asked + answered) / 2 - setup.now_us / 1e6
    uncertain = (answered - asked) / 2
    far = max(0.0, abs(apart) - uncertain)
    found = f"{abs(apart):.3f} s {'ahead of' if apart > 0 else 'behind'} the service (to {uncertain:.3f} s)"
    if far < DOUBTFUL_CLOCK_SECONDS:
        return Check("clock", CheckResult.PASSED, found)
    advice = (
        "let both be set by NTP (`timedatectl set-ntp true`); logs of jobs over several nodes have each node's times"
    )
    return Check("clock", CheckResult.DOUBTFUL if far < WRONG_CLOCK_SECONDS else CheckResult.FAILED, found, advice)


def check_address(setup: NodeSetup, address: str) -> Check:
    if address == setup.address_seen:
        return Check("address", CheckResult.PASSED, f"{address}, as the service sees this machine")
    return Check(
        "address",
        CheckResult.DOUBTFUL,
        f"{address} here, and the service sees {setup.address_seen}",
        "there is a NAT or a proxy between: jobs of one node work, jobs over several need an address that the other "
        "nodes reach (--address)",
    )


def check_redis(what: str, url: str, advice_for: str) -> Check:
    """Log in, and ask for a sign of life. `advice_for`: whose user this is."""
    client = redis.Redis.from_url(
        url, socket_timeout=REDIS_SECONDS, socket_connect_timeout=REDIS_SECONDS, driver_info=None
    )
    place = client.connection_pool.connection_kwargs
    where = f"{place['host']} port {place['port']}"
    try:
        client.ping()
        began = time.monotonic()
        client.ping()
        took = time.monotonic() - began
    except redis.AuthenticationError as error:
        return Check(
            what,
            CheckResult.FAILED,
            f"{where} refuses the password of {advice_for}: {error}",
            "run the newest `shardyard join` command: the service's passwords are not those that this machine got",
        )
    except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
        return Check(
            what,
            CheckResult.FAILED,
            f"{where}: {error}",
            "run the newest `shardyard join` command: the service's certificates are not those that this machine got"
            if "CERTIFICATE_VERIFY" in str(error)
            else f"let this machine reach TCP port {place['port']} of {place['host']} in the firewalls between them",
        )
    except redis.RedisError as error:
        return Check(what, CheckResult.FAILED, f"{where}: {error}", "see the log redis-tls.log of the service")
    finally:
        client.close()
    return Check(what, CheckResult.PASSED, f"{where}, TLS, logged in, {took * 1000:.1f} ms")


def check_storage(settings: Settings) -> Check:
    """A file there and back, with the node's own token or the credentials of a bucket."""
    try:
        with _storage_of(settings) as remote, tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "check"
            file.write_bytes(body := secrets.token_bytes(MAX_CHECK_BYTES))
            path, began = node_check(settings.node), time.monotonic()
            remote.put(path, file, digest_file(file))
            sent = time.monotonic()
            same = remote.read(path, 0, len(body)) == body
            read = time.monotonic()
            remote.remove(path)
    except RemoteElsewhere as error:
        advice = "set both variables here, and run the newest `shardyard join` command again, which keeps them"
        return Check("storage", CheckResult.FAILED, str(error), advice)
    except ImportError as error:
        return Check("storage", CheckResult.FAILED, str(error), "pip install 'shardyard[server,s3]'")
    except RemoteFull as error:
        return Check("storage", CheckResult.FAILED, str(error), "make room on the disk of the service")
    except (RemoteError, ValueError, OSError) as error:
        return Check("storage", CheckResult.FAILED, str(error), "run the newest `shardyard join` command again")
    if not same:
        return Check("storage", CheckResult.FAILED, "a file came back with different bytes", "look at what is between")
    speeds = (len(body) / 1e6 / max(seconds, 1e-6) for seconds in (sent - began, read - sent))
    return Check("storage", CheckResult.PASSED, "1 MiB there at {:.0f} MB/s, back at {:.0f} MB/s".format(*speeds))


@contextmanager
def _storage_of(settings: Settings) -> Iterator[RemoteStorage]:
    """Raises ValueError, OSError."""
    if bucket_variables({"SHARDYARD_STORAGE": str(settings.storage)}):
        from jobs.storage.objects import ObjectStorage  # obstore is for whoever has chosen it

        yield ObjectStorage(target_of(settings).url, retry_seconds=BUCKET_SECONDS)
        return
    with closing(ServiceStorage(settings.url, settings.read_node_token(), settings.ca, call_seconds=20.0)) as remote:
        yield remote


def check_disk(settings: Settings) -> Check:
    """Room for what is not carried yet."""
    directory = settings.state_dir.expanduser()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        space = read_space(directory, settings.reserve_bytes)
    except OSError as error:
        return Check(
            "disk", CheckResult.FAILED, f"{directory}: {error.strerror}", "name another place in SHARDYARD_STATE_DIR"
        )
    found = f"{space.free_bytes / 1e9:.1f} GB free in {directory}"
    if space.level < 1:
        return Check("disk", CheckResult.FAILED, f"{directory}: {space.shortage}", "make room: no job starts before")
    if space.free_bytes < settings.carry_bytes:
        return Check(
            "disk",
            CheckResult.DOUBTFUL,
            found,
            f"up to {settings.carry_bytes / 1e9:.0f} GB wait there for the service when it is away; make room, or set "
            "SHARDYARD_CARRY_BYTES to less",
        )
    return Check("disk", CheckResult.PASSED, found)


def check_torch(setup: NodeSetup | None, settings: Settings) -> Iterator[Check]:
    """torch as a rank imports it, in a process of its own, and whether it drives the devices."""
    try:
        devices = discover_devices(settings.devices)
    except ValueError as error:
        yield Check("devices", CheckResult.FAILED, str(error), "name devices that this machine has with --devices")
        return
    gpus = sum(device.kind == "cuda" for device in devices)
    names = ", ".join(sorted({device.name for device in devices}))
    try:
        said = subprocess.run(
            [sys.executable, "-P", "-c", _TORCH], capture_output=True, text=True, timeout=TORCH_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        yield Check(
            "torch", CheckResult.FAILED, f"not imported within {TORCH_SECONDS:.0f} s", "look at this machine's disk"
        )
        return
    if said.returncode != 0:
        why = (said.stderr.strip().splitlines() or ["it cannot be imported"])[-1]
        yield Check("torch", CheckResult.FAILED, why, f"install it into the environment of {sys.executable}")
        return
    version, _, seen = said.stdout.strip().rpartition(" ")
    yield _compare_torch(version, setup.torch if setup is not None else "")
    if gpus and int(seen) < gpus:
        yield Check(
            "devices",
            CheckResult.FAILED,
            f"{gpus} GPUs, of which torch {version} sees {seen}",
            "install a torch that is built for this machine's driver (`nvidia-smi` names its CUDA)",
        )
        return
    yield Check("devices", CheckResult.PASSED, f"{len(devices)} x {names}")


def _compare_torch(here: str, there: str) -> Check:
    if there and there.partition("+")[0] != here.partition("+")[0]:
        return Check(
            "torch",
            CheckResult.DOUBTFUL,
            f"{here} here, {there} on the service's machine",
            "jobs over several nodes need the same version on all of them",
        )
    return Check("torch", CheckResult.PASSED, here)


def check_box(settings: Settings) -> Check:
    """What is around a job here."""
    _, rights = choose_box(settings, {}, None, discover_devices(settings.devices))
    if rights.level == "none":
        return Check(
            "box",
            CheckResult.DOUBTFUL,
            f"none: {rights.why_none}",
            "jobs run as the service itself, and can read what this node knows; run the worker as root, or allow user "
            "namespaces",
        )
    return Check("box", CheckResult.PASSED, rights.level)


def check_name_lookup(address: str) -> Check:
    """Whether this machine's resolver answers: ranks look up the name of their own address."""
    script = f"import socket; socket.getnameinfo(({address!r}, 0), 0)"
    began = time.monotonic()
    try:
        subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, timeout=4.0, check=False)
    except subprocess.TimeoutExpired:
        return Check(
            "resolver",
            CheckResult.DOUBTFUL,
            f"no answer about {address} in 4 s",
            f"each start of a job waits for it: put `{address} {socket.gethostname()}` into /etc/hosts",
        )
    return Check("resolver", CheckResult.PASSED, f"answers within {max(0.1, time.monotonic() - began):.1f} s")


def other_nodes() -> Check:
    return Check(
        "other nodes",
        CheckResult.UNKNOWN,
        "jobs over several nodes use any free port of their addresses",
        "when all have joined: `shardyard nodes --test` shows which reach each other",
    )


def find_address(host: str, port: int) -> str:
    """This machine's address on the route to the service; nothing is sent. Raises OSError."""
    family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(place)
        return str(probe.getsockname()[0]).partition("%")[0]


def worker_runs(settings: Settings) -> bool:
    """Whether a worker of this node runs on this machine."""
    import fcntl

    lock = settings.state_dir.expanduser() / settings.node / "worker.lock"
    try:
        file = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False
