"""The shell blocks of pages that explain rather than guide: each is typed, or stands here with the reason why not.

A block is known by how its first line begins. `JOB`, `OTHER`, `NODE` and `TOKEN` are what the pages call a job, a node
and a token of the reader's.
"""

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from shardyard.client import Client
from tests.acceptance.harness import Up
from tests.acceptance.page_blocks import read_blocks, reader_environment
from tests.acceptance.test_pages import PAGES

pytestmark = pytest.mark.acceptance

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SECONDS = 400
#: Blocks that are run, by page.
RUN = {
    "api.md": (
        "curl -X PUT -H",
        'curl -H "$AUTH" "$URL/v1/audit',
        "curl -N",
        'curl -H "$AUTH" $URL/v1/webhooks',
        "printf %s",
    ),
    "cli.md": ("shardyard submit job.yaml",),
    "comparisons.md": ("shardyard compare", "curl", "shardyard sweep"),
    "gate.md": ("shardyard gate", "curl -sf"),
    "operations.md": ("shardyard token create prometheus",),
    "operators.md": (
        "shardyard token create ana",
        "shardyard token create gpu-1",
        "shardyard pool set",
        "shardyard share",
        "shardyard redis-acl",
        "shardyard drain",
        "shardyard unquarantine",
    ),
    "programs.md": (
        "shardyard plan examples/jobs/rows-on-8-devices.json",
        "shardyard logs",
        "DP=$(",
        "shardyard plan examples/jobs/unlike-devices-3-to-2.json",
    ),
    "rehearsal.md": ("shardyard submit",),
    "report.md": ("shardyard splits",),
    "scripts.md": (
        "shardyard submit --script train.py --",
        "shardyard secret put",
        "shardyard artifacts",
        "shardyard submit --script train.py --keep",
        "shardyard submit --script train.py --set",
        "shardyard submit --dir examples/scripts",
        "zip -qr",
    ),
    "tune.md": ("shardyard tune",),
}
#: Those that the quick tests run too.
QUICK = {
    ("api.md", "curl -X PUT -H"),
    ("api.md", 'curl -H "$AUTH" "$URL/v1/audit'),
    ("api.md", "curl -N"),
    ("gate.md", "curl -sf"),
    ("operations.md", "shardyard token create prometheus"),
    ("operators.md", "shardyard token create ana"),
    ("programs.md", "shardyard logs"),
}
#: What a command may end with besides 0: a gate whose limits are broken, or cannot be judged.
CODES = {("gate.md", "shardyard gate"): (0, 5, 6)}
DOCKER = "needs Docker; tests/compose starts the same files"
SERVICE = "starts another service, which stays in the foreground"
HOSTS = "needs several machines"
SETTINGS = "settings of a service that is started elsewhere"
NOT_RUN = {
    "compose.md": {
        "docker compose up --detach --wait --build": DOCKER,
        "docker compose exec -T api": DOCKER,
        "export SHARDYARD_URL": DOCKER,
        "PIP_EXTRA_INDEX_URL": DOCKER,
        "docker compose up --detach --wait --scale": DOCKER,
        "install -d": HOSTS,
        "printf": HOSTS,
        "docker compose -f": DOCKER,
        "docker compose stop": DOCKER,
        "docker compose create": DOCKER,
        "docker compose build": DOCKER,
        "docker compose run": DOCKER,
    },
    "engines.md": {
        "shardyard provider": "needs Slurm",
        "srun": "needs Slurm",
        "curl -X DELETE": "ends an allocation of Slurm",
    },
    "gpu.md": {"make gpu-test": "needs a GPU", "make gpu-wheels": "downloads wheels for a GPU's machine"},
    "high-availability.md": {"export SHARDYARD_REDIS_URL": HOSTS},
    "hosts.md": {
        "SHARDYARD_NODE_ADDRESS": HOSTS,
        "shardyard nodes --test": HOSTS,
        "export SHARDYARD_REDIS_URL": HOSTS,
    },
    "joining.md": {
        "python3 -m venv": "installs a release of the package",
        "shardyard up --listen": SERVICE,
        "shardyard nodes": HOSTS,
        "shardyard drain": HOSTS,
    },
    "kubernetes.md": {"docker build": "needs a cluster", "kubectl label": "needs a cluster"},
    "operators.md": {
        "shardyard up --devices cuda": "needs GPUs",
        "shardyard up --host": "needs a certificate of a host",
        "export SHARDYARD_URL": "the address of a service elsewhere",
        "SHARDYARD_NODE=": "needs GPUs",
        "shardyard up --nodes": SERVICE,
        "export SHARDYARD_REDIS_URL": SETTINGS,
        "SHARDYARD_ADMIN_TOKEN_FILE": "needs a Redis of its own, and GPUs",
        "pip install": "needs a bucket",
        "shardyard worker --pool a100": "needs GPUs",
        "python3 -m venv": "downloads packages",
        "SHARDYARD_RUN_AS": "needs root, accounts and GPUs",
        "export SHARDYARD_WEBHOOK_NETWORKS": SETTINGS,
        "export SHARDYARD_MAIL_SERVER": SETTINGS,
        "shardyard secret new-key": HOSTS,
        "shardyard forget": "needs a node that is gone",
        "docker run": DOCKER,
        "shardyard backup /backups/monday ": SERVICE,
        "shardyard backup  /backups/monday": "needs a Redis of its own",
    },
    "programs.md": {"shardyard submit examples/jobs/cifar10-cnn.json": "needs the data of CIFAR-10"},
    "single-sign-on.md": {
        "export SHARDYARD_PUBLIC_URL": "needs a provider of sign-ons",
        "shardyard login": "needs a provider of sign-ons, and a person",
    },
}
CASES = [(page, start) for page, starts in RUN.items() for start in starts]

