"""`python -m tools.references` writes the pages of `docs/reference/` from the code; `--check` only compares them."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from tools.references import client, commands, findings, metrics, problems, routes

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
PAGES: Mapping[str, Callable[[], str]] = {
    "client": client.text,
    "commands": commands.text,
    "findings": findings.text,
    "metrics": metrics.text,
    "problems": problems.text,
    "routes": routes.text,
}
HEAD = "<!-- Written by `python -m tools.references`: do not edit. -->\n\n"


def main() -> int:
    stale = []
    for name, text in PAGES.items():
        path, made = FOLDER / f"{name}.md", HEAD + text()
        if path.is_file() and path.read_text() == made:
            continue
        stale.append(path)
        if "--check" not in sys.argv[1:]:
            path.write_text(made)
            print(f"wrote {path.relative_to(FOLDER.parents[1])}")
    if stale and "--check" in sys.argv[1:]:
        names = ", ".join(path.name for path in stale)
        print(f"not up to date in docs/reference: {names}: python -m tools.references", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
