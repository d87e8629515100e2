"""`shardyard tune`: which jobs it submits, what it prints, and what it refuses, against a small HTTP server."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_cli import DONE, FAILED, JOB, REPORT, Request, Stub, run, service

pytestmark = pytest.mark.integration
__all__ = ["service"]  # a fixture

SPEC: dict[str, Any] = {
    "resources": {"devices": 2},
    "parallelism": {"strategy": "dp", "output_device": 1},
    "program": {
        "model": {"ref": "mlp"},
        "data": {"ref": "digits", "batch_size": 32},
        "loss": {"ref": "cross_entropy"},
        "optimizer": {"ref": "sgd"},
    },
}


class Rates(Stub):
    """Of the jobs that it is sent, the ones with more devices do as many rows a second more; those of a strategy may
    fail."""

    def __init__(self, stub: Stub, failing: str = "") -> None:
        super().__init__(stub.url, stub.answers, stub.seen)
        self._failing = failing
        self._spec: dict[str, Any] = {}

    def answer(self, request: Request) -> tuple[int, Any]:
        path = request.path.partition("?")[0]
        if (request.method, path) == ("POST", "/v1/jobs"):
            self.seen.append(request)
            self._spec = json.loads(request.body)
            return 201, DONE
        failed = self._spec.get("parallelism", {}).get("strategy") == self._failing
        if path == f"/v1/jobs/{JOB}":
            return 200, FAILED | {"reason": {"code": "out_of_memory", "message": "killed"}} if failed else DONE
        if path == f"/v1/jobs/{JOB}/splits":
            rate = 100.0 * self._spec["resources"]["devices"] + self._spec["program"]["data"]["batch_size"] / 1000
            devices = [device | {"steps": 0 if failed else 25} for device in REPORT["per_device"]]
            return 200, REPORT | {"rows_per_second": rate, "per_device": devices}
        return super().answer(request)

    @property
    def sent(self) -> list[dict[str, Any]]:
        return [json.loads(request.body) for request in self.seen if request.path == "/v1/jobs"]


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "job.json").write_text(json.dumps(SPEC))
    return str(tmp_path / "job.json")


def serve(service: Stub, monkeypatch: pytest.MonkeyPatch, failing: str = "", rows: int | None = 1797) -> Rates:
    """Have the server answer as `Rates` does."""
    service.on("POST", "/v1/plan", (200, {"rows": rows, "batch_size": 32, "global_batch_size": 32}))
    rates = Rates(service, failing)
    monkeypatch.setattr(service, "answer", rates.answer)
    return rates


def test_short_jobs_are_run_one_after_another_and_the_choice_is_told(
    service: Stub, file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = serve(service, monkeypatch)

    assert run("tune", file, "--steps", "250", "--strategies", "single,ddp", "--batch-sizes", "32,64") == 0

    told = capsys.readouterr()
    assert {spec["program"]["max_steps"] for spec in rates.sent} >= {25}
    labels = {spec["labels"]["tune"] for spec in rates.sent}
    assert len(labels) == 1
    assert f"tune={labels.pop()}" in told.err
    assert "25 steps of ddp on 2, 64 rows a step: 200 rows/s  00000001" in told.out
    chosen = "--set parallelism.strategy=ddp --set parallelism.output_device=null --set resources.devices=2"
    assert f"shardyard submit {file} {chosen} --set program.data.batch_size=16" in told.out
    assert "of 250 steps." in told.out


def test_what_is_out_of_memory_is_told_and_not_chosen(
    service: Stub, file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    serve(service, monkeypatch, failing="ddp")
    options = ("--strategies", "single,ddp", "--batch-sizes", "32,64")
    assert run("tune", file, "--steps", "200", *options, "-o", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["chosen"] == {"strategy": "single", "devices": 1, "rows": 32}
    problems = [(trial["rows"], trial["problem"]) for trial in found["trials"] if trial["strategy"] == "ddp"]
    assert problems == [(64, "out_of_memory"), (32, "out_of_memory")]
    assert found["spec"]["parallelism"] == {"strategy": "single"}


def test_a_larger_step_comes_with_a_word_on_the_learning_rate(
    service: Stub, file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    serve(service, monkeypatch)
    assert run("tune", file, "--strategies", "single,ddp", "--batch-sizes", "96") == 0
    assert "A step has 3 times as many rows as before: another learning rate may be needed." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--steps", "50"), "50 steps are too few for one run of each of single on 1, ddp on 2, dp on 2, fsdp on 2"),
        (("--devices", "two"), "--devices two: comma-separated whole numbers above 0"),
        (("--batch-sizes", "0"), "--batch-sizes 0: comma-separated whole numbers above 0"),
        (("--strategies", "horovod"), "--strategies horovod: there are single, ddp, dp, fsdp"),
        (("--set", "resources.nodes=2"), "resources.nodes: a search runs on one node"),
        (("--strategies", "ddp", "--devices", "2", "--batch-sizes", "33"), "there is nothing to choose among"),
    ],
)
def test_what_cannot_be_searched_is_refused_before_a_job_is_submitted(
    service: Stub,
    file: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    words: str,
) -> None:
    rates = serve(service, monkeypatch)
    assert run("tune", file, *options) == 2
    assert words in capsys.readouterr().err
    assert rates.sent == []
