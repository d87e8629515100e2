"""The split report as a picture and as a page, as a browser or a program asks for them."""

import hashlib
import xml.etree.ElementTree as ET

import httpx
import pytest

from api.results.service import _shown_spec
from jobs.files import paths
from jobs.files.metric_file import MetricWriter
from jobs.protocol import names
from jobs.protocol.records import MetricSample
from shardyard.contract.report import encode_report
from tests.integration.api.conftest import Api
from tests.integration.api.jobs.test_archived import a_finished_job, archive
from tests.integration.api.results.test_splits import a_report, started, two_with_reports
from tests.support.samples.script_streams import script_spec

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

#: What Chromium sends for a page, and for an `img` element.
PAGE = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"
IMAGE = "image/avif,image/webp,image/apng,image/svg+xml,image/*,*/*;q=0.8"


async def with_report(api: Api, *, final: bool = True) -> str:
    job = await started(api)
    told = encode_report(a_report()).replace(b'"final":true', b'"final":true' if final else b'"final":false')
    api.control.client.set(names.report_key("default", job, 1), told)
    return job


async def ask(api: Api, path: str, accept: str, **headers: str) -> httpx.Response:
    return await api.client.get(path, headers={"Accept": accept, **headers})


async def test_a_browser_gets_the_page_and_may_do_nothing_but_show_it(api: Api) -> None:
    job = await with_report(api)
    answer = await ask(api, f"/v1/jobs/{job}/splits", PAGE)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-security-policy"] == (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox"
    )
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-disposition"] == f'inline; filename="split-{job}.html"'
    assert answer.headers["vary"] == "Accept, Accept-Encoding"
    ET.fromstring(answer.text)
    status = await api.get(f"/v1/jobs/{job}")
    assert f'<h1 dir="auto">{status["name"]}</h1>' in answer.text
    assert status["state"] in answer.text
    assert "ragged-last-batch" in answer.text


async def test_an_img_element_gets_the_picture(api: Api) -> None:
    job = await with_report(api)
    answer = await ask(api, f"/v1/jobs/{job}/splits", IMAGE)
    assert answer.headers["content-type"] == "image/svg+xml; charset=utf-8"
    assert answer.headers["content-disposition"] == f'inline; filename="split-{job}.svg"'
    assert "sandbox" in answer.headers["content-security-policy"]
    assert ET.fromstring(answer.text).tag == "{http://www.w3.org/2000/svg}svg"
    assert "ms per row" not in answer.text
    timed = await ask(api, f"/v1/jobs/{job}/splits?by=time&device=2", IMAGE)
    assert "ms per row" in timed.text
    assert "cpu:1" not in timed.text


async def test_programs_get_json_as_before_and_qualities_count(api: Api) -> None:
    job = await with_report(api)
    path = f"/v1/jobs/{job}/splits"
    for accept in ("", "*/*", "application/json", "text/html;q=0.4, application/json;q=0.5"):
        answer = await ask(api, path, accept)
        assert answer.headers["content-type"] == "application/json", accept
        assert answer.json()["job_id"] == "job-1"
    assert (await ask(api, path, "text/plain;q=0.9, text/html;q=0.2")).headers["content-type"].startswith("text/plain")


async def test_what_cannot_be_had_is_refused_with_what_can(api: Api) -> None:
    job = await with_report(api)
    answer = await ask(api, f"/v1/jobs/{job}/splits", "application/pdf")
    assert (answer.status_code, answer.json()["code"]) == (406, "not_acceptable")
    assert "application/json, text/plain, text/html, image/svg+xml" in answer.json()["detail"]
    wrong = await api.client.get(f"/v1/jobs/{job}/splits?by=colour")
    assert (wrong.status_code, wrong.json()["errors"][0]["field"]) == (422, "by")


@pytest.mark.parametrize("accept", ["application/json", "text/plain", "text/html", "image/svg+xml"])
async def test_what_the_client_has_already_is_not_sent_again(api: Api, accept: str) -> None:
    job = await with_report(api)
    path = f"/v1/jobs/{job}/splits"
    tag = (await ask(api, path, accept)).headers["etag"]
    again = await ask(api, path, accept, **{"If-None-Match": tag})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    other = "text/html" if accept != "text/html" else "image/svg+xml"
    assert (await ask(api, path, other, **{"If-None-Match": tag})).status_code == 200


async def test_the_tag_of_the_json_is_the_one_that_events_tell(api: Api) -> None:
    """A reader of events fetches the report only when its `etag` is another."""
    job = await with_report(api)
    told = hashlib.blake2b(encode_report(a_report()), digest_size=9).hexdigest()
    assert (await ask(api, f"/v1/jobs/{job}/splits", "application/json")).headers["etag"] == f'W/"{told}"'


async def test_a_live_job_says_that_it_has_not_ended(api: Api) -> None:
    job = await with_report(api, final=False)
    assert "The attempt has not ended" in (await ask(api, f"/v1/jobs/{job}/splits", "text/html")).text
    assert "it has not ended" in (await ask(api, f"/v1/jobs/{job}/splits", "image/svg+xml")).text


async def test_a_picture_of_what_is_not_there_is_the_same_problem_as_json(api: Api) -> None:
    job = await started(api)
    for accept in ("image/svg+xml", "text/html"):
        answer = await ask(api, f"/v1/jobs/{job}/splits", accept)
        assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
        assert "has made no step yet" in answer.json()["detail"]
        assert (await ask(api, f"/v1/jobs/{job}/splits?attempt=2", accept)).status_code == 404


async def test_the_page_has_the_curves_and_the_spec(api: Api) -> None:
    api.node()
    job = await a_finished_job(api)
    directory = paths.attempt_dir(api.storage, "default", job, 1)
    metrics = MetricWriter(paths.metrics_file(directory))
    metrics.append([MetricSample(0, "accuracy", step, step / 1000, 1000.0 + step) for step in range(1000)])
    page = (await ask(api, f"/v1/jobs/{job}/splits", "text/html")).text
    assert ">accuracy<" in page.replace("\u2068", "").replace("\u2069", "")
    assert "step 7" in page
    assert "random_vectors" in page


async def test_an_archived_job_is_drawn_as_before(api: Api) -> None:
    api.node()
    job = await a_finished_job(api)
    path = f"/v1/jobs/{job}/splits"
    before = [(await ask(api, path, accept)).text for accept in ("image/svg+xml", "text/html", "application/json")]
    archive(api)
    after = [(await ask(api, path, accept)).text for accept in ("image/svg+xml", "text/html", "application/json")]
    assert (await api.get(f"/v1/jobs/{job}"))["archived"]
    assert after == before


def test_values_of_environment_variables_are_not_in_a_page_to_be_sent_around() -> None:
    shown = _shown_spec(script_spec("ddp", 2, env={"TOKEN": "secret-value"}, args=["--epochs", "3"]))
    assert "secret-value" not in shown
    assert {"TOKEN", "--epochs"} <= set(shown.split('"'))


async def test_two_reports_are_one_page(api: Api) -> None:
    job, other = await two_with_reports(api)
    answer = await ask(api, f"/v1/jobs/{job}/splits/diff?against={other}", PAGE)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "sandbox" in answer.headers["content-security-policy"]
    assert "Two split reports side by side" in answer.text
    ET.fromstring(answer.text)
    assert (await ask(api, f"/v1/jobs/{job}/splits/diff?against={other}", "image/png")).status_code == 406
