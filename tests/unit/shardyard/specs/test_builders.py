"""`Recipe` and `Script` as specs."""

import json
from dataclasses import fields
from typing import Any

from jobs.model import spec
from jobs.model.spec_rules import parse_spec
from shardyard import Component, Data, Recipe, Script
from shardyard.specs import builders
from shardyard.specs.builders import Checkpoints, Evaluation, Parallelism, Scheduler


def test_a_recipe_says_no_more_than_was_said() -> None:
    assert Recipe(model="mlp", data=Data("digits", batch_size=64), loss="cross_entropy").to_spec() == {
        "program": {
            "kind": "recipe",
            "model": {"ref": "mlp"},
            "data": {"ref": "digits", "args": {}, "batch_size": 64},
            "loss": {"ref": "cross_entropy"},
        }
    }


def test_every_field_of_a_recipe_is_one_that_the_service_takes() -> None:
    made = Recipe(
        model=Component("mlp", {"hidden": [512]}), data=Data("digits", {"split": "train"}, 64, True, False, 0),
        loss="cross_entropy", optimizer=Component("adamw", {"lr": 1e-3}),
        scheduler=Scheduler("cosine_annealing_lr", {"T_max": 4}, "epoch"), evaluate=Evaluation(Data("digits"), 2),
        epochs=3, max_steps=100, seed=7, mode="train", precision="bfloat16", accumulate_steps=2, clip_grad_norm=1.0,
        checkpoint=Checkpoints(10, keep=3), parallelism=Parallelism(backend="gloo"), devices=2, nodes=1, strategy="ddp",
        name="mine", pool="a100", priority=-5, labels={"team": "vision"}, observe="every", wall_seconds=60,
        stall_seconds=600, max_retries=2, start_after=5, secrets={"KEY": "name"}, export=["mlflow"],
        depends_on=["0198c2f0"],
        straggler={"rank": 1, "where": "input", "milliseconds": 5}, bundle=f"sha256:{64 * 'a'}",
    )  # fmt: skip
    wanted = parse_spec(json.dumps(made.to_spec()))
    assert (wanted.recipe.epochs, wanted.recipe.clip_grad_norm, wanted.recipe.checkpoint) == (
        3, 1.0, spec.CheckpointPolicy(every_steps=10, keep=3)
    )  # fmt: skip
    assert (wanted.parallelism.backend, wanted.parallelism.strategy, wanted.resources.devices) == ("gloo", "ddp", 2)
    assert (wanted.limits.wall_seconds, wanted.limits.stall_seconds, wanted.limits.max_retries) == (60, 600, 2)
    assert (wanted.labels, wanted.start_after, wanted.secrets) == ({"team": "vision"}, 5, {"KEY": "name"})
    assert wanted.recipe.export == ("mlflow",)
    assert wanted.depends_on == ("0198c2f0",)
    assert all(getattr(made, one.name) is not None for one in fields(made))


def test_the_builders_have_every_field_of_a_spec() -> None:
    def names(kind: Any) -> set[str]:
        return {one.name for one in fields(kind)}

    of_jobs = {*spec.JobSpec.model_fields, *spec.Resources.model_fields, *spec.Limits.model_fields}
    of_jobs -= {"resources", "parallelism", "limits", "program", "artifact_bytes"}
    assert names(builders.JobOptions) == of_jobs | {"strategy", "secrets", "export"}
    assert names(Recipe) - names(builders.JobOptions) == set(spec.RecipeProgram.model_fields) - {
        "kind",
        "secrets",
        "export",
    } | {"parallelism"}
    assert names(Parallelism) == set(spec.ParallelismSpec.model_fields) - {"strategy"}
    assert names(Data) == set(spec.DataSpec.model_fields)
    of_scripts = set(spec.ScriptProgram.model_fields) - {"kind", "bundle", "workdir"}
    assert names(Script) - names(builders.JobOptions) == of_scripts - {"secrets", "export"} | {
        "path", "include", "exclude", "artifact_bytes"
    }  # fmt: skip


def test_a_script_is_a_spec_but_for_its_files() -> None:
    made = Script(path="train.py", args=["-n", "3"], env={"A": "b"}, keep=[], artifact_bytes=5, nodes=2, wall_seconds=9)
    assert made.to_spec() == {
        "resources": {"nodes": 2},
        "parallelism": {"strategy": "ddp"},
        "limits": {"wall_seconds": 9, "artifact_bytes": 5},
        "program": {"kind": "script", "args": ["-n", "3"], "env": {"A": "b"}, "keep": []},
    }
    assert Script(path="train.py").to_spec()["parallelism"] == {"strategy": "single"}
