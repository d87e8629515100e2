"""What people type every day, against a small HTTP server that answers as the API does."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from shardyard import __version__, cli
from shardyard.cli.framework.commands import ALIASES
from shardyard.client import Client
from shardyard.errors import AmbiguousReference
from tests.integration.test_cli import DONE, FAILED, JOB, STATUS, Stub, run, service

pytestmark = pytest.mark.integration
__all__ = ["service"]  # a fixture


def jobs_of(*rows: dict[str, Any]) -> tuple[int, Any]:
    return 200, {"jobs": [STATUS | row for row in rows], "next": None}


def cells(capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    """The rows of a table in a pipe, without its header."""
    return [re.split(r" {2,}", line) for line in capsys.readouterr().out.splitlines()[1:]]


def test_a_list_of_several_states_is_one_list_and_shows_what_became_of_each_job(
    service: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    early = DONE | {"id": JOB[:-1] + "2", "name": "early", "created_at": "2026-01-01T03:04:05Z", "progress": None}
    late = FAILED | {"id": JOB[:-1] + "3", "name": "late", "created_at": "2026-01-03T03:04:05Z"}
    service.on("GET", "/v1/jobs", jobs_of(early), jobs_of(late))

    assert run("ls", "--state", "succeeded,failed", "--columns", "job,name,state,outcome,took") == 0

    assert cells(capsys) == [
        ["00000003", "late", "failed", "rank 0: ValueError: boom", "10.0 s"],
        ["00000002", "early", "succeeded", "-", "10.0 s"],
    ]
    asked = [request.path.partition("state=")[2].partition("&")[0] for request in service.seen]
    assert list(dict.fromkeys(asked)) == ["succeeded", "failed"]


def test_a_list_is_sorted_by_a_column_and_ends_at_an_age(service: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"name": name, "devices": devices, "created_at": created}
        for name, devices, created in (("b", 1, "2099-01-01T00:00:00Z"), ("a", 4, "2098-01-01T00:00:00Z"))
    ]
    service.on("GET", "/v1/jobs", jobs_of(*rows, {"name": "old"}))
    for options, names in (
        ((), ["b", "a", "old"]),
        (("--sort", "name"), ["a", "b", "old"]),
        (("--sort", "-name"), ["old", "b", "a"]),
        (("--sort", "devices", "--limit", "2"), ["a", "old"]),
        (("--since", "1h"), ["b", "a"]),
    ):
        assert run("list", "--columns", "name", *options) == 0
        assert [row[0] for row in cells(capsys)] == names, options


def test_a_list_and_a_status_are_documents_on_request(service: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    service.on("GET", "/v1/jobs", jobs_of({"unknown": [1]}))
    service.on("GET", f"/v1/jobs/{JOB}", (200, STATUS))
    for args, out in (
        (("list", "-o", "jsonpath={.jobs[*].id}"), f"{JOB}\n"),
        (("list", "-o", "jsonpath=$.jobs[0].unknown"), "[1]\n"),
        (("status", JOB, "-o", "jsonpath={.progress.step}"), "46\n"),
        (("status", JOB, "-o", "jsonpath=.placement[-1]['devices'][*]"), "cpu:0\ncpu:1\n"),
    ):
        assert run(*args) == 0
        assert capsys.readouterr().out == out
    assert run("list", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["jobs"][0]["unknown"] == [1]
    assert run("show", JOB, "-o", "yaml") == 0
    assert YAML(typ="safe", pure=True).load(capsys.readouterr().out) == STATUS
    assert run("list", "-o", "xml") == 2
    assert run("list", "-o", "jsonpath={.jobs[?(@.id)]}") == 2
    assert run("list", "--json", "-o", "yaml") == 2


def test_a_list_has_metrics_and_fields_of_the_spec_as_columns(
    service: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = ["loss", "metrics.accuracy", "spec.program.epochs"]
    jobs = [DONE | {"id": f"{JOB[:-1]}{number}", "name": name} for number, name in enumerate("abc")]
    values = [[0.25, 0.5, 3], [None, None, None], [0.125, 0.75, "x\x1b"]]
    service.on("GET", "/v1/jobs/table", (200, {"columns": columns, "jobs": jobs, "values": values, "counts": {}}))

    shown = "name,outcome,metrics.accuracy,spec.program.epochs"
    assert run("list", "--columns", shown, "--sort", "-metrics.accuracy") == 0

    assert cells(capsys) == [
        ["c", "loss 0.125", "0.75", "x\\x1b"],
        ["a", "loss 0.25", "0.5", "3"],
        ["b", "-", "-", "-"],
    ]
    assert "columns=loss%2Cmetrics.accuracy%2Cspec.program.epochs" in service.seen[0].path


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--state", "runing"), "did you mean running?"),
        (("--sort", "agee"), "did you mean age?"),
        (("--columns", "job,los"), "--columns 'los'"),
        (("--since", "yesterday"), "is not a time"),
        (("--sort", "name", "--cursor", "x"), "--cursor continues a list of one state"),
    ],
)
def test_a_list_says_what_is_wrong_with_its_options(
    service: Stub, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], words: str
) -> None:
    assert run("list", *options) == 2
    assert words in capsys.readouterr().err
    assert service.seen == []


# -- names of jobs ---------------------------------------------------------------------------------


def test_a_job_may_be_named_by_a_part_of_its_id_or_its_name(service: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    others = [{"id": "01980000-0000-7000-8000-0000000000aa", "name": "digits", "state": "failed"}]
    service.on("GET", "/v1/jobs/resolve", (200, STATUS | {"matched": "name", "others": others}))
    service.on("GET", f"/v1/jobs/{JOB}", (200, STATUS))
    service.on("POST", f"/v1/jobs/{JOB}/cancel", (202, STATUS | {"cancel_requested": True}))

    assert run("show", "digits") == 0
    captured = capsys.readouterr()
    assert JOB in captured.out
    assert "several jobs have the name digits: this is the newest, 00000001; before it 000000aa" in captured.err
    assert run("stop", "00000001", "--json") == 0
    assert [request.path for request in service.seen] == [
        "/v1/jobs/resolve?ref=digits", f"/v1/jobs/{JOB}",
        "/v1/jobs/resolve?ref=00000001", f"/v1/jobs/{JOB}/cancel",
    ]  # fmt: skip


def test_a_name_of_several_jobs_is_refused_with_them(service: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    problem = {
        "code": "ambiguous_reference",
        "detail": "'0' stands for several jobs: a, b",
        "candidates": [{"id": "a"}],
    }
    service.on("GET", "/v1/jobs/resolve", (409, problem))
    assert run("logs", "0") == 4
    assert "stands for several jobs: a, b" in capsys.readouterr().err
    with pytest.raises(AmbiguousReference) as refused, Client() as client:
        client.job("0")
    assert [one.id for one in refused.value.candidates] == ["a"]


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("show ", {"00000001", "digits", "@last"}),
        ("show 0", {"00000001"}),
        ("logs dig", {"digits"}),
        ("logs --stream stdout,s", {"stdout,stderr", "stdout,shard", "stdout,service"}),
        ("list --state queued,f", {"queued,failed"}),
        ("list --pool ", {"default"}),
        ("drain h", {"host-a"}),
        ("submit --from @", {"@last"}),
        ("group show ", {"00000002", "lr", "@last"}),
    ],
)
def test_the_shell_is_offered_what_the_service_has(
    service: Stub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, typed: str, offered: set[str]
) -> None:
    service.on("GET", "/v1/jobs", jobs_of({}))
    service.on("GET", "/v1/pools", (200, {"pools": [{"name": "default", "devices": 2}]}))
    service.on("GET", "/v1/nodes", (200, {"nodes": [{"id": "host-a", "alive": True}]}))
    group = {"id": f"{2:032}", "name": "lr", "state": "running", "jobs": 2, "created_at": "2026-01-01T00:00:00Z"}
    service.on("GET", "/v1/sweeps", (200, {"sweeps": [group]}))
    service.on("GET", "/v1/comparisons", (200, {"comparisons": []}))
    monkeypatch.setenv("_SHARDYARD_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"shardyard {typed}")
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split(" "))))
    with pytest.raises(SystemExit):
        cli.app(prog_name="shardyard")
    assert set(capsys.readouterr().out.split()) >= offered
    if not typed.endswith(" "):
        assert all(word.startswith(typed.split(" ")[-1]) for word in offered)


def test_a_shell_is_offered_nothing_by_a_service_that_is_away(
    service: Stub, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDYARD_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("_SHARDYARD_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "shardyard show 0")
    monkeypatch.setenv("COMP_CWORD", "2")
    with pytest.raises(SystemExit):
        cli.app(prog_name="shardyard")
    captured = capfd.readouterr()
    assert (captured.out.strip(), captured.err) == ("", "")


# -- specs in YAML, and changed ones -----------------------------------------------------------------


def test_a_spec_in_yaml_is_sent_as_json_with_the_changes_that_are_set(
    service: Stub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = tmp_path / "job.yaml"
    spec.write_text("name: no\nprogram:\n  optimizer: {ref: sgd, args: {lr: 1e-3}}  # 1e-3 is a number\n")
    service.on("POST", "/v1/jobs", (201, STATUS))

    assert run("submit", str(spec), "--set", "program.data.batch_size=64", "--set", "labels.team=vision") == 0

    assert json.loads(service.seen[0].body) == {
        "name": "no",
        "program": {"optimizer": {"ref": "sgd", "args": {"lr": 0.001}}, "data": {"batch_size": 64}},
        "labels": {"team": "vision"},
    }
    spec.write_text("a: [1\n")
    assert run("submit", str(spec)) == 2
    assert "job.yaml is not YAML, line 2" in capsys.readouterr().err


def test_the_spec_of_a_job_is_submitted_again_with_changes(service: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    service.on("GET", "/v1/jobs/resolve", (200, STATUS | {"matched": "last"}))
    service.on("GET", f"/v1/jobs/{JOB}", (200, STATUS | {"spec": {"name": "digits", "program": {"epochs": 3}}}))
    service.on("POST", "/v1/jobs", (201, STATUS))

    assert run("submit", "--from", "@last", "--set", "program.epochs=9", "--set", "name=null") == 0

    assert json.loads(service.seen[-1].body) == {"program": {"epochs": 9}}
    assert run("submit", "--from", "@last", "job.json") == 2
    assert run("submit", "--from", "@last", "--script", "train.py") == 2


# -- logs --------------------------------------------------------------------------------------------


def test_lines_of_a_log_are_chosen_by_age_pattern_rank_and_stream(
    service: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        {"device": 0, "text": "step 1 loss 3", "at": "2026-01-01T00:00:00Z"},
        {"device": 1, "text": "step 2", "at": "2099-01-01T00:00:00Z"},
        {"device": 1, "text": "Loss 2", "at": "2099-01-01T00:00:00Z"},
    ]
    page, no_more = {"attempt": 1, "lines": lines, "next": "c"}, {"attempt": 1, "lines": [], "next": "c"}
    for options, out in (
        (("--since", "1h"), "1| step 2\n1| Loss 2\n"),
        (("--grep", "loss"), "0| step 1 loss 3\n"),
        (("--grep", "(?i)LOSS", "--since", "1d"), "1| Loss 2\n"),
    ):
        service.on("GET", f"/v1/jobs/{JOB}/logs", (200, page), (200, no_more))
        assert run("logs", JOB, *options) == 0
        assert capsys.readouterr().out == out
    service.on("GET", f"/v1/jobs/{JOB}/logs", (200, no_more))
    service.seen.clear()
    assert run("logs", JOB, "--rank", "3", "--stderr", "--attempt", "2") == 0
    assert all(asked in service.seen[0].path for asked in ("rank=3", "stream=stderr", "attempt=2"))
    assert run("logs", JOB, "--stderr", "--stream", "all") == 2
    assert run("logs", JOB, "--grep", "(") == 2
    assert "--grep '(' is not a regular expression" in capsys.readouterr().err


def test_lines_in_a_terminal_have_the_colours_of_their_devices(
    service: Stub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [{"device": 0, "text": "[a]"}, {"device": 1, "text": "b", "stream": "stderr"}]
    page, no_more = {"attempt": 1, "lines": lines, "next": "c"}, {"attempt": 1, "lines": [], "next": "c"}
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    for options, out in (
        ((), "\x1b[36m0| \x1b[0m[a]\n\x1b[35m1| \x1b[0m\x1b[31mb\x1b[0m\n"),
        (("--no-color",), "0| [a]\n1| b\n"),
    ):
        service.on("GET", f"/v1/jobs/{JOB}/logs", (200, page), (200, no_more))
        assert run("logs", JOB, *options) == 0
        assert capsys.readouterr().out == out


# -- the help ----------------------------------------------------------------------------------------


def test_flags_have_no_type_in_the_help_and_aliases_lead_to_their_commands(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (("list",), ("webhook", "add"), (), ("worker",), ("submit",)):
        assert run(*command, "--help") == 0
        assert "<bool>" not in capsys.readouterr().out
    assert run("--version") == 0
    assert capsys.readouterr().out == f"{__version__}\n"
    for alias in ALIASES:
        assert run(alias, "--help") == 0
        assert f"shardyard {alias}" in capsys.readouterr().out
