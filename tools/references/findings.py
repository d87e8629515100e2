"""Every finding: what it means, a line of each as reports have it, and the modules that make it.

Meanings and lines are those of `docs/report.md`, which tests hold to the code.
"""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("jobs/splits", "shardyard/contract", "workers/supervisor/report")


def text() -> str:
    report = (ROOT / "docs" / "report.md").read_text()
    lines = report.split("### A line of each\n", 1)[1].split("\n## ", 1)[0]
    return (
        "# Findings\n\n"
        "A finding is something that a report noticed, with its numbers and what to change. Each has a code, which "
        "does not change. [The split report](../report.md#findings) says how they are made, and in which order they "
        "come.\n\n" + "\n".join(_finding(code, means, lines) for code, means in sorted(_meanings(report)))
    )


def _meanings(report: str) -> Iterator[tuple[str, str]]:
    table = report.split("\n## Findings\n", 1)[1].split("| code | means |\n|---|---|\n", 1)[1].split("\n\n", 1)[0]
    for row in table.splitlines():
        code, means = (cell.strip() for cell in row.strip("|").split("|", 1))
        yield code.strip("`"), means


def _finding(code: str, means: str, lines: str) -> str:
    shown = re.search(rf"^\[(?:info|warning)\] {code}: .*?(?=^\[|^```|\Z)", lines, re.MULTILINE | re.DOTALL)
    assert shown is not None, code
    modules = ", ".join(f"`{path}`" for path in _modules(code))
    return f"## {code}\n\n{means[:1].upper()}{means[1:]}.\n\n```text\n{shown[0].rstrip()}\n```\n\nMade in {modules}.\n"


def _modules(code: str) -> list[str]:
    files = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")))
    return [path.relative_to(ROOT).as_posix() for path in files if f'"{code}"' in path.read_text()]
