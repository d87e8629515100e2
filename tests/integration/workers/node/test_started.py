"""Programs that a script's rank starts: what the boot directory does to them, and what it leaves alone."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from jobs.protocol.records import Hello, MetricSample
from tests.support.probe_socket import Listening
from workers.probe.descendants import BOOT, FAMILY, SOCKET, Family, environment
from workers.runtime.context import RankDevice

pytestmark = pytest.mark.integration

DEVICES = (RankDevice(0, "cpu", "cpu:0"), RankDevice(1, "cpu", "cpu:1"))


def variables(address: object, output: Path) -> dict[str, str]:
    return environment(Family(0, 1, DEVICES, 2, 1, str(address), rehearsed=False, output=str(output)))


def run(
    directory: Path, files: Mapping[str, str], listening: Listening | None, *args: str, **more: str
) -> subprocess.CompletedProcess[str]:
    """`main.py` among these files, as a rank would start it."""
    for name, text in files.items():
        (directory / name).write_text(text)
    address = listening.path if listening is not None else "/nowhere"
    command = [sys.executable, *args, "main.py"]
    process = subprocess.Popen(
        command,
        cwd=directory,
        env=variables(address, directory) | more,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    if listening is not None:
        listening.until(lambda: process.poll() is not None)
        listening.children.drain()
    out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


MODULES = (
    "import sys; print(sorted(sys.modules)); print([type(one).__name__ for one in sys.meta_path]); print(sys.path)"
)


def test_a_program_without_torch_meets_next_to_nothing_of_ours(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(MODULES)
    plain = subprocess.run([sys.executable, "main.py"], cwd=tmp_path, env={}, capture_output=True, text=True).stdout
    with Listening() as listening:
        followed = run(tmp_path, {}, listening)
        assert listening.children.accepted_count == 0
    modules, finders, path = (eval(line) for line in followed.stdout.splitlines())
    plain_modules, plain_finders, plain_path = (eval(line) for line in plain.splitlines())
    assert set(modules) - set(plain_modules) <= {
        "sitecustomize",
        "__future__",
        "importlib.machinery",
        "importlib",
        "importlib._bootstrap",
        "importlib._bootstrap_external",
        "warnings",
    }
    assert finders == ["ImportTrigger", *plain_finders]
    assert path == [place for place in plain_path if not Path(place, "workers", "runtime", "import_hook.py").exists()]
    assert followed.stderr == ""


def test_a_programs_own_modules_are_found_whatever_they_are_called(tmp_path: Path) -> None:
    main = """
import jobs, workers
from shardyard import job
job.log("loss", 1.5)
import jobs as again, shardyard, sys
assert jobs.MINE and workers.MINE and again is jobs
assert sys.modules["shardyard.job"] is job is shardyard.job
assert not [name for name in sys.modules if name.startswith(("jobs.", "workers."))]
"""
    with Listening() as listening:
        done = run(tmp_path, {"main.py": main, "jobs.py": "MINE = 1", "workers.py": "MINE = 1"}, listening)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        (metric,) = listening.of(MetricSample)
        assert isinstance(metric, MetricSample)
        assert (metric.device, metric.name, metric.value) == (-1, "loss", 1.5)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_of_a_program_log_too_however_they_are_started(tmp_path: Path, method: str) -> None:
    main = f"""
import multiprocessing

def work():
    from shardyard import job
    for number in range(3):
        job.log("number", number)

if __name__ == "__main__":
    process = multiprocessing.get_context({method!r}).Process(target=work)
    process.start()
    process.join()
    raise SystemExit(process.exitcode)
"""
    with Listening() as listening:
        done = run(tmp_path, {"main.py": main}, listening)
        assert done.returncode == 0, done.stderr
        points = [(one.step, one.value) for one in listening.of(MetricSample) if isinstance(one, MetricSample)]
        assert points == [(0, 0.0), (1, 1.0), (2, 2.0)]


def test_an_environments_own_customisation_runs_as_ever(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import builtins; builtins.CUSTOM = __file__")
    main = "import sitecustomize; print(CUSTOM == sitecustomize.__file__)"
    done = run(tmp_path, {"main.py": main}, None, PYTHONPATH=f"{BOOT}:{tmp_path / 'site'}")
    assert (done.stdout, done.stderr) == ("True\n", "")


@pytest.mark.parametrize("broken", [{FAMILY: "{"}, {"SHARDYARD_LENT": "[]"}, {SOCKET: "/nowhere"}])
def test_what_is_broken_of_ours_is_not_the_programs_trouble(tmp_path: Path, broken: dict[str, str]) -> None:
    (tmp_path / "torch.py").write_text("HERE = 1")  # stands for the library: it is only looked for by its name
    done = run(tmp_path, {"main.py": "import torch; print(torch.HERE)"}, None, **broken)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


def test_a_program_that_may_not_be_followed_is_not(tmp_path: Path) -> None:
    with Listening() as listening:
        done = run(tmp_path, {"main.py": "import sys; print(sys.meta_path[0])"}, listening, "-I")
        assert "ImportTrigger" not in done.stdout
        assert not listening.of(Hello)
