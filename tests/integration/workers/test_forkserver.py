"""The forkserver by itself, and what torchrun sets."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.integration.workers.service import eventually
from tests.unit.workers.made import ATTEMPT, a_launch
from workers.forkserver import ForkFailed, ForkServer
from workers.launch import Marks
from workers.ranks import KEPT_VARIABLES, environment
from workers.sweep import sweep

pytestmark = pytest.mark.integration

#: A server with a second thread forks a stub, which is to refuse.
TWO_THREADS = """
import os, threading, workers.forkserver
from multiprocessing import Pipe
threading.Thread(target=threading.Event().wait, daemon=True).start()
reply, answer = Pipe(duplex=False)
if os.fork() == 0:
    workers.forkserver.{stub}(answer{arguments})
    os._exit(0)
print(reply.recv_bytes().decode())
"""


@pytest.mark.parametrize(("stub", "arguments"), [("_report_server", ""), ("_fork_supervisor", ", None, None")])
def test_a_server_with_a_second_thread_is_refused(stub: str, arguments: str) -> None:
    imports = "import workers.preload\n" if stub == "_report_server" else ""
    program = imports + TWO_THREADS.format(stub=stub, arguments=arguments)
    answer = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, timeout=60).stdout
    assert json.loads(answer) == ["failed", "the forkserver has 2 threads; restart the worker"]


def in_a_process_of_its_own(run: Callable[..., None], *args: object) -> None:
    """A process has one forkserver, which tests of other things use as well."""
    process = multiprocessing.get_context("spawn").Process(target=run, args=args)
    process.start()
    process.join(60)
    assert process.exitcode == 0, "see its traceback in the captured output"


def test_a_server_is_warm_in_one_thread_with_a_scrubbed_environment_and_again_after_a_kill() -> None:
    in_a_process_of_its_own(_warm_kill_warm)


def _warm_kill_warm() -> None:
    os.environ["SHARDYARD_REDIS_URL"] = "unix:///secret"
    server = ForkServer()
    warm = [server.alive]
    server.warm()
    warm.append(server.alive)
    assert os.environ["SHARDYARD_REDIS_URL"] == "unix:///secret"
    process = _server()
    assert process.num_threads() == 1
    assert "SHARDYARD_REDIS_URL" not in process.environ()
    assert process.environ()["OPENBLAS_NUM_THREADS"] == "1"
    process.kill()
    eventually(lambda: not server.alive, "its death shows")
    server.warm()
    warm.append(server.alive)
    assert warm == [False, True, True]


def test_a_stub_that_dies_is_a_failed_launch_and_the_next_one_works(tmp_path: Path) -> None:
    in_a_process_of_its_own(_launch_while_stubs_are_killed, tmp_path)


def _launch_while_stubs_are_killed(directory: Path) -> None:
    server = ForkServer()
    server.warm()
    stop = threading.Event()
    killer = threading.Thread(target=_kill_children, args=(_server(), stop))
    killer.start()
    try:
        with pytest.raises(ForkFailed, match="the forkserver's child died"):
            _launch_often(server, directory)
    finally:
        stop.set()
        killer.join()
    assert server.launch(a_launch(directory / "next"), "unix:///none", "unix:///none") > 0
    for path in directory.iterdir():
        assert sweep(Marks.of(path, ATTEMPT), ATTEMPT) == {}


def _launch_often(server: ForkServer, directory: Path) -> None:
    for turn in range(50):
        server.launch(a_launch(directory / str(turn)), "unix:///none", "unix:///none")


def _server() -> psutil.Process:
    return next(
        child
        for child in psutil.Process().children()
        if any("multiprocessing.forkserver" in part for part in child.cmdline())
    )


def _kill_children(server: psutil.Process, stop: threading.Event) -> None:
    while not stop.is_set():
        for child in server.children():
            child.send_signal(signal.SIGKILL)


@pytest.mark.slow
def test_ranks_get_every_variable_that_torchrun_sets(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import json, os; open('rank-' + os.environ['RANK'], 'w').write(json.dumps(dict(os.environ)))")
    command = ["-m", "torch.distributed.run", "--nproc-per-node", "2", str(program)]
    before = {name: value for name, value in os.environ.items() if name in KEPT_VARIABLES}
    subprocess.run([sys.executable, *command], check=True, capture_output=True, timeout=100, cwd=tmp_path, env=before)
    theirs: dict[str, str] = json.loads((tmp_path / "rank-1").read_text())
    ours = environment(a_launch(devices=2), 1, 29500)
    # Where a rank leaves its exception for torchrun's own summary, and the size of its terminal.
    theirs_alone = {"TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE", "COLUMNS", "LINES"}
    set_by_torchrun = set(theirs) - set(before) - theirs_alone
    assert set_by_torchrun - set(ours) == set()
    chosen_by_us = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}
    same = set_by_torchrun - chosen_by_us
    assert {name: ours[name] for name in same} == {name: theirs[name] for name in same}
