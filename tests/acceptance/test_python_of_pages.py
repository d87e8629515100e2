"""The Python blocks of all pages: each is run here or by the test of its page, or stands here with the reason why not.

A block is known by how it begins. What it takes from the reader's program is given to it by the code before it; the
code after it checks what it has done.
"""

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.page_blocks import Block, read_blocks, reader_environment
from tests.acceptance.test_client import DOCUMENT as CLIENT_PAGE
from tests.acceptance.test_pages import PAGES

pytestmark = pytest.mark.acceptance

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
#: The how-tos, tutorials and others that `test_pages` follows from one block to the next.
FOLLOWED = {(DOCS / page).resolve() for page in PAGES}
GENERATED = "signatures, which tools.references writes from the code"
NOT_PYTHON = {DOCS / "reference" / "client.md": GENERATED}

SIGNED = """
import json
from shardyard import webhooks
secret, seen = "whsec_reader", set()
job = {"id": "0" * 32, "name": "n", "labels": {}, "tenant": "default", "pool": "default", "attempt": 1,
       "version": 3, "previous_state": "running", "state": "succeeded"}
body = json.dumps({"id": "e", "kind": "job.succeeded", "at": "2026-01-01T00:00:00Z", "data": {"job": job}}).encode()
headers = {"Shardyard-Signature": webhooks.sign(secret, body, former="whsec_former")}
"""
STUDY = """
from pathlib import Path
from api.groups.optuna_search import PastTrial, SearchPlan, write_study
past = [PastTrial({"lr": value}, value) for value in (0.5, 0.25)]
Path("study.log").write_bytes(write_study(SearchPlan({"lr": [0.25, 0.5]}, 3, False, 0, past), "sweep"))
BEST = {"lr": "0.25"}, 0.25
"""
TRAINS = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
model = nn.Linear(5, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(100, 5), torch.randn(100, 2))
criterion, epochs, steps, trained = nn.MSELoss(), 2, 3, []
def train_step():
    trained.append(model(torch.randn(4, 5)).sum())
    return trained[-1]
"""
#: Blocks that are run here: page and beginning, and the code before and after them.
RUN = {
    ("api.md", "from shardyard import webhooks"): (SIGNED, "assert event.kind == 'job.succeeded'"),
    ("api.md", "import hashlib, hmac, time"): (SIGNED, "assert len(signatures) == 2"),
    ("client.md", "from shardyard import Client\n"): ("", "assert Client.__module__.startswith('shardyard.')"),
    ("comparisons.md", "import optuna"): (STUDY, "assert (study.best_params, study.best_value) == BEST"),
    ("scripts.md", "from shardyard import job  # 1"): (TRAINS, "assert (len(trained), stop) == (3, False)"),
    ("scripts.md", "from shardyard import job\n\nfor step"): (TRAINS, "assert Path('output/model.pt').is_file()"),
    ("scripts.md", "from shardyard import job\nfrom shardyard.script"): (
        TRAINS,
        "assert (batch, loss.item() > 0) == (3, True)",
    ),
}
#: Runs each program in a namespace and a directory of its own; prints what failed of each, by its number.
RUNNER = """
import contextlib, io, json, os, sys, traceback
failed = {}
for number, text in enumerate(json.load(sys.stdin)):
    os.mkdir(str(number))
    with contextlib.chdir(str(number)), contextlib.redirect_stdout(io.StringIO()):
        try:
            exec(compile(text, f"block {number}", "exec"), {"__name__": "__main__"})
        except BaseException:
            failed[number] = traceback.format_exc()
print(json.dumps(failed))
"""
SECONDS = 120


def pages() -> list[Path]:
    """All but translations, which have the blocks of their originals (tests/unit/tools/test_site_pages.py)."""
    found = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    return [page for page in found if not page.name.endswith(".zh.md") and page not in NOT_PYTHON]


def blocks_of(page: Path) -> list[Block]:
    return [block for block in read_blocks(page) if block.language == "python"]


WITH_PYTHON = [page for page in pages() if blocks_of(page)]


def starts_of(page: Path) -> list[str]:
    return [start for name, start in RUN if DOCS / name == page]


def program_of(block: Block) -> str:
    """The code of a block: of one that shows a prompt, what is typed there."""
    lines = block.text.splitlines()
    typed = [line[4:] for line in lines if line.startswith((">>> ", "..."))]
    return "\n".join(typed if block.text.startswith(">>> ") else lines) + "\n"


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_python_block_is_run_or_has_a_reason_why_not(page: Path) -> None:
    blocks = read_blocks(page)
    for block in blocks_of(page):
        if page == CLIENT_PAGE and block.text.startswith(">>> "):
            continue  # test_client runs it
        if page in FOLLOWED:
            used = not block.is_file or is_used(block, blocks)
            assert used or block.why_not_run, f"no command of {page.name} uses {block.title}"
        else:
            known = [start for start in starts_of(page) if block.text.startswith(start)]
            assert len(known) == 1, f"add this block of {page.name} to RUN:\n{block.text}"


def is_used(file: Block, blocks: list[Block]) -> bool:
    """Whether another block of the page, which is run or written, names the file or its module."""
    name = Path(file.title).stem
    return any(name in block.text for block in blocks if block != file and not block.why_not_run)


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_python_block_compiles_and_finds_what_it_imports_of_shardyard(page: Path) -> None:
    for block in blocks_of(page):
        tree = compile(program_of(block), page.name, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        assert list(missing_imports(tree)) == [], block.text


def missing_imports(tree: ast.AST) -> list[str]:
    missing = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            wanted = [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            wanted = [(node.module or "", alias.name) for alias in node.names]
        else:
            continue
        missing += [f"{module} {name}" for module, name in wanted if is_missing(module, name)]
    return missing


def is_missing(module: str, name: str) -> bool:
    if module.split(".")[0] != "shardyard":
        return False
    try:
        found = importlib.import_module(module)
        return bool(name) and not hasattr(found, name) and importlib.import_module(f"{module}.{name}") is None
    except ImportError:
        return True


def block_of(page: str, start: str) -> Block:
    found = [block for block in blocks_of(DOCS / page) if block.text.startswith(start)]
    assert len(found) == 1, f"{len(found)} Python blocks of {page} begin with {start!r}"
    return found[0]


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What went wrong in the blocks of RUN, by their number; one process imports torch for all."""
    directory = tmp_path_factory.mktemp("python")
    programs = [
        f"from pathlib import Path\n{before}\n{block_of(*known).text}\n{after}\n"
        for known, (before, after) in RUN.items()
    ]
    ran = subprocess.run(
        [sys.executable, "-c", RUNNER],
        cwd=directory,
        env=reader_environment(directory, directory),
        input=json.dumps(programs),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    said: dict[str, str] = json.loads(ran.stdout)
    return said


@pytest.mark.parametrize("number", range(len(RUN)), ids=[f"{page}-{number}" for number, (page, _) in enumerate(RUN)])
def test_a_python_block_does_what_it_says(number: int, failed: dict[str, str]) -> None:
    assert str(number) not in failed, failed[str(number)]


def test_an_import_that_is_not_there_is_found() -> None:
    text = "import shardyard.nothing\nfrom shardyard import Client, Nothing\nfrom shardyard.client import events\n"
    assert missing_imports(ast.parse(text)) == ["shardyard.nothing ", "shardyard Nothing"]
