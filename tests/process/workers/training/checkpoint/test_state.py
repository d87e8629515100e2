"""A run that was broken off goes on from its checkpoint, and ends as a run that never was, bit for bit."""

import errno
import hashlib
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, load_model

from jobs.protocol.packets import AnyRecord
from jobs.protocol.records import Paused, Saved, Step
from tests.support.disks import largest_file
from tests.support.samples.saved_parts import Tied
from tests.support.samples.saved_runs import Attempts, attempts, flat, is_metric, is_saved, is_step, seen, splits
from tests.support.training_runs import VECTORS, Kept, context_of, run_here, spec_of
from workers.probe.clock import CLOCKS, DeviceClock
from workers.runtime.commands import CONTINUE, LEAVE, SAVE
from workers.runtime.context import CheckpointAccess, RejectedByWorker, StopTraining
from workers.training import entry
from workers.training.checkpoint import files
from workers.training.checkpoint import state as checkpoint
from workers.training.recipes import optim

PARTS = "tests.support.samples.saved_parts"
SMALL: dict[str, Any] = {
    "model": {"ref": "mlp", "args": {"in_features": 5, "hidden": [7], "out_features": 2, "dropout": 0.3}},
    "data": {
        "ref": "random_vectors",
        "args": {"rows": 50, "features": 5},
        "batch_size": 13,
        "shuffle": True,
    },  # 4 steps
    "loss": {"ref": "cross_entropy"},
    "optimizer": {"ref": "adam", "args": {"lr": 0.01}},
    "evaluate": {"data": {"ref": "random_vectors", "args": {"rows": 30, "features": 5}, "batch_size": 15}},  # 2 batches
    "epochs": 3,
}


def data(**changes: Any) -> dict[str, Any]:
    usual = {"ref": "random_vectors", "args": {"rows": 50, "features": 5}, "batch_size": 8, "shuffle": True}
    return {"data": usual | changes}


def own(data_set: str, **changes: Any) -> dict[str, Any]:
    return {"data": {"ref": f"{PARTS}:{data_set}", "batch_size": 8} | changes}


def vectors(**changes: Any) -> dict[str, Any]:
    return {**VECTORS, **data(), "epochs": 3} | changes  # 7 steps an epoch, the last of 2 rows


def assert_same(broken: Attempts, whole: Attempts) -> None:
    assert seen(broken.records) == seen(whole.records)
    assert splits(broken.records) == splits(whole.records)
    assert broken.result == whole.result
    assert flat(broken.weights) == flat(whole.weights)
    assert flat(broken.state) == flat(whole.state)


# -- broken off anywhere ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dies", "step"),
    [
        (is_step("train", 3), 0),  # before the first checkpoint
        (is_saved(5), 0),  # written, and not taken over
        (is_step("train", 5), 5),  # within an epoch
        (is_step("train", 6), 5),
        (is_step("eval", 2), 5),  # within an evaluation
        (is_metric("accuracy", 7), 5),  # after it
        (is_step("train", 8), 5),  # in the first step of an epoch
        (is_step("train", 11), 10),  # after the last step
        (is_step("eval", 5), 10),
        (is_saved(12), 10),
    ],
)
@pytest.mark.parametrize("parallelism", [{}, {"devices": 3, "strategy": "dp"}], ids=["single", "dp"])
def test_a_run_that_is_killed_anywhere_ends_as_one_that_never_was(
    dies: Callable[[AnyRecord], bool], step: int, parallelism: dict[str, Any], tmp_path: Path
) -> None:
    whole = attempts(tmp_path, SMALL, 5, **parallelism).go()
    broken = attempts(tmp_path, SMALL, 5, **parallelism).go(dies)
    assert [saved.step for saved in broken.saved][-1:] == ([step] if step else [])
    assert_same(broken.go(), whole)
    assert [saved.step for saved in broken.saved] == [5, 10, 12]


@pytest.mark.parametrize("dies", [is_step("train", 4), is_step("eval", 1), is_metric("accuracy", 3)])
def test_a_checkpoint_at_the_last_step_of_an_epoch_comes_before_the_evaluation(
    dies: Callable[[AnyRecord], bool], tmp_path: Path
) -> None:
    whole, broken = attempts(tmp_path, SMALL, 4).go(), attempts(tmp_path, SMALL, 4).go(dies)
    assert [saved.step for saved in broken.saved] == [4]
    assert_same(broken.go(), whole)
    assert [saved.step for saved in broken.saved] == [4, 8, 12]


