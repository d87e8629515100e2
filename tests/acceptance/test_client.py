"""The Python client against the whole service: blocking, awaiting, over restarts, in a notebook, as documented."""

import asyncio
import contextlib
import doctest
import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shardyard import AsyncClient, Client, Job, errors
from shardyard.client import endpoints, events, operations
from tests.acceptance.harness import Up, wait_until
from tests.acceptance.test_up import digits

pytestmark = pytest.mark.acceptance

DOCUMENT = Path(__file__).parents[2] / "docs" / "client.md"
#: Prints numbered lines for some seconds.
TALKS = """
import sys, time
for number in range(int(sys.argv[1])):
    print("line", number, flush=True)
    time.sleep(0.01)
"""
KEEPS = """
from shardyard import job
for step in range(12_000):
    job.log("many", step, step)
(job.output_dir() / "note.txt").write_text("kept")
"""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    up = Up(tmp_path_factory.mktemp("client"), "--devices", "cpu:8")
    up.start()
    yield up
    up.close()


@pytest.fixture
def client(up: Up, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """One that finds its service by itself."""
    for name in ("SHARDYARD_URL", "SHARDYARD_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SHARDYARD_DATA_DIR", str(up.data_dir))
    with Client() as client:
        yield client
        client.cancel_jobs(all=True)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "talks.py").write_text(TALKS)
    (tmp_path / "keeps.py").write_text(KEEPS)
    return tmp_path


def short(name: str = "") -> dict[str, Any]:
    spec = digits(epochs=1)
    return spec | ({"name": name} if name else {})


def kill_api(up: Up) -> None:
    """Without a word; `up` starts it again."""
    os.kill(up.pids()["api"], signal.SIGKILL)


# -- as documented ---------------------------------------------------------------------------------


def test_every_example_of_the_document_does_what_it_says(client: Client, project: Path) -> None:
    text = "\n".join("" if line.startswith("```") else line for line in DOCUMENT.read_text().splitlines())
    test = doctest.DocTestParser().get_doctest(text, {}, DOCUMENT.name, str(DOCUMENT), 0)
    said: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=said.append)
    assert result.attempted > 30
    assert result.failed == 0, "".join(said)


# -- blocking --------------------------------------------------------------------------------------


def test_a_list_is_every_job_once_newest_first_over_all_pages(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.submit(digits(epochs=100_000) | {"resources": {"devices": 8}, "parallelism": {"strategy": "dp"}})
    made = [client.submit(short("many") | {"resources": {"devices": 8}}).id for _ in range(120)]
    monkeypatch.setattr(operations, "JOBS_PER_PAGE", 50)
    asked: list[object] = []
    fetch = endpoints.list_jobs

    def counted(**filters: Any) -> Any:
        asked.append(filters)
        return fetch(**filters)

    monkeypatch.setattr(endpoints, "list_jobs", counted)

    found = [job.id for job in client.jobs(name="many", state="queued")]

    assert found == sorted(made, reverse=True)
    assert len(asked) >= 3
    assert [job.id for job in client.jobs(name="many", limit=7)] == found[:7]
    assert client.cancel_jobs(name="many") == (120, 0)


def test_a_job_of_a_list_says_the_rest_when_it_is_asked(client: Client) -> None:
    client.submit(short("listed")).wait(timeout=60)
    (job,) = client.jobs(name="listed")
    assert job.status.global_batch_size == 64
    again = job.resubmit()
    assert again.status.parent_id == job.id
    again.wait(timeout=60)
    again.delete()
    with pytest.raises(errors.NotFound):
        again.refresh()


def test_waiting_ends_in_time_and_the_job_goes_on(client: Client) -> None:
    job = client.submit(digits(epochs=100_000))
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"has not ended within 1\.5 seconds"):
        job.wait(timeout=1.5)
    assert 1 < time.monotonic() - began < 20, "long before a poll gives up"
    assert not job.refresh().ended
    with pytest.raises(errors.JobNotFinished):
        job.delete()
    job.cancel()
    with pytest.raises(errors.JobFailed, match="was cancelled"):
        job.wait(timeout=60)
    assert job.state == "cancelled"
    assert job.cancel().state == "cancelled", "the same answer again"
    done = client.submit(short()).wait(timeout=60)
    with pytest.raises(errors.JobFinished):
        done.cancel()


