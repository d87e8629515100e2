"""Creates the directories in which the user's own code runs: a working copy of its bundle, a private directory for
temporary files, and the directory whose files are kept as artifacts.

The supervisor creates them once it has claimed the attempt, before its ranks start; all ranks share them. The working
copy lies in the attempt's directory and is removed with it. The directory for temporary files is in the box, where
there is one; else it lies under the system's own, because the path of a socket may have 108 bytes only, and the
attempt's directory names it, so that a sweep of the attempt removes it too.
"""

import os
import tempfile
from pathlib import Path

from jobs.bundles import bundle as bundles
from jobs.files import paths as layout
from jobs.model.spec import JobSpec
from jobs.store import AttemptId
from shardyard.contract.errors import BadBundle
from workers.runtime.launch import AttemptConfig, AttemptDirectory, WorkingDirectory
from workers.sandbox import run_as
from workers.sandbox.box.box import Box
from workers.supervisor.checkpoints import directories
from workers.supervisor.user_files.baseline import write_baseline

#: A bundle that has one of these expects packages which the worker may not have.
REQUIREMENTS = "requirements.txt"
#: Longest path of the system's directory for temporary files, in bytes; programs have the rest of 108.
MAX_TEMPORARY = 40
#: The directory for temporary files in a box, whose /tmp is its own.
TEMPORARY_IN_BOX = "/tmp/job"  # noqa: S108


class BundleUnusable(Exception):
    """The bundle is missing or broken; the message is for the job's status."""


def prepare_working_directory(config: AttemptConfig, spec: JobSpec, box: Box | None) -> WorkingDirectory | None:
    """Unpack the bundle of `spec` and create the directories around it; `None` where the spec has no bundle.

    Raises:
        BundleUnusable: the bundle is missing or broken.
        OSError: the disk refuses.
    """
    bundle = spec.program.bundle
    if bundle is None:
        return None
    attempt, directory = config.attempt, AttemptDirectory.of(config.state_dir, config.attempt)
    packed = layout.find_bundle(config.storage, attempt.tenant, bundle)
    if packed is None:
        raise BundleUnusable(f"program.bundle: {bundle} is not in the storage any more; upload it again and resubmit")
    try:
        unpacked = bundles.extract_bundle(packed, directory.work, bundle)
    except BadBundle as error:
        raise BundleUnusable(f"program.bundle: {error}") from error
    if config.part == 0:  # what is kept of the working copy is the leader's
        write_baseline(directory, config, spec, [file.path for file in unpacked.files])
    temporary = _make_temporary(directory, box)
    storage = config.storage.absolute()
    output = layout.artifacts_dir(layout.dir_of_attempt(storage, attempt))
    output.mkdir(parents=True, exist_ok=True)
    directories.sync_ancestors(storage, output)  # for what a script saves there
    return WorkingDirectory(
        Path(os.path.realpath(directory.work)), temporary, output, requirements=(directory.work / REQUIREMENTS).exists()
    )


def _make_temporary(directory: AttemptDirectory, box: Box | None) -> Path:
    if box is not None:
        box.make_directory(TEMPORARY_IN_BOX)
        return Path(TEMPORARY_IN_BOX)
    made = Path(os.path.realpath(tempfile.mkdtemp(prefix="sy-", dir=_choose_temporary(tempfile.gettempdir()))))
    directory.temporary.write_text(str(made))
    return made


def _choose_temporary(directory: str) -> str:
    """The system's directory for temporary files, or `/tmp` where sockets below it would have too long a path."""
    return directory if len(os.fsencode(os.path.realpath(directory))) <= MAX_TEMPORARY else "/tmp"  # noqa: S108


def hand_to_ranks(config: AttemptConfig, workplace: WorkingDirectory, box: Box | None) -> None:
    """Let the ranks reach their directories, and nothing else of the service: in their box, or by the rights of their
    account.

    Raises:
        OSError: the disk refuses.
    """
    own = [workplace.root, workplace.output] + ([workplace.temporary] if box is None else [])
    if config.account is not None:
        for directory in own:
            # Where the storage is mounted, the output directory is the leader's to hand over.
            if directory != workplace.output or config.part == 0 or config.target is not None:
                directory.chmod(0o700)
                run_as.give_tree(directory, config.account)
        if config.is_gang and config.part == 0 and box is not None:
            workplace.output.chmod(0o1777)  # its ranks have other accounts on other nodes; no other job can see it
    if box is not None:
        for directory in own:
            box.bind(directory, writable=True)
    elif config.account is not None:
        run_as.make_passable(Path(os.path.realpath(config.state_dir.parent)), workplace.root.parent)
        run_as.make_passable(config.storage.absolute(), workplace.output.parent)


def reclaim_storage(storage: Path, attempt: AttemptId) -> None:
    """Remove an attempt's drafts from the storage, and take its artifacts back from the ranks' account. Its processes
    must be dead."""
    directory = layout.dir_of_attempt(storage, attempt).absolute()
    directories.remove_drafts(directory)
    run_as.take_back(directory, layout.artifacts_dir(directory))
