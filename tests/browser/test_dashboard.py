"""What people do with the dashboard, and what it must show them."""

import re
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from shardyard.client import Client
from tests.acceptance.harness import wait_for_state
from tests.browser.conftest import Pages, example

pytestmark = [pytest.mark.acceptance, pytest.mark.browser]

HOSTILE = '<script>document.title="owned"</script><img src=x onerror=alert(1)>'
SHARDS = [4, 4, 4, 4, 4, 4, 4, 2]


def run(client: Client, spec: dict[str, Any]) -> str:
    """A job that has ended well."""
    job = client.submit(spec).id
    assert wait_for_state(client, job, "succeeded", "failed").state == "succeeded"
    return job


def cells(page: Page, row: int) -> list[str]:
    """The split, as its table shows it: one row of it."""
    return page.locator("table.map tbody tr").nth(row).locator("td").all_inner_texts()


def test_a_job_is_submitted_watched_and_read_in_the_browser_alone(pages: Pages) -> None:
    page = pages.sign_in()
    page.get_by_role("link", name="Submit", exact=True).click()
    spec = page.get_by_label("Job spec as JSON")
    spec.fill('{"resources": {"devices": 3}, "program": {"model": {"ref": "linear"}}}')
    expect(page.get_by_text("program.data")).to_be_visible()
    expect(page.get_by_role("button", name="Submit")).to_be_disabled()
    spec.fill(
        """{"name": "by hand", "resources": {"devices": 3}, "parallelism": {"strategy": "dp"}, "program": {
        "mode": "forward", "model": {"ref": "linear", "args": {"in_features": 5, "out_features": 2}},
        "data": {"ref": "random_vectors", "args": {"rows": 100, "features": 5}, "batch_size": 30}}}"""
    )
    expect(page.locator("table.map tbody tr")).to_have_count(2)  # the plan's split, before anything is sent
    assert cells(page, 1) == ["4", "4", "2"]
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("heading", name="by hand")).to_be_visible()
    expect(page.locator(".job-head .state")).to_have_text("succeeded")
    expect(page.get_by_role("heading", name="What each device got")).not_to_contain_text("so far")
    assert [cells(page, 0), cells(page, 1)] == [["10", "10", "10"], ["4", "4", "2"]]


def test_idle_devices_and_the_first_finding_are_in_sight_without_scrolling(pages: Pages, client: Client) -> None:
    job = run(client, example("rows-on-8-devices"))
    finding = client.job(job).report().findings[0].message
    pages.sign_in()
    page = pages.open(f"/jobs/{job}")
    expect(page.get_by_text(finding)).to_be_in_viewport()
    assert cells(page, 0) == [str(rows) for rows in SHARDS]
    assert cells(page, 1) == ["2"] * 5 + ["idle"] * 3
    for device in (5, 6, 7):
        marked = page.locator("table.map tbody tr").nth(1).locator("td").nth(device)
        expect(marked).to_be_in_viewport(ratio=1)
        expect(marked).to_have_class(re.compile(r"\bidle\b"))
        assert "repeating-linear-gradient" in marked.evaluate("cell => getComputedStyle(cell).backgroundImage")
        expect(page.locator("table.map thead th").nth(device + 1)).to_contain_text("idle")
    assert page.evaluate("window.scrollY") == 0


def test_a_run_is_followed_live_and_cancelled(pages: Pages, client: Client) -> None:
    spec = example("digits-ddp2")
    spec["program"]["epochs"] = 2000  # type: ignore[index]
    job = client.submit(spec).id
    pages.sign_in()
    page = pages.open(f"/jobs/{job}")
    step = page.locator(".job-head").get_by_text(re.compile(r"step [\d,]+ of"))
    expect(step).to_be_visible()
    before = step.inner_text()
    expect(step).not_to_have_text(before)  # without a reload
    expect(page.locator(".log li").first).to_be_attached()
    expect(page.locator("figure", has_text="loss").first.locator("canvas")).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".job-head .state")).to_have_text("cancelled")
    expect(page.get_by_role("button", name="Delete")).to_be_visible()


