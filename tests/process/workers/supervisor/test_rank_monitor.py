"""How an attempt ends, seen by its supervisor's loop: real forked ranks, which do nothing but what a test says."""

import ctypes
import os
import platform
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from jobs.files.log_file import StreamName
from jobs.model import spec
from jobs.model.spec_rules import parse_spec
from jobs.model.state import StateReason, SupervisorCommand
from jobs.protocol.packets import AnyRecord, SingleRecord, StepBatch, encode_packet
from jobs.protocol.records import Began, Hello, Note, Outcome, RankUp, Result, Returned, Step
from tests.support.samples.attempts import a_launch
from tests.support.timing import once_below
from workers.rank.handle import OutputPipe, RankHandle
from workers.supervisor.checkpoints.directories import CheckpointDirectories
from workers.supervisor.checkpoints.writer import AttemptCheckpoints
from workers.supervisor.descendants import open_listener
from workers.supervisor.ending.outcome import AttemptOutcome
from workers.supervisor.main_thread_watch import MainThreadWatch
from workers.supervisor.rank_monitor import DEATH_SECONDS, RankMonitor

SPEC = parse_spec(
    b'{"program": {"mode": "forward", "model": {"ref": "linear"}, "data": {"ref": "random_vectors"}},'
    b' "resources": {"devices": 2}, "parallelism": {"strategy": "ddp"}}'
)

SCRIPT = parse_spec(
    b'{"program": {"kind": "script", "bundle": "sha256:%s", "entrypoint": "train.py"}}' % (b"0" * 64),
)


class FakeLease:
    """Says what the test wants said."""

    def __init__(self) -> None:
        self.command = SupervisorCommand.GO
        self.seconds_since_renewal = 0.0
        self.main_thread = MainThreadWatch()
        self.marked: list[str] = []
        self.profile_request = None

    def record_milestone(self, what: str) -> None:
        self.marked.append(what)


class Published:
    """Keeps what a publisher would send."""

    def __init__(self, on_time: Callable[[], None] = lambda: None) -> None:
        self.text = b""
        self.steps: list[int | None] = []
        self.records: list[tuple[int, StepBatch | SingleRecord]] = []
        self.of_children: list[tuple[int, int, StepBatch | SingleRecord]] = []
        self.sources_ended: list[tuple[int, int]] = []
        self.said: list[str] = []
        self._on_time = on_time

    def add_output(self, device: int, stream: StreamName, rank: int, data: bytes, step: int | None) -> None:
        self.text += data
        self.steps.append(step)

    def log_line(self, text: str) -> None:
        self.said.append(text)

    def add_record(self, rank: int, record: StepBatch | SingleRecord, source: int = 0) -> None:
        if source:
            self.of_children.append((rank, source, record))
        else:
            self.records.append((rank, record))

    def source_ended(self, rank: int, source: int) -> None:
        self.sources_ended.append((rank, source))

    def rank_ended(self, rank: int) -> None:
        pass

    def next_deadline(self) -> float | None:
        return None

    def flush_due(self, now: float) -> None:
        self._on_time()


class Pipes:
    """A rank's own ends."""

    def __init__(self, channel: int, command: int, stdout: int) -> None:
        self.channel = channel
        self._command = command
        self._stdout = stdout

    def send(self, *records: AnyRecord) -> None:
        os.write(self.channel, encode_packet(records))

    def say(self, text: bytes) -> None:
        os.write(self._stdout, text)

    def wait(self) -> None:
        """Until told to leave."""
        os.read(self._command, 1)


Program = Callable[[Pipes], None]


def start(programs: list[Program]) -> list[RankHandle]:
    """One forked rank for each program."""
    ranks: list[RankHandle] = []
    for number, program in enumerate(programs):
        channel, command, stdout = os.pipe(), os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(command[1])
                for rank in ranks:
                    os.close(rank.command)
                program(Pipes(channel[1], command[0], stdout[1]))
            finally:
                os._exit(70)
        for fd in (channel[1], command[0], stdout[1]):
            os.close(fd)
        for fd in (channel[0], stdout[0]):
            os.set_blocking(fd, False)
        outputs = [OutputPipe(stdout[0], number, "stdout")]
        ranks.append(RankHandle(number, pid, os.pidfd_open(pid), channel[0], command[1], -1, -1, outputs))
    return ranks


