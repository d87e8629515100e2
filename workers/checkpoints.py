"""From the files that ranks have written to a checkpoint that survives a power cut, in threads of its own.

    ranks       write <attempt>/drafts/<step>/, wait at the cut, and train on
    the keeper  takes the files over; writes the state of the report, the metrics and the manifest; syncs all of it;
                renames the directory to its final name, syncs that; points the job to it in the control Redis; and
                removes what is older than the spec keeps

A Redis that is away, or does not answer, delays the pointer, which has a thread to itself, and nothing else:
checkpoints go on being kept, and the newest is pointed to when it is back. A disk that refuses costs this checkpoint,
and a line in the log.

What ranks write is hostile. No directory of theirs is renamed, only files out of it, whose names were checked, into a
directory that is the service's alone; there each must be a plain file of the ranks' account with no other name. From
then on it is the service's, and read-only. A rank that has kept it open can still write to it, and spoils what its own
job may resume from: whoever resumes verifies every byte, when all processes of that rank are dead.
"""

import contextlib
import hashlib
import os
import shutil
import stat
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from time import monotonic
from typing import Final, Protocol

import structlog

from jobs import checkpoints, failpoints, layout, store, trees
from jobs.checkpoints import FORMAT, MANIFEST, METRICS, REPORT, WEIGHTS, File, Manifest, Verified
from jobs.errors import Unavailable
from jobs.spec import Checkpoint, JobSpec, RecipeProgram
from jobs.telemetry import AnyRecord, Note, Saved
from workers import confinement
from workers.confinement import Account
from workers.launch import Launch
from workers.lifeline import FINISH_SECONDS, Lifeline

log = structlog.get_logger(__name__)

#: Of the spec, for notes in the report.
FIELD = "program.checkpoint"
#: How often the pointer is tried again while the control Redis is away.
RETRY_SECONDS = 0.5
#: Checkpoints that may wait while one is brought to the disk; the ranks wait when there are more.
MAX_WAITING = 1
#: Lines for people that may wait.
MAX_LINES = 100
#: How long the end of an attempt waits for the disk.
CLOSE_SECONDS = 60.0
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Place:
    """Directories of one attempt, of which the ranks know those that they need."""

    drafts: Path
    kept: Path  # of the job: all its checkpoints
    attempt: Path


@dataclass(frozen=True, slots=True)
class Cut:
    """What the supervisor knows at a cut. `report` is None where its state could not be had."""

    saves: tuple[Saved, ...]  # of all ranks, in their order
    report: bytes | None
    metrics: tuple[Path, int]  # the attempt's file, and how much of it is before the cut
    at: float  # monotonic

    @property
    def step(self) -> int:
        return self.saves[0].step


@dataclass(frozen=True, slots=True)
class Line:
    """What people should know of a checkpoint."""

    text: str
    failed: bool


@dataclass(frozen=True, slots=True)
class _Missed:
    step: int


@dataclass(frozen=True, slots=True)
class _Kept:
    """A checkpoint that is whole and on disk."""

    manifest: Manifest
    sha256: str
    directory: Path
    at: float  # of the cut


@dataclass(frozen=True, slots=True)
class Saving:
    """The checkpoints of an attempt. `resume` is where its ranks read the one that it begins with."""

    wanted: Checkpoint
    place: Place
    keeper: "Keeper"
    resumed: Verified | None
    resume: Path | None

    @property
    def step(self) -> int:
        """Steps that were done before the attempt began."""
        return self.resumed.manifest.step if self.resumed is not None else 0

    def tell(self, out: "Audience") -> None:
        """Say in the log what has become of checkpoints; what was missed is in the report too."""
        for line in self.keeper.lines():
            out.say(line.text)
            if line.failed:
                out.record(0, Note(FIELD, line.text))


class Audience(Protocol):
    def say(self, text: str) -> None: ...

    def record(self, rank: int, record: AnyRecord) -> None: ...


