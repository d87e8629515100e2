"""What a node brings from the remote: bundles by their contents, checkpoints whole or not at all."""

import hashlib
from pathlib import Path

import pytest

from jobs.files import checkpoints, paths
from jobs.files.checkpoints import FORMAT, MANIFEST, CheckpointManifest, ManifestFile
from jobs.storage.remote import DigestMismatch, UnknownFile
from jobs.store import AttemptId
from tests.unit.workers.carrier.place import ATTEMPT, Place
from workers.carrier import fetching
from workers.carrier.checkpoints import CarriedCheckpoints

BODY = b"a bundle"
HEX = hashlib.sha256(BODY).hexdigest()
BUNDLE = f"sha256:{HEX}"


def put_away(place: Place, path: str, body: bytes) -> None:
    file = place.away / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(body)


def test_a_bundle_is_fetched_once(place: Place) -> None:
    put_away(place, f"bundles/default/{HEX}.nonce.zip", BODY)
    for _ in range(2):
        fetching.fetch_bundle(place.remote, place.root, "default", BUNDLE)
    found = paths.find_bundle(place.root, "default", BUNDLE)
    assert found is not None
    assert found.read_bytes() == BODY


def test_a_bundle_whose_file_is_known_is_looked_for_in_no_list(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    put_away(place, f"bundles/default/{HEX}.nonce.zip", BODY)
    monkeypatch.setattr(place.remote, "names", lambda _: [])
    fetching.fetch_bundle(place.remote, place.root, "default", BUNDLE)
    assert paths.find_bundle(place.root, "default", BUNDLE) is None
    fetching.fetch_bundle(place.remote, place.root, "default", BUNDLE, "nonce")
    assert paths.find_bundle(place.root, "default", BUNDLE) is not None


def test_a_bundle_whose_file_has_another_name_by_now_is_found_in_the_list(place: Place) -> None:
    put_away(place, f"bundles/default/{HEX}.other.zip", BODY)
    fetching.fetch_bundle(place.remote, place.root, "default", BUNDLE, "nonce")
    assert paths.find_bundle(place.root, "default", BUNDLE) is not None


def test_what_is_not_the_bundle_is_refused_and_not_kept(place: Place) -> None:
    put_away(place, f"bundles/default/{HEX}.nonce.zip", b"something else")
    with pytest.raises(DigestMismatch):
        fetching.fetch_bundle(place.remote, place.root, "default", BUNDLE)
    assert [path for path in place.root.rglob("*") if path.is_file() and "bundle" in str(path)] == []


def test_a_bundle_that_nobody_has_is_none(place: Place) -> None:
    fetching.fetch_bundle(place.remote, place.root, "default", BUNDLE)
    assert paths.find_bundle(place.root, "default", BUNDLE) is None


def test_bundles_that_were_used_long_ago_go_first(place: Place) -> None:
    directory = paths.bundle_dir(place.root, "default")
    directory.mkdir(parents=True)
    for name, age in (("old", 500.0), ("new", 5.0)):
        place.write(f"../../../../bundles/default/{name}.zip", bytes(100), age=age)
    fetching.trim_bundles(place.root, 150)
    assert [file.name for file in directory.iterdir()] == ["new.zip"]


def save_checkpoint(place: Place, step: int) -> tuple[Path, CheckpointManifest, str]:
    body = b"weights of step %d" % step
    files = {"rank-0.pt": ManifestFile(len(body), hashlib.sha256(body).hexdigest())}
    manifest = CheckpointManifest(
        format=FORMAT, step=step, epoch=0, attempt=1, world_size=1, strategy="single", files=files
    )
    directory = paths.checkpoint_dir(place.root, "default", "0a", step, 1)
    directory.mkdir(parents=True)
    (directory / "rank-0.pt").write_bytes(body)
    (directory / MANIFEST).write_bytes(manifest.encode())
    return directory, manifest, hashlib.sha256(manifest.encode()).hexdigest()


def of_job(place: Place, root: Path) -> CarriedCheckpoints:
    return CarriedCheckpoints(place.remote, root, ATTEMPT)


def test_a_checkpoint_goes_to_another_node_whole(place: Place, tmp_path: Path) -> None:
    directory, manifest, sha256 = save_checkpoint(place, 20)
    of_job(place, place.root).put(directory, manifest)
    there = of_job(place, tmp_path / "another")
    (listed,) = there.list_stored()
    read: list[int] = []
    there.fetch(listed.directory, read.append)
    assert checkpoints.verify_checkpoint(listed.directory, sha256).manifest == manifest
    assert sum(read) == manifest.size + len(manifest.encode())


def test_a_checkpoint_whose_manifest_has_not_arrived_is_none(place: Place) -> None:
    directory, manifest, _ = save_checkpoint(place, 20)
    of_job(place, place.root).put(directory, manifest)
    (place.away / directory.relative_to(place.root) / MANIFEST).unlink()
    assert of_job(place, place.root).list_stored() == []


def test_half_a_checkpoint_is_not_kept_under_its_name(place: Place, tmp_path: Path) -> None:
    directory, manifest, _ = save_checkpoint(place, 20)
    of_job(place, place.root).put(directory, manifest)
    (place.away / directory.relative_to(place.root) / "rank-0.pt").unlink()
    there = of_job(place, tmp_path / "another")
    (listed,) = there.list_stored()
    with pytest.raises(UnknownFile):
        there.fetch(listed.directory)
    assert not listed.directory.exists()


def test_what_a_newer_checkpoint_makes_obsolete_goes_at_the_remote(place: Place) -> None:
    stored = of_job(place, place.root)
    for step in (20, 40, 60):
        stored.put(*save_checkpoint(place, step)[:2])
    stored.remove_obsolete(attempt=1, step=60, keep=2)
    assert [one.step for one in stored.list_stored()] == [60, 40]


def test_scripts_read_what_the_newest_attempt_has_saved(place: Place, tmp_path: Path) -> None:
    for number in (1, 2):
        for name in (f".checkpoints/{number}.json", "checkpoints/best/weights"):
            put_away(place, f"jobs/default/0a/{number}/artifacts/{name}", b"%d" % number)
    apart = tmp_path / "apart"
    third = AttemptId("default", "0a", 3)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert fetching.fetch_script_checkpoints(place.remote, empty, apart, third) == apart
    assert {path.read_bytes() for path in apart.rglob("*") if path.is_file()} == {b"2"}
    assert not any(empty.rglob("*"))


def test_what_is_here_is_not_fetched(place: Place, tmp_path: Path) -> None:
    place.write("artifacts/.checkpoints/1.json", b"{}")
    put_away(place, "jobs/default/0a/1/artifacts/.checkpoints/1.json", b"{}")
    second, apart = AttemptId("default", "0a", 2), tmp_path / "apart"
    assert fetching.fetch_script_checkpoints(place.remote, place.root, apart, second) == place.root
