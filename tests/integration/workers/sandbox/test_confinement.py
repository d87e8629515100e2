"""Jobs under an account of their own: what they can do there, and what they cannot."""

import json
import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.files import checkpoints, paths
from jobs.model.state import JobState
from tests.integration.workers import reachable
from tests.integration.workers.places import a_place
from tests.integration.workers.rank.test_script_children import FORK, TRAIN
from tests.integration.workers.service import MODULE, NODE, Service, eventually, is_dead, running_service
from tests.integration.workers.supervisor import test_checkpoints
from workers.sandbox.run_as import MORE_PROCESSES

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(bool(reachable.why_not()), reason=reachable.why_not()),
]

FIRST, GROUP = 20_000, 20_999
SCRIPTS = Path(__file__).parents[1] / "scripts"
#: Says who it is, and waits to be told to end.
VICTIM = """
import os, time
output = os.environ["SHARDYARD_OUTPUT_DIR"]
with open(os.path.join(output, "draft"), "w") as file:
    file.write(f"{os.getpid()} {os.environ['TMPDIR']}")
os.rename(os.path.join(output, "draft"), os.path.join(output, "who"))
while not os.path.exists(os.path.join(output, "end")):
    time.sleep(0.01)
"""


@pytest.fixture(scope="module")
def own_accounts() -> Iterator[Service]:
    run_as = f"{FIRST}-{FIRST + 7}:{GROUP}"
    with a_place() as place, running_service(place, reachable.command(*MODULE), run_as=run_as) as service:
        service.notes.chmod(0o777)
        yield service


@pytest.fixture
def confined(own_accounts: Service) -> Iterator[Service]:
    yield own_accounts
    try:
        own_accounts.leaves_nothing()
    finally:
        own_accounts.end_all()


# -- what a job must not get at ----------------------------------------------------------------------


def attack(service: Service) -> list[str]:
    """What a hostile script gets at, while another job runs. Its attempts are named in `scripts/hostile.txt`."""
    victim = service.run_script({"train.py": VICTIM})
    artifacts = paths.artifacts_dir(service.files(victim))
    pid, temporary = who_is(service, victim)
    attempt = service.attempt(victim)
    state, kept = service.directory / "state", service.settings.storage
    (state / "admin-token").write_text("secret")
    (state / "admin-token").chmod(0o600)
    assert service.worker is not None
    there = {
        "processes": {
            "the worker": service.worker.pid,
            "the supervisor": service.supervisor(attempt),
            "a rank": pid,
        },
        "kept": {
            "the admin token": state / "admin-token",
            "the state directory": state,
            "the node's directory": state / NODE,
            "attempts": state / NODE / "attempts",
            "marks": service.marks(attempt).directory,
            "a working copy": service.marks(attempt).work,
            "a program": service.marks(attempt).work / "train.py",
            "a temporary directory": temporary,
            "the storage": kept,
            "bundles": paths.bundles_dir(kept),
            "a tenant's bundles": paths.bundle_dir(kept, "default"),
            "all jobs": paths.jobs_dir(kept),
            "a tenant's jobs": paths.jobs_dir(kept) / "default",
            "a job": paths.job_dir(kept, "default", victim),
            "an attempt": service.files(victim),
            "a log": paths.log_file(service.files(victim), 0),
            "artifacts": artifacts,
            "an artifact": artifacts / "who",
            "Redis' data": service.directory / "redis",
        },
        "sockets": [service.server.url.removeprefix("unix://")],
    }
    files = {"train.py": (SCRIPTS / "hostile.txt").read_text()}
    hostile = service.run_script(files, json.dumps(there, default=str))
    record = service.ended(hostile)
    assert record.state is JobState.SUCCEEDED, record
    (artifacts / "end").touch()
    assert service.ended(victim).state is JobState.SUCCEEDED
    got: list[str] = json.loads(service.text(hostile).splitlines()[-1])
    return got


def who_is(service: Service, job: str) -> tuple[int, Path]:
    """Process id of a victim's rank, and its temporary directory."""
    path = paths.artifacts_dir(service.files(job)) / "who"
    eventually(path.exists, f"{job} has said who it is")
    pid, temporary = path.read_text().split()
    return int(pid), Path(temporary)