def test_a_run_that_is_killed_again_and_again_ends_as_one_that_never_was(tmp_path: Path) -> None:
    whole, broken = attempts(tmp_path, SMALL, 1).go(), attempts(tmp_path, SMALL, 1)
    for step in range(1, 12):
        broken.go(is_step("train", step))
    assert_same(broken.go(), whole)
    assert [saved.step for saved in broken.saved] == list(range(1, 13))


def test_a_run_that_had_ended_and_could_not_say_so_says_what_it_would_have_said(tmp_path: Path) -> None:
    for every in (5, 12):
        whole = attempts(tmp_path, SMALL, every).go()
        cut = next(i for i, record in enumerate(whole.records) if isinstance(record, Saved) and record.step == 12)
        again = Attempts(whole.spec, whole.drafts, whole.records[: cut + 1], list(whole.saved)).go()
        assert_same(again, whole)
        assert [saved.step for saved in again.saved].count(12) == 1


def test_the_report_is_that_of_a_run_that_was_never_stopped(tmp_path: Path) -> None:
    whole = attempts(tmp_path, SMALL, 5, devices=3, strategy="dp").go().report()
    broken = attempts(tmp_path, SMALL, 5, devices=3, strategy="dp").go(is_step("train", 6)).go().report()
    assert broken.patterns == whole.patterns
    assert [device.rows for device in broken.per_device] == [device.rows for device in whole.per_device]
    assert broken.prediction == whole.prediction
    assert broken.prediction.matches


def test_checkpoints_change_nothing_in_a_run(tmp_path: Path) -> None:
    result, sink = run_here(SMALL)
    saving = attempts(tmp_path, SMALL, 1).go()
    assert saving.result == result
    assert seen(saving.records) == seen(sink.records)


# -- whatever the program ---------------------------------------------------------------------------

EMBEDDED = {"ref": "embedding_rnn", "args": {"out_features": 2}}

PROGRAMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "drop_last": (vectors(**data(drop_last=True)), {}),
    "in order": (vectors(**data(shuffle=False)), {}),
    "workers": (vectors(**data(num_workers=2)), {}),
    "accumulated": (vectors(accumulate_steps=3, clip_grad_norm=0.5), {}),
    "accumulated on devices": (vectors(accumulate_steps=3), {"devices": 2, "strategy": "dp"}),
    "max_steps": (vectors(max_steps=17), {}),
    "bfloat16": (vectors(precision="bfloat16", optimizer={"ref": "adamw"}), {}),
    "scheduler each step": (
        vectors(scheduler={"ref": "one_cycle_lr", "args": {"max_lr": 0.1, "total_steps": 30}, "every": "step"}),
        {},
    ),
    "scheduler each epoch": (vectors(scheduler={"ref": "multi_step_lr", "args": {"milestones": [1, 2]}}), {}),
    "all kinds of state": (vectors(model={"ref": f"{PARTS}:Counting"}, scheduler={"ref": f"{PARTS}:Warmup"}), {}),
    "a model in bfloat16": (vectors(model={"ref": f"{PARTS}:Half"}, optimizer={"ref": "nadam"}), {}),
    "placed": (vectors(model=EMBEDDED), {"devices": 2, "placement": {"embedding": "cpu", "rnn": 1}}),
    "a block on devices": (
        vectors(model={"ref": "two_block", "args": {"in_features": 5, "out_features": 2}}),
        {"devices": 2, "strategy": "dp", "module": "block2"},
    ),
    "rows drawn anew": (vectors(**own("Noisy", shuffle=True)), {}),
    "rows drawn anew by workers": (vectors(**own("Noisy", shuffle=True, num_workers=2)), {}),
    "evaluated on rows drawn anew by workers": (
        vectors(evaluate={"data": {"ref": f"{PARTS}:Noisy", "num_workers": 1}}),
        {},
    ),
    "a stream": (vectors(**own("Stream")), {}),
    "an endless stream of a worker": (vectors(**own("Endless", num_workers=1), epochs=1, max_steps=17), {}),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_run_goes_on_bit_for_bit_whatever_the_program(name: str, tmp_path: Path) -> None:
    program, parallelism = PROGRAMS[name]
    accumulated = program.get("accumulate_steps", 1)
    every, dies = (2, 4) if accumulated > 1 else (6, 12)
    whole = attempts(tmp_path, program, every, **parallelism).go()
    broken = attempts(tmp_path, program, every, **parallelism).go(is_step("train", dies))
    assert broken.saved[-1].step == dies // every * every
    assert_same(broken.go(), whole)


