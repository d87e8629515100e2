"""Counts the files that are not kept, and says why in one sentence for each reason."""

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from shardyard.contract.plain_text import escape_unsafe
from shardyard.contract.responses import LeftOutFiles
from shardyard.formatting import byte_count

Reason = Literal["limit", "count", "data_set", "link", "name", "unreadable", "time", "disk", "replaced"]

#: Files that one attempt keeps at most; a list of artifacts shows no more.
MAX_FILES: Final = 10_000
#: Entries of the working directory that are looked at.
MAX_ENTRIES: Final = 100_000
#: Directories that one of them may lie in, and the length of its path in bytes.
MAX_DEPTH: Final = 28
MAX_PATH_BYTES: Final = 1000
#: How much of a path a sentence shows.
MAX_SHOWN: Final = 120

_WHY: Final[dict[Reason, str]] = {
    "limit": "the files of a job may have {limit} together (limits.artifact_bytes)",
    "count": f"an attempt keeps at most {MAX_FILES:,} files, of the first {MAX_ENTRIES:,} that are looked at",
    "data_set": "downloaded data sets are kept only where program.keep asks for it",
    "link": "only plain files are kept, no links and no files with several names",
    "name": f"a path must be printable, of at most {MAX_PATH_BYTES:,} bytes and {MAX_DEPTH} directories",
    "unreadable": "not readable, or not the job's own",
    "time": "there was no time left to copy to the storage directory",
    "disk": "the storage directory has no room",
}


class FoundFile(NamedTuple):
    """A file of the working directory, by its path in there."""

    path: str
    bytes: int
    mtime_ns: int


@dataclass(slots=True)
class _Tally:
    newest: FoundFile
    largest: FoundFile
    files: int = 0
    bytes: int = 0


class LeftOutTally:
    """The files that are not kept, counted by reason."""

    def __init__(self) -> None:
        self._tallies: dict[Reason, _Tally] = {}

    def add(self, reason: Reason, file: FoundFile) -> None:
        tally = self._tallies.setdefault(reason, _Tally(file, file))
        tally.files += 1
        tally.bytes += file.bytes
        tally.newest = max(tally.newest, file, key=lambda one: one.mtime_ns)
        tally.largest = max(tally.largest, file, key=lambda one: one.bytes)

    def summarize(self, limit: int) -> list[LeftOutFiles]:
        """One entry for each reason; `limit` is that of the job, in bytes."""
        return [_summarize(reason, tally, limit) for reason, tally in self._tallies.items()]


def _summarize(reason: Reason, tally: _Tally, limit: int) -> LeftOutFiles:
    newest, largest = escape_unsafe(tally.newest.path), escape_unsafe(tally.largest.path)
    what = f"{newest[:MAX_SHOWN]} ({byte_count(tally.bytes)}) was not kept"
    if tally.files > 1:
        sizes = byte_count(tally.newest.bytes), byte_count(tally.largest.bytes)
        named = f"the newest is {newest[:MAX_SHOWN]} ({sizes[0]})"
        if largest != newest:
            named += f", the largest {largest[:MAX_SHOWN]} ({sizes[1]})"
        what = f"{tally.files:,} files ({byte_count(tally.bytes)}) were not kept, {named}"
    return LeftOutFiles(
        reason=reason,
        message=f"{what}: {_WHY[reason].format(limit=byte_count(limit))}",
        files=tally.files,
        bytes=tally.bytes,
        newest=newest,
        largest=largest,
    )


def replaced_files(files: int, size: int, attempt: int) -> LeftOutFiles:
    """Files that were kept, and removed again for those of a later attempt."""
    what = "1 file" if files == 1 else f"{files:,} files"
    verb = "was" if files == 1 else "were"
    message = f"{what} ({byte_count(size)}) {verb} removed to make room for those of attempt {attempt}"
    return LeftOutFiles(reason="replaced", message=message, files=files, bytes=size, newest="", largest="")
