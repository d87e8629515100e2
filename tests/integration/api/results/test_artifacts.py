from pathlib import Path

import pytest

from jobs.files import paths
from tests.integration.api.conftest import Api
from tests.integration.api.jobs.test_jobs import until_state

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

WEIGHTS = bytes(range(256)) * 5000  # several of the chunks that are read at a time


async def a_job_with_files(api: Api) -> str:
    api.node()
    job = await api.submit()
    await until_state(api, job, "starting")
    directory = paths.attempt_dir(api.storage, "default", job, 1)
    (paths.artifacts_dir(directory) / "deep").mkdir(parents=True)
    paths.report_file(directory).write_text("{}")
    (paths.artifacts_dir(directory) / "model.safetensors").write_bytes(WEIGHTS)
    (paths.artifacts_dir(directory) / "deep" / "näme <b>.html").write_text("<script>alert(1)</script>")
    return job


async def test_files_are_listed_and_each_of_them_can_be_downloaded(api: Api) -> None:
    job = await a_job_with_files(api)
    found = await api.get(f"/v1/jobs/{job}/artifacts")
    assert (found["attempt"], found["truncated"]) == (1, False)
    assert [(one["path"], one["bytes"]) for one in found["artifacts"]] == [
        ("artifacts/deep/näme <b>.html", 25),
        ("artifacts/model.safetensors", len(WEIGHTS)),
        ("report.json", 2),
    ]
    for one in found["artifacts"]:
        answer = await api.client.get(f"/v1/jobs/{job}/artifacts/{one['path']}?attempt=1")
        assert (answer.status_code, len(answer.content)) == (200, one["bytes"])


async def test_a_download_is_never_taken_for_a_page(api: Api) -> None:
    job = await a_job_with_files(api)
    answer = await api.client.get(f"/v1/jobs/{job}/artifacts/artifacts/deep/näme <b>.html")
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''n%C3%A4me%20%3Cb%3E.html"
    assert "sandbox" in answer.headers["content-security-policy"]


@pytest.mark.parametrize(
    ("header", "first", "last"),
    [
        ("bytes=0-9", 0, 9),
        ("bytes=600000-", 600_000, len(WEIGHTS) - 1),
        ("bytes=-7", len(WEIGHTS) - 7, len(WEIGHTS) - 1),
    ],
)
async def test_a_range_gives_those_bytes(api: Api, header: str, first: int, last: int) -> None:
    job = await a_job_with_files(api)
    answer = await api.client.get(f"/v1/jobs/{job}/artifacts/artifacts/model.safetensors", headers={"Range": header})
    assert answer.status_code == 206
    assert answer.headers["content-range"] == f"bytes {first}-{last}/{len(WEIGHTS)}"
    assert answer.content == WEIGHTS[first : last + 1]


async def test_a_download_that_broke_off_is_resumed_only_of_the_same_file(api: Api) -> None:
    job = await a_job_with_files(api)
    path = f"/v1/jobs/{job}/artifacts/artifacts/model.safetensors"
    tag = (await api.client.get(path)).headers["etag"]
    resumed = await api.client.get(path, headers={"Range": "bytes=100-", "If-Range": tag})
    assert (resumed.status_code, resumed.content) == (206, WEIGHTS[100:])
    changed = await api.client.get(path, headers={"Range": "bytes=100-", "If-Range": '"other"'})
    assert (changed.status_code, changed.content) == (200, WEIGHTS)
    assert (await api.client.get(path, headers={"If-None-Match": tag})).status_code == 304


async def test_a_range_behind_the_end_is_a_problem_that_tells_the_size(api: Api) -> None:
    job = await a_job_with_files(api)
    answer = await api.client.get(f"/v1/jobs/{job}/artifacts/report.json", headers={"Range": "bytes=2-"})
    assert (answer.status_code, answer.json()["code"]) == (416, "range_not_satisfiable")
    assert answer.headers["content-range"] == "bytes */2"


@pytest.mark.parametrize(
    "path",
    [
        "..%2f..%2f1%2freport.json",
        "artifacts/..%2freport.json",
        "%2e%2e/%2e%2e/%2e%2e/admin-token",
        "%2fetc%2fpasswd",
        "artifacts/link",
        "artifacts",
        "logs/device-0.log",
        "artifacts/model.safetensors%00",
        "artifacts/none",
    ],
)
async def test_nothing_else_can_be_had(api: Api, path: str, tmp_path: Path) -> None:
    job = await a_job_with_files(api)
    directory = paths.attempt_dir(api.storage, "default", job, 1)
    (paths.artifacts_dir(directory) / "link").symlink_to("/etc/passwd")
    answer = await api.client.get(f"/v1/jobs/{job}/artifacts/{path}")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


async def test_a_job_that_has_not_started_has_no_files(api: Api) -> None:
    api.node(devices=1)
    await until_state(api, await api.submit(), "starting")
    job = await api.submit()
    assert await api.get(f"/v1/jobs/{job}/artifacts") == {
        "attempt": 0,
        "artifacts": [],
        "total": 0,
        "truncated": False,
        "left_out": [],
    }
    assert (await api.client.get(f"/v1/jobs/{job}/artifacts/report.json")).status_code == 404
