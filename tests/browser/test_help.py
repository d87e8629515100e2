"""The site of the documents in a browser, as the API serves it: its search, its languages, and its policy."""

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from fastapi import FastAPI
from playwright.sync_api import Browser, Page, expect

from api.http.problems import install_handlers
from api.system import help_routes
from tests.acceptance.harness import wait_until
from tests.browser.conftest import Pages
from tools.site.build import build_site

pytestmark = [pytest.mark.browser, pytest.mark.slow]

#: What the worker of the search may take to read its index, which takes a second where nothing else runs.
INDEX_MS = 180_000


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an application that has nothing but the site."""
    built = tmp_path_factory.mktemp("site") / "site"
    assert build_site(built) == []
    app = FastAPI(openapi_url=None)
    app.include_router(help_routes.router)
    install_handlers(app)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(help_routes, "site_directory", lambda: built)
        thread.start()
        wait_until(lambda: server.started, 60)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        server.should_exit = True
        thread.join(60)


@pytest.fixture
def pages(browser: Browser, site: str) -> Iterator[Pages]:
    page = browser.new_page(viewport={"width": 1280, "height": 800}, locale="en-GB")
    pages = Pages(page, site, "")
    yield pages
    page.close()
    # The theme asks for a list of pages beside each page, for its switch of languages, and does without.
    assert [wrong for wrong in pages.wrong if not wrong.endswith("sitemap.xml")] == []


@pytest.mark.parametrize(
    ("path", "ready", "words", "found"),
    [
        ("/help/", "Type to start searching", "straggler", "/help/tutorials/find-a-straggler/"),
        ("/help/", "Type to start searching", "max_retries", "/help/spec/"),
        ("/help/zh/start/", "键入以开始搜索", "检查点", "/help/zh/how-to/resume/"),
        ("/help/zh/start/", "键入以开始搜索", "掉队", "/help/zh/tutorials/find-a-straggler/"),
    ],
)
def test_the_search_finds_a_page(pages: Pages, path: str, ready: str, words: str, found: str) -> None:
    page = pages.open(path)
    search(page, words, ready)
    results = page.locator(".md-search-result__item", has=page.locator(f"a[href^='{pages.url}{found}']"))
    expect(results.first).to_contain_text(words, ignore_case=True)
    results.locator("a").first.click()
    expect(page).to_have_url(re.compile(re.escape(found)))
    expect(page.locator("article h1")).to_be_visible()


def search(page: Page, words: str, ready: str) -> None:
    """Types words once the search has its index, which it says below its field."""
    expect(page.locator(".md-search-result__meta")).to_have_text(ready, timeout=INDEX_MS)
    field = page.locator("input.md-search__input")
    field.click()
    field.press_sequentially(words)
    # The search looks at its field when a key comes up. Those of an input method do; here Chinese comes without keys.
    field.press("End")


def test_a_search_for_what_is_nowhere_says_so(pages: Pages) -> None:
    page = pages.open("/help/")
    search(page, "zyxwvut", "Type to start searching")
    expect(page.locator(".md-search-result__meta")).to_have_text("No matching documents")


def test_the_switch_leads_to_the_same_page_in_the_other_language(pages: Pages) -> None:
    page = pages.open("/help/tutorials/eight-gpus/")
    expect(page.locator("h1")).to_contain_text("From my train.py to 8 GPUs")
    page.get_by_label("Select language").hover()
    page.get_by_role("link", name="中文").click()
    expect(page.locator("h1")).to_contain_text("从我的 train.py 到 8 个 GPU")
    expect(page).to_have_url(re.compile(r"/help/zh/tutorials/eight-gpus/$"))
    expect(page.locator("html")).to_have_attribute("lang", "zh")


@pytest.mark.parametrize(
    "path", ["/help/start/", "/help/report/", "/help/reference/commands/", "/help/zh/how-to/resume/"]
)
def test_a_page_keeps_to_the_policy_in_both_colours(pages: Pages, path: str) -> None:
    page = pages.open(path)
    expect(page.locator("h1")).to_be_visible()
    page.locator("label.md-header__button[title]:visible").first.click()
    expect(page.locator("body")).to_have_attribute("data-md-color-scheme", "slate")


def test_a_file_of_the_examples_can_be_read(pages: Pages) -> None:
    page = pages.open("/help/scripts/")
    page.get_by_role("link", name="examples/scripts/goes_on.py").click()
    expect(page.locator("body")).to_contain_text("Training that goes on where it was interrupted")


def test_the_site_has_no_page_that_is_empty(site: str, pages: Pages, tmp_path: Path) -> None:
    root = help_routes.site_directory()
    assert root is not None
    found = sorted(root.rglob("index.html"))
    assert len(found) > 200
    assert [path for path in found if "<h1" not in path.read_text()] == []
