"""What operators are told when nodes put no box around jobs and more than one person could be served."""

from collections.abc import Mapping
from itertools import islice

#: How many nodes a message names.
MAX_NAMED = 3
RISK = "Whoever may submit a job there has the account of the service: its files, its tokens, and other people's jobs."
WAYS_OUT = (
    "Unset SHARDYARD_BOX there, where it is off, and run the worker as root; or allow user namespaces "
    "(sysctl -w kernel.unprivileged_userns_clone=1, and where AppArmor restricts them "
    "kernel.apparmor_restrict_unprivileged_userns=0); or accept it with --jobs-unboxed (SHARDYARD_JOBS_UNBOXED=1)."
)


def refusal_text(nodes: Mapping[str, str], refused: str) -> str:
    """Why `refused`, a sentence without its end, is so, and the ways out. `nodes` are those without a box, each with
    the reason why it has none."""
    named = ", ".join(f"{node} ({why})" for node, why in islice(nodes.items(), MAX_NAMED))
    named += ", ..." if len(nodes) > MAX_NAMED else ""
    verb = "puts" if len(nodes) == 1 else "put"
    return f"{refused}: {named} {verb} no box around jobs. {RISK} {WAYS_OUT}"
