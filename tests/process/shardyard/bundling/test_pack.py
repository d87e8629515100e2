"""Which files of a directory go into a bundle, and what the bundle is."""

import os
import shutil
import subprocess
import tempfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from jobs.bundles import bundle as bundles
from shardyard.bundling import pack
from shardyard.bundling.pack import FileSelection, WrittenBundle
from shardyard.contract.bundle_rules import DEFAULT_LIMITS
from shardyard.contract.errors import InvalidRequest


def made(root: Path, *files: str, **texts: str) -> Path:
    """Files below a directory, each with its own path as its text; a name that ends in "/" is a directory."""
    for file in files:
        path = root / file
        if file.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(file)
    for file, text in texts.items():
        (root / file).write_text(text)
    return root


def ignore(directory: Path, *patterns: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / ".gitignore").write_text("\n".join(patterns))


def paths(chosen: FileSelection) -> list[str]:
    return [source.path for source in chosen.files if not source.path.endswith(".gitignore")]


def left_out(chosen: FileSelection) -> dict[str, str]:
    return {one.path: one.why for one in chosen.left_out}


def written(chosen: FileSelection, target: Path) -> WrittenBundle:
    with target.open("w+b") as file:
        return pack.write_bundle(chosen, file)


# -- what is packed --------------------------------------------------------------------------------


def test_a_directory_is_packed_without_what_no_job_needs(tmp_path: Path) -> None:
    made(tmp_path, "train.py", "pkg/model.py", ".git/config", "pkg/__pycache__/model.pyc", "old.pyc", "env/pyvenv.cfg")
    made(tmp_path, "env/lib/torch.py", "conda/conda-meta/history", ".hidden/settings.yaml")

    chosen = pack.select_files(tmp_path)

    assert paths(chosen) == [".hidden/settings.yaml", "pkg/model.py", "train.py"]
    assert left_out(chosen) == {"conda/": "a Python environment", "env/": "a Python environment"}


def test_what_gitignore_names_is_left_out_and_reported_once(tmp_path: Path) -> None:
    made(tmp_path, "train.py", "data/a.csv", "data/deep/b.csv", "runs/1.log", "runs/keep.log", "notes.log")
    ignore(tmp_path, "data/", "*.log", "!keep.log")

    chosen = pack.select_files(tmp_path)

    assert paths(chosen) == ["runs/keep.log", "train.py"]
    assert left_out(chosen) == {"data/": ".gitignore", "notes.log": ".gitignore", "runs/1.log": ".gitignore"}


def test_rules_of_the_checkout_above_hold_for_a_directory_in_it(tmp_path: Path) -> None:
    made(
        tmp_path, ".git/info/exclude", "project/train.py", "project/big.bin", "project/mine.txt", "project/a/build/x.o"
    )
    (tmp_path / ".git/info/exclude").write_text("mine.txt\n")
    ignore(tmp_path, "*.bin", "/project/a/build/")
    ignore(tmp_path.parent, "*.py")  # outside of the checkout
    try:
        assert paths(pack.select_files(tmp_path / "project")) == ["train.py"]
    finally:
        (tmp_path.parent / ".gitignore").unlink()


def test_a_directory_that_is_itself_ignored_is_packed_when_it_is_named(tmp_path: Path) -> None:
    made(tmp_path, ".git/HEAD", "build/train.py")
    ignore(tmp_path, "build/")

    assert paths(pack.select_files(tmp_path / "build")) == ["train.py"]


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_ignored_is_what_git_ignores(tmp_path: Path) -> None:
    made(
        tmp_path, "a.py", "b.tmp", "keep/b.tmp", "deep/x/y.dat", "deep/x/z.txt", "deep/only/me.txt", "w e/ird name.txt"
    )
    made(
        tmp_path, "root.txt", "sub/root.txt", "sub/c.pt", "sub/d.pt", "#hash", "!bang", "logs/1/a", "logs/2/b", "ä.txt"
    )
    ignore(
        tmp_path,
        "# a comment",
        "*.tmp",
        "!keep/*.tmp",
        "/root.txt",
        "deep/**/*.dat",
        "logs/*",
        "!logs/2",
        "\\#hash",
        "",
    )
    ignore(tmp_path / "sub", "*.pt", "!d.pt")
    ignore(tmp_path / "deep/only", "*")
    git = ["git", "-C", str(tmp_path)]
    environment = os.environ | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    subprocess.run([*git, "init", "-q"], check=True, env=environment)
    listed = subprocess.run(
        [*git, "ls-files", "-z", "--others", "--exclude-standard"], check=True, env=environment, capture_output=True
    )

    packed = {source.path for source in pack.select_files(tmp_path).files}

    assert packed == set(listed.stdout.decode().split("\0")) - {""}


