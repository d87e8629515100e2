"""Which findings of a report webhooks hear of."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jobs.store.accounts.webhooks import PostedFinding
from shardyard.contract.report import Finding, decode_report
from workers.supervisor.telemetry import report_publisher
from workers.supervisor.telemetry.report_publisher import MAX_POSTED_FINDINGS, REPORT_SECONDS, ReportPublisher

REPORT = decode_report((Path(__file__).parents[5] / "docs" / "examples" / "three-of-thirty.json").read_bytes())


class FakeAggregator:
    """Makes reports with the findings that a test sets."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def add_samples(self, *_: object) -> None:
        return None

    def add_record(self, *_: object) -> None:
        return None

    def make_report(self, final: bool, _line: str, _now: float) -> Any:
        return msgspec.structs.replace(REPORT, findings=self.findings, final=final)


class FakeShipper:
    def put_blob(self, *_: object) -> None:
        return None


def a_finding(code: str, severity: str = "warning", **numbers: float) -> Finding:
    return Finding(code, severity, f"about {code}", "change it", numbers)


class Bench:
    def __init__(self, file: Path) -> None:
        self.aggregator = FakeAggregator()
        self.heard: list[Sequence[PostedFinding]] = []
        self.publisher = ReportPublisher(
            self.aggregator,  # type: ignore[arg-type]
            FakeShipper(),  # type: ignore[arg-type]
            "key",
            file,
            self.heard.append,
        )
        self._now = 0.0

    def snapshot(self, *findings: Finding) -> None:
        self.aggregator.findings = list(findings)
        self.publisher.add_record(0, None, 0)  # type: ignore[arg-type]
        self._now += 1000 * REPORT_SECONDS
        self.publisher.publish_if_due(self._now)

    @property
    def posted(self) -> list[list[tuple[str, int | None]]]:
        return [[(finding.code, finding.device) for finding in findings] for findings in self.heard]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "report.json")


def test_each_warning_is_passed_on_once_for_its_code_and_device(bench: Bench) -> None:
    bench.snapshot(a_finding("idle"), a_finding("hot", device=1.0), a_finding("nice", "info"))
    bench.snapshot(a_finding("idle"), a_finding("hot", device=1.0))
    bench.snapshot(a_finding("hot", device=2.0), a_finding("idle"))
    assert bench.posted == [[("idle", None), ("hot", 1)], [("hot", 2)]]
    assert bench.heard[0][0] == PostedFinding("warning", "idle", None, "about idle")


def test_a_warning_of_the_final_report_is_passed_on_too(bench: Bench) -> None:
    bench.snapshot(a_finding("idle"))
    bench.aggregator.findings = [a_finding("idle"), a_finding("late")]
    assert bench.publisher.write_final("") == ""
    assert bench.publisher.write_final("") == ""
    assert bench.posted == [[("idle", None)], [("late", None)]]


def test_an_attempt_has_a_number_of_them_at_most(bench: Bench) -> None:
    bench.snapshot(*(a_finding(f"code-{number}") for number in range(2 * MAX_POSTED_FINDINGS)))
    bench.snapshot(*(a_finding(f"other-{number}") for number in range(MAX_POSTED_FINDINGS)))
    assert [len(findings) for findings in bench.posted] == [MAX_POSTED_FINDINGS]


def test_a_report_that_nobody_listens_to_passes_nothing_on(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "report.json")
    bench.publisher._on_warnings = report_publisher.ignore_findings
    bench.snapshot(a_finding("idle"))
    assert bench.heard == []
