"""More jobs that have ended, in the list of Ray's job service: copies of the record of one, as Ray itself keeps it.

    python ray_copies.py GCS_ADDRESS JOB COUNT

Running them takes half a second of both cores each. Run by the Python of the peers; the version of Ray is pinned there.
"""

import asyncio
import sys

from ray._raylet import GcsClient  # type: ignore[import-not-found]
from ray.dashboard.modules.job.common import JobInfoStorageClient  # type: ignore[import-not-found]


async def main(address: str, job: str, count: int) -> None:
    records = JobInfoStorageClient(GcsClient(address=address))
    record = await records.get_info(job)
    for number in range(count):
        await records.put_info(f"raysubmit_{number:016d}", record)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
