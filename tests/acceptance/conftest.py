from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.harness import Up


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    """Not started yet."""
    up = Up(tmp_path)
    yield up
    up.close()
