import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from api.data.redis_pool import connect

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_a_connection_that_uvloop_finds_closed_is_tried_again_and_then_counts_as_lost() -> None:
    client = connect("redis://127.0.0.1:1")
    tries: list[int] = []

    async def use_a_closed_connection() -> None:
        tries.append(1)
        raise RuntimeError("unable to perform operation on <TCPTransport closed=True>; the handler is closed")

    async def disconnect(*_: object) -> None:
        pass

    retry = client.connection_pool.connection_kwargs["retry"]
    with pytest.raises(RedisConnectionError, match="the handler is closed"):
        await retry.call_with_retry(use_a_closed_connection, disconnect)
    assert len(tries) == 3
    await client.aclose()