class Refused(Exception):
    """The ranks left something else than the files that they told of."""


def asked_for(spec: JobSpec) -> Checkpoint | None:
    """What a spec says of checkpoints, if it is of a program that has any."""
    program = spec.program
    return program.checkpoint if isinstance(program, RecipeProgram) and program.mode == "train" else None


def place_of(launch: Launch) -> Place:
    """Where the checkpoints of an attempt go."""
    attempt = launch.attempt
    directory = layout.attempt_dir(launch.storage, attempt.tenant, attempt.job, attempt.number).absolute()
    kept = layout.checkpoints_dir(launch.storage, attempt.tenant, attempt.job).absolute()
    return Place(layout.drafts_dir(directory), kept, directory)


def prepare(launch: Launch, place: Place) -> None:
    """Make the directories, and sweep what earlier attempts have left unfinished.

    Raises:
        OSError: the disk refuses.
    """
    place.kept.mkdir(parents=True, exist_ok=True)
    place.kept.chmod(0o700)  # no rank's account may pass, whatever the modes of the files in it
    sync_way(launch.storage.absolute(), place.kept)
    for name in os.listdir(place.kept):
        if name.startswith("."):
            trees.remove(place.kept / name)
    for number in range(1, launch.attempt.number):
        clear(place.attempt.with_name(str(number)))
    clear(place.attempt)
    place.drafts.mkdir(parents=True, mode=0o700)
    if launch.account is not None:
        confinement.open_way(launch.storage.absolute(), place.attempt)
        confinement.give(place.drafts, launch.account)


def sync_way(storage: Path, directory: Path) -> None:
    """Have the names on disk that lead from the storage to a directory: what is synced in it is to survive a power cut.

    Raises:
        OSError: the disk refuses.
    """
    for above in takewhile(lambda above: above != storage.parent, directory.parents):
        _sync(above)


def clear(attempt: Path) -> None:
    """Remove what only a living attempt needs of its checkpoints. Says in the log what stays."""
    for directory in (layout.drafts_dir(attempt), layout.resume_dir(attempt)):
        if directory.exists():
            try:
                trees.remove(directory)
            except OSError as error:
                log.warning("not_removed", directory=str(directory), error=str(error))


def readable(launch: Launch, place: Place, found: Verified) -> Path:
    """A directory from which the ranks can read a checkpoint: its own, or one with links to the ranks' files in it,
    which their account alone can enter. The files are the service's, and nobody can write to them.

    Raises:
        OSError: the disk refuses.
    """
    if launch.account is None:
        return found.directory
    directory = layout.resume_dir(place.attempt)
    directory.mkdir(mode=0o700)
    for name in found.manifest.files:
        if name not in checkpoints.RESERVED:
            _link(found.directory / name, directory / name)
            (directory / name).chmod(0o444)
    os.chown(directory, launch.account.uid, launch.account.gid)
    directory.chmod(0o500)
    return directory


def publish_weights(place: Place, directory: Path) -> bool:
    """Make the weights of a checkpoint an artifact of the attempt, all of whose processes are dead. False: it has no
    such file, or the attempt left one of its own.

    Raises:
        OSError: the disk refuses.
    """
    source, target = directory / WEIGHTS, layout.artifacts_dir(place.attempt) / WEIGHTS
    if not source.exists():
        return False
    target.parent.mkdir(exist_ok=True)
    try:
        _link(source, target)
    except FileExistsError:
        return False
    return True