@pytest.mark.parametrize("name", sorted(set(optim.OPTIMIZERS) - {"sparse_adam"}))  # it needs sparse gradients
def test_every_optimizer_goes_on_bit_for_bit(name: str, tmp_path: Path) -> None:
    model = {"ref": "linear", "args": {"in_features": 5, "out_features": 2, "bias": name != "muon"}}
    program = vectors(model=model, optimizer={"ref": name}, epochs=1)
    whole = attempts(tmp_path, program, 3).go()
    assert_same(attempts(tmp_path, program, 3).go(is_step("train", 4)).go(), whole)


SCHEDULERS: dict[str, dict[str, Any]] = {
    "multi_step_lr": {"milestones": [2, 4]},
    "step_lr": {"step_size": 2},
    "exponential_lr": {"gamma": 0.9},
    "cosine_annealing_lr": {"T_max": 5},
    "cosine_annealing_warm_restarts": {"T_0": 3},
    "cyclic_lr": {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 2},
    "one_cycle_lr": {"max_lr": 0.1, "total_steps": 10},
}


@pytest.mark.parametrize("name", optim.SCHEDULERS)
def test_every_scheduler_goes_on_bit_for_bit(name: str, tmp_path: Path) -> None:
    scheduler = {"ref": name, "args": SCHEDULERS.get(name, {}), "every": "step"}
    program = vectors(scheduler=scheduler, optimizer={"ref": "sgd", "args": {"lr": 0.1, "momentum": 0.9}}, epochs=1)
    whole = attempts(tmp_path, program, 3).go()
    assert_same(attempts(tmp_path, program, 3).go(is_step("train", 4)).go(), whole)


# -- told to stop -----------------------------------------------------------------------------------


class Stop:
    """SIGTERM comes during a step; from then on the supervisor says `words`, one after the other."""

    def __init__(self, step: int, *words: bytes) -> None:
        self._step, self._words = step, list(words)
        self.answered: list[tuple[str, int]] = []
        self.told = False

    def go(self, run: Attempts) -> Attempts:
        return run.go(self._comes, self._word, stopping=lambda: self.told)

    def _comes(self, record: AnyRecord) -> bool:
        self.told = self.told or is_step("train", self._step)(record)
        return False

    def _word(self, record: AnyRecord) -> bytes:
        if not self.told:
            return CONTINUE
        assert isinstance(record, Saved | Paused)
        self.answered.append((type(record).__name__, record.step))
        return self._words.pop(0)


def test_a_run_that_is_told_to_stop_pauses_saves_and_leaves(tmp_path: Path) -> None:
    whole, broken = attempts(tmp_path, SMALL, 50).go(), attempts(tmp_path, SMALL, 50)
    stop = Stop(5, SAVE, LEAVE)
    stop.go(broken)
    assert stop.answered == [("Paused", 6), ("Saved", 6)]
    assert broken.result is None
    assert_same(broken.go(), whole)


def test_a_paused_run_takes_one_more_step_at_a_time(tmp_path: Path) -> None:
    whole, broken = attempts(tmp_path, SMALL, 50).go(), attempts(tmp_path, SMALL, 50)
    stop = Stop(2, CONTINUE, CONTINUE, SAVE, LEAVE)  # over the end of an epoch
    stop.go(broken)
    assert stop.answered == [("Paused", 3), ("Paused", 4), ("Paused", 5), ("Saved", 5)]
    assert_same(broken.go(), whole)


def test_a_run_that_is_told_to_leave_saves_nothing(tmp_path: Path) -> None:
    for word in (LEAVE, b""):
        broken, stop = attempts(tmp_path, SMALL, 50), Stop(5, word)
        stop.go(broken)
        assert stop.answered == [("Paused", 6)]
        assert broken.saved == []
        assert list(broken.drafts.iterdir()) == []


def test_a_save_that_is_due_comes_before_the_pause(tmp_path: Path) -> None:
    stop = Stop(5, CONTINUE, LEAVE)
    stop.go(attempts(tmp_path, SMALL, 6))
    assert stop.answered == [("Saved", 6), ("Paused", 6)]


