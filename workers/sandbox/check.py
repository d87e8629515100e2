"""Whether ranks in a box, or under an account of their own, can do what jobs need, and nothing that they must not: by
trying it.

Before a worker takes any work it starts a process as a rank would run (`workers/sandbox/check_child.py`), which tries
both. Whatever is not as it should be keeps the worker from starting: no job runs where it can do too much, or too
little.
"""

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path

from jobs.files import paths as layout
from jobs.model.records import DeviceRecord
from jobs.model.settings import Settings
from jobs.storage.target import target_of
from workers.runtime import import_hook
from workers.runtime.launch import RankAccount
from workers.sandbox import run_as
from workers.sandbox.box.box import Box
from workers.sandbox.box.choice import box_for_trial
from workers.sandbox.box.plan import BoxPlan
from workers.sandbox.box.planner import redis_sockets
from workers.sandbox.run_as import NodeAccounts

SECONDS = 120.0  # Python environments are started one by one, at worst each from a cold disk
CHECK_CHILD = Path(__file__).with_name("check_child.py")
PREFIX = "self-test-"
SHARED_MEMORY = "/dev/shm"  # noqa: S108  (tried, not used)
#: How much is tried of what lies in a directory that the service keeps for itself.
MAX_TRIED = 20


#: What a worker must be able to do, where it is root with some capabilities taken away.
CAPABILITIES = "CHOWN, DAC_OVERRIDE, FOWNER, KILL, SETGID, SETUID and SYS_PTRACE"


class NotConfined(Exception):
    """The box or account is not fit for jobs; the message has every reason, and what to do."""


@dataclass(frozen=True, slots=True)
class AccountTrial:
    """What the process is to try. JSON for `workers/sandbox/check_child.py`."""

    worker: int
    uid: int
    groups: list[int]
    own: list[str]  # directories in which it is to write: those of a job
    shared_memory: str
    closed: list[str]  # what it must not read
    code: list[str]  # what it must read, and must not change
    pythons: dict[str, str]
    sockets: list[str]  # of Redis
    data_root: str | None
    gpus: list[str]
    boxed: bool = False
    filtered: bool = False  # whether system calls are


def check_box(
    plan: BoxPlan, accounts: NodeAccounts | None, settings: Settings, node: Path, environments: Mapping[str, Path]
) -> None:
    """Try a box. `node` is the node's own directory, below the state directory; this process has one thread.

    Raises:
        NotConfined: what runs in it lacks what jobs need, or can do what they must not.
    """
    try:
        wrong = _find_box_faults(plan, accounts, settings, node, environments)
    except OSError as error:
        wrong = [f"it cannot be tried: {error}"]
    if wrong:
        raise NotConfined(
            f"the box around jobs is not as it must be: {'; '.join(wrong)} (SHARDYARD_BOX=off does without)"
        )


def check_accounts(
    accounts: NodeAccounts,
    settings: Settings,
    node: Path,
    environments: Mapping[str, Path],
    devices: Sequence[DeviceRecord],
) -> None:
    """Try one of the accounts, without a box. `node` is the node's own directory, below the state directory.

    Raises:
        NotConfined: it lacks what jobs need, or can do what they must not.
    """
    account = accounts.for_devices([0])
    try:
        wrong = _find_faults(account, settings, node, environments, devices)
    except OSError as error:
        wrong = [f"the worker, which needs the capabilities {CAPABILITIES}, cannot try it: {error}"]
    if wrong:
        raise NotConfined(
            f"SHARDYARD_RUN_AS: jobs cannot run as {account.name} ({account.uid}:{account.gid}): {'; '.join(wrong)}"
        )


