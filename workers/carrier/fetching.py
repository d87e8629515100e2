"""Fetches what an attempt needs to its node: its bundle, and what scripts have saved in earlier attempts."""

from contextlib import suppress
from pathlib import Path

from jobs.files import paths
from jobs.storage.remote import DigestMismatch, RemoteStorage, UnknownFile, check_path, digest_file
from jobs.store import AttemptId
from shardyard.script.checkpoint import CHECKPOINTS, MANIFESTS
from workers.carrier.checkpoints import Progress, fetch_checked

#: What bundles may take on this node beside those in use; the ones that were used last are kept.
MAX_BUNDLE_BYTES = 4 * 1024**3
#: Earlier attempts whose checkpoints are looked for.
MAX_ATTEMPTS = 20


def fetch_bundle(remote: RemoteStorage, root: Path, tenant: str, bundle: str, nonce: str = "") -> None:
    """Have a bundle below the local root, if the remote has it. `nonce`: that of its file, where it is known; else the
    file is looked for in a list, which may be long, and behind.

    Raises:
        RemoteError: the remote does not answer, or what it has is not this bundle.
        OSError: there is no room here.
    """
    if paths.find_bundle(root, tenant, bundle) is not None:
        return
    directory, wanted = paths.bundle_dir(root, tenant), bundle.removeprefix("sha256:")
    prefix = str(directory.relative_to(root))
    if nonce:
        with suppress(UnknownFile):
            _fetch_bundle_file(remote, f"{prefix}/{wanted}.{nonce}.zip", directory, wanted)
            return
    found = [path for path in remote.names(prefix) if path.startswith(f"{prefix}/{wanted}.") and path.endswith(".zip")]
    if found:
        _fetch_bundle_file(remote, found[0], directory, wanted)


def _fetch_bundle_file(remote: RemoteStorage, path: str, directory: Path, wanted: str) -> None:
    """Raises as `fetch_bundle` does, and UnknownFile."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = directory / f".{Path(path).name}.fetched"
    fetch_checked(remote, path, draft)
    if digest_file(draft) != wanted:
        draft.unlink()
        raise DigestMismatch(f"{path} is not the bundle that its name says")
    draft.rename(directory / check_path(path).name)


def trim_bundles(root: Path, most: int = MAX_BUNDLE_BYTES) -> None:
    """Remove the bundles that were used longest ago, where there are more than `most` bytes of them."""
    found = [(file.stat(), file) for file in paths.bundles_dir(root).glob("*/*.zip")]
    total = sum(status.st_size for status, _ in found)
    for status, file in sorted(found, key=lambda one: max(one[0].st_atime, one[0].st_mtime)):
        if total <= most:
            return
        file.unlink(missing_ok=True)
        total -= status.st_size


def fetch_script_checkpoints(
    remote: RemoteStorage, root: Path, apart: Path, attempt: AttemptId, read: Progress = lambda _: None
) -> Path:
    """Find what the newest earlier attempt with checkpoints of a script has saved. Returns the root below which it is:
    the local one, or `apart`, to which it was fetched. What programs have left below the local one is not written to,
    since it may be links.

    Raises:
        RemoteError: the remote does not answer.
        OSError: there is no room here.
    """
    for number in range(attempt.number - 1, max(0, attempt.number - 1 - MAX_ATTEMPTS), -1):
        artifacts = paths.artifacts_dir(paths.attempt_dir(root, attempt.tenant, attempt.job, number))
        if artifacts.exists():
            return root
        prefix = str(artifacts.relative_to(root))
        manifests = remote.names(f"{prefix}/{MANIFESTS}")
        for path in [*(remote.names(f"{prefix}/{CHECKPOINTS}") if manifests else ()), *manifests]:
            into = apart / check_path(path)
            into.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fetch_checked(remote, path, into, read)
        if manifests:
            return apart
    return root
