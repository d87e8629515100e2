"""The command line against a small HTTP server that answers as the API does."""

import hashlib
import io
import json
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from shardyard import cli
from shardyard.bundling import pack
from shardyard.client import operations

pytestmark = pytest.mark.integration

JOB = "01980000-0000-7000-8000-000000000001"
STATUS: dict[str, Any] = {
    "id": JOB,
    "name": "digits",
    "state": "running",
    "reason": {"code": "running", "message": "running"},
    "pool": "default",
    "devices": 2,
    "strategy": "dp",
    "attempt": 1,
    "created_at": "2026-01-02T03:04:05.000000Z",
    "started_at": "2026-01-02T03:04:05.250000Z",
    "finished_at": None,
    "placement": [{"node": "host-a", "devices": ["cpu:0", "cpu:1"]}],
    "queue_position": None,
    "progress": {
        "epoch": 2, "epochs": 6, "step": 46, "steps": 138, "fraction": 0.33,
        "rows_per_second": 8123.4, "eta_seconds": 4.2, "loss": 0.31,
    },
    "result": None,
    "error": None,
    "spec": {},
}  # fmt: skip
ENDED = {"state": "succeeded", "reason": {"code": "completed", "message": "every rank succeeded"}}
DONE = (
    STATUS
    | ENDED
    | {"finished_at": "2026-01-02T03:04:15.250000Z", "result": {"loss": 0.1, "metrics": {"accuracy": 0.98}}}
)
FAILED = DONE | {
    "state": "failed",
    "reason": {"code": "code_error", "message": "rank 0: ValueError: boom"},
    "result": None,
    "error": {"message": "boom", "traceback": "Traceback ...\nValueError: boom"},
}

REPORT = json.loads((Path(__file__).parents[2] / "docs" / "examples" / "three-of-thirty.json").read_text())


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Stub:
    """Answers each (method, path) with its list of (status, body), the last one for ever."""

    url: str = ""
    answers: dict[tuple[str, str], list[tuple[int, Any]]] = field(default_factory=dict)
    seen: list[Request] = field(default_factory=list)

    def on(self, method: str, path: str, *answers: tuple[int, Any]) -> None:
        self.answers[method, path] = list(answers)

    def answer(self, request: Request) -> tuple[int, Any]:
        self.seen.append(request)
        found = self.answers.get((request.method, request.path.partition("?")[0]))
        if found is None:
            return 404, {"code": "not_found", "detail": f"there is nothing at {request.path}"}
        return found.pop(0) if len(found) > 1 else found[0]


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Stub]:
    stub = Stub()

    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, answer = stub.answer(Request(self.command, self.path, dict(self.headers), body))
            data = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_DELETE = handle_any  # noqa: N815

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    stub.url = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setenv("SHARDYARD_URL", stub.url)
    monkeypatch.setenv("SHARDYARD_TOKEN", "secret")
    monkeypatch.setenv("SHARDYARD_DATA_DIR", str(tmp_path))
    monkeypatch.setattr(operations, "FIRST_PAUSE_SECONDS", 0.01)
    stub.on("GET", f"/v1/jobs/{JOB}/events", stream(END))
    monkeypatch.setattr(operations, "POLL_SECONDS", 0.01)
    yield stub
    server.shutdown()
    thread.join()
    server.server_close()


def stream(*events: tuple[str, dict[str, Any]]) -> tuple[int, str]:
    """An answer with server-sent events."""
    lines = [f"event: {name}\nid: {number}\ndata: {json.dumps(data)}\n\n" for number, (name, data) in enumerate(events)]
    return 200, "".join(lines)


def state(status: dict[str, Any], version: int = 1) -> tuple[str, dict[str, Any]]:
    told = {"job_id": JOB, "state": status["state"], "reason": status["reason"], "attempt": 1, "version": version}
    return "state", told


END = ("end", {"job_id": JOB, "state": "succeeded", "attempt": 1})