def test_a_hostile_script_gets_at_nothing_but_what_is_its_own(confined: Service) -> None:
    assert set(attack(confined)) == {
        *(f"{what} of itself" for what in ("environ", "mem", "maps", "cwd", "root", "fd", "limits")),
        "signal to itself",
        *(f"{what} of its output" for what in ("contents", "change", "mode")),
    }


def test_what_a_script_has_started_dies_with_its_job_wherever_it_hides(confined: Service) -> None:
    """It has a session of its own, no variable and no descriptor of ours, another parent, and ignores SIGTERM."""
    hide = '''
import os, signal, subprocess, sys, time
forever = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write(1, b"%d" % os.getpid())
signal.pause()
"""
if os.fork() == 0:
    os.setsid()
    out = open(os.path.join(os.environ["SHARDYARD_OUTPUT_DIR"], "hidden"), "w")
    subprocess.Popen([sys.executable, "-c", forever], env={}, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    os._exit(0)
os.wait()
while not os.path.getsize(out := os.path.join(os.environ["SHARDYARD_OUTPUT_DIR"], "hidden")):
    time.sleep(0.01)
'''
    job = confined.run_script({"train.py": hide})
    assert confined.ended(job).state is JobState.SUCCEEDED
    hidden = int((paths.artifacts_dir(confined.files(job)) / "hidden").read_text())
    assert is_dead(hidden)


#: Says what it finds of an attempt before it, which had the same account, and leaves the same.
LEAVES = """
import ctypes, os
libc = ctypes.CDLL(None)
places = [place for place in ("/tmp", "/var/tmp", "/dev/shm") if os.access(place, os.W_OK)]
assert "/dev/shm" in places
found = [place for place in places if os.path.exists(f"{place}/shardyard-left-{os.getuid()}")]
objects = {"memory": libc.shmget(4711, 64, 0o600), "queue": libc.msgget(4711, 0o600)}
found += [name for name, key in objects.items() if key != -1]
found += ["keys"] if libc.syscall(250, 10, -4, b"user", b"left", 0) != -1 else []
print(found)
for place in places:
    os.mkdir(f"{place}/shardyard-left-{os.getuid()}", 0o700)
assert -1 not in (libc.shmget(4711, 64, 0o1600), libc.msgget(4711, 0o1600))
libc.syscall(248, b"user", b"left", b"x", 1, -4)
"""


def test_the_next_job_with_the_same_account_finds_nothing_of_the_one_before(confined: Service) -> None:
    for _ in range(2):
        job = confined.run_script({"train.py": LEAVES})
        assert confined.ended(job).state is JobState.SUCCEEDED, confined.text(job, stream="stderr")
        assert confined.text(job) == "[]"
    left = [Path(place, f"shardyard-left-{FIRST}") for place in ("/tmp", "/var/tmp", "/dev/shm")]
    assert not any(path.exists() for path in left)


def test_ranks_die_with_their_supervisor(confined: Service) -> None:
    """A change of account makes the kernel forget that they are to."""
    job = confined.run_script({"train.py": VICTIM}, limits={"max_retries": 0})
    rank, _ = who_is(confined, job)
    assert Path(f"/proc/{rank}").stat().st_uid == FIRST
    os.kill(confined.supervisor(confined.attempt(job)), signal.SIGKILL)
    eventually(lambda: is_dead(rank), "the rank is dead")
    confined.reaches(job, JobState.RUNNING, attempt=2)
    eventually(lambda: not stat.S_IMODE(confined.files(job).stat().st_mode) & 0o077, "its files are closed")
    confined.cancel(job)
    confined.ended(job)


# -- what a job needs --------------------------------------------------------------------------------


