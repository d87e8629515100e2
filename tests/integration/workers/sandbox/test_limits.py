"""Jobs that use more than they may: real bombs, kept small by limits that are set low, and harmless without these."""

import os
from collections.abc import Iterator
from textwrap import dedent
from typing import Any

import pytest

from jobs.model.records import JobRecord
from jobs.model.state import JobState, StateReason
from tests.integration.workers.box_modes import without_cgroups
from tests.integration.workers.service import MODULE, Service, running_service

pytestmark = pytest.mark.integration

MIB = 1024 * 1024
LOG_BYTES, DISK_BYTES, FILES, PROCESSES, RECORD_BYTES, MEMORY_BYTES = 200_000, 32 * MIB, 300, 150, MIB, 1024 * MIB
#: Makes a program end by itself where nothing else ends it, so that a test can fail without harm.
WAIT = "import time; time.sleep(60)\n"


LIMITS: dict[str, Any] = {
    "job_log_bytes": LOG_BYTES,
    "job_disk_bytes": DISK_BYTES,
    "job_files": FILES,
    "rank_processes": PROCESSES,
    "job_record_bytes": RECORD_BYTES,
    "job_memory_bytes": MEMORY_BYTES,
}

#: In a box the kernel limits too; only root has the full one.
MODES = [
    pytest.param("cgroup", marks=() if os.geteuid() else pytest.mark.slow),
    pytest.param("no cgroup", marks=pytest.mark.slow),
    "box",
]


