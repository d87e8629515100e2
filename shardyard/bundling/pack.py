"""Packing a directory of code into a bundle: which files, and the zip that holds them.

`select_files` walks the directory and decides; `write_bundle` makes the zip. The same files make the same bytes,
whenever and wherever they are packed, so a bundle that the service knows is not sent again.

What is packed, first match wins:

    1. never: version control, caches, virtual environments (`NEVER`, `*.pyc`)
    2. left out: what --exclude names
    3. packed: the entry point itself, and what --include names
    4. left out: what .gitignore files leave out, here and above, as far as the git checkout reaches
    5. packed: everything else

Links to files and directories inside the directory are packed as what they lead to; links that lead
out of it are left out and reported, like pipes and sockets.
"""

import hashlib
import os
import re
import stat
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from io import BufferedRandom
from pathlib import Path
from typing import Literal

from pathspec import GitIgnoreSpec

from shardyard import formatting
from shardyard.bundling.gitignore import IgnoreRules, is_ignored, read_rules_above, read_rules_in
from shardyard.bundling.never_sent import NeverSent
from shardyard.contract.bundle_rules import DEFAULT_LIMITS, MAX_PARTS, BundleLimits, BundleNames
from shardyard.contract.errors import BadBundle, FieldError, InvalidRequest
from shardyard.contract.plain_text import escape_unsafe

