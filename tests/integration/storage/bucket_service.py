"""A real API process whose files are in a bucket behind a proxy that can fail, and attempts that carry theirs there."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from benchmarks.harness.s3 import variables_of
from jobs import store
from jobs.storage.objects import ObjectStorage
from jobs.store.client import RedisStore, connect
from tests.integration.api.conftest import ADMIN, bearer
from tests.integration.api.streams import Attempt
from tests.integration.api.system.test_process import Process, api_process, until
from tests.integration.storage.conftest import FOR_EVER
from tests.support.samples.job_records import a_spec_body, node_info
from tests.support.servers.redis_server import running_redis
from tests.support.servers.s3_proxy import S3Proxy, s3_proxy
from tests.support.servers.s3_server import MOTO, s3_bucket
from workers.carrier.attempt_carrier import AttemptCarrier
from workers.carrier.journal import CarryJournal

URL = "s3://jobs/shardyard"
LASTING = {"LEASE_SECONDS": FOR_EVER, "NODE_SECONDS": FOR_EVER, "JOIN_SECONDS": FOR_EVER}


class CarriedAttempt(Attempt):
    """An attempt of a node that carries: `carry` does at once what its carrier does by and by."""

    def begin_carrying(self, remote: ObjectStorage, directory: Path) -> None:
        self.journal = CarryJournal.of(directory / "state", self.id)
        self.carrier = AttemptCarrier(remote, (directory / "node").resolve(), self.id, self.journal)

    def carry(self, *, finished: bool = False) -> None:
        self.carrier.carry_once(finished=finished)

    def write(self, name: str, body: bytes) -> None:
        file = self.directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(body)


@dataclass
class BucketService:
    """`api` is the process, `client` asks it."""

    directory: Path
    redis: str
    proxy: S3Proxy
    remote: ObjectStorage
    control: RedisStore
    stack: ExitStack
    api: Process = field(init=False, repr=False)
    client: httpx.Client = field(init=False, repr=False)

    def start(self, name: str = "api", **settings: str) -> None:
        """Start an API, and have `client` ask that."""
        self.api, self.client = self.stack.enter_context(self.another(name, **settings))

    @contextmanager
    def another(self, name: str, **settings: str) -> Iterator[tuple[Process, httpx.Client]]:
        """An API beside others, with a state directory of its own."""
        directory = self.directory / name
        directory.mkdir(exist_ok=True)
        with api_process(directory, self.redis, **(LASTING | {"STORAGE": URL} | settings)) as process:
            url = f"http://127.0.0.1:{process.port()}"
            with httpx.Client(base_url=url, headers=bearer(ADMIN), timeout=120) as client:
                until(lambda: client.get("/healthz").status_code == 200)
                yield process, client

    def attempt(self) -> CarriedAttempt:
        until(lambda: self.client.get("/readyz").status_code == 200)
        job = self.client.post("/v1/jobs", json=a_spec_body()).raise_for_status().json()["id"]
        until(lambda: self.control.run(store.read_job("default", job)).record.state == "starting")
        attempt = CarriedAttempt(self.control, self.redis, self.directory / "node", job)
        attempt.begin_carrying(self.remote, self.directory)
        attempt.up()
        return attempt

    def finished(self, *lines: str) -> CarriedAttempt:
        """An attempt that has ended, and is in the bucket."""
        attempt = self.attempt()
        attempt.print(*lines)
        attempt.points(0.5, 0.25)
        attempt.report(final=True, job_id=attempt.job, patterns=[])
        attempt.write("artifacts/weights", b"weights" * 1000)
        attempt.write("files/notes.txt", b"notes")
        attempt.logs.close()
        attempt.metrics.close()
        attempt.shipper.close(60)
        attempt.carry(finished=True)
        attempt.finish()
        return attempt

    def forget_telemetry(self) -> None:
        """As if the telemetry Redis had lost everything about attempts."""
        client = connect(self.redis)
        keys = [*client.scan_iter("sy:log:*"), *client.scan_iter("sy:metrics:*"), *client.scan_iter("sy:report:*")]
        if keys:
            client.delete(*keys)
        client.close()

    def forget_copies(self) -> None:
        """As if the API's host were new."""
        for copies in self.directory.glob("*/state/.bucket/*/*/files/jobs"):
            shutil.rmtree(copies)

    def lines(self, job: str, **query: str) -> list[str]:
        answer = self.client.get(f"/v1/jobs/{job}/logs", params={"limit": "10000"} | query)
        assert answer.status_code == 200, answer.text
        return [line["text"] for line in answer.json()["lines"]]


@contextmanager
def bucket_service(directory: Path, s3: str = MOTO) -> Iterator[BucketService]:
    with (
        ExitStack() as stack,
        running_redis(directory) as redis,
        s3_bucket(directory, "jobs", s3) as server,
        s3_proxy(server) as proxy,
        pytest.MonkeyPatch.context() as environment,
    ):
        for name, value in variables_of(proxy.url).items():
            environment.setenv(name, value)
        control = RedisStore.from_url(redis)
        stack.callback(control.close)
        service = BucketService(directory, redis, proxy, ObjectStorage(URL, retry_seconds=1.0), control, stack)
        service.start()
        control.run(store.register_node("host-a", "i", "default", "127.0.0.1", node_info(64), home="state-dir"))
        yield service
