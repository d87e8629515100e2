"""Jobs in a box, in each of its modes: attacks, tried by real jobs, and what a job leaves to the next one."""

import json
import os
import signal
import socket
import sys
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import pytest

from api.schemas.views import node_view
from jobs.files import paths
from jobs.model.pool_policy import PoolPolicy
from jobs.model.spec_rules import parse_spec
from jobs.model.state import JobState, StateReason
from jobs.store import submit
from jobs.store.accounts.tenant_secrets import put_secret
from jobs.store.pools import set_policy
from jobs.support import secret_keys
from tests.integration.workers import reachable
from tests.integration.workers.box_modes import QUICK_IN_FULL_BOX, UID, BoxMode, find_lacks
from tests.integration.workers.service import TENANT, Service, eventually, is_dead
from workers.sandbox.box.mounts import DEVICE_LINKS, DEVICES

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(bool(reachable.why_not()), reason=reachable.why_not()),
]

SCRIPTS = Path(__file__).parents[1] / "scripts"
#: Says who it is, leaves a process that hides, with an argument for its name, and waits to be told to end.
HIDES = """
import os, subprocess, sys, time
output = os.environ["SHARDYARD_OUTPUT_DIR"]
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 1024)
        os.execve("/bin/sh", [sys.argv[1], "-c", "sleep 3600; true"], {})
    os._exit(0)
os.wait()
while not subprocess.run(["pgrep", "-f", "-x", sys.argv[1] + ".*"], stdout=subprocess.DEVNULL).returncode == 0:
    time.sleep(0.01)
with open(os.path.join(output, "draft"), "w") as file:
    file.write(str(os.getuid()))
os.rename(os.path.join(output, "draft"), os.path.join(output, "who"))
while not os.path.exists(os.path.join(output, "end")):
    time.sleep(0.01)
"""
#: A rendezvous of two ranks that lasts until it is told to end.
MEETS = """
import os, time
import torch.distributed as dist
dist.init_process_group("gloo")
output = os.environ["SHARDYARD_OUTPUT_DIR"]
with open(os.path.join(output, "draft" + os.environ["RANK"]), "w") as file:
    file.write(os.environ["MASTER_PORT"])
os.rename(os.path.join(output, "draft" + os.environ["RANK"]), os.path.join(output, "who" + os.environ["RANK"]))
while not os.path.exists(os.path.join(output, "end")):
    time.sleep(0.01)
dist.barrier()
"""


def artifacts(service: Service, job: str) -> Path:
    return paths.artifacts_dir(service.files(job))


def wait_for_file(path: Path) -> str:
    eventually(path.exists, f"{path.name} is there")
    return path.read_text()


def start_hiding(service: Service) -> tuple[str, str]:
    """A job that hides a process; and that process's name."""
    name = f"hidden-{uuid.uuid4().hex}"
    job = service.run_script({"train.py": HIDES}, name)
    wait_for_file(artifacts(service, job) / "who")
    return job, name


def let_end(service: Service, job: str) -> None:
    (artifacts(service, job) / "end").touch()
    assert service.ended(job).state is JobState.SUCCEEDED


