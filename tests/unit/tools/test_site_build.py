"""What the pages of the site may load and run."""

from pathlib import Path

import pytest

from tools.site import build


def write(site: Path, name: str, text: str) -> Path:
    path = site / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.html", '<script src="https://cdn.example.org/x.js"></script>'),
        ("a.html", '<img alt="" src="//example.org/x.png">'),
        ("a.html", '<link rel="stylesheet" href="https://fonts.example.org/x.css">'),
        ("a.html", "<script>alert(1)</script>"),
        ("a.html", '<p style="color: red">x</p>'),
        ("a.html", '<p onclick="x()">x</p>'),
        ("a.css", "p { background: url(https://example.org/x.png) }"),
        ("a.css", '@import "https://example.org/x.css"'),
    ],
)
def test_what_comes_from_elsewhere_or_is_no_file_is_found(tmp_path: Path, name: str, text: str) -> None:
    write(tmp_path, name, text)
    assert list(build.find_foreign_assets(tmp_path))


def test_links_and_files_of_the_site_are_not_foreign(tmp_path: Path) -> None:
    write(tmp_path, "a.html", '<a href="https://example.org">x</a><script src="x.js"></script><img src="data:x">')
    write(tmp_path, "a.css", "p { background: url(x.png) }")
    assert not list(build.find_foreign_assets(tmp_path))


def test_a_script_in_a_page_becomes_a_file_that_pages_share(tmp_path: Path) -> None:
    (tmp_path / "assets" / "javascripts").mkdir(parents=True)
    text = '<td style="text-align: right;">1</td><script>start()</script>'
    above, below = tmp_path / "index.html", write(tmp_path, "how-to/a/index.html", text)
    (file,) = {build._without_inline_code(text, page, tmp_path).split('src="')[1] for page in (above,)}
    (written,) = (tmp_path / "assets" / "javascripts").iterdir()
    assert written.read_text() == "start()"
    assert file.startswith(f"assets/javascripts/{written.name}")
    page = build._without_inline_code(text, below, tmp_path)
    assert f'src="../../assets/javascripts/{written.name}"' in page
    assert 'class="right"' in page
