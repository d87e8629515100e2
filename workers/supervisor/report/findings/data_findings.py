"""Finds problems in what the ranks of a script read: the same rows in every pass, or on every rank.

Everything follows from the passes over DataLoaders (`jobs.protocol.records:Loaded`). Rows that every rank reads by the
same numbers are no concern of this module, but of `duplicated-work`.
"""

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

from jobs.protocol.probe_records import Loaded, LossWeight
from jobs.splits.device_sums import measured
from shardyard.contract.report import Finding
from workers.supervisor.report.findings.common_passes import (
    CommonPass,
    are_grouped,
    find_common_pass,
    list_common_passes,
)
from workers.supervisor.report.process_state import ProcessState
from workers.supervisor.report.script_observations import (
    ScriptObservations,
    count_of,
    find_unfinished_steps,
    name_ranks,
)

#: Passes are shuffled alike if chance gives a rank the same rows again in less than one of so many passes.
LEAST_CHOICES = 1e6
#: Batches of two ranks that are compared.
COMPARED_BATCHES = 3
#: Backwards of all ranks with equal rows that are needed, and how unlike tokens are.
LEAST_BACKWARDS, UNLIKE_FROM = 3, 1.25


# -- the same rows in every pass -------------------------------------------------------------------


def find_repeated_passes(seen: ScriptObservations) -> Iterator[Finding]:
    """`same-rows-every-epoch`: a sampler that gives a rank the same rows in each of its whole passes."""
    repeated = [(process, _passes_over_one_sampler(process)) for process in seen.trainers]
    compared = [(process, passes) for process, passes in repeated if passes]
    if compared and all(_are_alike(passes) for _, passes in compared):
        process, passes = compared[0]
        yield _same_rows_every_epoch(process, passes)


def _passes_over_one_sampler(process: ProcessState) -> list[Loaded]:
    """The whole passes of training over the sampler that was used last, if there are two or more."""
    passes = [one for one in process.passes.latest.values() if _is_whole_shard(one) and one.shuffles is not None]
    same = [one for one in passes if one.sampler_number == passes[-1].sampler_number]
    return same if len(same) > 1 else []


def _is_whole_shard(load: Loaded) -> bool:
    """Whether it is a whole pass of training over the part of a rank."""
    return load.trained and load.complete and (load.replicas or 1) > 1 and load.digest is not None


def _are_alike(passes: Sequence[Loaded]) -> bool:
    first = passes[0]
    if len({(one.digest, one.rows, one.dataset_rows, one.shuffles) for one in passes}) > 1:
        return False
    return not first.shuffles or _log_choices(first.dataset_rows or 0, first.rows or 0) >= math.log(LEAST_CHOICES)


def _log_choices(rows: int, chosen: int) -> float:
    """The logarithm of the number of ways to choose some of so many rows."""
    if not 0 <= chosen <= rows:
        return 0.0
    return math.lgamma(rows + 1) - math.lgamma(chosen + 1) - math.lgamma(rows - chosen + 1)


def _same_rows_every_epoch(process: ProcessState, passes: Sequence[Loaded]) -> Finding:
    load = passes[-1]
    rows, known = load.rows or 0, load.dataset_rows or 0
    numbers = {"passes": float(len(passes)), "rows": float(rows), "dataset_rows": float(known)}
    what = f"{process.name} read the same {rows:,} of {known:,} rows in each of {len(passes)} passes"
    if not load.shuffles:
        return Finding(
            "same-rows-every-epoch",
            "info",
            f"{what}, in the same order: its DistributedSampler does not shuffle",
            "if the order need not be fixed, leave shuffle=False out of the DistributedSampler, and call its "
            "set_epoch(epoch) before each pass",
            numbers=numbers,
        )
    return Finding(
        "same-rows-every-epoch",
        "warning",
        f"{what}: its DistributedSampler shuffles every pass the same way, as it does without set_epoch()",
        "call set_epoch(epoch) of the sampler before each pass: each is then shuffled anew, and every rank gets other "
        "rows",
        numbers=numbers,
    )


# -- the same batches on every rank ----------------------------------------------------------------