def find_processes(name: str) -> list[int]:
    """Those whose first argument is `name`, anywhere on this host."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if path.read_bytes().split(b"\0")[0] == name.encode():
                found.append(int(path.parent.name))
    return found


def escape(
    service: Service,
    ports: dict[str, int] | None = None,
    pids: dict[str, int] | None = None,
    abstract: tuple[str, ...] = (),
    **where: Path,
) -> dict[str, Any]:
    """What a job gets that tries the ways out."""
    there = {
        "paths": {name: str(path) for name, path in where.items()},
        "ports": ports or {},
        "pids": pids or {},
        "abstract": abstract,
        "secret": service.server.url,
    }
    job = service.run_script({"train.py": (SCRIPTS / "escape.txt").read_text()}, json.dumps(there))
    record = service.ended(job)
    assert record.state is JobState.SUCCEEDED, record.error
    found: dict[str, Any] = json.loads(service.text(job).splitlines()[-1])
    return found


def test_a_node_says_what_its_jobs_do_not_have_for_themselves(mode: BoxMode, boxed: Service) -> None:
    box = node_view(boxed.node(), "default", 0).box  # as GET /v1/nodes has it
    assert box.level == ("user" if mode == "no root" else "full")
    assert {right.name for right in box.rights if not right.has} == find_lacks(mode, boxed)
    assert all(right.has or right.why for right in box.rights)


def test_the_ways_out_of_a_box_are_closed(boxed: Service) -> None:
    victim, _ = start_hiding(boxed)
    state, kept = boxed.directory / "state", boxed.settings.storage
    (state / "admin-token").write_text("secret")
    abstract = f"shardyard-{uuid.uuid4().hex}"
    assert boxed.worker is not None
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(b"\0" + abstract.encode())
        listener.listen()
        got = escape(
            boxed,
            pids={
                "the worker": boxed.worker.pid,
                "the supervisor": boxed.supervisor(boxed.attempt(victim)),
                "redis": boxed.server.pid,
                "this test": os.getpid(),
            },
            abstract=(abstract,),
            storage=kept,
            jobs=paths.jobs_dir(kept),
            tenant=paths.jobs_dir(kept) / "default",
            victim=artifacts(boxed, victim) / "who",
            state=state,
            token=state / "admin-token",
            redis=boxed.directory / "redis",
            secret_key=boxed.settings.secret_keys(),
            tls_key=boxed.settings.tls_key or Path(),
            socket=Path(boxed.server.url.removeprefix("unix://")),
        )
    assert got["processes"] == [1]
    assert (got["environments"], got["secrets"]) == ([], [])
    assert got["memory of the first process"] == "PermissionError"
    assert {got[name] for name in got if name.startswith("signal ")} == {"ProcessLookupError"}
    assert got["interfaces"] == ["lo"]
    assert got["listening"] == []
    refusals = {"PermissionError", "FileNotFoundError", "NotADirectoryError", "its own way"}
    assert {got[name] for name in got if name.startswith("read ")} <= refusals
    for path in ("/", "/usr", "/etc", sys.prefix):
        assert got[f"write {path}"] == "OSError", "the file system is read-only"
    assert "written" not in {got[name] for name in got if name.startswith("write ")}
    assert got[f"abstract {abstract}"] == "ConnectionRefusedError"
    assert (got["raw"], got["packets"]) == ("PermissionError", "PermissionError")
    assert got["hypervisor"] == "PermissionError", "no network namespace holds its sockets"
    assert got["outside"] == "OSError"
    assert set(got["devices"]) <= {*DEVICES, *DEVICE_LINKS, "pts", "shm"}
    assert (got["device"], got["GPU"]) == ("PermissionError", "PermissionError")
    calls = {"user namespace", "cloned namespace", "io_uring", "keyring", "keys", "handles", "faults", "events"}
    calls |= {"bpf", "trace", "mount", "chroot", "host name"}
    assert {name: got[name] for name in calls} == dict.fromkeys(calls, "refused")
    assert got["root"] != 0
    assert got["no new privileges"]
    assert set(got["capabilities"]) == {"0" * 16}
    let_end(boxed, victim)


def test_a_rank_has_neither_the_address_of_redis_nor_the_key_of_secrets_in_its_memory(boxed: Service) -> None:
    """Its ancestors have had both: the worker decrypts its secrets, its supervisor connects to Redis."""
    keys, value = secret_keys.read_keys(boxed.settings.secret_keys()), "hf_Zq7wvT4mB2nXk8"
    boxed.run(put_secret(TENANT, "hf", secret_keys.encrypt_secret(keys, TENANT, "hf", value)))
    (key,) = keys.by_head.values()
    wanted = {
        "value": value.encode(),
        "redis": boxed.server.url.encode(),
        "key": key,
        "line": boxed.settings.secret_keys().read_bytes().strip(),
    }
    for strategy in ("single", "ddp"):
        found = search_memory(boxed, wanted, strategy=strategy, secrets={"HF_TOKEN": "hf"})
        assert found == ["value"], "what it may have is found, and nothing else"


def test_a_rank_has_nothing_of_earlier_jobs_in_its_memory(boxed: Service) -> None:
    argument, variable = uuid.uuid4().hex, uuid.uuid4().hex
    for _ in range(2):
        source = "import time; time.sleep(1)"  # meanwhile the next supervisor is forked
        earlier = boxed.run_script({"train.py": source}, argument, env={"OF_ITS_OWN": variable})
        assert boxed.ended(earlier).state is JobState.SUCCEEDED
        assert search_memory(boxed, {"argument": argument.encode(), "variable": variable.encode()}) == []


def search_memory(service: Service, wanted: dict[str, bytes], **options: Any) -> list[str]:
    """What of `wanted` a rank has in its memory; options as in `run_script`."""
    halves = {name: (text[: len(text) // 2].hex(), text[len(text) // 2 :].hex()) for name, text in wanted.items()}
    job = service.run_script({"train.py": (SCRIPTS / "search.txt").read_text()}, json.dumps(halves), **options)
    assert service.ended(job).state is JobState.SUCCEEDED, service.text(job, stream="stderr")
    found: list[str] = json.loads(service.text(job))
    return found


def test_a_program_without_a_bundle_is_in_the_box_too(boxed: Service) -> None:
    """Any function of any module may be named, also one that runs commands."""
    host = boxed.directory / "from-a-job"
    host.touch()
    host.chmod(0o666)
    command = f"cat {boxed.server.url.removeprefix('unix://')} {host}; echo written > {host}; ls -d /proc/1/root/"
    body = boxed.spec().model_dump(mode="json")
    body["program"]["model"] = {"ref": "os:system", "args": {"command": command}}
    job = boxed.run(submit("default", uuid.uuid4().hex, parse_spec(json.dumps(body)))).job
    boxed.dispatch_jobs()
    assert boxed.ended(job).state is JobState.FAILED, "a number is no model"
    assert host.read_text() == ""
    assert boxed.text(job) == ""


def test_attempts_that_run_side_by_side_have_different_accounts(mode: BoxMode, boxed: Service) -> None:
    jobs = [start_hiding(boxed)[0] for _ in range(2)]
    uids = [int(wait_for_file(artifacts(boxed, job) / "who")) for job in jobs]
    if mode == "no root":
        assert set(uids) == {UID}  # which is what the node says that it lacks
    else:
        assert len({*uids, 0}) == 3
    for job in jobs:
        let_end(boxed, job)


def test_a_process_that_hides_dies_with_its_job(boxed: Service) -> None:
    job, name = start_hiding(boxed)
    assert find_processes(name), "it has left its session and parent, closed its files and has no environment"
    let_end(boxed, job)
    assert find_processes(name) == []


def test_a_box_dies_with_its_supervisor(boxed: Service) -> None:
    job, name = start_hiding(boxed)
    first = int(boxed.marks(boxed.attempt(job)).box.read_text().split()[0])
    os.kill(boxed.supervisor(boxed.attempt(job)), signal.SIGKILL)
    eventually(lambda: is_dead(first) and not find_processes(name), "everything in the box is dead")
    eventually(lambda: boxed.job(job).attempt == 1 and boxed.attempts(job)[0].reason, "the attempt is reaped")
    assert boxed.attempts(job)[0].reason is StateReason.SUPERVISOR_LOST
    boxed.cancel(job)
    boxed.ended(job)


def test_a_rendezvous_cannot_be_seen_by_a_neighbour(boxed: Service) -> None:
    victim = boxed.run_script({"train.py": MEETS}, strategy="ddp", devices=2)
    port = int(wait_for_file(artifacts(boxed, victim) / "who0"))
    wait_for_file(artifacts(boxed, victim) / "who1")
    got = escape(boxed, ports={"rendezvous": port})
    assert got["connect rendezvous"] == "ConnectionRefusedError"
    assert got["listening"] == []
    let_end(boxed, victim)


MEETS_OFTEN = """
import sys
import torch
import torch.distributed as dist
for _ in range(int(sys.argv[1])):
    dist.init_process_group("gloo")
    told = torch.ones(1)
    dist.all_reduce(told)
    store = dist.distributed_c10d._get_default_store()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    print(type(store).__name__, int(told), flush=True)
    dist.destroy_process_group()
