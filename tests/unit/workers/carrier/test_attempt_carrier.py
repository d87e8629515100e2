"""What arrives at the remote of an attempt's files, whatever the remote and the carrier's process do on the way."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.protocol.records import SavedFile
from jobs.storage.remote import CHUNK_BYTES, RemoteError, RemoteFull, RemoteRefused, RemoteUnavailable
from jobs.store import AttemptId
from jobs.support import failpoints
from tests.unit.workers.carrier.place import ATTEMPT, LOG, Place
from workers.carrier import attempt_carrier, drafts, journal
from workers.carrier.drafts import DraftMissing, fetch_draft
from workers.carrier.journal import CarryJournal


def test_what_grows_is_appended_and_only_once(place: Place) -> None:
    carrier = place.carrier()
    for _ in range(3):
        place.print_lines(2)
        assert carrier.carry_growing() == 0
    assert place.differences() == []
    assert place.appended() == place.log.end


def test_a_frame_that_is_half_written_stays_here(place: Place) -> None:
    place.print_lines(2)
    whole = place.log.end
    with place.log.path.open("ab") as file:
        file.write(b"SYF1 begins a frame that the disk did not take")
    place.carrier().carry_growing()
    assert (place.away / LOG).stat().st_size == whole


def test_a_log_of_many_megabytes_goes_in_pieces_that_the_remote_takes(place: Place) -> None:
    place.print_lines(3, size=CHUNK_BYTES - 100)
    place.carrier().carry_growing()
    assert place.differences() == []
    assert len(place.remote.calls) > 2


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_a_process_that_dies_between_remote_and_journal_repeats_nothing(
    place: Place, failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failpoint is behind the call to the remote, before the journal knows of it."""
    place.print_lines(3, size=CHUNK_BYTES - 100)
    place.write("artifacts/model", b"weights")
    monkeypatch.setattr(failpoints, "_armed", failpoints.parse_failpoints(f"carry.appended:error@{failing}"))
    with pytest.raises(OSError, match="failpoint"):
        place.carrier().carry_once()
    monkeypatch.setattr(failpoints, "_armed", {})
    place.print_lines()
    assert place.carrier().carry_once(finished=True) == 0
    assert place.differences() == []


def test_an_answer_that_is_lost_is_not_carried_twice(place: Place) -> None:
    place.print_lines(5)
    place.remote.lost_answers = 1
    with pytest.raises(RemoteUnavailable):
        place.carrier().carry_growing()
    assert place.carrier().carry_growing() == 0
    assert place.differences() == []


@pytest.mark.parametrize("tear", [b"", b"\x81", b"torn to pieces"])
def test_a_torn_journal_costs_nothing_but_time(place: Place, tear: bytes) -> None:
    place.print_lines(5)
    place.write("artifacts/model", b"weights")
    place.carrier().carry_once(finished=True)
    journal.journal_file(place.state_dir, ATTEMPT).write_bytes(tear)
    place.print_lines(5)
    assert place.carrier().carry_once(finished=True) == 0
    assert place.differences() == []


def test_a_restart_goes_on_where_the_journal_is(place: Place) -> None:
    place.write("artifacts/model", b"weights")
    place.carrier().carry_once(finished=True)
    place.remote.calls.clear()
    place.write("artifacts/notes", b"later")
    place.carrier().carry_once(finished=True)
    assert [path.rpartition("/")[2] for _, path, _ in place.remote.calls] == ["notes"]


@pytest.mark.parametrize("fault", [RemoteUnavailable("away"), RemoteFull("no room"), RemoteRefused("no token")])
def test_a_remote_that_refuses_for_a_while_gets_everything_afterwards(place: Place, fault: RemoteError) -> None:
    carrier = place.carrier()
    place.print_lines(5)
    place.write("report.json", b"{}")
    place.remote.fault = fault
    with pytest.raises(type(fault)):
        carrier.carry_once(finished=True)
    assert carrier.count_left() == place.log.end + 2
    place.remote.fault = None
    place.print_lines(5)
    assert carrier.carry_once(finished=True) == 0
    assert (place.differences(), carrier.count_left()) == ([], 0)


def test_a_remote_that_fills_up_keeps_what_it_took(place: Place) -> None:
    for name in ("a", "b", "c"):
        place.write(f"artifacts/{name}", bytes(1000))
    place.remote.full_at = 2500
    carrier = place.carrier()
    with pytest.raises(RemoteFull):
        carrier.carry_once(finished=True)
    assert carrier.count_left() == 1000
    place.remote.full_at = None
    assert carrier.carry_once(finished=True) == 0
    assert place.differences() == []


