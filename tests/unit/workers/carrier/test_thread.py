"""The thread that carries while an attempt runs: what its end waits for, and for how long."""

import threading

import pytest

from jobs.storage.remote import RemoteUnavailable
from tests.unit.workers.carrier.place import ATTEMPT, Place
from workers.carrier import journal, thread
from workers.carrier.attempt_carrier import AttemptCarrier
from workers.carrier.journal import CarryJournal
from workers.carrier.thread import CarrierThread

LONG = 60.0


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread, "RETRY_SECONDS", (0.001, 0.01))
    monkeypatch.setattr(thread, "PIECES_SECONDS", 0.005)
    monkeypatch.setattr(thread, "QUIET_SECONDS", 0.1)


def carrier_thread(place: Place) -> CarrierThread:
    own = CarryJournal.of(place.state_dir, ATTEMPT)
    made = CarrierThread(AttemptCarrier(place.remote, place.root, ATTEMPT, own), own)
    made.start()
    return made


def test_what_is_printed_arrives_while_the_attempt_runs(place: Place) -> None:
    came = threading.Event()
    place.remote.before_call = lambda path: came.set() if path.endswith(".log") else None
    carrying = carrier_thread(place)
    place.print_lines(3)
    assert came.wait(LONG)
    assert carrying.finish(LONG)
    assert place.differences() == []


def test_an_end_waits_for_a_slow_remote_that_goes_on(place: Place) -> None:
    go, seen = threading.Event(), threading.Event()

    def stand_still(_: str) -> None:
        seen.set()
        assert go.wait(LONG)

    place.remote.before_call = stand_still
    carrying = carrier_thread(place)
    place.write("report.json", b"{}")
    assert seen.wait(LONG)
    ended: list[bool] = []
    waiting = threading.Thread(target=lambda: ended.append(carrying.finish(LONG)))
    waiting.start()
    go.set()
    waiting.join(LONG)
    assert (ended, place.differences()) == ([True], [])


def test_an_end_does_not_wait_long_for_a_remote_that_takes_nothing(place: Place) -> None:
    place.remote.fault = RemoteUnavailable("away")
    carrying = carrier_thread(place)
    place.write("report.json", b"12345")
    assert not carrying.finish(LONG)
    assert carrying.trouble == "away"
    assert journal.read_backlog(place.state_dir) == 5


def test_a_remote_that_comes_back_has_everything_at_the_end(place: Place) -> None:
    place.remote.fault = RemoteUnavailable("away")
    tried = threading.Event()
    place.remote.before_call = lambda _: tried.set()
    carrying = carrier_thread(place)
    place.print_lines(3)
    place.write("artifacts/model", b"weights", age=0.0)
    assert tried.wait(LONG)
    place.remote.fault = None
    assert carrying.finish(LONG)
    assert (place.differences(), carrying.trouble) == ([], "")
    assert journal.read_backlog(place.state_dir) == 0
