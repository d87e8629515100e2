"""What people do with the dashboard, and what it must show them."""

import re
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, Route, expect

from shardyard.client import Client
from tests.acceptance.harness import wait_for_state, wait_until
from tests.browser.conftest import Pages, example, replace_text

pytestmark = [pytest.mark.acceptance, pytest.mark.browser]

SHARDS = [4, 4, 4, 4, 4, 4, 4, 2]


def run(client: Client, spec: dict[str, Any]) -> str:
    """A job that has ended well."""
    job = client.submit(spec).id
    assert wait_for_state(client, job, "succeeded", "failed").state == "succeeded"
    return job


@pytest.fixture(scope="module")
def uneven(client: Client) -> str:
    """A job with idle devices that has ended."""
    return run(client, example("rows-on-8-devices"))


@pytest.fixture(scope="module")
def other(client: Client) -> str:
    """A job to compare that one with."""
    return run(client, example("rows-on-3-devices"))


def cells(page: Page, row: int) -> list[str]:
    """The split, as its table shows it: one row of it."""
    return page.locator("table.map tbody tr").nth(row).locator("td").all_inner_texts()


def test_somebody_signs_in_submits_a_job_and_reads_its_split(stranger: Pages) -> None:
    page = stranger.sign_in()
    page.get_by_role("link", name="Submit", exact=True).click()
    spec = page.get_by_label("Job spec as JSON")
    replace_text(spec, '{\n "resources": {"devices": 3},\n "program": {"model": {"ref": "linear"}, "dtaa": 1}}')
    expect(page.get_by_text("program.dtaa")).to_be_visible()
    expect(page.locator(".cm-lint-marker-error").first).to_be_visible()
    expect(page.get_by_role("button", name="Submit")).to_be_disabled()
    page.get_by_role("button", name="line 3").first.click()
    marked = page.locator(".editor").evaluate("editor => editor.shadowRoot.getSelection().toString()")
    assert marked in ('"dtaa"', '"program"')
    replace_text(
        spec,
        """{"name": "by hand", "resources": {"devices": 3}, "parallelism": {"strategy": "dp"}, "program": {
        "mode": "forward", "model": {"ref": "linear", "args": {"in_features": 5, "out_features": 2}},
        "data": {"ref": "random_vectors", "args": {"rows": 100, "features": 5}, "batch_size": 30}}}""",
    )
    expect(page.locator("table.map tbody tr")).to_have_count(2)  # the plan's split, before anything is sent
    assert cells(page, 1) == ["4", "4", "2"]
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("heading", name="by hand")).to_be_visible()
    expect(page.locator(".job-head .state")).to_have_text("succeeded")
    expect(page.get_by_role("heading", name="What each device got")).not_to_contain_text("so far")
    assert [cells(page, 0), cells(page, 1)] == [["10", "10", "10"], ["4", "4", "2"]]


def test_every_example_can_be_started_from_and_its_plan_is_drawn(pages: Pages) -> None:
    page = pages.open("/submit")
    choice = page.get_by_label("Start from")
    expect(choice.locator("option")).not_to_have_count(1)
    choice.select_option("rows-on-8-devices")
    expect(page.locator("table.map td.idle")).to_have_count(3)
    expect(page.get_by_text("3 of 8 devices get nothing of the last batch of 10")).to_be_visible()


def test_idle_devices_and_the_first_finding_are_in_sight_without_scrolling(
    pages: Pages, client: Client, uneven: str
) -> None:
    finding = client.job(uneven).report().findings[0].message
    page = pages.open(f"/jobs/{uneven}")
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


