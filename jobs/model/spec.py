"""The training job spec: what a user POSTs, with every limit and cross-field rule.

The models below are the schema; `parse` is the one way from bytes to a checked `JobSpec`. Names of
recipes and their arguments are checked against the catalogue (`jobs.model.catalogue`), the fit to a pool
by the submit script, and `package.module:attribute` references on the worker.
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

from jobs.model import validation
from jobs.model.validation import MAX_REPORTED_ERRORS
from shardyard.contract.errors import FieldError, InvalidSpec, NotSupported

MAX_DEVICES = 1024
#: Strategies with one process per device.
DISTRIBUTED = frozenset({"ddp", "fsdp"})


def _finite(args: dict[str, Any]) -> dict[str, Any]:
    """JSON has no NaN and no infinity, but parsers take them (1e999 too), and storing would turn them into null."""
    todo: list[Any] = [args]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            todo.extend(value.values())
        elif isinstance(value, list):
            todo.extend(value)
        elif isinstance(value, float) and not isfinite(value):
            raise ValueError(f"{value} is not a finite number; JSON cannot carry it, so name a finite one")
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
VariableName = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
EnvironmentName = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([a-z0-9._-]*[a-z0-9])?$")]
Place = Annotated[Literal["cpu"] | Annotated[int, Field(ge=0, strict=True)], Wrap(_one_message)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Resources(Strict):
    devices: int = Field(1, ge=1, le=MAX_DEVICES, strict=True, description="devices of one node, leased all or none")
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
    every: Literal["epoch", "step"] = Field("epoch", description="when the learning rate moves on")


class Straggler(Strict):
    """A device that is made slow on purpose, to see what the report says of it."""

    rank: int | None = Field(None, ge=0, strict=True, description="ddp: the rank that sleeps")
    device: int | None = Field(None, ge=0, strict=True, description="dp: logical index of the device that sleeps")
    where: Literal["input", "forward", "backward"]
    milliseconds: float = Field(gt=0, le=60_000, strict=True, description="of sleep in each batch")


class CheckpointPolicy(Strict):
    """When the state of a training run is saved; one more is saved at its end, and when the service stops it."""

    every_steps: int = Field(ge=1, le=10**12, strict=True, description="optimizer steps from one to the next")
    keep: int = Field(2, ge=1, le=100, strict=True, description="newest ones that are kept")


class RecipeProgram(Strict):
    kind: Literal["recipe"] = "recipe"
    model: Component
    data: Data
    loss: Component | None = None
    optimizer: Component | None = None
    scheduler: Scheduler | None = Field(None, description="moves the learning rate, every epoch or every step")
    accumulate_steps: int = Field(1, ge=1, le=65_536, strict=True, description="batches of one optimizer step")
    clip_grad_norm: float | None = Field(
        None, gt=0, le=1e12, strict=True, description="largest norm of all gradients together"
    )
    precision: Literal["float32", "bfloat16", "float16"] = Field(
        "float32", description="what forward computes in (autocast); float16 on cuda only"
    )
    straggler: Straggler | None = Field(None, description="dp, ddp: makes one device slow, for demos")
    epochs: int = Field(1, ge=1, le=1_000_000, strict=True)
    max_steps: int | None = Field(None, ge=1, le=10**12, strict=True)
    seed: int = Field(0, ge=0, le=2**63 - 1, strict=True)
    mode: Literal["train", "forward"] = "train"
    evaluate: Evaluation | None = None
    checkpoint: CheckpointPolicy | None = Field(
        None, description="saves the run, so that a new attempt goes on from there"
    )
    bundle: BundleId | None = Field(None, description="code that `package.module:attribute` references may name")


class ScriptProgram(Strict):
    """The user's own program, unchanged: run as `python entrypoint args` would, once per rank."""

    kind: Literal["script"]
    bundle: BundleId
    entrypoint: str = Field(
        min_length=1,
        max_length=500,
        description='a .py file ("src/train.py") or a module ("package.train") of the bundle, seen from `workdir`',
    )
    workdir: str = Field(
        "", max_length=500, description="directory of the bundle that it starts in, as after `cd`; empty: its root"
    )
    args: tuple[Argument, ...] = Field((), max_length=1000, description="{local_rank} in them becomes the local rank")
    env: dict[VariableName, Argument] = Field(default_factory=dict, max_length=256)
    rehearse: bool = Field(False, strict=True, description="run on virtual devices as if they were GPUs")
    python: EnvironmentName | None = Field(None, description="a Python environment that the operator lists")

    @property
    def is_file(self) -> bool:
        """Whether the entry point is a file rather than a module."""
        return self.entrypoint.endswith(".py")


