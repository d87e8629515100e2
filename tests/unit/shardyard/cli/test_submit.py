"""What `shardyard submit` makes of a command line before it talks to anyone."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from jobs.model import spec
from jobs.model.spec_rules import parse_spec
from shardyard import cli
from shardyard.bundling import doubts
from shardyard.cli.submit import PANEL


@pytest.fixture(autouse=True)
def project(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A directory of code to stand in, and no service anywhere."""
    root = tmp_path / "project"
    for file in ("train.py", "tools/eval.py", "pkg/train.py", "pkg/__main__.py", "src/lib/run.py", "notes.txt"):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text(f"print({file!r})\n")
    (root / ".git").mkdir()  # never packed
    monkeypatch.chdir(root)
    monkeypatch.delenv("SHARDYARD_URL", raising=False)
    monkeypatch.setenv("SHARDYARD_DATA_DIR", str(tmp_path / "nobody"))
    return root


def run(*args: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(["submit", *args])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def dry(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    assert run("--dry-run", "--json", *args) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    answer: dict[str, Any] = json.loads(captured.out)
    return answer


def refusal(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert run(*args) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return " ".join(captured.err.replace("│", " ").split())


# -- the spec --------------------------------------------------------------------------------------


def test_a_script_becomes_a_spec_that_says_no_more_than_was_said(capsys: pytest.CaptureFixture[str]) -> None:
    answer = dry(capsys, "--script", "train.py", "--", "--epochs", "3", "-n", "--json")

    assert answer["spec"] == {
        "resources": {"devices": 1},
        "parallelism": {"strategy": "single"},
        "program": {
            "kind": "script",
            "bundle": answer["bundle"]["id"],
            "entrypoint": "train.py",
            "args": ["--epochs", "3", "-n", "--json"],
        },
    }


def test_every_option_has_its_field_and_the_spec_is_one_that_the_service_takes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FROM_HERE", "a=b")
    options = (
        "--devices 3 --strategy dp --rehearse --pool a100 --name mine --label team=vision --label a=1 --priority -5"
    )
    more = "--env K=V --env EMPTY= --env FROM_HERE --python torch26 --wall-seconds 60 --max-retries 2"
    more += " --secret HF_TOKEN=hf --secret WANDB_API_KEY=wandb"
    more += " --keep *.pt --keep !tmp/ --artifact-bytes 500"

    made = dry(capsys, "--script", "train.py", *options.split(), *more.split())["spec"]

    wanted = parse_spec(json.dumps(made))
    assert isinstance(wanted.program, spec.ScriptProgram)
    assert (wanted.resources.devices, wanted.parallelism.strategy, wanted.rehearsal) == (3, "dp", True)
    assert (wanted.pool, wanted.name, wanted.priority) == ("a100", "mine", -5)
    assert wanted.labels == {"team": "vision", "a": "1"}
    assert wanted.program.env == {"K": "V", "EMPTY": "", "FROM_HERE": "a=b"}
    assert wanted.secrets == {"HF_TOKEN": "hf", "WANDB_API_KEY": "wandb"}
    assert wanted.program.python == "torch26"
    assert (wanted.limits.wall_seconds, wanted.limits.max_retries) == (60, 2)
    assert (wanted.program.keep, wanted.limits.artifact_bytes) == (("*.pt", "!tmp/"), 500)


def test_a_script_may_ask_for_several_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    for options, strategy in (((), "ddp"), (("--strategy", "fsdp"), "fsdp")):
        spec = dry(capsys, "--script", "train.py", "--devices", "4", "--nodes", "2", *options)["spec"]
        assert spec["resources"] == {"devices": 4, "nodes": 2}
        assert spec["parallelism"] == {"strategy": strategy}


def test_nothing_is_kept_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert dry(capsys, "--script", "train.py", "--no-keep")["spec"]["program"]["keep"] == []
    assert run("--dry-run", "--script", "train.py", "--no-keep", "--keep", "*.pt") == 2


@pytest.mark.parametrize(
    ("named", "entrypoint"),
    [
        (["--script", "tools/eval.py"], "tools/eval.py"),
        (["--script", "./tools/../train.py"], "train.py"),
        (["--script", "tools/eval.py", "--dir", "tools"], "eval.py"),
        (["--script", "eval.py", "--dir", "tools"], "eval.py"),
        (["--module", "pkg.train"], "pkg.train"),
        (["--module", "pkg"], "pkg"),
        (["--module", "accelerate.commands.launch"], "accelerate.commands.launch"),
        (["--module", "lib.run", "--dir", "src"], "lib.run"),
    ],
)
def test_the_entry_point_is_named_from_the_directory_that_is_sent(
    capsys: pytest.CaptureFixture[str], named: list[str], entrypoint: str
) -> None:
    answer = dry(capsys, *named)
    assert answer["spec"]["program"]["entrypoint"] == entrypoint
    assert len(answer["files"]) == (1 if "--dir" in named else 6)


@pytest.mark.parametrize(
    ("args", "start"),
    [
        (("--script", "eval.py"), {"entrypoint": "eval.py", "workdir": "tools"}),
        (("--script", "tools/eval.py"), {"entrypoint": "eval.py", "workdir": "tools"}),
        (("--script", "../train.py"), {"entrypoint": "train.py"}),
        (("--module", "eval"), {"entrypoint": "eval", "workdir": "tools"}),
        (("--module", "pkg.train"), {"entrypoint": "pkg.train"}),
        (("--module", "torch.distributed.run"), {"entrypoint": "torch.distributed.run", "workdir": "tools"}),
    ],
)
def test_a_script_starts_where_its_user_stands(
    capsys: pytest.CaptureFixture[str],
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    args: tuple[str, ...],
    start: dict[str, str],
) -> None:
    monkeypatch.chdir(project / "tools")
    program = dry(capsys, "--dir", "..", *args)["spec"]["program"]
    assert {field: program[field] for field in ("entrypoint", "workdir") if field in program} == start


def test_a_script_by_an_absolute_path_or_through_a_link_to_the_directory_is_found(
    capsys: pytest.CaptureFixture[str], project: Path
) -> None:
    (project.parent / "link").symlink_to(project)
    for script in (project / "train.py", project.parent / "link" / "train.py"):
        assert dry(capsys, "--script", str(script))["spec"]["program"]["entrypoint"] == "train.py"


def test_a_dry_run_lists_files_for_people_and_sends_nothing(capsys: pytest.CaptureFixture[str], project: Path) -> None:
    (project / ".gitignore").write_text("*.txt")

    assert run("--script", "train.py", "--dry-run", "--exclude", "tools") == 0

    out = capsys.readouterr().out
    assert ["train.py", "18", "B"] in [line.split() for line in out.splitlines()]
    assert ["notes.txt", ".gitignore"] in [line.split() for line in out.splitlines()]
    assert ["tools/", "--exclude"] in [line.split() for line in out.splitlines()]
    assert "nothing was sent" in out
    assert '"entrypoint": "train.py"' in out


# -- mistakes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "name one job spec, or a program with --script or --module"),
        (["one.json", "two.json"], "name one job spec"),
        (["train.py"], "train.py is a script, not a job spec: shardyard submit --script train.py"),
        (["job.json", "--devices", "2", "--rehearse"], "--devices, --rehearse: only with --script or --module"),
        (["job.json", "--nodes", "2"], "--nodes: only with --script or --module"),
        (["--script", "train.py", "--module", "pkg"], "give one of them"),
        (["--script", "train.py", "--epochs", "3"], "arguments of the script go after --"),
        (["--script", "tran.py"], "there is no file tran.py; did you mean train.py?"),
        (["--script", "eval.py"], "did you mean tools/eval.py?"),
        (["--script", "train.py", "--dir", "tools"], "train.py is not in the directory that is sent"),
        (["--script", "../elsewhere.py"], "for example --dir .."),
        (["--script", "train.py", "--dir", "nowhere"], "there is no such directory"),
        (["--script", "train.py", "--dir", "notes.txt"], "there is no such directory"),
        (["--script", "pkg"], "pkg is a directory; name the file to run, or a package with --module"),
        (["--script", "notes.txt"], "notes.txt is not a Python file"),
        (["--script", "train.py", "--exclude", "*.py"], "train.py is not sent: --exclude"),
        (["--module", "pkg/train.py"], "a dotted name, for example pkg.train; a file goes with --script"),
        (["--module", "pkg.nothing"], "neither pkg/nothing.py nor pkg/nothing/__main__.py is there"),
        (["--module", "lib.run"], "it is in src: --dir src"),
        (["--script", "train.py", "--env", "NOT_SET_HERE"], "write it as NOT_SET_HERE=VALUE"),
        (["--script", "train.py", "--env", "=V"], "write it as key=value"),
        (["--script", "train.py", "--secret", "HF_TOKEN"], "--secret HF_TOKEN: write it as key=value"),
        (["--script", "train.py", "--label", "vision"], "write it as key=value"),
        (["--script", "train.py", "--strategy", "torchrun"], "torchrun"),
        (["--script", "train.py", "--devices", "0"], "devices"),
        (
            ["--script", "train.py", "--start-after", "tomorrow"],
            "--start-after 'tomorrow' is not a time; write how long",
        ),
        (["job.json", "--start-after", "20:00"], "or a time such as 2026-01-31T20:00"),
        (["--script", "tran.py", "--depends-on", "train"], "there is no file tran.py; did you mean train.py?"),
        (["--script", "train.py", "--nodes", "0"], "nodes"),
    ],
)
def test_a_mistake_is_told_with_what_would_be_right(
    capsys: pytest.CaptureFixture[str], project: Path, args: list[str], words: str
) -> None:
    (project.parent / "elsewhere.py").write_text("")
    (project / "job.json").write_text("{}")
    assert words in refusal(capsys, *args)


def test_a_home_directory_is_sent_on_request_only_and_a_dry_run_says_why(
    capsys: pytest.CaptureFixture[str], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(project))
    for args in (("--script", "train.py"), ("--script", "train.py", "--dir", ".")):
        assert "is your home directory" in refusal(capsys, *args)
        assert "your home directory" in dry(capsys, *args)["doubts"][0]
    assert run("--script", "train.py", "--yes") == 3  # goes on, and finds no service


def test_a_directory_outside_of_a_project_is_sent_when_it_is_named(
    capsys: pytest.CaptureFixture[str], project: Path
) -> None:
    assert dry(capsys, "--script", "tools/eval.py")["doubts"] == []
    (project / ".git").rmdir()
    words = refusal(capsys, "--script", "train.py")
    assert "6 files" in words
    assert "is not a project" in words
    assert "--dir names the directory" in words
    assert run("--script", "train.py", "--dir", ".") == 3
    (project / "pyproject.toml").touch()
    assert run("--script", "train.py") == 3


def test_many_files_and_many_bytes_are_sent_on_request_only(
    capsys: pytest.CaptureFixture[str], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doubts, "MANY_FILES", 6)
    monkeypatch.setattr(doubts, "MANY_BYTES", 5000)
    assert run("--script", "train.py", "--dir", ".") == 3
    (project / "data").mkdir()
    for name in ("a.bin", "b.bin"):
        (project / "data" / name).write_bytes(b"x" * 4000)
    words = refusal(capsys, "--script", "train.py", "--dir", ".")
    assert "it has 8 files, more than 6: data/ 2" in words
    assert "it has 7.9 KiB, more than 4.9 KiB: data/ 7.8 KiB" in words
    assert run("--script", "train.py", "--exclude", "data/") == 3
    assert run("--script", "train.py", "-y") == 3


def test_a_mistake_is_found_before_a_service_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--script", "tran.py") == 2
    assert run("--script", "train.py") == 3
    assert "no service is running" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("2h", 7200.0),
        ("90", 90.0),
        ("20260131", 20_260_131.0),
        ("2026-01-31T20:00+01:00", "2026-01-31T20:00:00+01:00"),
        ("2026-01-31T20:00:00Z", "2026-01-31T20:00:00+00:00"),
        ("2026-07-31T20:00", "2026-07-31T20:00:00+02:00"),
        ("2026-12-31", "2026-12-31T00:00:00+01:00"),
    ],
)
def test_a_start_is_seconds_from_now_or_a_time_by_the_clock_of_this_machine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, given: str, sent: float | str
) -> None:
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    try:
        made = dry(capsys, "--script", "train.py", "--start-after", given)["spec"]
    finally:
        monkeypatch.undo()
        time.tzset()
    assert (made["start_after"], parse_spec(json.dumps(made)).start_after) == (sent, sent)


def test_the_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    assert "shardyard submit --script train.py -- --epochs 3" in " ".join(capsys.readouterr().out.split())


def test_every_option_about_a_script_is_documented() -> None:
    text = (Path(cli.__file__).parents[2] / "docs" / "cli.md").read_text()
    command = get_command(cli.app).commands["submit"]  # type: ignore[attr-defined]
    options = {
        parameter.opts[0] for parameter in command.params if getattr(parameter, "rich_help_panel", None) == PANEL
    }
    assert len(options) > 15
    assert {option for option in options if f"`{option}" not in text} == set()
