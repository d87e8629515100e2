from pathlib import Path

from workers.runtime.disk_ledger import (
    DiskUsage,
    DiskVerdict,
    create_ledger,
    read_usage,
    read_verdict,
    write_usage,
    write_verdict,
)

USAGE = DiskUsage({1: 10**12, 2: 5}, {1: 200_000})
VERDICT = DiskVerdict("storage", used=7, grown=5, seconds=1.5, free=0, reserve=10)


def test_supervisor_and_agent_write_to_one_page_and_read_what_the_other_has_written(tmp_path: Path) -> None:
    page = tmp_path / "disks.json"
    create_ledger(page)
    assert (read_usage(page), read_verdict(page)) == (DiskUsage(), None)
    write_usage(page, USAGE)
    write_verdict(page, VERDICT)
    assert (read_usage(page), read_verdict(page)) == (USAGE, VERDICT)
    write_usage(page, DiskUsage({1: 1}))
    create_ledger(page)
    assert (read_usage(page), read_verdict(page)) == (DiskUsage({1: 1}), VERDICT)


def test_a_page_is_overwritten_in_place_and_never_grows(tmp_path: Path) -> None:
    page = tmp_path / "disks.json"
    create_ledger(page)
    before = page.stat()
    write_usage(page, USAGE)
    write_verdict(page, VERDICT)
    after = page.stat()
    assert (after.st_ino, after.st_size, after.st_blocks) == (before.st_ino, before.st_size, before.st_blocks)


def test_a_page_that_is_gone_or_half_written_says_nothing(tmp_path: Path) -> None:
    page = tmp_path / "disks.json"
    assert read_usage(page) is None
    page.write_bytes(b'{"bytes":{"1":')
    assert (read_usage(page), read_verdict(page)) == (None, None)