#: Names that are never packed, wherever they are.
NEVER = frozenset(
    {".git", ".hg", ".svn", "__pycache__", ".ipynb_checkpoints", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
    | {".tox", ".nox", ".DS_Store"}
)
#: A directory that holds one of these is a Python environment.
ENVIRONMENT_MARKS = ("pyvenv.cfg", "conda-meta")
#: How many problems one message lists.
MAX_PROBLEMS = 20
#: An ignored directory is one line here, but a million ignored files beside each other are as many.
MAX_LEFT_OUT = 1000
#: How many of the largest files and directories a message names.
SHOWN_LARGEST = 5
CHUNK = 1024 * 1024
#: The earliest time that a zip can say: times of files must not change a bundle.
_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to pack: its path in the bundle, its location, and its size when it was selected."""

    path: str
    file: str
    bytes: int
    executable: bool


@dataclass(frozen=True, slots=True)
class LeftOutPath:
    """A path that is not packed, and the reason as text. A path that ends in "/" is a whole directory."""

    path: str
    why: str


@dataclass(slots=True)
class FileSelection:
    """What goes into a bundle. `directories` are the empty ones, which a script may want to write to."""

    files: list[SourceFile] = field(default_factory=list)
    directories: list[str] = field(default_factory=list)
    left_out: list[LeftOutPath] = field(default_factory=list)  # the first `MAX_LEFT_OUT`

    @property
    def bytes(self) -> int:
        return sum(source.bytes for source in self.files)


@dataclass(frozen=True, slots=True)
class WrittenBundle:
    """A written zip: its id for the service, and its size in bytes."""

    id: str
    bytes: int


def select_files(
    root: Path,
    entry: str = "",
    include: Iterable[str] = (),
    exclude: Iterable[str] = (),
    limits: BundleLimits = DEFAULT_LIMITS,
    private: Iterable[Path] = (),
) -> FileSelection:
    """Select the files of `root` to pack. `entry` is the entry point's path below it, or "" for a module.

    Patterns are those of .gitignore, relative to `root`. Credentials are never packed, nor what is at a `private` path:
    the files and directories of services on this machine.

    Raises:
        InvalidRequest: a pattern is not usable, files cannot be read, or there is too much; the
            message says what to leave out.
    """
    never = NeverSent(private)
    if why := never.why_directory(os.path.realpath(root)):
        raise InvalidRequest(f"{root} is not sent: {why}")
    wanted, unwanted = _WantedFiles(entry, tuple(include)), _parse_patterns("--exclude", exclude)
    walk = _DirectoryWalk(root, wanted, unwanted, limits, never)
    walk.run()
    return walk.chosen


def write_bundle(
    selection: FileSelection, file: BufferedRandom, advanced: Callable[[int], None] = lambda count: None
) -> WrittenBundle:
    """Write the zip of a selection to an empty file. `advanced` hears how many bytes were read each time.

    Raises:
        InvalidRequest: a file cannot be read any more.
        OSError: the zip cannot be written.
    """
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as zipped:
        sources = {source.path: source for source in selection.files}
        for path in sorted([*sources, *selection.directories]):
            if path in sources:
                _write_file(zipped, sources[path], advanced)
            else:
                zipped.writestr(_zip_header(path, stat.S_IFDIR | 0o755), b"")
    file.seek(0)
    digest = hashlib.file_digest(file, "sha256").hexdigest()
    size = file.tell()
    file.seek(0)
    return WrittenBundle(f"sha256:{digest}", size)


# -- choosing --------------------------------------------------------------------------------------

#: How something is packed: by the rules; only what is asked for by name; all of it; nothing of it.
_Mode = Literal["ruled", "ignored", "whole", "out"]


class _WantedFiles:
    """Paths that are packed even if .gitignore names them: the entry point, and what --include names."""

    def __init__(self, entry: str, include: tuple[str, ...]) -> None:
        self._entry = entry
        self._patterns = _parse_patterns("--include", include)
        self._include = include

    def has(self, path: str) -> bool:
        """`path` ends in "/" when it is a directory's."""
        return path == self._entry or self._patterns.check_file(path).include is True

    def may_be_below(self, path: str) -> bool:
        """Whether a directory may contain such paths; `path` ends in "/"."""
        return self._entry.startswith(path) or any(_may_match_below(pattern, path) for pattern in self._include)


class _DirectoryWalk:
    """One walk over a directory, top down, in the order of names."""

    def __init__(
        self, root: Path, wanted: _WantedFiles, exclude: GitIgnoreSpec, limits: BundleLimits, never: NeverSent
    ) -> None:
        self._root = os.path.realpath(root)
        self._never = never
        self._wanted = wanted
        self._exclude = exclude
        self._limits = limits
        self._names = BundleNames(limits.entries)
        self._directories: set[str] = set()  # those that the zip makes, by saying so or as a part of a name
        self._problems: list[FieldError] = []
        self.chosen = FileSelection()

    def run(self) -> None:
        self._walk_directory(self._root, "", "ruled", read_rules_above(self._root), (self._root,))
        if self._problems:
            raise InvalidRequest(
                "the directory cannot be packed as it is; fix this, or leave it out with --exclude",
                fields=tuple(self._problems[:MAX_PROBLEMS]),
            )
        _check_size(self.chosen, self._limits)

    def _walk_directory(
        self, directory: str, path: str, mode: _Mode, rules: tuple[IgnoreRules, ...], way: tuple[str, ...]
    ) -> None:
        """Pack what is below `path`, which is "" for the root, else ends in "/".

        `way` has the real paths from the root to here, so that links cannot lead in circles.
        """
        if len(way) > MAX_PARTS:
            return self._add_problem(path, f"is more than {MAX_PARTS} directories deep")
        try:
            with os.scandir(directory) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError as error:
            return self._add_problem(path, f"cannot be listed: {error.strerror}")
        if path and not entries and mode != "ignored" and self._reserve_name(path):
            self.chosen.directories.append(path)
        rules += tuple(read_rules_in(directory))
        for entry in entries:
            self._entry(entry, path + entry.name, mode, rules, way)
        return None

    def _entry(
        self, entry: "os.DirEntry[str]", path: str, mode: _Mode, rules: tuple[IgnoreRules, ...], way: tuple[str, ...]
    ) -> None:
        if _is_never(entry.name):
            return
        is_directory = _is_directory(entry)
        path += "/" if is_directory else ""
        mode, why = self._decide_mode(entry, path, mode, rules)
        if why:
            self._leave_out(path, why)
        if mode == "out" or (mode == "ignored" and not (is_directory and self._wanted.may_be_below(path))):
            return
        if entry.is_symlink() and (why := _why_not_followed(entry.path, way)):
            self._leave_out(path, why)
        elif is_directory:
            self._walk_directory(entry.path, path, mode, rules, (*way, os.path.realpath(entry.path)))
        else:
            self._add_file(entry, path)

    def _decide_mode(
        self, entry: "os.DirEntry[str]", path: str, mode: _Mode, rules: tuple[IgnoreRules, ...]
    ) -> tuple[_Mode, str]:
        """How an entry is packed; or why not, unless a directory above it was left out already."""
        if path.endswith("/") and _is_environment(entry.path):
            return "out", "a Python environment"
        if path.endswith("/") and (why := self._never.why_directory(entry.path)):
            return "out", why
        if self._exclude.match_file(path):
            return "out", "--exclude"
        if self._wanted.has(path):
            return "whole", ""
        if mode == "ruled" and is_ignored(rules, os.path.join(self._root, path)):
            return "ignored", ".gitignore"
        return mode, ""

    def _add_file(self, entry: "os.DirEntry[str]", path: str) -> None:
        try:
            status = entry.stat()
        except OSError as error:
            return self._add_problem(path, f"cannot be read: {error.strerror}")
        if not stat.S_ISREG(status.st_mode):
            return self._leave_out(path, "not a regular file")
        if why := self._never.why_file(entry.path, status):
            return self._leave_out(path, why)
        if not os.access(entry.path, os.R_OK, effective_ids=True):
            return self._add_problem(path, "cannot be read: Permission denied")
        if status.st_size > self._limits.file:
            most = formatting.byte_count(self._limits.file)
            return self._add_problem(
                path,
                f"has {formatting.byte_count(status.st_size)}; a file of a bundle may have {most}. "
                "Let the script read it from a path that the worker sees",
            )
        if self._reserve_name(path):
            executable = bool(status.st_mode & stat.S_IXUSR)
            self.chosen.files.append(SourceFile(path, entry.path, status.st_size, executable))
        return None

    def _reserve_name(self, path: str) -> bool:
        """Check that the bundle may have one more entry with this name."""
        above = path.rpartition("/")[0]
        while above and above not in self._directories:
            self._directories.add(above)
            above = above.rpartition("/")[0]
        if len(self.chosen.files) + len(self._directories) + (not path.endswith("/")) > self._limits.entries:
            raise InvalidRequest(
                f"more than {self._limits.entries:,} files and directories to pack; leave data out with --exclude, "
                "and let the script read it from a path that the worker sees",
                fields=tuple(
                    FieldError(escape_unsafe(path), formatting.count_noun(count, "file"))
                    for path, count in fullest_entries(self.chosen)
                ),
            )
        try:
            self._names.add(path)
        except BadBundle as error:
            self._add_problem(path, f"a bundle cannot hold this name: {error.message}")
            return False
        return True

    def _leave_out(self, path: str, why: str) -> None:
        if len(self.chosen.left_out) < MAX_LEFT_OUT:
            self.chosen.left_out.append(LeftOutPath(path, why))

    def _add_problem(self, path: str, problem: str) -> None:
        self._problems.append(FieldError(escape_unsafe(path) or "./", problem))


def _parse_patterns(option: str, lines: Iterable[str]) -> GitIgnoreSpec:
    try:
        return GitIgnoreSpec.from_lines(lines)
    except ValueError as error:
        raise InvalidRequest(f"{option} takes patterns as .gitignore has them: {error}") from None


def _may_match_below(pattern: str, directory: str) -> bool:
    """Whether a pattern could match something in a directory, judged by the beginning of the pattern."""
    anchored = pattern.rstrip("/").lstrip("/")
    if not pattern.startswith("/") and "/" not in anchored:
        return True
    literal = re.split(r"[*?\[\\]", anchored, maxsplit=1)[0]
    return literal.startswith(directory) or (literal != anchored and directory.startswith(literal))


def _is_never(name: str) -> bool:
    return name in NEVER or name.endswith((".pyc", ".pyo"))


def _is_directory(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link in a circle, or through a directory that is closed to us
        return False


def _is_environment(directory: str) -> bool:
    return any(os.path.exists(os.path.join(directory, mark)) for mark in ENVIRONMENT_MARKS)


def _why_not_followed(link: str, way: tuple[str, ...]) -> str:
    """Why a link cannot be followed; empty when it can. `way[0]` is the root."""
    real = os.path.realpath(link)
    if not os.path.exists(real):
        return "a broken link"
    if os.path.commonpath((way[0], real)) != way[0]:
        return f"a link out of the directory, to {escape_unsafe(real)}"
    if real in way:
        return "a link to a directory that it is in"
    return ""


# -- writing ---------------------------------------------------------------------------------------


def _write_file(zipped: zipfile.ZipFile, source: SourceFile, advanced: Callable[[int], None]) -> None:
    try:
        file = open(source.file, "rb")  # noqa: SIM115  # closed below; an error of the zip must not read as one of it
    except OSError as error:
        raise InvalidRequest(f"{escape_unsafe(source.path)} cannot be read: {error.strerror}") from error
    mode = stat.S_IFREG | (0o755 if source.executable else 0o644)
    with file, zipped.open(_zip_header(source.path, mode), "w") as packed:
        while chunk := file.read(CHUNK):
            packed.write(chunk)
            advanced(len(chunk))


def _zip_header(path: str, mode: int) -> zipfile.ZipInfo:
    """A header without the time, the system and the user that made the zip."""
    header = zipfile.ZipInfo(path, _EPOCH)
    header.create_system = 3  # modes are those of Unix
    header.external_attr = mode << 16
    header.compress_type = zipfile.ZIP_STORED if path.endswith("/") else zipfile.ZIP_DEFLATED
    return header


# -- what is large ---------------------------------------------------------------------------------


def largest_entries(selection: FileSelection) -> list[tuple[str, int]]:
    """The files and directories at the top with the most bytes, as (path, bytes)."""
    sizes: Counter[str] = Counter()
    for source in selection.files:
        sizes[_top_entry(source.path)] += source.bytes
    return sizes.most_common(SHOWN_LARGEST)


def _check_size(selection: FileSelection, limits: BundleLimits) -> None:
    if selection.bytes > limits.total:
        raise InvalidRequest(
            f"{formatting.byte_count(selection.bytes)} to pack; a bundle may have "
            f"{formatting.byte_count(limits.total)}. "
            "Leave data out with --exclude, and let the script read it from a path that the worker sees",
            fields=tuple(
                FieldError(escape_unsafe(path), formatting.byte_count(size))
                for path, size in largest_entries(selection)
            ),
        )


def fullest_entries(selection: FileSelection) -> list[tuple[str, int]]:
    """The files and directories at the top with the most files, as (path, files)."""
    return Counter(_top_entry(source.path) for source in selection.files).most_common(SHOWN_LARGEST)


def _top_entry(path: str) -> str:
    first, slash, _ = path.partition("/")
    return first + slash