def watch(
    *programs: Program,
    lease: FakeLease | None = None,
    published: Published | None = None,
    limits: spec.Limits | None = None,
    program: spec.JobSpec = SPEC,
    listener: socket.socket | None = None,
    saving: AttemptCheckpoints | None = None,
) -> AttemptOutcome:
    """Run the loop over ranks that do what `programs` say, and check that it leaves none alive."""
    ranks = start(list(programs))
    chosen = program.model_copy(update={"limits": limits or program.limits})
    launch = replace(a_launch(Path("state"), devices=len(ranks)), spec=chosen, checkpoint_seconds=0.5)
    ending = RankMonitor(
        launch,
        ranks,
        lease or FakeLease(),  # type: ignore[arg-type]
        published or Published(),  # type: ignore[arg-type]
        listener=listener,
        checkpoints=saving,
    ).run()
    assert not any(rank.is_alive for rank in ranks)
    for rank in ranks:
        for fd in (rank.pidfd, rank.channel, rank.command, *(output.fd for output in rank.outputs)):
            os.close(fd)
    return ending


def succeeds(pipes: Pipes) -> None:
    pipes.send(RankUp(0), Outcome(0, 0))
    pipes.wait()
    os._exit(0)


def fails(message: str, code: int = 1, kind: str = "code_error", after: float = 0.0) -> Program:
    def run(pipes: Pipes) -> None:
        time.sleep(after)
        pipes.send(Outcome(0, code, kind, message, "Traceback ..."))
        pipes.wait()
        os._exit(code)

    return run


