"""Commands of the command line against a real API process."""

import io
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs import store
from jobs.files import paths
from jobs.protocol import names
from jobs.store.client import RedisStore
from jobs.support import secret_keys
from shardyard import cli
from shardyard.client import Client, endpoints
from shardyard.contract.errors import BadBundle
from shardyard.contract.report import encode_report
from tests.integration.api.conftest import ADMIN
from tests.integration.api.results.test_splits import a_report
from tests.integration.api.system.test_process import Process, add_node, api_process, until
from tests.support.samples.job_records import a_spec_body
from tests.support.servers.redis_server import RedisServer, redis_server

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("cli-redis")) as server:
        add_node(server)
        yield server


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory, redis: RedisServer) -> Iterator[tuple[Process, Path]]:
    directory = tmp_path_factory.mktemp("cli-api")
    with api_process(directory, redis.url) as process:
        process.port()
        yield process, directory / "storage"


@pytest.fixture(autouse=True)
def service(storage: tuple[Process, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The service that commands talk to; its storage directory."""
    monkeypatch.setenv("SHARDYARD_URL", f"http://127.0.0.1:{storage[0].port()}")
    monkeypatch.setenv("SHARDYARD_TOKEN", ADMIN)
    monkeypatch.setenv("SHARDYARD_DATA_DIR", str(tmp_path))
    return storage[1]


@pytest.fixture
def spec(tmp_path: Path) -> str:
    path = tmp_path / "job.json"
    path.write_text(json.dumps(a_spec_body(3)))
    return str(path)


@pytest.fixture
def job(spec: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert run("submit", spec) == 0
    return capsys.readouterr().out.strip()


def run(*args: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(list(args))
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_a_plan_is_a_table_or_json(spec: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", spec) == 0
    text = capsys.readouterr().out
    assert "ragged-last-batch" in text
    assert ["forward", "1", "3-3", "10", "4", "4", "2"] in [line.split() for line in text.splitlines()]
    assert run("plan", spec, "--json") == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 100


def test_a_plan_of_a_wrong_spec_names_the_field(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(a_spec_body(3) | {"prority": 1}))
    assert run("plan", str(path)) == 2
    assert "prority" in capsys.readouterr().err


def test_a_file_without_a_spec_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.json"
    path.touch()
    assert run("submit", str(path)) == 2
    assert "error: the body is not valid JSON" in capsys.readouterr().err


def test_resubmit_prints_the_id_of_the_new_job(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("resubmit", job) == 0
    again = capsys.readouterr().out.strip()
    assert again != job
    assert run("show", again, "--json") == 0
    assert json.loads(capsys.readouterr().out)["parent_id"] == job


def test_cancel_takes_one_job_or_a_description_of_many(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("cancel", job) == 0
    assert run("resubmit", job) == 0
    assert run("cancel", "--pool", "elsewhere", "--yes") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "0 jobs cancelled, 0 more are being cancelled"
    assert run("cancel", "--all", "--yes", "--json") == 0
    assert json.loads(capsys.readouterr().out)["cancelled"] >= 1


@pytest.mark.parametrize(
    "args", [[], ["x", "--all"], ["--all", "--pool", "default"], ["--pool", "default", "x"], ["--label", "team", "-y"]]
)
def test_a_cancel_that_is_not_clear_does_nothing(args: list[str]) -> None:
    assert run("cancel", *args) == 2


def test_a_cancel_of_many_asks_first(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert run("cancel", "--all") == 1
    assert run("cancel", job) == 0  # it was still there to be cancelled


def test_a_drained_node_says_so_until_it_is_undrained(capsys: pytest.CaptureFixture[str]) -> None:
    run("cancel", "--all", "--yes")
    capsys.readouterr()
    assert run("drain", "host-a", "--deadline", "2h", "--wait") == 0
    assert capsys.readouterr().out == "host-a takes no new work, empty\nhost-a is empty\n"
    assert run("nodes") == 0
    assert "draining" in capsys.readouterr().out
    assert run("undrain", "host-a") == 0
    assert capsys.readouterr().out == "host-a takes work\n"
    assert run("drain", "nobody") == 4
    assert run("drain", "host-a", "--deadline", "soon") == 2


def test_a_device_is_set_apart_by_its_name_and_comes_back(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("quarantine", "host-a", "cpu:1", "--reason", "hot [sometimes]") == 0
    assert capsys.readouterr().out == "host-a cpu:1 is in quarantine\n"
    assert run("nodes") == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("host-a cpu:1 is in quarantine since 20")
    assert last.endswith(": hot [sometimes]")
    assert run("unquarantine", "host-a", "1") == 0
    assert run("nodes") == 0
    assert "is in quarantine" not in capsys.readouterr().out
    assert run("unquarantine", "host-a", "cuda:9") == 4


def test_artifacts_are_listed_and_saved(
    job: str, redis: RedisServer, service: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("cancel", "--all", "--yes")
    control = RedisStore.from_url(redis.url)
    assert run("resubmit", job) == 0
    started = capsys.readouterr().out.split()[-1]
    until(lambda: control.run(store.read_job("default", started)).record.attempt == 1)
    directory = paths.artifacts_dir(paths.attempt_dir(service, "default", started, 1))
    directory.mkdir(parents=True)
    (directory / "a [b] é.bin").write_bytes(b"x" * 3000)
    assert run("artifacts", started) == 0
    assert "artifacts/a [b] é.bin" in capsys.readouterr().out
    target = tmp_path / "saved.bin"
    assert run("artifacts", started, "--get", "artifacts/a [b] é.bin", "-o", str(target)) == 0
    assert target.read_bytes() == b"x" * 3000
    assert run("artifacts", started, "--get", "artifacts/none", "-o", str(tmp_path / "none")) == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.json", "saved.bin"]
    key = names.report_key("default", started, 1)
    control.client.set(key, encode_report(a_report()))
    assert run("splits", started, "--against", started) == 0
    assert "Two split reports side by side" in capsys.readouterr().out
    assert run("splits", started, "--against", started, "--json") == 0
    assert json.loads(capsys.readouterr().out)["this"]["attempt"] == 1
    assert run("splits", started) == 0
    page = tmp_path / "page.html"
    assert run("splits", started, "--html", str(page), "--svg", str(tmp_path / "time.svg"), "--by", "time") == 0
    assert "ragged-last-batch" in page.read_text()
    assert "ms per row" in (tmp_path / "time.svg").read_text()
    assert run("splits", started, "--against", started, "--html", str(page)) == 0
    assert "Two split reports side by side" in page.read_text()
    control.close()


def test_a_job_waits_for_others_that_are_named_in_any_way(
    job: str, spec: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    second = tmp_path / "second.json"
    second.write_text(json.dumps(a_spec_body(3) | {"name": "the-second", "depends_on": ["0198c2f0"]}))
    args = ("--depends-on", job[-8:], "--depends-on", job, "--start-after", "1h", "--json")
    assert run("submit", str(second), *args) == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["spec"]["depends_on"], made["spec"]["start_after"]) == ([job], 3600.0)
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").write_text("print('hello')")
    options = ("--script", "train.py", "--dir", str(tmp_path / "project"), "--no-watch", "--json")
    assert run("submit", *options, "--depends-on", "the-second", "--depends-on", "@last") == 0
    assert json.loads(capsys.readouterr().out)["spec"]["depends_on"] == [made["id"]]
    assert run("submit", spec, "--depends-on", "no-such-job") == 4
    assert "no-such-job" in capsys.readouterr().err


def test_a_script_is_uploaded_once_and_its_job_names_the_bundle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "project"
    root.mkdir()
    (root / "train.py").write_text("print('hello')")
    (root / "empty").mkdir()
    (root / ".git").mkdir()
    monkeypatch.chdir(root)

    assert run("submit", "--script", "train.py", "--no-watch", "--", "--epochs", "3") == 0
    first = capsys.readouterr()
    assert "uploaded" in first.err
    assert run("submit", "--script", "train.py", "--no-watch", "--json") == 0
    second = capsys.readouterr()
    assert second.err == ""

    with Client(os.environ["SHARDYARD_URL"], ADMIN) as client:
        program = client.job(first.out.strip()).status.spec["program"]
        assert (program["entrypoint"], program["args"]) == ("train.py", ["--epochs", "3"])
        assert json.loads(second.out)["spec"]["program"]["bundle"] == program["bundle"]
        assert [(file.path, file.bytes) for file in client.bundle(program["bundle"]).files] == [("train.py", 14)]
        assert client.has_bundle(program["bundle"])
        assert not client.has_bundle("sha256:" + "0" * 64)


def test_a_zip_that_is_none_is_refused_by_name(service: Path) -> None:
    with Client(os.environ["SHARDYARD_URL"], ADMIN) as client, pytest.raises(BadBundle):
        client.upload_bundle(io.BytesIO(b"not a zip"))


def test_nothing_is_uploaded_for_a_job_that_could_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project" / ".git").mkdir(parents=True)
    (tmp_path / "project" / "train.py").write_text("print('never seen before')")
    monkeypatch.chdir(tmp_path / "project")
    sent: list[object] = []
    monkeypatch.setattr(endpoints, "upload_bundle", lambda *given: sent.append(given))

    assert run("submit", "--script", "train.py", "--pool", "nowhere") == 2
    assert run("submit", "--script", "train.py", "--devices", "99") == 2

    said = capsys.readouterr().err
    assert "there is no pool 'nowhere'" in said
    assert "99 devices" in said
    assert sent == []


# -- secrets ---------------------------------------------------------------------------------------


def type_in(monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))


def test_a_secret_is_put_listed_and_removed(
    service: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    key_file = service.parent / "state" / "secret-key"
    type_in(monkeypatch, b"hf_Zq7wvT4mB2nXk8\n")
    assert run("secret", "put", "hf") == 4
    assert f"shardyard secret new-key {key_file}" in capsys.readouterr().err
    assert run("secret", "new-key", str(key_file)) == 0
    assert "has a key now" in capsys.readouterr().out

    type_in(monkeypatch, b"hf_Zq7wvT4mB2nXk8\n")
    assert run("secret", "put", "hf") == 0
    (tmp_path / "pin").write_bytes(b"1234\r\n")
    assert run("secret", "put", "pin", "--from-file", str(tmp_path / "pin")) == 0
    shown = capsys.readouterr()
    assert "hf is stored; jobs name it with --secret VARIABLE=hf" in shown.out
    assert "it is shorter than 8 characters" in shown.err
    with Client(os.environ["SHARDYARD_URL"], ADMIN) as client:
        assert [one.name for one in client.list_secrets()] == ["hf", "pin"]
    assert run("secret", "list") == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == ["NAME", "hf", "pin"]
    assert run("secret", "rm", "pin") == 0
    assert run("secret", "rm", "pin") == 4
    capsys.readouterr()
    assert run("secret", "list", "--json") == 0
    assert [one["name"] for one in json.loads(capsys.readouterr().out)["secrets"]] == ["hf"]

    assert run("secret", "new-key", str(key_file)) == 0
    assert "has a new key before the older one" in capsys.readouterr().out
    assert len(key_file.read_text().split()) == 2


@pytest.mark.parametrize(
    ("typed", "words"), [(b"", "1 to 65,536 bytes"), (b"\xff\xfe", "UTF-8"), (b"x" * 65_537, "1 to 65,536 bytes")]
)
def test_a_value_that_is_none_is_refused_before_it_is_sent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: bytes, words: str
) -> None:
    type_in(monkeypatch, typed)
    assert run("secret", "put", "hf") == 2
    assert words in capsys.readouterr().err


def test_a_file_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("secret", "put", "hf", "--from-file", "nowhere") == 2
    assert "cannot read nowhere: No such file" in capsys.readouterr().err


# -- webhooks and quotas ---------------------------------------------------------------------------


def test_a_webhook_is_added_rotated_and_changed(service: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret_keys.create_key_file(service.parent / "state" / "secret-key")
    assert run("webhook", "add", "https://example.com/hook", "--event", "job.failed", "--json") == 0
    made = json.loads(capsys.readouterr().out)
    assert run("webhook", "rotate", made["id"], "--overlap", "600") == 0
    said = capsys.readouterr().out
    assert "secret: whsec_" in said
    assert made["secret"] not in said
    assert run("webhook", "show", made["id"]) == 0
    assert "used until" in capsys.readouterr().out
    assert run("webhook", "change", made["id"], "--to", "a@example.com") == 2
    assert "format json has none" in capsys.readouterr().err
    assert run("webhook", "add", "--repo", "acme/vision") == 2
    assert "token_secret: a webhook of the format github needs it" in capsys.readouterr().err
    assert run("webhook", "add") == 2
    assert "--to MAIL" in capsys.readouterr().err
    assert run("webhook", "remove", made["id"]) == 0


def test_a_quota_is_shown_with_whose_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("quota", "set", "default", "--jobs", "900") == 0
    assert run("quota", "show") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "tenant default:"
    assert lines[1].split() == ["LIMIT", "USED", "ALLOWED", "FREE", "AGAIN"]
    assert lines[-1] == "token admin: no limits of its own"
    assert run("quota", "remove", "default") == 0


GROUP_SPEC = {
    "name": "digits",
    "program": {
        "model": {"ref": "mlp", "args": {"in_features": 64, "hidden": [8], "out_features": 10}},
        "data": {"ref": "digits", "batch_size": 48},
        "loss": {"ref": "cross_entropy"},
        "optimizer": {"ref": "sgd", "args": {"lr": 0.1}},
    },
}


def test_groups_are_started_listed_shown_reported_and_cancelled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "job.json"
    file.write_text(json.dumps(GROUP_SPEC))
    started = {}
    for name, words in {
        "comparison": ("compare", "--strategies", "single,ddp", "--devices", "1,2", "--steps", "20"),
        "on its devices": ("compare", "--strategies", "dp,ddp"),
        "under its strategy": ("compare", "--devices", "1,2"),
        "values": ("compare", "--sweep", "program.data.batch_size=16,32", "--steps", "20"),
        "grid": ("sweep", "--set", "program.optimizer.ref=sgd,adamw", "--set", "program.seed=[1, 2]"),
        "drawn": ("sweep", "--range", "program.optimizer.args.lr=1e-3:1e-1:log", "--trials", "3", "--seed", "5"),
    }.items():
        assert run(words[0], str(file), *words[1:]) == 0
        started[name] = capsys.readouterr().out.strip()
    with Client() as client:
        assert len(client.comparison(started["comparison"]).variants) == 3
        variants = client.comparison(started["on its devices"]).variants
        assert [(one.strategy, one.devices) for one in variants] == [("dp", 1), ("ddp", 1)]
        variants = client.comparison(started["under its strategy"]).variants
        assert {one.strategy for one in variants} == {"single"}
        assert [one.values for one in client.get_sweep(started["values"]).trials] == [
            {"program.data.batch_size": 16},
            {"program.data.batch_size": 32},
        ]
        assert client.get_sweep(started["values"]).metric == "rows_per_second"
        assert [tuple(one.values.values()) for one in client.get_sweep(started["grid"]).trials] == [
            ("sgd", 1),
            ("sgd", 2),
            ("adamw", 1),
            ("adamw", 2),
        ]
        assert len(client.get_sweep(started["drawn"]).trials) == 3
    assert run("group", "list") == 0
    listed = capsys.readouterr().out
    assert all(group in listed for group in started.values())
    assert run("group", "show", started["comparison"]) == 0
    assert "left out: single on 2" in capsys.readouterr().out
    assert run("group", "show", started["comparison"][-8:]) == 0
    assert "left out: single on 2" in capsys.readouterr().out
    assert run("group", "show", "@last~5") == 0, "the oldest of six"
    assert "left out: single on 2" in capsys.readouterr().out
    assert run("group", "show", "digits", "--json") == 0
    assert json.loads(capsys.readouterr().out)["id"] == started["drawn"], "the newest of that name"
    assert run("group", "show", started["comparison"][:4]) == 4
    assert "stands for several groups" in capsys.readouterr().err
    assert run("group", "show", "@last~99") == 4
    page = tmp_path / "report.html"
    assert run("group", "report", started["grid"], "--html", str(page)) == 0
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert run("group", "report", started["comparison"]) == 0
    assert "not all of its jobs have ended" in capsys.readouterr().out
    for group in started.values():
        assert run("group", "cancel", group) == 0
    assert "4 of 4 jobs ended" in capsys.readouterr().out
    assert run("group", "watch", started["grid"]) == 1, "no job of it succeeded"
    assert run("group", "show", "nothing") == 4
    for wrong in (("compare",), ("sweep",), ("sweep", "--set", "x"), ("sweep", "--range", "program.seed=1")):
        assert run(wrong[0], str(file), *wrong[1:]) == 2
