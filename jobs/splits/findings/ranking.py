"""The order of findings, and suggestions that do not contradict each other."""

from collections.abc import Sequence, Set

import msgspec

from shardyard.contract.report import Finding

#: How suggestions name the size of a batch.
_BATCH_WORDS = (
    "program.data.batch_size",
    "batch_size in your DataLoader",
    "the model's batches of",
    " rows on each rank",
)
#: A finding whose suggestion would make another one worse gives way to that one's.
_GIVES_WAY = {
    "input-bound": (
        "cpu-oversubscribed",
        "do what cpu-oversubscribed suggests first; more loader processes would compete for the same cores",
    ),
}


def rank_findings(findings: Sequence[Finding]) -> list[Finding]:
    """Warnings first, then what costs most. The first suggestion of another batch size stands for itself, and each
    that follows says instead of which one it is."""
    codes = {one.code for one in findings}
    ranked = [_give_way(one, codes) for one in sorted(findings, key=lambda one: _weight(one, codes))]
    first = next((one for one in ranked if _resizes_batch(one)), None)
    if first is None:
        return ranked
    return [_put_behind(one, first) for one in ranked]


def _weight(finding: Finding, codes: Set[str]) -> tuple[bool, bool, float]:
    """The smaller, the earlier."""
    return finding.severity != "warning", _gives_way(finding, codes), -(finding.cost_device_seconds or 0.0)


def _gives_way(finding: Finding, codes: Set[str]) -> bool:
    return finding.code in _GIVES_WAY and _GIVES_WAY[finding.code][0] in codes


def _give_way(finding: Finding, codes: Set[str]) -> Finding:
    if not _gives_way(finding, codes):
        return finding
    return msgspec.structs.replace(finding, suggestion=_GIVES_WAY[finding.code][1])


def _resizes_batch(finding: Finding) -> bool:
    return any(words in finding.suggestion for words in _BATCH_WORDS)


def _put_behind(finding: Finding, first: Finding) -> Finding:
    if finding is first or not _resizes_batch(finding) or finding.suggestion == first.suggestion:
        return finding
    return msgspec.structs.replace(
        finding, suggestion=f"instead of what is suggested for {first.code}: {finding.suggestion}"
    )
