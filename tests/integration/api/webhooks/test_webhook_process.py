"""Webhooks of a real API process: the command line, and kills of everything between a send and its acknowledgement."""

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import anyio.to_thread
import httpx
import pytest

from jobs.support import secret_keys
from shardyard import cli
from shardyard.webhooks import verify
from tests.integration.api.conftest import ADMIN, bearer
from tests.integration.api.system.test_process import Process, add_node, api_process
from tests.support.samples.job_records import a_spec_body
from tests.support.servers.redis_server import RedisServer, redis_server
from tests.support.servers.webhook_receiver import ReceivedRequest, receiving, status

pytestmark = pytest.mark.integration


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path / "redis", appendonly="yes", appendfsync="always") as server:
        add_node(server)
        yield server


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    secret_keys.create_key_file(tmp_path / "state" / "secret-key")
    return tmp_path


def post(process: Process, path: str, body: object) -> httpx.Response:
    url = f"http://127.0.0.1:{process.port()}{path}"
    return httpx.post(url, json=body, headers=bearer(ADMIN), timeout=30).raise_for_status()


def run(*args: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(list(args))
    return int(str(ended.value.code))


def test_a_webhook_is_added_tested_listed_and_removed_on_the_command_line(
    directory: Path, redis: RedisServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def use(process: Process) -> None:
        async with receiving() as receiver:
            address = f"http://127.0.0.1:{receiver.port}/hook?token=sEcReT"

            async def typed(*args: str) -> tuple[int, str]:
                code = await anyio.to_thread.run_sync(lambda: run("webhook", *args))
                shown = capsys.readouterr()
                return code, shown.out + shown.err

            code, shown = await typed("add", address, "--event", "node.*", "--name", "pager")
            webhook, secret = shown.split()[0], shown.split("secret: ")[1].split()[0]
            assert code == 0
            assert "sEcReT" not in shown
            assert (await typed("test", webhook)) == (0, "it has arrived: the receiver answered 204\n")
            event = verify(secret, receiver.requests[0].headers["shardyard-signature"], receiver.requests[0].body)
            assert event.kind == "webhook.test"
            receiver.answer = status(500)
            code, shown = await typed("test", webhook)
            assert code != 0
            assert "it answered 500" in shown
            code, shown = await typed("list")
            assert [word in shown for word in (webhook, "pager", "node.*", "fails", secret)] == [True] * 4 + [False]
            code, shown = await typed("show", webhook)
            assert "it answered 500" in shown
            code, shown = await typed("deliveries", webhook, "--json")
            rows = json.loads(shown)["deliveries"]
            assert [row["state"] for row in rows] == ["waiting", "delivered"]
            code, shown = await typed("deliveries", webhook)
            assert rows[1]["id"] in shown
            receiver.answer = status(204)
            assert await typed("redeliver", webhook, rows[1]["id"]) == (0, f"sent again: {rows[1]['id']}\n")
            assert (await typed("redeliver", webhook))[0] == 2
            assert (await typed("redeliver", webhook, "--dead"))[1].startswith("sent again: nothing")
            code, shown = await typed("change", webhook, "--off", "--event", "*")
            assert "not active" in shown
            code, shown = await typed("test", webhook)
            assert "not active" in shown
            assert (await typed("remove", webhook)) == (0, f"{webhook} is deleted\n")
            assert (await typed("show", webhook))[0] == 4

    with api_process(directory, redis.url, WEBHOOK_NETWORKS="127.0.0.0/8") as process:
        monkeypatch.setenv("SHARDYARD_URL", f"http://127.0.0.1:{process.port()}")
        monkeypatch.setenv("SHARDYARD_TOKEN", ADMIN)
        asyncio.run(use(process))


@pytest.mark.slow
def test_after_a_kill_of_api_and_redis_a_delivery_comes_again_with_its_id_and_none_is_lost(
    directory: Path, redis: RedisServer
) -> None:
    async def kill_and_count() -> None:
        killed = asyncio.Event()

        async def never(_: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
            await killed.wait()

        async with receiving() as receiver:
            receiver.answer = never
            with api_process(directory, redis.url, WEBHOOK_NETWORKS="127.0.0.0/8") as process:
                post(process, "/v1/webhooks", {"url": f"http://127.0.0.1:{receiver.port}/"})
                job = post(process, "/v1/jobs", a_spec_body(1)).json()["id"]
                await receiver.wait_for(1)
                process.end(signal.SIGKILL)
            redis.kill()
            redis.start()
            receiver.answer = status(204)
            killed.set()
            with api_process(directory, redis.url, WEBHOOK_NETWORKS="127.0.0.0/8"):
                # What the killed process had taken is due again after half a minute.
                await receiver.wait_for(3, seconds=120)
            ids = [event.id for event in receiver.events]
            assert ids[0] == ids[1] != ids[2]
            assert [event.data["state"] for event in receiver.events] == ["queued", "queued", "starting"]
            assert {event.data["id"] for event in receiver.events} == {job}

    asyncio.run(kill_and_count())
