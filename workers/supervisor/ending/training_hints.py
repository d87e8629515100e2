"""Rules for errors of training on several devices: collectives that time out, shards of one row, memory of GPUs.

They hold for recipes and scripts alike. Advice names the field of the spec for the one, and the call for the other.
"""

import re

from jobs.protocol.records import Outcome
from workers.supervisor.ending.hint_rules import FailureContext, HintRule, make_rule

#: Parameters that a line of advice names.
MAX_PARAMETERS = 8
#: What a rank says whose peer is gone.
_LOST_PEER = re.compile(
    r"Connection (reset|closed|refused)|Broken pipe|failed to recv, got 0 bytes|Socket closed|remote process exited",
    re.IGNORECASE,
)
#: What DistributedDataParallel says further down about the parameters that got no gradient.
_WITHOUT_GRADIENT = re.compile(r"Parameter indices which did not receive grad for rank \d+: ([\d ]+)")


# -- collectives -----------------------------------------------------------------------------------

SAME_COLLECTIVES = (
    "Every rank must call the same collectives in the same order: look for a condition on the rank, or ranks with "
    "unequal numbers of batches, around the line at which the missing rank was."
)


def _timed_out_on_nccl(found: re.Match[str], _: FailureContext) -> str:
    return (
        f"NCCL gave up on {found['operation'].lower()}, collective number {found['number']} of its group: a rank had "
        f"not called it, or called it too late. {SAME_COLLECTIVES}"
    )


TIMED_OUT_ON_GLOO = (
    f"A collective was given up: another rank had not called it, or called it too late. {SAME_COLLECTIVES}"
)


def _unused_parameters(_: re.Match[str], facts: FailureContext) -> str:
    told = _WITHOUT_GRADIENT.search(facts.traceback)
    which = _name_parameters(told[1].split()) if told is not None else "Some parameters"
    begin = (
        f"{which} of the model had no part in the loss of the previous step, and DistributedDataParallel waits for the "
        "gradient of each parameter: "
    )
    if facts.is_script:
        return begin + (
            "take them out of the model or use them; if each step uses other parts of it, pass "
            "find_unused_parameters=True to DistributedDataParallel."
        )
    return begin + "let the model use all of them, or freeze those that it does not use (requires_grad = False)."


def _name_parameters(numbers: list[str]) -> str:
    shown = ", ".join(numbers[:MAX_PARAMETERS]) + (", ..." if len(numbers) > MAX_PARAMETERS else "")
    return f"Parameter number {shown}" if len(numbers) == 1 else f"The parameters number {shown}"


# -- how batches are divided -----------------------------------------------------------------------


def _one_row(_: re.Match[str], facts: FailureContext) -> str:
    begin = "A device got a batch of a single row, for which BatchNorm cannot compute a variance: "
    if facts.is_script:
        return begin + (
            "pass drop_last=True to the DataLoader, or change batch_size so that the last batch gives every device "
            "two rows or more."
        )
    return begin + (
        "set program.data.drop_last to true, or change program.data.batch_size so that the last batch gives every "
        "device two rows or more."
    )


UNLIKE_OUTPUTS = (
    "DataParallel joins the outputs of the devices along the dimension of the batch, so all their other dimensions "
    "must be equal: pad to a length that is fixed for the whole batch (pad_packed_sequence has total_length), and do "
    "not squeeze away the batch of a device that got one row."
)
SCALAR_OUTPUTS = (
    "DataParallel joins the outputs of the devices along the dimension of the batch, and one of them has no dimension: "
    "return a value for each row, or a loss with a dimension (loss.unsqueeze(0)), on every device."
)


# -- GPUs ------------------------------------------------------------------------------------------


def explain_gpu_memory(facts: FailureContext) -> str:
    how = (
        "make the batch smaller, gather gradients over several smaller batches,"
        if facts.is_script
        else "make program.data.batch_size smaller and program.accumulate_steps larger,"
    )
    return f"The GPU's memory ran out: {how} or take more devices (the split report shows what each one needed)."


FORKED_CUDA = (
    "A forked process uses CUDA, which its parent had already used: start processes with "
    'multiprocessing.set_start_method("spawn"). If it is a DataLoader worker, have the data set return CPU '
    "tensors, and move batches to the GPU in the training loop."
)


# -- the rules -------------------------------------------------------------------------------------

#: A collective that gloo has given up.
GLOO_TIMEOUTS = (
    make_rule(r"Timed out waiting \d+ms for (recv|send) operation to complete", TIMED_OUT_ON_GLOO),
    make_rule(r"failed to pass monitoredBarrier", TIMED_OUT_ON_GLOO),
)
#: What NCCL's watchdog prints before it ends the process, which then leaves no traceback.
NCCL_TIMEOUT = make_rule(
    r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(?P<number>\d+), OpType=(?P<operation>\w+)",
    _timed_out_on_nccl,
)

TRAINING_RULES: tuple[HintRule, ...] = (
    NCCL_TIMEOUT,
    *GLOO_TIMEOUTS,
    make_rule(r"Expected to have finished reduction in the prior iteration", _unused_parameters),
    make_rule(r"Expected more than 1 (value per channel|spatial element) when training", _one_row),
    make_rule(r"zero-dimensional tensor .*cannot be concatenated", SCALAR_OUTPUTS, r"\bgather\("),
    make_rule(r"Sizes of tensors must match except in dimension", UNLIKE_OUTPUTS, r"\bgather\("),
    make_rule(r"Tensors must have same number of dimensions", UNLIKE_OUTPUTS, r"\bgather\("),
    make_rule(r"Input tensor at index \d+ has invalid shape|[Gg]ather got an input of invalid size", UNLIKE_OUTPUTS),
    make_rule(r"CUDA out of memory", lambda _, facts: explain_gpu_memory(facts)),
    make_rule(r"Cannot re-initialize CUDA in forked subprocess", FORKED_CUDA),
)


def may_have_lost_peer(failure: Outcome) -> bool:
    """Whether a rank may have failed because another one, of any node, has died."""
    return _LOST_PEER.search(failure.message) is not None


def is_collective_timeout(failure: Outcome) -> bool:
    """Whether a rank has failed because it waited for others in vain."""
    return any(rule.pattern.search(failure.message) for rule in GLOO_TIMEOUTS)