def test_a_remote_that_lost_some_of_a_log_gets_it_again(place: Place) -> None:
    carrier = place.carrier()
    place.print_lines(5)
    carrier.carry_growing()
    os.truncate(place.away / LOG, 10)
    place.print_lines()
    carrier.carry_growing()
    assert carrier.carry_growing() == 0
    assert place.differences() == []


def test_a_file_that_a_program_still_writes_waits_until_the_end(place: Place) -> None:
    carrier = place.carrier()
    place.write("artifacts/model", b"half", age=0.0)
    assert carrier.carry_once() == 4
    assert place.remote.calls == []
    assert carrier.carry_once(finished=True) == 0
    assert place.differences() == []


def test_a_file_that_changes_after_it_was_carried_is_carried_again(place: Place) -> None:
    carrier = place.carrier()
    place.write("artifacts/model", b"first")
    carrier.carry_once()
    place.write("artifacts/model", b"then another", age=30.0)
    carrier.carry_once()
    assert place.differences() == []


def test_a_large_file_with_two_names_travels_once(place: Place) -> None:
    """A checkpoint, and what the script has left of it in its working directory."""
    weights = os.urandom(attempt_carrier.COPIED_BYTES)
    place.write("artifacts/checkpoints/state.bin", weights)
    place.write("artifacts/small", b"small")
    assert place.carrier().carry_once() == 0
    place.remote.calls.clear()
    place.write("files/state.bin", weights)
    place.write("files/small", b"small")
    place.write("files/other", weights[::-1])
    assert place.carrier().carry_once(finished=True) == 0
    calls = {path.removeprefix("jobs/default/0a/1/"): call for call, path, _ in place.remote.calls}
    assert calls == {"files/state.bin": "copy", "files/small": "put", "files/other": "put"}
    assert place.differences() == []


def test_what_the_remote_does_not_copy_travels(place: Place) -> None:
    """It has lost the file, or another process has put another one there and died before it could say so."""
    weights = os.urandom(attempt_carrier.COPIED_BYTES)
    saved = place.write("artifacts/checkpoints/state.bin", weights)
    carrier = place.carrier()
    for spoil in (lambda there: there.write_bytes(b"!" * len(weights)), Path.unlink):
        assert carrier.carry_once() == 0
        spoil(place.away / saved.relative_to(place.root))
        left = place.write("files/state.bin", weights)
        assert carrier.carry_once(finished=True) == 0
        assert (place.away / left.relative_to(place.root)).read_bytes() == weights
        left.unlink()
    assert "copy" not in [call for call, _, _ in place.remote.calls]


def test_what_has_changed_since_it_was_carried_is_no_source(place: Place) -> None:
    weights = os.urandom(attempt_carrier.COPIED_BYTES)
    carrier = place.carrier()
    place.write("artifacts/state.bin", weights)
    carrier.carry_once()
    place.write("artifacts/state.bin", weights[::-1], age=30.0)
    carrier.carry_once()
    place.write("files/state.bin", weights)
    assert carrier.carry_once(finished=True) == 0
    assert "copy" not in [call for call, _, _ in place.remote.calls]
    assert place.differences() == []


def test_what_a_program_removes_is_removed_there(place: Place) -> None:
    carrier = place.carrier()
    kept, gone = place.write("artifacts/a/kept", b"1"), place.write("artifacts/a/gone", b"2")
    carrier.carry_once()
    gone.unlink()
    carrier.carry_once()
    assert kept.exists()
    assert place.differences() == []


def _link(place: Place) -> None:
    secret = place.root.parent / "secret"
    secret.write_bytes(b"the service's own")
    (place.attempt / "artifacts").mkdir()
    (place.attempt / "artifacts" / "file").symlink_to(secret)
    (place.attempt / "artifacts" / "directory").symlink_to(secret.parent)


def _pipe(place: Place) -> None:
    (place.attempt / "artifacts").mkdir()
    os.mkfifo(place.attempt / "artifacts" / "pipe")


def _linked_tree(place: Place) -> None:
    outside = place.root.parent / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"the service's own")
    (place.attempt / "artifacts").symlink_to(outside)