def test_include_takes_what_gitignore_leaves_out(tmp_path: Path) -> None:
    made(tmp_path, "train.py", "data/small/a.csv", "data/small/b/c.csv", "data/large.bin", "out/x.pt", "out/y.log")
    ignore(tmp_path, "data/", "out/")
    ignore(tmp_path / "data/small", "*")

    chosen = pack.select_files(tmp_path, include=["data/small", "*.pt"])

    assert paths(chosen) == ["data/small/a.csv", "data/small/b/c.csv", "out/x.pt", "train.py"]


def test_exclude_wins_over_everything_but_nothing_else_is_lost(tmp_path: Path) -> None:
    made(tmp_path, "train.py", "data/a.csv", "data/a.bin", "weights.pt")

    chosen = pack.select_files(tmp_path, include=["data"], exclude=["*.bin", "/weights.pt"])

    assert paths(chosen) == ["data/a.csv", "train.py"]
    assert left_out(chosen) == {"data/a.bin": "--exclude", "weights.pt": "--exclude"}


def test_the_entry_point_is_packed_even_where_git_ignores_it(tmp_path: Path) -> None:
    made(tmp_path, "scratch/try.py", "scratch/other.py")
    ignore(tmp_path, "scratch/")

    assert paths(pack.select_files(tmp_path, "scratch/try.py")) == ["scratch/try.py"]


def test_an_empty_directory_is_packed_for_scripts_that_write_into_it(tmp_path: Path) -> None:
    made(tmp_path, "train.py", "checkpoints/", "ignored/")
    ignore(tmp_path, "ignored/")

    chosen = pack.select_files(tmp_path)
    written(chosen, tmp_path / "zip")
    bundles.extract_bundle(tmp_path / "zip", tmp_path / "unpacked", written(chosen, tmp_path / "zip").id)

    assert (tmp_path / "unpacked/checkpoints").is_dir()
    assert not (tmp_path / "unpacked/ignored").exists()


# -- links and other things ------------------------------------------------------------------------


def test_links_within_the_directory_are_packed_as_what_they_lead_to(tmp_path: Path) -> None:
    made(tmp_path, "configs/base.yaml", "shared/model.py", "train.py")
    (tmp_path / "current.yaml").symlink_to("configs/base.yaml")
    (tmp_path / "lib").symlink_to("shared")

    chosen = pack.select_files(tmp_path)
    bundle = written(chosen, tmp_path / "zip")
    bundles.extract_bundle(tmp_path / "zip", tmp_path / "unpacked", bundle.id)

    assert (tmp_path / "unpacked/current.yaml").read_text() == "configs/base.yaml"
    assert (tmp_path / "unpacked/lib/model.py").read_text() == "shared/model.py"


def test_links_that_lead_out_nowhere_or_in_circles_are_left_out_and_named(tmp_path: Path) -> None:
    root = made(tmp_path / "project", "train.py", "a/b.py")
    made(tmp_path, "secret/key")
    (root / "data").symlink_to(tmp_path / "secret")
    (root / "gone").symlink_to("nothing")
    (root / "self").symlink_to("self")
    (root / "a/up").symlink_to("..")

    chosen = pack.select_files(root)

    assert paths(chosen) == ["a/b.py", "train.py"]
    assert left_out(chosen) == {
        "data/": f"a link out of the directory, to {tmp_path}/secret",
        "gone": "a broken link",
        "self": "a broken link",
        "a/up/": "a link to a directory that it is in",
    }


def test_pipes_and_sockets_are_left_out(tmp_path: Path) -> None:
    made(tmp_path, "train.py")
    os.mkfifo(tmp_path / "pipe")

    assert left_out(pack.select_files(tmp_path)) == {"pipe": "not a regular file"}


# -- what cannot be packed -------------------------------------------------------------------------


def problems(error: pytest.ExceptionInfo[InvalidRequest]) -> dict[str, str]:
    return {wrong.field: wrong.message for wrong in error.value.fields}


def test_a_file_over_the_limit_is_named_before_anything_is_packed(tmp_path: Path) -> None:
    made(tmp_path, "train.py", "data/big.bin")
    with pytest.raises(InvalidRequest, match="--exclude") as refused:
        pack.select_files(tmp_path, limits=replace(DEFAULT_LIMITS, file=10))
    assert "12 B; a file of a bundle may have 10 B" in problems(refused)["data/big.bin"]

    assert paths(pack.select_files(tmp_path, exclude=["*.bin"], limits=replace(DEFAULT_LIMITS, file=10))) == [
        "train.py"
    ]


