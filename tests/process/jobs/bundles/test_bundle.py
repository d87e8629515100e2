"""Hostile zips: each breaks one rule, and both the check at the door and the one before unpacking refuse it."""

import hashlib
import io
import os
import shutil
import subprocess
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.bundles import bundle, strict_zip
from jobs.bundles.bundle import BundleListing, UnpackedFile
from shardyard.contract import bundle_rules
from shardyard.contract.bundle_rules import BundleLimits
from shardyard.contract.errors import BadBundle
from tests.support.samples import hostile_zips
from tests.support.samples.hostile_zips import (
    DESCRIBED,
    DEVICE,
    DIRECTORY,
    ENCRYPTED,
    LINK,
    PIPE,
    UTF8,
    Part,
    names,
    zipped,
)

MIB = 1024 * 1024
SMALL = BundleLimits(entries=10, file=4000, total=6000, ratio=20, unpressed=5000)
PLAIN = Part("train.py")
ZEROS = b"\0" * 100_000
RANDOM = os.urandom(5000)


def zip64(size: int = 14, packed: int = 14) -> bytes:
    return hostile_zips.extra(0x0001, size.to_bytes(8, "little") + packed.to_bytes(8, "little"))


#: What is attacked -> the zip, and words of the refusal.
ATTACKS: dict[str, tuple[bytes, str]] = {
    # -- what is no zip, or more than one ------------------------------------------------------------
    "nothing": (b"", "not a zip"),
    "text": (b"#!/bin/sh\nrm -rf /\n" * 10, "not a zip"),
    "a tar": (b"train.py" + b"\0" * 2000, "not a zip"),
    "half a zip": (zipped(Part("a", RANDOM))[:2000], "not a zip"),
    "no entries": (zipped(), "no file"),
    "directories only": (names("a/", "b/c/"), "no file"),
    "bytes before it": (zipped(PLAIN, before=b"#!/bin/sh\n"), "overlaps|bytes before"),
    "bytes before it that shift every offset": (b"#!/bin/sh\n" + zipped(PLAIN), "not where"),
    "bytes after it": (zipped(PLAIN, after=b"x"), "followed by"),
    "a zip after it": (zipped(PLAIN) + zipped(Part("other.py")), "not where"),
    "a zip before it": (zipped(PLAIN, before=zipped(Part("other.py"))), "overlaps|bytes before"),
    "bytes between entries": (zipped(PLAIN, Part("b", before=b"hidden")), "overlaps|bytes before"),
    "an entry that the directory hides": (zipped(PLAIN, gap=zipped(Part("b"))), "between the last entry"),
    "a long comment": (zipped(PLAIN, comment=b"x" * 1025), "not a zip|followed by"),
    "a comment longer than it says": (zipped(PLAIN, comment=b"xyz", comment_bytes=2), "followed by"),
    "a comment shorter than it says": (zipped(PLAIN, comment=b"xyz", comment_bytes=4), "followed by"),
    "a zip in the comment that no end fits": (
        zipped(PLAIN, comment=zipped(Part("other.py"), comment_bytes=0xFF00)),
        "followed by",
    ),
    "a zip in the comment": (zipped(PLAIN, comment=zipped(Part("other.py"))), "not where"),
    # -- the directory lies --------------------------------------------------------------------------
    "fewer entries than it has": (zipped(PLAIN, Part("b"), count=1), "not as long as its entries"),
    "more entries than it has": (zipped(PLAIN, count=2), "shorter than"),
    "a name that reaches out of the directory": (zipped(Part("a", central={"name_bytes": 9})), "not as long"),
    "a directory elsewhere": (zipped(PLAIN, start=3), "not where"),
    "a directory beyond the end": (zipped(PLAIN, start=1 << 31), "not where"),
    "a directory without end": (zipped(PLAIN, length=1 << 31), "at most .* are read"),
    "a part of several": (zipped(PLAIN, disk=1), "several"),
    "an entry on another disk": (zipped(Part("a", central={"disk": 1})), "something else"),
    "an entry beyond the end": (zipped(Part("a", central={"offset": 1 << 20})), "overlaps|bytes before"),
    "an entry that is none": (zipped(PLAIN, Part("b", central={"offset": 1})), "overlaps|bytes before"),
    "data that reach into the directory": (
        zipped(Part("a", central={"packed": 60}, local={"packed": 60})),
        "into the central directory",
    ),
    # -- two headers, two stories --------------------------------------------------------------------
    "another name": (zipped(Part("a", local={"name": b"b"})), "disagree"),
    "another method": (zipped(Part("a", method=0, local={"method": 8})), "disagree"),
    "another size": (zipped(Part("a", local={"size": 1})), "disagree"),
    "another packed size": (zipped(Part("a", local={"packed": 1})), "disagree"),
    "another checksum": (zipped(Part("a", local={"crc": 1})), "disagree"),
    "no sizes, and no descriptor": (zipped(Part("a", local={"packed": 0, "size": 0, "crc": 0})), "disagree"),
    "encrypted in one": (zipped(Part("a", local={"flags": UTF8 | ENCRYPTED})), "disagree"),
    "a descriptor that disagrees": (
        zipped(Part("a", flags=UTF8 | DESCRIBED, descriptor=hostile_zips.descriptor(1, 2, 3))),
        "stands behind the data",
    ),
    "a descriptor that is not there": (zipped(Part("a", flags=UTF8 | DESCRIBED)), "stands behind the data"),
    # -- what it holds is not a regular file ---------------------------------------------------------
    "a link": (zipped(Part("a", b"/etc/passwd", mode=LINK)), "link or a device"),
    "a link and what goes through it": (
        zipped(Part("a", b"/tmp", mode=LINK), Part("a/b")),
        "link or a device",
    ),
    "a pipe": (zipped(Part("a", mode=PIPE)), "link or a device"),
    "a device": (zipped(Part("a", mode=DEVICE)), "link or a device"),
    "a socket": (zipped(Part("a", mode=0o140644)), "link or a device"),
    "a directory that is a file by its name": (zipped(Part("a", b"", mode=DIRECTORY, method=0)), "not by both"),
    "a file that is a directory by its name": (zipped(Part("a/", b"", method=0)), "not by both"),
    "a directory with contents": (zipped(Part("a/", b"x", mode=DIRECTORY)), "directory with contents"),
    "an encrypted file": (zipped(Part("a", flags=UTF8 | ENCRYPTED)), "encrypted"),
    "a strongly encrypted file": (zipped(Part("a", flags=UTF8 | 1 << 6)), "encrypted"),
    "an AES file": (zipped(Part("a", central={"extra": hostile_zips.extra(0x9901, b"1234567")})), "encrypted"),
    "a patch": (zipped(Part("a", flags=UTF8 | 1 << 5)), "something else"),
    **{f"method {method}": (zipped(Part("a", method=method)), f"method {method}") for method in (1, 9, 12, 14, 93, 99)},
    # -- zip64 ---------------------------------------------------------------------------------------
    "zip64 in the directory": (zipped(Part("a", central={"extra": zip64()})), "zip64"),
    "zip64 in the local header": (zipped(Part("a", local={"extra": zip64()})), "zip64"),
    "a size for zip64 to say": (zipped(Part("a", central={"size": 0xFFFFFFFF, "extra": zip64()})), "zip64"),
    "an offset for zip64 to say": (zipped(Part("a", central={"offset": 0xFFFFFFFF})), "zip64"),
    "a count for zip64 to say": (zipped(PLAIN, count=0xFFFF), "zip64"),
    "a start for zip64 to say": (zipped(PLAIN, start=0xFFFFFFFF), "zip64"),
    "half an extra field": (zipped(Part("a", central={"extra": b"\1\0\xff"})), "broken extra"),
    "an extra field that is cut": (
        zipped(Part("a", local={"extra": hostile_zips.extra(7, b"abc")[:-1]})),
        "broken extra",
    ),
    "a second name": (
        zipped(Part("a", central={"extra": hostile_zips.extra(0x7075, b"\1\0\0\0\0/etc/x")})),
        "second name",
    ),
    # -- names ---------------------------------------------------------------------------------------
    "no name": (names(""), "empty name"),
    "an absolute name": (names("/etc/passwd"), "absolute"),
    "the root": (names("/"), "absolute"),
    "a network path": (names("//host/share"), "absolute"),
    **{f"up by {path}": (names(path), '".."') for path in ("..", "../x", "a/../../x", "a/..", "../", "a/../")},
    "a backslash": (names("..\\..\\x"), "backslash"),
    "a drive": (names("C:/x"), "drive letter"),
    "a drive's file": (names("c:x"), "drive letter"),
    "a NUL": (names("train.py\0.jpg"), "control character"),
    "a line break": (names("a\nb"), "control character"),
    "an escape": (names("\x1b[31mred"), "control character"),
    "a delete": (names("a\x7f"), "control character"),
    "a C1 control": (names("a\x9bb"), "control character"),
    "a mark that turns the direction": (names("gpj.\u202eyp"), r"holds U\+202E \(RIGHT-TO-LEFT OVERRIDE\)"),
    "a mark of the direction": (names("a\u200fb"), r"holds U\+200F"),
    "a mark without a width": (names("a\ufeffb.py"), r"holds U\+FEFF"),
    "a line separator": (names("a\u2028b"), r"holds U\+2028 \(LINE SEPARATOR\)"),
    "half a character": (names(b"a\xed\xa0\x80"), "UTF-8"),
    "latin-1": (names(b"caf\xe9"), "UTF-8"),
    "an empty part": (names("a//b"), "empty part"),
    "a dot": (names("a/./b"), "empty part"),
    "a leading dot": (names("./a"), "empty part"),
    "nothing but a dot": (names("."), "empty part"),
    "two slashes at the end": (names("x", "a//"), "empty part"),
    "a part that is too long": (names("é" * 128), "part longer"),
    "a name that is too long": (names("/".join(["a" * 200] * 5)), "longer than 1000"),
    "a name that is too deep": (names("a/" * 64 + "b"), "directories deep"),
    # -- names that collide --------------------------------------------------------------------------
    "a name twice": (names("a", "a"), "twice"),
    "a directory twice": (names("x", "a/", "a/"), "twice"),
    "case": (names("Train.py", "train.py"), "one name"),
    "case of a directory": (names("Src/a", "src/b"), "one name"),
    "case of an announced directory": (names("Src/", "src/b"), "one name"),
    "composed and decomposed": (names("é", "e\u0301"), "one name"),
    "a ligature": (names("ﬁle", "file"), "one name"),
    "sharp s": (names("STRASSE", "straße"), "one name"),
    "a file below a file": (names("a", "a/b"), "twice, or both"),
    "a file over a directory": (names("a/b", "a"), "both as a file and as a directory"),
    "a file over an announced directory": (names("x", "a/", "a"), "both as a file and as a directory"),
    "a directory over a file": (names("a", "a/"), "twice, or both"),
    # -- too much ------------------------------------------------------------------------------------
    "too many entries": (names(*map(str, range(11))), "11 entries"),
    "too many directories within names": (names("a/b/c/d/e/f/g/h/i/j/k"), "10 files and directories"),
    "a file that is too large": (zipped(Part("a", RANDOM, method=0)), "a file may have 4000"),
    "files that are too large together": (zipped(*(Part(str(n), RANDOM[:3001], method=0) for n in (1, 2))), "6000"),
    "a bomb": (zipped(Part("a", ZEROS[:4000]), Part("b", ZEROS[:2000])), "times its size"),
    "a bomb of shared bytes": (hostile_zips.overlapping(5, b"0" * 1000), "overlaps"),
    "a bomb of quoted bytes": (hostile_zips.quoting(5, b"0" * 1000), "overlaps"),
    # -- data that are not what the headers say ------------------------------------------------------
    "more than it announces": (zipped(Part("a", ZEROS, local={"size": 10}, central={"size": 10})), "more than the 10"),
    "less than it announces": (zipped(Part("a", b"x", local={"size": 10}, central={"size": 10})), "does not unpack"),
    "a wrong checksum": (zipped(Part("a", local={"crc": 1}, central={"crc": 1})), "does not unpack"),
    "a wrong checksum of nothing": (zipped(Part("a", b"", method=0, local={"crc": 1}, central={"crc": 1})), "unpack"),
    "two sizes of what is stored": (zipped(Part("a", b"abc", method=0, central={"size": 2}, local={"size": 2})), "two"),
    "no deflate": (zipped(Part("a", packed=b"\xff" * 20)), "cannot be unpacked"),
    "half a stream": (
        zipped(Part("a", RANDOM[:3000], packed=hostile_zips.deflated(RANDOM[:3000])[:1000])),
        "before or",
    ),
    "no stream": (zipped(Part("a", b"", packed=b"")), "before or behind"),
    "bytes behind the stream": (zipped(Part("a", packed=hostile_zips.deflated(Part("a").data) + b"hid")), "behind"),
}


