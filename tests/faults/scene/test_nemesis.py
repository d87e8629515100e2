"""Row 30: all faults at once. `python -m tests.faults.nemesis` does the same for longer, with more jobs, and
`python -m tests.faults.host_nemesis` with the faults of hosts."""

from pathlib import Path

import pytest

from tests.faults import host_nemesis
from tests.faults.nemesis import LEASE, RECEIVERS, wage
from tests.faults.scene.host_service import service_over_hosts
from tests.faults.scene.machine import need
from tests.faults.scene.site import running_site

pytestmark = [pytest.mark.integration, pytest.mark.faults, pytest.mark.slow]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [3])
def test_row_30_a_seeded_nemesis_breaks_no_invariant(tmp_path: Path, seed: int) -> None:
    with running_site(tmp_path, through="127.0.0.1", lease_seconds=LEASE, webhook_networks=RECEIVERS) as site:
        assert wage(site, seed, seconds=60, jobs=40) == []


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [5])
def test_row_30_a_seeded_nemesis_of_three_hosts_breaks_no_invariant(tmp_path: Path, seed: int) -> None:
    need("network namespaces")
    with service_over_hosts(tmp_path, host_nemesis.HOSTS, lease_seconds=host_nemesis.LEASE) as hosts:
        assert host_nemesis.wage(hosts, seed, seconds=60, jobs=15) == []