class Gate:
    """Ranks that are forked while it is there wait at it until another one opens it."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()

    def open(self) -> None:
        os.write(self.writer, b".")

    def wait(self) -> None:
        os.read(self.reader, 1)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    for end in (gate.reader, gate.writer):
        os.close(end)


def behind(gate: Gate, program: Program) -> Program:
    """A program that begins when the gate is open."""

    def run(pipes: Pipes) -> None:
        gate.wait()
        program(pipes)

    return run


def works(pipes: Pipes) -> None:
    pipes.send(RankUp(0))
    time.sleep(60)


#: The number of the system call `exit`, which ends one thread, on this kind of processor.
EXIT_OF_ONE_THREAD = {"x86_64": 60}.get(platform.machine(), 93)


def test_an_attempt_is_completed_when_every_rank_has_reported_success() -> None:
    lease = FakeLease()
    assert watch(succeeds, succeeds, lease=lease) == AttemptOutcome(StateReason.COMPLETED)
    assert lease.marked == ["running"]


def test_the_result_of_rank_0_becomes_the_attempts() -> None:
    def run(pipes: Pipes) -> None:
        pipes.send(Result(0.5, {"accuracy": 0.9}))
        succeeds(pipes)

    assert watch(run, succeeds).result == {"loss": 0.5, "metrics": {"accuracy": 0.9}}


def test_a_rank_that_reports_an_error_ends_the_others_and_is_named() -> None:
    ending = watch(works, fails("ValueError: no", code=3))
    assert (ending.reason, ending.message) == (StateReason.CODE_ERROR, "rank 1: ValueError: no")
    assert ending.error == {
        "rank": 1, "exit_code": 3, "signal": None, "message": "ValueError: no", "traceback": "Traceback ..."
    }  # fmt: skip


def test_the_first_traceback_is_repeated_at_the_end_where_other_ranks_printed_after_it(gate: Gate) -> None:
    def fails_of_it(pipes: Pipes) -> None:
        def ended(*_: object) -> None:
            pipes.say(b"Connection closed by peer\n")
            os._exit(1)

        signal.signal(signal.SIGTERM, ended)
        gate.open()
        while True:
            signal.pause()

    def fails_first(pipes: Pipes) -> None:
        pipes.say(b"Traceback ...\n")
        pipes.send(Outcome(0, 1, "code_error", "ValueError: no", "Traceback ...\nValueError: no\n"))
        pipes.wait()
        os._exit(1)

    published = Published()
    watch(fails_of_it, behind(gate, fails_first), published=published)
    assert published.said == ["rank 1 failed first; its traceback again:", "Traceback ...", "ValueError: no"]
    published = Published()
    watch(works, fails("ValueError: no"), published=published)
    assert published.said == []


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("out_of_memory", StateReason.OUT_OF_MEMORY),
        ("rejected_by_worker", StateReason.REJECTED_BY_WORKER),
        ("a kind of a later version", StateReason.RANK_FAILED),
    ],
)
def test_the_kind_of_an_error_gives_the_reason(kind: str, reason: StateReason) -> None:
    assert watch(fails("no", kind=kind)).reason is reason


def test_the_first_error_counts(gate: Gate) -> None:
    def fails_when_it_is_ended(pipes: Pipes) -> None:
        signal.signal(signal.SIGTERM, lambda *_: fails("second")(pipes))
        gate.open()
        while True:
            signal.pause()

    ending = watch(fails_when_it_is_ended, behind(gate, fails("first")))
    assert ending.message == "rank 1: first"


@pytest.mark.parametrize("delay", [0.0, 0.3])
def test_a_death_counts_before_the_error_that_it_gave_a_peer_even_when_it_shows_later(gate: Gate, delay: float) -> None:
    """A process whose first thread has ended is dying, and is dead when the last one has."""

    def dies_slowly(pipes: Pipes) -> None:
        pipes.send(RankUp(1))
        threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
        gate.open()
        ctypes.CDLL(None).syscall(EXIT_OF_ONE_THREAD, 0)

    ending = watch(behind(gate, fails("RuntimeError: connection closed by peer", after=0.1)), dies_slowly)
    assert ending.message == "rank 1 was killed by SIGKILL"


def test_where_nobody_is_dying_a_failure_ends_the_others_at_once() -> None:
    def took() -> float:
        begun = time.monotonic()
        assert watch(works, fails("ValueError: no")).message == "rank 1: ValueError: no"
        return time.monotonic() - begun

    once_below(DEATH_SECONDS / 2, took)


def test_a_rank_that_reported_before_it_died_is_no_silent_death() -> None:
    def run(pipes: Pipes) -> None:
        pipes.send(Outcome(1, 7, "code_error", "sys.exit(7)"))
        os._exit(7)

    ending = watch(works, run)
    assert ending.message == "rank 1: sys.exit(7)"


def test_an_exit_without_a_report_is_a_failure_whatever_its_code() -> None:
    ending = watch(lambda _: os._exit(0))
    assert ending.message == "rank 0 exited with code 0 before it reported its outcome"


def leaves(code: int) -> Program:
    def run(pipes: Pipes) -> None:
        pipes.send(RankUp(0))
        os._exit(code)

    return run


def returns(code: int, stage: str, then: Program) -> Program:
    """A rank whose program has ended, and what it does after that."""

    def run(pipes: Pipes) -> None:
        outcome = Outcome(0, code, "code_error" if code else "", "ValueError: no" if code else "")
        pipes.send(RankUp(0), Returned(outcome, stage))
        then(pipes)

    return run


def hangs(pipes: Pipes) -> None:
    time.sleep(60)


def has_a_child_at_work(pipes: Pipes) -> None:
    """Its program has ended while its child goes on; when that has ended too, there is a little left to do."""
    child = subprocess.Popen(["sleep", "1.2"])
    pipes.send(RankUp(0), Returned(Outcome(0, 0), "handlers"))
    child.wait()
    time.sleep(0.15)
    pipes.send(Outcome(0, 0))
    pipes.wait()
    os._exit(0)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.supervisor.teardown.TEARDOWN_SECONDS", 0.3)
    monkeypatch.setattr("workers.supervisor.teardown.FAILED_TEARDOWN_SECONDS", 0.2)


@pytest.mark.usefixtures("impatient")
def test_a_rank_that_hangs_in_its_exit_handlers_has_succeeded_all_the_same() -> None:
    published = Published()
    ending = watch(returns(0, "handlers", hangs), succeeds, published=published)
    assert ending == AttemptOutcome(StateReason.COMPLETED)
    assert published.said == ["rank 0 had finished its work and did not end; it was killed"]


@pytest.mark.usefixtures("impatient")
def test_threads_that_go_on_for_ever_are_ended_when_all_other_ranks_are_done() -> None:
    assert watch(returns(0, "threads", hangs), succeeds) == AttemptOutcome(StateReason.COMPLETED)


@pytest.mark.usefixtures("impatient")
def test_threads_of_a_rank_alone_and_of_ranks_among_others_at_work_are_waited_for(gate: Gate) -> None:
    def works_a_little(pipes: Pipes) -> None:
        time.sleep(0.6)
        gate.open()
        succeeds(pipes)

    published = Published()
    assert watch(returns(0, "threads", works_a_little), published=published) == AttemptOutcome(StateReason.COMPLETED)
    gate.wait()
    among_others = watch(returns(0, "threads", works_a_little), behind(gate, succeeds), published=published)
    assert among_others == AttemptOutcome(StateReason.COMPLETED)
    assert published.said == []


def test_processes_that_a_finished_rank_waits_for_are_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.supervisor.teardown.TEARDOWN_SECONDS", 0.9)
    published = Published()
    ending = watch(has_a_child_at_work, published=published)
    assert (ending, published.said) == (AttemptOutcome(StateReason.COMPLETED), [])


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("stage", ["threads", "handlers"])
def test_a_rank_that_has_failed_and_hangs_fails_the_attempt(stage: str) -> None:
    ending = watch(returns(1, stage, hangs), works)
    assert (ending.reason, ending.message) == (StateReason.CODE_ERROR, "rank 0: ValueError: no")


def test_the_first_program_that_failed_is_named_though_another_rank_ends_first(gate: Gate) -> None:
    def takes_its_time(pipes: Pipes) -> None:
        gate.open()
        time.sleep(0.4)
        fails("ValueError: no")(pipes)

    # Later than what the other has said by then: of what is read at once nobody knows what was first.
    ending = watch(behind(gate, fails("connection closed by peer", after=0.2)), returns(1, "handlers", takes_its_time))
    assert ending.message == "rank 1: ValueError: no"


def test_a_script_that_leaves_without_a_word_ends_as_its_exit_code_says() -> None:
    assert watch(leaves(0), program=SCRIPT) == AttemptOutcome(StateReason.COMPLETED)
    assert watch(leaves(4), program=SCRIPT).message == "rank 0 exited with code 4 before it reported its outcome"


def test_a_scripts_error_comes_with_advice() -> None:
    ending = watch(fails("ModuleNotFoundError: No module named 'einops'"), program=SCRIPT)
    assert ending.error is not None
    assert "einops" in ending.error["advice"]


def test_a_rank_that_heeds_no_sigterm_is_killed_after_the_grace(gate: Gate) -> None:
    def works_in_spite_of_sigterm(pipes: Pipes) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        gate.open()
        works(pipes)

    began = time.monotonic()
    ending = watch(works_in_spite_of_sigterm, behind(gate, fails("no")))
    assert ending.message == "rank 1: no"
    assert time.monotonic() - began >= a_launch().grace_seconds


def test_ranks_that_have_reported_leave_at_once_when_the_attempt_fails(gate: Gate) -> None:
    """As real ranks do, they only note SIGTERM: they go when they hear the word, with their own exit codes."""

    def heedless(program: Program) -> Program:
        def run(pipes: Pipes) -> None:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            program(pipes)

        return run

    def opens_the_gate_and_succeeds(pipes: Pipes) -> None:
        gate.open()
        succeeds(pipes)

    ranks = start([heedless(opens_the_gate_and_succeeds), heedless(behind(gate, fails("no", after=0.1)))])
    RankMonitor(replace(a_launch(grace_seconds=30), spec=SPEC), ranks, FakeLease(), Published()).run()  # type: ignore[arg-type]
    assert [rank.status for rank in ranks] == [0, 1]


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        (SupervisorCommand.CANCEL, StateReason.CANCELLED_BY_USER),
        (SupervisorCommand.STOP, StateReason.SERVICE_STOPPED),
        (SupervisorCommand.LOST, StateReason.LEASE_EXPIRED),
    ],
)
def test_an_order_ends_the_ranks(order: SupervisorCommand, reason: StateReason) -> None:
    lease = FakeLease()
    lease.command = order
    assert watch(works, works, lease=lease).reason is reason


class IdleWriter:
    """Nothing is ever saved."""

    def take_messages(self) -> list[str]:
        return []


def test_a_stop_that_is_taken_back_when_ranks_have_heard_of_it_keeps_its_deadline() -> None:
    lease = FakeLease()

    def hears_and_hangs(pipes: Pipes) -> None:
        signal.signal(signal.SIGTERM, lambda *_: pipes.send(Note("heard", "")))
        pipes.send(RankUp(0), Step(0, 0, "train", (0,), 0.0, 1.0))
        while True:
            signal.pause()

    def stop_until_it_is_heard() -> None:
        stepped = any(isinstance(record, StepBatch) for _, record in published.records)
        heard = any(isinstance(record, Note) for _, record in published.records)
        lease.command = SupervisorCommand.STOP if stepped and not heard else SupervisorCommand.GO

    published = Published(stop_until_it_is_heard)
    nowhere = CheckpointDirectories(Path("drafts"), Path("kept"), Path("attempt"))
    saving = AttemptCheckpoints(spec.CheckpointPolicy(every_steps=10), nowhere, IdleWriter(), None, None)  # type: ignore[arg-type]
    limits = spec.Limits(wall_seconds=20)
    ending = watch(hears_and_hangs, lease=lease, published=published, limits=limits, saving=saving)
    assert ending.reason is StateReason.SERVICE_STOPPED
    assert published.said == ["the ranks could not save within 0.5 s; they are ended"]


def test_three_quarters_of_a_lease_without_a_beat_end_the_ranks() -> None:
    lease = FakeLease()
    lease.seconds_since_renewal = 0.76 * a_launch().lease_seconds
    assert watch(works, lease=lease).reason is StateReason.LEASE_EXPIRED


def test_a_run_that_lasts_longer_than_its_limit_is_ended() -> None:
    assert watch(works, limits=spec.Limits(wall_seconds=0.2)).reason is StateReason.WALL_LIMIT


def test_bytes_that_are_no_records_fail_the_rank_and_not_the_supervisor() -> None:
    def run(pipes: Pipes) -> None:
        os.write(pipes.channel, b"\xff" * 100)
        time.sleep(60)

    ending = watch(run)
    assert ending.reason is StateReason.CODE_ERROR
    assert "the rank's channel is corrupt" in ending.message


def test_bytes_that_are_no_records_from_a_rank_that_is_dead_already_are_no_more_than_that() -> None:
    def run(pipes: Pipes) -> None:
        os.write(pipes.channel, b"\xff" * 100)
        os.kill(os.getpid(), signal.SIGKILL)

    assert watch(run).reason in (StateReason.CODE_ERROR, StateReason.RANK_FAILED)


def test_the_last_words_of_a_rank_are_read_and_have_the_step_that_they_belong_to() -> None:
    def run(pipes: Pipes) -> None:
        pipes.send(Step(4, 0, "train", (0,), 0.0, 1.0), Step(9, 0, "eval", (0,), 0.0, 1.0))
        time.sleep(0.2)
        pipes.say(b"last words")
        os.kill(os.getpid(), signal.SIGKILL)

    published = Published()
    watch(run, published=published)
    assert published.text == b"last words"
    assert published.steps == [5]


def test_a_grandchild_that_floods_does_not_keep_the_loop(gate: Gate) -> None:
    def run(pipes: Pipes) -> None:
        pid = os.fork()
        if pid == 0:
            pipes.send(Result(float(os.getpid()), {}))
            pipes.say(b"flood\n" * 1000)
            gate.open()
            while True:
                pipes.say(b"flood\n" * 1000)
        gate.wait()
        succeeds(pipes)

    began = time.monotonic()
    ending = watch(run)
    assert ending.result is not None
    os.kill(int(ending.result["loss"]), signal.SIGKILL)
    assert ending.reason is StateReason.COMPLETED
    assert time.monotonic() - began < 30


# -- processes that ranks start --------------------------------------------------------------------


@pytest.fixture
def place() -> Iterator[Path]:
    """Of a socket; pytest's own directories have names that are too long for one."""
    with TemporaryDirectory(prefix="sy-") as directory:
        yield Path(directory) / "socket"