#: Says how its process is, and leaves a program in its output that would run as whoever owns it.
ORDINARY = """
import getpass, json, multiprocessing, os, resource, tempfile
from pathlib import Path

def double(number):
    return 2 * number

if __name__ == "__main__":
    with open("/dev/stdout", "w") as out, tempfile.NamedTemporaryFile() as temporary:
        out.write("by its name\\n")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        doubled = pool.map(double, [21])
    tool = Path(os.environ["SHARDYARD_OUTPUT_DIR"], "deep", "tool")
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh")
    tool.chmod(0o4755)
    Path("made-here").touch()
    Path("elsewhere").symlink_to("/etc/shadow")
    Path("tool").write_text("#!/bin/sh")
    Path("tool").chmod(0o4755)
    (Path.home() / ".cache").mkdir()
    status = Path("/proc/self/status").read_text()
    print(json.dumps({
        "ids": [os.getresuid(), os.getresgid(), os.getgroups()],
        "limits": [resource.getrlimit(which) for which in (resource.RLIMIT_NPROC, resource.RLIMIT_CORE)],
        "capabilities": [line.split()[1] for line in status.splitlines() if line.startswith(("CapPrm", "CapEff"))],
        "no new privileges": "NoNewPrivs:\\t1" in status,
        "mode": Path("made-here").stat().st_mode & 0o777,
        "doubled": doubled,
        "user": getpass.getuser(),
        "temporary": os.environ["TMPDIR"],
    }))
"""


def test_a_script_runs_as_it_does_elsewhere(confined: Service) -> None:
    job = confined.run_script({"train.py": ORDINARY})
    record = confined.ended(job)
    assert record.state is JobState.SUCCEEDED, (record, confined.text(job, stream="stderr"))
    *_, named, last = confined.text(job).splitlines()
    facts: dict[str, Any] = json.loads(last)
    temporary = Path(facts.pop("temporary"))
    assert named == "by its name"
    assert facts == {
        "ids": [[FIRST] * 3, [GROUP] * 3, []],
        "limits": [[4096 + MORE_PROCESSES] * 2, [0, 0]],
        "capabilities": ["0" * 16] * 2,
        "no new privileges": True,
        "mode": 0o644,
        "doubled": [42],
        "user": str(FIRST),
    }
    eventually(lambda: not temporary.exists(), "its temporary directory is gone")


def test_what_a_job_has_left_belongs_to_the_service(confined: Service) -> None:
    job = confined.run_script({"train.py": ORDINARY})
    confined.ended(job)
    files = confined.files(job)
    tool = paths.artifacts_dir(files) / "deep" / "tool"
    assert {path.stat().st_uid for path in (tool, *tool.parents[:3])} == {os.geteuid()}
    assert stat.S_IMODE(tool.stat().st_mode) == 0o755
    kept = {path.name: path.lstat() for path in paths.user_files_dir(files).iterdir()}
    assert {(one.st_uid, stat.filemode(one.st_mode)) for one in kept.values()} == {(os.geteuid(), "-rw-r-----")}
    assert set(kept) == {"made-here", "tool"}
    assert stat.S_IMODE(files.stat().st_mode) == 0o700


#: Saves, dies, and says what it can do with what it finds when it is started again.
RESUMES = """
import os, signal
from pathlib import Path
from shardyard import job

place = job.resume_dir()
if place is None:
    Path("state.txt").write_text("as saved")
    job.checkpoint("state.txt")
    os.kill(os.getpid(), signal.SIGKILL)
got = []
for name, attempt in {
    "change": lambda: (place / "state.txt").write_text("other"),
    "mode": lambda: (place / "state.txt").chmod(0o777),
    "remove": lambda: (place / "state.txt").unlink(),
    "add": lambda: (place / "more.txt").write_text("more"),
    "the attempt before": lambda: os.listdir(str(job.output_dir()).replace("/2/", "/1/")),
}.items():
    try:
        attempt()
        got.append(name)
    except PermissionError:
        pass
print((place / "state.txt").read_text(), got)
"""


def test_a_script_that_is_started_again_can_read_its_checkpoint_and_no_more(confined: Service) -> None:
    job = confined.run_script({"train.py": RESUMES}, limits={"max_retries": 1})
    record = confined.ended(job)
    assert record.state is JobState.SUCCEEDED, (record, confined.text(job, stream="stderr", number=2))
    assert confined.text(job, number=2) == "as saved []"