def _kind(program: Any) -> str:
    """Which of the two programs this is: recipes may leave `kind` out."""
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
        description="of each attempt, from the first rank up to the last rank out",
    )
    max_retries: int = Field(0, ge=0, le=100, strict=True, description="new attempts after a failure of the program")
    stall_seconds: float | None = Field(
        None,
        gt=0,
        le=31_536_000,
        strict=True,
        description="longest time without a step; left out: 20 times the run's own longest pause, and half an hour",
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
        """The program, where the caller knows that it is a recipe."""
        assert isinstance(self.program, RecipeProgram)
        return self.program

    @property
    def rehearsal(self) -> bool:
        """Whether GPUs are only acted: a script's arithmetic then happens on the CPU."""
        return isinstance(self.program, ScriptProgram) and self.program.rehearse

    @property
    def start(self) -> Literal["warm", "cold"]:
        """Whether ranks are forked from the warm server, or are new Python processes."""
        if not isinstance(self.program, ScriptProgram):
            return "warm"
        return "cold" if self.program.python or any(map(is_read_at_import, self.program.env)) else "warm"

    @property
    def batch_size(self) -> int | None:
        """Rows that one DataLoader yields; `None` for a script, which alone knows."""
        return self.program.data.batch_size if isinstance(self.program, RecipeProgram) else None

    @property
    def global_batch_size(self) -> int | None:
        """Rows of one optimizer step: of all ranks, and of all batches that are accumulated; `None` for a script."""
        if not isinstance(self.program, RecipeProgram):
            return None
        return self.program.data.batch_size * self.world_size * self.program.accumulate_steps

    @cached_property
    def as_json(self) -> bytes:
        """All of it, defaults too; what is not set is left out, so that a worker of an earlier version reads every spec
        but those that ask for what it has not."""
        return self.__pydantic_serializer__.to_json(self, exclude_none=True)

    def named(self) -> Self:
        """The same spec with a name: the user's, else one made from what it runs."""
        if self.name is not None:
            return self
        what = self.program.model.ref if isinstance(self.program, RecipeProgram) else _stem(self.program.entrypoint)
        name = f"{what}-{self.parallelism.strategy}{self.resources.devices}"
        return self.model_copy(update={"name": name[:200]})


def _stem(entrypoint: str) -> str:
    return entrypoint.rpartition("/")[2].removesuffix(".py")


#: Variables that torch or a library under it reads when it is imported: too late for a rank that is forked warm.
_READ_AT_IMPORT = ("OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "NUMEXPR_", "TORCH", "PYTORCH_", "ATEN_", "DNNL_")


def is_read_at_import(variable: str) -> bool:
    return variable.startswith(_READ_AT_IMPORT)


#: Variables that would undo what a rank is given: its devices, its place among the ranks, its interpreter.
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
            fields=(FieldError("resources.nodes", f"{spec.resources.nodes} asked; only 1 is supported"),),
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
    """Rules that join fields. Each error says which field to change, and to what."""
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


#: What a script decides by itself, so that the spec must not.
_NOT_FOR_SCRIPTS = ("dim", "output_device", "module", "functional", "placement", "backend")


def _is_inside(path: str) -> bool:
    """Whether a path, with "/" between its parts, cannot lead out of what it is relative to."""
    parts = path.split("/")
    return "\\" not in path and "\0" not in path and all(parts) and not {".", ".."} & {*parts}


def _script_errors(how: Parallelism, program: ScriptProgram) -> list[FieldError]:
    wrong = [
        FieldError(f"parallelism.{field}", "a script says this itself, where it wraps its model; leave it out")
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
    for name in filter(_is_reserved, program.env):
        message = f"{name} decides what a rank is given, so only the service sets it; leave it out"
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
        return [FieldError(f"program.straggler.{other}", f'strategy "{strategy}" takes {field} in its place')]
    slow, last = getattr(straggler, field), spec.resources.devices - 1
    if slow is None or slow > last:
        return [FieldError(f"program.straggler.{field}", f"name which one is slow: 0 to {last}")]
    if straggler.where == "backward" and program.mode == "forward":
        return [FieldError("program.straggler.where", 'there is no backward when program.mode is "forward"')]
    return []
