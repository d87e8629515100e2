"""Redis servers of the benchmark's own, as `shardyard up` starts them, for figures of a part of the service."""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis

from jobs.store.function_library import function_library
from shardyard.service import embedded_redis

END_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Server:
    url: str
    pid: int


@contextmanager
def redis_server(name: str = "control") -> Iterator[Server]:
    """An empty server with the product's configuration: `control` syncs every write and has the store's functions,
    `telemetry` syncs once a second.

    Raises:
        ServiceError: there is no program to start, or it does not answer.
    """
    with tempfile.TemporaryDirectory(prefix="shardyard-bench-") as directory, ExitStack() as stack:
        (Path(directory) / "log").mkdir()  # where the server writes its own
        server = embedded_redis.prepare_redis(name, Path(directory), embedded_redis.find_server())
        log = stack.enter_context((Path(directory) / "redis.log").open("wb"))
        process = subprocess.Popen(server.service.argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            embedded_redis.wait_until_it_answers(server)
            if name == "control":
                with redis.Redis.from_url(server.url) as client:
                    client.execute_command(*function_library().load_command)
            yield Server(server.url, process.pid)
        finally:
            process.kill()  # what it holds goes with its directory
            process.wait(END_SECONDS)
