"""Findings about the gradients of a script: whether ranks take the same step, and which reductions are useless."""

from collections.abc import Iterator, Sequence

from jobs.protocol.probe_records import GradientSync
from jobs.splits.lint import rank_problems
from jobs.splits.row_weights import weigh_rows
from shardyard.contract.report import Finding, describe_bytes, describe_rows
from workers.supervisor.report.findings import norm_findings
from workers.supervisor.report.script_observations import ScriptObservations, count_of

CODES = frozenset(
    {
        *("unsynchronised-last-micro-batch", "reduces-every-micro-batch", "uneven-mean-of-means"),
        *("unused-search-unneeded", *norm_findings.CODES),
    }
)

#: Ranks that have never synchronised so far may do so now and then, by averaging their parameters.
MIN_LOCAL_STEPS = 256
#: Steps that reduce several times, before anything is said.
MIN_REPEATED = 3
#: Steps in which each parameter had a gradient, of how many, before a search for unused ones is called unneeded.
MIN_LOOKS, MIN_SEARCHED = 8, 100


def find_unsynchronised(seen: ScriptObservations) -> Iterator[Finding]:
    """Steps before which the last backward of a DistributedDataParallel did not reduce gradients."""
    alone = (sync for sync in _syncs(seen) if not _is_averaged_by_hand(sync))
    worst = max(alone, key=lambda one: one.unsynchronised, default=None)
    if worst is None or not worst.unsynchronised:
        return
    steps = max((process.done.get("train", 0) for process in seen.trainers), default=0)
    if not seen.final and worst.unsynchronised >= steps and steps < MIN_LOCAL_STEPS:
        return
    ranks = len(seen.trainers)
    yield Finding(
        "unsynchronised-last-micro-batch",
        "warning",
        f"in {worst.unsynchronised:,} of {count_of(steps, 'step')}, first in step {worst.first_unsynchronised}, the "
        "last forward and backward before the optimizer's step ran without gradient synchronisation: each of "
        f"{ranks} ranks updated {worst.inside} with gradients of its own, and their models drift apart",
        "run the last forward and backward before each optimizer.step() outside no_sync() (require_backward_grad_sync "
        "is True then), also where the batches at the end of an epoch make a smaller group",
        numbers={
            "unsynchronised_steps": worst.unsynchronised,
            "steps": steps,
            "first_step": worst.first_unsynchronised or 0,
            "ranks": ranks,
        },
    )


def find_repeated_reductions(seen: ScriptObservations) -> Iterator[Finding]:
    """Steps in which several backwards reduced gradients that were only added up."""
    worst = max(_syncs(seen), key=lambda one: one.reductions, default=None)
    if worst is None or worst.repeated < MIN_REPEATED:
        return
    wasted = worst.reductions - worst.repeated
    cost = None
    if seen.comm_ms is not None:
        cost = seen.comm_ms * wasted / worst.reductions * worst.repeated * len(seen.trainers) / 1000
    each = worst.reductions / worst.repeated
    wasted_bytes = wasted * worst.gradient_bytes
    yield Finding(
        "reduces-every-micro-batch",
        "info",
        f"{count_of(worst.repeated, 'step')} of {worst.inside} had {each:.3g} backwards each, and all of them "
        f"synchronised gradients: {wasted:,} of {worst.reductions:,} reductions were of no use, "
        f"{describe_bytes(wasted_bytes)} on every rank",
        "run the forward and backward of every micro-batch but the last one of a step under no_sync() of the "
        "DistributedDataParallel",
        numbers={
            "steps": worst.repeated,
            "reductions": worst.reductions,
            "wasted_reductions": wasted,
            "gradient_bytes": worst.gradient_bytes,
            "wasted_bytes": wasted_bytes,
        },
        cost_device_seconds=None if cost is None else round(cost, 4),
        cost_share=None if cost is None or not seen.device_ms else round(min(1.0, cost * 1000 / seen.device_ms), 4),
    )