def test_a_run_that_was_saved_in_a_pause_after_its_last_step_evaluates_and_ends(tmp_path: Path) -> None:
    whole, broken = attempts(tmp_path, SMALL, 50).go(), attempts(tmp_path, SMALL, 50)
    Stop(11, SAVE, LEAVE).go(broken)
    assert seen(broken.go().records) == seen(whole.records)
    assert flat(broken.weights) == flat(whole.weights)
    assert [saved.step for saved in broken.saved] == [12]


def test_a_run_that_is_paused_after_its_last_step_may_end(tmp_path: Path) -> None:
    whole, broken, stop = (
        attempts(tmp_path, SMALL, 50).go(),
        attempts(tmp_path, SMALL, 50),
        Stop(11, CONTINUE, CONTINUE),
    )
    assert_same(stop.go(broken), whole)
    assert stop.answered == [("Paused", 12), ("Saved", 12)]


def test_a_run_that_is_told_to_stop_while_it_goes_back_leaves_at_once(tmp_path: Path) -> None:
    program = vectors(**own("Stream"))
    broken = attempts(tmp_path, program, 3).go(is_step("train", 4))
    told = iter([False, True])
    before = seen(broken.records)
    broken.go(stopping=lambda: next(told))
    assert seen(broken.records) == before


def test_without_checkpoints_a_run_that_is_told_to_stop_ends_after_its_step() -> None:
    sink = Kept()
    with pytest.raises(StopTraining, match="after step 2"):
        entry.run_recipe(spec_of(SMALL), context_of(1, sink, stopping=lambda: len(sink.of(Step)) == 3))


def test_every_step_before_a_checkpoint_has_been_sent_however_late_its_times_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = DeviceClock(
        lambda index: time.perf_counter(), lambda begin, end: end - begin, lambda mark: False, lambda mark: None
    )
    monkeypatch.setitem(CLOCKS, "cpu", late)
    records = attempts(tmp_path, SMALL, 5).go().records
    assert [len([r for r in records[:n] if is_train_step(r)]) for n in saves(records)] == [5, 10, 12]


def is_train_step(record: AnyRecord) -> bool:
    return isinstance(record, Step) and record.phase == "train"


def saves(records: list[AnyRecord]) -> list[int]:
    return [place for place, record in enumerate(records) if isinstance(record, Saved)]


# -- what is on the disk ----------------------------------------------------------------------------


def saved_run(tmp_path: Path, program: dict[str, Any], every: int = 3, **parallelism: Any) -> tuple[Attempts, Path]:
    run = attempts(tmp_path, program, every, **parallelism).go(is_step("train", every))
    return run, run.drafts / str(every)


def test_files_are_as_long_as_said_have_the_hash_that_is_said_and_nothing_else_is_there(tmp_path: Path) -> None:
    run, directory = saved_run(tmp_path, SMALL)
    (saved,) = run.saved
    assert (saved.rank, saved.step, saved.epoch, saved.error) == (0, 3, 0, "")
    assert [file.name for file in saved.files] == ["model.safetensors", "rank-0.pt"]
    assert sorted(path.name for path in directory.iterdir()) == ["model.safetensors", "rank-0.pt"]
    for file in saved.files:
        contents = (directory / file.name).read_bytes()
        assert (file.bytes, file.sha256) == (len(contents), hashlib.sha256(contents).hexdigest())
        assert (directory / file.name).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("parallelism", [{}, {"devices": 2, "strategy": "dp"}, {"strategy": "dp", "module": "3"}])
def test_the_weights_fit_the_model_as_people_have_it(parallelism: dict[str, Any], tmp_path: Path) -> None:
    _, directory = saved_run(tmp_path, SMALL, **parallelism)
    plain = entry.build_model(spec_of(SMALL).recipe.model)
    assert plain.load_state_dict(load_file(directory / "model.safetensors"), strict=True)


def test_a_tensor_with_two_names_is_written_once_and_read_for_both(tmp_path: Path) -> None:
    _, directory = saved_run(tmp_path, vectors(model={"ref": f"{PARTS}:Tied"}))
    names = load_file(directory / "model.safetensors")
    assert sorted(names) == ["first.bias", "first.weight", "head.bias", "head.weight", "tied.bias"]
    model = Tied()
    missing, unexpected = load_model(model, directory / "model.safetensors", strict=True)
    assert not missing
    assert not unexpected
    assert torch.equal(model.tied.weight, names["first.weight"])


