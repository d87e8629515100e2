"""What a script's report says about the rows that its ranks read: each case as its records come, and its twin."""

from typing import Any

import pytest

from jobs.protocol.packets import AnyRecord
from jobs.protocol.probe_records import LossWeight, LossWeights, Noise, Wrapped
from jobs.protocol.records import Outcome
from shardyard.contract.report import Finding
from tests.support.samples.script_streams import DDP, activity, began, end, feed, findings, joined, loaded, steps, told


def found(passes: list[list[AnyRecord]], *wrappers: Wrapped) -> dict[str, Finding]:
    """The findings about ranks under DDP, each of which has read so."""
    script = told("ddp", len(passes))
    for rank, read in enumerate(passes):
        begun = [joined(rank, len(passes)), *(wrappers or (DDP,)), *steps([[8]] * 6, [rank])]
        feed(script, [*begun, *read, activity(6, 6)], rank)
    end(script, len(passes))
    return findings(script.make_report(final=True))


# -- the same rows in every pass -------------------------------------------------------------------


def shuffled(rank: int, number: int, digest: int, ranks: int = 2, *, rows: int = 200, **seen: Any) -> AnyRecord:
    """A rank's whole pass over its part of a data set."""
    part: dict[str, Any] = {"shard": (rank, ranks), "digest": digest, "number": number}
    part |= {"shuffles": True, "sampler_number": 0}
    return loaded(rows // ranks, 8, rows, **part | seen)


def test_a_sampler_that_is_told_no_epoch_shuffles_alike_in_every_pass() -> None:
    same = found([[shuffled(rank, number, 10 + rank) for number in range(3)] for rank in range(2)])

    assert set(same) == {"same-rows-every-epoch"}
    finding = same["same-rows-every-epoch"]
    assert finding.severity == "warning"
    assert finding.message == (
        "rank 0 read the same 100 of 200 rows in each of 3 passes: its DistributedSampler shuffles every pass the "
        "same way, as it does without set_epoch()"
    )
    assert finding.suggestion.startswith("call set_epoch(epoch) of the sampler before each pass")
    assert finding.numbers == {"passes": 3, "rows": 100, "dataset_rows": 200}


def test_a_sampler_that_is_told_the_epoch_gives_other_rows() -> None:
    assert found([[shuffled(rank, number, 10 * number + rank) for number in range(3)] for rank in range(2)]) == {}


def test_rows_that_are_not_to_be_shuffled_are_worth_a_remark() -> None:
    passes = [[shuffled(rank, number, 10 + rank, shuffles=False) for number in range(2)] for rank in range(2)]
    finding = found(passes)["same-rows-every-epoch"]

    assert finding.severity == "info"
    assert "does not shuffle" in finding.message


@pytest.mark.parametrize(
    "second",
    [
        {"sampler_number": 1},  # another training, with a sampler of its own
        {"complete": False},
        {"trained": False},
        {"shuffles": None, "sampler_number": None},  # a sampler of the script's own
    ],
)
def test_passes_that_are_no_two_epochs_are_not_compared(second: dict[str, Any]) -> None:
    assert found([[shuffled(rank, 0, 10 + rank), shuffled(rank, 1, 10 + rank, **second)] for rank in range(2)]) == {}


def test_a_few_rows_may_be_the_same_again_by_chance() -> None:
    assert found([[shuffled(rank, number, 10 + rank, rows=8) for number in range(2)] for rank in range(2)]) == {}


def test_ranks_that_differ_in_that_are_not_accused() -> None:
    passes = [[shuffled(rank, number, 10 + rank * (1 + number)) for number in range(2)] for rank in range(2)]

    assert found(passes) == {}


# -- the same batches on every rank ----------------------------------------------------------------


def iterated(*batches: int, **seen: Any) -> AnyRecord:
    """A whole pass over an iterable data set."""
    return loaded(24, 8, 24, digest=None, contents=(), first_batches=batches, **seen)


def test_an_iterable_data_set_that_no_rank_divides_is_read_by_all() -> None:
    same = found([[iterated(5, 6, 7)] for _ in range(3)])

    assert set(same) == {"iterable-read-by-all"}
    finding = same["iterable-read-by-all"]
    assert finding.severity == "warning"
    assert finding.message == (
        "3 ranks read the same batches of an iterable data set: the first 3 are equal on all of them"
    )
    assert "itertools.islice(items, rank, None, world_size)" in finding.suggestion


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((5, 6, 7), (8, 9, 10)),  # each rank its own
        ((5, 6, 7), (5, 6, 8)),
        ((5, 5, 5), (5, 5, 5)),  # made-up data
        ((5, 6), (5, 6)),
        ((), ()),
    ],
)
def test_batches_that_are_not_the_same_or_may_be_by_chance_are_no_finding(
    one: tuple[int, ...], other: tuple[int, ...]
) -> None:
    assert found([[iterated(*one)], [iterated(*other)]]) == {}


