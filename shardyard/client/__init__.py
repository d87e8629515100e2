"""A client of the service: `Client` blocks, `AsyncClient` awaits; both do the same.

    from shardyard import Client

    with Client() as client:
        job = client.submit("job.json")
        for event in job.follow():
            ...
        print(job.wait().report())

`endpoints` has one function for each route, `operations` what takes more than one request; `transport` carries them
out. `shardyard.contract.responses` and `events` are what the service answers, `report` is the split
report.
Errors are those of `shardyard.errors`.
"""

from shardyard.client.async_client import AsyncClient, AsyncJob
from shardyard.client.client import Client, Job

__all__ = ["AsyncClient", "AsyncJob", "Client", "Job"]