def find_batches_read_by_all(seen: ScriptObservations) -> Iterator[Finding]:
    """`iterable-read-by-all`: an iterable data set that gives every rank the same batches."""
    trainers = seen.trainers
    if not are_grouped(trainers) or any(process.shares_tensors for process in trainers):
        return
    for shared in list_common_passes(trainers):
        batches = {load.first_batches for load in shared.loads.values()}
        if len(batches) != 1 or not _tells_batches_apart(batches.pop()):
            continue
        ranks = len(trainers)
        yield Finding(
            "iterable-read-by-all",
            "warning",
            f"{ranks} ranks read the same batches of an iterable data set: the first {COMPARED_BATCHES} are equal on "
            "all of them",
            "give each rank a part of the data in __iter__(): every world_size-th item from rank on, as with "
            "itertools.islice(items, rank, None, world_size), and within it every num_workers-th for each worker of "
            "the DataLoader; ranks that share one model's tensors need the same batches, and nothing is wrong there",
            numbers={"ranks": float(ranks), "equal_batches": float(COMPARED_BATCHES)},
        )
        return


def _tells_batches_apart(batches: Sequence[int]) -> bool:
    """Whether equal batches on two ranks can be no coincidence: made-up data may be the same in all of them."""
    return len(batches) == COMPARED_BATCHES and len(set(batches)) > 1


# -- passes of unequal length ----------------------------------------------------------------------


def find_ranks_that_end_apart(seen: ScriptObservations) -> Iterator[Finding]:
    """`ranks-end-apart`: passes with more batches on some ranks than on others, which wait or leave them alone."""
    trainers = seen.trainers
    if not seen.final or not _average_gradients(trainers):
        return
    for shared in list_common_passes(trainers):
        batches = {rank: load.batches for rank, load in shared.loads.items()}
        least, most = min(batches.values()), max(batches.values())
        shortest = sorted(rank for rank in batches if batches[rank] == least)
        longest = sorted(rank for rank in batches if batches[rank] == most)
        if least == most or not all(shared.loads[rank].complete for rank in shortest):
            continue
        by_rank = {process.rank: process for process in trainers}
        ended_first = _ended_first if seen.succeeded else functools.partial(_left_alone, _find_stuck_ranks(seen))
        if all(ended_first(by_rank[one], by_rank[other]) for one in shortest for other in longest):
            yield _ranks_end_apart(seen, shared, shortest, longest)
            return


def _ended_first(one: ProcessState, other: ProcessState) -> bool:
    """Whether a rank with shorter passes took fewer steps. Programs that count steps begin the next pass at once, and
    nobody waits."""
    return one.done["train"] < other.done["train"]


def _left_alone(stuck: Set[int], one: ProcessState, other: ProcessState) -> bool:
    """Whether a rank had done all its steps, while another failed or hung in one."""
    did_all = one.unfinished is None and (one.outcome is None or one.outcome.exit_code == 0)
    failed = other.outcome is not None and other.outcome.exit_code != 0
    return did_all and other.unfinished is not None and (failed or other.rank in stuck)


def _find_stuck_ranks(seen: ScriptObservations) -> Set[int]:
    return {rank for step in find_unfinished_steps(seen) if step.long for rank in step.ranks}


def _ranks_end_apart(
    seen: ScriptObservations, shared: CommonPass, shortest: Sequence[int], longest: Sequence[int]
) -> Finding:
    least, most = shared.loads[shortest[0]], shared.loads[longest[0]]
    waits = seen.succeeded
    per_batch = (measured(most.seconds) or 0.0) / most.batches
    cost = sum((most.batches - one.batches) * per_batch for one in shared.loads.values())
    how = "wait in each pass until the others have ended it" if waits else "leave the others alone with their last ones"
    return Finding(
        "ranks-end-apart",
        "info" if waits else "warning",
        f"a pass has {count_of(most.batches, 'batch', 'batches')} on {name_ranks(longest)} and "
        f"{least.batches:,} on {name_ranks(shortest)}: ranks with fewer batches {how}",
        "give all ranks the same number of rows, as a DistributedSampler does; where the parts cannot be equal, leave "
        "the loop on all ranks after the smallest number of batches",
        numbers={"most_batches": float(most.batches), "least_batches": float(least.batches)},
        cost_device_seconds=round(cost, 4) if waits and cost else None,
    )


