"""Which of many like entries of the audit are written."""

from api.http.audit_repeats import MAX_KINDS, WINDOW_SECONDS, RepeatGuard
from shardyard.contract.audit import AuditEntry
from shardyard.contract.responses import at


def entry(name: str = "token_refused") -> AuditEntry:
    return AuditEntry("", at(0), name, 401)


def test_the_first_of_a_minute_is_written_and_the_others_are_counted() -> None:
    now = 1000.0
    guard = RepeatGuard(lambda: now)
    assert [guard.admits(entry(), "a") for _ in range(4)] == [True, False, False, False]
    assert guard.admits(entry(), "b")
    now += WINDOW_SECONDS - 1
    assert guard.take_due() == []
    now += 1
    assert guard.take_due() == [(entry(), 3)]
    assert guard.admits(entry(), "a")
    assert guard.take_due() == []


def test_many_different_ones_are_counted_together_by_action() -> None:
    guard = RepeatGuard(lambda: 0.0)
    admitted = [guard.admits(entry(), number) for number in range(MAX_KINDS + 50)]
    assert admitted.count(True) == MAX_KINDS + 1
    assert guard.admits(entry("file_downloaded"), "x")
    assert guard.take_due(at_once=True) == [(entry(), 49)]
