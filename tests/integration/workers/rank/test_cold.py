"""Ranks in a Python of their own: environments that the operator lists, and variables that torch reads at import."""

import importlib.util
import json
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.model.state import JobState, StateReason
from tests.integration.workers.rank.test_script_children import FORK, NESTED, TRAIN
from tests.integration.workers.rank.test_scripts import LOOK, run_plain
from tests.integration.workers.service import Service, running_service

pytestmark = pytest.mark.integration

#: What torch needs, and nothing else that the service has.
TORCH = (
    *("torch", "torchgen", "functorch", "numpy", "sympy", "mpmath", "networkx"),
    *("jinja2", "markupsafe", "filelock", "fsspec", "typing_extensions", "setuptools"),
)


def an_environment(directory: Path, packages: tuple[str, ...] = TORCH) -> Path:
    """The Python of a new environment that has these packages of ours alone."""
    venv.create(directory, with_pip=False, symlinks=True)
    (site,) = directory.glob("lib/python*/site-packages")
    for name in packages:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            path = Path(spec.origin).parent if spec.submodule_search_locations else Path(spec.origin)
            (site / path.name).symlink_to(path)
    (site / "only_here.py").write_text("")
    return directory / "bin" / "python"


@pytest.fixture(scope="module")
def lean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return an_environment(tmp_path_factory.mktemp("lean") / "venv")


@pytest.fixture(scope="module")
def cold(tmp_path_factory: pytest.TempPathFactory, lean: Path) -> Iterator[Service]:
    with running_service(tmp_path_factory.mktemp("service"), environments=f"lean={lean}") as service:
        yield service
        service.leaves_nothing()


def test_a_script_in_another_environment_sees_what_its_python_shows(cold: Service, lean: Path, tmp_path: Path) -> None:
    files = {"train.py": "import only_here\n" + LOOK}
    plain = run_plain(tmp_path, files, "train.py", "--x", python=lean)
    job = cold.run_script(files, "--x", python="lean")
    record = cold.ended(job, 60)
    assert record.state is JobState.SUCCEEDED, (record, cold.text(job, stream="stderr"))
    ours, theirs = json.loads(cold.text(job)), json.loads(plain.stdout)
    ours["threads"].remove("telemetry")
    for facts in (ours, theirs):
        del facts["seed"]
    assert {name: (ours[name], theirs[name]) for name in theirs if ours[name] != theirs[name]} == {}


def test_variables_that_are_read_at_import_work(cold: Service) -> None:
    program = "import torch\nprint(torch.get_num_threads())"
    job = cold.run_script({"train.py": program}, env={"OMP_NUM_THREADS": "2"})  # a rank of one device gets 1
    assert cold.ended(job, 60).state is JobState.SUCCEEDED, cold.text(job, stream="stderr")
    assert cold.text(job) == "2"


def test_an_error_ends_a_cold_job_as_a_warm_one(cold: Service) -> None:
    program = "def main():\n    raise LookupError('on purpose')\nmain()\n"
    errors = []
    for python in ("lean", None):
        job = cold.run_script({"train.py": program}, python=python)
        record = cold.ended(job, 60)
        root = str(cold.marks(cold.attempt(job)).work)
        assert record.error is not None
        errors.append((record.reason, json.dumps(record.error).replace(root, "<root>")))
        assert "LookupError: on purpose" in cold.text(job, stream="stderr")
    assert errors[0] == errors[1]


@pytest.mark.slow
def test_ranks_in_another_environment_find_each_other(cold: Service) -> None:
    program = """
import torch, torch.distributed as dist
from shardyard import job
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
job.log("total", total)
print(int(total))
dist.destroy_process_group()
"""
    job = cold.run_script({"train.py": program}, strategy="ddp", devices=2, python="lean")
    assert cold.ended(job, 90).state is JobState.SUCCEEDED, cold.text(job, stream="stderr")
    assert [cold.text(job, rank) for rank in range(2)] == ["2", "2"]


def test_an_environment_that_the_node_lacks_is_named_with_those_it_has(cold: Service) -> None:
    record = cold.ended(cold.run_script({"train.py": ""}, python="fat"))
    assert record.reason is StateReason.REJECTED_BY_WORKER
    assert "no environment 'fat' (it has: lean)" in record.message
    assert "--env fat=/path/to/python" in record.message


def test_the_node_tells_which_environments_it_has(cold: Service) -> None:
    assert cold.node().info.environments == ("lean",)


@pytest.mark.slow
def test_processes_that_a_cold_rank_starts_are_followed_into_its_environment(cold: Service) -> None:
    files = {"main.py": NESTED, "fork.py": FORK, "train.py": TRAIN}
    job = cold.run_script(files, entrypoint="main.py", devices=2, python="lean")
    assert cold.ended(job, 100).state is JobState.SUCCEEDED, cold.text(job, stream="stderr")
    patterns = {(tuple(pattern["rows"]), pattern["steps"]) for pattern in cold.report(job)["patterns"]}
    assert patterns == {((10, 10), 4), ((5, 5), 2)}
