"""Builds the site with MkDocs, and makes its pages keep a strict content security policy.

MkDocs' theme writes small scripts into every page. They become files, so that the pages can be served with a policy
that lets no script run which is not a file of ours.
"""

import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

from tools.site.pages import ROOT, documents, stage
from tools.site.translations import NOTE, pages_behind, without_stamp

_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)
#: How Markdown aligns the cells of a table.
_ALIGNED = re.compile(r'style="text-align: (left|right|center);"')
_LOADING = re.compile(r"<(?:script|img|iframe|source|video|audio|embed|object|link)\b[^>]*>")
_ELSEWHERE = re.compile(r'(?:src|href|data|srcset)="((?:https?:)?//[^"]*)"')
_IN_STYLES = re.compile(r"""(?:url\(|@import\s)\s*["']?((?:https?:)?//[^"')]*)""")


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def build_site(into: Path) -> list[str]:
    """Build the site into a directory, which is replaced if there are no problems. Returns the problems."""
    os.environ.setdefault("NO_MKDOCS_2_WARNING", "1")  # decisions/0079
    with tempfile.TemporaryDirectory(prefix="shardyard-site-") as directory:
        pages, built = Path(directory) / "pages", Path(directory) / "site"
        stage(pages)
        mark_pages_behind(pages)
        problems = _run_mkdocs(pages, built)
        if not problems:
            for page in sorted(built.rglob("*.html")):
                page.write_text(_without_inline_code(page.read_text(), page, built))
            problems = list(find_foreign_assets(built))
        if not problems:
            shutil.rmtree(into, ignore_errors=True)
            shutil.copytree(built, into)
    return problems


def mark_pages_behind(pages: Path) -> None:
    """Tell the readers of a translation that its original has changed since."""
    places = dict(documents())
    for page in filter(Path.is_file, pages_behind()):
        staged = pages / places[page.relative_to(ROOT).as_posix()]
        head, mark, rest = without_stamp(staged.read_text()).partition("\n\n")  # the title
        staged.write_text(f"{head}{mark}{NOTE}{rest}")


def _run_mkdocs(pages: Path, into: Path) -> list[str]:
    import jieba
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    jieba.setLogLevel(logging.WARNING)
    jieba.dt.tmp_dir = str(pages.parent)  # its cache, which it would read from /tmp, whoever has written it
    warnings, logger = _Warnings(), logging.getLogger("mkdocs")
    logger.addHandler(warnings)
    try:
        config = load_config(str(ROOT / "mkdocs.yml"), docs_dir=str(pages), site_dir=str(into), strict=False)
        config.plugins.on_startup(command="build", dirty=False)
        build(config)
    finally:
        logger.removeHandler(warnings)
    return warnings.messages


def _without_inline_code(page: str, path: Path, site: Path) -> str:
    """A page whose scripts and styles are files; the scripts are written where they are not there yet."""
    up = "../" * (len(path.relative_to(site).parts) - 1)

    def as_file(found: re.Match[str]) -> str:
        name = f"assets/javascripts/inline.{blake2b(found[1].encode(), digest_size=4).hexdigest()}.js"
        (site / name).write_text(found[1])
        return f'<script src="{up}{name}"></script>'

    return _ALIGNED.sub(r'class="\1"', _SCRIPT.sub(as_file, page))


def find_foreign_assets(site: Path) -> Iterator[str]:
    """What a browser would load from another host, or run though it is not a file."""
    for page in sorted(site.rglob("*.html")):
        text, name = page.read_text(), page.relative_to(site)
        for tag in _LOADING.findall(text):
            yield from (f"{name} loads {address}" for address in _ELSEWHERE.findall(tag))
        if _SCRIPT.search(text):
            yield f"{name} has a script of its own"
        if re.search(r"<[^>]* (?:style|on\w+)=", text):
            yield f"{name} has a style or a handler in an element"
    for sheet in sorted(site.rglob("*.css")):
        yield from (f"{sheet.relative_to(site)} loads {found}" for found in _IN_STYLES.findall(sheet.read_text()))
