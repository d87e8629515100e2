"""Request bodies that the OpenAPI document shows. A test sends every one of them."""

from typing import Any

_CLASSIFIER: dict[str, Any] = {
    "model": {"ref": "digits_cnn", "args": {"channels": 16}},
    "data": {"ref": "digits", "args": {"split": "train"}, "batch_size": 64, "shuffle": True},
    "loss": {"ref": "cross_entropy"},
    "optimizer": {"ref": "sgd", "args": {"lr": 0.05, "momentum": 0.9}},
    "epochs": 6,
    "seed": 7,
    "evaluate": {"data": {"ref": "digits", "args": {"split": "test"}, "batch_size": 120}},
}

SPECS: dict[str, dict[str, Any]] = {
    "split_a_batch_of_30_among_3_devices": {
        "name": "three-of-thirty",
        "resources": {"devices": 3},
        "parallelism": {"strategy": "dp"},
        "program": {
            "mode": "forward",
            "model": {"ref": "linear", "args": {"in_features": 5, "out_features": 2}},
            "data": {"ref": "random_vectors", "args": {"rows": 100, "features": 5}, "batch_size": 30},
        },
    },
    "train_under_data_parallel": {
        "name": "digits-dp2",
        "labels": {"team": "vision"},
        "resources": {"devices": 2},
        "parallelism": {"strategy": "dp", "output_device": 0},
        "program": _CLASSIFIER,
    },
    "train_under_distributed_data_parallel": {
        "name": "digits-ddp2",
        "priority": 10,
        "resources": {"devices": 2},
        "parallelism": {"strategy": "ddp"},
        "program": _CLASSIFIER,
        "limits": {"wall_seconds": 600, "max_retries": 1},
    },
}

COMPARISONS: dict[str, dict[str, Any]] = {
    "dp_against_ddp": {
        "spec": {"name": "digits", "program": _CLASSIFIER},
        "strategies": ["single", "dp", "ddp"],
        "devices": [1, 2],
        "steps": 50,
    }
}

SWEEPS: dict[str, dict[str, Any]] = {
    "a_grid": {
        "spec": {"name": "digits", "program": _CLASSIFIER},
        "grid": {"program.data.batch_size": [16, 32, 64], "program.optimizer.args.lr": [0.05, 0.1]},
        "max_concurrent": 2,
    },
    "at_random": {
        "spec": {"name": "digits", "program": _CLASSIFIER},
        "random": {
            "program.optimizer.args.lr": {"min": 0.001, "max": 0.1, "log": True},
            "program.data.batch_size": [16, 32, 64],
        },
        "trials": 20,
        "seed": 1,
        "metric": "metrics.accuracy",
    },
}

CANCELS: dict[str, dict[str, Any]] = {
    "waiting_jobs_of_a_team": {"state": "queued", "label": "team=vision"},
    "all_jobs": {"all": True},
}

DRAINS: dict[str, dict[str, Any]] = {
    "until_all_has_ended": {},
    "ten_minutes_then_move": {"deadline_seconds": 600},
    "move_at_once": {"deadline_seconds": 0},
}

PROFILES: dict[str, dict[str, Any]] = {"the_next_ten_steps": {"steps": 10}}

GATES: dict[str, dict[str, Any]] = {
    "even_and_busy": {"max_time_imbalance": 1.2, "max_idle": 0, "no_finding": ["slow-device", "uneven-mean-of-means"]},
    "as_fast_as_before": {"against": "01a206b6-a3c7-72da-9460-dc116caac623", "max_slowdown": 1.05},
}

POLICIES: dict[str, dict[str, Any]] = {
    "only_nodes_with_a_full_box": {"box": "full"},
    "jobs_that_download": {"box": "any", "network": "host"},
    "urgent_jobs_first": {"preempt": True},
}

QUARANTINES: dict[str, dict[str, Any]] = {"a_flaky_gpu": {"reason": "falls off the bus about once a week"}}

QUOTAS: dict[str, dict[str, Any]] = {
    "a_small_team": {"jobs": 200, "running": 8, "devices": 8, "device_hours": 96, "window_hours": 24},
    "little_room_on_disk": {"bundle_bytes": 1_073_741_824},
}
SHARES: dict[str, dict[str, Any]] = {"twice_as_much_as_others": {"weight": 2}}

SECRETS: dict[str, dict[str, Any]] = {"a_token_of_hugging_face": {"value": "hf_..."}}

WEBHOOKS: dict[str, dict[str, Any]] = {
    "ends_of_jobs": {
        "url": "https://ci.example.com/hooks/shardyard",
        "events": ["job.succeeded", "job.failed", "job.cancelled"],
    },
    "a_channel_of_slack": {"url": "https://hooks.slack.com/services/T000/B000/XXX", "format": "slack"},
    "statuses_of_commits": {"format": "github", "repo": "acme/vision", "token_secret": "github-token"},
    "a_mail_when_jobs_fail": {"format": "email", "to": ["ml-team@example.com"], "events": ["job.failed"]},
}

WEBHOOK_CHANGES: dict[str, dict[str, Any]] = {"take_a_break": {"active": False}}

WEBHOOK_ROTATIONS: dict[str, dict[str, Any]] = {"a_secret_that_others_know": {"overlap_seconds": 0}}

SIGN_INS: dict[str, dict[str, Any]] = {"with_a_token": {"token": "sy_0123456789abcdef_..."}}

DEVICE_SIGN_INS: dict[str, dict[str, Any]] = {"while_somebody_signs_in": {"device_code": "GmRhmhcxhwAzkoEqiMEg..."}}

TOKENS: dict[str, dict[str, Any]] = {
    "a_token_for_ci": {"name": "ci", "scopes": ["submit"], "expires_in_seconds": 2_592_000},
    "a_token_that_may_only_look": {"name": "wall screen", "scopes": ["read"]},
}

JOINS: dict[str, dict[str, Any]] = {"a_machine": {"node": "gpu-2"}}
REACHES: dict[str, dict[str, Any]] = {"a_port": {"port": 40_001, "nonce": "0123456789abcdef"}}

#: Example values of parameters in paths, queries and headers.
PARAMETERS: dict[str, str] = {
    "job": "01980000-0000-7000-8000-000000000001",
    "comparison": "01980000-0000-7000-8000-000000000002",
    "sweep": "01980000-0000-7000-8000-000000000003",
    "against": "01980000-0000-7000-8000-000000000002",
    "path": "report.json",
    "bundle": "sha256:" + "0123456789abcdef" * 4,
    "node": "host-a",
    "block": "4711",
    "pool": "default",
    "device": "0",
    "id": "host-a:cpu:0",
    "token": "0123456789abcdef",
    "secret": "hf",
    "webhook": "wh_0123456789abcdef",
    "delivery": "0000000001-01980000-0000-89abcdef",
    "tenant": "default",
    "label": "team=vision",
    "Range": "bytes=0-1023",
}
