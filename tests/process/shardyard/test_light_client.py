"""The client and the command line beside a user's own `jobs`, and with none of the server's dependencies."""

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
REPORT = ROOT / "docs" / "examples" / "ten-for-eight.json"
OURS = ("api", "jobs", "workers")
#: Nobody listens there.
NOWHERE = "http://127.0.0.1:9"

READS_A_REPORT = f"""
from shardyard import AsyncClient, Client, SplitReport, errors, job
Client({NOWHERE!r}, "token").close()
report = SplitReport.from_json(open({str(REPORT)!r}, "rb").read())
assert "strategy" in report.text() and report.svg().startswith("<svg") and "<html" in report.html()
report.diff(report)
print("read")
"""

#: What a fresh environment without the server's packages is like: run before the program.
WITHOUT_THE_SERVER = """
import json, os, sys
class Refuse:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
names = frozenset(json.loads(os.environ["REFUSED_MODULES"]))
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in names else found(name, package)
sys.meta_path.insert(0, Refuse)
"""


def python(
    program: list[str], directory: Path, variables: dict[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SHARDYARD_")}
    return subprocess.run(
        [sys.executable, *program],
        cwd=directory,
        env=environment | {"SHARDYARD_DATA_DIR": str(directory / "data")} | (variables or {}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def own_packages(tmp_path: Path) -> Path:
    """A user's directory, with packages that are called like those of the server."""
    for name in OURS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("MINE = True\n")
    (tmp_path / "train.py").write_text("import jobs\nassert jobs.MINE\n")
    (tmp_path / "spec.json").write_text("{}")
    (tmp_path / "pyproject.toml").touch()
    return tmp_path


def test_a_script_beside_packages_of_our_names_uses_the_client_and_its_own_packages(own_packages: Path) -> None:
    (own_packages / "script.py").write_text(f"import api, jobs, workers\n{READS_A_REPORT}assert jobs.MINE")

    done = python(["script.py"], own_packages)

    assert (done.stdout, done.stderr) == ("read\n", "")


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (["--help"], 0, "submit"),
        (["submit", "--help"], 0, "--script"),
        (["submit", "spec.json", "--url", NOWHERE, "--token", "t"], 3, "cannot be reached"),
        (["submit", "--script", "train.py", "--url", NOWHERE, "--token", "t"], 3, "cannot be reached"),
        (["splits", "a-job", "--url", NOWHERE, "--token", "t"], 3, "cannot be reached"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_the_command_line_works_beside_packages_of_our_names(
    command: list[str], code: int, said: str, own_packages: Path
) -> None:
    done = python(["-m", "shardyard", *command], own_packages)

    assert done.returncode == code, done.stderr
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


# -- dependencies ----------------------------------------------------------------------------------


def name_of(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def light_distributions() -> set[str]:
    """What `pip install shardyard` brings, as far as it is installed here."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    todo = [name_of(requirement) for requirement in project["dependencies"]]
    found: set[str] = set()
    while todo:
        name = todo.pop()
        if name in found:
            continue
        found.add(name)
        try:
            todo += [name_of(line) for line in requires(name) or () if not re.search(r"extra\s*==", line)]
        except PackageNotFoundError:  # of another platform
            continue
    return found


def modules_of_the_server() -> list[str]:
    """All modules that are installed here and that the client alone does not bring, with our own packages."""
    light = light_distributions()
    others = (
        module
        for module, distributions in packages_distributions().items()
        if light.isdisjoint(name.lower().replace("_", "-") for name in distributions)
    )
    return sorted({*others, *OURS} - {"shardyard", "_shardyard"})


def without_the_server(program: str, directory: Path, *also: str) -> "subprocess.CompletedProcess[str]":
    refused = {"REFUSED_MODULES": json.dumps([*modules_of_the_server(), *also])}
    return python(["-c", WITHOUT_THE_SERVER + program], directory, refused)


def test_the_light_dependencies_have_nothing_of_the_server() -> None:
    assert {"httpx", "msgspec", "typer", "rich", "pathspec"} <= light_distributions()
    assert light_distributions().isdisjoint({"torch", "fastapi", "celery", "redis", "numpy", "structlog"})
    assert {"torch", "fastapi", "celery", "redis"} <= {*modules_of_the_server()}


def test_the_client_needs_the_light_dependencies_alone(tmp_path: Path) -> None:
    done = without_the_server(READS_A_REPORT, tmp_path, "pydantic", "typer")  # typer may bring pydantic

    assert (done.stdout, done.stderr) == ("read\n", "")


@pytest.mark.parametrize("command", [["--help"], ["top", "--help"], ["version"]], ids=" ".join)
def test_the_command_line_needs_the_light_dependencies_alone(command: list[str], tmp_path: Path) -> None:
    done = without_the_server(f"from shardyard.cli import main; main({command!r})", tmp_path)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "command",
    [
        ["up"],
        ["worker"],
        *(
            pytest.param(command, marks=pytest.mark.slow)
            for command in (["demo"], ["api"], ["config"], ["backup", "here"], ["restore", "there"])
        ),
    ],
    ids=lambda command: command[0],
)
def test_a_command_that_needs_the_server_says_how_to_install_it(command: list[str], tmp_path: Path) -> None:
    done = without_the_server(f"from shardyard.cli import main; main({command!r})", tmp_path)

    assert done.returncode == 2
    assert f"`shardyard {command[0]}` needs the server" in done.stderr
    assert 'pip install "shardyard[server]"' in done.stderr
    assert "Traceback" not in done.stderr
