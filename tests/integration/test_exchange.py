"""One connection that many tasks share, against a real Redis."""

import asyncio
import random
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from api.data.redis_pool import connect
from jobs.store.multiplexer import Exchange, _Line
from tests.integration.redis_server import RedisServer

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

SECONDS = 30.0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def exchange(server: RedisServer, seconds: float = SECONDS) -> AbstractAsyncContextManager[Exchange]:
    return exchange_at(server.url, seconds)


@asynccontextmanager
async def exchange_at(url: str, seconds: float = SECONDS) -> AsyncIterator[Exchange]:
    client = connect(url)
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


@pytest.mark.parametrize("bytes_of_replies", [900, 901, 1_000, 5_000])
async def test_a_connection_that_is_lost_amid_replies_gives_nobody_the_reply_of_another(
    server: RedisServer, bytes_of_replies: int
) -> None:
    async with cut_after(server, [bytes_of_replies, bytes_of_replies + 1]) as (url, made), exchange_at(url) as shared:
        words = [f"{i}" * (1 + i % 40) for i in range(300)]
        async with asyncio.timeout(SECONDS):
            answers = await asyncio.gather(*(shared.execute("ECHO", word) for word in words))
        assert answers == [word.encode() for word in words]
        assert len(made) == 3


async def test_a_large_reply_and_a_slow_script_hold_up_the_others_and_confuse_nobody(server: RedisServer) -> None:
    large = b"x" * 5_000_000
    slow = """
    local ends = os.clock() + 0.5
    repeat until os.clock() > ends
    return 'slow'
    """
    async with exchange(server) as shared:
        await shared.execute("SET", "large", large)
        asked = [
            shared.execute(*command)
            for command in [("ECHO", "1"), ("EVAL", slow, 0), ("ECHO", "2"), ("GET", "large"), ("ECHO", "3")]
        ]
        assert await asyncio.gather(*asked) == [b"1", b"slow", b"2", large, b"3"]


async def test_those_who_leave_while_it_is_connecting_and_while_they_wait_shift_no_replies(server: RedisServer) -> None:
    chance = random.Random(3)
    async with exchange(server) as shared:
        for _ in range(30):
            asked = {f"{i}": asyncio.create_task(shared.execute("ECHO", f"{i}")) for i in range(100)}
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
            for word in chance.sample(sorted(asked), 40):
                asked.pop(word).cancel()
            if chance.random() < 0.3:
                with server.client() as client:
                    client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            for word, answer in asked.items():
                assert await answer == word.encode()


async def test_a_connection_that_is_lost_before_anybody_has_used_it_is_replaced(server: RedisServer) -> None:
    class Unlucky(Exchange):
        async def _connect(self) -> "_Line":
            line = await super()._connect()
            if not unlucky:
                unlucky.append(line)
                line.connection_lost(None)
            return line

    unlucky: list[_Line] = []
    client = connect(server.url)
    shared = Unlucky(client, SECONDS)
    try:
        async with asyncio.timeout(SECONDS):
            assert await asyncio.gather(*(shared.execute("ECHO", f"{i}") for i in range(3))) == [b"0", b"1", b"2"]
        assert len(unlucky) == 1
    finally:
        await shared.close()
        await client.aclose()


async def test_a_reply_that_nobody_asked_for_ends_the_connection_and_reaches_nobody(server: RedisServer) -> None:
    async with exchange(server) as shared:
        await shared.execute("PING")
        line = shared._line
        assert line is not None
        line.data_received(b"+surplus\r\n+more\r\n")
        assert line.lost
        assert await shared.execute("ECHO", "mine") == b"mine"
        line.data_received(b"+late\r\n")
        assert await shared.execute("ECHO", "mine") == b"mine"
