"""Builds a release into a folder: sdist, wheel, what an installation is made of (CycloneDX), and checksums.

    python -m tools.release dist            # `make release`: of a clean checkout whose tag is the version
    python -m tools.release dist --trial    # of what is there

The wheel is built from the sdist, and installed into a fresh environment in the locked versions, where the release must
say its version and, unless `--client-only`, train a job.
"""

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUILD_SECONDS, INSTALL_SECONDS, DEMO_SECONDS = 900, 1800, 300
#: What a wheel has beside modules: the dashboard, the store's scripts, the catalogue of recipes, examples, types.
IN_THE_WHEEL = (
    "api/web/index.html",
    "jobs/store/lua/placing/queues.lua",
    "jobs/model/catalogue.json",
    "shardyard/examples/digits-ddp2.json",
    "shardyard/py.typed",
)


class ReleaseError(Exception):
    """What is there is no release."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Build a release, install it, and say what it is made of.")
    parser.add_argument("folder", type=Path, help="must be empty or absent")
    parser.add_argument("--trial", action="store_true", help="of a checkout that is not clean, or has no tag")
    parser.add_argument("--client-only", action="store_true", help="install and try the client, without the server")
    given = parser.parse_args(arguments)
    try:
        release(given.folder.absolute(), trial=given.trial, client_only=given.client_only)
    except ReleaseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def release(folder: Path, *, trial: bool, client_only: bool) -> None:
    """Raises:
    ReleaseError: the folder is not empty, the changelog does not have the version, or the checkout is not its tag's.
    """
    version = read_version()
    if folder.exists() and any(folder.iterdir()):
        raise ReleaseError(f"{folder} is not empty; name another folder, or remove it")
    if not trial:
        _check_checkout(version)
    _run([sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)], BUILD_SECONDS)
    (wheel,) = folder.glob(f"shardyard-{version}-*.whl")
    (sdist,) = folder.glob(f"shardyard-{version}.tar.gz")
    missing = set(IN_THE_WHEEL) - set(zipfile.ZipFile(wheel).namelist())
    if missing:
        raise ReleaseError(f"the wheel lacks {', '.join(sorted(missing))}")
    with tempfile.TemporaryDirectory() as scratch:
        environment = Path(scratch, "environment")
        _install(wheel, environment, client_only=client_only)
        said = _run([str(environment / "bin/shardyard"), "--version"], 60, cwd=scratch).strip()
        if said != version:
            raise ReleaseError(f"the installed release says that it is {said!r}, and not {version!r}")
        if not client_only:
            _run([str(environment / "bin/shardyard"), "demo"], DEMO_SECONDS, cwd=scratch)
        contents = folder / f"shardyard-{version}.cdx.json"
        _list_contents(environment, contents)
    sums = "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in (sdist, wheel, contents)
    )
    (folder / "SHA256SUMS").write_text(sums)
    print(sums, end="")


def read_version() -> str:
    found = re.search(r'^__version__ = "(.+)"$', (ROOT / "shardyard/__init__.py").read_text(), re.MULTILINE)
    assert found
    return found[1]


def _check_checkout(version: str) -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d{{2}}-\d{{2}}$", changelog, re.MULTILINE):
        raise ReleaseError(f"CHANGELOG.md has no dated section of {version}; give one to what is under Unreleased")
    changed = _run(["git", "status", "--porcelain"], 60).strip()
    if changed:
        raise ReleaseError(f"the checkout has changes that are not committed:\n{changed[:1000]}")
    if f"v{version}" not in _run(["git", "tag", "--points-at", "HEAD"], 60).split():
        raise ReleaseError(f"this commit does not have the tag v{version}; git tag -a v{version}")


def _install(wheel: Path, environment: Path, *, client_only: bool) -> None:
    """In the locked versions; torch alone is the newest that fits."""
    _run([sys.executable, "-m", "venv", str(environment)], 120)
    install = [str(environment / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    lock = ROOT / "locks" / ("client.txt" if client_only else "worker.txt")
    _run([*install, "--require-hashes", "--no-deps", "-r", str(lock)], INSTALL_SECONDS)
    _run([*install, str(wheel) if client_only else f"{wheel}[server,otel,s3]"], INSTALL_SECONDS)
    _run([str(environment / "bin/python"), "-m", "pip", "check"], 120)


def _list_contents(environment: Path, path: Path) -> None:
    command = [sys.executable, "-m", "cyclonedx_py", "environment", "--gather-license-texts", "--pyproject"]
    command += [str(ROOT / "pyproject.toml"), "--output-reproducible", "--output-file", str(path)]
    _run([*command, str(environment / "bin/python")], 120)
    if not json.loads(path.read_text())["components"]:
        raise ReleaseError("nothing was found in the environment of the release")


def _run(command: list[str], seconds: float, cwd: str | Path = ROOT) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SHARDYARD_")}
    environment["SHARDYARD_REQUIRE_WEB"] = "1"  # no release without its dashboard
    done = subprocess.run(
        command, cwd=cwd, env=environment, timeout=seconds, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ReleaseError(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr)[-4000:]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
