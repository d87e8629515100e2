import os
import socket
from pathlib import Path
from typing import Any

import pytest

from api.data import artifacts
from api.data.artifacts import RangeNotSatisfiable, parse_range
from jobs.files import paths as layout
from jobs.files import user_files
from jobs.files.user_files import UserFilesRecord
from shardyard.contract.errors import NotFound
from shardyard.contract.responses import LeftOutFiles


@pytest.fixture
def attempt(tmp_path: Path) -> Path:
    """An attempt with a report, two artifacts and a log; beside it lies a secret."""
    directory = tmp_path.resolve() / "attempt"
    (layout.artifacts_dir(directory) / "weights").mkdir(parents=True)
    layout.report_file(directory).write_text("{}")
    (layout.artifacts_dir(directory) / "notes.txt").write_text("hello")
    (layout.artifacts_dir(directory) / "weights" / "last.pt").write_bytes(b"\0" * 1000)
    layout.logs_dir(directory).mkdir()
    layout.log_file(directory, 0).write_bytes(b"frames")
    (tmp_path / "secret").write_text("secret")
    return directory


def test_the_list_has_the_report_and_the_artifacts_but_not_the_services_own_files(attempt: Path) -> None:
    found = artifacts.list_artifacts(attempt)
    assert [(one.path, one.bytes) for one in found.artifacts] == [
        ("artifacts/notes.txt", 5),
        ("artifacts/weights/last.pt", 1000),
        ("report.json", 2),
    ]
    assert not found.truncated
    assert all(str(one.modified_at).endswith("Z") for one in found.artifacts)


def test_each_file_has_a_kind_and_what_was_not_kept_is_listed_too(attempt: Path) -> None:
    for path in (
        "files/model.pt",
        "files/checkpoints/1.pt",
        "artifacts/checkpoints/state.pt",
        "artifacts/.checkpoints/1",
    ):
        (attempt / path).parent.mkdir(parents=True, exist_ok=True)
        (attempt / path).write_text(path)
    left_out = LeftOutFiles(reason="limit", message="too large", files=1, bytes=5, newest="a", largest="a")
    user_files.write_record(attempt, UserFilesRecord(files=2, bytes=10, left_out=[left_out]))
    found = artifacts.list_artifacts(attempt)
    assert {one.path: one.kind for one in found.artifacts} == {
        "artifacts/.checkpoints/1": "checkpoint",
        "artifacts/checkpoints/state.pt": "checkpoint",
        "artifacts/notes.txt": "file",
        "artifacts/weights/last.pt": "file",
        "files/checkpoints/1.pt": "file",
        "files/model.pt": "file",
        "report.json": "report",
    }
    assert found.left_out == [left_out]


def test_a_file_is_found_by_the_path_that_its_program_gave_it(attempt: Path) -> None:
    (attempt / "files").mkdir()
    (attempt / "files" / "notes.txt").write_text("of the working directory")
    for path, size in (
        ("notes.txt", 24),
        ("files/notes.txt", 24),
        ("artifacts/notes.txt", 5),
        ("weights/last.pt", 1000),
    ):
        found = artifacts.open_file(attempt, path)
        found.file.close()
        assert found.size == size
    for path in ("none.txt", "../secret", "logs/device-0.log", "weights/../notes.txt", "/notes.txt", ""):
        with pytest.raises(NotFound):
            artifacts.open_file(attempt, path)


def test_an_attempt_without_a_directory_has_no_artifacts(tmp_path: Path) -> None:
    assert artifacts.list_artifacts(tmp_path.resolve() / "nothing").artifacts == []


def test_every_file_of_the_list_opens_and_nothing_else_does(attempt: Path) -> None:
    for one in artifacts.list_artifacts(attempt).artifacts:
        opened = artifacts.open_file(attempt, one.path)
        with opened.file as file:
            assert file.read() == (attempt / one.path).read_bytes()
        assert (opened.size, opened.name) == (one.bytes, Path(one.path).name)
    for path in ("artifacts", "artifacts/weights", "artifacts/none", "logs/device-0.log", "metrics.bin", ""):
        with pytest.raises(NotFound):
            artifacts.open_file(attempt, path)


