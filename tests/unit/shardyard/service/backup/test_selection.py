from pathlib import Path

import pytest

from jobs.files import paths
from shardyard.service.backup.selection import StorageSelection, is_of_program


@pytest.mark.parametrize(
    ("path", "belongs"),
    [
        (".shardyard-storage", True),
        (".restoring", False),
        ("bundles/t/file.zip", True),
        ("bundles/t/.draft.part", False),
        ("archive/.lock", False),
        ("jobs/t/.hidden", False),
        ("jobs/t/known", True),
        ("jobs/t/unknown", False),
        ("jobs/t/archived", True),
        ("jobs/t/" + "n" * 255, False),
        ("jobs/t/known/2", True),
        ("jobs/t/known/3", False),
        ("jobs/t/known/²", True),
        ("jobs/t/known/2/logs", True),
        ("jobs/t/known/2/drafts", False),
        ("jobs/t/known/2/files.part", False),
        ("jobs/t/archived/9/drafts", True),
        ("jobs/t/known/checkpoints/000000000007-2", True),
        ("jobs/t/known/checkpoints/000000000007-3", False),
        ("jobs/t/known/checkpoints/.000000000009-1.part", False),
        ("jobs/t/known/1/artifacts/.hidden", True),
        ("jobs/t/known/1/artifacts/drafts/3", True),
    ],
)
def test_what_redis_knew_of_belongs_to_a_back_up(tmp_path: Path, path: str, belongs: bool) -> None:
    record = paths.archive_file(tmp_path, "t", "archived")
    record.parent.mkdir(parents=True)
    record.touch()
    assert StorageSelection(tmp_path, {"t/known": 2}).has(path.split("/")) is belongs


@pytest.mark.parametrize(
    ("path", "of_program"),
    [
        ("jobs/t/j/1/artifacts", True),
        ("jobs/t/j/1/files/deep/er", True),
        ("jobs/t/j/1/logs", False),
        ("jobs/t/j/1", False),
        ("archive/t/j/1/artifacts", False),
    ],
)
def test_directories_that_programs_fill_are_known(path: str, of_program: bool) -> None:
    assert is_of_program(path.split("/")) is of_program
