"""Which rank is named when others wait: from what each has called, or from where each one is."""

from collections.abc import Sequence

from jobs.protocol.records import CollectiveCall, GroupCalls
from workers.supervisor.hangs.diagnosis import RankState, find_hang
from workers.supervisor.hangs.stacks import RankPosition, StackFrame, find_position

ROOT = "/home/me/project"


def calls(
    newest: int, pending: str = "", number: int | None = None, group: str = "0", ranks: Sequence[int] = ()
) -> GroupCalls:
    call = CollectiveCall(newest if number is None else number, pending, ((4,),)) if pending else None
    return GroupCalls(group, tuple(ranks), CollectiveCall(newest, "all_reduce"), call)


def at(line: int, function: str, waits_in: str = "") -> RankPosition:
    return RankPosition(StackFrame(f"{ROOT}/train.py", line, function), waits_in)


def test_the_rank_that_has_not_called_what_the_others_wait_in_is_named() -> None:
    hang = find_hang(
        [
            RankState(0, [calls(14, "all_reduce")], at(12, "<module>", "all_reduce")),
            RankState(1, [calls(13)], at(40, "load")),
            RankState(2, [calls(14, "all_reduce")], at(12, "<module>", "all_reduce")),
        ],
        ROOT,
    )
    assert hang is not None
    assert hang.message == (
        "ranks 0 and 2 wait in all_reduce, collective number 14 (train.py, line 12, in <module>), which rank 1 has not "
        "called: rank 1 is at train.py, line 40, in load"
    )
    assert hang.rank == 1
    assert "same collectives in the same order" in hang.advice


def test_buckets_that_are_reduced_at_once_are_judged_by_the_first_that_waits() -> None:
    hang = find_hang([RankState(0, [calls(9, "all_reduce", 7)]), RankState(1, [calls(6)])])
    assert hang is not None
    assert hang.message == "rank 0 waits in all_reduce, collective number 7, which rank 1 has not called"


def test_ranks_that_have_ended_or_are_stopped_are_said_to_be() -> None:
    waiting = RankState(0, [calls(3, "barrier")])
    for why in ("has finished its program", "is stopped (SIGSTOP)"):
        hang = find_hang([waiting, RankState(1, None, None, why)])
        assert hang is not None
        assert (
            hang.message == f"rank 0 waits in barrier, collective number 3, which rank 1 has not called: rank 1 {why}"
        )


def test_a_group_of_some_ranks_does_not_miss_the_others() -> None:
    hang = find_hang(
        [
            RankState(0, [calls(5), calls(2, "all_gather", group="3", ranks=(0, 2))]),
            RankState(1, [calls(5)]),
            RankState(2, [calls(5), calls(1, group="3", ranks=(0, 2))]),
        ]
    )
    assert hang is not None
    assert hang.message == "rank 0 waits in all_gather, collective number 2, which rank 2 has not called"


def test_ranks_that_call_different_collectives_are_named_with_each() -> None:
    hang = find_hang([RankState(0, [calls(5, "all_reduce")], at(3, "f")), RankState(1, [calls(5, "broadcast")])], ROOT)
    assert hang is not None
    assert hang.message == (
        "the ranks call different collectives as number 5: rank 0 all_reduce of [4] (train.py, line 3, in f), "
        "rank 1 broadcast of [4]"
    )


def test_tensors_of_different_shapes_are_named() -> None:
    other = GroupCalls("0", (), CollectiveCall(5, "all_reduce"), CollectiveCall(5, "all_reduce", ((7,),)))
    hang = find_hang([RankState(0, [calls(5, "all_reduce")]), RankState(1, [other])])
    assert hang is not None
    assert "tensors of different shapes as number 5: rank 0 all_reduce of [4], rank 1 all_reduce of [7]" in hang.message
    assert "tensors of the same shape" in hang.advice


def test_a_collective_that_all_have_called_is_a_matter_of_the_network() -> None:
    hang = find_hang([RankState(rank, [calls(5, "all_reduce")]) for rank in range(2)])
    assert hang is not None
    assert hang.message == "ranks 0 and 1 wait in all_reduce, collective number 5, and it does not end"
    assert "check the network" in hang.advice


def test_without_any_calls_the_stacks_say_who_waits() -> None:
    hang = find_hang([RankState(0, (), at(9, "train", "backward")), RankState(1, None, at(40, "load"))], ROOT)
    assert hang is not None
    assert hang.message == (
        "rank 0 waits in backward (train.py, line 9, in train); rank 1 is at train.py, line 40, in load"
    )
    assert hang.rank == 1


def test_nothing_is_made_up_of_ranks_that_show_nothing() -> None:
    assert find_hang([RankState(0, ()), RankState(1, None)]) is None


STACKS = """a line of its own
Thread 0x00007f5d (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007f5e (most recent call first):
  File "/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 2950 in all_reduce
  File "/env/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/home/me/project/pkg/steps.py", line 41 in average
  File "/home/me/project/train.py", line 12 in <module>
"""


def test_a_stack_shows_the_programs_line_and_the_collective() -> None:
    position = find_position(STACKS)
    assert position is not None
    assert (position.waits_in, position.describe(ROOT)) == ("all_reduce", "pkg/steps.py, line 41, in average")


def test_a_backward_that_waits_for_gradients_is_seen() -> None:
    position = find_position(
        "Current thread 0x1 (most recent call first):\n"
        '  File "/env/lib/python3.11/site-packages/torch/autograd/graph.py", line 829 in _engine_run_backward\n'
        '  File "/env/lib/python3.11/site-packages/torch/_tensor.py", line 648 in backward\n'
        '  File "/home/me/train.py", line 30 in <module>\n'
    )
    assert position is not None
    assert (position.waits_in, position.describe("")) == ("backward", "/home/me/train.py, line 30, in <module>")


def test_a_rank_that_has_shown_no_stack_has_no_position() -> None:
    assert find_position('Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n') is None