def test_too_much_together_names_what_is_large(tmp_path: Path) -> None:
    made(tmp_path, "a.py", "data/one", "data/two")
    with pytest.raises(InvalidRequest, match="20 B to pack; a bundle may have 19 B") as refused:
        pack.select_files(tmp_path, limits=replace(DEFAULT_LIMITS, total=19))
    assert problems(refused) == {"data/": "16 B", "a.py": "4 B"}


def test_too_many_files_name_where_they_are(tmp_path: Path) -> None:
    made(tmp_path, *(f"data/{number}.png" for number in range(20)), "a.py")
    with pytest.raises(InvalidRequest, match="more than 10 files") as refused:
        pack.select_files(tmp_path, limits=replace(DEFAULT_LIMITS, entries=10))
    assert "data/" in problems(refused)


def test_the_limit_on_entries_is_the_services(tmp_path: Path) -> None:
    root = made(tmp_path / "project", "a/b/c.py", "d.py", "e/")
    chosen = pack.select_files(root, limits=replace(DEFAULT_LIMITS, entries=5))
    written(chosen, tmp_path / "zip")

    assert bundles.inspect_bundle(tmp_path / "zip", replace(DEFAULT_LIMITS, entries=5))
    with pytest.raises(InvalidRequest, match="more than 4"):
        pack.select_files(root, limits=replace(DEFAULT_LIMITS, entries=4))


def test_names_that_a_bundle_cannot_hold_are_told_all_at_once(tmp_path: Path) -> None:
    made(tmp_path, "back\\slash.py", "model.py", "Model.py", "line\nbreak")
    (Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.txt"))).write_text("not UTF-8")

    with pytest.raises(InvalidRequest) as refused:
        pack.select_files(tmp_path)

    found = problems(refused)
    assert set(found) == {"back\\slash.py", "model.py", "line\\x0abreak", "\\xff.txt"}
    assert "Model.py" in found["model.py"]
    assert all(word.isprintable() for words in found.items() for word in words)


def test_a_directory_without_end_is_refused_by_its_depth(tmp_path: Path) -> None:
    deep = tmp_path / "/".join("d" * 600)
    deep.mkdir(parents=True)

    with pytest.raises(InvalidRequest) as refused:
        pack.select_files(tmp_path)

    assert problems(refused) == {"d/" * 64: "is more than 64 directories deep"}


def test_a_pattern_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="--exclude"):
        pack.select_files(tmp_path, exclude=["!"])


@pytest.mark.parametrize("text", ["!\n*.log\n", "*.log\r\nother\r\n", "\ufeff*.log\n", "/\n\n  \n*.log"])
def test_gitignore_is_read_however_it_was_written(tmp_path: Path, text: str) -> None:
    made(tmp_path, "train.py", "a.log")
    (tmp_path / ".gitignore").write_bytes(text.encode())

    assert paths(pack.select_files(tmp_path)) == ["train.py"]


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user for a while")
def test_what_may_not_be_read_is_named_and_can_be_left_out() -> None:
    with tempfile.TemporaryDirectory() as name:
        root = made(Path(name), "train.py", "closed.csv", "closed/file")
        root.chmod(0o755)
        (root / "closed.csv").chmod(0)
        (root / "closed").chmod(0)
        os.seteuid(65534)
        try:
            with pytest.raises(InvalidRequest) as refused:
                pack.select_files(root)
            without = pack.select_files(root, exclude=["closed.csv", "closed"])
        finally:
            os.seteuid(0)

    assert problems(refused) == {
        "closed/": "cannot be listed: Permission denied",
        "closed.csv": "cannot be read: Permission denied",
    }
    assert paths(without) == ["train.py"]


def test_a_file_that_is_gone_when_it_is_packed_is_named(tmp_path: Path) -> None:
    made(tmp_path, "train.py", "gone.py")
    chosen = pack.select_files(tmp_path)
    (tmp_path / "gone.py").unlink()

    with pytest.raises(InvalidRequest, match=r"gone\.py cannot be read"):
        written(chosen, tmp_path / "zip")


# -- the zip ---------------------------------------------------------------------------------------


def test_the_same_files_make_the_same_bundle_wherever_and_whenever(tmp_path: Path) -> None:
    one = made(tmp_path / "one", "train.py", "pkg/model.py", "empty/")
    two = made(tmp_path / "two", "empty/", "pkg/model.py", "train.py")
    os.utime(two / "train.py", (1, 1))
    (two / "train.py").chmod(0o600)

    assert written(pack.select_files(one), tmp_path / "1.zip") == written(pack.select_files(two), tmp_path / "2.zip")


