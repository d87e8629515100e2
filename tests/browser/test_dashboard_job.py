"""What the page of a job says of its owner and of its weights, in a real browser."""

import re
from collections.abc import Iterator
from math import isclose

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, expect

from shardyard.client import Client
from tests.acceptance.harness import wait_for_state
from tests.browser.conftest import Pages, cookie_of, example, pages_of

pytestmark = [pytest.mark.acceptance, pytest.mark.browser]

RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}


@pytest.fixture
def ana(browser: Browser, client: Client) -> Iterator[tuple[Pages, str]]:
    """The window of somebody in another tenant, and a job that she has submitted."""
    token = client.create_token("ana's laptop", tenant="vision")
    with Client(client.url, token.token) as hers:
        job = hers.submit(example("rows-on-3-devices")).id
        assert wait_for_state(hers, job, "succeeded").state == "succeeded"
    with pages_of(browser, client.url, token.token, storage_state=cookie_of(browser, client.url, token.token)) as pages:
        yield pages, job


@pytest.fixture(scope="module")
def weighed(client: Client) -> str:
    job = client.submit(example("unlike-devices-3-to-2")).id
    assert wait_for_state(client, job, "succeeded").state == "succeeded"
    return job


def fact(page: Page, name: str) -> Locator:
    return page.locator("dl.facts dt", has_text=re.compile(f"^{name}$")).locator("xpath=following-sibling::dd[1]")


def test_a_job_names_its_owner_as_the_table_of_jobs_does(ana: tuple[Pages, str]) -> None:
    pages, job = ana
    page = pages.open(f"/jobs/{job}")
    expect(fact(page, "owner")).to_have_text("ana's laptop of tenant vision")
    pages.open("/?columns=owner")
    expect(page.locator("tr", has=page.locator(f'a[href="/jobs/{job}"]'))).to_contain_text("ana's laptop")


def test_weights_have_the_figures_of_the_report(pages: Pages, phone: Pages, client: Client, weighed: str) -> None:
    found = client.job(weighed).report().data.weights
    assert found is not None
    assert found.gradient is not None
    page = pages.open(f"/jobs/{weighed}")
    panel = page.get_by_role("region", name="Weights")
    expect(panel.get_by_role("heading")).to_have_text("Weights as the spec has them")
    expect(panel.get_by_role("row", name="rows are divided by")).to_contain_text("3, 2")
    shown = {
        "a step on the slowest device": found.seen_ms,
        "predicted": found.predicted_ms,
        "with equal rows": found.even_ms,
    }
    for name, value in shown.items():
        row = panel.get_by_role("row", name=name)
        if value is None:
            expect(row).to_have_count(0)
        else:
            assert isclose(number_in(row), value, rel_tol=0.005), name
    assert found.speed_share is not None
    assert number_in(panel.get_by_role("row", name="of the sum of the devices' speeds")) == round(
        found.speed_share * 100
    )
    off = number_in(panel.get_by_role("row", name="gradient, off that of one device"))
    assert isclose(off, found.gradient.difference / found.gradient.norm, rel_tol=0.05)
    assert off < 1e-4
    for opened in (page, phone.open(f"/jobs/{weighed}")):
        expect(opened.get_by_role("region", name="Weights")).to_be_visible()
        checked = Axe().run(opened, options=RULES)
        assert checked.violations_count == 0, checked.generate_report()
    assert phone.page.evaluate("document.documentElement.scrollWidth") <= 375


def number_in(row: Locator) -> float:
    """The value of a line: `1.234 ms`, `95 %`, `2.1e-7 of its norm`."""
    return float(row.locator("td").inner_text().split()[0].replace(",", ""))