def run(*args: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(list(args))
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.fixture
def spec(tmp_path: Path) -> str:
    path = tmp_path / "job.json"
    path.write_text('{"name": "digits"}')
    return str(path)


def test_submit_prints_the_bare_id_in_a_pipe(service: Stub, spec: str, capsys: pytest.CaptureFixture[str]) -> None:
    service.on("POST", "/v1/jobs", (201, STATUS))
    assert run("submit", spec) == 0
    assert capsys.readouterr().out == f"{JOB}\n"
    assert service.seen[0].body == b'{"name": "digits"}'
    assert service.seen[0].headers["Authorization"] == "Bearer secret"


def test_a_submit_that_meets_a_restart_is_repeated_under_one_key(service: Stub, spec: str) -> None:
    service.on(
        "POST", "/v1/jobs", (503, {"code": "unavailable", "detail": "wait"}), (502, "bad gateway"), (201, STATUS)
    )
    assert run("submit", spec) == 0
    keys = {request.headers["Idempotency-Key"] for request in service.seen}
    assert len(service.seen) == 3
    assert len(keys) == 1


def test_a_refused_spec_shows_one_line_per_field_and_exits_2(
    service: Stub, spec: str, capsys: pytest.CaptureFixture[str]
) -> None:
    errors = [{"field": "resources.devices", "message": "too many"}, {"field": "epohcs", "message": "unknown field"}]
    service.on("POST", "/v1/jobs", (422, {"code": "invalid_spec", "detail": "the spec is not valid", "errors": errors}))
    assert run("submit", spec) == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: the spec is not valid",
        "  resources.devices: too many",
        "  epohcs: unknown field",
    ]


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (404, "not_found", 4),
        (401, "unauthenticated", 4),
        (409, "job_finished", 4),
        (500, "internal_error", 4),
        (422, "invalid_request", 2),
        (413, "body_too_large", 2),
        (503, "unavailable", 3),
        (418, "from_the_future", 4),
    ],
)
def test_each_kind_of_refusal_has_its_exit_code(service: Stub, status: int, code: str, expected: int) -> None:
    service.on("POST", f"/v1/jobs/{JOB}/cancel", (status, {"code": code, "detail": "no"}))
    assert run("cancel", JOB) == expected