@pytest.mark.parametrize(("strategy", "devices"), [("dp", 2), ("ddp", 2)])
def test_recipes_run_under_it_too(confined: Service, strategy: str, devices: int) -> None:
    job = confined.submit(strategy, devices)
    record = confined.ended(job)
    assert record.state is JobState.SUCCEEDED, (record, confined.text(job, stream="stderr"))
    assert confined.report(job)["prediction"]["matches"]


@pytest.mark.slow
def test_a_recipe_goes_on_under_another_account_from_what_it_has_saved(confined: Service) -> None:
    blocker = confined.long()  # on the first device
    job = test_checkpoints.submit(confined, "ddp", 2, seconds=0.1)
    test_checkpoints.commits(confined, job, test_checkpoints.EVERY)
    confined.cancel(blocker)
    confined.ended(blocker)
    os.kill(confined.supervisor(confined.attempt(job)), signal.SIGKILL)
    record = confined.ended(job, 60)
    assert record.state is JobState.SUCCEEDED, (record, confined.text(job, stream="stderr", number=2))
    first, second = confined.attempts(job)
    assert (min(first.leased), min(second.leased)) == (1, 0)  # each device has an account of its own
    assert second.resumed is not None
    assert second.resumed["attempt"] == 1
    newest, *_ = saved = checkpoints.list_checkpoints(paths.checkpoints_dir(confined.settings.storage, "default", job))
    for one in saved:
        checkpoints.verify_checkpoint(one.directory)
        assert {path.stat().st_uid for path in (one.directory, *one.directory.iterdir())} == {os.geteuid()}
    weights = paths.artifacts_dir(confined.files(job, 2)) / checkpoints.WEIGHTS
    assert weights.read_bytes() == (newest.directory / checkpoints.WEIGHTS).read_bytes()
    left = {path.name for number in (1, 2) for path in confined.files(job, number).iterdir()}
    assert left - {"hardware.msgpack"} == {"artifacts", "logs", "metrics.bin", "report.json"}


def test_processes_that_a_script_starts_are_seen(confined: Service) -> None:
    job = confined.run_script({"train.py": TRAIN, "start.py": FORK}, entrypoint="start.py", devices=2)
    record = confined.ended(job, 60)
    assert record.state is JobState.SUCCEEDED, (record, confined.text(job, stream="stderr"))
    assert [device["rows"] for device in confined.report(job)["per_device"]] == [50, 50]


def test_a_cold_start_keeps_the_account(confined: Service) -> None:
    files = {"train.py": "import os, torch; print(os.getuid(), torch.get_num_threads())"}
    job = confined.run_script(files, env={"OMP_NUM_THREADS": "1"})
    record = confined.ended(job, 60)
    assert record.state is JobState.SUCCEEDED, (record, confined.text(job, stream="stderr"))
    assert confined.text(job).split() == [str(FIRST), "1"]


# -- the self-test -----------------------------------------------------------------------------------


def refusal(service: Service, **settings: str) -> str:
    """Why another worker with these settings does not start."""
    with service.another_worker(command=reachable.command(*MODULE), SHARDYARD_NODE="n2", **settings) as worker:
        assert worker.wait(60) == 2
    return str(service.events("cannot_start")[-1]["why"])


def test_a_worker_whose_accounts_cannot_reach_their_files_does_not_start(own_accounts: Service) -> None:
    closed = own_accounts.directory / "closed"
    closed.mkdir(mode=0o700)
    assert f"it cannot pass {closed}" in refusal(own_accounts, SHARDYARD_STATE_DIR=str(closed / "state"))


def test_a_worker_whose_accounts_could_read_the_services_files_does_not_start(own_accounts: Service) -> None:
    """With all reasons at once."""
    token, open_storage = own_accounts.directory / "token", own_accounts.directory / "open"
    token.write_text("secret")
    token.chmod(0o644)
    open_storage.mkdir()
    open_storage.chmod(0o755)
    why = refusal(own_accounts, SHARDYARD_ADMIN_TOKEN_FILE=str(token), SHARDYARD_STORAGE=str(open_storage))
    assert f"it can read {token}" in why
    assert f"it can read {open_storage}" in why


def test_a_worker_says_that_jobs_run_as_root(shared: Service) -> None:
    assert shared.events("jobs_run_as_root")