def test_the_list_changes_by_itself_and_its_filters_are_in_the_address(pages: Pages, client: Client) -> None:
    page = pages.sign_in()
    pages.open("/?label=shown%3Dyes")
    expect(page.get_by_text("No job matches")).to_be_visible()
    job = client.submit(example("rows-on-3-devices") | {"labels": {"shown": "yes"}, "name": "comes later"}).id
    expect(page.get_by_role("link", name="comes later")).to_be_visible()
    expect(page.locator("tr", has_text="comes later").locator(".state")).to_have_text("succeeded")
    page.get_by_label("State").select_option("failed")
    expect(page).to_have_url(re.compile(r"state=failed"))
    expect(page.get_by_text("No job matches")).to_be_visible()
    page.go_back()
    assert client.job(job).status.state == "succeeded"


def test_two_runs_are_compared_side_by_side(pages: Pages, client: Client) -> None:
    dp, ddp = run(client, example("side-by-side-dp")), run(client, example("side-by-side-ddp"))
    pages.sign_in()
    page = pages.open(f"/compare?a={dp}&b={ddp}")
    expect(page.locator("table.map")).to_have_count(2)
    expect(page.get_by_role("heading", name="In numbers")).to_be_visible()


def test_hostile_names_labels_and_lines_are_shown_as_text(pages: Pages, client: Client, tmp_path: Any) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"print({HOSTILE!r})\nprint('\\x1b[31mred\\x1b[0m\\u202eltr', flush=True)\n")
    job = client.submit_script(script, name=HOSTILE, labels={"note": HOSTILE}).id
    wait_for_state(client, job, "succeeded", "failed")
    page = pages.sign_in()
    expect(page.get_by_role("link", name=HOSTILE).first).to_be_visible()
    pages.open(f"/jobs/{job}")
    expect(page.get_by_role("heading", name=HOSTILE)).to_be_visible()
    expect(page.locator(".log li").first).to_contain_text(HOSTILE)
    assert "\x1b" not in page.locator(".logs").inner_text()
    assert page.locator("img[src='x']").count() == 0
    assert "owned" not in page.title().split(":")[0].replace(HOSTILE, "")


def test_a_page_comes_back_to_life_after_the_connection_was_cut(pages: Pages, client: Client) -> None:
    page = pages.sign_in()
    pages.open("/?label=cut%3Dyes")
    expect(page.get_by_text("No job matches")).to_be_visible()
    page.context.set_offline(True)
    client.submit(example("rows-on-3-devices") | {"labels": {"cut": "yes"}, "name": "while offline"})
    page.wait_for_timeout(500)
    page.context.set_offline(False)
    page.evaluate("window.dispatchEvent(new Event('online'))")
    expect(page.get_by_role("link", name="while offline")).to_be_visible()


def test_signing_out_leaves_nothing_to_see(pages: Pages) -> None:
    page = pages.sign_in()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Access token")).to_be_visible()
    pages.open("/nodes")
    expect(page.get_by_label("Access token")).to_be_visible()


def test_a_wrong_token_is_told_so(pages: Pages) -> None:
    page = pages.open("/")
    page.get_by_label("Access token").fill("guess")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("unknown, revoked or expired")


@pytest.mark.parametrize("path", ["/", "/submit", "/compare", "/nodes", "/jobs/JOB", "/sign-in"])
def test_pages_are_accessible(pages: Pages, client: Client, path: str) -> None:
    """No violation of WCAG 2 A and AA that axe finds."""
    job = run(client, example("rows-on-8-devices")) if "JOB" in path else ""
    page = pages.sign_in() if path != "/sign-in" else pages.page
    pages.open(path.replace("JOB", job))
    expect(page.locator("main h1").first).to_be_visible()
    found = Axe().run(page, options={"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]})
    assert found.violations_count == 0, found.generate_report()


def test_a_phone_shows_the_same_without_scrolling_sideways(phone: Pages, client: Client) -> None:
    job = run(client, example("rows-on-8-devices"))
    page = phone.sign_in()
    for path in ("/", f"/jobs/{job}", "/submit", "/nodes"):
        phone.open(path)
        expect(page.locator("main h1").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 375, path


def test_the_keyboard_reaches_everything(pages: Pages, client: Client) -> None:
    job = run(client, example("rows-on-3-devices"))
    page = pages.sign_in()
    pages.open(f"/jobs/{job}")
    expect(page.get_by_role("heading", name="What each device got")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.textContent.trim()"))
    assert {"Jobs", "Submit", "Compare", "Devices", "Submit again", "Rows", "Waiting"} <= reached
