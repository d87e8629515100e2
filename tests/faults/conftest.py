from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.faults.inject.disk import small_disk
from tests.faults.scene.machine import need
from tests.faults.scene.site import Site, running_site

#: Long enough for a busy machine, short enough to wait for.
LEASE = 18.0


@pytest.fixture(scope="package")
def shared_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running_site(tmp_path_factory.mktemp("site"), through="127.0.0.1", lease_seconds=LEASE) as site:
        yield site


_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: "pytest.CallInfo[None]"
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "call":
        item.stash[_FAILED] = report.failed
    return report


@pytest.fixture
def site(shared_site: Site, request: pytest.FixtureRequest) -> Iterator[Site]:
    """A whole service that tests share. Every invariant is checked when a test has passed: `Site.allow` says what its
    faults may have done."""
    shared_site.begin()
    try:
        yield shared_site
        if not request.node.stash.get(_FAILED, True):
            shared_site.is_sound()
    finally:
        shared_site.restore()  # so that one failure does not become the next test's


@pytest.fixture
def cramped(tmp_path: Path) -> Iterator[Site]:
    """A site whose storage is a disk of 8 MB, of which the service keeps nothing for itself."""
    need("mounts")
    with small_disk(tmp_path / "storage", "8m"), running_site(tmp_path, reserve_bytes=0) as site:
        yield site
