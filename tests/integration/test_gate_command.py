"""`shardyard gate`: what it asks, prints and writes, and its exit codes, against a small HTTP server."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.integration.test_cli import DONE, JOB, STATUS, Stub, run, service

pytestmark = pytest.mark.integration
__all__ = ["service"]  # a fixture

PATH = f"/v1/jobs/{JOB}/gate"
OTHER = f"{JOB[:-1]}2"


def verdict(*outcomes: str) -> dict[str, Any]:
    checks = [
        {"name": f"max_{at}", "outcome": outcome, "message": f"line one: 50 %,\n<b>\x1b {at}", "figure": 2.0}
        for at, outcome in enumerate(outcomes)
    ]
    whole = next((one for one in ("broken", "unclear") if one in outcomes), "passed")
    return {"job_id": JOB, "attempt": 1, "outcome": whole, "checks": checks, "against": OTHER, "of_later": 1}


@pytest.fixture(autouse=True)
def outside_of_github(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [(("passed", "passed"), 0), (("unclear", "broken"), 5), (("passed", "unclear"), 6)],
)
def test_the_exit_code_is_that_of_the_verdict(
    service: Stub, capsys: pytest.CaptureFixture[str], outcomes: tuple[str, ...], code: int
) -> None:
    service.on("POST", PATH, (200, verdict(*outcomes)))
    assert run("gate", JOB, "--max-idle", "0") == code
    shown = capsys.readouterr().out
    assert shown.splitlines()[1].startswith(outcomes[0]), shown
    assert "beside 00000002" in shown
    assert "\x1b" not in shown
    assert "::" not in shown


def test_all_limits_are_sent_as_the_service_takes_them(service: Stub) -> None:
    service.on("POST", PATH, (200, verdict("passed")))
    limits = "--max-time-imbalance 1.2 --max-row-imbalance 1.1 --max-idle 0 --min-throughput 400 --max-memory 1.5GiB"
    findings = ("--no-finding", "slow-device, input-bound", "--no-finding", "warning")
    assert run("gate", JOB, *limits.split(), *findings, "--against", OTHER, "--max-slowdown", "1.05") == 0
    assert json.loads(service.seen[-1].body) == {
        "max_time_imbalance": 1.2,
        "max_row_imbalance": 1.1,
        "max_idle": 0,
        "min_throughput": 400.0,
        "max_memory": 1_610_612_736,
        "no_finding": ["slow-device", "input-bound", "warning"],
        "against": OTHER,
        "max_slowdown": 1.05,
    }


def test_it_waits_for_the_end_where_it_is_told_to(service: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    service.on("POST", PATH, (200, verdict("passed")))
    service.on("GET", f"/v1/jobs/{JOB}", (200, STATUS), (200, STATUS), (200, DONE))
    assert run("gate", JOB, "--wait", "--max-idle", "0") == 0
    assert [request.method for request in service.seen] == ["GET", "GET", "GET", "POST"]

    service.on("GET", f"/v1/jobs/{JOB}", (200, STATUS))
    assert run("gate", JOB, "--wait", "--timeout", "0.2s", "--max-idle", "0") == 4
    assert "has not ended within 0.2 s; it goes on" in capsys.readouterr().err


def test_junit_has_a_failure_for_what_is_broken_and_an_error_for_what_is_unclear(service: Stub, tmp_path: Path) -> None:
    service.on("POST", PATH, (200, verdict("passed", "broken", "unclear")))
    assert run("gate", JOB, "--max-idle", "0", "--junit", str(tmp_path / "gate.xml")) == 5

    suite = ElementTree.parse(tmp_path / "gate.xml").getroot().find("testsuite")
    assert suite is not None
    assert [suite.get(name) for name in ("tests", "failures", "errors")] == ["3", "1", "1"]
    cases = {case.get("name"): {part.tag: part.text for part in case} for case in suite}
    assert [next(iter(parts)) for parts in cases.values()] == ["system-out", "failure", "error"]
    assert cases["max_1"]["failure"] == "line one: 50 %,\n<b>\\x1b 1"
    assert run("gate", JOB, "--max-idle", "0", "--junit", str(tmp_path / "no" / "gate.xml")) == 2


def test_github_gets_an_annotation_for_each_check_that_was_not_passed(
    service: Stub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    service.on("POST", PATH, (200, verdict("passed", "broken", "unclear")))
    assert run("gate", JOB, "--max-idle", "0", "--github") == 5
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("::")]
    assert lines == [
        "::error title=shardyard gate%3A max_1 broken::line one: 50 %25,%0A<b>\\x1b 1",
        "::warning title=shardyard gate%3A max_2 is unclear::line one: 50 %25,%0A<b>\\x1b 2",
    ]
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert run("gate", JOB, "--max-idle", "0", "-o", "json") == 5
    told = capsys.readouterr()
    assert json.loads(told.out)["of_later"] == 1
    assert told.err.splitlines() == lines
    assert run("gate", JOB, "--max-idle", "0", "--no-github") == 5
    assert "::" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--max-memory", "8GB"), "--max-memory '8GB' is not a size; write bytes, or 500MiB, 8GiB"),
        (("--timeout", "5m"), "--timeout needs --wait"),
        (("--wait", "--timeout", "soon"), "--timeout 'soon' is not a time"),
    ],
)
def test_options_that_are_wrong_are_refused_before_anything_is_asked(
    service: Stub, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], words: str
) -> None:
    assert run("gate", JOB, *options) == 2
    assert words in capsys.readouterr().err
    assert service.seen == []


def test_a_refusal_names_the_fields_that_are_wrong(service: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    errors = [{"field": "no_finding.0", "message": "unknown finding; did you mean 'slow-device'?"}]
    problem = {"code": "invalid_request", "detail": "the gate is not valid", "errors": errors}
    service.on("POST", PATH, (422, problem))
    assert run("gate", JOB, "--no-finding", "slow-devise") == 2
    assert "no_finding.0: unknown finding; did you mean 'slow-device'?" in capsys.readouterr().err
