"""The smallest FastAPI service on Redis that people begin with: `python small_api.py <redis url> <port>`.

One route that stores a job, one that reads it, one that says that Redis answers; uvloop and httptools. It has no
authentication, no scheduler, no limits, no metrics, no logs and no pages.
"""

import sys
import uuid

import redis.asyncio
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel


class SmallJob(BaseModel):
    name: str
    devices: int = 1
    program: dict[str, str] = {}


app = FastAPI()
client = redis.asyncio.Redis.from_url(sys.argv[1], decode_responses=True)


@app.get("/readyz")
async def ready() -> dict[str, bool]:
    return {"ready": bool(await client.ping())}


@app.post("/v1/jobs", status_code=201)
async def submit(job: SmallJob) -> dict[str, str]:
    identity = uuid.uuid4().hex
    await client.hset(identity, mapping={"spec": job.model_dump_json(), "state": "queued"})
    return {"id": identity}


@app.get("/v1/jobs/{identity}")
async def read(identity: str) -> dict[str, str]:
    found = await client.hgetall(identity)
    return {str(key): str(value) for key, value in found.items()}


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[2]), loop="uvloop", http="httptools", log_level="warning")
