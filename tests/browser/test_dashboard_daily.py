"""What people do with the dashboard every day: sort jobs, compare runs, change specs, look into files and logs."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from shardyard.client import Client, endpoints
from tests.acceptance.harness import Up, wait_for_state, wait_until
from tests.browser.conftest import Pages, example, pages_of, replace_text, token_of

pytestmark = [pytest.mark.acceptance, pytest.mark.browser]

LABEL = {"shown": "daily"}
HEADER = b'{"layer.weight":{"dtype":"F32","shape":[8,4],"data_offsets":[0,128]}}'
SCRIPT = f"""
import sys
from shardyard import job
for step in range(5):
    job.log("loss", 1 / (step + 1), step=step)
print("INFO all is well")
print("WARNING: it is late", file=sys.stderr)
open("table.csv", "w").write("step,loss\\n1,0.5\\n")
open("weights.safetensors", "wb").write(int({len(HEADER)}).to_bytes(8, "little") + {HEADER!r} + bytes(128))
"""


@pytest.fixture(scope="module")
def trained(client: Client) -> tuple[str, str]:
    """Two jobs that have ended, whose losses differ."""
    jobs = []
    for epochs in (1, 3):
        spec = example("digits-ddp2") | {"name": f"{epochs} epochs", "labels": LABEL}
        spec["program"]["epochs"] = epochs  # type: ignore[index]
        jobs.append(client.submit(spec).id)
    for job in jobs:
        assert wait_for_state(client, job, "succeeded", "failed").state == "succeeded"
    return jobs[0], jobs[1]


@pytest.fixture(scope="module")
def script(client: Client, tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("code") / "train.py"
    file.write_text(SCRIPT)
    job = client.submit_script(file)
    assert job.wait(60).state == "succeeded"
    return job.id


def test_a_comparison_is_shown_with_its_variants_and_their_curves_over_each_other(
    pages: Pages, phone: Pages, client: Client
) -> None:
    spec = {
        "name": "which",
        "program": {
            "model": {"ref": "mlp", "args": {"in_features": 64, "hidden": [8], "out_features": 10}},
            "data": {"ref": "digits", "batch_size": 48},
            "loss": {"ref": "cross_entropy"},
            "optimizer": {"ref": "sgd", "args": {"lr": 0.1}},
        },
    }
    started = client.compare(spec, strategies=["single", "ddp"], devices=[1, 2], steps=40)
    page = pages.open("/groups")
    page.get_by_role("link", name="which").click()
    expect(page.get_by_role("heading", name="Comparison which")).to_be_visible()
    jobs = page.get_by_role("region", name="Jobs of the group").locator("tbody tr")
    expect(jobs).to_have_count(3)
    expect(jobs.nth(2)).to_contain_text("ddp on 2")
    expect(page.locator("main")).to_contain_text("Left out: single on 2")
    wait_until(lambda: client.comparison(started.id).ended, 120)
    expect(jobs.locator("text=succeeded")).to_have_count(3)
    expect(page.get_by_role("img", name="loss of 3 runs by step", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
    phone.open(f"/groups?comparison={started.id}")
    expect(phone.page.get_by_role("heading", name="Comparison which")).to_be_visible()
    assert phone.page.evaluate("document.documentElement.scrollWidth") <= 375
    names = phone.page.get_by_role("region", name="Jobs of the group").locator("a.name")
    lines = names.evaluate_all("all => all.map((one) => one.getClientRects().length)")
    assert lines == [1, 1, 1], "names break into letters"


def test_jobs_are_sorted_by_a_metric_chosen_and_compared(pages: Pages, trained: tuple[str, str]) -> None:
    page = pages.open("/?label=shown%3Ddaily&columns=loss,metrics.accuracy,spec.program.epochs,owner")
    names = page.locator("table.jobs tbody a.name")
    expect(names).to_have_text(["3 epochs", "1 epochs"])
    expect(page.locator("table.jobs tbody tr").first).to_contain_text("operator")
    page.get_by_role("button", name="Loss").click()  # from the greatest on
    expect(names).to_have_text(["1 epochs", "3 epochs"])
    expect(page).to_have_url(re.compile("sort=-loss"))
    expect(page.get_by_role("columnheader", name="Loss")).to_have_attribute("aria-sort", "descending")
    page.get_by_label("Choose all of these jobs").check()
    bar = page.get_by_role("toolbar", name="The chosen jobs")
    expect(bar).to_contain_text("2 jobs chosen")
    bar.get_by_role("button", name="Compare").click()
    expect(page.get_by_role("group", name="Outcomes").locator("tbody tr")).to_have_count(2)
    differs = page.get_by_role("group", name="Differences of the specs").locator("tbody tr")
    expect(differs).to_have_count(1)
    expect(differs).to_contain_text("program.epochs")
    expect(page.get_by_role("img", name="loss of 2 runs by step", exact=True)).to_be_visible()
    expect(page.locator(".overlaid canvas").first).to_be_visible()


def test_all_columns_of_a_long_list_have_room(pages: Pages, client: Client) -> None:
    label = {"shown": "long"}
    for number in range(40):
        client.submit(example("digits-ddp2") | {"name": f"waits {number}", "labels": label, "start_after": 3600})
    try:
        page = pages.open("/?label=shown%3Dlong")
        head = page.locator("table.jobs thead")
        expect(page.locator("table.jobs tr.gap")).to_have_count(1)  # more than are drawn
        places = "all => all.map((one) => one.getBoundingClientRect()).map(({left, right}) => [left, right])"
        (job,) = head.locator("th.of-job").evaluate_all(places)
        (owner,) = head.get_by_role("columnheader", name="Owner").evaluate_all(places)
        (menu,) = head.locator("th:last-child").evaluate_all(places)
        (frame,) = page.locator(".jobs-frame").evaluate_all(places)
        assert job[1] - job[0] >= 200
        assert owner[1] <= menu[0] + 1
        assert frame[1] - 2 <= menu[1] <= frame[1]
    finally:
        client.cancel_jobs(label="shown=long")


def test_columns_and_density_are_in_the_address_and_a_view_is_saved(pages: Pages, trained: tuple[str, str]) -> None:
    page = pages.open("/?label=shown%3Ddaily")
    page.get_by_role("button", name="Columns").click()
    page.get_by_label("Find a column").fill("batch_size")
    page.get_by_label("spec.program.data.batch_size").check()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Compact").click()
    expect(page).to_have_url(re.compile(r"columns=.*batch_size.*density=compact"))
    expect(page.get_by_role("columnheader", name="data.batch_size")).to_be_visible()
    page.once("dialog", lambda dialog: dialog.accept("batches"))
    page.get_by_role("button", name="Views").click()
    page.get_by_role("menuitem", name="Save this view").click()
    pages.open("/")
    page.get_by_role("button", name="Views").click()
    page.get_by_role("menuitem", name="batches").click()
    expect(page.get_by_role("columnheader", name="data.batch_size")).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()


def test_a_suggestion_goes_into_a_copy_of_the_spec_and_the_form_changes_its_text(
    pages: Pages, trained: tuple[str, str]
) -> None:
    page = pages.open(f"/jobs/{trained[0]}")
    expect(page.get_by_role("region", name="Summary")).to_contain_text("loss")
    page.get_by_role("button", name="Apply the suggestion of sampler-padding").click()
    spec = page.get_by_label("Job spec as JSON")
    expect(spec).to_contain_text('"drop_last": true')
    page.get_by_label("Learning rate").fill("0.125")
    page.get_by_label("Learning rate").blur()
    expect(spec).to_contain_text('"lr": 0.125')
    replace_text(spec, '{"parallelism": {')
    page.keyboard.press("Control+Space")
    expect(page.get_by_role("option", name="strategy")).to_be_visible()


def test_a_script_that_is_opened_is_uploaded_and_runs(pages: Pages, client: Client, tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text("print('from the page')")
    page = pages.open("/submit")
    page.get_by_label("Open a spec or script").set_input_files(tmp_path / "hello.py")
    spec = page.get_by_label("Job spec as JSON")
    expect(spec).to_contain_text("hello.py")
    expect(spec).to_contain_text("sha256:")
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.locator(".job-head .state")).to_have_text("succeeded")


def test_files_are_looked_into_where_they_are(pages: Pages, script: str) -> None:
    page = pages.open(f"/jobs/{script}")
    page.get_by_role("button", name="Show files/table.csv").click()
    expect(page.get_by_role("group", name="Rows of the table").locator("td")).to_have_text(["1", "0.5"])
    page.get_by_role("button", name="Show files/weights.safetensors").click()
    tensors = page.get_by_role("group", name="Tensors of the file")
    expect(tensors).to_contain_text("1 tensor, 32 numbers")
    expect(tensors.locator("tr")).to_contain_text(["layer.weight"])


def test_a_log_is_filtered_by_its_address_and_downloaded(pages: Pages, script: str, trained: tuple[str, str]) -> None:
    page = pages.open(f"/jobs/{script}?level=warning")
    lines = page.locator(".log li")
    expect(lines).to_have_count(1)
    expect(lines).to_contain_text("WARNING: it is late")
    page.get_by_label("Level").select_option("debug")
    expect(lines.filter(has_text="INFO all is well")).to_be_visible()
    with page.expect_download() as download:
        page.locator(".tools").get_by_role("button", name="Download").click()
    assert "INFO all is well" in Path(download.value.path()).read_text()
    pages.open(f"/jobs/{trained[0]}?merged=yes")
    merged = page.get_by_role("region", name="Log of the chosen devices together")
    expect(merged.locator(".of-device", has_text="1").first).to_be_attached()
    expect(merged.locator(".of-device", has_text="0").first).to_be_attached()


def test_the_link_that_up_prints_signs_in_once(browser: Browser, service: Up, client: Client) -> None:
    assert re.search(rf"dashboard\s+{client.url}/sign-in#code=\S+  \(signs you in once", service.output.read_text())
    link = f"/sign-in#code={client.call(endpoints.issue_sign_in_code()).code}"  # as `up` made its own, which gets old
    with pages_of(browser, client.url, token_of(service)) as first:
        page = first.open(link)
        expect(page.get_by_role("navigation", name="Pages")).to_be_visible()
        assert "code" not in page.url
    with pages_of(browser, client.url, token_of(service)) as second:
        page = second.open(link)
        expect(page.get_by_role("alert")).to_contain_text("already been used")


def test_a_page_without_an_answer_says_so_and_its_clocks_stand_still(pages: Pages, client: Client) -> None:
    spec = example("digits-ddp2")
    spec["program"]["epochs"] = 2000  # type: ignore[index]
    job = client.submit(spec).id
    page = pages.open(f"/jobs/{job}")
    took = page.locator(".job-head").get_by_text("running for")
    expect(took).to_be_visible()
    page.context.set_offline(True)
    try:
        page.wait_for_timeout(1000)  # an answer that was on its way still comes, and is then the last one
        expect(page.get_by_role("alert").filter(has_text="has not answered since")).to_be_visible()
        shown = took.inner_text()
        page.wait_for_timeout(1500)
        assert took.inner_text() == shown
    finally:
        page.context.set_offline(False)
    expect(page.get_by_text("has not answered since")).not_to_be_visible()
    expect(took).not_to_have_text(shown)
    client.job(job).cancel()


def test_devices_show_who_had_them(pages: Pages, trained: tuple[str, str]) -> None:
    page = pages.open("/nodes")
    held = page.get_by_role("region", name="Who had which device")
    expect(held.locator(".gantt-track i").first).to_be_visible()
    assert held.locator(".gantt-label").count() == 8


def test_a_job_is_found_by_what_people_call_it(pages: Pages, trained: tuple[str, str]) -> None:
    for name in ("3 epochs", trained[1][-12:]):
        page = pages.open(f"/jobs/{name}")
        expect(page.get_by_role("heading", name="3 epochs")).to_be_visible()
        expect(page).to_have_url(f"{pages.url}/jobs/{trained[1]}")
    page = pages.open("/jobs/4 epochs")
    expect(page.get_by_role("alert")).to_contain_text("4 epochs")
    page.get_by_role("link", name="Search the list of jobs for it").click()
    expect(page).to_have_url(f"{pages.url}/?search=4%20epochs")