def _find_faults(
    account: RankAccount,
    settings: Settings,
    node: Path,
    environments: Mapping[str, Path],
    devices: Sequence[DeviceRecord],
) -> list[str]:
    node, storage = Path(os.path.realpath(node)), Path(os.path.realpath(target_of(settings).root))
    attempts = node / "attempts"
    for directory in (attempts, storage):
        directory.mkdir(parents=True, exist_ok=True)
    shared = Path(tempfile.gettempdir())
    with _trial_directory(attempts) as near, _trial_directory(storage) as far, _trial_directory(shared) as temporary:
        work, output = near / "work", layout.artifacts_dir(far)
        work.mkdir()
        output.mkdir()
        run_as.make_passable(node.parent, near)
        run_as.make_passable(storage, far)
        own = (work, output, temporary)
        for directory in own:
            run_as.give_tree(directory, account)
        wrong = [*_barred_directories(account, (*own, Path(sys.executable), CHECK_CHILD, *environments.values()))]
        if not wrong:
            gpus = run_as.gpu_files() if any(device.kind == "cuda" for device in devices) else []
            closed = [*_private_paths(settings, node, storage)]
            wrong = _run_trial(account, _build_trial(account, settings, own, closed, gpus, environments), cwd=work)
        if not run_as.take_back(far, output):
            wrong.append("the worker cannot take back its files (CHOWN, DAC_OVERRIDE, FOWNER)")
    return wrong


def _find_box_faults(
    plan: BoxPlan, accounts: NodeAccounts | None, settings: Settings, node: Path, environments: Mapping[str, Path]
) -> list[str]:
    node, storage = Path(os.path.realpath(node)), Path(os.path.realpath(target_of(settings).root))
    attempts = node / "attempts"
    for directory in (attempts, storage):
        directory.mkdir(parents=True, exist_ok=True)
    with _trial_directory(attempts) as near, _trial_directory(storage) as far, box_for_trial(plan) as box:
        account = box.account.account if box.account is not None else None
        if account is None and accounts is not None:
            account = accounts.for_devices([0])
        own = (near / "work", layout.artifacts_dir(far))
        for directory in own:
            directory.mkdir()
            if account is not None:
                run_as.give_tree(directory, account)
        box.begin_trial()
        for directory in own:
            box.bind(directory, writable=True)
        mine = RankAccount(os.geteuid(), os.getegid(), tuple(os.getgroups()), "")
        closed = [*_private_paths(settings, node, storage)]
        trial = _build_trial(account or mine, settings, own, closed, [], environments)
        trial = replace(trial, own=[*trial.own, "/tmp"], boxed=True, filtered=plan.syscalls is not None)  # noqa: S108
        return _run_boxed_trial(box, account, trial, own[0])


def _run_boxed_trial(box: Box, account: RankAccount | None, trial: AccountTrial, cwd: Path) -> list[str]:
    paper = cwd / "trial.json"
    paper.write_text(json.dumps(asdict(trial)))
    paper.chmod(0o644)
    said, output = os.pipe()
    try:
        box.run_program([sys.executable, "-I", str(CHECK_CHILD), str(paper)], cwd, account, output)
        os.close(output)
        return _read_answer(said)
    finally:
        os.close(said)


def _read_answer(said: int) -> list[str]:
    """One line, with a JSON list."""
    answer = b""
    deadline = time.monotonic() + SECONDS
    while not answer.endswith(b"\n") and select.select([said], [], [], max(0.0, deadline - time.monotonic()))[0]:
        part = os.read(said, 65536)
        if not part:
            break
        answer += part
    return [*json.loads(answer if answer.endswith(b"\n") else '["it did not finish the self-test"]')]


def _build_trial(
    account: RankAccount,
    settings: Settings,
    own: tuple[Path, ...],
    closed: list[Path],
    gpus: list[Path],
    environments: Mapping[str, Path],
) -> AccountTrial:
    data_root = settings.data_root
    return AccountTrial(
        worker=os.getpid(),
        uid=account.uid,
        groups=[account.gid, *account.groups],
        own=[*map(str, own)],
        shared_memory=SHARED_MEMORY,
        closed=[*map(str, closed)],
        code=[import_hook.ROOT, *(str(Path(import_hook.ROOT, name)) for name in import_hook.NAMES), str(CHECK_CHILD)],
        pythons={name: str(path) for name, path in {"": Path(sys.executable), **environments}.items()},
        sockets=[*redis_sockets(settings)],
        data_root=str(data_root.expanduser()) if data_root is not None else None,
        gpus=[*map(str, gpus)],
    )


