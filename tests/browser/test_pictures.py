"""The HTML file of a split report, opened in Chromium as it would be from a mail: no service, no network, no script."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

from shardyard.contract.report import Report, decode_report
from shardyard.render.svg.comparison_page import comparison_page
from shardyard.render.svg.report_page import ReportContext, report_page

pytestmark = [pytest.mark.acceptance, pytest.mark.browser]

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def example(name: str) -> Report:
    return decode_report((EXAMPLES / f"{name}.json").read_bytes())


@contextmanager
def opened(browser: Browser, directory: Path, document: str, **window: object) -> Iterator[Page]:
    """The document in a window; nothing may go wrong in it, and nothing may be asked for."""
    file = directory / "report.html"
    file.write_text(document)
    wrong: list[str] = []
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **window})  # type: ignore[arg-type]
    seen = context.new_page()
    seen.on("console", lambda message: wrong.append(message.text))
    seen.on("request", lambda request: wrong.append(request.url) if request.url != file.as_uri() else None)
    seen.goto(file.as_uri())
    yield seen
    context.close()
    assert wrong == []


def bottom(seen: Page, selector: str) -> float:
    box = seen.locator(selector).last.bounding_box()
    assert box is not None
    return box["y"] + box["height"]


@pytest.mark.parametrize("name", ["ten-for-eight", "rows-on-8-devices"])
def test_idle_devices_and_the_first_finding_are_seen_without_scrolling(
    browser: Browser, tmp_path: Path, name: str
) -> None:
    with opened(browser, tmp_path, report_page(example(name), ReportContext(name))) as seen:
        assert seen.locator(".by-rows .wide g.idle").count() == 3
        assert seen.locator(".by-rows .wide g.idle text").all_text_contents() == ["idle"] * 3
        assert bottom(seen, ".by-rows .wide g.idle") <= 800
        assert bottom(seen, ".finding >> nth=0") <= 800


def test_the_switch_works_by_keyboard_and_shows_one_map_at_a_time(browser: Browser, tmp_path: Path) -> None:
    with opened(browser, tmp_path, report_page(example("two-ranks"), by="time")) as seen:
        assert [seen.locator(f".by-{by}.map").is_visible() for by in ("rows", "time", "wait")] == [False, True, False]
        seen.locator("#by-time").focus()
        seen.keyboard.press("ArrowRight")
        assert [seen.locator(f".by-{by}.map").is_visible() for by in ("rows", "time", "wait")] == [False, False, True]


@pytest.mark.parametrize("name", ["rows-on-8-devices", "straggler-on-rank-1", "rehearsed-script"])
def test_a_telephone_scrolls_in_one_direction(browser: Browser, tmp_path: Path, name: str) -> None:
    phone = {"width": 375, "height": 740}
    with opened(browser, tmp_path, report_page(example(name), ReportContext("a" * 200)), viewport=phone) as seen:
        assert seen.evaluate("document.documentElement.scrollWidth") <= 375
        assert seen.locator(".by-rows .narrow svg").is_visible()
        assert not seen.locator(".by-rows .wide svg").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    "name",
    [*(pytest.param(name, marks=pytest.mark.slow) for name in ("rows-on-8-devices", "straggler-on-rank-1")), "both"],
)
def test_everybody_can_read_it(browser: Browser, tmp_path: Path, name: str, scheme: str) -> None:
    sides = (example("side-by-side-dp"), ReportContext("dp")), (example("side-by-side-ddp"), ReportContext("ddp"))
    document = (
        comparison_page(*sides)
        if name == "both"
        else report_page(example(name), ReportContext(name, "succeeded", {"a": "b"}, "{}"))
    )
    with opened(browser, tmp_path, document, color_scheme=scheme) as seen:
        found = Axe().run(seen)
        assert found.violations_count == 0, found.generate_report()


def test_hostile_names_do_nothing(browser: Browser, tmp_path: Path) -> None:
    evil = "</title></style><script>document.body.remove()</script><img src=x onerror=document.body.remove()>"
    with opened(
        browser, tmp_path, report_page(example("ten-for-eight"), ReportContext(evil, evil, {evil: evil}, evil))
    ) as seen:
        assert seen.locator("h1").inner_text() == evil
        assert seen.locator("img, script").count() == 0