def test_an_answer_of_a_proxy_is_told_by_its_status(service: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    service.on("GET", "/v1/jobs", (502, "<html>bad gateway"))
    assert run("list") == 3
    assert "502 Bad Gateway" in capsys.readouterr().err


def test_an_unreachable_service_exits_3(service: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list", "--url", "http://127.0.0.1:1") == 3
    assert "http://127.0.0.1:1 cannot be reached" in capsys.readouterr().err


def test_a_missing_file_and_a_wrong_option_exit_2(service: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("submit", "/no/such/file") == 2
    assert run("list", "--no-such-option") == 2
    assert not service.seen


def test_watching_a_job_that_succeeds_exits_0_and_shows_the_result(
    service: Stub, spec: str, capsys: pytest.CaptureFixture[str]
) -> None:
    service.on("POST", "/v1/jobs", (201, STATUS))
    service.on("GET", f"/v1/jobs/{JOB}", (200, STATUS), (503, {"code": "unavailable"}), (200, STATUS), (200, DONE))
    away = (503, {"code": "unavailable", "detail": "Redis is away"})
    service.on("GET", f"/v1/jobs/{JOB}/events", away, stream(state(STATUS)), away, stream(state(DONE, 2), END))
    assert run("submit", spec, "--watch") == 0
    out = capsys.readouterr().out
    assert "digits: running\n" in out
    assert "epoch 2/6  step 46/138  8123 rows/s  ETA 4.20 s  loss 0.31" in out
    assert "succeeded after 10.0 s: loss 0.1, accuracy 0.98" in out


def test_watching_a_job_that_fails_exits_1_and_shows_the_traceback(
    service: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    service.on("GET", f"/v1/jobs/{JOB}", (200, FAILED))
    assert run("watch", JOB) == 1
    out = capsys.readouterr().out
    assert "rank 0: ValueError: boom" in out
    assert "Traceback ..." in out


def test_a_job_that_never_began_has_no_report_to_point_to(service: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    gone = {"state": "cancelled", "reason": {"code": "cancelled_by_user", "message": "cancelled while queued"}}
    service.on("GET", f"/v1/jobs/{JOB}", (200, STATUS | gone | {"attempt": 0, "started_at": None, "progress": None}))
    assert run("watch", JOB) == 1
    assert "shardyard splits" not in capsys.readouterr().out


def test_json_output_is_the_answer_itself(service: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    service.on("GET", f"/v1/jobs/{JOB}", (200, DONE))
    for command in ("show", "watch"):
        assert run(command, JOB, "--json") == 0
        assert json.loads(capsys.readouterr().out) == DONE


def test_show_says_what_is_known_and_leaves_out_the_rest(service: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    service.on("GET", f"/v1/jobs/{JOB}", (200, STATUS))
    assert run("show", JOB) == 0
    out = capsys.readouterr().out
    assert "asks for   2 devices of pool default, dp" in out
    assert "runs on    host-a cpu:0-1" in out
    assert "after 0.25 s" in out
    assert "finished" not in out


def test_list_passes_its_filters_on_and_tells_how_to_go_on(service: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    service.on("GET", "/v1/jobs", (200, {"jobs": [STATUS], "next": "abc"}))
    assert run("list", "--state", "running", "--label", "team=vision", "--limit", "1") == 0
    captured = capsys.readouterr()
    assert JOB[-8:] in captured.out
    assert "--cursor abc" in captured.err
    assert "state=running" in service.seen[0].path
    assert "label=team%3Dvision" in service.seen[0].path


def test_a_list_in_a_pipe_has_aligned_columns_nothing_cut_off_and_no_blanks_at_its_ends(
    service: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    long = STATUS | {"name": 60 * "名", "pool": 63 * "p", "started_at": None}
    service.on("GET", "/v1/jobs", (200, {"jobs": [STATUS | {"name": "a", "state": "failed"}, long], "next": None}))
    assert run("list", "--columns", "id,name,state,pool,runs,created,took") == 0
    header, first, second = capsys.readouterr().out.splitlines()
    assert [line == line.rstrip() for line in (header, first, second)] == [True, True, True]
    assert first.startswith(f"{JOB}  a{' ' * 119}  failed   ")
    assert second.startswith(f"{JOB}  {60 * '名'}  running  {63 * 'p'}  dp on 2")
    assert header.index("STATE") == first.index("failed")
    assert (header.endswith("TOOK"), second.endswith("-")) == (True, True)


def test_logs_follow_over_pages_and_a_second_attempt_until_the_job_ends(
    service: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    def page(*lines: tuple[int, str], attempt: int = 1, ended: bool = False) -> tuple[int, dict[str, Any]]:
        found = [{"device": device, "text": text} for device, text in lines]
        return 200, {"attempt": attempt, "lines": found, "dropped": [], "next": f"c{attempt}", "ended": ended}

    gap = [{"device": 0, "from": 5, "to": 9, "bytes": 120}]
    not_started = (200, {"attempt": 0, "lines": [], "dropped": [], "next": None, "ended": False})
    last = (200, page((1, "again"), attempt=2)[1] | {"dropped": gap})
    service.on(
        "GET",
        f"/v1/jobs/{JOB}/logs",
        not_started,
        page((0, "one"), (1, "two")),
        page(ended=True),
        last,
        page(attempt=2, ended=True),
    )
    service.on("GET", f"/v1/jobs/{JOB}", (200, STATUS | {"attempt": 0}), (200, STATUS | {"attempt": 2}), (200, DONE))
    assert run("logs", JOB, "-f") == 0
    captured = capsys.readouterr()
    assert captured.out == "0| one\n1| two\n1| again\n"
    assert "device 0: lines 5 to 9 could not be kept (120 bytes)" in captured.err
    asked = [request.path for request in service.seen if "/logs" in request.path]
    assert ["after=" in path for path in asked] == [False, False, True, False, True]


def test_splits_are_asked_for_as_text(service: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    service.on("GET", f"/v1/jobs/{JOB}/splits", (200, "the report\n"))
    assert run("splits", JOB, "--device", "1") == 0
    assert capsys.readouterr().out == "the report\n"
    assert service.seen[0].headers["Accept"] == "text/plain"
    assert service.seen[0].path.endswith("?device=1")


def test_pictures_are_written_to_files_or_to_standard_output(
    service: Stub, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    service.on("GET", f"/v1/jobs/{JOB}/splits", (200, "drawn"))
    page, picture = tmp_path / "page.html", tmp_path / "picture.svg"
    assert run("splits", JOB, "--html", str(page), "--svg", str(picture), "--by", "wait") == 0
    assert (page.read_text(), picture.read_text()) == ("drawn", "drawn")
    assert [request.headers["Accept"] for request in service.seen] == ["text/html", "image/svg+xml"]
    assert service.seen[1].path.endswith("?by=wait")
    assert capfdbinary.readouterr().out == b""
    assert run("splits", JOB, "--svg", "-") == 0
    assert capfdbinary.readouterr().out == b"drawn"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--by", "time"), "add --svg FILE or --html FILE"),
        (("--against", JOB, "--svg", "x.svg"), "use --html instead"),
        (("--html", "x.html", "--json"), "leave it out"),
        (("--html", "-", "--svg", "-"), "only one of"),
        (("--html", "/nowhere/at/all.html"), "cannot write /nowhere/at/all.html: No such file or directory"),
    ],
)
def test_pictures_that_cannot_be_written_say_what_to_do(
    service: Stub, options: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    service.on("GET", f"/v1/jobs/{JOB}/splits", (200, "drawn"))
    assert run("splits", JOB, *options) != 0
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_new_token_is_printed_alone(service: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    service.on("POST", "/v1/tokens", (201, {"id": "t1", "token": "sy_secret"}))
    assert run("token", "create", "ci", "--scope", "read") == 0
    assert capsys.readouterr().out == "sy_secret\n"
    assert json.loads(service.seen[0].body) == {"name": "ci", "scopes": ["read"]}
    assert run("token", "create", "gpu-1", "--scope", "node", "--node", "gpu-1") == 0
    assert json.loads(service.seen[1].body) == {"name": "gpu-1", "scopes": ["node"], "node": "gpu-1"}


def test_pools_and_nodes_show_devices_by_what_they_do(service: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    counts = {"devices": 3, "free": 2, "leased": 1, "quarantined": 0, "queued": 4, "nodes": 1, "live_nodes": 1}
    policy = {"box": "user", "network": "host"}
    service.on("GET", "/v1/pools", (200, {"pools": [{"name": "a100"} | counts | policy]}))
    devices = [{"device": i, "label": f"cuda:{i}", "state": "leased" if i == 2 else "free"} for i in range(3)]
    node = {"id": "host-a", "pool": "a100", "alive": True, "draining": False, "stopping": False, "devices": devices}
    service.on("GET", "/v1/nodes", (200, {"nodes": [node]}))
    assert run("pools") == 0
    row = capsys.readouterr().out.splitlines()[1].split()
    assert row == ["a100", "3", "2", "1", "0", "4", "1", "of", "1", "user", "host"]
    assert run("nodes") == 0
    assert capsys.readouterr().out.splitlines()[1].split() == [
        "host-a",
        "a100",
        "up",
        "none",
        "cuda:0-2",
        "cuda:0-1",
        "cuda:2",
        "-",
    ]


def test_nodes_that_are_virtual_or_labelled_say_so_in_columns_of_their_own(
    service: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [
        {"id": "host-a-1", "host": "host-a", "alive": True, "virtual": True},
        {"id": "host-b", "host": "host-b", "alive": True, "topology": "rack-4"},
    ]
    service.on("GET", "/v1/nodes", (200, {"nodes": nodes}))
    assert run("nodes") == 0
    head, *rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert head[-2:] == ["HOST", "TOPOLOGY"]
    assert [row[-3:] for row in rows] == [["host-a", "(virtual)", "-"], ["-", "host-b", "rack-4"]]


def test_a_list_says_of_each_job_on_how_many_nodes_it_runs(service: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    known = {"state": "running", "created_at": "2026-01-02T03:04:05Z", "strategy": "ddp", "devices": 4}
    service.on("GET", "/v1/jobs", (200, {"jobs": [{"id": "a"} | known, {"id": "b", "nodes": 2} | known]}))
    assert run("list") == 0
    _, one, two = capsys.readouterr().out.splitlines()
    assert "ddp on 4  " in one
    assert "ddp on 4 x 2 nodes" in two


def test_a_node_without_the_box_of_its_pool_is_called_so_and_says_what_it_lacks(
    service: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    rights = [{"name": "files", "has": True}, {"name": "account", "has": False, "why": "the worker is not root"}]
    boxed = {"id": "host-a", "alive": True, "unboxed": True, "box": {"level": "user", "rights": rights}}
    service.on("GET", "/v1/nodes", (200, {"nodes": [boxed, {"id": "host-b", "alive": True}]}))
    assert run("nodes") == 0
    _, first, second = capsys.readouterr().out.splitlines()
    assert first.split() == ["host-a", "unboxed", "user", "-", "-", "-", "-"]
    assert second.split()[:3] == ["host-b", "up", "none"]
    assert run("nodes", "--box") == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["NODE", "BOX", "RIGHT", "HAS", "WHY", "NOT"]
    assert [row.split(maxsplit=4) for row in rows] == [
        ["host-a", "user", "files", "yes"],
        ["host-a", "user", "account", "no", "the worker is not root"],
        ["host-b", "none", "-", "-", "its worker is of an earlier version"],
    ]


def test_setting_half_of_a_pools_policy_keeps_the_other_half(service: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    known = {"name": "a100", "nodes": 2, "box": "user", "network": "host", "unboxed": 0}
    service.on("GET", "/v1/pools", (200, {"pools": [known]}), (200, {"pools": [known]}), (200, {"pools": []}))
    service.on(
        "PUT", "/v1/pools/a100", (200, known | {"box": "full", "unboxed": 1}), (200, known | {"network": "none"})
    )
    assert run("pool", "set", "a100", "--box", "full") == 0
    assert capsys.readouterr().out.splitlines() == [
        "a100 takes nodes with a full box; its jobs have the node's network",
        "a100: 1 live node without the box that it demands (full); `shardyard nodes --box` shows why",
    ]
    assert run("pool", "set", "a100", "--network", "none") == 0
    assert "a100 takes nodes with a box; its jobs have no network" in capsys.readouterr().out
    service.on("PUT", "/v1/pools/new", (200, {"name": "new", "box": "full"}))
    assert run("pool", "set", "new", "--box", "full") == 0
    assert "no node serves new now" in capsys.readouterr().out
    sent = [json.loads(request.body) for request in service.seen if request.method == "PUT"]
    assert sent == [
        {"box": "full", "network": "host"},
        {"box": "user", "network": "none"},
        {"box": "full", "network": "none"},
    ]
    assert run("pool", "set", "a100") == 2


def test_nodes_name_devices_that_were_slow_and_show_the_history_of_one(
    service: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    why = "slow in 3 of its last 5 attempts beside different devices: a row took 1.31 times as long as on them"
    devices = [{"device": 0, "label": "cuda:0", "state": "free", "name_in_fleet": "GPU-1", "suspected": why}]
    service.on("GET", "/v1/nodes", (200, {"nodes": [{"id": "host-a", "alive": True, "devices": devices}]}))
    assert run("nodes") == 0
    told = capsys.readouterr().out
    assert f"host-a cuda:0 was {why}." in told
    assert "shardyard nodes --history host-a:cuda:0" in told
    times = {"at": "2026-01-01T00:00:00+00:00", "hours": 1.5}
    lines = [
        {"event": "quarantined", "by": "operator", "quarantine": "slow"} | times,
        {"job": "0199", "attempt": 1, "reason": "completed", "peers": 3, "ms_per_row": 0.5}
        | times
        | {"relative_ms_per_row": 1.314, "slow": True},
        {"job": "another tenant", "reason": "node_lost", "error": "it is gone"} | times,
    ]
    answer = {"id": "GPU-1", "node": "host-a", "label": "cuda:0", "name": "H100", "state": "free", "lines": lines}
    service.on("GET", "/v1/devices/host-a%3Acuda%3A0/history", (200, answer))
    assert run("nodes", "--history", "host-a:cuda:0") == 0
    title, heads, *rows = capsys.readouterr().out.splitlines()
    assert title == "host-a cuda:0 (H100, free)"
    assert heads.split()[:2] == ["WHEN", "JOB"]
    assert rows[0].endswith("quarantined by the operator: slow")
    assert rows[1].split()[2:] == ["0199", "1", "h", "30", "min", "3", "0.5", "1.31", "slow", "completed"]
    assert rows[2].endswith("node_lost: it is gone")


def test_attempts_show_where_each_ran_and_why_it_ended(service: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    times = {"created_at": "2026-01-01T00:00:00+00:00", "started_at": "2026-01-01T00:00:01+00:00"}
    place = [{"node": "host-a", "devices": ["cuda:0", "cuda:1"]}]
    found = [
        {
            "attempt": 1,
            "state": "ended",
            "placement": place,
            "ended_at": "2026-01-01T00:01:01+00:00",
            "reason": {"code": "node_lost", "message": "node host-a is lost [again]"},
        },
        {
            "attempt": 2,
            "state": "claimed",
            "placement": place,
            "reason": None,
            "network": "host",
            "resumed_from": {"step": 200, "attempt": 1},
        },
    ]
    service.on("GET", f"/v1/jobs/{JOB}/attempts", (200, {"attempts": [times | attempt for attempt in found]}))
    assert run("attempts", JOB) == 0
    first, second = capsys.readouterr().out.splitlines()[1:]
    assert first.split()[:3] == ["1", "host-a", "cuda:0-1"]
    assert first.endswith("1 min 00 s  node_lost  node host-a is lost [again]")
    assert second.split()[:6] == ["2", "host-a", "cuda:0-1", "host", "step", "200"]
    assert second.split()[-2:] == ["claimed", "-"]
    assert run("attempts", JOB, "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["attempts"]) == 2


def test_deleting_asks_first(
    service: Stub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    service.on("DELETE", f"/v1/jobs/{JOB}", (200, {}))
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert run("delete", JOB) == 1
    assert not service.seen
    assert run("delete", JOB, "--yes") == 0
    assert service.seen[0].method == "DELETE"


def test_config_lists_every_setting_and_shows_no_secret(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHARDYARD_REDIS_URL", "redis://:hush@host/0")
    assert run("config", "--json") == 0
    rows = {row["variable"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["SHARDYARD_REDIS_URL"]["set"] is True
    assert "hush" not in json.dumps(rows)
    assert rows["SHARDYARD_LEASE_SECONDS"]["value"] == 120


def test_a_setting_that_makes_no_sense_exits_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHARDYARD_LEASE_SECONDS", "soon")
    assert run("config") == 2
    assert "SHARDYARD_LEASE_SECONDS" in capsys.readouterr().err


# -- scripts ---------------------------------------------------------------------------------------

LACKING = (422, {"code": "unknown_bundle", "detail": "the service has no such bundle"})


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    (root / ".git").mkdir()  # it is a project
    (root / "train.py").write_text("print('hello')")
    monkeypatch.chdir(root)
    return root


def a_bundle() -> str:
    """The id of what a directory like `project` packs to."""
    with tempfile.TemporaryFile() as file:
        return pack.write_bundle(pack.select_files(Path()), file).id


def bodies(service: Stub, path: str) -> list[bytes]:
    return [request.body for request in service.seen if (request.method, request.path) == ("POST", path)]


def test_a_script_is_sent_when_the_service_lacks_it_and_submitted_under_one_key(
    service: Stub, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service.on("POST", "/v1/jobs", LACKING, (201, STATUS))
    service.on("POST", "/v1/bundles", (201, {"id": a_bundle()}))

    assert run("submit", "--script", "train.py", "--no-watch") == 0

    captured = capsys.readouterr()
    assert captured.out == f"{JOB}\n"
    assert "1 file, 14 B, from" in captured.err
    assert "uploaded" in captured.err
    (sent,) = bodies(service, "/v1/bundles")
    assert "sha256:" + hashlib.sha256(sent).hexdigest() == a_bundle()
    first, second = bodies(service, "/v1/jobs")
    assert first == second
    assert json.loads(first)["program"]["bundle"] == a_bundle()
    assert len({request.headers["Idempotency-Key"] for request in service.seen if request.path == "/v1/jobs"}) == 1


def test_a_script_that_the_service_has_is_not_sent_again(service: Stub, project: Path) -> None:
    service.on("POST", "/v1/jobs", (201, STATUS))
    assert run("submit", "--script", "train.py", "--no-watch") == 0
    assert [request.path for request in service.seen] == ["/v1/jobs"]


def test_an_upload_that_meets_a_restart_is_sent_whole_again(service: Stub, project: Path) -> None:
    service.on("POST", "/v1/jobs", LACKING, (201, STATUS))
    service.on("POST", "/v1/bundles", (503, {"code": "unavailable", "detail": "wait"}), (201, {"id": a_bundle()}))
    assert run("submit", "--script", "train.py", "--no-watch") == 0
    first, second = bodies(service, "/v1/bundles")
    assert first == second
    assert first.startswith(b"PK")


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        ((422, {"code": "bad_bundle", "detail": "'a' is a link"}), 2, "'a' is a link"),
        ((413, {"code": "body_too_large", "detail": "10 bytes at most"}), 2, "too large: 10 bytes at most; --exclude"),
        ((201, {"id": "sha256:other"}), 4, "sha256:other"),
    ],
)
def test_a_bundle_that_the_service_does_not_take_ends_the_submit(
    service: Stub, project: Path, capsys: pytest.CaptureFixture[str], answer: tuple[int, Any], code: int, words: str
) -> None:
    service.on("POST", "/v1/jobs", LACKING)
    service.on("POST", "/v1/bundles", answer)
    assert run("submit", "--script", "train.py", "--no-watch") == code
    assert words in capsys.readouterr().err
    assert len(bodies(service, "/v1/jobs")) == 1


def test_a_script_is_followed_line_by_line_to_its_end(
    service: Stub, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def printed(device: int, seq: int, stream: str, text: str) -> tuple[str, dict[str, Any]]:
        line = {"seq": seq, "at": "2026-01-02T03:04:05.000000Z", "stream": stream, "rank": 0, "step": None}
        return "log", {"attempt": 1, "device": device, "lines": [line | {"text": text, "continued": False}]}

    advice = "the pool has no GPU; run it with --rehearse"
    service.on("POST", "/v1/jobs", (201, STATUS))
    failed = FAILED | {"error": FAILED["error"] | {"advice": advice}}
    service.on("GET", f"/v1/jobs/{JOB}", (200, STATUS), (200, STATUS), (200, failed))
    service.on(
        "GET",
        f"/v1/jobs/{JOB}/events",
        stream(printed(0, 1, "stdout", "one"), printed(1, 1, "shard", "step 0 rows 10"), state(STATUS)),
        stream(printed(0, 1, "stdout", "one"), printed(1, 2, "stderr", "[red]two"), state(FAILED, 2), END),
    )
    finding = {"code": "no-work-done", "severity": "warning", "message": "nothing ran", "suggestion": ""}
    service.on("GET", f"/v1/jobs/{JOB}/splits", (200, REPORT | {"findings": [finding]}))
    kept = [{"path": "report.json", "kind": "report"}, {"path": "files/model.pt", "kind": "file"}]
    left_out = [{"reason": "limit", "message": "big.bin (3.0 GiB) was not kept: ..."}]
    service.on("GET", f"/v1/jobs/{JOB}/artifacts", (200, {"artifacts": kept, "left_out": left_out}))

    assert run("submit", "--script", "train.py") == 1

    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert [line for line in lines if "| " in line] == ["0| one", "1| [red]two"]
    assert lines.index("digits: running") < lines.index("0| one") < lines.index("1| [red]two")
    assert lines.count("rank 0: ValueError: boom") == 1
    assert "Traceback ..." not in lines  # it is among the lines of a real job
    assert advice in lines
    assert "warning: nothing ran" in lines
    assert f"1 file kept: shardyard artifacts {JOB[-8:]}" in lines
    assert "big.bin (3.0 GiB) was not kept: ..." in lines
    assert f"digits is running: {JOB[-8:]}" in captured.err


def test_shard_lines_are_watched_and_read_on_demand(service: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [{"seq": 1, "stream": "stdout", "text": "own"}, {"seq": 2, "stream": "shard", "text": "In Model"}]
    event = ("log", {"attempt": 1, "device": 0, "lines": lines})  # an earlier version sends lines of all streams
    service.on("GET", f"/v1/jobs/{JOB}", (200, STATUS), (200, DONE))
    service.on("GET", f"/v1/jobs/{JOB}/events", stream(event, END))
    page = {"attempt": 1, "lines": [lines[1] | {"device": 0}], "next": "c1", "ended": True}
    service.on("GET", f"/v1/jobs/{JOB}/logs", (200, page), (200, page | {"lines": []}))
    assert run("watch", JOB, "--stream", "shard") == 0
    assert [line for line in capsys.readouterr().out.splitlines() if "| " in line] == ["0| In Model"]
    assert run("logs", JOB, "--stream", "shard") == 0
    assert capsys.readouterr().out == "0| In Model\n"
    asked = [request.path for request in service.seen if "/events" in request.path or "/logs" in request.path]
    assert len(asked) == 3
    assert all("stream=shard" in path for path in asked)


def test_observe_is_set_for_a_script_and_in_a_spec(service: Stub, project: Path) -> None:
    service.on("POST", "/v1/jobs", (201, STATUS))
    assert run("submit", "--script", "train.py", "--no-watch", "--observe", "off") == 0
    assert run("submit", "--script", "train.py", "--no-watch") == 0
    (project / "job.json").write_text('{"name": "a", "observe": "off"}')
    assert run("submit", "job.json", "--observe", "every") == 0
    sent = bodies(service, "/v1/jobs")
    assert [json.loads(body).get("observe") for body in sent] == ["off", None, "every"]
    assert run("submit", "job.json", "--observe", "some") == 2


def test_lines_that_the_stream_passed_over_are_fetched_and_none_is_printed_twice(
    service: Stub, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def line(seq: int, text: str = "") -> dict[str, Any]:
        return {"seq": seq, "stream": "stdout", "rank": 0, "device": 0, "text": text or f"line {seq}"}

    def log(*numbers: int) -> tuple[str, dict[str, Any]]:
        return "log", {"attempt": 1, "device": 0, "lines": [line(number) for number in numbers]}

    resync = ("resync", {"reason": "too_slow", "message": "", "logs_after": "behind-2"})
    service.on("POST", "/v1/jobs", (201, STATUS))
    service.on("GET", f"/v1/jobs/{JOB}", (200, STATUS), (200, STATUS), (200, DONE))
    service.on("GET", f"/v1/jobs/{JOB}/events", stream(log(1, 2), resync, log(4, 5, 6), END))
    page = {"attempt": 1, "lines": [line(number) for number in (2, 3, 4)], "next": "behind-4"}
    service.on("GET", f"/v1/jobs/{JOB}/logs", (200, page), (200, page | {"lines": []}))

    assert run("submit", "--script", "train.py") == 0

    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("0| ")]
    assert printed == [f"0| line {number}" for number in range(1, 7)]
    assert [request.path for request in service.seen if "after=behind-2" in request.path]


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ("FileNotFoundError: [Errno 2] No such file or directory: 'data/a.csv'", "data/"),
        ("FileNotFoundError: data/a.csv not found.", "data/"),
        ("RuntimeError: could not find data, run download.sh first", "data/"),
        ("ModuleNotFoundError: No module named 'secrets_here'", "secrets_here.py"),
        ("ModuleNotFoundError: No module named 'data.secrets_here'", ""),
        ("ValueError: data is empty", ""),
    ],
)
def test_a_script_that_misses_what_was_not_sent_is_told_so(
    service: Stub, project: Path, capsys: pytest.CaptureFixture[str], message: str, named: str
) -> None:
    for directory in ("data", "other"):
        (project / directory).mkdir()
        (project / directory / "a.csv").write_text("")
    (project / "secrets_here.py").write_text("")
    (project / ".gitignore").write_text("data/\nother/\nsecrets_*\n")
    service.on("POST", "/v1/jobs", (201, STATUS))
    service.on("GET", f"/v1/jobs/{JOB}", (200, FAILED | {"error": {"message": message}}))
    assert run("submit", "--script", "train.py") == 1
    said = capsys.readouterr().err.splitlines()
    sent = f"{named} was not sent (.gitignore); --include {named.rstrip('/')} sends it"
    assert [line for line in said if "was not sent" in line] == ([sent] if named else [])


def test_a_rehearsal_says_that_it_is_one_when_it_ends(
    service: Stub, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service.on("POST", "/v1/jobs", (201, STATUS))
    service.on("GET", f"/v1/jobs/{JOB}", (200, DONE | {"rehearsal": True}))
    assert run("submit", "--script", "train.py", "--rehearse") == 0
    assert "succeeded (REHEARSAL) after 10.0 s" in capsys.readouterr().out
    assert json.loads(bodies(service, "/v1/jobs")[0])["program"]["rehearse"] is True


def test_the_advice_on_a_failure_is_shown_afterwards_too(service: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    service.on("GET", f"/v1/jobs/{JOB}", (200, FAILED | {"error": FAILED["error"] | {"advice": "rehearse it"}}))
    assert run("show", JOB) == 0
    assert "advice     rehearse it" in capsys.readouterr().out


def test_a_followed_script_in_json_is_its_last_status_alone(
    service: Stub, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service.on("POST", "/v1/jobs", (201, STATUS))
    service.on("GET", f"/v1/jobs/{JOB}", (200, DONE))
    assert run("submit", "--script", "train.py", "--json") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out) == DONE
    assert captured.err == ""


def test_what_a_user_should_know_before_the_run_is_said(
    service: Stub, project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardyard.cli.scripts.LARGE_BYTES", 1024 * 1024)
    (project / "train.py").write_text("import os; os.environ['LOCAL_RANK']")
    (project / "requirements.txt").write_text("torch")
    (project / "weights.bin").write_bytes(bytes(2 * 1024 * 1024))
    (project / "data").symlink_to("/")
    service.on("POST", "/v1/jobs", (201, STATUS))

    assert run("submit", "--script", "train.py", "--no-watch") == 0
    said = capsys.readouterr().err
    assert "left out: data/ (a link out of the directory, to /)" in said
    assert "large: weights.bin 2.0 MiB;" in said
    assert "requirements.txt is not installed" in said
    assert "--strategy ddp would start one process per device" in said

    assert run("submit", "--script", "train.py", "--no-watch", "--strategy", "ddp", "--python", "mine") == 0
    said = capsys.readouterr().err
    assert "requirements.txt" not in said
    assert "--strategy" not in said


def test_top_in_a_pipe_prints_once_what_there_is(service: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    devices = [{"device": i, "label": f"cpu:{i}", "state": "leased" if i < 2 else "free", "job": JOB} for i in range(4)]
    service.on("GET", "/v1/jobs", (200, {"jobs": [STATUS], "next": None}))
    service.on("GET", f"/v1/jobs/{JOB}", (200, STATUS))
    service.on("GET", "/v1/nodes", (200, {"nodes": [{"id": "host-a", "alive": True, "devices": devices}]}))
    service.on("GET", "/v1/pools", (200, {"pools": [{"name": "default", "devices": 4, "free": 2, "leased": 2}]}))
    assert run("top") == 0
    out = capsys.readouterr().out
    assert "2/4 leased, 2 free" in out
    assert "host-a AA··" in out
    assert "33% 8123 rows/s" in out
    assert len(service.seen) == 6


def test_top_asks_for_what_was_chosen(service: Stub, capsys: pytest.CaptureFixture[str]) -> None:
    service.on("GET", "/v1/jobs", (200, {"jobs": [], "next": None}))
    service.on("GET", "/v1/nodes", (200, {"nodes": []}))
    service.on("GET", "/v1/pools", (200, {"pools": []}))
    assert run("top", "--state", "queued", "--label", "team=vision") == 0
    asked = [request.path for request in service.seen if request.path.startswith("/v1/jobs")]
    assert asked == ["/v1/jobs?state=queued&limit=200&label=team%3Dvision"]


def test_a_job_is_explained_in_sentences_that_a_terminal_does_not_obey(
    service: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = ["queued: needs 1 in pool default", "before it: 1 job of yours\x1b[2J"]
    reason = {"code": "waiting_for_devices", "message": ""}
    service.on(
        "GET", f"/v1/jobs/{JOB}/explain", (200, {"id": JOB, "state": "queued", "reason": reason, "summary": summary})
    )
    assert run("explain", JOB) == 0
    assert capsys.readouterr().out.splitlines() == [summary[0], "before it: 1 job of yours\\x1b[2J"]


def test_shares_are_shown_with_what_is_due_and_a_weight_is_set_for_a_named_tenant(
    service: Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = {"pool": "a100", "device_seconds": 7200.0, "devices": 3, "used_part": 0.75, "due_part": 0.5}
    share = {"tenant": "acme", "weight": 1.0, "pools": [pool]}
    service.on("GET", "/v1/shares", (200, {"shares": [share]}))
    service.on("PUT", "/v1/shares/acme", (200, share | {"weight": 2.0}))
    assert run("share") == 0
    assert " ".join(capsys.readouterr().out.splitlines()[-1].split()) == "acme 1 a100 3 2 h 00 min 75 % 50 %"
    assert run("share", "acme", "--weight", "2") == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[:2] == ["acme", "2"]
    assert run("share", "--weight", "2") == 2
    assert "shardyard share TENANT" in capsys.readouterr().err
    assert json.loads(service.seen[-1].body) == {"weight": 2.0}
