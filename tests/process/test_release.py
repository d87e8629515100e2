"""A release is built from what is there, and installed into a fresh environment."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tools import release
from tools.locks import EXTRAS, TRAINING, direct_requirements, locked_versions

ROOT = Path(__file__).parents[2]


def build(folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "tools.release", str(folder), *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [pytest.param(["--client-only"], id="client"), pytest.param([], id="whole", marks=pytest.mark.slow)],
)
def test_a_release_is_built_installed_and_listed(tmp_path: Path, options: list[str]) -> None:
    made = build(tmp_path / "dist", "--trial", *options)
    assert made.returncode == 0, made.stderr
    version = release.read_version()
    names = {path.name for path in (tmp_path / "dist").iterdir()}
    assert names == {
        f"shardyard-{version}.tar.gz",
        f"shardyard-{version}-py3-none-any.whl",
        f"shardyard-{version}.cdx.json",
        "SHA256SUMS",
    }
    subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=tmp_path / "dist", check=True, stdout=subprocess.DEVNULL)
    contents = json.loads((tmp_path / "dist" / f"shardyard-{version}.cdx.json").read_text())
    listed = {component["name"].lower(): component["version"] for component in contents["components"]}
    assert listed["httpx"] == locked_versions("client")["httpx"]
    assert ("torch" in listed) == (not options)


def test_what_is_no_release_is_refused(tmp_path: Path) -> None:
    (tmp_path / "old.whl").touch()
    refused = build(tmp_path, "--trial")
    assert (refused.returncode, "is not empty" in refused.stderr) == (1, True)
    (tmp_path / "old.whl").unlink()
    refused = build(tmp_path)  # a tag and a clean checkout are not what tests run on
    assert refused.returncode == 1
    assert refused.stderr.startswith("error: ")


@pytest.mark.parametrize("lock", EXTRAS)
def test_a_lock_has_what_the_project_asks_for_with_hashes(lock: str) -> None:
    text, locked = (ROOT / "locks" / f"{lock}.txt").read_text(), locked_versions(lock)
    assert len(locked) > 10
    for requirement in direct_requirements(lock):
        version = locked[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement}: run `python -m tools.locks`"
    assert text.count("--hash=sha256:") >= len(locked)
    assert "torch" not in locked
    assert lock != "api" or not TRAINING & set(locked)


def test_locks_agree_with_each_other() -> None:
    everything = locked_versions("development")
    for lock in EXTRAS:
        assert locked_versions(lock).items() <= everything.items(), lock


def test_the_image_asks_for_torch_as_the_project_does() -> None:
    (asked,) = [line for line in (ROOT / "pyproject.toml").read_text().splitlines() if line.startswith('    "torch')]
    wanted = asked.split('"')[1]
    assert f'ARG TORCH="{wanted}"' in (ROOT / "Dockerfile").read_text()