"""


@pytest.mark.parametrize(("network", "store", "times"), [("none", "TCPStore", 1), ("host", "FileStore", 2)])
def test_ranks_meet_where_no_neighbour_can(
    boxed: Service, network: Literal["none", "host"], store: str, times: int
) -> None:
    boxed.run(set_policy("default", PoolPolicy("any", network)))
    try:
        job = boxed.run_script({"train.py": MEETS_OFTEN}, str(times), strategy="ddp", devices=2)
        record = boxed.ended(job)
    finally:
        boxed.run(set_policy("default", PoolPolicy("any", "none")))
    assert record.state is JobState.SUCCEEDED, record.error
    assert record.network == network
    for device in range(2):
        assert boxed.text(job, device).splitlines() == [f"{store} 2"] * times
        assert boxed.text(job, device, "stderr") == ""


def test_a_job_leaves_nothing_to_the_next_one(boxed: Service) -> None:
    before = {place: set(os.listdir(place)) for place in ("/tmp", "/var/tmp", "/dev/shm")}
    for _ in range(2):
        assert escape(boxed)["left by others"] == {"/var/tmp": [], "/dev/shm": []}
    assert not any("left" in set(os.listdir(place)) - names for place, names in before.items())


LEAVES = """
import ctypes, mmap, os
libc = ctypes.CDLL(None)
calls = {
    "memory": lambda: libc.shmget(4711, 64, 0o600),
    "semaphores": lambda: libc.semget(4711, 1, 0o600),
    "queue": lambda: libc.msgget(4711, 0o600),
    "POSIX queue": lambda: ctypes.CDLL("librt.so.1").mq_open(b"/left", os.O_RDWR),
    "POSIX memory": lambda: ctypes.CDLL("librt.so.1").shm_open(b"/left", os.O_RDWR, 0o600),
}
print([name for name, find in calls.items() if find() != -1])
made = [
    libc.shmget(4711, 64, 0o1600), libc.semget(4711, 1, 0o1600), libc.msgget(4711, 0o1600),
    ctypes.CDLL("librt.so.1").shm_open(b"/left", os.O_RDWR | os.O_CREAT, 0o600),
]
assert -1 not in made, made
ctypes.CDLL("librt.so.1").mq_open(b"/left", os.O_RDWR | os.O_CREAT, 0o600, None)
"""


def test_shared_memory_and_queues_end_with_their_job(boxed: Service) -> None:
    for _ in range(2):
        job = boxed.run_script({"train.py": LEAVES})
        assert boxed.ended(job).state is JobState.SUCCEEDED
        assert boxed.text(job) == "[]"


FILLS = """
import os
for place, limit in (("/dev/shm", 64), ("/tmp", 32)):
    written = 0
    try:
        with open(os.path.join(place, "bomb"), "wb", buffering=0) as file:
            while written < 256:
                file.write(bytes(1 << 20))
                written += 1
    except OSError as error:
        print(place, error.strerror, limit - 4 <= written <= limit)
