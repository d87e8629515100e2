"""Which collectives a rank reports, and how NCCL's recorder is switched on."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from jobs.protocol.packets import AnyRecord
from jobs.protocol.records import CallsMade, CollectiveCall, GroupCalls
from workers.runtime.collectives import CallsReporter, read_calls, recorder_variables, report_calls
from workers.runtime.profile_request import CALLS

DUMP = b"""{"entries": [
  {"process_group": ["0", "default_pg"], "collective_seq_id": 1, "profiling_name": "gloo:broadcast", "retired": true},
  {"process_group": ["0", "default_pg"], "collective_seq_id": 3, "profiling_name": "gloo:all_reduce"},
  {"process_group": ["0", "default_pg"], "collective_seq_id": 2, "profiling_name": "gloo:all_reduce",
   "input_sizes": [[4, 2]], "state": "scheduled", "retired": false, "unknown": 1},
  {"process_group": ["0", "default_pg"], "collective_seq_id": 3, "profiling_name": "gloo:send", "is_p2p": true},
  {"process_group": ["7", ""], "collective_seq_id": 5, "profiling_name": "gloo:barrier", "state": "completed"}
], "pg_config": {}}"""


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch whose recorder has these calls."""
    group = object()
    world = SimpleNamespace(pg_names={group: "0"}, pg_group_ranks={group: {0: 0, 1: 1}})
    torchs = SimpleNamespace(_dump_fr_trace_json=lambda collectives, active: DUMP)
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", torchs)
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", SimpleNamespace(_world=world))


CALLED = (
    GroupCalls("0", (0, 1), CollectiveCall(3, "all_reduce"), CollectiveCall(2, "all_reduce", ((4, 2),))),
    GroupCalls("7", (), CollectiveCall(5, "barrier")),
)


@pytest.mark.usefixtures("recorded")
def test_the_newest_call_and_the_first_that_waits_are_read_of_each_group() -> None:
    assert read_calls() == CALLED


@pytest.mark.usefixtures("recorded")
def test_a_request_is_answered_once() -> None:
    request, sent = bytearray(3), list[AnyRecord]()
    reporter = CallsReporter(request, sent.append)
    reporter.answer_request()
    request[CALLS] = 4
    reporter.answer_request()
    reporter.answer_request()
    assert sent == [CallsMade(4, CALLED)]


def test_a_recorder_that_gives_nothing_out_is_answered_for_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bytes:
        raise RuntimeError("not in this version")

    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", SimpleNamespace(_dump_fr_trace_json=fail))
    request, sent = bytearray(3), list[AnyRecord]()
    request[CALLS] = 1
    CallsReporter(request, sent.append).answer_request()
    report_calls(sent.append)  # a program that called nothing has nothing to say when it fails
    assert sent == [CallsMade(1, ())]


def test_the_recorder_of_nccl_is_switched_on_and_leaves_its_dumps_among_the_artifacts() -> None:
    assert recorder_variables(Path("/out"), {}, every_name=False) == {
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_FR_DUMP_TEMP_FILE": "/out/flight-recorder-rank-",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    }


def test_a_torch_of_unknown_version_gets_its_earlier_names_too() -> None:
    made = recorder_variables(Path("/out"), {}, every_name=True)
    assert made["TORCH_NCCL_TRACE_BUFFER_SIZE"] == made["TORCH_FR_BUFFER_SIZE"]
    assert made["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] == made["TORCH_FR_DUMP_TEMP_FILE"]


def test_what_the_user_has_set_counts_whichever_name_it_has() -> None:
    own = {"TORCH_NCCL_TRACE_BUFFER_SIZE": "0", "TORCH_FR_DUMP_TEMP_FILE": "mine", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}
    assert recorder_variables(Path("/out"), own, every_name=True) == {}