def test_following_and_waiting_bear_a_restart_without_a_gap_or_a_repeat(up: Up, client: Client, project: Path) -> None:
    job = client.submit_script("talks.py", ["350"])
    waited: list[str] = []
    waiting = threading.Thread(target=lambda: waited.append(client.job(job.id).wait(timeout=90).state))
    waiting.start()
    lines: list[str] = []
    kinds: list[type] = []
    killed = 0
    for event in job.follow(logs="all"):
        kinds.append(type(event))
        if isinstance(event, events.LogLines):
            lines += [line.text for line in event.lines if line.stream == "stdout"]
        if killed < 2 and len(lines) > 100 * (killed + 1):
            killed += 1
            kill_api(up)
    waiting.join(60)

    assert job.status.state == "succeeded"  # without asking for it
    assert killed == 2
    assert lines == [f"line {number}" for number in range(350)]
    assert waited == ["succeeded"]
    assert kinds[0] is events.StateChanged
    assert kinds[-1] is events.Ended
    assert kinds.count(events.Ended) == 1
    wait_until(lambda: client.missing() == {}, 60)


def test_following_goes_on_behind_an_event_of_another_reader(client: Client, project: Path) -> None:
    job = client.submit_script("talks.py", ["200"]).wait(timeout=60)
    told = [event for event in job.follow(logs=[0]) if isinstance(event, events.LogLines)]
    first, rest = told[0], told[1:]
    after = [event for event in job.follow(logs=[0], after=first.event_id) if isinstance(event, events.LogLines)]
    assert [line.seq for event in after for line in event.lines] == [line.seq for event in rest for line in event.lines]
    ended = [*job.follow()][-1]
    assert [*job.follow(after=ended.event_id)] == []


def test_lines_come_while_the_job_runs_and_end_with_it(client: Client, project: Path) -> None:
    job = client.submit_script(project, ["150"], entrypoint="talks")
    came = [line.text for line in job.logs(follow=True) if line.stream == "stdout"]
    assert came == [f"line {number}" for number in range(150)]
    assert job.refresh().ended
    assert [line.text for line in job.logs(tail=2, stream="stdout")] == came[-2:]


def test_points_and_files_of_a_script_come_whole(client: Client, project: Path) -> None:
    job = client.submit_script("keeps.py", labels={"kind": "keeps"}, name="keeper").wait(timeout=90)
    (series,) = job.metrics("many")
    assert [point.value for point in series.points] == list(range(12_000))
    (few,) = job.metrics("many", points=100)
    assert sum(bucket.count for bucket in few.buckets) == 12_000
    assert "artifacts/note.txt" in [artifact.path for artifact in job.artifacts()]
    saved = job.download("artifacts/note.txt")
    assert (saved, saved.read_text()) == (Path("note.txt"), "kept")
    with pytest.raises(errors.NotFound):
        job.download("artifacts/none", project / "none")
    assert not (project / "none").exists()
    assert [one.attempt for one in job.attempts()] == [1]
    assert [one.id for one in client.jobs(label="kind=keeps")] == [job.id]


def test_the_service_is_run_through_the_client_too(client: Client) -> None:
    (node,) = client.nodes()
    (pool,) = client.pools()
    assert (len(node.devices), pool.devices, pool.name) == (8, 8, node.pool)
    assert client.drain(node.id).draining
    assert not client.undrain(node.id).draining
    token = client.create_token("reader", scopes=["read"])
    with Client(client.url, token.token) as reader:
        assert reader.nodes()
        with pytest.raises(errors.Forbidden):
            reader.submit(short())
    client.revoke_token(token.id)
    assert token.id not in [one.id for one in client.tokens()]
    assert "models" in client.recipes()


