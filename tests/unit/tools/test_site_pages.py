"""What the site is made from: links that are moved, and translations beside their originals."""

from pathlib import Path

import pytest

from tests.acceptance.page_blocks import read_blocks
from tools.site import pages, translations

PLACES = {"docs/start.md": "start.md", "docs/how-to/a.md": "how-to/a.md", "CHANGELOG.md": "project/changelog.md"}


@pytest.mark.parametrize(
    ("path", "written", "on_the_site"),
    [
        ("docs/start.md", "[a](how-to/a.md#part)", "[a](how-to/a.md#part)"),
        ("docs/start.md", "[log](../CHANGELOG.md#new)", "[log](project/changelog.md#new)"),
        ("docs/how-to/a.md", "[log](../../CHANGELOG.md)", "[log](../project/changelog.md)"),
        ("CHANGELOG.md", "[start](docs/start.md)", "[start](../start.md)"),
        ("docs/start.md", "[the code](../api/app.py)", "the code"),
        ("docs/start.md", "[broken](nothing.md)", "[broken](nothing.md)"),
        ("docs/start.md", "[x](https://example.org) [y](#part)", "[x](https://example.org) [y](#part)"),
        ("docs/start.md", "`[log](../CHANGELOG.md)`", "`[log](../CHANGELOG.md)`"),
        ("docs/start.md", "```sh\n[log](../CHANGELOG.md)\n```\n", "```sh\n[log](../CHANGELOG.md)\n```\n"),
        ("docs/start.md", "![two\nlines](../CHANGELOG.md)", "![two\nlines](project/changelog.md)"),
    ],
)
def test_links_lead_to_where_files_are_on_the_site(path: str, written: str, on_the_site: str) -> None:
    assert pages.move_links(written, path, PLACES) == on_the_site


@pytest.mark.parametrize("original", translations.originals(), ids=lambda path: path.stem)
def test_a_page_and_its_translation_have_the_same_blocks(original: Path) -> None:
    translation = translations.translation_of(original)
    assert translation.is_file(), f"translate {original.name}, or have it translated"
    assert read_blocks(translation) == read_blocks(original), "a reader of the translation types what was not tried"


def test_a_translation_of_an_older_original_is_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translations, "DOCS", tmp_path)
    original, page = tmp_path / "start.md", tmp_path / "start.zh.md"
    original.write_text("# Start\n")
    assert list(translations.pages_behind()) == [page]
    page.write_text("# 开始\n\n正文\n")
    assert list(translations.pages_behind()) == [page]
    translations.stamp(page)
    assert list(translations.pages_behind()) == []
    original.write_text("# Start here\n")
    assert list(translations.pages_behind()) == [page]
    translations.stamp(page)
    assert translations.without_stamp(page.read_text()) == "# 开始\n\n正文\n"
