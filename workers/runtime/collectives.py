"""Which collectives a rank has called, from torch's flight recorder: for a supervisor that asks why a run hangs.

torch records the latest collectives of gloo and of NCCL in a ring buffer. Ranks of one group call the same ones in the
same order, so the rank whose newest number is behind is the one that the others wait for. This module does not import
torch: a program that has not done so has called nothing.
"""

import contextlib
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from jobs.protocol.packets import AnyRecord
from jobs.protocol.records import MAX_DIMENSIONS, CallsMade, CollectiveCall, GroupCalls
from workers.runtime.profile_request import CALLS, RequestBytes

#: Where NCCL's flight recorder leaves its dump of each rank, below the directory that is kept.
DUMP_PREFIX: Final = "flight-recorder-rank-"
#: Names of torch before 2.9, which later versions warn about, beside the ones that replace them.
_BUFFER: Final = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_FILE: Final = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_ON_TIMEOUT: Final = ("TORCH_NCCL_DUMP_ON_TIMEOUT",)
#: Calls that are kept of each rank.
BUFFER_SIZE: Final = 2000
#: Functions of torch that give the recorder out as JSON. NCCL has its own, which asks the device about each call.
_DUMP_OF_GLOO, _DUMP_OF_NCCL = "_dump_fr_trace_json", "_dump_nccl_trace_json"
MAX_GROUPS: Final = 16
MAX_SHAPES: Final = 4
MAX_NAME: Final = 64


class RecorderEntry(msgspec.Struct):
    """One call, as far as it is read here."""

    process_group: tuple[str, str]  # its name, and what it is for
    collective_seq_id: int
    profiling_name: str = ""
    state: str = ""  # scheduled | started | completed
    input_sizes: list[list[int]] = []
    is_p2p: bool = False
    retired: bool = False  # over, whatever its state

    @property
    def is_pending(self) -> bool:
        return not self.retired and self.state != "completed"


class _RecorderDump(msgspec.Struct):
    entries: list[RecorderEntry] = []


_decoder = msgspec.json.Decoder(_RecorderDump)


class CallsReporter:
    """Answers requests of the supervisor. `answer_request` is called again and again by the thread that sends."""

    def __init__(self, request: RequestBytes, emit: Callable[[AnyRecord], None]) -> None:
        self._request = request
        self._emit = emit
        self._answered = 0

    def answer_request(self) -> None:
        number = self._request[CALLS]
        if number != self._answered:
            self._answered = number
            self._emit(CallsMade(number, read_calls()))


def recorder_variables(output: Path, own: Mapping[str, str], *, every_name: bool) -> dict[str, str]:
    """Variables that make NCCL's flight recorder leave a dump in `output` when a collective times out. `own` are those
    that the user has set, which count. `every_name`: also those of earlier versions of torch."""
    wanted = ((_BUFFER, str(BUFFER_SIZE)), (_FILE, str(output / DUMP_PREFIX)), (_ON_TIMEOUT, "1"))
    return {
        name: value
        for names, value in wanted
        if own.keys().isdisjoint(names)
        for name in (names if every_name else names[:1])
    }


def report_calls(emit: Callable[[AnyRecord], None]) -> None:
    """Report what a rank that fails has called under gloo; nothing where it has called no collective. NCCL leaves dumps
    of its own, and is not asked: the device may be what has failed."""
    if groups := read_calls((_DUMP_OF_GLOO,)):
        emit(CallsMade(0, groups))


def read_calls(dumps: Sequence[str] = (_DUMP_OF_NCCL, _DUMP_OF_GLOO)) -> tuple[GroupCalls, ...]:
    """What this process has called, of each of its process groups."""
    torchs = sys.modules.get("torch._C._distributed_c10d")
    entries: list[RecorderEntry] = []
    for name in dumps:
        dump = getattr(torchs, name, None)
        with contextlib.suppress(Exception):  # private to torch
            entries += _decoder.decode(dump(True, False)).entries if dump is not None else ()
    return find_calls(entries, _ranks_of_groups()) if entries else ()


def _ranks_of_groups() -> dict[str, tuple[int, ...]]:
    """The global ranks of each process group, by its name."""
    world: Any = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)
    with contextlib.suppress(Exception):  # private to torch, and another thread may change it
        return {str(name): tuple(world.pg_group_ranks[group]) for group, name in dict(world.pg_names).items()}
    return {}


def find_calls(entries: Sequence[RecorderEntry], ranks: Mapping[str, Sequence[int]]) -> tuple[GroupCalls, ...]:
    """The newest call and the first pending one of each group; messages from one rank to another are no collectives."""
    collectives = (entry for entry in entries if not entry.is_p2p)
    by_group: dict[str, list[RecorderEntry]] = {}
    for entry in collectives:
        by_group.setdefault(entry.process_group[0], []).append(entry)
    return tuple(
        GroupCalls(
            group,
            tuple(ranks.get(group, ())),
            _make_call(max(calls, key=lambda one: one.collective_seq_id)),
            _first_pending(calls),
        )
        for group, calls in itertools.islice(by_group.items(), MAX_GROUPS)
    )


def _first_pending(calls: Sequence[RecorderEntry]) -> CollectiveCall | None:
    pending = min((one for one in calls if one.is_pending), key=lambda one: one.collective_seq_id, default=None)
    return None if pending is None else _make_call(pending)


def _make_call(entry: RecorderEntry) -> CollectiveCall:
    name = entry.profiling_name.rpartition(":")[2][:MAX_NAME]  # "gloo:all_reduce"
    shapes = tuple(tuple(sizes[:MAX_DIMENSIONS]) for sizes in entry.input_sizes[:MAX_SHAPES])
    return CollectiveCall(entry.collective_seq_id, name, shapes)