def test_a_cell_tells_its_shapes_and_the_switch_shows_what_the_split_cost(pages: Pages, uneven: str) -> None:
    page = pages.open(f"/jobs/{uneven}")
    page.locator("table.map tbody tr").nth(0).locator("td").nth(7).hover()
    expect(page.locator(".about")).to_contain_text("device 7: 2 rows · in [2, 5] · out [2, 2]")
    page.get_by_role("button", name="Time", exact=True).click()
    expect(page.locator("table.map tbody tr")).to_have_count(1)
    assert all(text.endswith(" ms") for text in cells(page, 0))
    page.get_by_role("button", name="Memory").click()
    expect(page.get_by_text("Not measured: virtual devices share the memory of the host")).to_be_visible()


def test_files_of_a_script_stand_apart_and_what_was_not_kept_is_named(
    pages: Pages, client: Client, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("open('model.pt', 'w').write('x' * 10); open('large.bin', 'w').write('x' * 99)")
    job = client.submit_script(tmp_path / "train.py", artifact_bytes=50)
    assert job.wait(60).state == "succeeded"
    page = pages.open(f"/jobs/{job.id}")
    expect(page.get_by_role("group", name="Your files").get_by_role("link")).to_have_text(["files/model.pt"])
    expect(page.get_by_role("group", name="Report").get_by_role("link")).to_have_text(["report.json"])
    expect(page.locator(".left-out")).to_contain_text("large.bin (99 B) was not kept")
    with page.expect_download() as download:
        page.get_by_role("link", name="files/model.pt").click()
    assert Path(download.value.path()).read_text() == "x" * 10
    assert job.download("model.pt", tmp_path / "got").read_bytes() == b"x" * 10


def test_the_report_opens_as_one_file(pages: Pages, uneven: str) -> None:
    page = pages.open(f"/jobs/{uneven}")
    with page.expect_popup() as opened:
        page.get_by_role("link", name="As a file").click()
    expect(opened.value.locator("h1")).to_contain_text("rows-on-8-devices")
    assert opened.value.evaluate("document.contentType") == "text/html"


def test_a_run_is_followed_live_and_cancelled(pages: Pages, client: Client) -> None:
    spec = example("digits-ddp2")
    spec["program"]["epochs"] = 2000  # type: ignore[index]
    job = client.submit(spec).id
    page = pages.open(f"/jobs/{job}")
    step = page.locator(".job-head").get_by_text(re.compile(r"step [\d,]+ of"))
    expect(step).to_be_visible()
    before = step.inner_text()
    expect(step).not_to_have_text(before)  # without a reload
    log = page.get_by_role("region", name="Log of device 0")
    expect(log.locator("header")).to_contain_text("live")
    last = log.locator("li").last.get_attribute("data-seq")
    wait_until(lambda: int(log.locator("li").last.get_attribute("data-seq") or 0) > int(last or 0) + 5, 60)
    value = page.locator("figure", has_text="loss").first.locator("figcaption")
    expect(value).to_contain_text("at step")
    shown = value.inner_text()
    expect(value).not_to_have_text(shown)
    for device in range(2):
        expect(page.get_by_role("img", name=f"CPU cores of device {device}: mean")).to_be_visible()
    pages.open("/")
    row = page.locator("tr", has=page.locator(f'a[href="/jobs/{job}"]'))
    expect(row.locator("progress")).to_be_visible()
    row.get_by_role("button", name="Actions on").click()
    page.get_by_role("menuitem", name="Cancel").click()
    expect(row.locator(".state")).to_have_text("cancelled")
    row.get_by_role("link", name="digits-ddp2", exact=True).click()
    page.get_by_role("button", name="More actions").click()
    expect(page.get_by_role("menuitem", name="Delete")).to_be_visible()
    expect(page.locator(".attempts")).to_contain_text("cancelled by user")


def test_the_list_changes_by_itself_and_its_filters_are_in_the_address(pages: Pages, client: Client) -> None:
    page = pages.open("/?label=shown%3Dyes")
    expect(page.get_by_text("No job matches")).to_be_visible()
    client.submit(example("rows-on-3-devices") | {"labels": {"shown": "yes"}, "name": "Comes Later"})
    expect(page.get_by_role("link", name="Comes Later")).to_be_visible()
    expect(page.locator("tr", has_text="Comes Later").locator(".state")).to_have_text("succeeded")
    page.get_by_role("navigation", name="Jobs by state").get_by_role("link", name="failed").click()
    expect(page).to_have_url(re.compile(r"state=failed"))
    expect(page.get_by_text("No job matches")).to_be_visible()
    pages.open("/")
    expect(page.get_by_role("link", name="Comes Later")).to_be_visible()
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox", name="Search")).to_be_focused()
    page.keyboard.type("omes lat")
    expect(page).to_have_url(re.compile(r"search=omes"))
    expect(page.locator("table.jobs tbody tr")).to_have_count(1)
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Actions on Comes Later").click()
    page.get_by_role("menuitem", name="Delete").click()
    expect(page.get_by_text("No job matches")).to_be_visible()


def test_two_runs_are_compared_side_by_side_on_one_scale(pages: Pages, client: Client) -> None:
    dp, ddp = run(client, example("side-by-side-dp")), run(client, example("side-by-side-ddp"))
    page = pages.open(f"/compare?a={dp}&b={ddp}")
    expect(page.locator("table.map")).to_have_count(2)
    expect(page.get_by_role("heading", name="Device by device")).to_be_visible()
    expect(page.get_by_role("heading", name="Found in this run alone")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    page.get_by_role("button", name="Time", exact=True).click()
    expect(page.locator("table.map tbody tr")).to_have_count(2)
    longest = [bars.locator(".bar").last.bounding_box() for bars in page.locator(".bars").all()]
    assert all(box is not None for box in longest)


def test_a_run_s_verdict_comes_first_and_bars_have_all_parts_of_its_time(pages: Pages, client: Client) -> None:
    job = run(client, example("straggler-on-rank-1"))
    report = client.job(job).report().data
    page = pages.open(f"/jobs/{job}")
    expect(page.locator(".verdict")).to_have_text(report.verdict)
    expect(page.locator(".verdict")).to_contain_text("Device 1 holds the others up")
    bars = page.locator(".bars").last.locator(".bar")
    expect(bars).to_have_count(4)
    for bar in bars.all():
        titles = [part.get_attribute("title") or "" for part in bar.locator("span").all()]
        names = ["data wait", "forward", "backward", "communication", "optimizer", "other"]
        assert [title.split(":")[0] for title in titles] == names
    backward = bars.first.locator(".p-backward")
    expect(backward).to_have_attribute("title", re.compile("in all give or take .*, typically .* p95"))
    cut = "spans => spans.filter(span => span.scrollWidth > span.clientWidth + 1).map(span => span.textContent)"
    assert page.locator(".bars .bar span").evaluate_all(cut) == []


def test_waiting_jobs_say_why_and_a_node_is_drained_and_a_device_set_apart(pages: Pages, client: Client) -> None:
    page = pages.open("/nodes")
    page.get_by_role("button", name="Drain …").click()
    page.get_by_role("button", name="Drain", exact=True).click()
    expect(page.get_by_text("draining: no new work")).to_be_visible()
    job = client.submit(example("rows-on-3-devices") | {"name": "waits for the node"}).id
    waiting = page.locator(".queue li", has_text="waits for the node")
    expect(waiting).to_contain_text("none of its nodes takes work now")
    page.once("dialog", lambda dialog: dialog.accept("a smell of burning"))
    page.get_by_role("button", name="Actions on cpu:7").click()
    page.get_by_role("menuitem", name="Set apart").click()
    expect(page.locator(".slot.quarantined")).to_contain_text("a smell of burning")
    page.get_by_role("button", name="Actions on cpu:7").click()
    page.get_by_role("menuitem", name="Use again").click()
    expect(page.locator(".slot.quarantined")).to_have_count(0)
    page.get_by_role("button", name="Take work again").click()
    expect(page.get_by_text("takes work", exact=True)).to_be_visible()
    assert wait_for_state(client, job, "succeeded").state == "succeeded"
    expect(waiting).to_have_count(0)


def test_a_node_shows_its_box_with_what_it_lacks_and_a_pool_its_policy(pages: Pages, client: Client) -> None:
    rights = [{"name": "files", "has": True, "why": None}, {"name": "account", "has": False, "why": "not root"}]

    def answer_with_a_box(route: Route) -> None:
        found = route.fetch().json()
        for node in found["nodes"]:
            node |= {"box": {"level": "user", "rights": rights}, "unboxed": True}
        route.fulfill(json=found)

    client.set_pool_policy("default", network="host")
    try:
        pages.page.route("**/v1/nodes", answer_with_a_box)
        page = pages.open("/nodes")
        expect(page.get_by_text("jobs have the node's network")).to_be_visible()
        expect(page.get_by_text("unboxed: no new work")).to_be_visible()
        badge = page.locator("details.box summary")
        expect(badge).to_have_text("box without root")
        expect(badge).to_have_attribute("title", "lacks account")
        badge.click()
        expect(page.locator("details.box")).to_contain_text("not root")
        found = Axe().run(page, options={"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]})
        assert found.violations_count == 0, found.generate_report()
        client.set_pool_policy("default", network="closed")
        expect(page.get_by_text("no jobs over several nodes")).to_be_visible()
    finally:
        client.set_pool_policy("default")
    expect(page.get_by_text("jobs have the node's network")).to_have_count(0)


def test_a_job_on_eight_nodes_of_eight_devices_can_be_read(pages: Pages, uneven: str) -> None:
    """Its answers are made of those about a job on one node, since no machine of the tests has so many devices."""
    places = [
        {"node": f"host-{part}", "devices": [f"cuda:{n}" for n in range(8)], "ranks": [*range(8 * part, 8 * part + 8)]}
        for part in range(8)
    ]

    def answer_with_nodes(route: Route) -> None:
        found = route.fetch().json()
        route.fulfill(json=found | {"strategy": "ddp", "devices": 8, "nodes": 8, "placement": places})

    def answer_with_devices(route: Route) -> None:
        found = route.fetch().json()
        device, measures = found["devices"][0], found["per_device"][0]
        ranks = range(64)
        found["devices"] = [device | {"device": n, "rank": n, "node": f"host-{n // 8}"} for n in ranks]
        found["per_device"] = [measures | {"device": n} for n in ranks]
        found["balance"]["slowest_node"] = "host-3"
        found["per_node"] = [
            {"node": f"host-{part}", "devices": [*range(8 * part, 8 * part + 8)], "rows": 1120, "share": 0.125}
            | {"steps": 4, "slowest_device": 8 * part, "data_wait_ms": 20.0, "comm_ms": 300.0, "wall_ms": 2000.0}
            for part in range(8)
        ]
        for pattern in found["patterns"]:
            for name in ("rows", "input_shapes", "output_shapes"):
                pattern[name] = pattern[name] and pattern[name][:1] * len(ranks)
        route.fulfill(json=found)

    pages.page.route(f"**/v1/jobs/{uneven}", answer_with_nodes)
    pages.page.route(f"**/v1/jobs/{uneven}/splits", answer_with_devices)
    page = pages.open(f"/jobs/{uneven}")
    expect(page.get_by_text("ddp on 8 of each of 8 nodes (host-0 and 7 others)")).to_be_visible()
    rows = page.locator("table.places tbody tr")
    assert [row.split("\t") for row in rows.all_inner_texts()] == [
        [f"host-{part}", "cuda:0-7", f"{8 * part}-{8 * part + 7}"] for part in range(8)
    ]
    assert page.locator("tr.of-node bdi").all_inner_texts() == [f"host-{part}" for part in range(8)]
    of_node = page.locator("tr.of-node").nth(3)
    expect(of_node.locator(".mark")).to_have_text("slowest node")
    expect(of_node.locator("small")).to_have_text(
        "1,120 rows (13 %), wall time 2 s, 1.0 % waiting for data, 15 % in communication, slowest device 24"
    )
    expect(page.locator("tr.of-node .mark")).to_have_count(1)
    expect(page.locator(".devices tbody tr:not(.of-node)")).to_have_count(64)
    found = Axe().run(page, options={"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]})
    assert found.violations_count == 0, found.generate_report()
    for width in (1280, 375):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_history_of_a_device_is_reached_from_the_page_of_all_devices(pages: Pages, uneven: str) -> None:
    page = pages.open("/nodes")
    page.get_by_role("link", name="cpu:1", exact=True).click()
    expect(page.get_by_role("heading", name="cpu:1 of ")).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("Time for a row beside its peers"))).to_be_visible()
    expect(page.locator("svg.history-chart circle").first).to_be_visible()
    line = page.locator("tbody tr", has=page.locator(f"a[href='/jobs/{uneven}']"))
    expect(line).to_contain_text("completed")
    line.get_by_role("link").click()
    expect(page.get_by_role("heading", name="rows-on-8-devices")).to_be_visible()


@pytest.mark.parametrize(
    ("path", "scheme"),
    [(path, "light") for path in ("/", "/submit", "/compare?jobs=JOB,OTHER", "/groups", "/nodes", "/jobs/JOB")]
    + [("/devices/cpu:0", "light")]
    + [("/jobs/JOB", "dark")]
    + [pytest.param(path, "dark", marks=pytest.mark.slow) for path in ("/", "/devices/cpu:0")],
)
def test_pages_are_accessible(pages: Pages, uneven: str, other: str, path: str, scheme: Any) -> None:
    """No violation of WCAG 2 A and AA that axe finds."""
    pages.page.emulate_media(color_scheme=scheme)
    page = pages.open(path.replace("JOB", uneven).replace("OTHER", other))
    expect(page.locator("main h1").first).to_be_visible()
    if "JOB" in path:
        expect(page.locator("table.map").first).to_be_visible()
    found = Axe().run(page, options={"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]})
    assert found.violations_count == 0, found.generate_report()


def test_the_page_to_sign_in_is_accessible(stranger: Pages) -> None:
    page = stranger.open("/")
    expect(page.get_by_label("Access token")).to_be_focused()
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def test_curves_can_be_drawn_by_their_logarithm_and_tell_their_values(pages: Pages, client: Client) -> None:
    page = pages.open(f"/jobs/{run(client, example('digits-dp3'))}")
    loss = page.locator("figure", has_text="loss").first
    expect(loss.locator("figcaption")).to_contain_text("at step")
    last = loss.locator("figcaption").inner_text()
    page.get_by_label("log scale").check()
    expect(loss.locator("canvas")).to_be_visible()
    box = loss.locator("canvas").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + box["height"] / 2)
    expect(loss.locator("figcaption")).not_to_have_text(last)


def test_a_phone_shows_the_same_without_scrolling_sideways(phone: Pages, uneven: str, other: str) -> None:
    page = phone.page
    for path in ("/", f"/jobs/{uneven}", "/submit", "/nodes", f"/compare?jobs={uneven},{other}"):
        phone.open(path)
        expect(page.locator("main h1").first).to_be_visible()
        page.wait_for_load_state("load")
        assert page.evaluate("document.documentElement.scrollWidth") <= 375, path


def test_the_keyboard_reaches_everything(pages: Pages, uneven: str) -> None:
    page = pages.open(f"/jobs/{uneven}")
    expect(page.get_by_role("heading", name="What each device got")).to_be_visible()
    expect(page.get_by_role("button", name="End", exact=True)).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    wanted, reached = (
        {"Jobs", "Submit", "Compare", "Devices", "Edit and submit", "Rows", "Waiting", "Start", "End"},
        set(),
    )
    for _ in range(150):  # twice around: what is drawn anew under the focus sends it back to the beginning
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.textContent.trim()"))
        if wanted <= reached:
            break
    assert wanted <= reached