def _link(source: Path, target: Path) -> None:
    """Another name for a file, or a copy where the file system has no such names."""
    try:
        os.link(source, target, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError:
        with source.open("rb") as reader, target.open("xb") as writer:
            shutil.copyfileobj(reader, writer, checkpoints.CHUNK_BYTES)


class Keeper:
    """Keeps the checkpoints of one attempt. `cut` is asked for what the supervisor knows when the ranks stand at a cut.

    Used by the supervisor's loop. One thread does what the disk takes time for, and another what Redis does. Lines for
    people wait in `lines`.
    """

    def __init__(
        self,
        launch: Launch,
        place: Place,
        keep: int,
        lifeline: Lifeline,
        cut: Callable[[], tuple[bytes | None, tuple[Path, int]]],
        resumed: Verified | None,
    ) -> None:
        self._launch = launch
        self._place = place
        self._keep = keep
        self._lifeline = lifeline
        self._cut = cut
        self._newest: Path | None = resumed.directory if resumed is not None else None
        self._last = resumed.manifest.step if resumed is not None else 0  # step that was to be kept
        self._waiting: deque[Cut | _Missed] = deque()
        self._pending: deque[_Kept] = deque(maxlen=MAX_LINES)  # on disk, and not pointed to yet
        self._closing = self._all_filed = self._lost = False
        self._changed = threading.Condition()
        #: Steps to one of which the job points: the last that is known, the first of those asked for since then, and
        #: the last of them. Whoever removes checkpoints, or asks for another pointer, holds the lock.
        self._known = resumed.manifest.step if resumed is not None else None
        self._first_asked: int | None = None
        self._asked: int | None = None
        self._files = threading.Lock()
        self._told: int | None = None  # the step of which it was said that Redis is away
        self._lines: deque[Line] = deque(maxlen=MAX_LINES)
        self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=True)
        self._pointing = threading.Thread(target=self._run_pointing, name="pointer", daemon=True)
        self._thread.start()
        self._pointing.start()

    # -- the supervisor's side -----------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        return len(self._waiting) < MAX_WAITING

    def take(self, saves: Sequence[Saved]) -> None:
        self._last = saves[0].step
        try:
            report, metrics = self._cut()
        except OSError as error:
            self.miss(saves[0].step, f"{error.strerror}; training goes on")
            return
        self._put(Cut(tuple(saves), report, metrics, monotonic()))

    def miss(self, step: int, why: str) -> None:
        self._last = step
        self._missed(step, why)
        self._put(_Missed(step))

    def lines(self) -> list[Line]:
        """What people should read in the log, once."""
        return [self._lines.popleft() for _ in range(len(self._lines))]

    @property
    def final(self) -> Path | None:
        """The checkpoint of the last step that was to be kept, which may be the one that the attempt began with; None
        where it is not on disk."""
        newest = self._newest
        named = checkpoints.parse_name(newest.name) if newest is not None else None
        return newest if named is not None and named[0] == self._last else None

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Wait until all that was taken is on disk, and the newest is pointed to. Ranks may be dead by now.

        What takes longer is left: a checkpoint that is not pointed to may be lost, which its job is not.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(seconds)
        if not self._thread.is_alive():
            self._pointing.join(FINISH_SECONDS)  # where Redis is away, it could not be told of the end either
        if self._thread.is_alive() or self._pointing.is_alive():
            log.warning("checkpoint_not_kept", waiting=len(self._waiting), pending=len(self._pending))

    def _missed(self, step: int, why: str) -> None:
        self._lines.append(Line(f"checkpoint of step {step} could not be saved: {why}", failed=True))

    def _say(self, text: str) -> None:
        self._lines.append(Line(text, failed=False))

    def _put(self, item: Cut | _Missed) -> None:
        with self._changed:
            self._waiting.append(item)
            self._changed.notify_all()

    # -- the disk's thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        while (item := self._next_item()) is not None:
            try:
                self._handle(item)
            except Exception:
                log.exception("checkpoints_failed")
        with self._changed:
            self._all_filed = True
            self._changed.notify_all()

    def _next_item(self) -> Cut | _Missed | None:
        """What is to be done next, once there is something; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            return self._waiting.popleft() if self._waiting else None

    def _handle(self, item: Cut | _Missed) -> None:
        draft = self._place.drafts / str(item.step)
        try:
            if isinstance(item, Cut) and not self._lost:
                kept = self._make_durable(item, draft)
                with self._changed:
                    self._newest = kept.directory
                    self._pending.append(kept)
                    self._changed.notify_all()
                self._prune(item.step, committed=False)
        except (OSError, Refused) as error:
            why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
            log.warning("checkpoint_not_saved", step=item.step, error=str(error))
            self._missed(item.step, why if self._closing else f"{why}; training goes on")
        finally:
            _remove(draft)
            _remove(self._part(item.step))

    def _part(self, step: int) -> Path:
        return self._place.kept / f".{checkpoints.directory_name(step, self._launch.attempt.number)}.part"

    def _make_durable(self, cut: Cut, draft: Path) -> _Kept:
        """Put a checkpoint together under its final name, on disk.

        Raises:
            OSError: the disk refuses.
            Refused: the ranks' files are not what they said.
        """
        first, launch = cut.saves[0], self._launch
        part = self._part(cut.step)
        final = self._place.kept / checkpoints.directory_name(cut.step, launch.attempt.number)
        _remove(part)
        part.mkdir(mode=0o700)
        files = _take_over(cut.saves, draft, part, launch.account)
        own = {METRICS: partial(_copy_start, *cut.metrics)}
        if cut.report is not None:
            own[REPORT] = partial(_write, cut.report)
        for name, write in own.items():
            files[name] = write(part / name)
        manifest = Manifest(
            format=FORMAT,
            step=first.step,
            epoch=first.epoch,
            attempt=launch.attempt.number,
            world_size=launch.world_size,
            strategy=launch.strategy,
            files=dict(sorted(files.items())),
        )
        body = manifest.encode()
        _write(body, part / MANIFEST)
        failpoints.reach("checkpoint.written")
        for name in (*own, MANIFEST):
            _sync(part / name)
        _sync(part)
        failpoints.reach("checkpoint.synced")
        if final.exists():  # a directory of that name is none of this run's
            trees.remove(final)
        part.rename(final)
        failpoints.reach("checkpoint.renamed")
        _sync(self._place.kept)
        return _Kept(manifest, hashlib.sha256(body).hexdigest(), final, cut.at)

    def _prune(self, step: int, *, committed: bool) -> None:
        """Remove what is not to be kept; before the commit, of this attempt's own only, since another one may have its
        place by now. What cannot be removed is tried again after the next checkpoint."""
        mine = self._launch.attempt.number
        with self._files:
            pointed = [one for one in (self._known, self._first_asked, self._asked) if one is not None]
            for old in checkpoints.obsolete(checkpoints.kept(self._place.kept), mine, step, self._keep, pointed):
                if committed or old.attempt == mine:
                    _remove(old.directory)

    # -- the pointer's thread ------------------------------------------------------------------------

    def _run_pointing(self) -> None:
        while (kept := self._next_to_point()) is not None:
            try:
                self._point(kept)
            except Exception:
                log.exception("checkpoint_not_committed")
                self._settled(kept)

    def _next_to_point(self) -> _Kept | None:
        """The newest checkpoint that is not pointed to, once there is one; None at the end. It stays on disk."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._all_filed)
        with self._files:
            kept = self._pending[-1] if self._pending else None
            if kept is not None:
                self._asked = kept.manifest.step
                self._first_asked = self._asked if self._first_asked is None else self._first_asked
            return kept

    def _point(self, kept: _Kept) -> None:
        """Commit a checkpoint that is on disk. It stays pending while Redis is away."""
        step, epoch = kept.manifest.step, kept.manifest.epoch
        try:
            said = self._lifeline.as_claimant(
                partial(store.commit_checkpoint, step=step, epoch=epoch, sha256=kept.sha256)
            )
        except Unavailable as error:
            log.warning("control_redis_unavailable", error=str(error), checkpoint=step)
            if self._told != step:
                self._told = step
                self._say(f"checkpoint of step {step} is on disk; it counts when the control Redis answers again")
                self._prune(step, committed=False)
            threading.Event().wait(RETRY_SECONDS)
            return
        if said == "ok":
            failpoints.reach("checkpoint.committed")
            with self._files:
                self._known, self._first_asked, self._asked = step, None, None
            for one in self._settled(kept):
                self._say(f"checkpoint of step {one.manifest.step} saved in {monotonic() - one.at:.2f} s")
            self._prune(step, committed=True)
        else:
            log.warning("checkpoint_not_committed", step=step, why=said)
            self._lost = self._lost or said == "lost"
            self._settled(kept)

    def _settled(self, kept: _Kept) -> list[_Kept]:
        """Those for which nothing more is to be asked: this one, and those before it."""
        with self._changed:
            count = sum(one.manifest.step <= kept.manifest.step for one in self._pending)
            return [self._pending.popleft() for _ in range(count)]


