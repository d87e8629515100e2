"""How devices and ranks of several nodes are numbered through."""

import pytest

from jobs.model.parts import devices_of_part, ranks_of_part


@pytest.mark.parametrize(("nodes", "devices"), [(1, 4), (2, 3), (3, 2), (8, 8)])
def test_numbers_go_on_from_part_to_part_without_a_gap(nodes: int, devices: int) -> None:
    numbers = [number for part in range(nodes) for number in devices_of_part(part, devices)]
    assert numbers == list(range(nodes * devices))
    assert [devices_of_part(2, devices)[local] for local in range(devices)] == [
        2 * devices + local for local in range(devices)
    ]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_each_device_has_the_rank_of_its_number_where_each_has_a_process(strategy: str) -> None:
    assert ranks_of_part(1, 3, strategy) == devices_of_part(1, 3) == range(3, 6)


@pytest.mark.parametrize("strategy", ["single", "dp"])
def test_one_rank_drives_all_devices_where_there_is_one_process(strategy: str) -> None:
    assert list(ranks_of_part(0, 4, strategy)) == [0]
