"""Writes `locks/`: the exact versions, with hashes, that are installed for development and in the images.

    python -m tools.locks             # keep the versions that are locked, where they still fit pyproject.toml
    python -m tools.locks --upgrade   # take the newest that fit

torch is in none of them: which build fits, for CPUs or for one version of CUDA, depends on the machine. What torch
needs beside CUDA is locked.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LOCKS = ROOT / "locks"
#: What a lock holds: the extras of pyproject.toml that its installation has.
EXTRAS: Mapping[str, tuple[str, ...]] = {
    "development": ("server", "otel", "s3", "export", "optuna", "release", "docs", "dev"),
    "worker": ("server", "otel", "s3"),
    "api": ("server", "otel", "s3"),
    "client": (),
    "docs": ("docs",),
}
#: What training alone needs, and an image of the API goes without.
TRAINING = frozenset({"torch", "numpy", "scikit-learn"})
NEEDED_BY_TORCH = ("filelock", "fsspec", "jinja2", "networkx", "sympy")
NO_TORCH = "torch ; sys_platform == 'never'\n"
HEAD = "# Written by `python -m tools.locks`. To install: pip install --require-hashes --no-deps -r {path}\n"
SECONDS = 300


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Lock what is installed for development and in the images.")
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions that fit pyproject.toml")
    upgrade: bool = parser.parse_args(arguments).upgrade
    LOCKS.mkdir(exist_ok=True)
    for name in EXTRAS:  # the first has all, and the others take its versions
        _write_lock(name, "--upgrade" if upgrade and name == "development" else None)
    return 0


def direct_requirements(lock: str) -> Iterator[Requirement]:
    """What pyproject.toml asks for, of what is in the lock of this name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = [*project["dependencies"]]
    for extra in EXTRAS[lock]:
        texts += project["optional-dependencies"][extra]
    left_out = TRAINING if lock == "api" else {"torch"}
    for requirement in map(Requirement, texts):
        if requirement.name != "shardyard" and requirement.name not in left_out:
            yield requirement
    if lock in ("development", "worker"):
        yield from map(Requirement, NEEDED_BY_TORCH)


def locked_versions(lock: str) -> dict[str, str]:
    """Versions by canonical names."""
    text = (LOCKS / f"{lock}.txt").read_text()
    found = re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;]+)", text, re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}


def _write_lock(name: str, *options: str | None) -> None:
    path = LOCKS / f"{name}.txt"
    with tempfile.TemporaryDirectory() as scratch:
        wanted, without = Path(scratch, "wanted.txt"), Path(scratch, "without.txt")
        wanted.write_text("".join(f"{requirement}\n" for requirement in direct_requirements(name)))
        without.write_text(NO_TORCH)
        command = [
            *(sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.11"),
            *("--generate-hashes", "--no-header", "--no-annotate", "--override", str(without)),
            *("--no-emit-package", "torch", "--output-file", str(path), str(wanted)),
            *(() if name == "development" else ("--constraint", str(LOCKS / "development.txt"))),
            *(option for option in options if option),
        ]
        subprocess.run(command, check=True, timeout=SECONDS, cwd=ROOT)
    path.write_text(HEAD.format(path=path.relative_to(ROOT)) + path.read_text())


if __name__ == "__main__":
    sys.exit(main())
