"""Requests made up from the OpenAPI document, valid ones and others: none may find a fault of the service.

`SHARDYARD_FUZZ_EXAMPLES` sets how many each operation gets; what is made up is the same every time
unless `SHARDYARD_FUZZ_SEED` says otherwise.
"""

import hashlib
import os
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
import uuid_utils
from fastapi.routing import APIRoute
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode, checks
from schemathesis.python import asgi
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi import checks as conformance

import api.events.job_feed
import api.events.service
import api.events.service_feed
import api.jobs.service as job_service
from api.app import ROUTERS, create_app
from api.system.service import READY_SECONDS
from jobs import store
from jobs.files import paths
from jobs.model.settings import Settings
from jobs.model.state import StateReason
from jobs.store.client import RedisStore
from jobs.support import secret_keys
from shardyard.contract.report import Report, encode_report
from tests.integration.api.conftest import ADMIN, bearer
from tests.support.samples.hostile_zips import Part, zipped
from tests.support.samples.job_records import a_spec, node_info
from tests.support.servers.redis_server import running_redis

pytestmark = pytest.mark.integration

EXAMPLES = int(os.environ.get("SHARDYARD_FUZZ_EXAMPLES", "5"))
CODE = zipped(Part("train.py"))
BUNDLE = f"sha256:{hashlib.sha256(CODE).hexdigest()}"
SEED = int(os.environ.get("SHARDYARD_FUZZ_SEED", "1"))
OPERATIONS = sorted(
    (method.lower(), route.path.replace("{path:path}", "{path}"))
    for router in ROUTERS
    for route in router.routes
    if isinstance(route, APIRoute) and route.include_in_schema
    for method in route.methods or ()
)
CHECKS = [
    checks.not_a_server_error,
    conformance.status_code_conformance,
    conformance.content_type_conformance,
    conformance.response_headers_conformance,
    conformance.response_schema_conformance,
]

schemathesis.serializer.alias("application/zip", "application/octet-stream")


class Target:
    """The store behind the application, so that made-up requests meet jobs that are there."""

    def __init__(self, url: str, storage: Path) -> None:
        self._control = RedisStore.from_url(url)
        self._storage = storage
        self._control.run(store.register_node("host-a", "i", "default", "127.0.0.1", node_info(500), home="state-dir"))

    def job(self, number: int) -> str:
        """One of the newest jobs, or a new one."""
        known: Any = self._control.client.zrange("sy:jobs:default", -4, -1)
        if number % 2 == 0 or not known:
            return self._new_job()
        return str(known[number % len(known)], "ascii")

    def bundle(self) -> str:
        """A bundle that is there."""
        nonce = "0" * 32
        file = paths.bundle_file(self._storage, "default", BUNDLE, nonce)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(CODE)
        self._control.run(
            store.put_bundle("default", BUNDLE, nonce, size=len(CODE), files=1, unpacked=15, quota=1 << 30)
        )
        return BUNDLE

    def _new_job(self) -> str:
        job = str(uuid_utils.uuid7())
        self._control.run(store.submit("default", job, a_spec(2)))
        directory = paths.attempt_dir(self._storage, "default", job, 1)
        paths.artifacts_dir(directory).mkdir(parents=True)
        paths.report_file(directory).write_bytes(encode_report(a_report()))
        self.take_work()
        self._control.run(store.dispatch(60))
        if self._control.run(store.read_job("default", job)).record.attempt:
            self._run_to_end(store.AttemptId("default", job, 1))
        return job

    def _run_to_end(self, attempt: store.AttemptId) -> None:
        if self._control.run(store.claim(attempt, "c", "host-a")).granted:
            self._control.run(
                store.finish(attempt, "c", StateReason.COMPLETED, "", result={"loss": 0.5, "metrics": {}})
            )
            self._control.run(store.release("host-a", attempt, {}))

    def take_work(self) -> None:
        self._control.run(store.undrain_node("host-a"))

    def close(self) -> None:
        self._control.close()


def a_report() -> Report:
    from tests.support.samples.record_streams import aggregator, rank_stream

    told = aggregator(a_spec(2), 100)
    for record in rank_stream(a_spec(2), 0, 100):
        told.add_record(0, record)
    return told.make_report(final=True)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Target, Settings]]:
    with running_redis(tmp_path_factory.mktemp("fuzz-redis")) as url:
        storage = tmp_path_factory.mktemp("fuzz-storage")
        fields = {
            "redis_url": url,
            "storage": storage,
            "state_dir": storage,
            "admin_token": ADMIN,
            "reconcile_seconds": 0.1,
            "node_seconds": 86_400,  # nobody beats for the node
        }
        secret_keys.create_key_file(storage / "secret-key")
        found = Target(url, storage)
        yield found, Settings.model_validate(fields | {"allowed_hosts": asgi.HOST})
        found.close()


@pytest.fixture(scope="module")
def described(target: tuple[Target, Settings]) -> Iterator[BaseSchema]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job_service, "MAX_WAIT_SECONDS", 0.02)
        patch.setattr(api.events.service, "MAX_STREAM_SECONDS", 0.02)
        for feed in (api.events.job_feed, api.events.service_feed):  # whose ticks end a stream that has nothing to tell
            patch.setattr(feed, "TICK_SECONDS", 0.02)
        yield schemathesis.openapi.from_asgi("/openapi.json", create_app(target[1]))
        asgi.shutdown_lifespans()


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize(("method", "path"), OPERATIONS, ids=str)
def test_no_made_up_request_finds_a_fault(
    method: str, path: str, mode: GenerationMode, described: BaseSchema, target: tuple[Target, Settings]
) -> None:
    operation = described[path][method.upper()]
    if path == "/readyz":  # made-up requests have drained the node, and an answer may be this old
        target[0].take_work()
        time.sleep(READY_SECONDS)

    @seed(SEED)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case: Any) -> None:
        if "job" in case.path_parameters:
            number = zlib.crc32(repr((case.path_parameters, case.query, case.body)).encode())
            case.path_parameters["job"] = target[0].job(number) if number % 8 else case.path_parameters["job"]
            if "path" in case.path_parameters and number % 3 == 0:
                case.path_parameters["path"] = "report.json"
            if "against" in case.query and number % 3 == 0:
                case.query["against"] = case.path_parameters["job"]
        if "bundle" in case.path_parameters and len(case.path_parameters["bundle"]) % 2:
            case.path_parameters["bundle"] = target[0].bundle()
        case.call_and_validate(headers=bearer(ADMIN), checks=CHECKS)

    try:
        send()
    except Unsatisfiable:
        assert mode is GenerationMode.NEGATIVE, "every operation has valid requests"
