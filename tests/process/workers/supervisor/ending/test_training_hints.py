"""Errors of training on several devices, raised by torch, and what the user is told about each."""

import re
from dataclasses import replace

import pytest

from jobs.protocol.records import Outcome
from tests.support.samples.failing_scripts import CPU, Fail
from workers.supervisor.ending.error_hints import explain_death, explain_error
from workers.supervisor.ending.hint_rules import FailureContext
from workers.supervisor.ending.training_hints import may_have_lost_peer

CUDA = replace(CPU, device_kind="cuda")
SCRIPT = replace(CPU, strategy="ddp")
RECIPE = replace(SCRIPT, is_script=False, brings_code=False)

ONE_ROW = "import torch\ntorch.nn.BatchNorm1d(3)(torch.zeros(1, 3))"

HALF_USED = """
import torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    def forward(self, rows):
        return self.used(rows)
model = torch.nn.parallel.DistributedDataParallel(Net())
for _ in range(2):
    model(torch.zeros(4, 3)).sum().backward()
"""

LEFT_ALONE = """
import datetime, os, time, torch, torch.distributed as dist
rank = 0 if os.fork() else 1
second = datetime.timedelta(seconds=1)
dist.init_process_group("gloo", store=dist.FileStore("store", 2), rank=rank, world_size=2, timeout=second)
if rank == 1:
    time.sleep(3)
    os._exit(0)
dist.all_reduce(torch.ones(4))
"""

REHEARSED = """
import torch
from workers.rehearsal import install
install.install(2, 0, 1)
class Net(torch.nn.Module):
    def forward(self, rows):
        return {}
torch.nn.DataParallel(Net()).cuda()(torch.ones(3, 4).cuda())
"""

REAL: dict[str, tuple[str, str, str]] = {
    "a batch of one row": (
        ONE_ROW,
        "single row, for which BatchNorm.*drop_last=True to the DataLoader",
        "single row, for which BatchNorm.*set program.data.drop_last to true",
    ),
    "parameters without a gradient": (
        HALF_USED,
        "^The parameters number 2, 3 of the model had no part in the loss.*find_unused_parameters=True",
        "^The parameters number 2, 3 of the model.*requires_grad = False",
    ),
    "a collective that a rank does not call": (
        LEFT_ALONE,
        "^A collective was given up.*Every rank must call the same collectives",
        "^A collective was given up.*Every rank must call the same collectives",
    ),
    "outputs of different lengths": (
        REHEARSED.format("rows[:, : len(rows)]"),
        "all their other dimensions must be equal: pad",
        "all their other dimensions must be equal: pad",
    ),
    "a scalar beside a vector": (
        REHEARSED.format("rows.sum() if len(rows) == 1 else rows.sum(1)"),
        "has no dimension: return a value for each row",
        "has no dimension: return a value for each row",
    ),
    "outputs with another number of dimensions": (
        REHEARSED.format("rows.squeeze(0)"),
        "do not squeeze away the batch of a device that got one row",
        "do not squeeze away the batch of a device that got one row",
    ),
}


@pytest.mark.parametrize(("script", "of_script", "of_recipe"), REAL.values(), ids=REAL.keys())
def test_an_error_of_torch_comes_with_what_to_do(script: str, of_script: str, of_recipe: str, fail: Fail) -> None:
    failure = fail(script)
    assert re.search(of_script, failure.advice(SCRIPT)), failure
    assert re.search(of_recipe, failure.advice(RECIPE)), failure


# These need GPUs: the words are those of torch and NCCL, as users have reported them.
REPORTED = {
    "outputs of different lengths on GPUs": (
        "RuntimeError: Input tensor at index 1 has invalid shape [1, 3085, 8, 10], but expected [1, 3085, 9, 10]",
        "all their other dimensions must be equal: pad",
    ),
    "the same of an earlier version": (
        "RuntimeError: Gather got an input of invalid size: got [1, 230], but expected [1, 231]",
        "all their other dimensions must be equal: pad",
    ),
    "a forked process": (
        "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use",
        r'multiprocessing.set_start_method\("spawn"\).*in the training loop',
    ),
    "memory": ("OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.", "^The GPU's memory ran out"),
}


@pytest.mark.parametrize(("message", "words"), REPORTED.values(), ids=REPORTED.keys())
def test_errors_that_only_gpus_raise_are_recognised(message: str, words: str) -> None:
    assert re.search(words, explain_error("code_error", message, "", CUDA))


WATCHDOG = (
    "[rank0]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=466119168, NumelOut=466119168, Timeout(ms)=600000) ran for 600060 "
    "milliseconds before timing out.\n"
    "[rank0]:[E321 02:07:08.465150152 ProcessGroupNCCL.cpp:1664] [PG 1 Rank 0] Exception (either an error or timeout) "
    "detected by watchdog at work: 1580, last enqueued NCCL work: 1582, last completed NCCL work: 1579.\n"
)


@pytest.mark.parametrize("facts", [SCRIPT, RECIPE])
def test_a_rank_that_the_watchdog_of_nccl_has_ended_is_explained_by_what_was_printed(facts: FailureContext) -> None:
    assert re.search("NCCL gave up on allreduce, collective number 1580 of its group", explain_death(WATCHDOG, facts))


def test_other_things_that_a_dead_rank_has_printed_explain_nothing() -> None:
    assert explain_death("UserWarning: No space left on device, trying another one\n", CPU) == ""


def test_a_recipe_gets_no_advice_that_is_about_scripts() -> None:
    assert explain_error("code_error", "RuntimeError: Found no NVIDIA driver on your system.", "", RECIPE) == ""
    out_of_memory = explain_error(
        "out_of_memory", "OutOfMemoryError: CUDA out of memory.", "", replace(RECIPE, device_kind="cuda")
    )
    assert "make program.data.batch_size smaller and program.accumulate_steps larger" in out_of_memory


def test_an_error_of_the_models_own_about_shapes_is_not_blamed_on_gathering() -> None:
    message = "RuntimeError: Sizes of tensors must match except in dimension 0. Expected size 3 but got size 4"
    trace = f'Traceback (most recent call last):\n  File "train.py", line 3\n    torch.cat([a, b])\n{message}\n'
    assert explain_error("code_error", message, trace, CPU) == ""


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("RuntimeError: [pair.cc:537] Read error [10.0.0.2]:26283: Connection reset by peer.", True),
        ("DistBackendError: NCCL error: remote process exited or there was a network error", True),
        ("BrokenPipeError: [Errno 32] Broken pipe", True),
        ("ValueError: the loss is not finite", False),
    ],
)
def test_an_error_that_a_dead_peer_may_have_caused_is_known(message: str, expected: bool) -> None:
    assert may_have_lost_peer(Outcome(1, 1, "code_error", message)) is expected