"""


def test_a_bomb_in_shared_memory_ends_at_its_size(boxed: Service) -> None:
    job = boxed.run_script({"train.py": FILLS})
    assert boxed.ended(job).state is JobState.SUCCEEDED
    assert boxed.text(job).splitlines() == [f"{place} No space left on device True" for place in ("/dev/shm", "/tmp")]


TAKES_SEGMENTS = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
made = 0
while made < 128 and libc.shmget(0, 1 << 20, 0o1600) != -1:
    made += 1
print(made)
"""


def test_shared_memory_of_system_v_has_the_same_size(mode: BoxMode, boxed: Service) -> None:
    job = boxed.run_script({"train.py": TAKES_SEGMENTS})
    assert boxed.ended(job).state is JobState.SUCCEEDED
    if mode == "no root":
        assert boxed.text(job) in ("64", "128"), "some kernels let root alone set it"
    else:
        assert boxed.text(job) == "64"


FILLS_WITH_NOTHING = """
import os
for place in ("/dev/shm", "/tmp", "/var/tmp"):
    made = 0
    try:
        while made < 30_000:
            os.close(os.open(f"{place}/{made}", os.O_CREAT))
            made += 1
    except OSError as error:
        print(place, error.strerror, 9_900 < made <= 10_000)
"""


def test_a_bomb_of_empty_files_in_memory_ends_at_their_number(boxed: Service) -> None:
    job = boxed.run_script({"train.py": FILLS_WITH_NOTHING})
    assert boxed.ended(job).state is JobState.SUCCEEDED
    places = ("/dev/shm", "/tmp", "/var/tmp")
    assert boxed.text(job).splitlines() == [f"{place} No space left on device True" for place in places]


FORKS = """
import os, time
children = []
try:
    while len(children) < 400:
        pid = os.fork()
        if pid == 0:
            time.sleep(3600)
            os._exit(0)
        children.append(pid)
except OSError as error:
    print(type(error).__name__, 100 < len(children) < 201, flush=True)
time.sleep(60)
"""


@QUICK_IN_FULL_BOX
def test_a_job_has_so_many_processes_and_no_more(mode: BoxMode, boxed: Service) -> None:
    job = boxed.run_script({"train.py": FORKS})
    record = boxed.ended(job)
    assert record.reason is StateReason.RESOURCE_LIMIT
    assert record.error is not None
    assert record.error["limit"] == "processes"
    if "pids" not in find_lacks(mode, boxed):
        assert boxed.text(job) in ("BlockingIOError True", ""), "unless it was ended before it could print"


def test_ranks_are_what_the_kernel_kills_first(boxed: Service) -> None:
    script = "print(open('/proc/self/oom_score_adj').read().strip())"
    job = boxed.run_script({"train.py": script})
    assert boxed.ended(job).state is JobState.SUCCEEDED
    assert boxed.text(job) == "500"


def test_the_home_and_the_temporary_directory_are_the_jobs_own(boxed: Service) -> None:
    script = (
        "import os, tempfile; print(os.environ['HOME'], tempfile.gettempdir()); open(os.path.expanduser('~/x'), 'w')"
    )
    job = boxed.run_script({"train.py": script})
    assert boxed.ended(job).state is JobState.SUCCEEDED
    assert boxed.text(job) == "/tmp/job /tmp/job"