@pytest.mark.parametrize(
    "dtype", [dtype for dtype in files.NAMES if dtype not in (torch.float8_e4m3fn, torch.float8_e5m2)]
)
def test_tensors_of_every_type_are_read_by_the_library_as_they_were(dtype: torch.dtype, tmp_path: Path) -> None:
    tensors = {
        "byte": torch.arange(3, dtype=torch.uint8),
        "some": torch.arange(6).reshape(2, 3).to(dtype),
        "turned": torch.arange(6).reshape(2, 3).to(dtype).t(),
        "none": torch.zeros(0, 4).to(dtype),
        "one": torch.tensor(1).to(dtype),
    }
    with files.open_draft(tmp_path, 1) as draft:
        draft.write("a.safetensors", lambda sheet: files.write_tensors(sheet, tensors))
    read = load_file(tmp_path / "1" / "a.safetensors")
    assert sorted(read) == sorted(tensors)
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor)


def test_a_file_is_on_the_disk_before_it_has_its_name_and_the_name_before_it_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    sync, rename = os.fsync, os.rename

    def noted_sync(fd: int) -> None:
        done.append(f"sync {Path(os.readlink(f'/proc/self/fd/{fd}')).name}")
        sync(fd)

    def noted_rename(old: str, new: str, **options: Any) -> None:
        done.append(f"{old} becomes {new}")
        rename(old, new, **options)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(os, "rename", noted_rename)
    saved_run(tmp_path, SMALL)
    assert done == [
        "sync .model.safetensors.part",
        ".model.safetensors.part becomes model.safetensors",
        "sync .rank-0.pt.part",
        ".rank-0.pt.part becomes rank-0.pt",
        "sync 3",
    ]


def test_a_link_in_the_place_of_a_draft_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "3").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="3"), files.open_draft(tmp_path, 3):
        pass
    link = tmp_path / "drafts"
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="drafts"), files.open_draft(link, 3):
        pass
    assert list((tmp_path / "elsewhere").iterdir()) == []


def write_new(sheet: files.HashingFile) -> None:
    sheet.write(b"new")


def test_a_link_in_the_place_of_a_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    for name in ("a", ".a.part"):
        (tmp_path / "1" / name).symlink_to(tmp_path / "other")
    with files.open_draft(tmp_path, 1) as draft:
        draft.write("a", write_new)
    assert not (tmp_path / "other").exists()
    assert (tmp_path / "1" / "a").read_bytes() == b"new"


# -- what cannot be written -------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "left"), [(100, []), (2_000, ["model.safetensors"])])  # in the weights; in the rest
def test_a_run_that_cannot_save_says_so_and_trains_on(size: int, left: list[str], tmp_path: Path) -> None:
    whole, run = attempts(tmp_path, SMALL, 5).go(), attempts(tmp_path, SMALL, 5)
    with largest_file(size):
        run.go()
    assert [(saved.step, saved.files, saved.error) for saved in run.records if isinstance(saved, Saved)] == [
        (step, (), f"OSError: [Errno {errno.EFBIG}] File too large") for step in (5, 10, 12)
    ]
    assert [path.name for path in (run.drafts / "5").iterdir()] == left
    assert seen(run.records) == seen(whole.records)


def test_a_disk_that_fails_to_sync_is_an_error_of_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    run = attempts(tmp_path, SMALL, 5)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        run.go()
    assert {saved.error for saved in run.records if isinstance(saved, Saved)} == {
        "OSError: [Errno 5] Input/output error"
    }
    assert list((run.drafts / "5").iterdir()) == []
    assert run.result is not None


def test_a_draft_directory_that_is_gone_is_an_error_of_each_checkpoint_and_not_of_the_run(tmp_path: Path) -> None:
    whole, run = attempts(tmp_path, SMALL, 5).go(), attempts(tmp_path, SMALL, 5)
    run.drafts.rmdir()
    run.go()
    assert run.saved == []
    errors = [record.error for record in run.records if isinstance(record, Saved)]
    assert len(errors) == 3
    assert all("No such file or directory" in error for error in errors)
    assert seen(run.records) == seen(whole.records)


def test_a_state_that_only_pickle_could_write_is_an_error_of_each_checkpoint(tmp_path: Path) -> None:
    run = attempts(tmp_path, vectors(model={"ref": f"{PARTS}:Secretive"}, epochs=1), 3).go()
    (first, *_) = [record.error for record in run.records if isinstance(record, Saved)]
    assert "_extra_state" in first
    assert "holds a method, which cannot be saved without pickle" in first
    assert run.result is not None