@pytest.mark.parametrize(
    "path",
    [
        "../secret",
        "artifacts/../../secret",
        "artifacts/../logs/device-0.log",
        "/etc/passwd",
        "artifacts//notes.txt",
        "artifacts/./notes.txt",
        "artifacts/notes.txt/",
        "artifacts/notes.txt\0",
        "artifacts/\udcff",
        "artifacts/" + "x" * 5000,
        "artifacts/" + "d/" * 500,
    ],
)
def test_no_name_leads_out(attempt: Path, path: str) -> None:
    with pytest.raises(NotFound):
        artifacts.open_file(attempt, path)


@pytest.mark.parametrize("target", ["../../secret", "/etc", "notes.txt", "."])
def test_no_link_is_followed_or_listed(attempt: Path, target: str) -> None:
    link = layout.artifacts_dir(attempt) / "link"
    link.symlink_to(target)
    assert "artifacts/link" not in [one.path for one in artifacts.list_artifacts(attempt).artifacts]
    for path in ("artifacts/link", "artifacts/link/passwd", "artifacts/link/notes.txt"):
        with pytest.raises(NotFound):
            artifacts.open_file(attempt, path)


def test_an_attempt_that_is_itself_a_link_has_nothing(attempt: Path, tmp_path: Path) -> None:
    (tmp_path / "2").symlink_to(attempt)
    with pytest.raises(NotFound):
        artifacts.open_file(tmp_path.resolve() / "2", "report.json")
    with pytest.raises(OSError, match=r"Too many levels|Not a directory"):
        os.close(os.open(tmp_path / "2", os.O_DIRECTORY | os.O_NOFOLLOW))
    assert artifacts.list_artifacts(tmp_path.resolve() / "2").artifacts == []


def test_pipes_and_sockets_are_no_files_and_hold_nobody_up(attempt: Path) -> None:
    directory = layout.artifacts_dir(attempt)
    os.mkfifo(directory / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        here = Path.cwd()
        os.chdir(directory)  # the path of a socket must be short
        try:
            listener.bind("socket")
        finally:
            os.chdir(here)
        for name in ("pipe", "socket"):
            with pytest.raises(NotFound):
                artifacts.open_file(attempt, f"artifacts/{name}")
        assert len(artifacts.list_artifacts(attempt).artifacts) == 3


def test_a_list_is_bounded_and_says_so(attempt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "MAX_LISTED", 2)
    found = artifacts.list_artifacts(attempt)
    assert len(found.artifacts) == 2
    assert found.truncated


def test_a_tree_that_is_too_deep_is_cut_and_the_list_says_so(attempt: Path) -> None:
    before = artifacts.list_artifacts(attempt).artifacts
    (layout.artifacts_dir(attempt) / "a" / "/".join("d" * 40)).mkdir(parents=True)
    found = artifacts.list_artifacts(attempt)
    assert found.truncated
    assert found.artifacts == before, "it hides nothing else"


def test_entries_that_are_never_listed_hold_nobody_up(attempt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts, "MAX_SCANNED", 50)
    for number in range(60):
        (layout.artifacts_dir(attempt) / f"link-{number}").symlink_to("nowhere")
    looked_at: list[str] = []
    stat = os.stat

    def count(name: str, **how: Any) -> os.stat_result:
        looked_at.append(name)
        return stat(name, **how)

    monkeypatch.setattr(os, "stat", count)
    assert artifacts.list_artifacts(attempt).truncated
    assert len(looked_at) <= 51


def test_a_directory_that_may_only_be_listed_hides_nothing_else(attempt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = artifacts.list_artifacts(attempt).artifacts
    (layout.artifacts_dir(attempt) / "closed").write_text("x")
    stat = os.stat

    def refuse(name: str, **how: Any) -> os.stat_result:
        if name == "closed":
            raise PermissionError(13, "Permission denied")
        return stat(name, **how)

    monkeypatch.setattr(os, "stat", refuse)
    assert artifacts.list_artifacts(attempt).artifacts == before


def test_a_name_that_is_not_text_is_left_out(attempt: Path) -> None:
    (layout.artifacts_dir(attempt) / os.fsdecode(b"\xff\xfe")).write_text("x")
    assert len(artifacts.list_artifacts(attempt).artifacts) == 3


def test_a_files_tag_changes_with_the_file(attempt: Path) -> None:
    path = layout.artifacts_dir(attempt) / "notes.txt"

    def tag() -> str:
        opened = artifacts.open_file(attempt, "artifacts/notes.txt")
        opened.file.close()
        return opened.tag

    before = tag()
    assert tag() == before
    path.write_text("other")
    os.utime(path, ns=(1, 1))
    assert tag() != before


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("", None),
        ("bytes=0-0", (0, 0)),
        ("bytes=2-5", (2, 5)),
        ("bytes=2-", (2, 9)),
        ("bytes=-3", (7, 9)),
        ("bytes=-30", (0, 9)),
        ("bytes=8-100", (8, 9)),
        ("bytes = 2 - 5", (2, 5)),
        ("bytes=-", None),
        ("bytes=5-2", None),
        ("bytes=0-1,3-4", None),
        ("lines=0-1", None),
        ("bytes=a-b", None),
        (f"bytes=0-{10**30}", None),
    ],
)
def test_a_range_is_read_as_http_says(header: str, expected: tuple[int, int] | None) -> None:
    assert parse_range(header, 10) == expected


