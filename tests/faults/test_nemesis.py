"""Row 30: all faults at once. `python -m tests.faults.nemesis` does the same for longer, with more jobs."""

from pathlib import Path

import pytest

from tests.faults.nemesis import LEASE, wage
from tests.faults.site import running_site

pytestmark = [pytest.mark.integration, pytest.mark.faults, pytest.mark.slow]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [3])
def test_row_30_a_seeded_nemesis_breaks_no_invariant(tmp_path: Path, seed: int) -> None:
    with running_site(tmp_path, through="127.0.0.1", lease_seconds=LEASE) as site:
        assert wage(site, seed, seconds=60, jobs=40) == []
