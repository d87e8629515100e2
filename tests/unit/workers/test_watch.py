"""How an attempt ends, seen by its supervisor's loop: real forked ranks, which do nothing but what a test says."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs import spec
from jobs.logs import StreamName
from jobs.state import Order, Reason
from jobs.telemetry import AnyRecord, Outcome, RankUp, Result, Step, pack
from tests.unit.workers.made import a_launch
from workers.ranks import Output, Rank
from workers.watch import Ending, Watch

SPEC = spec.parse(
    b'{"program": {"mode": "forward", "model": {"ref": "linear"}, "data": {"ref": "random_vectors"}},'
    b' "resources": {"devices": 2}, "parallelism": {"strategy": "ddp"}}'
)


class Lifeline:
    """Says what the test wants said."""

    def __init__(self) -> None:
        self.order = Order.GO
        self.silence = 0.0
        self.marked: list[str] = []

    def mark(self, what: str) -> None:
        self.marked.append(what)


class Published:
    """Keeps what a publisher would send."""

    def __init__(self, on_time: Callable[[], None] = lambda: None) -> None:
        self.text = b""
        self.steps: list[int | None] = []
        self.records: list[tuple[int, AnyRecord]] = []
        self._on_time = on_time

    def output(self, device: int, stream: StreamName, rank: int, data: bytes, step: int | None) -> None:
        self.text += data
        self.steps.append(step)

    def record(self, rank: int, record: AnyRecord) -> None:
        self.records.append((rank, record))

    def rank_ended(self, rank: int) -> None:
        pass

    def deadline(self) -> float | None:
        return None

    def on_time(self, now: float) -> None:
        self._on_time()


class Pipes:
    """A rank's own ends."""

    def __init__(self, channel: int, command: int, stdout: int) -> None:
        self.channel = channel
        self._command = command
        self._stdout = stdout

    def send(self, *records: AnyRecord) -> None:
        os.write(self.channel, pack(records))

    def say(self, text: bytes) -> None:
        os.write(self._stdout, text)

    def wait(self) -> None:
        """Until told to leave."""
        os.read(self._command, 1)


Program = Callable[[Pipes], None]


def start(programs: list[Program]) -> list[Rank]:
    """One forked rank for each program."""
    ranks: list[Rank] = []
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
        outputs = [Output(stdout[0], number, "stdout")]
        ranks.append(Rank(number, pid, os.pidfd_open(pid), channel[0], command[1], -1, outputs))
    return ranks


def watch(
    *programs: Program,
    lifeline: Lifeline | None = None,
    published: Published | None = None,
    limits: spec.Limits | None = None,
) -> Ending:
    """Run the loop over ranks that do what `programs` say, and check that it leaves none alive."""
    ranks = start(list(programs))
    chosen = SPEC.model_copy(update={"limits": limits or SPEC.limits})
    launch = a_launch(Path("state"), devices=len(ranks))
    ending = Watch(launch, chosen, ranks, lifeline or Lifeline(), published or Published()).run()  # type: ignore[arg-type]
    assert not any(rank.alive for rank in ranks)
    for rank in ranks:
        for fd in (rank.pidfd, rank.channel, rank.command, *(output.fd for output in rank.outputs)):
            os.close(fd)
    return ending


def succeeds(pipes: Pipes) -> None:
    pipes.send(RankUp(0, os.getpid(), 1, "2"), Outcome(0, 0))
    pipes.wait()
    os._exit(0)


def fails(message: str, code: int = 1, kind: str = "code_error", after: float = 0.0) -> Program:
    def run(pipes: Pipes) -> None:
        time.sleep(after)
        pipes.send(Outcome(0, code, kind, message, "Traceback ..."))
        pipes.wait()
        os._exit(code)

    return run


def dies(number: int, after: float = 0.0) -> Program:
    def run(pipes: Pipes) -> None:
        time.sleep(after)
        os.kill(os.getpid(), number)

    return run


def works(pipes: Pipes) -> None:
    pipes.send(RankUp(0, os.getpid(), 1, "2"))
    time.sleep(60)


def works_in_spite_of_sigterm(pipes: Pipes) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    works(pipes)


def test_an_attempt_is_completed_when_every_rank_has_reported_success() -> None:
    lifeline = Lifeline()
    assert watch(succeeds, succeeds, lifeline=lifeline) == Ending(Reason.COMPLETED)
    assert lifeline.marked == ["running"]


def test_the_result_of_rank_0_becomes_the_attempts() -> None:
    def run(pipes: Pipes) -> None:
        pipes.send(Result(0.5, {"accuracy": 0.9}))
        succeeds(pipes)

    assert watch(run, succeeds).result == {"loss": 0.5, "metrics": {"accuracy": 0.9}}


