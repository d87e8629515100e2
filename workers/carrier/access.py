"""What a process needs to reach the remote: credentials, which neither ranks nor the forkserver may know."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.storage.remote import RemoteStorage
from jobs.storage.target import StorageTarget, open_remote

if TYPE_CHECKING:
    from jobs.model.settings import Settings

#: Variables that clients of object stores read.
_PREFIX = "AWS_"


@dataclass(frozen=True, slots=True)
class RemoteAccess:
    """`url`, `token` and `ca` are for the API as the remote, `variables` for an object store."""

    url: str = ""
    token: str = field(default="", repr=False)
    ca: str = ""
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)

    def open(self, target: StorageTarget) -> RemoteStorage | None:
        """The remote of a target; None where it is not carried. The caller's process is no rank's, and forks none.

        Raises:
            ValueError: something is not set, or is wrong.
        """
        os.environ.update(self.variables)
        return open_remote(target, self.url, self.token, Path(self.ca) if self.ca else None)


def access_of(settings: "Settings") -> RemoteAccess:
    """That of a worker, for itself and its supervisors.

    Raises:
        OSError: the file with the token cannot be read.
    """
    variables = {name: value for name, value in os.environ.items() if name.startswith(_PREFIX)}
    ca = "" if settings.ca is None else str(settings.ca.expanduser())
    return RemoteAccess(settings.url, settings.read_node_token(), ca, variables)
