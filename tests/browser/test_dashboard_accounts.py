"""The dashboard's pages of quotas and webhooks, in a real browser."""

import re
from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, Route, expect

from shardyard.client import Client, endpoints
from tests.browser.conftest import Pages

pytestmark = pytest.mark.integration

RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}


@pytest.fixture
def quota(client: Client) -> Iterator[None]:
    client.set_quota("default", jobs=50, bundle_bytes=1 << 30, device_hours=0)
    yield
    client.call(endpoints.remove_quota("default"))


@pytest.fixture
def webhook(client: Client) -> Iterator[str]:
    """One whose receiver there is not."""
    made = client.create_webhook("https://hooks.invalid/shardyard", events=["node.*"], name="pager").id
    yield made
    client.delete_webhook(made)


def assert_accessible(page: Page) -> None:
    found = Axe().run(page, options=RULES)
    assert found.violations_count == 0, found.generate_report()


def assert_no_scrolling_sideways(page: Page) -> None:
    assert page.evaluate("document.documentElement.scrollWidth") <= 375


@pytest.mark.usefixtures("quota")
def test_a_quota_is_shown_with_what_is_used_of_it(pages: Pages, phone: Pages) -> None:
    page = pages.open("/quota")
    limit = page.locator(".limit", has_text="Jobs that have not ended")
    expect(limit).to_contain_text(re.compile(r"\d+ of 50"))
    expect(limit.get_by_role("progressbar")).to_have_attribute("aria-label", re.compile("of 50"))
    expect(page.locator(".limit", has_text="Device-hours")).to_contain_text("reached")
    expect(page.locator(".limit")).to_have_count(3)
    assert_accessible(page)
    phone.open("/quota")
    expect(phone.page.locator(".limit")).to_have_count(3)
    assert_no_scrolling_sideways(phone.page)
    assert_accessible(phone.page)


def test_a_webhook_is_tested_and_what_was_given_up_is_sent_again(pages: Pages, phone: Pages, webhook: str) -> None:
    page = pages.open("/webhooks")
    part = page.locator("section.webhook", has_text="pager")
    part.get_by_role("button", name="Send a test").click()
    expect(part.locator("tr", has_text="webhook.test")).to_contain_text("its host is not known")
    expect(part).to_contain_text("fails since")

    def as_dead(route: Route) -> None:
        found = route.fetch().json()
        route.fulfill(json=found | {"deliveries": [each | {"state": "dead"} for each in found["deliveries"]]})

    for opened in (page, phone.page):
        opened.route("**/deliveries?*", as_dead)
    row = part.locator("tr", has_text="given up")
    with page.expect_response(re.compile(rf"/v1/webhooks/{webhook}/deliveries/.+/redeliver")) as answer:
        row.get_by_role("button", name="again").click()
    assert answer.value.status == 202
    assert_accessible(page)
    part.get_by_role("button", name="Switch off").click()
    expect(part).to_contain_text("not active")

    phone.open("/webhooks")
    phone.page.get_by_text("What was sent").click()
    expect(phone.page.locator("tr", has_text="given up")).to_be_visible()
    assert_no_scrolling_sideways(phone.page)
    assert_accessible(phone.page)
    for opened in (page, phone.page):
        opened.unroute_all(behavior="wait")  # before the webhook, and its deliveries, are deleted