@pytest.mark.parametrize(
    ("header", "size"), [("bytes=10-", 10), ("bytes=10-12", 10), ("bytes=-0", 10), ("bytes=0-", 0)]
)
def test_a_range_without_a_byte_of_the_file_is_refused(header: str, size: int) -> None:
    with pytest.raises(RangeNotSatisfiable):
        parse_range(header, size)


def _save(attempt: Path, step: int, number: int, **files: bytes) -> Path:
    directory = attempt.parent / "checkpoints" / f"{step:012d}-{number}"
    directory.mkdir(parents=True)
    for name, body in files.items():
        (directory / f"{name}.pt").write_bytes(body)
    return directory


def test_the_checkpoints_of_a_job_are_listed_with_each_of_its_attempts_and_open(attempt: Path) -> None:
    _save(attempt, 200, 1, a=b"damaged")
    _save(attempt, 200, 2, a=b"good", b=b"")
    _save(attempt, 1000, 2, a=b"newer")
    (attempt.parent / "checkpoints" / ".000000001200-2.part").mkdir()
    (attempt.parent / "checkpoints" / "odd").mkdir()
    paths = [one.path for one in artifacts.list_artifacts(attempt).artifacts if one.path.startswith("checkpoints/")]
    assert paths == ["checkpoints/step-1000/a.pt", "checkpoints/step-200/a.pt", "checkpoints/step-200/b.pt"]
    with artifacts.open_file(attempt, "checkpoints/step-200/a.pt").file as file:
        assert file.read() == b"good"
    for path in ("checkpoints", "checkpoints/step-200", "checkpoints/step-300/a.pt", "checkpoints/odd/a.pt",
                 "checkpoints/000000000200-2/a.pt", "checkpoints/step-200/a.pt/x"):  # fmt: skip
        with pytest.raises(NotFound):
            artifacts.open_file(attempt, path)


def test_no_link_leads_out_of_a_checkpoint(attempt: Path) -> None:
    directory = _save(attempt, 200, 1, a=b"good")
    (directory / "link.pt").symlink_to(attempt.parent / "secret")
    (directory.parent / f"{300:012d}-1").symlink_to(attempt.parent)
    found = [one.path for one in artifacts.list_artifacts(attempt).artifacts if one.path.startswith("checkpoints/")]
    assert found == ["checkpoints/step-200/a.pt"]
    for path in ("checkpoints/step-200/link.pt", "checkpoints/step-300/secret"):
        with pytest.raises(NotFound):
            artifacts.open_file(attempt, path)
