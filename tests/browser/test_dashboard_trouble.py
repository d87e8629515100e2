"""The dashboard where things are hostile, huge, gone or not allowed."""

import os
import re
import signal
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, expect

from shardyard.client import Client
from tests.acceptance.harness import Up, wait_for_state
from tests.browser.cable import Cable
from tests.browser.conftest import Pages, cookie_of, example, pages_of

pytestmark = [pytest.mark.acceptance, pytest.mark.browser]

HOSTILE = '<script>document.title="owned"</script><img src=x onerror=alert(1)>'
LINES = 100_000


def script(client: Client, directory: Any, text: str, **submitted: Any) -> str:
    """A script that has ended."""
    file = directory / "train.py"
    file.write_text(text)
    job = client.submit_script(file, **submitted).id
    wait_for_state(client, job, "succeeded", "failed")
    return job


def token(pages: Pages, **wanted: Any) -> str:
    """A new token; the operator makes it."""
    headers = {"Authorization": f"Bearer {pages.token}"}
    answer = httpx.post(f"{pages.url}/v1/tokens", json=wanted, headers=headers)
    return str(answer.raise_for_status().json()["token"])


def test_hostile_names_labels_and_lines_are_shown_as_text(pages: Pages, client: Client, tmp_path: Any) -> None:
    lines = f"print({HOSTILE!r})\nprint('\\x1b[31mred\\x1b[0m\\u202eltr', flush=True)\n"
    lines += "from shardyard import job\n(job.output_dir() / 'a\\u202egnp.exe').write_text('not a picture')\n"
    job = script(client, tmp_path, lines, name=HOSTILE, labels={"note": HOSTILE})
    page = pages.open("/")
    expect(page.get_by_role("link", name=HOSTILE).first).to_be_visible()
    pages.open(f"/jobs/{job}")
    expect(page.get_by_role("heading", name=HOSTILE)).to_be_visible()
    expect(page.locator(".log li").first).to_contain_text(HOSTILE)
    assert not {"\x1b", "\u202e"} & set(page.locator("main").inner_text())
    assert page.locator("img[src='x']").count() == 0
    assert page.title().startswith(HOSTILE)
    with page.expect_download() as download:
        page.get_by_role("link", name=r"a\u202egnp.exe").click()
    assert download.value.path().read_text() == "not a picture"


def test_a_long_log_is_read_from_any_line_and_searched_as_a_whole(pages: Pages, client: Client, tmp_path: Any) -> None:
    lines = f"for n in range(1, {LINES} + 1):\n    print('needle' if n == 4321 else f'line {{n}}')\n"
    job = script(client, tmp_path, lines)
    page = pages.open(f"/jobs/{job}")
    log = page.get_by_role("region", name="Log of device 0")
    expect(log.locator("li").last).to_have_attribute("data-seq", str(LINES))
    page.get_by_label("Search").fill("NEEDLE")
    expect(log.locator("li")).to_have_text(["4,321needle"])
    log.get_by_role("button", name="4,321").click()
    expect(log.locator("li.marked")).to_contain_text("needle")
    log.locator("header").scroll_into_view_if_needed()  # what is above the logs may have grown
    expect(log.locator("li.marked")).to_be_in_viewport()
    expect(log.locator('li[data-seq="4320"]')).to_be_in_viewport()
    for seq in (4000, 3700):  # scrolling up reads on
        log.locator("ol").evaluate("list => { list.scrollTop = 0 }")
        expect(log.locator(f'li[data-seq="{seq}"]')).to_be_attached()
    assert log.locator("li").count() <= 1500
    page.get_by_label("Go to a step or a line").select_option("line")
    page.get_by_label("its number").fill("77777")
    page.get_by_role("button", name="Go", exact=True).click()
    expect(log.locator("li.marked")).to_contain_text("line 77777")
    page.get_by_role("button", name="End").click()
    expect(log.locator("li").last).to_have_attribute("data-seq", str(LINES))


