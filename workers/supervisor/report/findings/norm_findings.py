"""Findings about BatchNorm: statistics of few rows, and runs that failed because a device had a single row."""

import re
from collections.abc import Iterator, Sequence

from jobs.splits.norm_problems import NormFacts, small_shard_problem
from shardyard.contract.report import Finding
from workers.supervisor.report.process_state import ProcessState
from workers.supervisor.report.script_observations import ScriptObservations

CODES = frozenset({"one-row-shard", "batchnorm-small-shard"})

#: What torch raises, and which replica of DataParallel raised it.
ONE_VALUE = re.compile(r"Expected more than 1 value per channel when training, got input size torch\.Size\(\[1, (\d+)")
REPLICA = re.compile(r"in replica (\d+) on device (\d+)")


def norm_facts(processes: Sequence[ProcessState]) -> dict[str, NormFacts]:
    """By wrapped module; what is known of any process."""
    return {
        module: NormFacts(norms.inside, norms.layers, norms.values_per_row)
        for process in processes
        for module, norms in process.gradients.norms.items()
    }


def find_small_shards(seen: ScriptObservations) -> Iterator[Finding]:
    # The batch of a step is that of all ranks only where they train one model.
    ranks = len(seen.trainers) if all(process.averages_gradients for process in seen.trainers) else 1
    for module, norms in norm_facts(seen.trainers).items():
        full = max(seen.divided.get(module, ()), key=sum, default=())
        problem = small_shard_problem(norms, full * ranks if len(full) == 1 else full) if full else None
        if problem is not None:
            yield Finding(
                problem.code,
                problem.severity,
                problem.message,
                "give each device more rows, or use nn.GroupNorm; on GPUs, nn.SyncBatchNorm.convert_sync_batchnorm("
                "model) before DistributedDataParallel takes the statistics from all ranks",
                numbers=problem.numbers,
            )
            return


def find_failed_script(seen: ScriptObservations) -> Iterator[Finding]:
    scatters = any(len(rows) > 1 for splits in seen.divided.values() for rows in splits)
    return find_failed_norms(seen.processes, is_script=True, scatters=scatters)


def find_failed_norms(processes: Sequence[ProcessState], *, is_script: bool, scatters: bool) -> Iterator[Finding]:
    """The first process that BatchNorm has stopped. `scatters`: it has several devices."""
    for process in processes:
        said = "" if process.outcome is None else f"{process.outcome.message}\n{process.outcome.traceback}"
        found = ONE_VALUE.search(said)
        if found is None:
            continue
        replica = REPLICA.search(said)
        step = process.done.get("train", 0)
        who = f"device {replica[2]}" if replica is not None else "a device" if scatters else process.name
        drop_last = "pass drop_last=True to the DataLoader" if is_script else "set program.data.drop_last to true"
        batch_size = "its batch_size" if is_script else "program.data.batch_size"
        yield Finding(
            "one-row-shard",
            "warning",
            f"in training step {step} {who} got exactly one row, and BatchNorm cannot train on one value per channel "
            f"(its input had the size 1 x {found[1]}): the program failed there",
            f"{drop_last}, or choose {batch_size} so that no device is left with a single row",
            numbers={"step": step, "rows": 1},
        )
        return