@pytest.mark.parametrize("make", [_link, _pipe, _linked_tree])
def test_nothing_but_plain_files_of_the_attempt_is_carried(place: Place, make: Callable[[Place], None]) -> None:
    make(place)
    assert place.carrier().carry_once(finished=True) == 0
    assert place.remote.calls == []


def test_drafts_stay_here(place: Place) -> None:
    for name in ("drafts/20/rank-0", "resume/rank-0", "parts/1/resume/rank-1", "files.part", ".report.json.part"):
        place.write(name, b"not yet")
    assert place.carrier().carry_once(finished=True) == 0
    assert place.remote.calls == []


def test_a_name_that_no_remote_takes_holds_up_nothing(place: Place) -> None:
    deep = place.attempt / "artifacts"
    for _ in range(70):
        deep /= "d"
    deep.mkdir(parents=True)
    (deep / "file").write_bytes(b"too deep")
    place.write("artifacts/model", b"weights")
    assert place.carrier().carry_once(finished=True) == 0
    assert (place.away / "jobs/default/0a/1/artifacts/model").read_bytes() == b"weights"


def test_names_that_are_not_utf8_are_carried(place: Place) -> None:
    directory = place.attempt / "artifacts"
    directory.mkdir()
    Path(os.fsdecode(os.fsencode(directory) + b"/\xff\xfe")).write_bytes(b"1")
    place.carrier().carry_once(finished=True)
    place.remote.calls.clear()
    place.carrier().carry_once(finished=True)
    assert (place.differences(), place.remote.calls) == ([], [])


def test_the_backlog_of_a_node_is_that_of_all_its_attempts(place: Place) -> None:
    for number, left in ((1, 100), (2, 20)):
        CarryJournal.of(place.state_dir, AttemptId("default", "0a", number)).write_backlog(left)
    assert journal.read_backlog(place.state_dir) == 120
    CarryJournal.of(place.state_dir, ATTEMPT).remove()
    assert journal.read_backlog(place.state_dir) == 20
    assert [one.number for one in journal.carried_attempts(place.state_dir)] == [2]


def test_what_other_ranks_save_goes_to_the_leader_by_the_remote(place: Place, tmp_path: Path) -> None:
    body = b"a shard"
    carrier = place.carrier()
    place.write("parts/1/drafts/20/rank-1.pt", body, age=1.0)
    assert carrier.carry_growing() == 0
    saved = SavedFile("rank-1.pt", len(body), hashlib.sha256(body).hexdigest())
    fetch_draft(place.remote, "jobs/default/0a/1/parts/1/drafts/20", tmp_path / "fetched", [saved])
    assert (tmp_path / "fetched" / "rank-1.pt").read_bytes() == body


def test_a_shard_that_is_not_what_its_rank_said_is_waited_for_and_given_up(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafts, "ARRIVE_SECONDS", 0.0)
    place.write("parts/1/drafts/20/rank-1.pt", b"half of")
    place.carrier().carry_growing()
    saved = SavedFile("rank-1.pt", 7, hashlib.sha256(b"a shard").hexdigest())
    with pytest.raises(DraftMissing, match="has not arrived"):
        fetch_draft(place.remote, "jobs/default/0a/1/parts/1/drafts/20", tmp_path / "fetched", [saved])


def test_old_drafts_go_here_and_there(place: Place) -> None:
    carrier = place.carrier()
    for step in (20, 40, 60, 80, 100):
        place.write(f"parts/1/drafts/{step}/rank-1.pt", b"a shard")
        carrier.carry_once()
    assert sorted(path.parent.name for path in place.away.rglob("rank-1.pt")) == ["100", "60", "80"]
    assert [name for name in place.differences() if "journal" not in name] == []


def test_where_appending_is_dear_a_file_is_appended_to_seldom_and_whole_at_its_end(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("workers.carrier.attempt_carrier.time.monotonic", lambda: now)
    monkeypatch.setattr(place.remote, "append_seconds", 60.0, raising=False)
    carrier = place.carrier()
    for _ in range(4000):  # two rounds a second
        place.print_lines()
        carrier.carry_growing()
        now += 0.5
    calls = [call for call, path, _ in place.remote.calls if (call, path) == ("append", LOG)]
    assert 60 < len(calls) < 150
    place.print_lines(1, 2 * attempt_carrier.PIECE_BYTES)  # much at a time is not left alone
    carrier.carry_growing()
    assert place.appended() == place.log.end
    place.print_lines()
    assert carrier.carry_growing() > 0
    carrier.carry_once(finished=True)
    assert place.differences() == []
