"""What the report of a real script says about its data and its evaluation: the same program, with a fault and right."""

from typing import Any

import pytest

from jobs.model.state import JobState
from tests.integration.workers.service import Service

pytestmark = pytest.mark.integration

#: Trains on 400 rows for two epochs, and evaluates 41 others after each. Its arguments are faults.
TABLE = """
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

faults = sys.argv[1:]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
rows = torch.randn(441, 12)
labels = (rows.sum(1) > 0).long()
data = TensorDataset(rows[:400], labels[:400])
held_out = TensorDataset(rows[400:], labels[400:])
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=25, sampler=sampler)
if "padded" in faults:
    evaluation = DataLoader(held_out, batch_size=8, sampler=DistributedSampler(held_out, shuffle=False))
elif "every" in faults or "alone" in faults:
    evaluation = DataLoader(held_out, batch_size=8)
else:
    evaluation = DataLoader(Subset(held_out, range(rank, len(held_out), world)), batch_size=8)
model = DistributedDataParallel(nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2)))
if "noise" not in faults:
    torch.manual_seed(1 + rank)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    if "epoch" not in faults:
        sampler.set_epoch(epoch)
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    model.eval()
    counts = torch.zeros(2)
    if "alone" not in faults or rank == 0:
        with torch.no_grad():
            for x, y in evaluation:
                correct = model.module(x).argmax(1) == y
                counts += torch.tensor([correct.sum().item(), len(y)])
                if "alone" in faults:
                    time.sleep(2.0)
    dist.all_reduce(counts)
dist.destroy_process_group()
"""

#: Trains on sentences. Its arguments are faults.
TEXT = """
import itertools
import random
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

faults = sys.argv[1:]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
IGNORED, WORDS = -100, 60


class Sentences(IterableDataset):
    def __iter__(self):
        source = random.Random(1)
        sentences = ([source.randrange(50) for _ in range(source.randint(8, WORDS))] for _ in range(480))
        if "iterable" in faults:
            return sentences
        return itertools.islice(sentences, rank, None, world)


def pad(sentences):
    if "tokens" in faults:  # a rank's own sentences are short
        sentences = [words[: WORDS // (2 if rank else 1)] for words in sentences]
    words = torch.zeros(len(sentences), WORDS, dtype=torch.long)
    targets = torch.full((len(sentences), WORDS), IGNORED)
    for row, sentence in enumerate(sentences):
        words[row, : len(sentence)] = torch.tensor(sentence)
        targets[row, : len(sentence)] = words[row, : len(sentence)] % 7
    return words, targets


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.tags = nn.Embedding(50, 16), nn.Linear(16, 7)

    def forward(self, words):
        return self.tags(self.words(words))


model = DistributedDataParallel(Tagger())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for words, targets in DataLoader(Sentences(), batch_size=8, collate_fn=pad):
    optimizer.zero_grad()
    how = {"ignore_index": IGNORED, "reduction": "mean" if "tokens" in faults else "sum"}
    loss = nn.functional.cross_entropy(model(words).flatten(0, 1), targets.flatten(), **how)
    if "tokens" not in faults:
        tokens = (targets != IGNORED).sum()
        dist.all_reduce(tokens)
        loss = loss * world / tokens
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
"""

#: Sentences of any length, which a fault draws on each rank by itself.
WORK = """
import random
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
lengths = random.Random(dist.get_rank() if "lengths" in sys.argv else 0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(80):
    optimizer.zero_grad()
    model(torch.randn(8, lengths.randint(20, 600), 64)).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""

#: Parts of unequal length, or of equal length, over which ranks train under Join.
PARTS = """
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
data = TensorDataset(torch.randn(80 + (16 * rank if "parts" in sys.argv else 0), 12))
model = DistributedDataParallel(torch.nn.Linear(12, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    with model.join():
        for (x,) in DataLoader(data, batch_size=8, shuffle=True):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
dist.destroy_process_group()
"""

#: Each fault by itself: its script, its argument, and what is found.
FAULTS = {
    "same-rows-every-epoch": (TABLE, "epoch"),
    "evaluation-counts-twice": (TABLE, "padded"),
    "evaluation-on-every-rank": (TABLE, "every"),
    "evaluation-on-one-rank": (TABLE, "alone"),
    "same-noise-on-every-rank": (TABLE, "noise"),
    "iterable-read-by-all": (TEXT, "iterable"),
    "unlike-tokens": (TEXT, "tokens"),
    "ranks-end-apart": (PARTS, "parts"),
    "uneven-work": (WORK, "lengths"),
}


def found(service: Service, script: str, *faults: str, ranks: int = 2) -> dict[str, Any]:
    job = service.run_script({"train.py": script}, *faults, strategy="ddp", devices=ranks)
    assert service.ended(job).state is JobState.SUCCEEDED
    return {finding["code"]: finding for finding in service.report(job)["findings"]}


def test_a_script_that_reads_and_evaluates_right_has_no_finding(service: Service) -> None:
    assert found(service, TABLE) == {}


def test_faults_of_data_and_evaluation_are_found_side_by_side(service: Service) -> None:
    wrong = found(service, TABLE, "epoch", "padded", "noise")

    assert set(wrong) == {"same-rows-every-epoch", "evaluation-counts-twice", "same-noise-on-every-rank"}
    assert wrong["same-rows-every-epoch"]["numbers"] == {"passes": 2, "rows": 200, "dataset_rows": 400}
    assert wrong["evaluation-counts-twice"]["numbers"] == {"rows": 41, "rows_twice": 1, "ranks": 2}


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("code", FAULTS)
def test_each_fault_is_found_by_itself(service: Service, code: str, ranks: int) -> None:
    script, fault = FAULTS[code]

    assert set(found(service, script, fault, ranks=ranks)) == {code}


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("script", [TABLE, TEXT, PARTS, WORK])
def test_the_same_scripts_without_a_fault_have_no_finding(service: Service, script: str, ranks: int) -> None:
    assert found(service, script, ranks=ranks) == {}
