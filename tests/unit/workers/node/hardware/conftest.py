from collections.abc import Callable

import pytest

from tests.support.fake_nvml import FakeCard, FakeNvml


@pytest.fixture
def install_nvml(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeNvml]:
    """Puts cards in the place of the host's."""

    def install(*cards: FakeCard) -> FakeNvml:
        nvml = FakeNvml(*cards)
        monkeypatch.setattr("workers.node.hardware.gpu_reader.pynvml", nvml)
        return nvml

    return install
