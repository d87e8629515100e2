"""Takes the documents' picture of the dashboard: `python -m tests.browser.screenshots`.

It starts a service with eight virtual devices and trains on it, so no two pictures are the same: look at the new one
before you commit it.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, expect, sync_playwright

from tests.acceptance.harness import Up, wait_for_state
from tests.browser.conftest import BROWSERS, cookie_of, example, token_of

FILE = Path(__file__).parents[2] / "docs" / "pictures" / "dashboard.png"
MAX_BYTES = 150_000


def uneven() -> dict[str, Any]:
    """Training whose last batch leaves devices idle."""
    spec: dict[str, Any] = example("digits-dp3")
    spec["name"], spec["resources"] = "digits on eight devices", {"devices": 8}
    spec["program"]["data"]["batch_size"] = 62
    return spec


def take(browser: Browser, up: Up) -> None:
    assert up.client is not None
    job = up.client.submit(uneven()).id
    wait_for_state(up.client, job, "succeeded")
    state = cookie_of(browser, up.client.url, token_of(up))
    page = browser.new_page(viewport={"width": 1280, "height": 640}, storage_state=state)
    page.goto(f"{up.client.url}/jobs/{job}")
    expect(page.locator("table.map td.idle").first).to_be_visible()
    expect(page.locator("figure canvas").first).to_be_visible()
    page.screenshot(path=FILE)
    size = FILE.stat().st_size
    assert size <= MAX_BYTES, f"{FILE} has {size} bytes"


def main() -> None:
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    with tempfile.TemporaryDirectory() as directory, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        up = Up(Path(directory), "--devices", "cpu:8")
        try:
            up.start()
            take(browser, up)
        finally:
            up.close()


if __name__ == "__main__":
    main()
