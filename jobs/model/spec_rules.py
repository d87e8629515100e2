"""Reads a job spec that users POST: `parse_spec` is the only way from bytes to a checked `JobSpec`.

The models (`jobs.model.spec`) check each field by itself, this module what several fields say together.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from pydantic import ValidationError

from jobs.model import file_patterns, validation
from jobs.model.error_words import shorten
from jobs.model.spec import DISTRIBUTED, MAX_DEVICES, JobSpec, ParallelismSpec, RecipeProgram, ScriptProgram
from jobs.model.spec_repair import ELSEWHERE, PROGRAMS, is_guessed, mend_spec
from jobs.model.validation import MAX_REPORTED_ERRORS
from shardyard.contract.errors import FieldError, InvalidSpec, NotSupported
from shardyard.contract.plain_text import describe_unsafe, find_unsafe

#: Names that a spec gives to what others have: components of recipes, for one.
NameCheck = Callable[[JobSpec], Iterable[FieldError]]
#: What nearly all rules about several fields read. Where one of these is unknown, what the rules say is guessed.
_READ_BY_RULES = ("parallelism", "resources", "program.kind", "program.mode")


def parse_spec(body: bytes | str, check_names: NameCheck | None = None) -> JobSpec:
    """Read a spec from JSON. `check_names` finds names in it that do not exist.

    Raises:
        MalformedJson: the body is not JSON, or is nested too deep.
        InvalidSpec: some fields are wrong, whatever the rule; `fields` names the first twenty.
        NotSupported: the spec asks for something that this version does not do.
    """
    try:
        spec = JobSpec.model_validate_json(body)
    except ValidationError as error:
        details = validation.details(error)
        raise _invalid(_errors_of_unreadable(body, details, check_names), len(details)) from None
    wrong = [*validation.repeated_keys(body), *_rule_errors(spec, check_names)]
    if wrong:
        raise _invalid(wrong)
    _refuse_unsupported(spec)
    return spec.named()


def _invalid(wrong: Sequence[FieldError], count: int = 0) -> InvalidSpec:
    """`count` errors there are at least: of very many, not all are described."""
    most, count = MAX_REPORTED_ERRORS, max(count, len(wrong))
    more = f" (the first {most} of {count} errors)" if count > most else ""
    return InvalidSpec(f"the job spec is not valid{more}", fields=tuple(wrong[:most]))


def _rule_errors(spec: JobSpec, check_names: NameCheck | None) -> list[FieldError]:
    """All that is wrong with a spec whose fields are valid, each by itself."""
    names = () if check_names is None else check_names(spec)
    return [*_unsafe_names(spec), *_cross_field_errors(spec), *names]


def _errors_of_unreadable(
    body: bytes | str, details: Sequence[validation.Detail], check_names: NameCheck | None
) -> list[FieldError]:
    """Errors of fields that are not valid by themselves, and what else is wrong as far as that can be told."""
    wrong = [
        *validation.field_errors(details, JobSpec, PROGRAMS, ELSEWHERE),
        *validation.repeated_keys(body),
    ]
    spec, guessed = mend_spec(body, details)
    if spec is None:
        return wrong
    known = {error.field for error in wrong}
    further = [*_unsafe_names(spec), *(() if check_names is None else check_names(spec))]
    if not any(is_guessed(field, guessed) for field in _READ_BY_RULES):
        further += _cross_field_errors(spec)
    return wrong + [error for error in further if error.field not in known and not is_guessed(error.field, guessed)]


def _refuse_unsupported(spec: JobSpec) -> None:
    recipe = spec.program if isinstance(spec.program, RecipeProgram) else None
    if spec.parallelism.strategy == "fsdp" and recipe is not None and recipe.precision == "float16":
        raise NotSupported(
            "float16 does not run under fsdp in this version",
            fields=(
                FieldError(
                    "program.precision",
                    "each rank holds a part of the gradients only, and ranks could disagree on which step to skip "
                    'for an overflow; use "bfloat16", whose range needs no gradient scaling',
                ),
            ),
        )


def _unsafe_names(spec: JobSpec) -> Iterator[FieldError]:
    """Names with characters that a screen obeys instead of showing them. It is no part of the models: a stored spec of
    an earlier version may have such a name, and is still read."""
    program = spec.program
    named = {"name": spec.name or ""} | {f"labels.{key}": value for key, value in spec.labels.items()}
    if isinstance(program, ScriptProgram):
        named |= {"program.entrypoint": program.entrypoint, "program.workdir": program.workdir}
        named |= {f"program.keep.{number}": pattern for number, pattern in enumerate(program.keep or ())}
    for field, text in named.items():
        unsafe = find_unsafe(text)
        if unsafe is not None:
            yield FieldError(field, f"{describe_unsafe(unsafe)} (got {shorten(text)!r})")


def _cross_field_errors(spec: JobSpec) -> list[FieldError]:
    """Errors of rules about several fields. Each says which field to change, and how."""
    how, devices = spec.parallelism, spec.resources.devices
    wrong: list[FieldError] = []
    is_recipe = isinstance(spec.program, RecipeProgram)

    def refuse(field: str, message: str) -> None:
        wrong.append(FieldError(field, message))

    if is_recipe and how.strategy == "single" and devices > 1 and not how.placement:
        refuse(
            "resources.devices",
            f'{devices} devices, but strategy "single" runs on one; set 1, or parallelism.strategy to "dp" or "ddp"',
        )
    wrong += _node_errors(spec)
    if how.strategy != "dp":
        for field, given in (("dim", how.dim), ("output_device", how.output_device), ("functional", how.functional)):
            if given:
                refuse(f"parallelism.{field}", f'only for strategy "dp"; leave it out under "{how.strategy}"')
    if how.strategy != "single" and how.placement:
        refuse("parallelism.placement", f'only for strategy "single"; leave it out under "{how.strategy}"')
    if how.strategy not in ("dp", "ddp") and how.module is not None:
        refuse("parallelism.module", f'only for strategies "dp" and "ddp"; leave it out under "{how.strategy}"')
    if how.strategy not in DISTRIBUTED and how.backend != "auto":
        refuse("parallelism.backend", f'only for strategies "ddp" and "fsdp"; leave it out under "{how.strategy}"')
    wrong += _weight_errors(spec)
    if how.output_device >= devices:
        refuse(
            "parallelism.output_device",
            f"{how.output_device} is outside the {devices} leased devices; 0 to {devices - 1}",
        )
    for name, device in how.placement.items():
        if isinstance(device, int) and device >= devices:
            refuse(
                f"parallelism.placement.{name}", f"{device} is outside the {devices} leased devices; 0 to {devices - 1}"
            )
    if isinstance(spec.program, RecipeProgram):
        return wrong + _recipe_errors(spec, spec.program)
    return wrong + _script_errors(how, spec.program)


def _weight_errors(spec: JobSpec) -> list[FieldError]:
    how, devices = spec.parallelism, spec.all_devices
    if how.weights is None:
        return []
    field = "parallelism.weights"
    if how.strategy == "single":
        return [FieldError(field, 'only for strategies "dp", "ddp" and "fsdp"; leave it out under "single"')]
    if how.weights == "auto" and isinstance(spec.program, ScriptProgram):
        return [
            FieldError(field, "a script is given its weights as they are (job.weights()); list one for each device")
        ]
    if how.weights != "auto" and len(how.weights) != devices:
        return [FieldError(field, f"{len(how.weights)} weights, but {devices} devices on all nodes; list {devices}")]
    if spec.distributed and how.module is not None:
        message = "gradients are weighed in the whole model; leave it out where parallelism.weights is set"
        return [FieldError("parallelism.module", message)]
    return []


def _uneven_errors(spec: JobSpec, program: RecipeProgram) -> list[FieldError]:
    field, uneven = "program.data.uneven", program.data.uneven
    if uneven is None:
        return []
    if not spec.distributed:
        strategy = spec.parallelism.strategy
        return [FieldError(field, f'only for strategies "ddp" and "fsdp"; leave it out under "{strategy}"')]
    if program.data.drop_last:
        return [FieldError(field, "drop_last leaves out all rows that do not fill a batch; leave out one of the two")]
    if uneven == "weigh" and spec.parallelism.module is not None:
        message = 'gradients are weighed in the whole model; leave it out where program.data.uneven is "weigh"'
        return [FieldError("parallelism.module", message)]
    return []


#: Why a strategy that has one process does not run on several nodes.
_ONE_PROCESS = {
    "single": 'one process runs all of strategy "single"; set 1, or parallelism.strategy to "ddp"',
    "dp": 'one process drives all devices of dp; use ddp (parallelism.strategy "ddp"), or set 1',
}


def _node_errors(spec: JobSpec) -> list[FieldError]:
    nodes, devices = spec.resources.nodes, spec.resources.devices
    if nodes == 1:
        return []
    if not spec.distributed:
        return [FieldError("resources.nodes", f"{nodes} nodes, but {_ONE_PROCESS[spec.parallelism.strategy]}")]
    if spec.all_devices > MAX_DEVICES:
        message = f"{nodes} nodes of {devices} devices have {spec.all_devices}; a job has at most {MAX_DEVICES}"
        return [FieldError("resources.nodes", message)]
    return []


def _recipe_errors(spec: JobSpec, program: RecipeProgram) -> list[FieldError]:
    wrong: list[FieldError] = []
    if spec.limits.artifact_bytes is not None:
        message = "only for scripts, whose working directory it limits; leave it out"
        wrong.append(FieldError("limits.artifact_bytes", message))
    if program.mode == "train":
        for field, component in (("loss", program.loss), ("optimizer", program.optimizer)):
            if component is None:
                message = 'training needs one; name it, or set program.mode to "forward"'
                wrong.append(FieldError(f"program.{field}", message))
    else:
        for field in ("loss", "optimizer", "scheduler", "clip_grad_norm", "evaluate", "checkpoint"):
            if getattr(program, field) is not None:
                message = 'not used when program.mode is "forward"; leave it out'
                wrong.append(FieldError(f"program.{field}", message))
        if program.accumulate_steps > 1:
            message = 'there is nothing to add up when program.mode is "forward"; leave it out'
            wrong.append(FieldError("program.accumulate_steps", message))
    if program.secrets and program.bundle is None:
        message = "only for code of your own: without a bundle no code of yours runs; leave it out"
        wrong.append(FieldError("program.secrets", message))
    wrong += _uneven_errors(spec, program)
    return wrong + _reserved_errors("secrets", program.secrets or {}) + _straggler_errors(spec, program)


#: Fields that a spec of a script must not set, because the script decides them.
_NOT_FOR_SCRIPTS = ("dim", "output_device", "module", "functional", "placement", "backend")


def _is_inside(path: str) -> bool:
    """Whether a path, with "/" between its parts, stays inside the directory that it is relative to."""
    parts = path.split("/")
    return "\\" not in path and "\0" not in path and all(parts) and not {".", ".."} & {*parts}


def _script_errors(how: ParallelismSpec, program: ScriptProgram) -> list[FieldError]:
    wrong = [
        FieldError(f"parallelism.{field}", "a script decides this itself, where it wraps its model; leave it out")
        for field in _NOT_FOR_SCRIPTS
        if getattr(how, field) != ParallelismSpec.model_fields[field].get_default(call_default_factory=True)
    ]
    if program.workdir and not _is_inside(program.workdir):
        message = 'the path of a directory within the bundle, with "/" between its parts, for example "mnist"'
        wrong.append(FieldError("program.workdir", message))
    if program.is_file:
        if not _is_inside(program.entrypoint):
            message = 'the path of a file within the bundle, with "/" between its parts, for example "src/train.py"'
            wrong.append(FieldError("program.entrypoint", message))
    elif not all(part.isidentifier() for part in program.entrypoint.split(".")):
        message = 'a .py file of the bundle ("train.py"), or a module in it ("package.train")'
        wrong.append(FieldError("program.entrypoint", message))
    for number, pattern in enumerate(program.keep or ()):
        if not file_patterns.is_valid(pattern):
            message = 'not a .gitignore pattern; write for example "*.pt", "runs/", or "!data/" to leave data out'
            wrong.append(FieldError(f"program.keep.{number}", message))
    secrets = program.secrets or {}
    for name in sorted(secrets.keys() & program.env.keys()):
        message = f"program.env sets {name} as well; leave it out in one of them"
        wrong.append(FieldError(f"program.secrets.{name}", message))
    return wrong + _reserved_errors("env", program.env) + _reserved_errors("secrets", secrets)


#: Variables that would change what the service sets for a rank: its devices, its number, its interpreter.
_RESERVED = ("LD_", "PYTHON", "SHARDYARD_", "TORCHELASTIC_", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
_RESERVED_NAMES = frozenset(
    {"MASTER_ADDR", "MASTER_PORT", "PATH", "HOME", "TMPDIR", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"}
    | {"GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE"}
)


def _is_reserved(variable: str) -> bool:
    return variable.startswith(_RESERVED) or variable in _RESERVED_NAMES


def _reserved_errors(field: str, variables: Iterable[str]) -> list[FieldError]:
    """Errors of the variables that a program may not set by this field."""
    message = "{} is reserved, because the service sets it for each rank; leave it out"
    return [FieldError(f"program.{field}.{name}", message.format(name)) for name in filter(_is_reserved, variables)]


#: How a strategy names the one that is made slow.
_SLOW_ONE = {"dp": ("device", "rank"), "ddp": ("rank", "device")}


def _straggler_errors(spec: JobSpec, program: RecipeProgram) -> list[FieldError]:
    straggler, strategy = program.straggler, spec.parallelism.strategy
    if straggler is None:
        return []
    if strategy not in _SLOW_ONE:
        return [FieldError("program.straggler", f'only for strategies "dp" and "ddp"; leave it out under "{strategy}"')]
    field, other = _SLOW_ONE[strategy]
    if getattr(straggler, other) is not None:
        return [FieldError(f"program.straggler.{other}", f'not used under strategy "{strategy}"; set {field} instead')]
    slow, last = getattr(straggler, field), spec.all_devices - 1
    if slow is None or slow > last:
        return [FieldError(f"program.straggler.{field}", f"name the one to make slow: 0 to {last}")]
    if straggler.where == "backward" and program.mode == "forward":
        return [FieldError("program.straggler.where", 'there is no backward when program.mode is "forward"')]
    return []
