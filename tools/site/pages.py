"""The Markdown that the site is built from: `docs/`, and documents that lie elsewhere in the repository.

Links are written for the repository, where a file is at its path. Those that leave `docs/` lead to the site's copy of
the file, or become plain text where the site has none.
"""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]
#: Documents with another place on the site than `docs/` gives them.
PLACES = {
    "docs/README.md": "index.md",
    "docs/README.zh.md": "index.zh.md",
    "examples/README.md": "project/examples.md",
    "benchmarks/README.md": "project/benchmarks.md",
    "benchmarks/results/README.md": "project/results.md",
    "tests/faults/README.md": "project/faults.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
}
#: Files that pages lead to, and that readers without the repository need.
FILES = ("examples/scripts/*.py", "examples/jobs/*.json", "benchmarks/**/*.svg", "benchmarks/**/*.png")
#: Where those are on the site, at their paths.
FILES_FOLDER = "files"

#: A code block or a piece of code, where nothing is a link; or the text and the target of a link or a picture.
_CODE_OR_LINK = re.compile(
    r"(?P<code>^(?P<fence>`{3,})[^\n]*\n.*?^(?P=fence)\s*?$|(?P<ticks>`+)[^`].*?(?P=ticks)(?!`))"
    r"|(?P<picture>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^)\s]+)\)",
    re.DOTALL | re.MULTILINE,
)


def stage(into: Path) -> None:
    """Lay out everything that the site is made of."""
    places = dict(documents())
    for path, place in places.items():
        target = into / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.suffix == ".md":
            target.write_text(move_links((ROOT / path).read_text(), path, places))
        else:
            shutil.copyfile(ROOT / path, target)


def documents() -> Iterator[tuple[str, str]]:
    """Path in the repository and place on the site of every file. What is not there is left out: an image for
    containers is built from a part of the repository."""
    for path in sorted((ROOT / "docs").rglob("*")):
        name = path.relative_to(ROOT).as_posix()
        if path.is_file():
            yield name, PLACES.get(name, name.removeprefix("docs/"))
    for name, place in PLACES.items():
        if not name.startswith("docs/") and (ROOT / name).is_file():
            yield name, place
    for pattern in FILES:
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            yield name, f"{FILES_FOLDER}/{name}"


def move_links(text: str, path: str, places: dict[str, str]) -> str:
    """The text of a document with its links as they are on the site."""

    def moved(found: re.Match[str]) -> str:
        if found["code"] is not None or ":" in found["target"] or found["target"].startswith("#"):
            return found[0]
        target, mark, anchor = found["target"].partition("#")
        wanted = os.path.normpath(PurePosixPath(path).parent / target)
        if (place := places.get(wanted)) is not None:
            there = os.path.relpath(place, PurePosixPath(places[path]).parent)
            return f"{found['picture']}[{move_links(found['text'], path, places)}]({there}{mark}{anchor})"
        # Below docs/ it is a mistake, which the build reports.
        return found[0] if wanted.startswith("docs/") else found["text"]

    return _CODE_OR_LINK.sub(moved, text)
