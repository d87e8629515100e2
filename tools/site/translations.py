"""`python -m tools.site.translations` lists the Chinese pages that are behind their originals.

`--stamp PAGE...` says that these are not, once they have been brought up to date.

A translation (`start.zh.md`) names the original (`start.md`) that it was made from by its digest, in its front matter.
"""

import re
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from tools.site.pages import ROOT

DOCS = ROOT / "docs"
#: What is there in both languages.
TRANSLATED = ("README.md", "start.md", "tutorials/*.md", "how-to/*.md")
SUFFIX = ".zh.md"
_STAMP = re.compile(r"\A---\noriginal: (\w+)\n---\n\n?")
#: What readers see on a page that is behind.
NOTE = '!!! note "本页的英文原文已有更新"\n    译文可能不是最新的。命令与代码和原文一致。\n\n'


def originals() -> list[Path]:
    found = {path for pattern in TRANSLATED for path in DOCS.glob(pattern)}
    return sorted(path for path in found if not path.name.endswith(SUFFIX))


def translation_of(original: Path) -> Path:
    return original.with_name(original.name.removesuffix(".md") + SUFFIX)


def original_of(translation: Path) -> Path:
    return translation.with_name(translation.name.removesuffix(SUFFIX) + ".md")


def digest_of(original: Path) -> str:
    return sha256(original.read_bytes()).hexdigest()[:12]


def pages_behind() -> Iterator[Path]:
    """Translations of another version of their original, and those that are missing."""
    for original in originals():
        page = translation_of(original)
        stamp = _STAMP.match(page.read_text()) if page.is_file() else None
        if stamp is None or stamp[1] != digest_of(original):
            yield page


def without_stamp(text: str) -> str:
    return _STAMP.sub("", text)


def stamp(page: Path) -> None:
    page.write_text(f"---\noriginal: {digest_of(original_of(page))}\n---\n\n{without_stamp(page.read_text())}")


def main() -> None:
    if sys.argv[1:2] == ["--stamp"]:
        for name in sys.argv[2:]:
            stamp(Path(name))
    for page in pages_behind():
        print(f"{page.relative_to(ROOT)} is {'behind its original' if page.is_file() else 'missing'}")


if __name__ == "__main__":
    main()