def identity(body: bytes) -> str:
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_is_refused_at_the_door_and_before_unpacking(attack: str, tmp_path: Path) -> None:
    body, words = ATTACKS[attack]
    path = tmp_path / "bundle.zip"
    path.write_bytes(body)
    with pytest.raises(BadBundle, match=words):
        bundle.inspect_bundle(path, SMALL)
    with pytest.raises(BadBundle, match=words):
        bundle.extract_bundle(path, tmp_path / "out", identity(body), SMALL)
    left = {found.relative_to(tmp_path).parts[0] for found in tmp_path.rglob("*")}
    assert left <= {"bundle.zip", "out"}, "nothing was written elsewhere"


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_refusal_shows_no_control_characters_and_is_short(attack: str, tmp_path: Path) -> None:
    path = tmp_path / "bundle.zip"
    path.write_bytes(ATTACKS[attack][0])
    with pytest.raises(BadBundle) as caught:
        bundle.inspect_bundle(path, SMALL)
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 400


@pytest.mark.parametrize(
    "body",
    [
        zipped(Part("a", b"\0" * (1 << 26), local={"size": 10}, central={"size": 10})),
        zipped(Part("a", b"\0" * (1 << 26))),
        zipped(PLAIN, length=MIB * 15),
        hostile_zips.quoting(200, b"\0" * (1 << 20)),
    ],
    ids=["a lying bomb", "an honest bomb", "a large directory", "quotes"],
)
def test_a_bomb_takes_little_memory(body: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bundle.zip"
    path.write_bytes(body)
    del body
    tracemalloc.start()
    try:
        with pytest.raises(BadBundle):
            bundle.inspect_bundle(path, SMALL)
        assert tracemalloc.get_traced_memory()[1] < 2 * MIB
    finally:
        tracemalloc.stop()


def test_the_default_limits_refuse_a_bomb_of_a_gibibyte() -> None:
    limits = bundle_rules.DEFAULT_LIMITS
    assert limits.entries <= 10_000
    assert limits.file <= limits.total <= 1024 * MIB
    assert limits.ratio * MIB < limits.total


def test_a_bomb_within_a_zip_is_just_a_file(tmp_path: Path) -> None:
    body = hostile_zips.nested(3, b"\0" * (1 << 24))
    path = tmp_path / "bundle.zip"
    path.write_bytes(body)
    assert bundle.inspect_bundle(path).bytes < 20_000
    bundle.extract_bundle(path, tmp_path / "out", identity(body))
    assert [found.name for found in (tmp_path / "out").iterdir()] == ["2.zip"]


# -- what is taken ---------------------------------------------------------------------------------

TREE = {
    "train.py": b"print('hello')\n" * 100,
    "data/rows.bin": os.urandom(300_000) + b"\0" * 300_000,
    "package/__init__.py": b"",
    "package/räksmörgås.py": b"x = 1\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for path, data in TREE.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    (root / "empty").mkdir()
    (root / "run.sh").write_bytes(b"#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    return root


class Pipe(io.RawIOBase):
    """What cannot be gone back in, so that a zip is written as a stream."""

    def __init__(self, file: io.BufferedIOBase) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        return self._file.write(data)  # type: ignore[arg-type]


def by_python(root: Path, into: Path, method: int) -> None:
    with zipfile.ZipFile(into, "w", method) as file:
        for path in sorted(root.rglob("*")):
            file.write(path, path.relative_to(root))


def by_python_as_a_stream(root: Path, into: Path) -> None:
    with into.open("wb") as out, zipfile.ZipFile(Pipe(out), "w", zipfile.ZIP_DEFLATED) as file:
        for path in sorted(root.rglob("*")):
            file.write(path, path.relative_to(root))


def by_zip(root: Path, into: Path) -> None:
    if shutil.which("zip") is None:
        pytest.skip("there is no zip here")
    subprocess.run(["zip", "-qr", str(into), "."], cwd=root, check=True)


def by_zip_as_a_stream(root: Path, into: Path) -> None:
    if shutil.which("zip") is None:
        pytest.skip("there is no zip here")
    with into.open("wb") as out:
        subprocess.run(["zip", "-qr", "-", "."], cwd=root, check=True, stdout=out)


def by_git(root: Path, into: Path) -> None:
    """Its archives have a comment; it knows no empty directories."""
    if shutil.which("git") is None:
        pytest.skip("there is no git here")
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "core.autocrlf=false"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "x"]):
        subprocess.run([*git, *command], cwd=root, check=True)
    subprocess.run([*git, "archive", "--format=zip", "-o", str(into), "HEAD"], cwd=root, check=True)
    shutil.rmtree(root / ".git")
    (root / "empty").rmdir()


@pytest.mark.parametrize(
    "pack",
    [
        lambda root, into: by_python(root, into, zipfile.ZIP_DEFLATED),
        lambda root, into: by_python(root, into, zipfile.ZIP_STORED),
        by_python_as_a_stream,
        by_zip,
        by_zip_as_a_stream,
        by_git,
    ],
    ids=["python", "python, stored", "python, as a stream", "zip", "zip, as a stream", "git archive"],
)
def test_what_usual_tools_pack_is_unpacked_as_it_was(
    pack: Callable[[Path, Path], None], tree: Path, tmp_path: Path
) -> None:
    path, out = tmp_path / "bundle.zip", tmp_path / "out"
    pack(tree, path)
    found = bundle.inspect_bundle(path)
    assert bundle.extract_bundle(path, out, identity(path.read_bytes())) == found == bundle.list_contents(path)
    assert {file.path: file.bytes for file in found.files} == {p: len(d) for p, d in TREE.items()} | {"run.sh": 10}
    assert [file.path for file in found.files] == sorted(file.path for file in found.files)
    assert found.bytes == sum(map(len, TREE.values())) + 10
    assert {p.relative_to(out) for p in out.rglob("*")} == {p.relative_to(tree) for p in tree.rglob("*")}
    assert all((out / name).read_bytes() == data for name, data in TREE.items())
    assert os.access(out / "run.sh", os.X_OK)
    assert not os.access(out / "train.py", os.X_OK)


def test_a_descriptor_may_leave_its_signature_out(tmp_path: Path) -> None:
    told = Part("a").truth
    behind = hostile_zips.descriptor(told["crc"], told["packed"], told["size"])
    path = tmp_path / "bundle.zip"
    for descriptor in (behind, behind[4:]):
        path.write_bytes(zipped(Part("a", flags=UTF8 | DESCRIBED, descriptor=descriptor), Part("b")))
        assert [file.path for file in bundle.inspect_bundle(path).files] == ["a", "b"]


def test_modes_are_the_umasks_and_not_the_zips(tmp_path: Path) -> None:
    body = zipped(Part("s", mode=0o106777), Part("r", mode=0o100000), Part("d/", b"", mode=0o041777, method=0))
    path = tmp_path / "bundle.zip"
    path.write_bytes(body)
    before = os.umask(0o027)
    try:
        bundle.extract_bundle(path, tmp_path / "out", identity(body))
    finally:
        os.umask(before)
    modes = {found.name: found.stat().st_mode & 0o7777 for found in (tmp_path / "out").iterdir()}
    assert modes == {"s": 0o750, "r": 0o640, "d": 0o750}


# -- unpacking -------------------------------------------------------------------------------------


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    path = tmp_path / "bundle.zip"
    path.write_bytes(zipped(PLAIN, Part("a/b.py")))
    return path


def test_bytes_that_are_not_the_bundles_are_refused(packed: Path, tmp_path: Path) -> None:
    wanted = identity(packed.read_bytes())
    packed.write_bytes(zipped(PLAIN))
    with pytest.raises(BadBundle, match="upload the bundle again"):
        bundle.extract_bundle(packed, tmp_path / "out", wanted)
    assert not (tmp_path / "out").exists()


def test_nothing_is_unpacked_into_what_is_there(packed: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(FileExistsError):
        bundle.extract_bundle(packed, tmp_path / "out", identity(packed.read_bytes()))
    (tmp_path / "link").symlink_to(tmp_path / "out")
    with pytest.raises(FileExistsError):
        bundle.extract_bundle(packed, tmp_path / "link", identity(packed.read_bytes()))


def test_a_link_that_appears_on_the_way_leads_nowhere(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    unpack = strict_zip.unpack_entry

    def with_a_link(file: io.BufferedReader, entry: strict_zip.ZipEntry) -> object:
        (tmp_path / "out" / "a").symlink_to(tmp_path / "elsewhere")
        return unpack(file, entry)

    monkeypatch.setattr(strict_zip, "unpack_entry", with_a_link)
    with pytest.raises(BadBundle, match="leads out"):
        bundle.extract_bundle(packed, tmp_path / "out", identity(packed.read_bytes()))
    assert list((tmp_path / "elsewhere").iterdir()) == []


# -- any bytes at all ------------------------------------------------------------------------------

SOUND = zipped(PLAIN, Part("d/", b"", mode=DIRECTORY, method=0), Part("d/é", RANDOM[:300]), Part("s", b"abc", method=0))


@settings(max_examples=300, deadline=None)
@given(
    changes=st.lists(st.tuples(st.integers(0, len(SOUND) - 1), st.integers(0, 255)), max_size=4), cut=st.integers(0, 3)
)
def test_a_damaged_zip_is_refused_or_means_what_other_readers_say(
    changes: list[tuple[int, int]], cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    body = bytearray(SOUND)
    for place, value in changes:
        body[place] = value
    path = tmp_path_factory.getbasetemp() / "damaged.zip"
    path.write_bytes(body[: len(body) - cut])
    try:
        found = bundle.inspect_bundle(path)
    except BadBundle:
        return
    with zipfile.ZipFile(path) as file:
        assert file.testzip() is None
        infos = [info for info in file.infolist() if not info.is_dir()]
        utf8 = [info.filename if info.flag_bits & UTF8 else info.filename.encode("cp437").decode() for info in infos]
        assert sorted(zip(utf8, (info.file_size for info in infos), strict=True)) == [
            (file.path, file.bytes) for file in found.files
        ]


# -- entry points ----------------------------------------------------------------------------------


def holds(*paths: str) -> BundleListing:
    return BundleListing(tuple(UnpackedFile(path, 1) for path in sorted(paths)), len(paths))


FILES = holds("src/train.py", "train.pyc", "package/__init__.py", "package/main.py", "tool/__main__.py", "READ.md")


@pytest.mark.parametrize("entrypoint", ["src/train.py", "package.main", "tool", "package", "src.train"])
def test_an_entry_point_is_a_file_or_a_module_of_the_bundle(entrypoint: str) -> None:
    assert bool(bundle.wrong_entrypoint(entrypoint, FILES)) is (entrypoint == "package")


@pytest.mark.parametrize(
    ("entrypoint", "words"),
    [
        ("train.py", "no file 'train.py'; did you mean 'src/train.py'?"),
        ("src/trian.py", "no file 'src/trian.py'; did you mean 'src/train.py'?"),
        ("package.mian", "no module 'package.mian'; it has"),
        ("zzz.py", "no file 'zzz.py'; it has 'package/__init__.py', 'package/main.py', 'src/train.py'"),
    ],
)
def test_a_wrong_entry_point_is_told_what_was_probably_meant(entrypoint: str, words: str) -> None:
    assert words in bundle.wrong_entrypoint(entrypoint, FILES)


def test_an_entry_point_is_seen_from_the_directory_that_the_program_starts_in() -> None:
    assert bundle.wrong_entrypoint("b.py", holds("mnist/b.py"), "mnist") == ""
    assert "did you mean 'b.py'?" in bundle.wrong_entrypoint("c.py", holds("mnist/b.py"), "mnist")
    assert "no directory 'mnist'" in bundle.wrong_entrypoint("b.py", holds("b.py"), "mnist")


def test_a_module_that_the_bundle_has_nothing_of_may_be_installed() -> None:
    assert bundle.wrong_entrypoint("accelerate.commands.launch", FILES) == ""
    assert bundle.wrong_entrypoint("accelerate.commands.launch", holds("accelerate.py")) != ""
    assert bundle.wrong_entrypoint("trian", FILES) != ""


def test_a_bundle_without_python_says_so() -> None:
    assert "no .py file" in bundle.wrong_entrypoint("train.py", holds("a.txt"))
