from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from fastapi import FastAPI

from api.app import create_app
from jobs import store
from jobs.model.records import BoxRights
from jobs.model.settings import Settings
from jobs.model.state import StateReason
from jobs.store.accounts import tokens
from jobs.store.accounts.tokens import Scope
from jobs.store.client import RedisStore
from tests.support.samples.job_records import a_spec_body, node_info
from tests.support.servers.redis_server import running_redis

ADMIN = "the-admin-token-of-these-tests"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_redis(tmp_path_factory.mktemp("api-redis")) as url:
        yield url


@pytest.fixture
def settings(server_url: str, tmp_path: Path) -> Settings:
    with redis.Redis.from_url(server_url) as client:
        client.flushall()
    return Settings.model_validate(
        {
            "redis_url": server_url,
            "storage": tmp_path,
            "admin_token": ADMIN,
            "state_dir": tmp_path,
            "reconcile_seconds": 0.1,
        }
    )


class Api:
    """An application that runs in this process, a client of it, and the store behind it."""

    def __init__(self, app: FastAPI, client: httpx.AsyncClient, control: RedisStore, storage: Path) -> None:
        self.app = app
        self.client = client
        self.control = control
        self.storage = storage

    def node(
        self,
        devices: int = 4,
        node: str = "host-a",
        pool: str = "default",
        box: BoxRights | None = None,
        *,
        address: str = "127.0.0.1",
        reach: str = "",
    ) -> None:
        info = node_info(devices, box)
        self.control.run(store.register_node(node, "i", pool, address, info, home="state-dir", reach=reach))

    def token(self, *scopes: Scope, tenant: str = "default", expires: int | None = None) -> dict[str, str]:
        """Headers of a new token."""
        text, record = tokens.issue_token(tenant, scopes, "a test", created=1, expires=expires)
        self.control.run(tokens.put_token(record))
        return bearer(text)

    async def submit(self, devices: int = 1, headers: dict[str, str] | None = None, **fields: Any) -> str:
        answer = await self.client.post("/v1/jobs", json=a_spec_body(devices) | fields, headers=headers)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    async def get(self, path: str, **request: Any) -> Any:
        answer = await self.client.get(path, **request)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def run_to_end(self, job: str, attempt: int = 1, loss: float = 0.5) -> None:
        """Claim, finish and release an attempt, as its node would."""
        name = store.AttemptId("default", job, attempt)
        assert self.control.run(store.claim(name, "c", "host-a")).granted
        assert self.control.run(store.record_milestone(name, "c", "running"))
        assert self.control.run(
            store.finish(name, "c", StateReason.COMPLETED, "", result={"loss": loss, "metrics": {}})
        )
        assert self.control.run(store.release("host-a", name, {})) > 0


def bearer(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[Api]:
    app = create_app(settings)
    control = RedisStore.from_url(settings.control_url())
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=bearer(ADMIN)) as client,
    ):
        yield Api(app, client, control, settings.storage)
    control.close()


@pytest.fixture
async def api(settings: Settings) -> AsyncIterator[Api]:
    async with running(settings) as api:
        yield api
