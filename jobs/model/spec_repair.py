"""Repairs a spec as its author may have meant it, so that one answer can list everything wrong with it.

Misspelt names get the right ones, and what cannot stand where it does is left out. The mended spec is for looking at
only: no job is ever made of it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError

from jobs.model.error_words import choices_of, nearest_choice
from jobs.model.spec import JobSpec, RecipeProgram, ScriptProgram
from jobs.model.validation import Detail, Path, Tags, known_fields, user_path

PROGRAMS: Final[Tags] = {("program", "recipe"): RecipeProgram, ("program", "script"): ScriptProgram}

#: Where words stand that other services have in the place of ours.
_PLACES: Final[Mapping[str, tuple[str, ...]]] = {
    "resources.devices": (
        *("gpus", "gpu", "num_gpus", "n_gpus", "ngpus", "gpu_count", "num_devices", "accelerators", "slots"),
        *("slots_per_trial", "nproc_per_node", "gpus_per_node", "devices_per_node", "world_size"),
    ),
    "resources.nodes": ("num_nodes", "nnodes", "n_nodes", "node_count", "replicas"),
    "parallelism.strategy": ("distributed", "parallel", "dist_strategy"),
    "program.entrypoint": ("command", "cmd", "script", "main", "run"),
    "program.args": ("arguments", "argv"),
    "program.env": ("environment", "env_vars", "environment_variables"),
    "program.workdir": ("working_dir", "workingdir", "cwd"),
    "program.bundle": ("code", "code_dir", "source"),
    "program.data": ("dataset",),
    "program.data.batch_size": ("bs", "per_device_batch_size"),
    "program.optimizer.args.lr": ("lr", "learning_rate"),
    "program.epochs": ("num_epochs", "n_epochs", "max_epochs"),
    "program.max_steps": ("num_steps", "steps", "iterations"),
    "program.accumulate_steps": ("gradient_accumulation_steps", "accumulation_steps", "accumulate_grad_batches"),
    "program.precision": ("dtype", "mixed_precision", "amp"),
    "program.scheduler": ("lr_scheduler",),
    "limits.wall_seconds": ("timeout", "max_time", "time_limit", "walltime", "max_duration", "timeout_seconds"),
    "limits.max_retries": ("retries", "max_restarts", "restarts", "retry"),
    "pool": ("queue", "partition", "node_pool", "resource_pool", "cluster"),
    "labels": ("tags", "metadata"),
    "name": ("title", "job_name", "display_name"),
    "start_after": ("schedule", "start_at", "begin"),
}
#: What this service has nothing for.
_ABSENT: Final[Mapping[str, tuple[str, ...]]] = {
    "there are no images: code comes as a bundle (`program.bundle`), and `program.python` names a Python environment "
    "of the nodes": ("image", "docker_image", "container", "docker", "container_image"),
    "packages are those of the node; `program.python` names another Python environment that its operator has made": (
        *("requirements", "pip", "conda", "packages", "dependencies", "python_version"),
    ),
    "a job gets devices; what it may use beside them is what its node allows": (
        *("cpus", "cpu", "num_cpus", "memory", "mem", "ram", "memory_gb", "disk", "shm_size"),
    ),
}
#: Of names that are nowhere in a spec: what to do instead.
ELSEWHERE: Final[Mapping[str, str]] = {
    **{word: f"did you mean '{place}'?" for place, words in _PLACES.items() for word in words},
    **{word: hint for hint, words in _ABSENT.items() for word in words},
}
_PLACE_OF = {word: tuple(place.split(".")) for place, words in _PLACES.items() for word in words}

#: For what is required and missing, or could not be read.
_STAND_INS: Final[Mapping[str, Any]] = {
    "model": {"ref": "linear"},
    "data": {"ref": "random_vectors"},
    "ref": "linear",
    "bundle": "sha256:" + 64 * "0",
    "entrypoint": "train.py",
    "where": "input",
    "milliseconds": 1,
    "every_steps": 1,
}
#: Each mends what the one before could not see: what is within a field that had another name.
_ROUNDS = 4


def mend_spec(body: bytes | str, details: Sequence[Detail]) -> tuple[JobSpec | None, set[Path]]:
    """A spec like that of the body, whose errors are `details`; None where it cannot be guessed. And the paths of what
    it has lost or got, which say nothing about what the author wrote."""
    guessed: set[Path] = set()
    try:
        document = json.loads(body)
        for _ in range(_ROUNDS):
            for detail in details:
                _mend(document, detail, guessed)
            try:
                return JobSpec.model_validate_json(json.dumps(document)), guessed
            except ValidationError as error:
                details = error.errors(include_url=False)
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        pass
    return None, guessed


def _mend(document: dict[str, Any], detail: Detail, guessed: set[Path]) -> None:
    """Repair what one error says. Raises LookupError, TypeError or AttributeError for what cannot be."""
    path = user_path(detail["loc"], PROGRAMS)
    *way, name = path
    holder: Any = document
    for part in way:
        holder = holder[part]
    if detail["type"] == "missing":
        holder[name] = _STAND_INS[str(name)]
        guessed.add(path)
        return
    if detail["type"] == "extra_forbidden":
        value = holder.pop(name)
        place = _place_of(str(name), tuple(way), detail)
        if place is None or not _put(document, place, value):
            guessed.add(path)
        return
    near = nearest_choice(holder[name], choices_of(detail))
    if near is not None:
        holder[name] = near
        return
    del holder[name]
    guessed.add(path)


def _place_of(name: str, way: Path, detail: Detail) -> Path | None:
    """Where an unknown field was meant to be."""
    if name.casefold() in _PLACE_OF:
        return _PLACE_OF[name.casefold()]
    near = nearest_choice(name, known_fields(detail["loc"], JobSpec, PROGRAMS))
    return None if near is None else (*way, near)


def _put(document: dict[str, Any], place: Path, value: Any) -> bool:
    """Whether there was room for it."""
    *way, name = place
    holder: Any = document
    for part in way:
        holder = holder.setdefault(part, {})
    return bool(holder.setdefault(name, value) is value)


def is_guessed(field: str, guessed: Iterator[Path] | set[Path]) -> bool:
    """Whether an error of a mended spec is about what was guessed: its field lies within that, or around it."""
    parts = tuple(field.split("."))
    texts = (tuple(map(str, path)) for path in guessed)
    return any(parts[: len(path)] == path or path[: len(parts)] == parts for path in texts)
