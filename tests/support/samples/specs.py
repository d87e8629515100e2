"""Specs for tests of plans, findings and reports."""

import json
from typing import Any

from jobs.model.spec import JobSpec, Resources
from jobs.model.spec_rules import parse_spec


def make_spec(
    strategy: str = "dp",
    devices: int = 1,
    batch_size: int = 30,
    *,
    drop_last: bool = False,
    mode: str = "train",
    observe: str = "auto",
    nodes: int = 1,
    parallelism: dict[str, Any] | None = None,
    evaluate: dict[str, Any] | None = None,
    **program: Any,
) -> JobSpec:
    """A valid spec; `evaluate` is (batch_size, every_epochs) by name, `program` further fields of it."""
    data = {"ref": "random_vectors", "args": {}, "batch_size": batch_size, "drop_last": drop_last}
    body: dict[str, Any] = {"kind": "recipe", "model": {"ref": "linear"}, "data": data, "mode": mode, **program}
    if mode == "train":
        body |= {"loss": {"ref": "cross_entropy"}, "optimizer": {"ref": "sgd"}}
    if evaluate is not None:
        every = evaluate.get("every_epochs", 1)
        body["evaluate"] = {
            "data": {"ref": "random_vectors", "batch_size": evaluate["batch_size"]},
            "every_epochs": every,
        }
    spec = {
        "resources": {"devices": devices},
        "parallelism": {"strategy": strategy, **(parallelism or {})},
        "program": body,
        "observe": observe,
    }
    made = parse_spec(json.dumps(spec))
    # Several nodes are refused still, but what is worked out of a spec knows them.
    return made if nodes == 1 else made.model_copy(update={"resources": Resources(devices=devices, nodes=nodes)})