def has_a_child(child: Callable[[], None]) -> Program:
    """Starts a process, waits for it, and succeeds."""

    def run(pipes: Pipes) -> None:
        pid = os.fork()
        if pid == 0:
            try:
                child()
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        succeeds(pipes)

    return run


def says(place: Path, *records: AnyRecord) -> Callable[[], None]:
    def run() -> None:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(60)
        connection.connect(str(place))
        connection.recv(1)
        connection.sendall(encode_packet([Hello(os.getpid(), os.getppid(), "forked"), *records]))

    return run


def computes() -> None:
    ends = time.process_time() + 0.4
    while time.process_time() < ends:
        pass


def test_what_the_child_of_a_rank_says_counts_for_that_rank(place: Path) -> None:
    lease, published, step = FakeLease(), Published(), Step(0, 0, "train", (), 1.0, 1.0)
    ending = watch(
        succeeds,
        has_a_child(says(place, step)),
        lease=lease,
        published=published,
        listener=open_listener(place),
    )
    assert ending.reason is StateReason.COMPLETED
    assert published.of_children == [(1, 1, StepBatch([step]))]
    assert published.sources_ended == [(1, 1)]
    assert "first_step" in lease.marked


def test_a_child_that_breaks_the_rules_does_not_fail_the_attempt(place: Path) -> None:
    published = Published()
    child = has_a_child(says(place, Outcome(0, 1, "code_error", "no")))
    assert watch(child, published=published, listener=open_listener(place)).reason is StateReason.COMPLETED
    assert [type(record) for _, _, record in published.of_children] == [Note]


@pytest.mark.parametrize(("child", "noted"), [(computes, True), (lambda: None, False)])
def test_work_that_nobody_saw_is_noted(
    place: Path, child: Callable[[], None], noted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.supervisor.rank_monitor.UNSEEN_SECONDS", 0.2)
    published = Published()
    watch(has_a_child(child), published=published, listener=open_listener(place))
    assert any(isinstance(record, Note) for _, record in published.records) is noted


def test_work_that_was_seen_is_not_noted(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.supervisor.rank_monitor.UNSEEN_SECONDS", 0.2)

    def child() -> None:
        computes()
        says(place, Began(0, "train", 1.0))()

    published = Published()
    watch(has_a_child(child), published=published, listener=open_listener(place))
    assert not any(isinstance(record, Note) for _, record in published.records)


def test_what_a_program_raised_tells_no_terminal_what_to_do() -> None:
    ending = watch(fails("RuntimeError: \x1b]0;mine\x07a\x1b[31m red\u202e thing"))
    assert ending.message == "rank 0: RuntimeError: a red thing"
    assert ending.error is not None
    assert ending.error["message"] == "RuntimeError: a red thing"