@pytest.mark.slow
def test_a_straggler_breaks_a_gate_and_its_twin_does_not(up: Up, client: Client) -> None:
    def train(name: str, straggler: dict[str, Any] | None) -> Job:
        program = digits(8)["program"] | {"max_steps": 120, "straggler": straggler}
        spec = {"name": name, "resources": {"devices": 2}, "parallelism": {"strategy": "ddp"}, "program": program}
        return client.submit(spec)

    slow, twin = train("slow", {"rank": 1, "where": "forward", "milliseconds": 80}), train("twin", None)
    for job in (slow, twin):
        job.wait(timeout=120)
    limits = ["--max-time-imbalance", "1.5", "--max-idle", "0", "--no-finding", "slow-device"]

    def gate(*options: str) -> tuple[int, dict[str, str]]:
        command = [*up.command()[:3], "gate", *options, "-o", "json"]
        run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return run.returncode, {check["name"]: check["outcome"] for check in json.loads(run.stdout)["checks"]}

    code, checks = gate("slow", *limits, "--against", "twin", "--max-slowdown", "1.5", "--wait")
    assert code == 5
    assert checks["succeeded"] == checks["max_idle"] == "passed"
    assert checks["max_time_imbalance"] == checks["no_finding.slow-device"] == "broken"
    assert checks["max_slowdown"] in ("broken", "unclear")  # a busy machine may have held up its twin

    code, checks = gate("twin", *limits, "--against", "slow", "--max-slowdown", "1.05")
    assert code in (0, 6), checks  # times of a busy machine may be too noisy to judge
    assert checks["max_slowdown"] == checks["no_finding.slow-device"] == "passed"
    verdict = slow.gate(max_time_imbalance=1.5)
    assert (verdict.outcome, verdict.checks[1].outcome) == ("broken", "broken")


def test_a_search_for_the_batch_size_tries_and_chooses(up: Up, client: Client, tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(json.dumps(digits(2) | {"resources": {"devices": 2}}))
    options = ["--steps", "120", "--strategies", "single,ddp", "--batch-sizes", "32,64", "-o", "json"]
    command = [*up.command()[:3], "tune", str(tmp_path / "job.json"), *options]

    run = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)

    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert {(trial["strategy"], trial["devices"]) for trial in found["trials"]} == {("single", 1), ("ddp", 2)}
    assert all(trial["rates"] and not trial["problem"] for trial in found["trials"])
    assert found["steps"] == sum(trial["steps"] for trial in found["trials"]) <= 120
    known = {(one["strategy"], one["rows"]): one["rows_per_second"] for one in found["candidates"]}
    chosen = found["chosen"]
    assert known[chosen["strategy"], chosen["rows"]] >= 0.98 * max(known.values())
    labelled = client.jobs(label=f"tune={found['id']}")
    assert {job.id for job in labelled} == {trial["job"] for trial in found["trials"]}


def test_a_cancelled_follower_leaves_nothing_open(client: Client) -> None:
    job = client.submit(digits(epochs=100_000))
    for _ in range(20):
        stream = job.follow()
        assert isinstance(next(stream), events.StateChanged)
        stream.close()
    pool: Any = client._wire._http._transport
    assert len(pool._pool.connections) <= 2
    job.cancel()


# -- awaiting --------------------------------------------------------------------------------------


def test_the_same_is_done_with_await(client: Client, project: Path) -> None:
    async def all_of_it() -> None:
        async with AsyncClient() as own:
            job = await own.submit_script("talks.py", ["30"])
            other = await own.submit(short("awaited"))
            lines: list[str] = []
            async for event in job.follow(logs="all"):
                if isinstance(event, events.LogLines):
                    lines += [line.text for line in event.lines]
            assert lines == [f"line {number}" for number in range(30)]
            assert [line.text async for line in job.logs(follow=True)] == lines
            await asyncio.gather(job.wait(timeout=60), other.wait(timeout=60))
            assert (job.state, other.state) == ("succeeded", "succeeded")
            assert (await other.report()).final
            assert (await other.metrics("loss"))[0].points
            names = [one.path for one in await other.artifacts()]
            saved = await other.download(names[0], project / "saved")
            assert saved.stat().st_size > 0
            (listed,) = [one async for one in own.jobs(name="awaited")]
            with pytest.raises(RuntimeError, match=r"await job\.refresh"):
                _ = listed.status
            assert (await listed.refresh()).status.strategy == "dp"
            assert (await own.plan(short())).patterns
            with pytest.raises(errors.NotFound):
                await own.job("01980000-0000-7000-8000-000000000001")
            assert "succeeded" in listed._repr_html_()

    asyncio.run(all_of_it())


