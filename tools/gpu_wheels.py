"""Fills a folder with the wheels that a GPU machine without a package registry lacks.

    python -m tools.gpu_wheels .gpu-wheels

The machine is supposed to have Python 3.12 on x86-64 Linux and a CUDA build of torch with what that needs; everything
else that the service and its GPU tests need goes into the folder, in the versions of this environment. Copy the
checkout with the folder there, and run `make gpu-test`. Run this in the development environment (`make gpu-wheels`).
"""

import argparse
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
#: What the tests of tests/gpu import beside the service.
TEST_TOOLS = ("pytest", "pytest-timeout", "hypothesis", "anyio")
#: Comes with a CUDA build of torch, or is as large as one.
PRESENT = frozenset({"torch", "numpy", "scikit-learn"})
TARGET = {"python_version": "3.12", "python_full_version": "3.12.0", "sys_platform": "linux"}
PLATFORMS = (
    *(f"manylinux_2_{minor}_x86_64" for minor in (5, 12, 17, 24, 26, 27, 28, 31, 34, 35)),
    *("manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"),
)
MAX_BYTES = 60 * 1024 * 1024


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Fill a folder with the wheels that a GPU machine lacks.")
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args(arguments).folder
    wanted = sorted(pinned_closure(project_requirements()))
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(wanted))
        file.flush()
        platforms = [word for name in PLATFORMS for word in ("--platform", name)]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += ["--python-version", "3.12", "--implementation", "cp", *platforms, "--dest", str(folder)]
        subprocess.run([*command, "--requirement", file.name], check=True, timeout=900)
    size = sum(wheel.stat().st_size for wheel in folder.glob("*.whl"))
    print(f"{len(wanted)} wheels, {size / 2**20:.1f} MiB, in {folder}")
    if size > MAX_BYTES:
        print(f"error: more than {MAX_BYTES // 2**20} MiB", file=sys.stderr)
    return int(size > MAX_BYTES)


def project_requirements() -> Iterator[Requirement]:
    """What pyproject.toml asks for, all extras but the developers' own included, and the tools of the tests."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *extras.get("server", ()), *TEST_TOOLS]
    for line in lines:
        requirement = Requirement(line)
        if requirement.name != project["name"]:
            yield requirement


def pinned_closure(requirements: Iterator[Requirement]) -> set[str]:
    """`name==version` of everything that these need, as installed here."""
    found: set[str] = set()
    todo, seen = list(requirements), set()
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        key = (name, tuple(sorted(requirement.extras)))
        if name in PRESENT or key in seen:
            continue
        seen.add(key)
        try:
            installed = distribution(name)
        except PackageNotFoundError:
            raise SystemExit(f"error: {name} is not installed here; run this with `make gpu-wheels`") from None
        found.add(f"{name}=={installed.version}")
        for line in installed.requires or ():
            needed = Requirement(line)
            if any(
                needed.marker is None or needed.marker.evaluate(TARGET | {"extra": extra})
                for extra in (*requirement.extras, "")
            ):
                todo.append(needed)
    return found


if __name__ == "__main__":
    sys.exit(main())
