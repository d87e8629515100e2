"""Findings are ranked, and their suggestions do not contradict each other."""

from jobs.splits.findings.ranking import rank_findings
from shardyard.contract.report import Finding


def test_warnings_come_first_and_then_what_costs_most() -> None:
    cheap, dear = Finding("a", "warning", "", "", cost_device_seconds=1.0), Finding("b", "info", "", "")
    costly = Finding("c", "info", "", "", cost_device_seconds=9.0)
    worst = Finding("d", "warning", "", "", cost_device_seconds=2.0)

    assert [one.code for one in rank_findings([dear, costly, cheap, worst])] == ["d", "a", "c", "b"]


def test_of_two_batch_sizes_the_second_says_instead_of_which_it_is() -> None:
    ragged = Finding("ragged-batch", "info", "", "set program.data.batch_size to 63 or 66")
    other = Finding(
        "ddp-would-fit-better", "info", "", 'set parallelism.strategy to "ddp" and program.data.batch_size to 21'
    )
    same = Finding("idle-devices", "info", "", ragged.suggestion)
    drop = Finding("ragged-last-batch", "info", "", "set program.data.drop_last to true")

    suggestions = [one.suggestion for one in rank_findings([ragged, drop, other, same])]
    assert suggestions == [
        ragged.suggestion,
        drop.suggestion,
        f"instead of what is suggested for ragged-batch: {other.suggestion}",
        same.suggestion,
    ]


def test_more_loader_processes_are_not_suggested_where_they_compete_for_cores() -> None:
    waits = Finding(
        "input-bound", "warning", "", "set num_workers in the DataLoader to 8 (now 4)", cost_device_seconds=9.0
    )
    competing = Finding("cpu-oversubscribed", "warning", "", "lower num_workers in the DataLoader")

    (alone,) = rank_findings([waits])
    both = {one.code: one for one in rank_findings([waits, competing])}
    assert alone == waits
    assert list(both) == ["cpu-oversubscribed", "input-bound"]
    assert both["input-bound"].suggestion.startswith("do what cpu-oversubscribed suggests first")