JOB_JSON = """{
  "name": "NAME", "resources": {"devices": 3}, "parallelism": {"strategy": "dp"},
  "program": {
    "model": {"ref": "mlp", "args": {"hidden": [8]}},
    "data": {"ref": "digits", "batch_size": 64},
    "loss": {"ref": "cross_entropy"},
    "optimizer": {"ref": "sgd", "args": {"lr": 0.1}}
  }
}
"""
TRAIN = """import torch
from torch import nn
model = nn.DataParallel(nn.Linear(5, 2).cuda())
for step in range(4):
    print(model(torch.randn(30, 5).cuda()).sum())
torch.save(model.module.state_dict(), "model.pt")
"""
PLAIN = """import torch, pathlib
pathlib.Path("model.pt").write_bytes(b"model")
pathlib.Path("runs").mkdir(exist_ok=True)
print(torch.nn.Linear(5, 2)(torch.randn(30, 5)).sum())
"""


@dataclass(frozen=True)
class Reader:
    """A project of somebody who reads the pages, and what the words of the pages stand for there."""

    directory: Path
    environment: dict[str, str]
    words: dict[str, str]
    client: Client

    def type_in(self, text: str) -> "subprocess.CompletedProcess[str]":
        for word, meant in self.words.items():
            text = re.sub(rf"(?<![\w$-]){re.escape(word)}(?!\w)", meant, text)
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=self.directory,
            env=self.environment,
            input="a value\n",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
            check=False,
        )


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    directory = tmp_path_factory.mktemp("blocks") / "project"
    directory.mkdir()
    up = Up(directory.parent / "data", "--devices", "cpu:8", "--jobs-unboxed")
    up.data_dir.mkdir()
    try:
        yield make_reader(directory, up, up.start())
    finally:
        up.close()


