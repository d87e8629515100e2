"""Which entries of the storage directory belong in a back-up.

Not what is still being written, and nothing of an attempt that Redis did not know of: after a restore the same number
is given again, and its files must not be there. So it is with checkpoints; of those that Redis did not know of yet the
newest may be all that is left, when older ones have gone meanwhile.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jobs.files import checkpoints, paths
from jobs.files.identity import NONCE_FILE

#: Names on the way to an entry of an attempt: `jobs`, tenant, job, attempt, and its own. What lies deeper goes with it.
ENTRY_DEPTH: Final = 5
_JOBS: Final = paths.jobs_dir(Path()).name
_CHECKPOINTS: Final = paths.checkpoints_dir(Path(), "", "").name
#: Of an attempt: what only its processes need.
_UNFINISHED: Final = frozenset(
    part(Path()).name for part in (paths.drafts_dir, paths.resume_dir, paths.parts_dir, paths.user_file_draft)
)
#: Of an attempt: what a program may fill as it likes.
_OF_PROGRAMS: Final = frozenset(part(Path()).name for part in (paths.artifacts_dir, paths.user_files_dir))


@dataclass(frozen=True, slots=True)
class StorageSelection:
    """`attempts`: how many each job has had, by `<tenant>/<job>`, for the jobs that Redis knew of."""

    storage: Path
    attempts: Mapping[str, int]

    def has(self, names: Sequence[str]) -> bool:
        """Whether an entry belongs to the back-up, if the directory that it lies in does. `names` lead to it."""
        name = names[-1]
        if names[0] != _JOBS:
            return not name.startswith(".") or list(names) == [NONCE_FILE]
        match len(names):
            case 3:
                return self._has_job(names[1], name)
            case 4:
                return self._has_attempt(names, name)
            case 5:
                return self._has_entry(names, name)
            case _:
                return True

    def _has_job(self, tenant: str, job: str) -> bool:
        return f"{tenant}/{job}" in self.attempts or os.path.isfile(paths.archive_file(self.storage, tenant, job))

    def _has_attempt(self, names: Sequence[str], name: str) -> bool:
        known = self._known_attempts(names)
        return known is None or not name.isdecimal() or int(name) <= known

    def _has_entry(self, names: Sequence[str], name: str) -> bool:
        known = self._known_attempts(names)
        if known is None:
            return True
        if names[3] == _CHECKPOINTS:
            saved = checkpoints.parse_name(name)
            return saved is not None and saved[1] <= known
        return name not in _UNFINISHED

    def _known_attempts(self, names: Sequence[str]) -> int | None:
        """None for an archived job, which has no attempt that anybody does not know of."""
        return self.attempts.get(f"{names[1]}/{names[2]}")


def is_of_program(names: Sequence[str]) -> bool:
    """Whether a directory, which `names` lead to, is one that a program fills, or lies in one."""
    return len(names) >= ENTRY_DEPTH and names[0] == _JOBS and names[ENTRY_DEPTH - 1] in _OF_PROGRAMS