@pytest.fixture(scope="module", params=MODES)
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service whose jobs may use little: limited by the kernel where it allows that, watched, or in a box."""
    directory = tmp_path_factory.mktemp("limited")
    if request.param == "box":
        if os.geteuid():
            pytest.skip("the full box takes root")
        settings, command = LIMITS | {"box": "auto", "jobs_unboxed": False}, MODULE
    else:
        command = MODULE if request.param == "cgroup" or os.geteuid() else without_cgroups()
        settings = LIMITS
    with running_service(directory, command, **settings) as service:
        yield service


def ends_over(service: Service, limit: str, allowed: int, source: str, **options: Any) -> JobRecord:
    """Run a script that must end for one limit, and check what the job says of it."""
    record = service.ended(service.run_script({"train.py": source}, **options))
    assert (record.state, record.reason) == (JobState.FAILED, StateReason.RESOURCE_LIMIT), record
    assert record.error is not None
    assert (record.error["limit"], record.error["allowed"]) == (limit, allowed)
    assert record.error["used"] >= allowed
    assert record.error["advice"]
    assert record.attempt == 1
    assert service.report(record.id)["final"]
    return record


FLOODS = {
    "lines": "while True: print('a line of this flood')",
    "bytes without a newline": "while True: sys.stdout.buffer.write(b'x' * 65536)",
    "zeros": "while True: sys.stdout.buffer.write(bytes(65536))",
    "empty lines": r"while True: sys.stderr.buffer.write(b'\n' * 65536)",
    "a bar": r"while True: sys.stdout.buffer.write(b'\r 50%|' + b'#' * 65536)",
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
def test_a_log_ends_where_it_is_full_and_so_does_its_job(service: Service, flood: str) -> None:
    record = ends_over(service, "log", LOG_BYTES, f"import sys\nprint('begun', flush=True)\n{flood}\n")
    lines = service.lines(record.id)
    printed = [line for line in lines if line.stream in ("stdout", "stderr")]
    assert printed[0].text == b"begun"
    kept = sum(len(line.text) + (line.flags == 0) for line in printed)
    assert kept == LOG_BYTES
    assert [line.text.startswith(b"what to do: Print less") for line in lines if line.stream == "service"] == [True]


def test_a_program_that_prints_too_much_may_end_in_its_own_way(service: Service) -> None:
    source = """
        import os, signal, sys
        def save(*_):
            with open(os.environ["SHARDYARD_OUTPUT_DIR"] + "/saved", "w") as file:
                file.write("in time")
            os._exit(1)
        signal.signal(signal.SIGTERM, save)
        while True:
            sys.stdout.write("x" * 1000 + "\\n")
    """
    record = ends_over(service, "log", LOG_BYTES, dedent(source))
    assert (service.files(record.id) / "artifacts" / "saved").read_text() == "in time"


DISK_BOMBS = {
    "its working directory": "open('bomb', 'wb')",
    "its output": "open(os.environ['SHARDYARD_OUTPUT_DIR'] + '/bomb', 'wb')",
    "its directory for temporary files": "tempfile.NamedTemporaryFile(delete=False)",
    "a file that has no name any more": "tempfile.TemporaryFile(dir='.')",
}


@pytest.mark.parametrize("bomb", DISK_BOMBS.values(), ids=DISK_BOMBS)
def test_a_job_that_fills_the_disk_is_ended(service: Service, bomb: str) -> None:
    if "Named" in bomb and service.settings.box == "auto":
        pytest.skip("in a box, temporary files are in memory")
    source = f"""
        import os, tempfile
        print("begun", flush=True)
        file = {bomb}
        for _ in range({2 * DISK_BYTES // MIB}):
            file.write(os.urandom({MIB}))
        file.flush()
    """
    record = ends_over(service, "disk", DISK_BYTES, dedent(source) + WAIT)
    assert service.text(record.id) == "begun"


def test_holes_in_files_are_not_used(service: Service) -> None:
    source = f"with open('sparse', 'wb') as file: file.truncate({100 * DISK_BYTES})\nimport time; time.sleep(2)\n"
    assert service.ended(service.run_script({"train.py": source})).state is JobState.SUCCEEDED


def test_a_job_that_makes_very_many_files_is_ended(service: Service) -> None:
    source = f"import os\nfor number in range({2 * FILES}): os.mkdir(str(number))\n"
    ends_over(service, "files", FILES, source + WAIT)


def test_what_a_job_has_left_when_it_ends_by_itself_counts_too(service: Service) -> None:
    source = f"import os\nopen('large', 'wb').write(os.urandom({2 * DISK_BYTES}))\n"
    ends_over(service, "disk", DISK_BYTES, source)


MEMORY_BOMBS = {
    "alone": "fill(2048)",
    "by four children": "[fill(512) or signal.pause() for _ in range(4) if os.fork() == 0]",
    "in a file that nobody has mapped": (
        "file = os.memfd_create('bomb'); [os.write(file, os.urandom(4096) * 256) for _ in range(2048)]"
    ),
}


@pytest.mark.parametrize("bomb", MEMORY_BOMBS.values(), ids=MEMORY_BOMBS)
def test_a_job_that_fills_the_memory_is_ended(service: Service, bomb: str) -> None:
    source = f"""
        import os, resource, signal
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
        kept = []
        def fill(size):
            for _ in range(size):
                kept.append(os.urandom(4096) * 256)
        print("begun", flush=True)
        {bomb}
    """
    record = ends_over(service, "memory", MEMORY_BYTES, dedent(source) + WAIT)
    assert service.text(record.id) == "begun"


def test_data_that_a_rank_shares_with_its_workers_counts_once(service: Service) -> None:
    source = f"""
        import os, signal, time
        kept = os.urandom(4096) * {(MEMORY_BYTES // 3) // 4096}
        children = []
        for _ in range(4):
            children.append(os.fork())
            if children[-1] == 0:
                signal.pause()
        time.sleep(3)
        for child in children:
            os.kill(child, signal.SIGKILL)
    """
    assert service.ended(service.run_script({"train.py": dedent(source)})).state is JobState.SUCCEEDED


FORK_BOMBS = {
    "processes": "if os.fork() == 0: signal.pause()",
    "threads": "threading.Thread(target=threading.Event().wait, daemon=True).start()",
    "orphans": "if os.fork() == 0: os.setsid(); os.fork() and os._exit(0); signal.pause()",
}


@pytest.mark.parametrize("bomb", FORK_BOMBS.values(), ids=FORK_BOMBS)
def test_a_job_that_starts_too_many_processes_is_ended(service: Service, bomb: str) -> None:
    source = f"import os, signal, threading\nfor _ in range({PROCESSES + 50}):\n    {bomb}\n"
    ends_over(service, "processes", PROCESSES, source + WAIT)


def test_a_job_that_logs_more_metrics_than_are_kept_is_ended(service: Service) -> None:
    source = """
        import random
        from shardyard import job
        for step in range(10_000_000):
            job.log("loss", random.random(), step=step)
    """
    ends_over(service, "records", RECORD_BYTES, dedent(source))


def test_a_breach_counts_as_a_try_of_the_users(service: Service) -> None:
    source = f"import os\nfor number in range({2 * FILES}): os.mkdir(str(number))\n{WAIT}"
    record = service.ended(service.run_script({"train.py": source}, limits={"max_retries": 1}))
    assert (record.state, record.reason) == (JobState.FAILED, StateReason.RESOURCE_LIMIT)
    assert (record.attempt, record.retries) == (2, 1)


def test_a_job_that_keeps_to_its_limits_is_left_alone(service: Service) -> None:
    source = """
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        dist.all_reduce(torch.ones(1000))
        torch.save(torch.ones(1000), "tensor.pt")
        print("done")
    """
    job = service.run_script({"train.py": dedent(source)}, strategy="ddp", devices=2)
    assert service.ended(job).state is JobState.SUCCEEDED