# -- the same noise, and unlike weights ------------------------------------------------------------


def find_equal_noise(seen: ScriptObservations) -> Iterator[Finding]:
    """`same-noise-on-every-rank`: dropout leaves out the same units on all ranks."""
    trainers = seen.trainers
    noises = [process.noise for process in trainers if process.noise is not None]
    if not _average_gradients(trainers) or len(noises) < len(trainers):
        return
    shared = find_common_pass(trainers)
    is_equal = len({noise.state for noise in noises}) == 1 and all(noise.drops_out for noise in noises)
    if is_equal and shared is not None and shared.sharded:
        yield Finding(
            "same-noise-on-every-rank",
            "info",
            f"all {len(trainers)} ranks begin to train with the same state of the random generator, so that dropout "
            "leaves out the same units on each of them, though they read different rows",
            "call torch.manual_seed(seed + rank) once the model is wrapped: DistributedDataParallel has given all "
            "ranks the weights of rank 0 by then",
            numbers={"ranks": float(len(trainers))},
        )


def find_unlike_tokens(seen: ScriptObservations) -> Iterator[Finding]:
    """`unlike-tokens`: each rank's loss is a mean over other numbers of tokens, and the gradients are averaged."""
    trainers = seen.trainers
    read = {process.rank: process.loss_weights.backwards for process in trainers if process.loss_weights is not None}
    if not _average_gradients(trainers) or len(read) < len(trainers):
        return
    compared = [dict(zip(read, backwards, strict=True)) for backwards in zip(*read.values(), strict=False)]
    alike = [weights for weights in compared if _have_equal_rows(weights.values())]
    if len(alike) < LEAST_BACKWARDS:
        return
    typical = sorted(alike, key=_ratio_of_weights)[len(alike) // 2]
    ratio = _ratio_of_weights(typical)
    if ratio < UNLIKE_FROM:
        return
    heavy = max(typical, key=lambda rank: typical[rank].weight)
    light = min(typical, key=lambda rank: typical[rank].weight)
    few, many = typical[heavy].elements, typical[light].elements
    yield Finding(
        "unlike-tokens",
        "warning",
        f"a token on rank {heavy} weighs {ratio:.2g} times one on rank {light} in a typical step: both have "
        f"{typical[heavy].rows:,} rows, with {few:,.0f} and {many:,.0f} tokens that count, and the gradients of the "
        "ranks' own means are averaged as equals",
        "sum the loss over the tokens, and multiply it by the number of ranks over the tokens of all ranks, which "
        "all_reduce() adds up",
        numbers={"ratio": round(ratio, 4), "rank": float(heavy), "other_rank": float(light), "tokens": few}
        | {"other_tokens": many, "backwards": float(len(alike))},
    )


def _have_equal_rows(weights: Iterable[LossWeight]) -> bool:
    listed = list(weights)
    known = {weight.rows for weight in listed}
    possible = all(0 < weight.weight < math.inf and 0 < weight.elements < math.inf for weight in listed)
    return possible and len(known) == 1 and None not in known


def _ratio_of_weights(weights: Mapping[int, LossWeight]) -> float:
    each = [weight.weight for weight in weights.values()]
    return max(each) / min(each)


def _average_gradients(trainers: Sequence[ProcessState]) -> bool:
    """Whether these are several ranks that train one model on rows of their own."""
    if len(trainers) < 2 or any(process.shares_tensors for process in trainers):
        return False
    return all(process.averages_gradients for process in trainers)


CHECKS = (
    find_repeated_passes,
    find_batches_read_by_all,
    find_ranks_that_end_apart,
    find_equal_noise,
    find_unlike_tokens,
)
CODES = frozenset(
    {
        *("same-rows-every-epoch", "iterable-read-by-all", "ranks-end-apart"),
        *("same-noise-on-every-rank", "unlike-tokens"),
    }
)
