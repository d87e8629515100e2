"""`make gpu-test`: everything that needs a CUDA device, in one call of at most eight minutes, and what passed.

Run by a Python that has a CUDA build of torch; nothing else of ours need be installed. What is missing comes from a
folder of wheels (`make gpu-wheels` fills it on a machine with a registry), or from the registry where there is no such
folder. Nothing is changed outside the environment of its own, `.venv-gpu`, and the folder of results.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import sysconfig
import time
import tomllib
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = ROOT / ".venv-gpu"
SECONDS = 480.0
#: Kept back from the tests for the benchmarks.
BENCHMARK_SECONDS = 150.0
MARKS = {"passed": "ok", "failed": "**failed**", "skipped": "skipped"}


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """One test: `file` and `name` as pytest has them, and the first line of what went wrong."""

    file: str
    name: str
    mark: str
    seconds: float
    problem: str


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run everything that needs a CUDA device, and say what passed.")
    parser.add_argument("--wheels", type=Path, default=ROOT / ".gpu-wheels", help="what `make gpu-wheels` filled")
    parser.add_argument("--into", type=Path, default=ROOT / ".gpu-results", help="folder for table, logs and figures")
    options = parser.parse_args(arguments)
    deadline = time.monotonic() + SECONDS
    card = describe_card()
    options.into.mkdir(parents=True, exist_ok=True)
    python = build_environment(options.wheels)
    outcomes = run_tests(python, options.into, deadline - BENCHMARK_SECONDS)
    figures = run_benchmarks(python, options.into, deadline)
    table = "\n".join(write_table(card, outcomes, figures))
    (options.into / "gpu.md").write_text(table + "\n")
    print(table)
    print(f"\nwritten to {options.into / 'gpu.md'}")
    good = bool(outcomes) and all(outcome.mark != "failed" for outcome in outcomes)
    return 0 if good and figures else 1


def describe_card() -> dict[str, str]:
    """What the table says of the machine.

    Raises:
        SystemExit: this Python has no torch, or torch has no CUDA device.
    """
    try:
        import torch
    except ImportError:
        raise SystemExit(
            f"error: {sys.executable} has no torch; name a Python that has a CUDA build: make gpu-test GPU_PYTHON=..."
        ) from None
    if not torch.cuda.is_available():
        raise SystemExit(
            f"error: torch {torch.__version__} of {sys.executable} finds no CUDA device: there is none, its driver "
            "does not answer, or this is a build for the CPU"
        )
    found = torch.cuda.get_device_properties(0)
    nccl = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    return {
        "card": f"{found.name}, {found.total_memory / 2**30:.0f} GiB ({torch.cuda.device_count()} in the machine)",
        "torch": f"{torch.__version__}, CUDA {torch.version.cuda}, NCCL {nccl}",
        "Python": platform.python_version(),
        "kernel": platform.release(),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
    }


# -- the environment -----------------------------------------------------------------------------------


def build_environment(wheels: Path) -> Path:
    """A Python with the packages of this one, ours, and the missing ones. Its path.

    Raises:
        SystemExit: the missing packages could not be had.
    """
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(ENVIRONMENT)], check=True, timeout=60)
    packages = Path(
        subprocess.run(
            [str(python), "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"],
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout.strip()
    )
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade"]
    command += ["--target", str(packages)]
    if any(wheels.glob("*.whl")):
        command += ["--no-index", "--no-deps", *map(str, sorted(wheels.glob("*.whl")))]
    else:
        command += ["--no-deps", *missing_requirements()]
    if subprocess.run(command, timeout=300).returncode:
        raise SystemExit(f"error: the packages that are missing here could not be had; fill {wheels}: make gpu-wheels")
    # Ours before the machine's own, so that a newer or older copy there is not taken in their place.
    theirs = dict.fromkeys([sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"], *site_directories()])
    (packages / "shardyard_checkout.pth").write_text("\n".join([str(ROOT), *theirs]) + "\n")
    write_metadata(packages)
    return python


def write_metadata(packages: Path) -> None:
    """Make the checkout an installed distribution, which nodes ask for its version; no build backend is needed."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    directory = packages / f"shardyard-{version}.dist-info"
    directory.mkdir(exist_ok=True)
    (directory / "METADATA").write_text(f"Metadata-Version: 2.1\nName: shardyard\nVersion: {version}\n")