def test_a_model_that_raises_when_it_is_saved_stays_on_its_devices(tmp_path: Path) -> None:
    program = vectors(model={"ref": f"{PARTS}:Failing"})
    parallelism: dict[str, Any] = {"devices": 2, "strategy": "dp", "module": "layer"}
    _, plain = run_here(program, **parallelism)
    run = attempts(tmp_path, program, 3, **parallelism).go()
    assert {saved.error for saved in run.records if isinstance(saved, Saved)} == {"RuntimeError: no state today"}
    assert seen(run.records) == seen(list(plain.records))
    assert splits(run.records) == splits(list(plain.records))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"optimizer": {"ref": f"{PARTS}:Stateless"}}, "optimizer is a Stateless, which has no state_dict"),
        ({"optimizer": {"ref": f"{PARTS}:Remembering"}}, "holds a builtin_function_or_method, which cannot be saved"),
    ],
)
def test_a_part_whose_state_cannot_be_saved_is_rejected_before_training(
    change: dict[str, Any], says: str, tmp_path: Path
) -> None:
    run_here(vectors(**change, epochs=1))  # it is fine without checkpoints
    with pytest.raises(RejectedByWorker, match=says):
        attempts(tmp_path, vectors(**change), 3).go()


# -- what cannot be read ----------------------------------------------------------------------------


DAMAGED = r"rank-0.pt of the checkpoint cannot be read: it is damaged, or holds what only pickle can read"


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, made: Path) -> None:
        self._made = made

    def __reduce__(self) -> Any:
        return Path.touch, (self._made,)


def test_a_torch_file_with_something_to_run_in_it_is_refused(tmp_path: Path) -> None:
    run, directory = saved_run(tmp_path, SMALL)
    state = torch.load(directory / "rank-0.pt", weights_only=True)
    torch.save(state | {"extra": Payload(tmp_path / "made")}, directory / "rank-0.pt")
    with pytest.raises(checkpoint.Unreadable, match=DAMAGED):
        run.go()
    (directory / "rank-0.pt").write_bytes(pickle.dumps(Payload(tmp_path / "made"), protocol=2))
    with pytest.raises(checkpoint.Unreadable, match=DAMAGED):
        run.go()
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "rank-0.pt"])
@pytest.mark.parametrize("kept", [0.0, 0.001, 0.5, 0.999])
def test_a_file_that_was_cut_off_is_named(name: str, kept: float, tmp_path: Path) -> None:
    run, directory = saved_run(tmp_path, SMALL)
    contents = (directory / name).read_bytes()
    (directory / name).write_bytes(contents[: int(len(contents) * kept)])
    with pytest.raises(checkpoint.Unreadable, match=f"{name} of the checkpoint cannot be read"):
        run.go()


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    for name in ("model.safetensors", "rank-0.pt"):
        run, directory = saved_run(tmp_path, SMALL)
        (directory / name).unlink()
        with pytest.raises(checkpoint.Unreadable, match=f"{name} of the checkpoint cannot be read: .*No such file"):
            run.go()


def test_a_checkpoint_of_another_model_is_refused_with_the_reason(tmp_path: Path) -> None:
    _, directory = saved_run(tmp_path, SMALL)
    other = {**SMALL, "model": {"ref": "mlp", "args": {"in_features": 5, "out_features": 3}}}
    context = context_of(1, Kept(), checkpoints=CheckpointAccess(tmp_path, directory, lambda: CONTINUE))
    spec = spec_of({**other, "checkpoint": {"every_steps": 3}})
    with pytest.raises(checkpoint.Unreadable, match=r"step 3 does not fit the run: .*size mismatch for 1.weight"):
        entry.run_recipe(spec, context)


@pytest.mark.parametrize("change", [{"world_size": 2}, {"rank": 1}, {"format": 2}, {"holds": "shard"}])
def test_a_checkpoint_of_another_rank_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    run, directory = saved_run(tmp_path, SMALL)
    state = torch.load(directory / "rank-0.pt", weights_only=True)
    torch.save(state | change, directory / "rank-0.pt")
    with pytest.raises(checkpoint.Unreadable, match=r"saved by rank|has a shard of the model"):
        run.go()
