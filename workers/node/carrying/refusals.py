"""Files of ended attempts that the storage refuses for good: how long they are offered, and what the job's status says
when they are left out.

A storage that takes nothing at all of a node has the wrong credentials, or is the wrong one. An operator can mend that,
so nothing is left out as long as it refuses even a file that is there to try it (`takes_files`).
"""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from time import monotonic

import msgspec

from jobs.files import paths, user_files
from jobs.files.user_files import UserFilesRecord
from jobs.storage.remote import RemoteError, RemoteStorage, RemoteUnavailable, digest_file
from jobs.store import AttemptId
from shardyard.contract.plain_text import escape_unsafe
from shardyard.contract.responses import LeftOutFiles
from workers.carrier.local_files import whole_trees
from workers.supervisor.ending.pending_end import PendingEnd

#: A file is left out that was refused so often, over so many seconds.
REFUSED_TIMES, REFUSED_SECONDS = 3, 60.0
#: How much of what the storage has said is shown, and of a path.
MAX_SAID, MAX_PATH = 200, 120
_CHECK_BYTES = 32
#: What a client of S3 writes before the answer of the server.
_STATUS = " status code: "
_TAG = re.compile(r"<[/?]?[A-Za-z][^<>]*>")


class RefusalCount:
    """Counts, for one thread, what each attempt has had refused in one round after the other."""

    def __init__(self) -> None:
        self._refused: dict[AttemptId, dict[str, tuple[int, float]]] = {}  # by path: how often, and since when

    def count(self, attempt: AttemptId, refused: Iterable[str]) -> bool:
        """Count one round. Returns whether all that was refused in it has been often, and for long, enough."""
        before, now = self._refused.get(attempt, {}), monotonic()
        counted = {path: before.get(path, (0, now)) for path in refused}
        self._refused[attempt] = {path: (times + 1, since) for path, (times, since) in counted.items()}
        return bool(counted) and all(
            times + 1 >= REFUSED_TIMES and now - since >= REFUSED_SECONDS for times, since in counted.values()
        )

    def forget(self, attempt: AttemptId) -> None:
        self._refused.pop(attempt, None)


def is_refusal(error: Exception) -> bool:
    """Whether the storage has said that it does not take something, rather than nothing, or that it cannot now."""
    return isinstance(error, RemoteError) and not isinstance(error, RemoteUnavailable)


def takes_files(remote: RemoteStorage, node: str, scratch: Path) -> bool:
    """Whether the storage takes a small file of this node's, which `scratch` is for.

    Raises:
        RemoteUnavailable: it does not answer.
        OSError: the disk refuses.
    """
    path = paths.node_check(node)
    scratch.write_bytes(os.urandom(_CHECK_BYTES))
    try:
        remote.put(path, scratch, digest_file(scratch))
        remote.remove(path)
    except RemoteUnavailable:
        raise
    except RemoteError:
        return False
    finally:
        scratch.unlink()
    return True


def shorten_said(path: str, said: str) -> str:
    """What the storage has said of a path: its answer without the path, the request, and the tags of XML."""
    answer = said.removeprefix(f"{path}: ").rpartition(_STATUS)[2]
    return escape_unsafe(" ".join(_TAG.sub(" ", answer).split()))[:MAX_SAID]


def describe_refused(names: Sequence[str], said: str) -> str:
    """What was left out, as one sentence. Files have their paths in the directory of the attempt."""
    shown = escape_unsafe(names[0])[:MAX_PATH]
    if len(names) == 1:
        return f"{shown} was not kept: the storage refuses it ({said})"
    return f"{len(names):,} files were not kept, one of them {shown}: the storage refuses them ({said})"


def note_end(end: PendingEnd, note: str) -> PendingEnd:
    """The end of an attempt that says of what was left out, too; more than once is as good as once."""
    if note in end.message:
        return end
    return msgspec.structs.replace(end, message=f"{end.message}; {note}" if end.message else note)


def record_refused(attempt: Path, names: Sequence[str], said: str) -> None:
    """Say in the record of the attempt's files which of the program's own were left out. Raises OSError."""
    trees = tuple(f"{tree.name}/" for tree in whole_trees(attempt))
    found = {name: (attempt / name).lstat() for name in names if name.startswith(trees) and (attempt / name).exists()}
    if not found:
        return
    left_out = LeftOutFiles(
        reason="refused",
        message=describe_refused(list(found), said),
        files=len(found),
        bytes=sum(status.st_size for status in found.values()),
        newest=escape_unsafe(max(found, key=lambda name: found[name].st_mtime)),
        largest=escape_unsafe(max(found, key=lambda name: found[name].st_size)),
    )
    record = user_files.read_record(attempt) or UserFilesRecord(files=0, bytes=0, left_out=[])
    others = [one for one in record.left_out if one.reason != left_out.reason]
    user_files.write_record(attempt, msgspec.structs.replace(record, left_out=[*others, left_out]))
