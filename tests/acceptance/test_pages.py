"""Everything that tutorials and how-tos tell a reader to type, typed against one service."""

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import reduce
from pathlib import Path

import pytest

from tests.acceptance.harness import Up
from tests.acceptance.page_blocks import Block, missing_lines, read_blocks, reader_environment

pytestmark = pytest.mark.acceptance

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
#: Pages whose blocks are run, and how many of their blocks cannot be run by a test.
PAGES = {
    "../README.md": 2,
    "start.md": 2,
    "tutorials/eight-gpus.md": 1,
    "tutorials/read-a-report.md": 0,
    "tutorials/find-a-straggler.md": 0,
    "tutorials/two-machines.md": 5,
    "tutorials/on-slurm.md": 4,
    "tutorials/recipe.md": 0,
    "tutorials/ci-gate.md": 0,
    "how-to/save-a-model.md": 0,
    "how-to/resume.md": 0,
    "how-to/torchvision-data.md": 4,
    "how-to/tensorboard-and-wandb.md": 1,
    "how-to/notebooks.md": 0,
    "how-to/environments.md": 2,
    "how-to/webhooks.md": 3,
    "troubleshooting.md": 1,
    "faq.md": 0,
    "glossary.md": 0,
}
#: The beginning of a new job: those whose every command is run in the quick tests.
QUICK = ("../README.md", "start.md")
SECONDS = 240
#: What the pages call the directory that jobs may read. A test has one of its own.
DATA = "/srv/data"
#: Where a service with no options is, and its token; and the port of a receiver.
ADDRESS, TOKEN_FILE, PORT = "http://127.0.0.1:8000", "~/.local/share/shardyard/admin.token", "8765"
#: Runs the cells of a notebook, which are the files that it is given.
NOTEBOOK = """
import pathlib, sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for file in sys.argv[1:]:
    print("=== block", flush=True)
    shell.run_cell(pathlib.Path(file).read_text()).raise_error()
"""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Eight devices, an environment called `vision`, and webhooks to this machine: what the pages ask operators for."""
    directory = tmp_path_factory.mktemp("pages")
    directory.chmod(0o755)
    vision = make_environment(directory / "envs" / "vision")
    data = directory / DATA.lstrip("/")
    data.mkdir(parents=True)
    settings = {
        "SHARDYARD_ENVIRONMENTS": f"vision={vision}",
        "SHARDYARD_WEBHOOK_NETWORKS": "127.0.0.1/32",
        "SHARDYARD_DATA_ROOT": str(data),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        up = Up(directory / "data", "--devices", "cpu:8")
        up.data_dir.mkdir()
        up.start()
    yield up
    up.close()


def make_environment(directory: Path) -> Path:
    """A virtual environment with the packages of this one."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True, timeout=SECONDS)
    (packages,) = directory.glob("lib/python*/site-packages")
    here = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "base.pth").write_text("\n".join(here) + "\n")
    return directory / "bin" / "python"


@pytest.fixture
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty directory that jobs can read, in one of its own."""
    directory = tmp_path_factory.mktemp("page") / "project"
    directory.mkdir()
    return directory


@pytest.mark.parametrize(
    "page", [page if page in QUICK else pytest.param(page, marks=pytest.mark.slow) for page in PAGES]
)
def test_a_page_does_what_it_says(page: str, up: Up, project: Path) -> None:
    blocks = read_blocks(DOCS / page)
    if page == "../README.md":
        make_checkout(project)
    skipped = [block for block in blocks if block.why_not_run]
    assert len(skipped) == PAGES[page], "say in PAGES how many blocks are not run"
    printed = run_page([block for block in blocks if not block.why_not_run], up, project)
    for block, text in printed:
        assert not list(missing_lines(block.text, text)), text


def make_checkout(directory: Path) -> None:
    """What the README's commands need of a clone in which `make up` has run."""
    (directory / ".venv").symlink_to(sys.prefix)
    shutil.copytree(ROOT / "examples", directory / "examples")
    shutil.copy(ROOT / "pyproject.toml", directory)


def run_page(blocks: list[Block], up: Up, project: Path) -> list[tuple[Block, str]]:
    """What the page shows as output, each with what was printed between it and the commands that it belongs to."""
    script = ["set -euo pipefail"]
    cells: list[Path] = []
    for block in blocks:
        if block.is_file:
            target = project / block.title
            script.append(f"mkdir -p {target.parent} && cat > {target} <<'END OF FILE'\n{block.text}END OF FILE")
        elif block.language == "sh":
            script.append(f"echo '=== block'\n{block.text}")
        elif block.language == "python":
            cells.append(project / f"cell-{len(cells)}")
            cells[-1].write_text(block.text)
    if cells:
        script.append(f"python -c '{NOTEBOOK}' {' '.join(map(str, cells))}")
    ran = subprocess.run(
        ["bash", "-c", on_this_service("\n".join(script), up)],
        cwd=project,
        env=reader_environment(up.data_dir, project.parent),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    parts = ran.stdout.split("=== block\n")[1:]
    shown = [block for block in blocks if block.is_output]
    return list(zip(shown, outputs_before(blocks, parts), strict=True))


def on_this_service(script: str, up: Up) -> str:
    assert up.client is not None
    there = {
        ADDRESS: up.client.url,
        TOKEN_FILE: str(up.data_dir / "admin.token"),
        DATA: str(up.data_dir.parent / DATA.lstrip("/")),
        PORT: str(free_port()),
    }
    return reduce(lambda text, place: text.replace(place, there[place]), there, script)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def outputs_before(blocks: list[Block], parts: list[str]) -> Iterator[str]:
    """For each block of output: what the last block that ran had printed. `parts` are what all of them printed."""
    ran = 0
    for block in blocks:
        if block.is_output:
            yield parts[ran - 1]
        elif not block.is_file and block.language in ("sh", "python"):
            ran += 1


def test_a_line_that_was_not_printed_is_found() -> None:
    printed = "state  succeeded\nloss 0.5\nend\n"
    assert list(missing_lines("state succeeded\nloss ...\nend", printed)) == []
    assert list(missing_lines("loss ...\nstate succeeded", printed)) == ["state succeeded"]
    assert list(missing_lines("loss 0.6", printed)) == ["loss 0.6"]