def make_reader(directory: Path, up: Up, client: Client) -> Reader:
    for part in ("examples", "deploy"):
        shutil.copytree(ROOT / part, directory / part)
    for name in ("job", "nightly"):
        (directory / f"{name}.json").write_text(JOB_JSON.replace("NAME", name))
    (directory / "job.yaml").write_text(JOB_JSON.replace("NAME", "job"))
    (directory / "train.py").write_text(PLAIN)
    (directory / "pkg").mkdir()
    (directory / "pkg" / "__init__.py").touch()
    (directory.parent / ".curlrc").write_text("fail\n")  # an answer that refuses fails the block
    (directory / "token.txt").write_text("a token\n")
    (directory / "etc" / "prometheus").mkdir(parents=True)
    commit = "git init -q && git -c user.name=a -c user.email=a@example.com commit -q --allow-empty -m first"
    subprocess.run(["bash", "-c", commit], cwd=directory, check=True, timeout=60)
    token = (up.data_dir / "admin.token").read_text().strip()
    environment = reader_environment(up.data_dir, directory.parent) | {
        "URL": client.url,
        "TOKEN": token,
        "AUTH": f"Authorization: Bearer {token}",
        "CURL_HOME": str(directory.parent),
    }
    nightly = client.submit(directory / "nightly.json")
    job = client.submit_script(directory / "train.py", devices=3, strategy="ddp")
    assert [one.wait(SECONDS).state for one in (nightly, job)] == ["succeeded"] * 2
    words = {
        "JOB": job.id,
        "OTHER": nightly.id,
        "NODE": client.nodes()[0].id,
        "TOKEN": client.create_token("to be revoked").id,
        "cuda:3": "cpu:3",
        "/etc": f"{directory}/etc",
    }
    return Reader(directory, environment | {"JOB": nightly.id}, words, client)


def blocks_of(page: str) -> list[str]:
    return [block.text for block in read_blocks(DOCS / page) if block.language == "sh"]


def block_of(page: str, start: str) -> str:
    """The block that is known by the longest beginning that it has."""
    starts = [*RUN.get(page, ()), *NOT_RUN.get(page, {})]
    found = [text for text in blocks_of(page) if text.startswith(start) and start == longest(text, starts)]
    assert len(found) == 1, f"{len(found)} blocks of {page} begin with {start!r}"
    return found[0]


def longest(text: str, starts: list[str]) -> str:
    return max((start for start in starts if text.startswith(start)), key=len, default="")


def test_every_block_is_run_or_has_a_reason_why_not() -> None:
    pages = {path.name for path in DOCS.glob("*.md") if not path.name.endswith(".zh.md")} - PAGES.keys()
    assert pages >= RUN.keys() | NOT_RUN.keys()
    for page in pages:
        starts = [*RUN.get(page, ()), *NOT_RUN.get(page, {})]
        assert [text for text in blocks_of(page) if not longest(text, starts)] == [], f"of {page}; add it to RUN"
        assert len({block_of(page, start) for start in starts}) == len(starts)


@pytest.mark.parametrize(
    ("page", "start"),
    [case if case in QUICK else pytest.param(*case, marks=pytest.mark.slow) for case in CASES],
)
def test_a_block_does_what_it_says(page: str, start: str, reader: Reader) -> None:
    (reader.directory / "train.py").write_text(TRAIN if page == "rehearsal.md" else PLAIN)
    text = block_of(page, start)
    if "@last" in text:
        reader.client.submit(reader.directory / "job.json").wait(SECONDS)
    ran = reader.type_in(text)
    undo(page, start, reader)
    assert ran.returncode in CODES.get((page, start), (0,)), ran.stdout


def undo(page: str, start: str, reader: Reader) -> None:
    """Gives the other tests the devices again that a block has taken away."""
    if (page, start) == ("operators.md", "shardyard pool set"):
        reader.client.set_pool_policy("default")
    elif (page, start) == ("operators.md", "shardyard unquarantine"):
        ended = reader.type_in("shardyard unquarantine NODE cuda:3")
        assert ended.returncode == 0, ended.stdout


def test_the_quick_blocks_are_among_those_that_are_run() -> None:
    assert set(CASES) >= QUICK | CODES.keys()
