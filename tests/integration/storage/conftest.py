"""A real API process with a real Redis, and a node that has an attempt there."""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from jobs import store
from jobs.storage.remote import RemoteStorage
from jobs.storage.service import ServiceStorage
from jobs.store.client import RedisStore
from tests.integration.api.conftest import ADMIN, bearer
from tests.integration.api.system.test_process import api_process, until
from tests.support.samples.job_records import a_spec_body, node_info
from tests.support.servers.redis_server import running_redis

#: No test lives to see a lease or a node expire.
FOR_EVER = "86400"


class StorageBelow:
    """A remote storage seen from a directory of it: the tests of the contract name paths as they like."""

    def __init__(self, remote: RemoteStorage, base: str) -> None:
        self.remote, self.base = remote, base
        self.append_seconds = remote.append_seconds

    def append(self, path: str, offset: int, data: bytes) -> None:
        self.remote.append(f"{self.base}/{path}", offset, data)

    def put(self, path: str, file: Path, digest: str) -> None:
        self.remote.put(f"{self.base}/{path}", file, digest)

    def copy(self, source: str, path: str, size: int, digest: str) -> None:
        self.remote.copy(f"{self.base}/{source}", f"{self.base}/{path}", size, digest)

    def size(self, path: str) -> int | None:
        return self.remote.size(f"{self.base}/{path}")

    def read(self, path: str, offset: int, limit: int) -> bytes:
        return self.remote.read(f"{self.base}/{path}", offset, limit)

    def read_parts(self, path: str, offset: int = 0) -> Iterator[bytes]:
        return self.remote.read_parts(f"{self.base}/{path}", offset)

    def names(self, prefix: str) -> list[str]:
        return [name.removeprefix(f"{self.base}/") for name in self.remote.names(f"{self.base}/{prefix}")]

    def remove(self, prefix: str) -> None:
        self.remote.remove(f"{self.base}/{prefix}")


#: What a test has opened.
_opened: list[ServiceStorage] = []


def open_service(url: str, token: str, authority: Path | None = None, **options: float) -> ServiceStorage:
    """Closed when the test ends."""
    _opened.append(ServiceStorage(url, token, authority, **options))
    return _opened[-1]


@pytest.fixture(autouse=True)
def closed_services() -> Iterator[None]:
    yield
    while _opened:
        _opened.pop().close()


@dataclass(frozen=True)
class ServedNode:
    """A service, the token of a node of it, and the directory of the attempt that the node has."""

    url: str
    token: str
    attempt: str

    def storage(self, url: str = "") -> StorageBelow:
        """The storage of a test's own."""
        return StorageBelow(open_service(url or self.url, self.token), f"{self.attempt}/{uuid.uuid4().hex}")


@pytest.fixture(scope="session")
def served_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedNode]:
    directory = tmp_path_factory.mktemp("served-node")
    lasting = {"LEASE_SECONDS": FOR_EVER, "NODE_SECONDS": FOR_EVER, "JOIN_SECONDS": FOR_EVER}
    with running_redis(directory) as redis, api_process(directory, redis, **lasting) as process:
        control = RedisStore.from_url(redis)
        control.run(store.register_node("host-a", "i", "default", "127.0.0.1", node_info(1), home="state-dir"))
        url = f"http://127.0.0.1:{process.port()}"
        with httpx.Client(base_url=url, headers=bearer(ADMIN), timeout=60) as client:
            body = {"name": "host-a", "scopes": ["node"], "node": "host-a"}
            token = client.post("/v1/tokens", json=body).raise_for_status().json()["token"]
            job = client.post("/v1/jobs", json=a_spec_body()).raise_for_status().json()["id"]
        attempt = store.AttemptId("default", job, 1)
        until(lambda: control.run(store.claim(attempt, "c", "host-a")).granted)
        control.close()
        yield ServedNode(url, token, f"jobs/default/{job}/1")