@contextlib.contextmanager
def _trial_directory(where: Path) -> Iterator[Path]:
    made = Path(os.path.realpath(tempfile.mkdtemp(prefix=PREFIX, dir=where)))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _barred_directories(account: RankAccount, paths: tuple[Path, ...]) -> Iterator[str]:
    """Directories that the account may not pass, though what it needs lies beyond them."""
    found = dict.fromkeys(
        directory
        for path in paths
        for directory in Path(os.path.realpath(path)).parents
        if not _may_pass(account, directory.stat())
    )
    for directory in found:
        yield (
            f"it cannot pass {directory}; keep SHARDYARD_STORAGE, SHARDYARD_STATE_DIR (`shardyard up`: --data-dir) and "
            f"Python where every account may pass, or allow it with `chmod o+x {directory}`"
        )


def _may_pass(account: RankAccount, directory: os.stat_result) -> bool:
    """By the mode alone: where a list of accounts says otherwise, what is tried later has the last word."""
    if directory.st_uid == account.uid:
        return bool(directory.st_mode & 0o100)
    if directory.st_gid in (account.gid, *account.groups):
        return bool(directory.st_mode & 0o010)
    return bool(directory.st_mode & 0o001)


def _private_paths(settings: Settings, node: Path, storage: Path) -> Iterator[Path]:
    """What the service keeps for itself, as far as it is there: of the storage, all but what a job has written."""
    state = node.parent
    files = (settings.admin_token_file, settings.tls_key, settings.node_token_file)
    yield from (state, state / "admin-token", node)
    yield from (node / name for name in ("worker.lock", "home", "attempts", "carry"))
    yield settings.secret_keys()
    yield from (file.expanduser() for file in files if file is not None)
    yield storage
    for entry in _list_directory(storage):
        yield entry
        for tenant in _list_directory(entry):
            yield from (tenant, *_list_directory(tenant))


def _list_directory(directory: Path) -> list[Path]:
    try:
        with os.scandir(directory) as entries:
            return [Path(entry.path) for entry in islice(entries, MAX_TRIED) if not entry.name.startswith(PREFIX)]
    except OSError:
        return []


def _run_trial(account: RankAccount, trial: AccountTrial, cwd: Path) -> list[str]:
    """What is wrong with an account, as its process found it, and as we find it with that process."""
    paper = cwd / "trial.json"
    paper.write_text(json.dumps(asdict(trial)))
    paper.chmod(0o644)
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", str(CHECK_CHILD), str(paper)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=cwd,
            env={"PATH": os.defpath},
            user=account.uid,
            group=account.gid,
            extra_groups=account.groups,
        )
    except OSError as error:
        return [f"it cannot run {sys.executable}: {error.strerror}"]
    with process:
        assert process.stdout is not None
        try:
            ready = select.select([process.stdout], [], [], SECONDS)[0]
            said = process.stdout.readline() if ready else b""
            return [*json.loads(said or '["it did not finish the self-test"]'), *_out_of_reach(process)]
        finally:
            with contextlib.suppress(PermissionError):
                process.kill()


def _out_of_reach(process: subprocess.Popen[bytes]) -> Iterator[str]:
    """What we must be able to do with processes of the account, and cannot."""
    try:
        Path(f"/proc/{process.pid}/environ").read_bytes()
    except OSError:
        yield "the worker cannot look at its processes (SYS_PTRACE)"
    try:
        process.kill()
    except PermissionError:
        yield "the worker cannot kill its processes (KILL)"
