"""A disk of the service that has less free space than the service keeps for itself."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import api.app as application
from api.background import bundle_gc
from api.background.retention import sweep_finished_jobs
from jobs import store
from jobs.files import paths
from jobs.model.records import LowDisk
from jobs.model.settings import Settings
from tests.faults.inject.disk import fill, small_disk
from tests.faults.scene.machine import need
from tests.integration.api.conftest import Api, running
from tests.support.samples.hostile_zips import Part, zipped
from tests.support.samples.job_records import a_spec_body

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

BODY = zipped(Part("train.py", b"x = 1\n" * 50_000))
LOW = LowDisk("storage", free_bytes=2**20, reserve_bytes=2**30)


@pytest.fixture
async def api(settings: Settings, tmp_path: Path) -> AsyncIterator[Api]:
    """One whose storage is a disk of 64 MB, of which 3.2 MB are kept."""
    need("mounts")
    with small_disk(tmp_path / "disk", "64m") as disk:
        async with running(settings.model_copy(update={"storage": disk})) as api:
            yield api


async def becomes_ready(api: Api, *, disks: str) -> None:
    deadline = time.monotonic() + 60
    while (found := (await api.client.get("/readyz")).json()["checks"]["disks"]) != disks:
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.05)


async def fill_up(api: Api) -> Path:
    filler = fill(api.storage)
    await becomes_ready(api, disks="storage: 0 MB free, and the service keeps 3 MB for itself")
    return filler


async def test_nothing_new_is_stored_on_a_low_disk_and_everything_else_works(api: Api) -> None:
    api.node()
    done, waiting = await api.submit(), await api.submit(4)
    while (await api.get(f"/v1/jobs/{done}"))["state"] == "queued":
        await asyncio.sleep(0.02)
    api.run_to_end(done)
    filler = await fill_up(api)
    for refused in (
        await api.client.post("/v1/jobs", json=a_spec_body(1)),
        await api.client.post(f"/v1/jobs/{done}/resubmit"),
        await api.client.post("/v1/bundles", content=BODY),
    ):
        assert (refused.status_code, refused.json()["code"]) == (507, "storage_low")
        assert refused.headers["retry-after"] == "30"
    assert (await api.client.post(f"/v1/jobs/{waiting}/cancel")).status_code == 202
    assert (await api.client.delete(f"/v1/jobs/{done}")).status_code == 204
    assert [job["id"] for job in (await api.get("/v1/jobs"))["jobs"]] == [waiting]
    metrics = (await api.client.get("/metrics")).text
    assert 'shardyard_disk_free_bytes{disk="storage"} 0.0' in metrics
    filler.unlink()
    await becomes_ready(api, disks="ok")
    assert (await api.client.post("/v1/bundles", content=BODY)).status_code == 201
    await api.submit()


async def test_on_a_low_disk_deleting_jobs_makes_the_room_of_their_bundles_too(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("mounts")
    monkeypatch.setattr(application, "LOW_DISK_SWEEP_SECONDS", 0.1)
    monkeypatch.setattr(bundle_gc, "LOW_DISK_SECONDS", 0.0)
    with small_disk(tmp_path / "disk", "64m") as disk:
        async with running(settings.model_copy(update={"storage": disk})) as api:
            api.node()
            bundles = [
                (await api.client.post("/v1/bundles", content=zipped(Part("train.py", code)))).json()["id"]
                for code in (b"x = 1", b"x = 2", b"x = 3")
            ]
            programs = [{"kind": "script", "bundle": bundle, "entrypoint": "train.py"} for bundle in bundles[:2]]
            jobs = [(await api.client.post("/v1/jobs", json={"program": one})).json()["id"] for one in programs]
            assert (await api.client.post(f"/v1/jobs/{jobs[0]}/cancel")).status_code < 300
            assert len(list(paths.bundles_dir(disk).glob("*/*"))) == 3, "there is room"
            await fill_up(api)
            assert (await api.client.delete(f"/v1/jobs/{jobs[0]}")).status_code == 204
            deadline = time.monotonic() + 60
            while len(left := list(paths.bundles_dir(disk).glob("*/*"))) > 1:
                assert time.monotonic() < deadline, left
                await asyncio.sleep(0.05)
            assert (await api.get(f"/v1/bundles/{bundles[1]}"))["jobs"] == 1


async def test_an_upload_for_which_the_disk_is_too_small_is_refused_and_leaves_nothing(
    settings: Settings, tmp_path: Path
) -> None:
    need("mounts")
    with small_disk(tmp_path / "disk", "4m") as disk:
        unguarded = settings.model_copy(update={"storage": disk, "reserve_bytes": 0})
        async with running(unguarded) as api:
            fill(disk)
            refused = await api.client.post("/v1/bundles", content=BODY)
            assert (refused.status_code, refused.json()["code"]) == (507, "storage_low")
            assert list(paths.bundles_dir(disk).glob("*/*")) == []


async def test_a_job_that_only_nodes_with_low_disks_could_run_says_so_and_nodes_name_the_disk(api: Api) -> None:
    api.node()
    api.control.run(store.renew_node("host-a", "i", low=LOW))
    job = await api.submit()
    found = await api.get(f"/v1/jobs/{job}")
    assert found["reason"]["code"] == "storage_low"
    assert "deleting jobs frees space" in found["reason"]["message"]
    (node,) = (await api.get("/v1/nodes"))["nodes"]
    assert node["low_disk"] == {
        "name": "storage",
        "free_bytes": 2**20,
        "reserve_bytes": 2**30,
        "free_files": 0,
        "reserve_files": 0,
    }
    (pool,) = (await api.get("/v1/pools"))["pools"]
    assert (pool["low_disk"], pool["free"]) == (1, 0)
    assert 'shardyard_low_disk_nodes{pool="default"} 1.0' in (await api.client.get("/metrics")).text
    api.node(node="host-b")
    assert (await api.get(f"/v1/jobs/{job}"))["reason"]["code"] != "storage_low"


async def test_a_full_disk_is_swept_of_archived_jobs_before_others_are_archived(api: Api) -> None:
    api.node()
    old, new = await api.submit(), await api.submit()
    for job in (old, new):
        while (await api.get(f"/v1/jobs/{job}"))["state"] == "queued":
            await asyncio.sleep(0.02)
        api.run_to_end(job)
        if job == old:
            sweep_finished_jobs(api.control, api.storage, 1e-6, 0)
    fill(api.storage)
    sweep_finished_jobs(api.control, api.storage, 1e-6, 1e-6, now=lambda: time.time() + 86_400)
    assert not paths.archive_file(api.storage, "default", old).exists()
    assert (await api.client.get(f"/v1/jobs/{old}")).status_code == 404
    assert (await api.get(f"/v1/jobs/{new}"))["state"] == "succeeded"