def test_ranks_that_hold_parts_of_one_model_need_the_same_batches() -> None:
    assert found([[iterated(5, 6, 7)] for _ in range(2)], Wrapped("parallelize_module", "Net")) == {}


def test_an_evaluation_may_give_every_rank_the_same_batches() -> None:
    assert found([[iterated(5, 6, 7, trained=False)] for _ in range(2)]) == {}


# -- passes of unequal length ----------------------------------------------------------------------


def apart(
    batches: tuple[int, int], done: tuple[int, int], *, exit_codes: tuple[int, int] = (0, 0), stuck: bool = False
) -> dict[str, Finding]:
    """Two ranks whose passes have so many batches, and which took so many steps; the second may be within another."""
    script = told("ddp", 2)
    for rank in range(2):
        feed(script, [joined(rank, 2), DDP, *steps([[8]] * done[rank], [rank])], rank)
        feed(script, [began(done[rank], 0.0)] if stuck and rank else [], rank)
        rows = 8 * batches[rank]
        read = loaded(rows, 8, rows, digest=rank, seconds=4.0)
        feed(script, [read, activity(9, 9), Outcome(rank, exit_codes[rank])], rank)
        script.rank_ended(rank)
    return findings(script.make_report(final=True))


def test_ranks_with_shorter_passes_wait_for_the_others() -> None:
    waiting = apart((6, 8), (12, 16))

    assert "ranks-end-apart" in waiting
    finding = waiting["ranks-end-apart"]
    assert finding.severity == "info"
    assert finding.message == (
        "a pass has 8 batches on rank 1 and 6 on rank 0: ranks with fewer batches wait in each pass until the others "
        "have ended it"
    )
    assert finding.cost_device_seconds == 1.0


def test_a_rank_that_is_left_alone_with_its_last_batches_fails() -> None:
    alone = apart((6, 8), (12, 12), exit_codes=(0, 1), stuck=True)["ranks-end-apart"]

    assert alone.severity == "warning"
    assert "leave the others alone with their last ones" in alone.message


@pytest.mark.parametrize(
    ("batches", "done", "exit_codes", "stuck"),
    [
        ((6, 6), (12, 12), (0, 0), False),
        ((6, 8), (12, 12), (0, 0), False),  # a program that counts its steps
        ((6, 8), (12, 13), (1, 1), False),  # one that failed for another reason
        ((6, 8), (12, 12), (1, 1), True),
    ],
)
def test_ranks_that_end_together_do_not_wait(
    batches: tuple[int, int], done: tuple[int, int], exit_codes: tuple[int, int], stuck: bool
) -> None:
    assert "ranks-end-apart" not in apart(batches, done, exit_codes=exit_codes, stuck=stuck)


# -- the same noise, and unlike weights ------------------------------------------------------------


def noisy(*noises: Noise) -> dict[str, Finding]:
    """Ranks that read rows of their own."""
    parts = [loaded(24, 8, 48, shard=(rank, len(noises)), digest=rank) for rank in range(len(noises))]
    return found([[noise, part] for noise, part in zip(noises, parts, strict=True)])


def test_ranks_that_draw_the_same_numbers_drop_the_same_units() -> None:
    finding = noisy(Noise(5, True), Noise(5, True))["same-noise-on-every-rank"]

    assert finding.severity == "info"
    assert finding.suggestion.startswith("call torch.manual_seed(seed + rank) once the model is wrapped")


@pytest.mark.parametrize("other", [Noise(6, True), Noise(5, False)])
def test_other_numbers_or_none_are_no_finding(other: Noise) -> None:
    assert noisy(Noise(5, True), other) == {}


def weighed(*backwards: tuple[tuple[int, float, float], ...]) -> dict[str, Finding]:
    """For each rank its backwards: rows, elements, and the weight of each."""
    return found([[LossWeights(tuple(LossWeight(*one) for one in each))] for each in backwards])


def test_a_token_weighs_more_on_a_rank_that_has_fewer() -> None:
    unlike = weighed(((8, 400.0, 1 / 400),) * 3, ((8, 640.0, 1 / 640),) * 3, ((8, 400.0, 1 / 400),) * 3)

    assert set(unlike) == {"unlike-tokens"}
    finding = unlike["unlike-tokens"]
    assert finding.severity == "warning"
    assert finding.message.startswith(
        "a token on rank 0 weighs 1.6 times one on rank 1 in a typical step: both have 8 rows, with 400 and 640 tokens"
    )
    assert finding.numbers["ratio"] == 1.6


@pytest.mark.parametrize(
    "other",
    [
        ((8, 640.0, 1 / 400),) * 3,  # over the tokens of all ranks
        ((8, 420.0, 1 / 420),) * 3,
        ((5, 640.0, 1 / 640),) * 3,  # other rows: that is another finding
        ((8, 640.0, 1 / 640),) * 2,
    ],
)
def test_tokens_that_weigh_the_same_are_no_finding(other: tuple[tuple[int, float, float], ...]) -> None:
    assert weighed(((8, 400.0, 1 / 400),) * 3, other) == {}
