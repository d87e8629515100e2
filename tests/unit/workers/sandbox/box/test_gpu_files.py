"""Which device files a lease of GPUs needs."""

from pathlib import Path

import pytest

from jobs.model.records import DeviceRecord
from workers.sandbox.box.gpu_files import files_of_devices

CARDS = {"0000:01:00.0": ("GPU-aaaa", 1), "0000:02:00.0": ("GPU-bbbb", 0)}


@pytest.fixture
def host(tmp_path: Path) -> tuple[Path, Path]:
    """A host's /dev, and its directory of cards, whose minor numbers are not those of their order."""
    dev, cards = tmp_path / "dev", tmp_path / "gpus"
    (dev / "nvidia-caps").mkdir(parents=True)
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "sda", "nvidia-caps/nvidia-cap1"):
        (dev / name).touch()
    for bus, (uuid, minor) in CARDS.items():
        (cards / bus).mkdir(parents=True)
        (cards / bus / "information").write_text(f"Model:\t\tA card\nGPU UUID:\t{uuid}\nDevice Minor:\t{minor}\n")
    return dev, cards


def gpu(uuid: str) -> DeviceRecord:
    return DeviceRecord(0, "cuda", 0, uuid, "A card")


def test_a_lease_gets_the_files_of_its_own_cards_and_what_all_share(host: tuple[Path, Path]) -> None:
    assert files_of_devices([gpu("GPU-bbbb")], *host) == [
        "nvidiactl",
        "nvidia-uvm",
        "nvidia0",
        "nvidia-caps/nvidia-cap1",
    ]
    assert "nvidia0" not in files_of_devices([gpu("GPU-aaaa")], *host)


def test_a_card_that_the_driver_does_not_name_shows_all(host: tuple[Path, Path]) -> None:
    found = files_of_devices([gpu("MIG-cccc")], *host)
    assert {"nvidia0", "nvidia1"} < set(found)
    assert "sda" not in found


def test_virtual_devices_need_none(host: tuple[Path, Path]) -> None:
    assert files_of_devices([DeviceRecord(0, "cpu", 0, "cpu:0", "a core")], *host) == []
