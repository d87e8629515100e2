"""Data from files: what is read, and that nothing outside the operator's directory ever is."""

import io
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from jobs.model import catalogue
from jobs.model.spec import ComponentSpec
from tests.support.samples.cifar_files import BINARY, PYTHON, make_small_cifar, pickled_by_python_2
from tests.support.training_runs import FORWARD, VECTORS, Kept, context_of, report_here, run_spec, spec_of
from workers.runtime.context import RejectedByWorker
from workers.training import entry
from workers.training.recipes import cifar10
from workers.training.recipes.files import DataRoot


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    (made / "inner").mkdir(parents=True)
    (made / "inner" / "file").write_bytes(b"inside")
    (tmp_path / "secret").write_bytes(b"outside")
    return made


def data_of(root: Path | None, ref: str, **args: Any) -> Any:
    return entry.build_data(ComponentSpec(ref=ref, args=args), "program.data", context_of(1, Kept(), data_root=root))


# -- the directory ---------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["inner/file", "./inner/../inner/file", "inner//file"])
def test_a_file_within_the_directory_is_read(root: Path, path: str) -> None:
    with DataRoot(root).open(path, "program.data.args.path") as file:
        assert file.read() == b"inside"


def test_links_that_stay_within_the_directory_are_followed(root: Path) -> None:
    (root / "link").symlink_to("inner/file")
    (root / "folder").symlink_to(root / "inner")
    for path in ("link", "folder/file"):
        with DataRoot(root).open(path, "field") as file:
            assert file.read() == b"inside"


def test_the_directory_itself_may_be_a_link(root: Path, tmp_path: Path) -> None:
    (tmp_path / "mounted").symlink_to(root)
    with DataRoot(tmp_path / "mounted").open("inner/file", "field") as file:
        assert file.read() == b"inside"


@pytest.mark.parametrize(
    "path", ["../secret", "inner/../../secret", "link", "folder/secret", "chain", "/etc/passwd", "", "a\0b", "x" * 5000]
)
def test_nothing_outside_is_read_whatever_the_path(root: Path, tmp_path: Path, path: str) -> None:
    (root / "link").symlink_to(tmp_path / "secret")
    (root / "folder").symlink_to("..")
    (root / "chain").symlink_to("folder/data/link")
    with pytest.raises(RejectedByWorker, match=r"^program\.data\.args\.path: "):
        DataRoot(root).open(path, "program.data.args.path")


def test_a_sibling_whose_name_begins_alike_is_outside(root: Path, tmp_path: Path) -> None:
    (tmp_path / "data-private").mkdir()
    (tmp_path / "data-private" / "file").write_bytes(b"outside")
    with pytest.raises(RejectedByWorker, match="leads out of"):
        DataRoot(root).open("../data-private/file", "field")


def test_a_link_that_is_put_there_after_the_path_was_checked_opens_nothing(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "link").symlink_to(tmp_path / "secret")
    monkeypatch.setattr(os.path, "realpath", lambda path: os.path.abspath(path))
    with pytest.raises(RejectedByWorker, match="cannot open"):
        DataRoot(root).open("link", "field")


@pytest.mark.parametrize("kind", ["missing", "directory", "pipe"])
def test_what_is_no_regular_file_is_refused_at_once(root: Path, kind: str) -> None:
    if kind == "pipe":
        os.mkfifo(root / kind)
    if kind == "directory":
        (root / kind).mkdir()
    with pytest.raises(RejectedByWorker, match=f"cannot open '{kind}'"):
        DataRoot(root).open(kind, "field")


@pytest.mark.parametrize(("ref", "args"), [("cifar10", {}), ("npz", {}), ("safetensors", {})])
def test_without_a_directory_the_operator_is_to_be_asked(ref: str, args: dict[str, Any]) -> None:
    with pytest.raises(RejectedByWorker, match=r"program\.data\.args\.path: .*ask the operator to set SHARDYARD_DATA"):
        data_of(None, ref, path="x", **args)


# -- npz and safetensors ---------------------------------------------------------------------------


def write_arrays(root: Path, **arrays: Any) -> None:
    np.savez(root / "rows.npz", **arrays)
    save_file({name: torch.from_numpy(np.asarray(array)) for name, array in arrays.items()}, root / "rows.safetensors")


FORMATS = ["npz", "safetensors"]


