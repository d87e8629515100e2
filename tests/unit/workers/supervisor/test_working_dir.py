"""Where a script runs: what is unpacked, and what is cleared away."""

import hashlib
import json
import os
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from jobs.files import paths
from jobs.model import spec
from jobs.model.spec_rules import parse_spec
from tests.support.samples.attempts import a_launch
from workers.runtime.launch import AttemptConfig, AttemptDirectory, WorkingDirectory
from workers.supervisor import working_dir


def a_bundle(launch: AttemptConfig, files: dict[str, str]) -> str:
    """A bundle in the storage of a launch; its id."""
    made = launch.state_dir / "made.zip"
    made.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(made, "w") as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name), text)
    bundle = "sha256:" + hashlib.sha256(made.read_bytes()).hexdigest()
    kept = paths.bundle_file(launch.storage, launch.attempt.tenant, bundle, "nonce")
    kept.parent.mkdir(parents=True)
    made.rename(kept)
    return bundle


def a_script(bundle: str, **fields: Any) -> spec.JobSpec:
    program = {"kind": "script", "bundle": bundle, "entrypoint": "train.py", **fields}
    return parse_spec(json.dumps({"program": program}))


def prepared(launch: AttemptConfig, files: dict[str, str]) -> WorkingDirectory:
    AttemptDirectory.of(launch.state_dir, launch.attempt).create()
    place = working_dir.prepare_working_directory(launch, a_script(a_bundle(launch, files)), None)
    assert place is not None
    return place


def test_a_workplace_is_made_and_goes_with_the_marks(tmp_path: Path) -> None:
    launch = a_launch(tmp_path)
    place = prepared(launch, {"train.py": "pass", "pkg/__init__.py": "", "requirements.txt": "einops"})
    assert (place.root / "pkg" / "__init__.py").exists()
    assert place.requirements
    assert place.output.is_dir()
    AttemptDirectory.of(launch.state_dir, launch.attempt).remove()
    assert not place.root.exists()
    assert not place.temporary.exists()
    assert place.output.is_dir()


def test_paths_for_sockets_are_short_however_long_that_of_temporary_files_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 80)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    launch = a_launch(tmp_path)
    place = prepared(launch, {"train.py": "pass"})
    assert len(os.fsencode(place.temporary)) < 60
    AttemptDirectory.of(launch.state_dir, launch.attempt).remove()


def test_what_a_rank_is_told_of_its_workplace_comes_through(tmp_path: Path) -> None:
    place = WorkingDirectory(tmp_path, tmp_path / "t", tmp_path / "o", requirements=True)
    assert WorkingDirectory.decode(json.loads(json.dumps(place.encode()))) == place


def test_a_recipe_without_a_bundle_has_no_workplace(tmp_path: Path) -> None:
    program = {"mode": "forward", "model": {"ref": "linear"}, "data": {"ref": "random_vectors"}}
    assert (
        working_dir.prepare_working_directory(a_launch(tmp_path), parse_spec(json.dumps({"program": program})), None)
        is None
    )


def test_a_bundle_that_is_not_there_is_named(tmp_path: Path) -> None:
    bundle = "sha256:" + "0" * 64
    with pytest.raises(working_dir.BundleUnusable, match=f"program.bundle: {bundle} is not in the storage"):
        working_dir.prepare_working_directory(a_launch(tmp_path), a_script(bundle), None)