def _take_over(saves: Sequence[Saved], draft: Path, part: Path, account: Account | None) -> dict[str, File]:
    """Move the ranks' files into a directory of ours, and make them ours.

    Raises as `Keeper._make_durable` does.
    """
    drafts = os.open(draft.parent, _DIRECTORY)  # ours, so no link; what is in it is the ranks'
    try:
        source = _open_draft(drafts, draft.name)
    finally:
        os.close(drafts)
    target = os.open(part, _DIRECTORY)
    try:
        files = {}
        for saved in saves:
            for file in saved.files:
                try:
                    os.rename(file.name, file.name, src_dir_fd=source, dst_dir_fd=target)
                except FileNotFoundError as error:
                    raise Refused(f"rank {saved.rank} has not written {file.name}") from error
                _make_ours(target, file.name, file.bytes, account)
                files[file.name] = File(file.bytes, file.sha256)
        return files
    finally:
        os.close(source)
        os.close(target)


def _open_draft(drafts: int, name: str) -> int:
    try:
        return os.open(name, _DIRECTORY, dir_fd=drafts)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Refused("the ranks have not made a directory for it") from error


def _make_ours(directory: int, name: str, size: int, account: Account | None) -> None:
    """Make a file that was just moved into a directory of ours our own. Nothing here follows a link or waits."""
    fd = -1
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            raise Refused(f"{name} is no plain file, or has other names too")
        if account is not None and found.st_uid != account.uid:
            raise Refused(f"{name} does not belong to the job's account")
        if found.st_size != size:
            raise Refused(f"{name} has {found.st_size} bytes instead of {size}")
        if account is not None:
            os.fchown(fd, os.geteuid(), os.getegid())
        os.fchmod(fd, 0o444 if account is not None else 0o640)
    except OSError as error:
        raise Refused(f"{name} cannot be opened: {error.strerror}") from error
    finally:
        if fd >= 0:
            os.close(fd)


def _write(body: bytes, path: Path) -> File:
    path.write_bytes(body)
    return File(len(body), hashlib.sha256(body).hexdigest())


def _copy_start(source: Path, length: int, path: Path) -> File:
    """The first bytes of a file that grows."""
    digest, left = hashlib.sha256(), length
    with path.open("xb") as writer, contextlib.ExitStack() as stack:
        reader = stack.enter_context(source.open("rb")) if length else None
        while left and reader is not None and (part := reader.read(min(left, checkpoints.CHUNK_BYTES))):
            digest.update(part)
            writer.write(part)
            left -= len(part)
    return File(length - left, digest.hexdigest())


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _remove(directory: Path) -> None:
    """Remove a directory that may be gone; what stays is swept with the attempt's rest."""
    if not os.path.lexists(directory):
        return
    try:
        if directory.is_symlink() or not directory.is_dir():
            directory.unlink()
        else:
            trees.remove(directory)
    except OSError as error:
        log.warning("not_removed", directory=str(directory), error=str(error))