def test_another_text_or_another_mode_is_another_bundle(tmp_path: Path) -> None:
    made(tmp_path, "train.py")
    ids = {written(pack.select_files(tmp_path, exclude=["*.zip"]), tmp_path / "a.zip").id}
    (tmp_path / "train.py").chmod(0o755)
    ids.add(written(pack.select_files(tmp_path, exclude=["*.zip"]), tmp_path / "a.zip").id)
    (tmp_path / "train.py").write_text("other")
    ids.add(written(pack.select_files(tmp_path, exclude=["*.zip"]), tmp_path / "a.zip").id)

    assert len(ids) == 3


def test_a_packed_directory_unpacks_to_itself_under_the_services_rules(tmp_path: Path) -> None:
    root = made(tmp_path / "project", "train.py", "pkg/ünï cödé.py", "run.sh", "empty.txt")
    (root / "empty.txt").write_text("")
    (root / "run.sh").chmod(0o755)
    (root / "noise.bin").write_bytes(os.urandom(100_000))

    bundle = written(pack.select_files(root), tmp_path / "zip")
    bundles.inspect_bundle(tmp_path / "zip")
    bundles.extract_bundle(tmp_path / "zip", tmp_path / "unpacked", bundle.id)

    for source in pack.select_files(root).files:
        unpacked = tmp_path / "unpacked" / source.path
        assert unpacked.read_bytes() == (root / source.path).read_bytes()
        assert os.access(unpacked, os.X_OK) == source.executable
    assert bundle.bytes == (tmp_path / "zip").stat().st_size


def test_the_bytes_that_were_read_are_told_while_packing(tmp_path: Path) -> None:
    made(tmp_path, "a", "bb")
    told: list[int] = []
    with (tmp_path / "zip").open("w+b") as file:
        pack.write_bundle(pack.select_files(tmp_path, exclude=["zip"]), file, told.append)
    assert told == [1, 2]
    assert zipfile.ZipFile(tmp_path / "zip").namelist() == ["a", "bb"]


# -- what is never packed --------------------------------------------------------------------------

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAABG5vbmU\n-----END OPENSSH PRIVATE KEY-----\n"


def test_credentials_are_never_packed_whatever_they_are_called_or_included_by(tmp_path: Path) -> None:
    made(tmp_path, "train.py", "tokenizer.json", "tokens.py", ".env.example", "keys/id_rsa.pub", "cert.pem")
    made(tmp_path, ".env", ".env.local", "sub/.envrc", "sub/admin.token", "keys/id_rsa", "tls/server.key", ".netrc")
    made(tmp_path, ".ssh/config", ".aws/credentials", "credentials.json")
    (tmp_path / "deploy").write_text(KEY)
    (tmp_path / "chain.pem").write_text(f"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n{KEY}")
    (tmp_path / "mine.txt").write_text("sy_707d216ed969d5d8_" + "Aa0-_" * 8 + "\n")
    (tmp_path / "settings.ini").symlink_to(tmp_path / ".env")

    chosen = pack.select_files(tmp_path, "train.py", include=("*", ".env", "keys/"))

    assert paths(chosen) == [".env.example", "cert.pem", "keys/id_rsa.pub", "tokenizer.json", "tokens.py", "train.py"]
    why = left_out(chosen)
    assert {path for path, reason in why.items() if reason == "a private key"} == {
        "deploy", "chain.pem", "keys/id_rsa", "tls/server.key"
    }  # fmt: skip
    assert "--secret" in why["mine.txt"]
    assert "--env" in why[".env"]
    assert {".env.local", "sub/.envrc", "sub/admin.token", ".netrc", ".ssh/", ".aws/", "settings.ini"} <= why.keys()


def test_the_data_of_a_service_is_never_packed(tmp_path: Path) -> None:
    made(tmp_path, "train.py", "old/up.lock", "old/admin.token", "old/storage/job.json", "named/api.log", "one/secrets")
    private = (tmp_path / "named", tmp_path / "one" / "secrets")

    chosen = pack.select_files(tmp_path, "train.py", include=("old/", "named/"), private=private)

    assert paths(chosen) == ["train.py"]
    assert left_out(chosen) == dict.fromkeys(("named/", "old/", "one/secrets"), "Shardyard's own data")
    with pytest.raises(InvalidRequest, match="Shardyard's own data"):
        pack.select_files(tmp_path / "old")
