"""Which service is backed up: that of `shardyard up`, running or stopped, or one with a Redis of its own."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import redis

from jobs.store.client import CONNECT_SECONDS, RedisStore
from jobs.store.connections.sentinels import is_sentinel_url, replicas_of, sentinel_client
from shardyard.contract.errors import InvalidRequest
from shardyard.service import embedded_redis
from shardyard.service.backup.manifest import STORAGE, TOKEN
from shardyard.service.processes import ProcessGroup, sole_owner
from shardyard.service.secret_key_file import find_key_file

#: One call reads all keys.
REPLY_SECONDS = 300.0
#: Of a data directory: held while a service, or a restore, uses it.
LOCK = "up.lock"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class BackupSource:
    """The service to back up. `token` is the file with its admin token, if that is known; `key_file` that with the keys
    of its secrets, which is not backed up. `fetch` brings its files to `storage`, where they are elsewhere."""

    control: RedisStore
    storage: Path
    token: Path | None
    key_file: Path
    fetch: Callable[[Path], None] = lambda _: None


@contextlib.contextmanager
def embedded_service(data_dir: Path, say: Say) -> Iterator[BackupSource]:
    """The service of `shardyard up` on `data_dir`, running or stopped. A stopped one has its control Redis started for
    as long as this is entered.

    Raises:
        InvalidRequest: there is none.
        ServiceError: its Redis does not start.
    """
    if not (data_dir / "control" / "appendonlydir").is_dir():
        raise InvalidRequest(f"{data_dir} is not the data directory of a service; name it with --data-dir")
    server = embedded_redis.prepare_redis("control", data_dir, embedded_redis.find_server())
    with contextlib.ExitStack() as stack:
        if not embedded_redis.redis_answers(server):
            stack.enter_context(sole_owner(data_dir / LOCK))
            stack.enter_context(running_redis(server, say))
        control = stack.enter_context(connect_control(server.url))
        yield BackupSource(control, data_dir / STORAGE, data_dir / TOKEN, find_key_file(data_dir))


@contextlib.contextmanager
def connect_control(url: str) -> Iterator[RedisStore]:
    """A service with its own control Redis."""
    deadlines = {"socket_timeout": REPLY_SECONDS, "socket_connect_timeout": CONNECT_SECONDS}
    connect = sentinel_client if is_sentinel_url(url) else redis.Redis.from_url
    control = RedisStore(connect(url, **deadlines), replicas_of(url))
    try:
        yield control
    finally:
        control.close()


@contextlib.contextmanager
def running_redis(server: embedded_redis.EmbeddedRedis, say: Say) -> Iterator[None]:
    """The embedded control Redis, started for as long as this is entered. Raises ServiceError."""
    processes = ProcessGroup(say=say)
    processes.start(server.service)
    try:
        embedded_redis.wait_until_it_answers(server)
        yield
    finally:
        processes.stop(server.name)