@pytest.mark.slow
def test_an_awaiting_follower_bears_a_restart_too(up: Up, client: Client, project: Path) -> None:
    async def followed() -> list[int]:
        async with AsyncClient() as own:
            job = await own.submit_script("talks.py", ["300"])
            seen: list[int] = []
            killed = False
            async for event in job.follow(logs="all"):
                if isinstance(event, events.LogLines):
                    seen += [line.seq for line in event.lines]
                if len(seen) > 50 and not killed:
                    killed = True
                    kill_api(up)
            assert killed
            return seen

    assert asyncio.run(followed()) == list(range(1, 301))
    wait_until(lambda: client.missing() == {}, 60)


# -- in a notebook ---------------------------------------------------------------------------------


def test_a_notebook_shows_a_job_and_a_report_as_the_picture(client: Client) -> None:
    from IPython.core.interactiveshell import InteractiveShell

    job: Job = client.submit(short("<script>alert(1)</script>")).wait(timeout=60)
    shown = InteractiveShell.instance().display_formatter
    assert shown is not None
    shown.active_types = ["text/html", "text/plain"]

    of_job, of_report = (shown.format(value)[0] for value in (job, job.report()))  # type: ignore[no-untyped-call]

    assert "<svg" in of_job["text/html"]
    assert "succeeded" in of_job["text/html"]
    assert "<script>" not in of_job["text/html"]
    assert "<svg" in of_report["text/html"]
    assert job.report().html().lower().startswith("<!doctype html>")
    assert "SplitReport of job" in of_report["text/plain"]


# -- in a terminal ---------------------------------------------------------------------------------


def _heed_ctrl_c() -> None:
    """A shell starts what runs in the background with SIGINT ignored, and the tests may be that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextlib.contextmanager
def in_a_terminal(columns: int, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[str], str]]]:
    """A command that writes to a terminal; and what waits until words have been written, and gives all that was."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    command = [sys.executable, "-m", "shardyard", *arguments]
    environment = os.environ | {"TERM": "xterm"}
    process = subprocess.Popen(
        command,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env=environment,
        start_new_session=True,
        preexec_fn=_heed_ctrl_c,
    )
    os.close(follower)
    os.set_blocking(leader, False)
    written = bytearray()

    def read(words: str) -> str:
        def said() -> bool:
            with contextlib.suppress(BlockingIOError, OSError):  # nothing yet, or the terminal is closed
                while part := os.read(leader, 65536):
                    written.extend(part)
            return words in written.decode(errors="replace")

        wait_until(said, 60, lambda: written.decode(errors="replace")[-4000:])
        return written.decode(errors="replace")

    try:
        yield process, read
    finally:
        process.kill()
        process.wait(10)
        os.close(leader)


def idle_spec(tmp_path: Path, epochs: int) -> str:
    spec = digits(epochs) | {"name": "watched", "resources": {"devices": 8}}
    spec["program"] |= {"data": {"ref": "digits", "batch_size": 10}}
    file = tmp_path / "spec.json"
    file.write_text(json.dumps(spec))
    return str(file)


def test_a_watched_job_marks_idle_devices_and_goes_on_after_ctrl_c(client: Client, tmp_path: Path) -> None:
    with in_a_terminal(80, "submit", idle_spec(tmp_path, 100_000), "--watch", "--no-color") as (process, read):
        text = read("idle in")
        assert "3 of 8 devices get nothing" in read("warning:")
        assert "watched" in text
        assert "\x1b[33m" not in text, "--no-color"
        process.send_signal(signal.SIGINT)
        assert "shardyard watch" in read("follows it again")
        assert process.wait(60) == 130
    (job,) = client.jobs(name="watched", state="running")
    job.cancel().wait(timeout=60, check=False)


def test_top_shows_a_job_come_and_the_terminal_is_given_back(client: Client, tmp_path: Path) -> None:
    with in_a_terminal(80, "top") as (process, read):
        read("0/8 leased")
        job = client.submit(idle_spec(tmp_path, 100_000))
        assert "watched" in read("8/8 leased")
        job.cancel()
        os.kill(process.pid, 0)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
