"""Records as the store would hand them out."""

import json
from dataclasses import replace
from typing import Any

import msgspec

from jobs.model.pool_policy import DEFAULT_POLICY, PoolPolicy
from jobs.model.records import BoxRights, DeviceRecord, JobRecord, NodeInfo, NodeRecord
from jobs.model.spec import JobSpec
from jobs.model.spec_rules import parse_spec
from jobs.model.state import JobState, StateReason

JOB = "01a1faf7-950c-74f3-af12-cc10a45948be"


def a_job(**changes: Any) -> JobRecord:
    fields: dict[str, Any] = {
        "tenant": "default",
        "id": JOB,
        "name": "digits",
        "pool": "a100",
        "devices": 4,
        "priority": 0,
        "strategy": "dp",
        "labels": {},
        "state": JobState.QUEUED,
        "reason": StateReason.WAITING_FOR_DEVICES,
        "message": "",
        "attempt": 0,
        "retries": 0,
        "max_retries": 0,
        "version": 1,
        "created": 1_700_000_000_000_001,
        "started": None,
        "first_step": None,
        "finished": None,
        "node": None,
        "leased": (),
        "cancel_requested": False,
        "parent": None,
        "error": None,
        "result": None,
    }
    return JobRecord(**(fields | changes))


def a_spec(devices: int = 1, **fields: Any) -> JobSpec:
    return parse_spec(json.dumps(a_spec_body(devices) | fields))


def a_spec_body(devices: int = 1) -> dict[str, Any]:
    return {
        "resources": {"devices": devices},
        "parallelism": {"strategy": "dp" if devices > 1 else "single"},
        "program": {
            "mode": "forward",
            "model": {"ref": "linear", "args": {"in_features": 5, "out_features": 2}},
            "data": {"ref": "random_vectors", "args": {"rows": 100, "features": 5}, "batch_size": 30},
        },
    }


def node_info(devices: int, box: BoxRights | None = None) -> NodeInfo:
    records = (DeviceRecord(index=i, kind="cpu", ordinal=i, id=f"cpu:{i}", name="virtual") for i in range(devices))
    return NodeInfo(host="host", cores=4, version="0", devices=tuple(records), box=box)


def a_node(devices: int, *, held: dict[int, str] | None = None, **changes: Any) -> NodeRecord:
    fields: dict[bytes, bytes] = {
        b"pool": b"a100",
        b"address": b"127.0.0.1",
        b"alive": b"1",
        b"beat": b"1",
        b"registered": b"1700000000000001",
        b"info": msgspec.json.encode(node_info(devices)),
        b"instance": b"i",
    }
    fields |= {name.encode(): str(value).encode() for name, value in changes.items()}
    holders = {str(device).encode(): ref.encode() for device, ref in (held or {}).items()}
    return NodeRecord.from_fields("host-a", fields, holders, {}, {})


def a_boxed_node(
    name: str, devices: int, box: BoxRights | None, *, policy: PoolPolicy = DEFAULT_POLICY, **changes: Any
) -> NodeRecord:
    """A node of pool a100, which has that policy."""
    info = msgspec.json.encode(node_info(devices, box)).decode()
    return replace(a_node(devices, info=info, **changes), id=name, policy=policy)
