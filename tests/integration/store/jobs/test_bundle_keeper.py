"""What is removed from the storage directory, and what must not be."""

import os
import time
from pathlib import Path

import pytest

from api.background import bundle_gc
from api.background.bundle_gc import STRAY_SECONDS
from jobs import store
from jobs.files import paths
from tests.integration.store.world import NEVER, TENANT, World, bundle_id, script

pytestmark = pytest.mark.integration

NONCES = {name: f"{number:032x}" for number, name in enumerate(("kept", "late", "resting"))}


def put_file(storage: Path, number: int, nonce: str, *, old: bool = True, tenant: str = TENANT) -> Path:
    file = paths.bundle_file(storage, tenant, bundle_id(number), NONCES[nonce])
    return written(file, old=old)


def written(file: Path, *, old: bool = True) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"zip")
    if old:
        before = time.time() - STRAY_SECONDS - 60
        os.utime(file, (before, before))
    return file


def test_a_bundle_goes_with_its_file_and_one_that_is_needed_stays(world: World, tmp_path: Path) -> None:
    world.node()
    for number in range(1, 4):
        world.put_bundle(number, nonce=NONCES["kept"])
    files = [put_file(tmp_path, number, "kept") for number in range(1, 4)]
    world.submit(program=script(2))
    world.redis.zadd("sy:idle_bundles", {f"{TENANT}/{1:064x}": 1})
    bundle_gc.sweep_bundles(world.store, tmp_path, NEVER)
    assert [file.exists() for file in files] == [False, True, True]
    bundle_gc.sweep_bundles(world.store, tmp_path, 0)
    assert [file.exists() for file in files] == [False, True, False]


def test_more_than_one_call_collects_are_all_collected(world: World, tmp_path: Path) -> None:
    for number in range(bundle_gc.CHUNK + 20):
        world.put_bundle(number, nonce=NONCES["kept"], size=1)
    bundle_gc.sweep_bundles(world.store, tmp_path, 0)
    assert world.redis.keys("sy:bundle:*") == []


def test_an_upload_that_comes_between_the_record_and_the_file_keeps_its_own(world: World, tmp_path: Path) -> None:
    world.put_bundle(1, nonce=NONCES["kept"])
    put_file(tmp_path, 1, "kept")
    (gone,) = world.run(store.collect_bundles(0))
    assert gone.nonce == NONCES["kept"]
    late = put_file(tmp_path, 1, "late")
    world.put_bundle(1, nonce=NONCES["late"])
    bundle_gc.sweep_bundles(world.store, tmp_path, NEVER)
    assert [file.name for file in late.parent.iterdir()] == [late.name]


def test_files_without_a_record_go_when_they_are_old(world: World, tmp_path: Path) -> None:
    world.put_bundle(1, nonce=NONCES["kept"])
    kept = [put_file(tmp_path, 1, "kept"), put_file(tmp_path, 1, "late", old=False)]
    strays = [
        put_file(tmp_path, 1, "resting"),
        put_file(tmp_path, 2, "kept"),
        put_file(tmp_path, 1, "kept", tenant="x"),
    ]
    bundle_gc.sweep_bundles(world.store, tmp_path, NEVER)
    assert all(file.exists() for file in kept)
    assert not any(file.exists() for file in strays)


def test_drafts_go_when_nobody_writes_to_them_any_more(world: World, tmp_path: Path) -> None:
    old, fresh = (paths.bundle_draft(tmp_path, TENANT, nonce) for nonce in (NONCES["kept"], NONCES["late"]))
    written(old)
    written(fresh, old=False)
    bundle_gc.sweep_bundles(world.store, tmp_path, NEVER)
    assert not old.exists()
    assert fresh.exists()


def test_what_is_no_bundle_is_left_alone(world: World, tmp_path: Path) -> None:
    other = written(paths.bundle_dir(tmp_path, TENANT) / "notes.txt")
    elsewhere = written(paths.job_dir(tmp_path, TENANT, "job") / "x.zip")
    bundle_gc.sweep_bundles(world.store, tmp_path, 0)
    assert other.exists()
    assert elsewhere.exists()
