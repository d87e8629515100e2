"""The event stream that one writes first: `xread_api.py REDIS_URL`. Each client has its own XREAD; prints its port.

Nothing but FastAPI, uvicorn with uvloop and httptools, and redis-py with as many connections as it wants. Entries hold
their events as JSON already (fields `event` and `data`), so that nothing is encoded here.
"""

import sys
from collections.abc import AsyncIterator
from typing import Any

import redis.asyncio
import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

STREAM = "events"
BLOCK_MS = 5000


def create(url: str) -> FastAPI:
    app = FastAPI()
    client = redis.asyncio.Redis.from_url(url, max_connections=10_000)

    @app.get("/events")
    async def events() -> StreamingResponse:
        return StreamingResponse(follow(client), media_type="text/event-stream")

    return app


async def follow(client: "redis.asyncio.Redis") -> AsyncIterator[bytes]:
    last: Any = "0"
    yield b": hello\n\n"
    while True:
        found: Any = await client.xread({STREAM: last}, block=BLOCK_MS, count=100)
        for _, entries in found:
            for last, fields in entries:
                yield b"event: %s\nid: %s\ndata: %s\n\n" % (fields[b"event"], last, fields[b"data"])


class Server(uvicorn.Server):
    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        await super().startup()
        print(self.servers[0].sockets[0].getsockname()[1], flush=True)


if __name__ == "__main__":
    app = create(sys.argv[1])
    Server(uvicorn.Config(app, port=0, loop="uvloop", http="httptools", log_level="critical", access_log=False)).run()
