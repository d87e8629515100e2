"""The one sentence that says what a run's time went into, and what holds it up."""

from collections.abc import Sequence

from shardyard.contract.report import DeviceMeasures, WhatIf, time_parts

#: A device is named when the run takes so many times as long because of it.
SLOWED_FROM = 1.10
#: Shares of the devices' time from which waiting for input, and communication, are named.
INPUT_FROM, COMM_FROM = 0.10, 0.20
#: The same for what is neither a step's input, nor its work, nor its communication.
OTHER_FROM = 0.50

_CAUSES = {
    "rows": "it gets more rows",
    "compute": "it takes longer for a row",
    "input": "it waits longer for its input",
}


def describe_run(devices: Sequence[DeviceMeasures], what_if: WhatIf | None) -> str:
    """The verdict on a run, as one sentence."""
    spent = [time_parts(device) for device in devices]
    whole = sum(sum(parts.values()) for parts in spent)
    if not any(device.steps for device in devices) or not whole:
        return "No step has been measured."
    if what_if is not None and what_if.ratio >= SLOWED_FROM:
        return _describe_slowness(what_if)
    names = {name for parts in spent for name in parts}
    share = {name: sum([parts.get(name, 0.0) for parts in spent]) / whole for name in names}
    work = sum(share.get(name, 0.0) for name in ("forward_ms", "backward_ms", "optimizer_ms"))
    notable = [
        (share[name], words)
        for name, least, words in (
            ("data_wait_ms", INPUT_FROM, "waiting for batches"),
            ("comm_ms", COMM_FROM, "communication and waiting for each other"),
            ("other_ms", OTHER_FROM, "the program's own code, its start and its evaluation"),
        )
        if share.get(name, 0.0) >= least
    ]
    if not notable:
        return f"{work:.0%} of the devices' time goes into forward, backward and optimizer."
    most, words = max(notable)
    return f"{most:.0%} of the devices' time goes into {words}, {work:.0%} into forward, backward and optimizer."


def _describe_slowness(what_if: WhatIf) -> str:
    longer = f"the run takes {what_if.ratio:.2f} times as long as it would if all devices were alike"
    known = {name: getattr(what_if, name) for name in _CAUSES}
    cause = max(known, key=lambda name: known[name])
    if what_if.other > known[cause]:
        return f"Devices wait for each other, now for one and now for another: {longer}."
    return f"Device {what_if.device} holds the others up: {longer}, mostly because {_CAUSES[cause]}."