@pytest.mark.parametrize("ref", FORMATS)
def test_arrays_are_read_row_by_row_by_their_names(root: Path, ref: str) -> None:
    write_arrays(root, x=np.arange(6.0).reshape(3, 2), y=np.array([2, 1, 0], dtype=np.int8))
    data = data_of(root, ref, path=f"rows.{ref}", input="x", target="y")
    inputs, target = data[1]
    assert len(data) == 3
    assert (inputs.tolist(), inputs.dtype) == ([2.0, 3.0], torch.float32)
    assert (target.item(), target.dtype) == (1, torch.int64)


@pytest.mark.parametrize("ref", FORMATS)
def test_rows_without_a_target_are_the_input_alone(root: Path, ref: str) -> None:
    write_arrays(root, input=np.ones((4, 5), dtype=np.float16))
    assert data_of(root, ref, path=f"rows.{ref}", target=None)[0].tolist() == [1.0] * 5


@pytest.mark.parametrize("ref", FORMATS)
def test_rows_without_a_target_can_be_looked_at_but_not_learned_from(root: Path, ref: str) -> None:
    write_arrays(root, input=np.ones((40, 5)))
    data = {"ref": ref, "args": {"path": f"rows.{ref}", "target": None}, "batch_size": 30}
    report = report_here(spec_of({**FORWARD, "data": data}, devices=3, strategy="dp"), data_root=root)
    assert [(pattern.rows, pattern.steps) for pattern in report.patterns] == [((10, 10, 10), 1), ((4, 4, 2), 1)]
    assert report.prediction.matches  # the number of rows came with the run
    with pytest.raises(RejectedByWorker, match="yields no target, which loss 'cross_entropy' needs"):
        run_spec(spec_of({**VECTORS, "data": data}), data_root=root)


