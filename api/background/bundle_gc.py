"""Removes bundles that no job needs any more, and leftovers of interrupted uploads.

The record goes first, atomically and only while no job needs it, and then the file that it named; an upload of the
same bytes that comes in between has a file of its own. So any number of processes may do this at once.
"""

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from api.data.service_files import MOUNTED, ServiceFiles
from jobs import store
from jobs.files import paths
from jobs.store import StoredBundle
from jobs.store.client import RedisStore

log = structlog.get_logger(__name__)

CHUNK = 100
#: A file without a record is left alone for as long as an upload may be between its last byte and its record.
STRAY_SECONDS = 3600.0
#: While a disk is low, bundles that no job needs are kept for this long at most.
LOW_DISK_SECONDS = 60.0

_FILE = re.compile(r"([0-9a-f]{64})\.([0-9a-f]{32})\.zip")
_DRAFT = re.compile(r"\.[0-9a-f]{32}\.part")


def sweep_bundles(control: RedisStore, storage: Path, idle_seconds: float, files: ServiceFiles = MOUNTED) -> None:
    """Remove bundles that were idle for so long, and strays.

    Raises:
        Unavailable: the control Redis does not answer.
        OSError, StorageUnavailable: a file cannot be removed.
    """
    while removed := control.run(store.collect_bundles(idle_seconds, CHUNK)):
        for bundle in removed:
            files.remove(paths.bundle_file(storage, bundle.tenant, bundle.id, bundle.nonce))
            log.info("bundle_removed", bundle=bundle.id, tenant=bundle.tenant)
    for draft in paths.bundles_dir(storage).glob("*/.*.part"):
        if _DRAFT.fullmatch(draft.name) and _file_age(draft, time.time()) > STRAY_SECONDS:
            draft.unlink(missing_ok=True)
    old = files.list_older(paths.bundles_dir(storage), time.time() - STRAY_SECONDS)
    stored = [bundle for bundle in map(_parse_bundle_file, old) if bundle is not None]
    for start in range(0, len(stored), CHUNK):
        _remove_strays(control, storage, stored[start : start + CHUNK], files)


def sweep_on_low_disk(
    control: RedisStore,
    storage: Path,
    idle_seconds: float,
    is_low: Callable[[], bool],
    files: ServiceFiles = MOUNTED,
) -> None:
    """The same on a disk that is low, where nothing waits that long: deleting jobs must make room.

    Raises: as `sweep_bundles`.
    """
    if is_low():
        sweep_bundles(control, storage, min(idle_seconds, LOW_DISK_SECONDS), files)


def _remove_strays(control: RedisStore, storage: Path, stored: Sequence[StoredBundle], files: ServiceFiles) -> None:
    kept = control.run(store.are_current(stored))
    for bundle, is_kept in zip(stored, kept, strict=True):
        if not is_kept:
            files.remove(paths.bundle_file(storage, bundle.tenant, bundle.id, bundle.nonce))
            log.info("stray_bundle_removed", bundle=bundle.id, tenant=bundle.tenant)


def _file_age(file: Path, now: float) -> float:
    """Seconds since it was written; 0 for one that was removed meanwhile, or cannot be looked at."""
    try:
        return now - file.lstat().st_mtime
    except OSError:
        return 0.0


def _parse_bundle_file(file: Path) -> StoredBundle | None:
    match = _FILE.fullmatch(file.name)
    return StoredBundle(file.parent.name, f"sha256:{match[1]}", match[2]) if match else None
