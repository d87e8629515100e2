"""What a careful FastAPI tutorial arrives at: the service's model of a spec, one Redis pipeline, no authentication.

    python -m benchmarks.programs.bare_api unix://...    prints its port when it listens

uvicorn runs it as it runs the service: uvloop, httptools, no access log.
"""

import socket
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import uvicorn
from fastapi import FastAPI, Header, HTTPException, Response
from redis.asyncio import Redis

from jobs.model.spec import JobSpec

KEY_SECONDS = 7 * 86_400
#: As the service answers it: what a status has for somebody who polls.
BLOB_BYTES = 2_000


def create_app(url: str) -> FastAPI:
    client: Redis = Redis.from_url(url)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await client.set("blob", b'{"state":"' + b"x" * BLOB_BYTES + b'"}')
        yield
        await client.aclose()

    app = FastAPI(lifespan=lifespan)

    @app.post("/jobs", status_code=201)
    async def submit(spec: JobSpec, idempotency_key: Annotated[str, Header()]) -> dict[str, Any]:
        """What `jobs/store/lua/jobs/submit.lua` asks and writes, as one transaction."""
        job, devices = str(uuid.uuid4()), spec.resources.devices
        async with client.pipeline(transaction=True) as pipe:
            pipe.get(f"idem:{idempotency_key}")
            pipe.sismember("pools", spec.pool)
            pipe.zrevrange(f"pool:{spec.pool}:size", 0, 0, withscores=True)
            pipe.incr("seq")
            pipe.set(f"spec:{job}", spec.model_dump_json())
            pipe.hset(f"job:{job}", mapping=_fields(spec))
            pipe.zadd("jobs", {job: 0})
            pipe.zadd("jobs:queued", {job: 0})
            pipe.xadd("changes", {"job": job}, maxlen=10_000, approximate=True)
            pipe.zadd(f"queue:{spec.pool}:{devices}", {job: (100 - spec.priority) * 2**45})
            pipe.sadd(f"queue:{spec.pool}", devices)
            pipe.publish("wake", "")
            pipe.set(f"idem:{idempotency_key}", job, ex=KEY_SECONDS, nx=True)
            await pipe.execute()
        return {"id": job, "state": "queued"}

    @app.get("/blob")
    async def blob() -> Response:
        """One Redis GET of an answer that lies there ready."""
        found = await client.get("blob")
        if found is None:
            raise HTTPException(404)
        return Response(found, media_type="application/json")

    return app


def _fields(spec: JobSpec) -> dict[Any, Any]:
    return {
        "pool": spec.pool,
        "devices": spec.resources.devices,
        "priority": spec.priority,
        "name": spec.name or "",
        "strategy": spec.parallelism.strategy,
        "max_retries": spec.limits.max_retries,
        "retries": 0,
        "losses": 0,
        "attempt": 0,
        "state": "queued",
        "reason": "waiting_for_devices",
        "message": "",
        "version": 1,
    }


def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    config = uvicorn.Config(create_app(sys.argv[1]), loop="uvloop", http="httptools", access_log=False, log_config=None)
    print(listener.getsockname()[1], flush=True)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
