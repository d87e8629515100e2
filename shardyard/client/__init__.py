"""A client of the service: `Client` blocks, `AsyncClient` awaits; both do the same.

    from shardyard import Client

    with Client() as client:
        job = client.submit("job.json")
        for event in job.follow():
            ...
        print(job.wait().report())

`calls` has one function per route, `flows` what takes more than one request, `wire` the transports
that carry them out, `models` and `events` what the service says, `report` the split report.
Errors are those of `shardyard.errors`.
"""

from shardyard.client.async_client import AsyncClient, AsyncJob
from shardyard.client.client import Client, Job

__all__ = ["AsyncClient", "AsyncJob", "Client", "Job"]
