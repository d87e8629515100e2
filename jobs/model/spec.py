"""The training job spec that users POST, with every limit and cross-field rule.

The models below are the schema; `parse` is the only way from bytes to a checked `JobSpec`. The catalogue
(`jobs.model.catalogue`) checks names of recipes and their arguments, `submit.lua` whether the job fits the pool, and
the worker `package.module:attribute` references.
"""

from collections.abc import Sized
from functools import cached_property
from math import isfinite
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    ValidatorFunctionWrapHandler,
)
from pydantic import WrapValidator as Wrap

from jobs.model import file_patterns, validation
from jobs.model.validation import MAX_REPORTED_ERRORS
from shardyard.contract.errors import FieldError, InvalidSpec, NotSupported

MAX_DEVICES = 1024
#: Strategies with one process per device.
DISTRIBUTED = frozenset({"ddp", "fsdp"})


def _finite(args: dict[str, Any]) -> dict[str, Any]:
    """Refuse NaN and infinity: JSON has neither, but parsers accept them (1e999 too), and storing would make them
    null."""
    todo: list[Any] = [args]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            todo.extend(value.values())
        elif isinstance(value, list):
            todo.extend(value)
        elif isinstance(value, float) and not isfinite(value):
            raise ValueError(f"{value} is not a finite number, which JSON requires")
    return args


