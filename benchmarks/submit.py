"""What it costs to accept a job: the service's API process against a default FastAPI application.

Both are one process under uvicorn with uvloop and httptools, each with a Redis of its own with `appendfsync always`, on
a unix socket. Ours is the service with its defaults: a bearer token, limits, the spec's model and further rules, the
catalogue, an Idempotency-Key that is new each time, the audit log, the scheduler in the same process. Its only node
is drained, so that every job is accepted and waits: no worker takes the cores. The other has the same model and
what our script asks and writes as one transaction, and nothing else (`programs/bare_api.py`). Each request has another
spec, as those of a sweep have; with one connection, the same one over and over is measured as well, which the service
reads once.
"""

import json
from functools import partial
from typing import Any

from benchmarks.harness import http
from benchmarks.harness.comparing import Figure, Say, Scale, at_most_times, in_turns
from benchmarks.harness.http import KEY_MARK, Load, RequestPlan
from benchmarks.harness.service import service

TITLE = "Submit: CPU of one API process for a job that is accepted"
OURS, AGAIN, BARE = "shardyard", "shardyard, the same spec", "default FastAPI"
CONNECTIONS = (1, 16, 64)

SPEC: dict[str, Any] = {
    "name": "resnet-cifar10-lr0.1-run17",
    "pool": "default",
    "priority": 5,
    "labels": {"team": "vision", "owner": "ada", "experiment": "2026-lr-sweep", "commit": "3f2b9c1d"},
    "resources": {"devices": 2},
    "parallelism": {"strategy": "ddp", "backend": "gloo"},
    "program": {
        "kind": "recipe",
        "model": {"ref": "mlp", "args": {"in_features": 64, "hidden": [128, 64], "out_features": 10}},
        "data": {
            "ref": "digits",
            "args": {"split": "train"},
            "batch_size": 64,
            "shuffle": True,
            "drop_last": False,
            "num_workers": 2,
        },
        "loss": {"ref": "cross_entropy", "args": {"label_smoothing": 0.1}},
        "optimizer": {"ref": "sgd", "args": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.0005, "nesterov": True}},
        "scheduler": {"ref": "step_lr", "args": {"step_size": 30, "gamma": 0.1}},
        "accumulate_steps": 2,
        "clip_grad_norm": 1.0,
        "precision": "bfloat16",
        "epochs": 90,
        "seed": 17,
        "evaluate": {"data": {"ref": "digits", "args": {"split": "test"}, "batch_size": 128}, "every_epochs": 5},
        "checkpoint": {"every_steps": 1000, "keep": 3},
    },
    "observe": "auto",
    "limits": {"wall_seconds": 14400, "max_retries": 2},
}


def run(scale: Scale, say: Say) -> list[Figure]:
    seconds, same = scale.pick(0.7, 0.3), json.dumps(SPEC).encode()
    others = json.dumps(SPEC | {"name": f"resnet-cifar10-{KEY_MARK}"}).encode()
    with service("cpu:2") as ours, http.bare_api() as bare:
        ours.client.drain(ours.client.nodes()[0].id)
        token = ours.client.create_token("bench", scopes=["submit"]).token
        key = {"Idempotency-Key": KEY_MARK}
        named = key | {"Authorization": f"Bearer {token}"}

        def plan(side: str, connections: int) -> RequestPlan:
            if side != BARE:
                body = others if side == OURS else same
                requests = [http.request("POST", "/v1/jobs", ours.port, named, body)]
                return RequestPlan(
                    ours.port, requests, connections, seconds, [ours.pid_of("api"), ours.pid_of("control")], 201
                )
            requests = [http.request("POST", "/jobs", bare.port, key, others)]
            return RequestPlan(bare.port, requests, connections, seconds, [bare.pid, bare.redis_pid], 201)

        plans = {(side, number): plan(side, number) for number in CONNECTIONS for side in _sides(number)}

        def once(which: tuple[str, int]) -> Load:
            found = http.load(plans[which])
            say(f"{which[0]:<15} {which[1]:>2} connections: {http.words(found)}")
            return found

        loads = in_turns(
            {f"{side} {number}": partial(once, (side, number)) for side, number in plans},
            scale.rounds_of(5, 1),
            say=say,
            warm_up=0,  # each load warms up
        )
    figures: list[Figure] = []
    for number in CONNECTIONS:
        sides = {side: loads[f"{side} {number}"] for side in _sides(number)}
        figures += http.figures("submit", sides, number, cpu_goals=[at_most_times(BARE, 1.0)])
    return figures


def _sides(connections: int) -> tuple[str, ...]:
    return (OURS, AGAIN, BARE) if connections == 1 else (OURS, BARE)