def test_a_rank_that_reports_an_error_ends_the_others_and_is_named() -> None:
    ending = watch(works, fails("ValueError: no", code=3))
    assert (ending.reason, ending.message) == (Reason.CODE_ERROR, "rank 1: ValueError: no")
    assert ending.error == {
        "rank": 1, "exit_code": 3, "signal": None, "message": "ValueError: no", "traceback": "Traceback ..."
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("out_of_memory", Reason.OUT_OF_MEMORY),
        ("rejected_by_worker", Reason.REJECTED_BY_WORKER),
        ("a kind of a later version", Reason.RANK_FAILED),
    ],
)
def test_the_kind_of_an_error_gives_the_reason(kind: str, reason: Reason) -> None:
    assert watch(fails("no", kind=kind)).reason is reason


def test_the_first_error_counts() -> None:
    ending = watch(fails("second", after=0.3), fails("first"))
    assert ending.message == "rank 1: first"


@pytest.mark.parametrize("delay", [0.0, 0.03])
def test_a_death_counts_before_the_error_that_it_gave_a_peer_even_when_it_shows_later(delay: float) -> None:
    ending = watch(fails("RuntimeError: connection closed by peer"), dies(signal.SIGKILL, after=delay))
    assert ending.message == "rank 1 was killed by SIGKILL"


def test_a_rank_that_reported_before_it_died_is_no_silent_death() -> None:
    def run(pipes: Pipes) -> None:
        pipes.send(Outcome(1, 7, "code_error", "sys.exit(7)"))
        os._exit(7)

    ending = watch(works, run)
    assert ending.message == "rank 1: sys.exit(7)"


def test_an_exit_without_a_report_is_a_failure_whatever_its_code() -> None:
    ending = watch(lambda _: os._exit(0))
    assert ending.message == "rank 0 left with exit code 0 before it reported its outcome"


def test_a_rank_that_heeds_no_sigterm_is_killed_after_the_grace() -> None:
    began = time.monotonic()
    ending = watch(works_in_spite_of_sigterm, fails("no"))
    assert ending.message == "rank 1: no"
    assert time.monotonic() - began >= a_launch().grace_seconds


def test_ranks_that_have_reported_leave_at_once_when_the_attempt_fails() -> None:
    """As real ranks do, they only note SIGTERM: they go when they hear the word, with their own exit codes."""

    def heedless(program: Program) -> Program:
        def run(pipes: Pipes) -> None:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            program(pipes)

        return run

    ranks = start([heedless(succeeds), heedless(fails("no", after=0.1))])
    Watch(a_launch(grace_seconds=30), SPEC, ranks, Lifeline(), Published()).run()  # type: ignore[arg-type]
    assert [rank.status for rank in ranks] == [0, 1]


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        (Order.CANCEL, Reason.CANCELLED_BY_USER),
        (Order.STOP, Reason.SERVICE_STOPPED),
        (Order.LOST, Reason.LEASE_EXPIRED),
    ],
)
def test_an_order_ends_the_ranks(order: Order, reason: Reason) -> None:
    lifeline = Lifeline()
    lifeline.order = order
    assert watch(works, works, lifeline=lifeline).reason is reason


def test_three_quarters_of_a_lease_without_a_beat_end_the_ranks() -> None:
    lifeline = Lifeline()
    lifeline.silence = 0.76 * a_launch().lease_seconds
    assert watch(works, lifeline=lifeline).reason is Reason.LEASE_EXPIRED


def test_a_run_that_lasts_longer_than_its_limit_is_ended() -> None:
    assert watch(works, limits=spec.Limits(wall_seconds=0.2)).reason is Reason.WALL_LIMIT


def test_bytes_that_are_no_records_fail_the_rank_and_not_the_supervisor() -> None:
    def run(pipes: Pipes) -> None:
        os.write(pipes.channel, b"\xff" * 100)
        time.sleep(60)

    ending = watch(run)
    assert ending.reason is Reason.CODE_ERROR
    assert "the rank's channel is corrupt" in ending.message


def test_bytes_that_are_no_records_from_a_rank_that_is_dead_already_are_no_more_than_that() -> None:
    def run(pipes: Pipes) -> None:
        os.write(pipes.channel, b"\xff" * 100)
        os.kill(os.getpid(), signal.SIGKILL)

    assert watch(run).reason in (Reason.CODE_ERROR, Reason.RANK_FAILED)


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


def test_a_grandchild_that_floods_does_not_keep_the_loop() -> None:
    def run(pipes: Pipes) -> None:
        pid = os.fork()
        if pid == 0:
            pipes.send(Result(float(os.getpid()), {}))
            while True:
                pipes.say(b"flood\n" * 1000)
        time.sleep(0.1)
        succeeds(pipes)

    began = time.monotonic()
    ending = watch(run)
    assert ending.result is not None
    os.kill(int(ending.result["loss"]), signal.SIGKILL)
    assert ending.reason is Reason.COMPLETED
    assert time.monotonic() - began < 5
