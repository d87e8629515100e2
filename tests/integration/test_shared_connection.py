"""Calls over one connection to the control Redis, while that is there, slow, away, or lost amid a reply."""

import asyncio
import random
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis.exceptions import ResponseError

from api.data.redis_pool import connect
from jobs.store import Call
from jobs.store.client import AsyncRedisStore
from jobs.store.connections import shared_connection
from shardyard.contract.errors import Unavailable
from tests.support.servers.redis_server import RedisServer

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

SECONDS = 30.0
MANY = 100


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def store_at(url: str, reply_seconds: float = SECONDS) -> AsyncIterator[AsyncRedisStore]:
    control = AsyncRedisStore(connect(url, reply_seconds))
    try:
        yield control
    finally:
        await control.close()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[RedisServer]:
    made = RedisServer(tmp_path)
    made.start()
    try:
        yield made
    finally:
        made.close()


def echo(word: object) -> Call[str]:
    return Call(("ECHO", f"{word}"), bytes.decode)


def kill_connections(server: RedisServer) -> None:
    with server.client() as client:
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


async def test_many_tasks_have_their_own_answers_over_one_connection(server: RedisServer) -> None:
    async with store_at(server.url) as control:
        assert await asyncio.gather(*(control.run(echo(i)) for i in range(500))) == [f"{i}" for i in range(500)]
        with server.client() as client:
            assert len(client.client_list()) == 1 + 1  # and this one


async def test_an_error_is_raised_where_the_call_was_made_only(server: RedisServer) -> None:
    async with store_at(server.url) as control:
        wrong, right = control.run(Call(("NOSUCH",), bytes)), control.run(echo("x"))
        found = await asyncio.gather(wrong, right, return_exceptions=True)
        assert isinstance(found[0], ResponseError)
        assert found[1] == "x"


async def test_tasks_that_are_cancelled_shift_no_replies(server: RedisServer) -> None:
    chance = random.Random(3)
    async with store_at(server.url) as control, asyncio.timeout(SECONDS):
        for _ in range(30):
            asked = {f"{i}": asyncio.create_task(control.run(echo(i))) for i in range(MANY)}
            for _ in range(chance.randrange(6)):
                await asyncio.sleep(0)
            for word in chance.sample(sorted(asked), MANY // 2):
                asked.pop(word).cancel()
            if chance.random() < 0.3:
                kill_connections(server)
            for word, answer in asked.items():
                assert await answer == word


async def test_a_connection_that_is_lost_is_replaced_and_the_commands_are_sent_again(server: RedisServer) -> None:
    async with store_at(server.url) as control:
        await asyncio.gather(*(control.run(echo(i)) for i in range(MANY)))
        kill_connections(server)
        assert await asyncio.gather(*(control.run(echo(i)) for i in range(20))) == [f"{i}" for i in range(20)]


async def test_a_server_that_is_gone_fails_all_calls_and_serves_again_when_it_is_back(server: RedisServer) -> None:
    async with store_at(server.url) as control, asyncio.timeout(SECONDS):
        await control.run(echo("x"))
        server.kill()
        failed = await asyncio.gather(*(control.run(echo(i)) for i in range(MANY)), return_exceptions=True)
        assert all(isinstance(each, Unavailable) for each in failed)
        server.start()
        assert await control.run(echo("back")) == "back"


async def test_a_server_that_does_not_answer_is_waited_for_so_long_and_no_call_longer(server: RedisServer) -> None:
    async with store_at(server.url, reply_seconds=0.2) as control:
        await control.run(echo("x"))
        server.signal(signal.SIGSTOP)
        try:
            async with asyncio.timeout(SECONDS):
                failed = await asyncio.gather(*(control.run(echo(i)) for i in range(MANY)), return_exceptions=True)
        finally:
            server.signal(signal.SIGCONT)
        assert all(isinstance(each, Unavailable) for each in failed)
        assert await asyncio.gather(*(control.run(echo(i)) for i in range(MANY))) == [f"{i}" for i in range(MANY)]


@asynccontextmanager
async def cut_after(server: RedisServer, sizes: list[int]) -> AsyncIterator[tuple[str, list[int]]]:
    """The address of something before a server that ends its first connections when so many bytes of replies have come
    through, later ones never; and how many connections there were."""
    made: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left = sizes[len(made)] if len(made) < len(sizes) else sys.maxsize
        made.append(left)
        down, up = await asyncio.open_unix_connection(server.url.removeprefix("unix://"))

        async def ask() -> None:
            while data := await reader.read(1 << 16):
                up.write(data)

        asking = asyncio.create_task(ask())
        while left and (data := await down.read(min(left, 1 << 16))):
            left -= len(data)
            writer.write(data)
        asking.cancel()
        up.close()
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"redis://127.0.0.1:{listener.sockets[0].getsockname()[1]}", made
    finally:
        listener.close()


@pytest.mark.parametrize("bytes_of_replies", [1_000, 1_001, 2_000])
async def test_a_connection_that_is_lost_amid_a_reply_gives_no_task_the_reply_of_another(
    server: RedisServer, bytes_of_replies: int
) -> None:
    words = [f"{i}" * (1 + i % 400) for i in range(300)]
    async with (
        cut_after(server, [bytes_of_replies, bytes_of_replies]) as (url, made),
        store_at(url) as control,
        asyncio.timeout(SECONDS),
    ):
        answers = await asyncio.gather(*(control.run(echo(word)) for word in words))
        assert answers == words
        assert len(made) == 3


async def test_what_waits_when_the_store_is_closed_fails(server: RedisServer) -> None:
    async with store_at(server.url) as control, asyncio.timeout(SECONDS):
        await control.run(echo("x"))
        server.signal(signal.SIGSTOP)
        try:
            waiting = [asyncio.create_task(control.run(echo(i))) for i in range(2)]
            await asyncio.sleep(0)
            await asyncio.sleep(0)  # a batch is on its way
            waiting += [asyncio.create_task(control.run(echo(i))) for i in range(2)]
            await asyncio.sleep(0)
            await control.close()
            failed = await asyncio.gather(*waiting, return_exceptions=True)
        finally:
            server.signal(signal.SIGCONT)
        assert all(isinstance(each, Unavailable) for each in failed)


async def test_more_calls_than_there_is_room_for_are_refused(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_connection, "MAX_WAITING", 10)
    async with store_at(server.url) as control:
        asked = await asyncio.gather(*(control.run(echo(i)) for i in range(11)), return_exceptions=True)
        assert asked[:10] == [f"{i}" for i in range(10)]
        assert isinstance(asked[10], Unavailable)


async def test_calls_are_refused_until_the_store_is_open(server: RedisServer) -> None:
    control = AsyncRedisStore(connect(server.url), is_open=False)
    with pytest.raises(Unavailable, match="not ready yet"):
        await control.run(echo("x"))
    await control.wait_until_open(0.01)
    control.open()
    await control.wait_until_open(SECONDS)
    assert await control.run(echo("x")) == "x"
    await control.close()
