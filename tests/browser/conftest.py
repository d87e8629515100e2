import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, StorageState, expect, sync_playwright

from api.system import dashboard_routes
from shardyard.client import Client
from tests.acceptance.harness import Up

DEVICES = 8
EXAMPLES = Path(__file__).parents[2] / "examples" / "jobs"
#: Programs that Playwright can drive, which brings none of its own. The first is Chromium without windows, which takes
#: a third less of the processor.
BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
#: What a page may take to show what it should; nothing waits this long when all is well.
PATIENCE_MS = 60_000


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    built = dashboard_routes._built_page() is not None
    if program is None or not built:
        why = f"there is none of {BROWSERS} here" if program is None else "the dashboard is not built: make web"
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    up = Up(
        tmp_path_factory.mktemp("browser"), "--devices", f"cpu:{DEVICES}", "--jobs-unboxed"
    )  # a test has two tenants
    up.start()
    yield up
    up.close()


@pytest.fixture(scope="package")
def client(service: Up) -> Client:
    assert service.client is not None
    return service.client


@pytest.fixture(scope="package")
def signed_in(browser: Browser, client: Client, service: Up) -> StorageState:
    """The cookie of one session of the operator, for all windows that do not sign in by hand."""
    return cookie_of(browser, client.url, token_of(service))


class Pages:
    """A browser window, and what went wrong in it."""

    def __init__(self, page: Page, url: str, token: str) -> None:
        self.page, self.url, self.token = page, url, token
        self.wrong: list[str] = []
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        page.on("console", lambda message: self._heard(message.type, message.text))
        page.on("request", lambda request: self._asked(request.url))
        page.on("response", lambda response: self._answered(response.status, response.url))

    def _heard(self, kind: str, text: str) -> None:
        if "Content Security Policy" in text or (kind == "error" and "Failed to load resource" not in text):
            self.wrong.append(f"{kind}: {text}")

    def _asked(self, url: str) -> None:
        if not url.startswith((self.url, "data:", "blob:")):
            self.wrong.append(f"asked another host: {url}")

    def _answered(self, status: int, url: str) -> None:
        if status >= 400 and "/v1/" not in url:
            self.wrong.append(f"{status}: {url}")

    def open(self, path: str) -> Page:
        self.page.goto(self.url + path)
        return self.page

    def sign_in(self) -> Page:
        page = self.open("/sign-in")
        page.get_by_label("Access token").fill(self.token)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("navigation", name="Pages").wait_for()
        return page


@contextmanager
def pages_of(browser: Browser, url: str, token: str, **window: object) -> Iterator[Pages]:
    """Windows draw no animations, which would take a core while a run is shown."""
    chosen = {"viewport": {"width": 1280, "height": 800}, "reduced_motion": "reduce", **window}
    context = browser.new_context(**chosen)  # type: ignore[arg-type]
    pages = Pages(context.new_page(), url, token)
    yield pages
    context.close()
    assert pages.wrong == []


@pytest.fixture
def pages(browser: Browser, service: Up, client: Client, signed_in: StorageState) -> Iterator[Pages]:
    """A window of 1280 by 800, signed in. Nothing may go wrong in it: no error of a script, no request to elsewhere."""
    with pages_of(browser, client.url, token_of(service), storage_state=signed_in) as pages:
        yield pages


@pytest.fixture
def stranger(browser: Browser, service: Up, client: Client) -> Iterator[Pages]:
    """A window that has not signed in."""
    with pages_of(browser, client.url, token_of(service)) as pages:
        yield pages


@pytest.fixture
def phone(browser: Browser, service: Up, client: Client, signed_in: StorageState) -> Iterator[Pages]:
    window = {"viewport": {"width": 375, "height": 740}, "color_scheme": "dark", "has_touch": True}
    with pages_of(browser, client.url, token_of(service), storage_state=signed_in, **window) as pages:
        yield pages


def cookie_of(browser: Browser, url: str, token: str) -> StorageState:
    context = browser.new_context()
    answer = context.request.post(f"{url}/v1/sign-in", data={"token": token}, headers={"Origin": url})
    assert answer.status == 204, answer.text()
    state = context.storage_state()
    context.close()
    return state


def token_of(service: Up) -> str:
    return (service.data_dir / "admin.token").read_text().strip()


def replace_text(editor: Locator, text: str) -> None:
    """fill() would select what the editor has drawn, which is a part of a long text, or of one that just came."""
    editor.press("ControlOrMeta+a")
    editor.page.keyboard.insert_text(text)


def example(name: str) -> dict[str, object]:
    found: dict[str, object] = json.loads((EXAMPLES / f"{name}.json").read_text())
    return found
