"""Bundles: zip files of users' code. What one may hold, and how it is unpacked.

A bundle is known by its contents: `sha256:<hex>` of the zip's bytes. Whoever uploads one is not trusted, so the API
unpacks it into nothing before it is kept (`inspect`), and a worker checks everything again when it unpacks it into a
directory (`extract`). Rules on the zip itself are in `jobs.bundles.strict_zip`, those on names and sizes in
`shardyard.contract.bundle_rules`.
"""

import difflib
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from jobs.bundles import strict_zip
from jobs.bundles.strict_zip import ZipEntry
from shardyard.contract.bundle_rules import DEFAULT_LIMITS, BundleLimits, BundleNames, may_be_installed, quote_path
from shardyard.contract.errors import BadBundle


@dataclass(frozen=True, slots=True)
class UnpackedFile:
    path: str
    bytes: int


@dataclass(frozen=True, slots=True)
class BundleListing:
    """Files of a bundle, sorted by path (directories are not listed), and what they unpack to together."""

    files: tuple[UnpackedFile, ...]
    bytes: int


def inspect_bundle(path: Path, limits: BundleLimits = DEFAULT_LIMITS) -> BundleListing:
    """Check a zip against every rule, by unpacking all of it into nothing. Takes seconds at worst: not for a loop.

    Raises:
        BadBundle: it breaks a rule; the message names the entry.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        entries = _checked_entries(file, limits)
        for entry in entries:
            for _ in strict_zip.unpack_entry(file, entry):
                pass
    return _make_listing(entries)


def list_contents(path: Path) -> BundleListing:
    """What a bundle holds, by its headers: for one that was inspected when it came.

    Raises:
        BadBundle: it breaks a rule all the same.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        return _make_listing(_checked_entries(file, DEFAULT_LIMITS))


def extract_bundle(path: Path, into: Path, bundle: str, limits: BundleLimits = DEFAULT_LIMITS) -> BundleListing:
    """Unpack a bundle into a new directory `into`, after checking again that it is `bundle` and keeps every rule.

    Files get the modes that the umask leaves of rw (rwx for those that were executable), and no other attribute. After
    an error the caller throws `into` away.

    Raises:
        BadBundle: these are not the bytes of `bundle`, or they break a rule.
        OSError: `path` cannot be read, `into` exists, or the disk is full.
    """
    with path.open("rb") as file:
        found = "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()
        if found != bundle:
            raise BadBundle(f"the stored bytes of {bundle} are those of {found}; upload the bundle again")
        entries = _checked_entries(file, limits)
        into.mkdir()
        base = Path(os.path.realpath(into))
        for entry in entries:
            _extract_one(file, entry, base)
    return _make_listing(entries)


def _checked_entries(file: BinaryIO, limits: BundleLimits) -> list[ZipEntry]:
    """Entries whose names and announced sizes keep the limits; none can unpack to more than it announces."""
    packed = os.fstat(file.fileno()).st_size
    entries = strict_zip.read_entries(file, packed, limits.entries)
    names = BundleNames(limits.entries)
    for entry in entries:
        names.add(entry.name)
        if entry.size > limits.file:
            raise BadBundle(f"{quote_path(entry.name)} has {entry.size} bytes; a file may have {limits.file}")
    total = sum(entry.size for entry in entries)
    if total > limits.total:
        raise BadBundle(f"the zip unpacks to {total} bytes; a bundle may have {limits.total}")
    if total > max(limits.unpressed, limits.ratio * packed):
        raise BadBundle(f"the zip unpacks to {total // packed} times its size; {limits.ratio} times is the most")
    if all(entry.is_directory for entry in entries):
        raise BadBundle("the zip holds no file")
    return entries


def _make_listing(entries: list[ZipEntry]) -> BundleListing:
    files = [UnpackedFile(entry.name, entry.size) for entry in entries if not entry.is_directory]
    files.sort(key=lambda file: file.path)
    return BundleListing(files=tuple(files), bytes=sum(file.bytes for file in files))


def _extract_one(file: BinaryIO, entry: ZipEntry, base: Path) -> None:
    target = base / entry.name
    if not Path(os.path.realpath(target)).is_relative_to(base):
        raise BadBundle(f"{quote_path(entry.name)} leads out of the bundle")
    if entry.is_directory:
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    mode = 0o777 if entry.executable else 0o666
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with open(descriptor, "wb") as out:
        for chunk in strict_zip.unpack_entry(file, entry):
            out.write(chunk)


# -- entry points ----------------------------------------------------------------------------------

#: Files that an entry point is compared with when it is not there, and how much of their names.
MAX_COMPARED = 500
MAX_COMPARED_LENGTH = 80


def wrong_entrypoint(entrypoint: str, found: BundleListing, workdir: str = "") -> str:
    """What is wrong with an entry point, a path or a module seen from `workdir`, for a bundle of these files; empty
    when nothing is, or when it may be a module of the environment that the job runs in."""
    inside = f"{workdir}/" if workdir else ""
    paths = [file.path.removeprefix(inside) for file in found.files if file.path.startswith(inside)]
    if inside and not paths:
        return f"the bundle has no directory {quote_path(workdir)}, which is program.workdir"
    if not {*entrypoint_candidates(entrypoint)}.isdisjoint(paths):
        return ""
    if not entrypoint.endswith(".py") and may_be_installed(entrypoint, {path.partition("/")[0] for path in paths}):
        return ""
    scripts = [path for path in paths if path.endswith(".py")][:MAX_COMPARED]
    if not scripts:
        return "the bundle has no .py file; pack the directory that has the program"
    close = _closest_path(entrypoint.rpartition("/")[2], scripts)
    hint = f"did you mean {quote_path(close)}?" if close else f"it has {', '.join(map(quote_path, scripts[:5]))}"
    what = "file" if entrypoint.endswith(".py") else "module"
    return f"the bundle has no {what} {quote_path(entrypoint)}; {hint}"


def entrypoint_candidates(entrypoint: str) -> tuple[str, ...]:
    """Files that an entry point may stand for; `python -m package` runs the package's `__main__`."""
    if entrypoint.endswith(".py"):
        return (entrypoint,)
    path = entrypoint.replace(".", "/")
    return (f"{path}.py", f"{path}/__main__.py")


def _closest_path(name: str, paths: list[str]) -> str | None:
    """The path whose last part is most like a name."""
    by_name = {path.rpartition("/")[2][:MAX_COMPARED_LENGTH]: path for path in reversed(paths)}
    close = difflib.get_close_matches(name[:MAX_COMPARED_LENGTH], by_name, n=1)
    return by_name[close[0]] if close else None
