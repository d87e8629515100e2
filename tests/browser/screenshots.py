"""Takes the documents' pictures of the dashboard: `python -m tests.browser.screenshots`.

It starts a service with eight virtual devices and trains on it, so no two pictures are the same: look at the new one
before you commit it.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.acceptance.harness import Up, wait_for_state
from tests.browser.conftest import BROWSERS, cookie_of, example, token_of

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
COLUMNS = "state,loss,metrics.accuracy,rows_per_second,spec.program.optimizer.args.lr,devices,created,took"
RATES = (0.01, 0.02, 0.05, 0.1)
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
    page = browser.new_page(viewport={"width": 1280, "height": 720}, storage_state=state)
    page.goto(f"{up.client.url}/jobs/{job}")
    expect(page.locator("table.map td.idle").first).to_be_visible()
    expect(page.locator("figure canvas").first).to_be_visible()
    save(page, "dashboard.png")
    for ended in [up.client.submit(spec).id for spec in sweep()]:
        wait_for_state(up.client, ended, "succeeded")
    page.goto(f"{up.client.url}/?columns={COLUMNS}&sort=loss")
    expect(page.locator("table.jobs tbody a.name")).to_have_count(1 + len(RATES))
    page.set_viewport_size({"width": 1280, "height": 480})
    save(page, "dashboard-jobs.png")


def sweep() -> list[dict[str, Any]]:
    """The same training at several learning rates."""
    specs = []
    for rate in RATES:
        spec: dict[str, Any] = example("digits-ddp2")
        spec["name"], spec["labels"] = f"digits, lr {rate}", {"sweep": "lr"}
        spec["program"]["optimizer"]["args"]["lr"] = rate
        specs.append(spec)
    return specs


def save(page: Page, name: str) -> None:
    page.screenshot(path=PICTURES / name)
    size = (PICTURES / name).stat().st_size
    assert size <= MAX_BYTES, f"{name} has {size} bytes"


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