def test_a_failed_script_shows_its_traceback_and_last_lines_and_shard_lines_on_demand(
    pages: Pages, client: Client, tmp_path: Any
) -> None:
    text = """import torch
model = torch.nn.Linear(5, 2)
for step in range(400):
    model(torch.randn(10, 5)).sum().backward()
    print("step", step)
raise ValueError("no more steps")
"""
    page = pages.open(f"/jobs/{script(client, tmp_path, text)}")
    failure = page.locator(".notice.bad")
    expect(failure.get_by_text("Traceback (most recent call last)")).to_be_visible()
    expect(failure.locator("pre").last).to_contain_text("step 398\nstep 399")
    expect(failure.locator("pre").last).not_to_contain_text("Error")
    log = page.get_by_role("region", name="Log of device 0")
    expect(log.locator("li").last).to_contain_text("ValueError: no more steps")
    expect(log.get_by_text("In Model")).to_have_count(0)
    for _ in range(3):  # over the gaps in the numbers, to the first line
        log.locator("ol").evaluate("list => { list.scrollTop = 0 }")
    expect(log.locator("li").first).to_contain_text("step 0")
    page.get_by_label("Shard lines").check()
    expect(log.locator("li").last).to_contain_text("ValueError: no more steps")
    shard_lines = log.locator("li", has_text="In Model")
    for _ in range(600):  # where they stand among the others depends on when each was read
        if shard_lines.count():
            break
        log.locator("ol").evaluate("list => { list.scrollTop -= list.clientHeight }")
        page.wait_for_timeout(50)
    expect(shard_lines.first).to_be_attached()


def test_a_thousand_series_are_found_by_name_and_read_only_where_they_are_seen(
    pages: Pages, client: Client, tmp_path: Any
) -> None:
    text = """from shardyard import job
for step in range(3):
    for n in range(1000):
        job.log(f"layer.{n:03d}", n + step, step=step)
"""
    job = script(client, tmp_path, text)
    asked: list[str] = []
    pages.page.on("request", lambda request: asked.append(request.url) if "metrics?name=" in request.url else None)
    page = pages.open(f"/jobs/{job}")
    expect(page.get_by_text("1,000 series")).to_be_visible()
    page.get_by_role("searchbox", name="Find").fill("layer.777")
    # Those of the hardware are further down, if the job ran for long enough.
    curves = page.locator("section.panel").filter(has=page.get_by_role("searchbox", name="Find"))
    expect(curves.locator("figure")).to_have_count(1)
    expect(curves.locator("figcaption")).to_contain_text("779 at step 2")
    assert len(asked) < 20


def test_a_token_that_may_only_look_has_no_buttons_that_change_something(
    browser: Browser, pages: Pages, client: Client
) -> None:
    reader = token(pages, name="wall screen", scopes=["read"])
    client.submit(example("rows-on-3-devices"))
    with pages_of(browser, pages.url, reader, storage_state=cookie_of(browser, pages.url, reader)) as looking:
        for path in ("/", "/submit", "/nodes"):
            page = looking.open(path)
            expect(page.locator("main h1").first).to_be_visible()
            page.wait_for_timeout(200)
            words = re.compile("Cancel|Delete|again|^Submit$|Submit a job|Edit|Suspend|Test|Drain|Set apart")
            for role in ("button", "menuitem"):
                assert page.get_by_role(role, name=words, include_hidden=True).count() == 0, (path, role)


def test_another_tenant_sees_nothing_of_it(browser: Browser, pages: Pages, client: Client) -> None:
    job = client.submit(example("rows-on-3-devices")).id
    theirs = token(pages, name="theirs", scopes=["submit"], tenant="others")
    with pages_of(browser, pages.url, theirs, storage_state=cookie_of(browser, pages.url, theirs)) as others:
        page = others.open("/")
        expect(page.get_by_text("No jobs yet")).to_be_visible()
        others.open(f"/jobs/{job}")
        expect(page.get_by_role("alert")).to_contain_text("there is no job")
        others.open("/nodes")
        expect(page.locator(".slot").first).to_be_visible()
        assert page.get_by_role("button", name="Drain").count() == 0


def test_a_job_that_is_deleted_while_it_is_watched_says_so(pages: Pages, client: Client) -> None:
    job = client.submit(example("rows-on-3-devices"))
    page = pages.open(f"/jobs/{job.id}")
    expect(page.locator(".job-head .state")).to_have_text("succeeded")
    page.get_by_role("link", name="Jobs", exact=True).click()
    row = page.locator("tr", has=page.locator(f'a[href="/jobs/{job.id}"]'))
    expect(row).to_have_count(1)
    job.delete()
    expect(row).to_have_count(0)
    expect(page.get_by_role("heading", name="Jobs")).to_be_visible()
    pages.open(f"/jobs/{job.id}")
    expect(page.get_by_role("alert")).to_contain_text("there is no job")