def find_uneven_means(seen: ScriptObservations) -> Iterator[Finding]:
    """DataParallel: devices with different numbers of rows return the mean of their losses, which are averaged."""
    uneven = [
        (module, rows)
        for module, divisions in sorted(seen.numbers_only.items())
        for rows in divisions
        if len({*rows} - {0}) > 1 and _averages_devices(seen, sum(rows))
    ]
    if not uneven:
        return
    worst = max((weigh_rows(rows) for _, rows in uneven), key=lambda one: one.misplaced)
    patterns = [one for one in seen.patterns if one.phase == "train" and (one.module, one.rows) in uneven]
    steps = max(1, sum(pattern.steps or 0 for pattern in patterns))
    yield Finding(
        "uneven-mean-of-means",
        "warning",
        f"in {count_of(steps, 'step')} each device returned the mean loss of its rows ({describe_rows(worst.counts)}), "
        "and the means were averaged as equals: a row on the device with the fewest rows weighs "
        f"{worst.ratio:.3g} times one on that with the most, and {worst.misplaced:.0%} of the gradient's weight is on "
        "the wrong rows",
        "return one loss for each row from the model and average them after the gather; or pass drop_last=True to the "
        "DataLoader, and make its batch_size a multiple of the number of devices",
        numbers=worst.numbers(steps),
    )


def find_unneeded_search(seen: ScriptObservations) -> Iterator[Finding]:
    """`find_unused_parameters` of a DistributedDataParallel whose parameters were all used on all ranks. Only the first
    wrapper of a process knows whether what it finds has changed meanwhile."""
    trainers = seen.trainers
    if any(process.reducers != 1 for process in trainers):
        return
    for number in trainers[0].gradients.searches if trainers else ():
        searches = [process.gradients.searches.get(number) for process in trainers]
        known = [one for one in searches if one is not None and not one.needed]
        looks = min((one.looks for one in known), default=0)
        reductions = min((one.reductions for one in known), default=0)
        if len(known) < len(trainers) or looks < MIN_LOOKS or reductions < MIN_SEARCHED:
            continue
        yield Finding(
            "unused-search-unneeded",
            "info",
            f"DistributedDataParallel searches the graph of {known[0].inside} for unused parameters in every step "
            f"(find_unused_parameters=True), and found none in {reductions:,} steps; in {looks:,} of them the "
            "gradients were looked at, and every parameter had one",
            "leave out find_unused_parameters, which saves a pass over the graph in every step",
            numbers={"steps": reductions, "looks": looks},
        )
        return


def averages_as_equals(seen: ScriptObservations) -> bool:
    """Whether each rank's loss is the mean of its rows, whatever their number, as far as losses were looked at."""
    forms = [form for process in seen.trainers for form in process.gradients.forms.values()]
    return all(form.kind == "mean" for form in forms) and len({form.factors for form in forms}) < 2


def _averages_devices(seen: ScriptObservations, rows: int) -> bool:
    forms = [form for process in seen.processes if (form := process.gradients.forms.get(rows)) is not None]
    return bool(forms) and all(form.gathered > 1 and form.kind == "mean" for form in forms)


def remarks_on_gradients(seen: ScriptObservations) -> Iterator[str]:
    """What could not be told."""
    apart = [sync for sync in _syncs(seen) if sync.unsynchronised and _is_averaged_by_hand(sync)]
    if apart:
        worst = max(apart, key=lambda one: one.unsynchronised)
        yield (
            f"the gradients of {worst.inside} were not synchronised in {count_of(worst.unsynchronised, 'step')}; the "
            "program itself exchanges tensors, so it may average them, or the parameters, in its own way"
        )
    if len(seen.trainers) > 1 and not averages_as_equals(seen) and any(rank_problems(seen.patterns)):
        yield (
            "ranks had different numbers of rows in some steps; whether this gives rows different weights could not be "
            "told, since the losses are not the plain means of each rank's rows"
        )


def _syncs(seen: ScriptObservations) -> Sequence[GradientSync]:
    trainers = seen.trainers
    if len(trainers) < 2:
        return []
    return [sync for process in trainers for sync in process.gradients.syncs.values()]


def _is_averaged_by_hand(sync: GradientSync) -> bool:
    """Whether the program itself has exchanged as many numbers as there are in the model."""
    return sync.exchanged >= sync.trained_numbers


#: All checks of this module and of those that it stands on.
CHECKS = (
    find_unsynchronised,
    norm_findings.find_failed_script,
    find_uneven_means,
    norm_findings.find_small_shards,
    find_repeated_reductions,
    find_unneeded_search,
)
