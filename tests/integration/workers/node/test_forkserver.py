"""The forkserver by itself, and what torchrun sets."""

import json
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.integration.workers.service import children_named, eventually, is_dead
from tests.support.samples.attempts import ATTEMPT, a_launch
from workers.node import forkserver
from workers.node.forkserver import ForkServer, _receive_message, _send_message
from workers.rank.process import INHERITED_VARIABLES, rank_variables
from workers.runtime.launch import AttemptDirectory
from workers.supervisor.process_sweep import sweep_attempt

pytestmark = pytest.mark.integration

#: A server whose imports have started a second thread.
TWO_THREADS = """
import sys, threading, types
from workers.node import forkserver
threading.Thread(target=threading.Event().wait, daemon=True).start()
forkserver.serve(int(sys.argv[1]))
"""


@pytest.mark.slow
def test_a_server_with_a_second_thread_says_so_and_forks_nothing(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-c", TWO_THREADS, str(theirs.fileno())]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    server = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment)
    theirs.close()
    ours.settimeout(60)
    reader, writer = os.pipe()
    try:
        _send_message(ours, pickle.dumps(None), [])  # no box
        refusal = ["failed", "the forkserver has 2 threads; restart the worker"]
        assert json.loads(_receive_message(ours)[0]) == refusal
        _send_message(ours, pickle.dumps(a_launch(tmp_path)), [reader])
        assert json.loads(_receive_message(ours)[0]) == refusal
        assert psutil.Process(server.pid).children() == []
    finally:
        server.kill()
        server.wait()
        for end in (reader, writer, ours.detach()):
            os.close(end)


@pytest.fixture(scope="module")
def shared() -> Iterator[ForkServer]:
    """Whoever warms it has what the server must not pass on."""
    server = ForkServer()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("SHARDYARD_REDIS_URL", "MY_PASSWORD"):
            patch.setenv(name, "unix:///secret")
        yield server
    server.close()


@pytest.fixture
def server(shared: ForkServer) -> ForkServer:
    """Warm, whatever the test before has done to it."""
    if not shared.is_alive:
        shared.start_warm()
    return shared


def test_a_server_is_warm_in_one_thread_with_a_scrubbed_environment_and_again_after_a_kill(shared: ForkServer) -> None:
    server = shared
    server.close()
    warm = [server.is_alive]
    server.start_warm()
    warm.append(server.is_alive)
    assert os.environ["SHARDYARD_REDIS_URL"] == "unix:///secret"
    assert server.pid is not None
    process = psutil.Process(server.pid)
    assert process.num_threads() == 1
    assert "SHARDYARD_REDIS_URL" not in process.environ()
    assert process.environ()["OPENBLAS_NUM_THREADS"] == "1"
    process.kill()
    eventually(lambda: not server.is_alive, "its death shows")
    server.start_warm()
    warm.append(server.is_alive)
    assert warm == [False, True, True]


@pytest.mark.slow
def test_a_server_that_does_not_answer_is_killed_and_the_next_one_works(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    monkeypatch.setattr(forkserver, "DEATH_DELAY_SECONDS", 0.0)
    with_more_time = forkserver.REPLY_SECONDS
    monkeypatch.setattr(forkserver, "REPLY_SECONDS", 0.5)
    kill = ForkServer._kill_server

    def kill_and_ask_the_next(self: ForkServer) -> None:
        monkeypatch.setattr(forkserver, "REPLY_SECONDS", with_more_time)
        kill(self)

    monkeypatch.setattr(ForkServer, "_kill_server", kill_and_ask_the_next)
    first = server.pid
    assert server.start_supervisor(a_launch(tmp_path), "unix:///none", "unix:///none") > 0
    assert server.pid != first
    assert sweep_attempt(AttemptDirectory.of(tmp_path, ATTEMPT), ATTEMPT) == {}


@pytest.mark.slow
def test_a_supervisor_outlives_its_server_and_is_nobodys_zombie(server: ForkServer, tmp_path: Path) -> None:
    assert server.pid is not None
    supervisor = psutil.Process(server.start_supervisor(a_launch(tmp_path), "unix:///none", "unix:///none"))
    # In the session of its server, a stopped one would be woken when that ends; and on a busy machine it stops later.
    eventually(lambda: os.getsid(supervisor.pid) == supervisor.pid, "it has a session of its own")
    supervisor.suspend()
    eventually(lambda: supervisor.status() == psutil.STATUS_STOPPED, "it has stopped")
    os.kill(server.pid, signal.SIGKILL)
    eventually(lambda: not server.is_alive, "its death shows")
    assert supervisor.status() == psutil.STATUS_STOPPED
    second = psutil.Process(server.start_supervisor(a_launch(tmp_path / "second"), "unix:///none", "unix:///none"))
    second.kill()
    eventually(lambda: not second.is_running(), "it is reaped")
    supervisor.kill()
    for path in (tmp_path, tmp_path / "second"):
        assert sweep_attempt(AttemptDirectory.of(path, ATTEMPT), ATTEMPT) == {}


def test_a_process_that_was_forked_ahead_becomes_the_next_supervisor_and_another_takes_its_place(
    server: ForkServer, tmp_path: Path
) -> None:
    (spare,) = eventually(lambda: _spares(server), "one is forked ahead")
    assert server.start_supervisor(a_launch(tmp_path), "unix:///none", "unix:///none") == spare.pid
    eventually(lambda: [each for each in _spares(server) if each.pid != spare.pid], "another is forked ahead")
    assert sweep_attempt(AttemptDirectory.of(tmp_path, ATTEMPT), ATTEMPT) == {}


def test_a_process_forked_ahead_has_nothing_of_the_worker_but_its_line(server: ForkServer) -> None:
    (spare,) = eventually(lambda: _spares(server), "one is forked ahead")
    assert os.getsid(spare.pid) == spare.pid
    assert spare.num_threads() == 1
    eventually(lambda: sorted(map(int, os.listdir(f"/proc/{spare.pid}/fd")))[:3] == [0, 1, 2], "it closes the rest")
    eventually(lambda: spare.num_fds() == 4, "the usual three, and its line")
    assert "secret" not in Path(f"/proc/{spare.pid}/environ").read_text()


def test_a_launch_does_without_a_process_forked_ahead_that_was_killed(server: ForkServer, tmp_path: Path) -> None:
    (spare,) = eventually(lambda: _spares(server), "one is forked ahead")
    spare.kill()
    eventually(lambda: not spare.is_running(), "it is gone")
    pid = server.start_supervisor(a_launch(tmp_path), "unix:///none", "unix:///none")
    assert pid != spare.pid
    assert psutil.pid_exists(pid)
    assert sweep_attempt(AttemptDirectory.of(tmp_path, ATTEMPT), ATTEMPT) == {}


def test_a_process_forked_ahead_ends_with_its_server(server: ForkServer) -> None:
    (spare,) = eventually(lambda: _spares(server), "one is forked ahead")
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    eventually(lambda: is_dead(spare.pid), "it has ended")


@pytest.mark.slow
def test_a_warm_server_keeps_little_of_the_code_that_only_its_imports_ran(server: ForkServer) -> None:
    assert server.pid is not None
    mappings = psutil.Process(server.pid).memory_maps(grouped=False)
    code = [mapping for mapping in mappings if mapping.perms == "r-xp" and mapping.path.endswith(".so")]
    assert any("libtorch_cpu" in mapping.path for mapping in code)
    assert sum(mapping.rss for mapping in code) < 10e6  # 80 MB otherwise


def _spares(server: ForkServer) -> list[psutil.Process]:
    assert server.pid is not None
    return children_named("sy-spare", server.pid)


@pytest.mark.slow
def test_ranks_get_every_variable_that_torchrun_sets(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import json, os; open('rank-' + os.environ['RANK'], 'w').write(json.dumps(dict(os.environ)))")
    command = ["-m", "torch.distributed.run", "--nproc-per-node", "2", str(program)]
    before = {name: value for name, value in os.environ.items() if name in INHERITED_VARIABLES}
    subprocess.run([sys.executable, *command], check=True, capture_output=True, timeout=100, cwd=tmp_path, env=before)
    theirs: dict[str, str] = json.loads((tmp_path / "rank-1").read_text())
    ours = rank_variables(a_launch(devices=2), 1, 29500)
    # Where a rank leaves its exception for torchrun's own summary, and the size of its terminal.
    theirs_alone = {"TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE", "COLUMNS", "LINES"}
    set_by_torchrun = set(theirs) - set(before) - theirs_alone
    assert set_by_torchrun - set(ours) == set()
    chosen_by_us = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}
    same = set_by_torchrun - chosen_by_us
    assert {name: ours[name] for name in same} == {name: theirs[name] for name in same}
