"""Single sign-on in a real browser: its cookies, its redirects, and the identity provider's own page."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import PATIENCE_MS
from tests.integration.api.accounts.test_single_sign_on import RULES
from tests.integration.api.system.test_process import api_process, until
from tests.support.servers.identity_provider import CLIENT_ID, CLIENT_SECRET, free_port, running_provider
from tests.support.servers.redis_server import redis_server

pytestmark = [pytest.mark.acceptance, pytest.mark.browser, pytest.mark.slow]


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """The address of a service with single sign-on."""
    port = free_port()
    url = f"http://localhost:{port}"
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES)
    with (
        redis_server(tmp_path / "redis") as redis,
        running_provider(tmp_path / "provider", f"{url}/v1/sign-in/oidc/callback") as issuer,
        api_process(
            tmp_path,
            redis.url,
            PORT=str(port),
            PUBLIC_URL=url,
            OIDC_ISSUER=issuer,
            OIDC_CLIENT_ID=CLIENT_ID,
            OIDC_CLIENT_SECRET=CLIENT_SECRET,
            OIDC_RULES_FILE=str(rules),
        ) as process,
    ):
        process.port()
        until(lambda: httpx.get(f"{url}/healthz").is_success)
        yield url


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    yield page
    context.close()


def continue_as(page: Page, name: str) -> None:
    """Sign in on the provider's page."""
    page.get_by_role("link", name="Continue with localhost").click()
    page.locator("input[name=username]").fill(name)
    page.locator("input[name=password]").fill(name)
    page.locator("input[name=password]").press("Enter")


def test_somebody_signs_in_with_the_button_and_comes_back_to_the_page_they_wanted(url: str, page: Page) -> None:
    page.goto(f"{url}/nodes?pool=a")
    continue_as(page, "alice")
    expect(page.get_by_role("navigation", name="Pages")).to_be_visible()
    assert page.url == f"{url}/nodes?pool=a"
    expect(page.locator(".who")).to_contain_text("vision")
    # Those of the provider are there as well: a host has the cookies of all its ports.
    cookies = {cookie["name"]: cookie for cookie in page.context.cookies(url)}
    assert "shardyard_sign_in" not in cookies
    assert (cookies["shardyard_session"]["httpOnly"], cookies["shardyard_session"]["sameSite"]) == (True, "Strict")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Access token")).to_be_visible()


def test_somebody_without_access_reads_why_and_gets_back_to_the_sign_in(url: str, page: Page) -> None:
    page.goto(f"{url}/sign-in")
    continue_as(page, "eve")
    expect(page.get_by_role("heading", name="No access to this service")).to_be_visible()
    expect(page.get_by_text("Eve is signed in at the identity provider, but has no access")).to_be_visible()
    page.get_by_role("link", name="Back to the sign-in").click()
    expect(page.get_by_label("Access token")).to_be_visible()
