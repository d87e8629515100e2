"""One connection that many tasks share, against a real Redis."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from api.connections import connect
from jobs.exchange import Exchange
from tests.integration.redis_server import RedisServer

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

SECONDS = 5.0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def exchange(server: RedisServer, seconds: float = SECONDS) -> AsyncIterator[Exchange]:
    client = connect(server.url)
    made = Exchange(client, seconds)
    try:
        yield made
    finally:
        await made.close()
        await client.aclose()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[RedisServer]:
    made = RedisServer(tmp_path)
    made.start()
    try:
        yield made
    finally:
        made.close()


async def test_many_tasks_have_their_own_answers_over_one_connection(server: RedisServer) -> None:
    async with exchange(server) as shared:
        answers = await asyncio.gather(*(shared.execute("ECHO", f"{i}") for i in range(500)))
        assert answers == [f"{i}".encode() for i in range(500)]
        with server.client() as client:
            assert len([each for each in client.client_list() if each["cmd"] == "echo"]) == 1


async def test_an_error_is_told_to_whoever_asked_and_to_nobody_else(server: RedisServer) -> None:
    async with exchange(server) as shared:
        wrong, right = (
            asyncio.ensure_future(shared.execute("NOSUCH")),
            asyncio.ensure_future(shared.execute("ECHO", "x")),
        )
        assert await right == b"x"
        with pytest.raises(ResponseError, match="unknown command"):
            await wrong


async def test_the_answer_of_one_who_has_left_goes_to_nobody(server: RedisServer) -> None:
    async with exchange(server) as shared:
        await shared.execute("PING")
        leaves = asyncio.create_task(shared.execute("ECHO", "of who left"))
        stays = asyncio.create_task(shared.execute("ECHO", "of who stays"))
        await asyncio.sleep(0)  # both have asked
        leaves.cancel()
        assert await stays == b"of who stays"


async def test_a_connection_that_is_lost_is_replaced_and_the_commands_are_sent_again(server: RedisServer) -> None:
    async with exchange(server) as shared:
        await shared.execute("PING")
        with server.client() as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        answers = await asyncio.gather(*(shared.execute("ECHO", f"{i}") for i in range(20)))
        assert answers == [f"{i}".encode() for i in range(20)]


async def test_a_script_that_the_server_has_forgotten_is_sent_again(server: RedisServer) -> None:
    source, digest = "return ARGV[1]", "098e0f0d1448c0a81dafe820f66d460eb09263da"
    async with exchange(server) as shared:
        assert await shared.script(source, digest, ("one",)) == b"one"
        with server.client() as client:
            client.script_flush()
        assert await shared.script(source, digest, ("two",)) == b"two"


async def test_a_server_that_is_gone_fails_everybody_and_serves_again_when_it_is_back(server: RedisServer) -> None:
    async with exchange(server) as shared:
        await shared.execute("PING")
        server.kill()
        failed = await asyncio.gather(*(shared.execute("PING") for _ in range(50)), return_exceptions=True)
        assert all(isinstance(each, RedisConnectionError) for each in failed)
        server.start()
        assert await shared.execute("ECHO", "back") == b"back"


async def test_a_server_that_says_nothing_is_waited_for_so_long_and_no_longer(server: RedisServer) -> None:
    async with exchange(server, seconds=0.2) as shared:
        await shared.execute("PING")
        server.signal(19)  # SIGSTOP
        try:
            async with asyncio.timeout(SECONDS):
                with pytest.raises(RedisTimeoutError):
                    await shared.execute("PING")
        finally:
            server.signal(18)
        assert await shared.execute("ECHO", "awake") == b"awake"
