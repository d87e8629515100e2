"""The tutorials' programs, as plain scripts for GPUs, on virtual devices: their splits are those that GPUs give."""

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.integration.training.rehearsed import SCRIPTS, Ran, run

pytestmark = pytest.mark.integration

SHARD = re.compile(r"input size(?: -)? (?:torch\.Size\()?[\[(](\d+), (\d+)[\])]")
#: Rows that the tutorials' GPUs got, step by step. A device that is not named got nothing.
HUNDRED_BY_THIRTY = {
    1: [[30], [30], [30], [10]],
    2: [[15, 15], [15, 15], [15, 15], [5, 5]],
    3: [[10, 10, 10], [10, 10, 10], [10, 10, 10], [4, 4, 2]],
    8: [[4, 4, 4, 4, 4, 4, 4, 2]] * 3 + [[2, 2, 2, 2, 2]],
}
COUNTS = sorted(HUNDRED_BY_THIRTY)


def rehearse(script: str, devices: int, directory: Path, *args: str) -> str:
    [ran] = run(SCRIPTS / f"{script}.py", devices, *args, directory=directory)
    assert ran.code == 0, ran.text
    return ran.text


def steps_in(text: str) -> list[Counter[tuple[int, int]]]:
    """The shapes that the replicas say they got, of each batch that is named after them."""
    steps: list[Counter[tuple[int, int]]] = [Counter()]
    for line in text.splitlines():
        found = SHARD.search(line)
        if found is None:
            continue
        if line.startswith("Outside"):
            steps.append(Counter())
        else:
            steps[-1][int(found[1]), int(found[2])] += 1
    assert not steps[-1], "shards without a batch"
    return steps[:-1]


def shapes(rows: list[list[int]], features: int) -> list[Counter[tuple[int, int]]]:
    return [Counter((shard, features) for shard in step) for step in rows]


def losses_in(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"loss:? (\d+\.\d+)", text)]


@pytest.mark.parametrize("devices", COUNTS)
def test_a_tour_of_data_parallel_splits_as_on_gpus(devices: int, tmp_path: Path) -> None:
    text = rehearse("data_parallel_tour", devices, tmp_path)
    assert steps_in(text) == shapes(HUNDRED_BY_THIRTY[devices], 5)
    assert (f"Let's use {devices} GPUs!" in text) == (devices > 1)
    assert text.count("Outside: input size torch.Size([30, 5]) output_size torch.Size([30, 2])") == 3


def test_thirty_rows_on_two_devices_are_fifteen_each(tmp_path: Path) -> None:
    assert steps_in(rehearse("data_parallel_tour", 2, tmp_path, "--rows", "30")) == shapes([[15, 15]], 5)


def test_chosen_devices_are_the_only_ones_that_get_rows(tmp_path: Path) -> None:
    text = rehearse("data_parallel_tour", 8, tmp_path, "--device-ids", "2", "5", "7", "--output-device", "5")
    assert steps_in(text) == shapes(HUNDRED_BY_THIRTY[3], 5)


@pytest.mark.parametrize("devices", COUNTS)
def test_primitives_called_one_by_one_split_alike_and_lose_nothing(devices: int, tmp_path: Path) -> None:
    text = rehearse("functional_primitives", devices, tmp_path)
    assert steps_in(text) == shapes(HUNDRED_BY_THIRTY[devices], 5)
    assert losses_in(text) == pytest.approx([0.244563, 0.129282, 0.261829, 0.062366], abs=2e-6)


@pytest.mark.parametrize("devices", COUNTS)
def test_only_the_wrapped_block_is_split_and_the_losses_are_those_of_one_cpu(devices: int, tmp_path: Path) -> None:
    text = rehearse("block_data_parallel", devices, tmp_path)
    assert steps_in(text) == shapes(HUNDRED_BY_THIRTY[devices], 20)
    assert losses_in(text) == pytest.approx(losses_in(rehearse("block_data_parallel", 0, tmp_path)), abs=2e-6)


def test_a_notebook_shows_its_progress_over_four_batches(tmp_path: Path) -> None:
    text = rehearse("notebook_progress", 3, tmp_path)
    assert "We have 3 GPUs." in text
    assert "4/4" in text
    shards = Counter(int(found[1]) for found in SHARD.finditer(text))
    assert shards == Counter(rows for step in HUNDRED_BY_THIRTY[3] for rows in step)


def test_an_embedding_stays_on_the_cpu_beside_a_layer_on_a_gpu(tmp_path: Path) -> None:
    text = rehearse("embedding_on_cpu", 1, tmp_path)
    assert text.count("output_size torch.Size([30, 7, 10])") == 3
    assert losses_in(text) == losses_in(rehearse("embedding_on_cpu", 0, tmp_path))


def test_a_cnn_is_trained_and_tested_as_on_one_cpu(tmp_path: Path) -> None:
    args = ("--rows", "300", "--epochs", "2", "--workers", "2")
    text, plain = (rehearse("cifar_cnn", devices, tmp_path, *args) for devices in (3, 0))
    assert len(losses_in(text)) == 4
    assert losses_in(text) == pytest.approx(losses_in(plain), abs=2e-4)


def test_a_sampler_deals_out_ninety_rows_to_four_ranks_over_nccl(tmp_path: Path) -> None:
    ranks: list[Ran] = run(SCRIPTS / "ddp_sampler.py", 4, ranks=4, directory=tmp_path)
    assert [rank.code for rank in ranks] == [0] * 4, "\n".join(rank.text for rank in ranks)
    assert [steps_in(rank.text) for rank in ranks] == [shapes([[23], [23]], 5)] * 4
    assert "Let's use 4 GPUs!" in ranks[0].text
    first, second = losses_in(ranks[0].text)
    assert second < first