@pytest.mark.parametrize("ref", FORMATS)
@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"input": "x", "target": "z"}, "program.data.args.target: rows.* has no array 'z'; it has short, x"),
        ({"input": "x", "target": "short"}, "'short' has 2 rows, but 'x' has 3"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_by_name(root: Path, ref: str, args: dict[str, Any], message: str) -> None:
    write_arrays(root, x=np.ones((3, 2)), short=np.ones(2))
    with pytest.raises(RejectedByWorker, match=message):
        data_of(root, ref, path=f"rows.{ref}", **args)


@pytest.mark.parametrize("ref", FORMATS)
@pytest.mark.parametrize("content", [b"", b"nonsense", b"PK\x03\x04", b"\xff" * 64])
def test_files_of_another_kind_are_refused(root: Path, ref: str, content: bytes) -> None:
    (root / "bad").write_bytes(content)
    with pytest.raises(RejectedByWorker, match=f"not usable as {ref}"):
        data_of(root, ref, path="bad")


def test_an_npz_that_holds_objects_is_refused_and_runs_nothing(root: Path) -> None:
    np.savez(root / "rows.npz", input=np.array([Bomb()], dtype=object))
    with pytest.raises(RejectedByWorker, match="not usable as npz"):
        data_of(root, "npz", path="rows.npz", target=None)
    assert not Bomb.went_off


def test_a_job_trains_on_a_file(root: Path) -> None:
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((60, 5)).astype(np.float32)
    write_arrays(root, input=vectors, target=(vectors[:, 0] > 0).astype(np.int64))
    data = {"ref": "safetensors", "args": {"path": "rows.safetensors"}, "batch_size": 20}
    result, _ = run_spec(spec_of({**VECTORS, "data": data, "epochs": 20}, devices=2, strategy="dp"), data_root=root)
    assert result.loss is not None
    assert result.loss < 0.4


# -- cifar10 ---------------------------------------------------------------------------------------


@pytest.fixture
def cifar(tmp_path: Path) -> Path:
    make_small_cifar(tmp_path)
    return tmp_path


@pytest.mark.parametrize("folder", [BINARY, PYTHON])
def test_both_formats_give_the_same_images(cifar: Path, folder: str) -> None:
    data = data_of(cifar, "cifar10", path=folder)
    image, _ = data[7]
    assert (len(data), image.shape, image.dtype) == (200, (3, 32, 32), torch.float32)
    assert -1 <= image.min() < 0 < image.max() <= 1
    other = data_of(cifar, "cifar10", path=BINARY)
    assert all(torch.equal(data[row][0], other[row][0]) and data[row][1] == other[row][1] for row in range(200))
    assert len(data_of(cifar, "cifar10", path=folder, split="test")) == 40


def test_the_directory_that_holds_the_unpacked_archive_will_do(cifar: Path) -> None:
    assert len(data_of(cifar, "cifar10", path=".")) == 200


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_batches_that_python_3_pickled_are_read_too(cifar: Path, protocol: int) -> None:
    for name in cifar10.BATCHES["train"]:
        path = cifar / PYTHON / name
        images, labels = cifar10._read_pickled(io.BytesIO(path.read_bytes()))
        path.write_bytes(pickle.dumps({b"data": images, b"labels": labels.tolist()}, protocol))
    data, other = data_of(cifar, "cifar10", path=PYTHON), data_of(cifar, "cifar10", path=BINARY)
    assert torch.equal(data[11][0], other[11][0])


def test_a_directory_without_it_says_what_is_expected(root: Path) -> None:
    with pytest.raises(RejectedByWorker, match=r"holds no CIFAR-10; expected data_batch_1\.bin"):
        data_of(root, "cifar10", path="inner")


class Bomb:
    """Goes off when it is unpickled."""

    went_off = False

    def __reduce__(self) -> Any:
        return _explode, ()


def _explode() -> None:
    Bomb.went_off = True


def batch(**changes: Any) -> dict[str, Any]:
    return {"data": np.zeros((2, 3072), dtype=np.uint8), "labels": [1, 2]} | changes


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps(Bomb()), "only arrays are admitted"),
        (pickle.dumps(batch(extra=Bomb())), "only arrays are admitted"),
        (pickle.dumps(batch(data=np.array([Bomb()], dtype=object))), "only arrays are admitted"),
        (b"cos\nsystem\n(S'touch /tmp/x'\ntR.", "it asks for os.system"),
        (b"cbuiltins\neval\n(S'1'\ntR.", "it asks for builtins.eval"),
        (b"cnumpy\nload\n(S'/etc/passwd'\ntR.", "it asks for numpy.load"),
        (b"\x80\x04\x8c\x05numpy\x8c\x10ndarray.__init__\x93.", "only arrays are admitted"),
        (b"c_codecs\nencode\n(S'x'\nS'rot13'\ntR.", "only bytes may be encoded"),
        (pickle.dumps([1, 2]), "it holds a list, not a dict"),
        (pickle.dumps(batch(data=b"x")), "is not a batch"),
        (pickle.dumps(batch(data=np.zeros((2, 3072)))), "its data are not rows of bytes"),
        (pickle.dumps(batch(data=np.zeros((2, 7), dtype=np.uint8))), "2 labels, but images of shape"),
        (pickle.dumps(batch(labels=[1, 10])), "whole numbers from 0 to 9"),
        (pickle.dumps(batch(labels=[1, "2"])), "whole numbers from 0 to 9"),
        (pickle.dumps({"labels": []}), "is not a batch"),
        (pickled_by_python_2(np.zeros((2, 3072), dtype=np.uint8), [1, 2])[:-20], "is not a batch"),
        (b"", "is not a batch"),
        (b"\x80", "is not a batch"),
    ],
)
def test_a_pickle_is_read_as_data_or_refused_and_never_run(cifar: Path, content: bytes, message: str) -> None:
    (cifar / PYTHON / "test_batch").write_bytes(content)
    with pytest.raises(RejectedByWorker, match=message):
        data_of(cifar, "cifar10", path=PYTHON, split="test")
    assert not Bomb.went_off


@pytest.mark.parametrize("content", [b"", b"x" * 3072, b"\x0b" + b"x" * 3072])
def test_a_damaged_binary_batch_is_refused(cifar: Path, content: bytes) -> None:
    (cifar / BINARY / "test_batch.bin").write_bytes(content)
    with pytest.raises(RejectedByWorker, match=r"test_batch\.bin is not a batch of CIFAR-10"):
        data_of(cifar, "cifar10", path=BINARY, split="test")


# -- at submit -------------------------------------------------------------------------------------


@pytest.mark.parametrize("ref", ["cifar10", *FORMATS])
def test_the_rows_of_a_file_are_not_known_to_the_api(ref: str) -> None:
    assert catalogue.dataset_rows(ComponentSpec(ref=ref, args={"path": "x"})) is None


def test_a_loss_with_a_target_is_refused_at_submit_for_arrays_that_name_none() -> None:
    data = {"ref": "npz", "args": {"path": "x", "target": None}}
    (error,) = catalogue.check(spec_of({**VECTORS, "data": data}))
    assert error.field == "program.data.args.target"
    assert catalogue.check(spec_of({**VECTORS, "data": {"ref": "npz", "args": {"path": "x"}}})) == []