def _one_message(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """One error for the whole union, at the field itself; pydantic reports each alternative under a path of its own."""
    try:
        return check(value)
    except ValidationError:
        raise ValueError('"cpu", or the logical index of a leased device, from 0') from None


Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
PoolName = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([a-z0-9._-]*[a-z0-9])?$")]
LabelKey = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$")]
LabelValue = Annotated[str, Field(max_length=255, pattern=r"^[^\x00-\x1f\x7f]*$")]
Ref = Annotated[
    str,
    Field(
        min_length=1,
        max_length=300,
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*(:[A-Za-z_][A-Za-z0-9_.]*)?$",
        description="a built-in name (`GET /v1/recipes`), or `package.module:attribute` in the worker's environment",
    ),
]
ModulePath = Annotated[str, Field(min_length=1, max_length=300, pattern=r"^[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*$")]
Args = Annotated[dict[str, Any], Field(max_length=64), AfterValidator(_finite)]
BundleId = Annotated[
    str, Field(pattern=r"^sha256:[0-9a-f]{64}$", description="id of uploaded code, as `POST /v1/bundles` answers it")
]
Argument = Annotated[str, Field(max_length=8192, pattern=r"^[^\x00]*$")]
KeepPattern = Annotated[str, Field(min_length=1, max_length=500, pattern=r"^[^\x00-\x1f\x7f]+$")]
VariableName = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
EnvironmentName = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([a-z0-9._-]*[a-z0-9])?$")]
Place = Annotated[Literal["cpu"] | Annotated[int, Field(ge=0, strict=True)], Wrap(_one_message)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Resources(Strict):
    devices: int = Field(1, ge=1, le=MAX_DEVICES, strict=True, description="devices of one node, leased all or nothing")
    nodes: int = Field(1, ge=1, strict=True, description="1 in this version")


class Parallelism(Strict):
    strategy: Literal["single", "dp", "ddp", "fsdp"] = "single"
    dim: int = Field(0, ge=-8, le=8, strict=True, description="dp: the dimension that is split, as in nn.DataParallel")
    output_device: int = Field(0, ge=0, strict=True, description="dp: logical index of the device that gathers")
    module: ModulePath | None = Field(None, description="dp, ddp: wrap this sub-module only")
    functional: bool = Field(False, strict=True, description="dp: call the four primitives one by one")
    placement: dict[ModulePath, Place] = Field(
        default_factory=dict, max_length=256, description='single: sub-module to "cpu" or a logical device'
    )
    backend: Literal["auto", "nccl", "gloo"] = Field("auto", description="ddp, fsdp: auto is nccl on cuda, gloo on cpu")


class Component(Strict):
    ref: Ref
    args: Args = Field(default_factory=dict)


class Data(Component):
    batch_size: int = Field(32, ge=1, le=1_000_000, strict=True, description="rows that one DataLoader yields")
    shuffle: bool = Field(False, strict=True)
    drop_last: bool = Field(False, strict=True)
    num_workers: int = Field(0, ge=0, le=64, strict=True)


class EvaluationData(Component):
    batch_size: int = Field(128, ge=1, le=1_000_000, strict=True)
    num_workers: int = Field(0, ge=0, le=64, strict=True)


class Evaluation(Strict):
    data: EvaluationData
    every_epochs: int = Field(1, ge=1, le=1_000_000, strict=True)


class Scheduler(Component):
    every: Literal["epoch", "step"] = Field("epoch", description="how often the learning rate changes")


class Straggler(Strict):
    """Makes one device slow on purpose, to see how the report shows it."""

    rank: int | None = Field(None, ge=0, strict=True, description="ddp: the rank that sleeps")
    device: int | None = Field(None, ge=0, strict=True, description="dp: logical index of the device that sleeps")
    where: Literal["input", "forward", "backward"]
    milliseconds: float = Field(gt=0, le=60_000, strict=True, description="duration of the sleep in each batch")


class CheckpointPolicy(Strict):
    """How often the state of a training run is saved; it is also saved at the end, and when the service stops the
    run."""

    every_steps: int = Field(
        ge=1, le=10**12, strict=True, description="optimizer steps from one checkpoint to the next"
    )
    keep: int = Field(2, ge=1, le=100, strict=True, description="how many of the newest checkpoints are kept")


class RecipeProgram(Strict):
    kind: Literal["recipe"] = "recipe"
    model: Component
    data: Data
    loss: Component | None = None
    optimizer: Component | None = None
    scheduler: Scheduler | None = Field(None, description="changes the learning rate, every epoch or every step")
    accumulate_steps: int = Field(1, ge=1, le=65_536, strict=True, description="batches in one optimizer step")
    clip_grad_norm: float | None = Field(
        None, gt=0, le=1e12, strict=True, description="largest norm of all gradients together"
    )
    precision: Literal["float32", "bfloat16", "float16"] = Field(
        "float32", description="number format of the forward (autocast); float16 on cuda only"
    )
    straggler: Straggler | None = Field(None, description="dp, ddp: makes one device slow, for demos")
    epochs: int = Field(1, ge=1, le=1_000_000, strict=True)
    max_steps: int | None = Field(None, ge=1, le=10**12, strict=True)
    seed: int = Field(0, ge=0, le=2**63 - 1, strict=True)
    mode: Literal["train", "forward"] = "train"
    evaluate: Evaluation | None = None
    checkpoint: CheckpointPolicy | None = Field(
        None, description="saves the run, so that a new attempt resumes from there"
    )
    bundle: BundleId | None = Field(None, description="code that `package.module:attribute` references may name")


class ScriptProgram(Strict):
    """The user's own program, which runs unchanged, as under `python entrypoint args`, once for each rank."""

    kind: Literal["script"]
    bundle: BundleId
    entrypoint: str = Field(
        min_length=1,
        max_length=500,
        description='a .py file ("src/train.py") or a module ("package.train") of the bundle, relative to `workdir`; '
        'or an installed module ("accelerate.commands.launch")',
    )
    workdir: str = Field(
        "", max_length=500, description="directory of the bundle that it starts in, as after `cd`; empty: its root"
    )
    args: tuple[Argument, ...] = Field(
        (), max_length=1000, description="arguments of the program; {local_rank} in them becomes the local rank"
    )
    env: dict[VariableName, Argument] = Field(default_factory=dict, max_length=256)
    rehearse: bool = Field(False, strict=True, description="run on virtual devices as if they were GPUs")
    python: EnvironmentName | None = Field(None, description="a Python environment that the operator lists")
    keep: Annotated[tuple[KeepPattern, ...], Field(max_length=100)] | None = Field(
        None,
        description="which files of the working directory are kept, as patterns of .gitignore; empty: none; "
        "left out: all but caches and downloaded data sets",
    )

    @property
    def is_file(self) -> bool:
        """Whether the entry point is a file rather than a module."""
        return self.entrypoint.endswith(".py")


def _kind(program: Any) -> str:
    """The kind of a program; recipes may leave it out."""
    kind = program.get("kind", "recipe") if isinstance(program, dict) else getattr(program, "kind", "recipe")
    return kind if isinstance(kind, str) else ""


_PROGRAMS: validation.Tags = {("program", "recipe"): RecipeProgram, ("program", "script"): ScriptProgram}
Program = Annotated[
    Annotated[RecipeProgram, Tag("recipe")] | Annotated[ScriptProgram, Tag("script")],
    Discriminator(
        _kind,
        custom_error_type="program_kind",
        custom_error_message='program.kind is "recipe" or "script"',
    ),
]


class Limits(Strict):
    wall_seconds: float = Field(
        86_400,
        gt=0,
        le=31_536_000,
        strict=True,
        description="longest time of each attempt, from the first rank that is up to the end of the last one",
    )
    max_retries: int = Field(0, ge=0, le=100, strict=True, description="new attempts after a failure of the program")
    stall_seconds: float | None = Field(
        None,
        gt=0,
        le=31_536_000,
        strict=True,
        description="longest time without a step; by default 20 times the run's longest pause, at least half an hour",
    )
    artifact_bytes: int | None = Field(
        None,
        ge=0,
        le=2**53,
        strict=True,
        description="largest size of all files together that are kept of a script's working directory; left out: what "
        "the operator allows (2 GiB unless set otherwise)",
    )


class JobSpec(Strict):
    name: Name | None = None
    pool: PoolName = "default"
    priority: int = Field(0, ge=-100, le=100, strict=True, description="higher first")
    labels: dict[LabelKey, LabelValue] = Field(default_factory=dict, max_length=32)
    resources: Resources = Resources()
    parallelism: Parallelism = Parallelism()
    program: Program
    observe: Literal["auto", "every", "off"] = "auto"
    limits: Limits = Limits()

    @property
    def distributed(self) -> bool:
        """Whether each device has a process of its own."""
        return self.parallelism.strategy in DISTRIBUTED

    @property
    def world_size(self) -> int:
        """Training processes: one per device under ddp and fsdp, one for all under single and dp."""
        return self.resources.devices if self.distributed else 1

    @property
    def recipe(self) -> RecipeProgram:
        """The program, if the caller knows that it is a recipe."""
        assert isinstance(self.program, RecipeProgram)
        return self.program

    @property
    def rehearsal(self) -> bool:
        """Whether a script runs on virtual devices as if they were GPUs."""
        return isinstance(self.program, ScriptProgram) and self.program.rehearse

    @property
    def start(self) -> Literal["warm", "cold"]:
        """Whether ranks are forked from the warm server, or are new Python processes."""
        if not isinstance(self.program, ScriptProgram):
            return "warm"
        return "cold" if self.program.python or any(map(is_read_at_import, self.program.env)) else "warm"

    @property
    def batch_size(self) -> int | None:
        """Rows that one DataLoader yields; `None` for a script, where the service does not know it."""
        return self.program.data.batch_size if isinstance(self.program, RecipeProgram) else None

    @property
    def global_batch_size(self) -> int | None:
        """Rows of one optimizer step: of all ranks, and of all batches that are accumulated; `None` for a script."""
        if not isinstance(self.program, RecipeProgram):
            return None
        return self.program.data.batch_size * self.world_size * self.program.accumulate_steps

    @cached_property
    def as_json(self) -> bytes:
        """The spec with its defaults. Fields that are not set are left out, so that a worker of an earlier version can
        read every spec that does not use newer fields."""
        return self.__pydantic_serializer__.to_json(self, exclude_none=True)

    def named(self) -> Self:
        """The same spec with a name: the user's, or else one made from its model or entry point."""
        if self.name is not None:
            return self
        what = self.program.model.ref if isinstance(self.program, RecipeProgram) else _stem(self.program.entrypoint)
        name = f"{what}-{self.parallelism.strategy}{self.resources.devices}"
        return self.model_copy(update={"name": name[:200]})


def _stem(entrypoint: str) -> str:
    return entrypoint.rpartition("/")[2].removesuffix(".py")


#: Variables that torch or its libraries read when they are imported, which has happened already in a warm rank.
_READ_AT_IMPORT = ("OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "NUMEXPR_", "TORCH", "PYTORCH_", "ATEN_", "DNNL_")


def is_read_at_import(variable: str) -> bool:
    return variable.startswith(_READ_AT_IMPORT)


#: Variables that would change what the service sets for a rank: its devices, its number, its interpreter.
_RESERVED = ("LD_", "PYTHON", "SHARDYARD_", "TORCHELASTIC_", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
_RESERVED_NAMES = frozenset(
    {"MASTER_ADDR", "MASTER_PORT", "PATH", "HOME", "TMPDIR", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"}
    | {"GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE"}
)


def _is_reserved(variable: str) -> bool:
    return variable.startswith(_RESERVED) or variable in _RESERVED_NAMES


def parse(body: bytes | str) -> JobSpec:
    """Read a spec from JSON.

    Raises:
        MalformedJson: the body is not JSON, or is nested too deep.
        InvalidSpec: some fields are wrong; `fields` names the first twenty.
        NotSupported: the spec asks for something that this version does not do.
    """
    try:
        spec = JobSpec.model_validate_json(body)
    except ValidationError as error:
        details = validation.details(error)
        fields = validation.field_errors(details, JobSpec, _PROGRAMS)
        raise InvalidSpec(f"the job spec is not valid{_more(details)}", fields=fields) from None
    _refuse_unsupported(spec)
    wrong = tuple(_cross_field_errors(spec))
    if wrong:
        raise InvalidSpec(f"the job spec contradicts itself{_more(wrong)}", fields=wrong[:MAX_REPORTED_ERRORS])
    return spec.named()


def _more(errors: Sized) -> str:
    return f" (the first {MAX_REPORTED_ERRORS} of {len(errors)})" if len(errors) > MAX_REPORTED_ERRORS else ""


def _refuse_unsupported(spec: JobSpec) -> None:
    if spec.resources.nodes > 1:
        raise NotSupported(
            "a job runs on one node in this version",
            fields=(FieldError("resources.nodes", f"{spec.resources.nodes} requested; only 1 is supported"),),
        )
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
    return wrong + _straggler_errors(spec, program)


#: Fields that a spec of a script must not set, because the script decides them.
_NOT_FOR_SCRIPTS = ("dim", "output_device", "module", "functional", "placement", "backend")


def _is_inside(path: str) -> bool:
    """Whether a path, with "/" between its parts, stays inside the directory that it is relative to."""
    parts = path.split("/")
    return "\\" not in path and "\0" not in path and all(parts) and not {".", ".."} & {*parts}


def _script_errors(how: Parallelism, program: ScriptProgram) -> list[FieldError]:
    wrong = [
        FieldError(f"parallelism.{field}", "a script decides this itself, where it wraps its model; leave it out")
        for field in _NOT_FOR_SCRIPTS
        if getattr(how, field) != Parallelism.model_fields[field].get_default(call_default_factory=True)
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
            message = 'no pattern of .gitignore; write for example "*.pt", "runs/", or "!data/" to leave data out'
            wrong.append(FieldError(f"program.keep.{number}", message))
    for name in filter(_is_reserved, program.env):
        message = f"{name} is reserved, because the service sets it for each rank; leave it out"
        wrong.append(FieldError(f"program.env.{name}", message))
    return wrong


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
    slow, last = getattr(straggler, field), spec.resources.devices - 1
    if slow is None or slow > last:
        return [FieldError(f"program.straggler.{field}", f"name the one to make slow: 0 to {last}")]
    if straggler.where == "backward" and program.mode == "forward":
        return [FieldError("program.straggler.where", 'there is no backward when program.mode is "forward"')]
    return []