def site_directories() -> Iterator[str]:
    """Where this Python has its packages, besides the places that sysconfig names."""
    yield from (entry for entry in sys.path if entry.endswith(("site-packages", "dist-packages")))


def missing_requirements() -> list[str]:
    """`name==version` of what an installation needs and this Python lacks, by pip's own resolution.

    Raises:
        SystemExit: there is no registry.
    """
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--report", "-", f"{ROOT}[server]"]
    done = subprocess.run(
        [*command, "pytest", "pytest-timeout", "hypothesis"], capture_output=True, text=True, timeout=300
    )
    if done.returncode:
        raise SystemExit(
            "error: no registry can be reached, and there is no folder of wheels; fill one elsewhere: make gpu-wheels\n"
            + done.stderr[-1000:]
        )
    found = [entry["metadata"] for entry in json.loads(done.stdout)["install"]]
    return [f"{each['name']}=={each['version']}" for each in found if each["name"] != "shardyard"]


# -- tests and benchmarks ------------------------------------------------------------------------------


def run_tests(python: Path, into: Path, deadline: float) -> list[CheckOutcome]:
    """All tests of tests/gpu. Those that the deadline cuts off are missing from the answer."""
    report = into / "gpu-tests.xml"
    report.unlink(missing_ok=True)
    command = [str(python), "-m", "pytest", "tests/gpu", "-m", "gpu", "-q", f"--junitxml={report}"]
    # Another torch than the pinned one warns of other things; a warning there is not a failure of the service.
    command += ["-o", "filterwarnings=default", "-o", "addopts=--strict-markers", "-p", "no:cacheprovider"]
    with (into / "gpu-tests.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=clean_environment(), stdout=log, stderr=log)
        try:
            process.wait(max(deadline - time.monotonic(), 1.0))
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait(60)
    return list(read_outcomes(report)) if report.exists() else []


def read_outcomes(report: Path) -> Iterator[CheckOutcome]:
    for case in ElementTree.parse(report).iter("testcase"):  # noqa: S314  (pytest's own file)
        problems = [child for child in case if child.tag in ("failure", "error", "skipped")]
        mark = "passed" if not problems else "skipped" if problems[0].tag == "skipped" else "failed"
        problem = problems[0].get("message", "").splitlines()[0][:200] if problems else ""
        yield CheckOutcome(case.get("classname", ""), case.get("name", ""), mark, float(case.get("time", "0")), problem)


def run_benchmarks(python: Path, into: Path, deadline: float) -> str:
    """The table of the benchmark's GPU rows, or nothing where it failed."""
    seconds = deadline - time.monotonic()
    if seconds < 20:
        return ""
    command = [str(python), "-m", "benchmarks", "gpu", "--into", str(into)]
    with (into / "gpu-benchmarks.log").open("w+") as log:
        try:
            done = subprocess.run(command, cwd=ROOT, env=clean_environment(), stdout=log, stderr=log, timeout=seconds)
        except subprocess.TimeoutExpired:
            return ""
        log.seek(0)
        lines = [line.rstrip() for line in log if line.startswith("|")]
    return "\n".join(lines) if done.returncode == 0 else ""


def clean_environment() -> dict[str, str]:
    """Without what would lead another Python to other packages."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}


# -- the table -----------------------------------------------------------------------------------------


def write_table(card: dict[str, str], outcomes: list[CheckOutcome], figures: str) -> Iterator[str]:
    yield "| | |"
    yield "|---|---|"
    yield from (f"| {name} | {value} |" for name, value in card.items())
    yield ""
    passed = sum(outcome.mark == "passed" for outcome in outcomes)
    yield f"{passed} of {len(outcomes)} tests passed, in {sum(outcome.seconds for outcome in outcomes):.0f} s."
    yield ""
    yield "| test | outcome | seconds |"
    yield "|---|---|---|"
    for outcome in outcomes:
        name = outcome.name.removeprefix("test_").replace("_", " ")
        problem = f": {outcome.problem}".replace("|", "\\|") if outcome.problem else ""
        yield f"| {name} | {MARKS[outcome.mark]}{problem} | {outcome.seconds:.1f} |"
    yield ""
    yield figures or "The benchmarks gave no figures: see gpu-benchmarks.log."


if __name__ == "__main__":
    sys.exit(main())