def test_a_page_of_a_job_that_is_gone_says_so_when_somebody_comes_back_to_it(pages: Pages, client: Client) -> None:
    job = client.submit(example("rows-on-3-devices"))
    page = pages.open(f"/jobs/{job.id}")
    expect(page.locator(".job-head .state")).to_have_text("succeeded")
    expect(page.locator("table.map")).to_be_visible()
    job.delete()
    page.evaluate(
        "() => { setInterval(() => window.dispatchEvent(new Event('focus')), 200) }"
    )  # one a second is heeded
    expect(page.get_by_role("alert")).to_contain_text("This job has been deleted")
    expect(page.locator("table.map")).to_be_visible()


def test_a_session_that_ends_is_begun_again_on_the_same_page(stranger: Pages, client: Client) -> None:
    page = stranger.sign_in()
    stranger.open("/nodes")
    expect(page.get_by_role("heading", name="Devices")).to_be_visible()
    page.context.clear_cookies()
    expect(page.get_by_label("Access token")).to_be_visible()  # it looks every few seconds
    page.get_by_label("Access token").fill(stranger.token)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Devices")).to_be_visible()
    assert page.url.endswith("/nodes")


def test_a_page_comes_back_to_life_after_the_connection_was_cut(browser: Browser, pages: Pages, client: Client) -> None:
    with Cable(pages.url) as cable:
        state = cookie_of(browser, cable.url, pages.token)
        with pages_of(browser, cable.url, pages.token, storage_state=state) as cabled:
            page = cabled.open("/?label=cut%3Dyes")
            expect(page.get_by_text("No job matches")).to_be_visible()
            cable.cut()
            expect(page.get_by_text("not live")).to_be_visible()
            client.submit(example("rows-on-3-devices") | {"labels": {"cut": "yes"}, "name": "while it was cut"})
            cable.mend()
            expect(page.get_by_role("link", name="while it was cut")).to_be_visible()
            expect(page.get_by_text("not live")).not_to_be_visible()


def test_signing_out_leaves_nothing_to_see(stranger: Pages) -> None:
    page = stranger.sign_in()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Access token")).to_be_visible()
    stranger.open("/nodes")
    expect(page.get_by_label("Access token")).to_be_visible()


def test_a_wrong_token_is_told_so(stranger: Pages) -> None:
    page = stranger.open("/")
    page.get_by_label("Access token").fill("guess")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("unknown, revoked or expired")


@pytest.mark.slow
def test_a_run_is_watched_across_a_restart_of_the_api(pages: Pages, client: Client, service: Up) -> None:
    """`shardyard up` starts its API again when it dies."""
    spec = example("digits-ddp2")
    spec["program"]["epochs"] = 2000  # type: ignore[index]
    job = client.submit(spec)
    page = pages.open(f"/jobs/{job.id}")
    log = page.get_by_role("region", name="Log of device 0")
    expect(log.locator("header")).to_contain_text("live")
    os.kill(service.pids()["api"], signal.SIGKILL)
    expect(page.get_by_text("not live: connecting again")).to_be_visible()
    expect(page.get_by_text("not live: connecting again")).not_to_be_visible()
    seen = [int(seq) for seq in log.locator("li").evaluate_all("lines => lines.map(line => line.dataset.seq)")]
    assert seen == list(range(seen[0], seen[0] + len(seen)))  # no gap, no repeat
    job.cancel()
    expect(page.locator(".job-head .state")).to_have_text("cancelled")


@pytest.mark.slow
def test_more_windows_than_a_browser_has_connections_all_show_what_happens(pages: Pages, client: Client) -> None:
    windows = [pages.page, *(pages.page.context.new_page() for _ in range(6))]
    for window in windows:
        window.goto(f"{pages.url}/?label=windows%3Dyes")
    for window in windows:
        expect(window.get_by_text("No job matches")).to_be_visible()
    client.submit(example("rows-on-3-devices") | {"labels": {"windows": "yes"}, "name": "seen by all"})
    for window in windows:
        expect(window.get_by_role("link", name="seen by all")).to_be_visible()
