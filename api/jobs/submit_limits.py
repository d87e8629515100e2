"""What the service has room for: a job must fit before it is stored."""

from dataclasses import dataclass

from api.data.disk_guard import DiskGuard
from api.data.memory_guard import MemoryGuard
from jobs.model.spec import JobSpec
from shardyard.contract.errors import FieldError, InvalidSpec


@dataclass(frozen=True, slots=True)
class SubmitLimits:
    """`max_artifact_bytes` is the most that a job may ask for in `limits.artifact_bytes`."""

    disks: DiskGuard
    memory: MemoryGuard
    max_artifact_bytes: int

    async def check(self, wanted: JobSpec) -> None:
        """Raises:
        StorageLow, StoreFull: the service's disks, or the control Redis, have no room for more jobs now.
        Unavailable: the control Redis does not answer.
        InvalidSpec: the job asks for more room than the operator allows.
        """
        self.disks.require_room()
        await self.memory.require_room()
        asked, most = wanted.limits.artifact_bytes, self.max_artifact_bytes
        if asked is not None and asked > most:
            message = f"{asked:,} asked; this service keeps at most {most:,} bytes for a job"
            raise InvalidSpec("the job asks to keep too much", fields=(FieldError("limits.artifact_bytes", message),))
