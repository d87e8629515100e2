"""The training job spec that users POST: its fields, and the limits of each.

`jobs.model.spec_rules` reads a spec and checks its fields against one another, the catalogue (`jobs.model.catalogue`)
names of recipes and their arguments, `submit.lua` whether the job fits the pool, and the worker
`package.module:attribute` references.
"""

from contextlib import suppress
from datetime import datetime
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

from jobs.model.error_words import pattern
from jobs.model.pool_policy import MAX_POOL_LENGTH, POOL_PATTERN
from jobs.model.spec_schema import schema_name
from shardyard.contract.row_shares import Uneven

#: Of one job, on all its nodes together.
MAX_DEVICES = 1024
MAX_TIME_LENGTH = 40
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


#: Of text that people are shown. What else it must not have, `shardyard.contract.plain_text` says; the specs that
#: earlier versions have stored may have it.
SHOWN_PATTERN = pattern(r"^[^\x00-\x1f\x7f]+$", "text in one line, without control characters")
Name = Annotated[str, Field(min_length=1, max_length=200, pattern=SHOWN_PATTERN)]
PoolName = Annotated[str, Field(min_length=1, max_length=MAX_POOL_LENGTH, pattern=POOL_PATTERN)]
_LABEL_KEY = pattern(
    r"^[A-Za-z0-9][A-Za-z0-9._/-]*$", "letters, digits, dots, underscores, slashes and hyphens, a letter or digit first"
)
LabelKey = Annotated[str, Field(min_length=1, max_length=63, pattern=_LABEL_KEY)]
_LABEL_VALUE = pattern(r"^[^\x00-\x1f\x7f]*$", "text in one line, without control characters")
LabelValue = Annotated[str, Field(max_length=255, pattern=_LABEL_VALUE)]
Ref = Annotated[
    str,
    Field(
        min_length=1,
        max_length=300,
        pattern=pattern(
            r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*(:[A-Za-z_][A-Za-z0-9_.]*)?$",
            "the name of something built in, or package.module:attribute",
        ),
        description="a built-in name (`GET /v1/recipes`), or `package.module:attribute` in the worker's environment",
    ),
]
_MODULE_PATH = pattern(r"^[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*$", "the path of a sub-module, such as encoder.layers.0")
ModulePath = Annotated[str, Field(min_length=1, max_length=300, pattern=_MODULE_PATH)]
Args = Annotated[dict[str, Any], Field(max_length=64), AfterValidator(_finite)]
_BUNDLE_ID = pattern(r"^sha256:[0-9a-f]{64}$", "the id that the upload of the code has returned, sha256:...")
BundleId = Annotated[
    str, Field(pattern=_BUNDLE_ID, description="id of uploaded code, as `POST /v1/bundles` answers it")
]
Argument = Annotated[str, Field(max_length=8192, pattern=pattern(r"^[^\x00]*$", "text without NUL"))]
KeepPattern = Annotated[str, Field(min_length=1, max_length=500, pattern=SHOWN_PATTERN)]
_VARIABLE = pattern(r"^[A-Za-z_][A-Za-z0-9_]*$", "letters, digits and underscores, no digit first")
VariableName = Annotated[str, Field(min_length=1, max_length=200, pattern=_VARIABLE)]
REFERENCE_NAME = pattern(
    r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$",
    "letters, digits, dots, underscores and hyphens, a letter or digit at both ends",
)
SecretName = Annotated[str, Field(min_length=1, max_length=63, pattern=REFERENCE_NAME)]
Secrets = Annotated[
    Annotated[dict[VariableName, SecretName], Field(max_length=32)] | None,
    Field(
        description="environment variables whose values are secrets of yours, by their names (`shardyard secret put`); "
        "the values are shown nowhere, and replaced in what the job prints"
    ),
]
EnvironmentName = Annotated[str, Field(min_length=1, max_length=63, pattern=POOL_PATTERN)]
Place = Annotated[Literal["cpu"] | Annotated[int, Field(ge=0, strict=True)], Wrap(_one_message)]


#: Of a job that is to start later.
MAX_START_SECONDS = 31_536_000


def _start_time(value: Any, _: ValidatorFunctionWrapHandler) -> float | str:
    """Seconds, or a time that says its offset from UTC."""
    if isinstance(value, str) and len(value) <= MAX_TIME_LENGTH:
        with suppress(ValueError):
            if datetime.fromisoformat(value).tzinfo is not None:
                return value
    elif isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MAX_START_SECONDS:
        return float(value)
    raise ValueError(
        f"seconds after the submit, from 0 to {MAX_START_SECONDS}, or a time with its offset from UTC, such as "
        "2026-01-31T20:00:00+01:00"
    )


def _each_once(value: tuple[str, ...]) -> tuple[str, ...]:
    twice = [each for at, each in enumerate(value) if each in value[:at]]
    if twice:
        raise ValueError(f"{twice[0]} is given more than once; give it only once")
    return value


StartTime = Annotated[float | str, Wrap(_start_time)]

MAX_WEIGHT = 1_000_000


def _weights(value: Any, _: ValidatorFunctionWrapHandler) -> tuple[float, ...] | str:
    """One error for the whole list, which names the entry that is wrong."""
    if value == "auto":
        return "auto"
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= MAX_DEVICES:
        raise ValueError(f'a list of numbers, one for each device (at most {MAX_DEVICES}), or "auto"')
    for place, weight in enumerate(value):
        if not isinstance(weight, int | float) or isinstance(weight, bool) or not 0 < weight <= MAX_WEIGHT:
            raise ValueError(f"weight {place} is not a number above 0 and up to {MAX_WEIGHT:,}, such as 1.5")
    return tuple(map(float, value))


Weights = Annotated[
    Annotated[tuple[float, ...], Field(max_length=MAX_DEVICES)] | Literal["auto"],
    Wrap(_weights),
]


def _distinct(ids: tuple[str, ...]) -> tuple[str, ...]:
    repeated = next((job for number, job in enumerate(ids) if job in ids[:number]), None)
    if repeated is not None:
        raise ValueError(f"{repeated} is there twice; name each job once")
    return ids


MAX_DEPENDENCIES = 20
_EARLIER_JOB = pattern(r"^[0-9a-f-]{1,36}$", "the id of a job, as its submit has answered it")
EarlierJobs = Annotated[
    tuple[Annotated[str, Field(pattern=_EARLIER_JOB)], ...],
    Field(max_length=MAX_DEPENDENCIES),
    AfterValidator(_distinct),
]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, model_title_generator=schema_name)


class Resources(Strict):
    devices: int = Field(
        1, ge=1, le=MAX_DEVICES, strict=True, description="devices of each node, leased all or nothing"
    )
    nodes: int = Field(
        1, ge=1, le=MAX_DEVICES, strict=True, description="nodes, under ddp and fsdp: as many ranks as devices on all"
    )


class ParallelismSpec(Strict):
    strategy: Literal["single", "dp", "ddp", "fsdp"] = "single"
    dim: int = Field(0, ge=-8, le=8, strict=True, description="dp: the dimension that is split, as in nn.DataParallel")
    output_device: int = Field(0, ge=0, strict=True, description="dp: logical index of the device that gathers")
    module: ModulePath | None = Field(None, description="dp, ddp: wrap this sub-module only")
    functional: bool = Field(False, strict=True, description="dp: call the four primitives one by one")
    placement: dict[ModulePath, Place] = Field(
        default_factory=dict, max_length=256, description='single: sub-module to "cpu" or a logical device'
    )
    backend: Literal["auto", "nccl", "gloo"] = Field("auto", description="ddp, fsdp: auto is nccl on cuda, gloo on cpu")
    weights: Weights | None = Field(
        None,
        description="dp, ddp, fsdp: rows of each device in proportion to these numbers, one for each device of all "
        'nodes ([3, 2]: 30 and 20 of 50 rows); "auto": measured before the first step; left out: equally many',
    )


class ComponentSpec(Strict):
    ref: Ref
    args: Args = Field(default_factory=dict)


class DataSpec(ComponentSpec):
    batch_size: int = Field(32, ge=1, le=1_000_000, strict=True, description="rows that one DataLoader yields")
    shuffle: bool = Field(False, strict=True)
    drop_last: bool = Field(False, strict=True)
    uneven: Uneven | None = Field(
        None,
        description="ddp, fsdp: rows that do not divide among the ranks are repeated (`pad`, as DistributedSampler "
        "does), left out (`drop`), or divided unequally with gradients weighed by rows (`weigh`); left out: `pad`",
    )
    num_workers: int = Field(0, ge=0, le=64, strict=True)


class EvaluationData(ComponentSpec):
    batch_size: int = Field(128, ge=1, le=1_000_000, strict=True)
    num_workers: int = Field(0, ge=0, le=64, strict=True)


class EvaluationSpec(Strict):
    data: EvaluationData
    every_epochs: int = Field(1, ge=1, le=1_000_000, strict=True)


class SchedulerSpec(ComponentSpec):
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


ExportFormat = Literal["tensorboard", "mlflow", "wandb"]
Export = Annotated[
    Annotated[tuple[ExportFormat, ...], Field(max_length=3), AfterValidator(_each_once)] | None,
    Field(
        description="tools that the metrics are written for at the end, as artifacts `exported-tensorboard/`, "
        "`exported-mlflow/` (a store of files) and `exported-wandb/` (an offline run)",
    ),
]


class RecipeProgram(Strict):
    kind: Literal["recipe"] = "recipe"
    model: ComponentSpec
    data: DataSpec
    loss: ComponentSpec | None = None
    optimizer: ComponentSpec | None = None
    scheduler: SchedulerSpec | None = Field(None, description="changes the learning rate, every epoch or every step")
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
    evaluate: EvaluationSpec | None = None
    checkpoint: CheckpointPolicy | None = Field(
        None, description="saves the run, so that a new attempt resumes from there"
    )
    bundle: BundleId | None = Field(None, description="code that `package.module:attribute` references may name")
    secrets: Secrets = None
    export: Export = None


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
    secrets: Secrets = None
    rehearse: bool = Field(False, strict=True, description="run on virtual devices as if they were GPUs")
    python: EnvironmentName | None = Field(None, description="a Python environment that the operator lists")
    keep: Annotated[tuple[KeepPattern, ...], Field(max_length=100)] | None = Field(
        None,
        description="which files of the working directory are kept, as patterns of .gitignore; empty: none; "
        "left out: all but caches and downloaded data sets",
    )
    export: Export = None

    @property
    def is_file(self) -> bool:
        """Whether the entry point is a file rather than a module."""
        return self.entrypoint.endswith(".py")


def _kind(program: Any) -> str:
    """The kind of a program; recipes may leave it out."""
    kind = program.get("kind", "recipe") if isinstance(program, dict) else getattr(program, "kind", "recipe")
    return kind if isinstance(kind, str) else ""


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
    start_after: StartTime | None = Field(
        None,
        description="not before this time: seconds after the submit, or a time with its offset from UTC, such as "
        "2026-01-31T20:00:00+01:00",
    )
    depends_on: EarlierJobs | None = Field(
        None,
        description="ids of jobs that must have succeeded before it starts; it is cancelled when one of them has not",
    )
    labels: dict[LabelKey, LabelValue] = Field(default_factory=dict, max_length=32)
    resources: Resources = Resources()
    parallelism: ParallelismSpec = ParallelismSpec()
    program: Program
    observe: Literal["auto", "every", "off"] = "auto"
    limits: Limits = Limits()

    @property
    def distributed(self) -> bool:
        """Whether each device has a process of its own."""
        return self.parallelism.strategy in DISTRIBUTED

    @property
    def all_devices(self) -> int:
        """Devices of all nodes together. They are numbered through, part by part: `jobs.model.parts`."""
        return self.resources.devices * self.resources.nodes

    @property
    def world_size(self) -> int:
        """Training processes: one per device under ddp and fsdp, one for all under single and dp."""
        return self.all_devices if self.distributed else 1

    @property
    def weights(self) -> tuple[float, ...] | None:
        """The weight of each device; `None` where all have the same, or weights are measured when the job runs."""
        weights = self.parallelism.weights
        return None if weights == "auto" else weights

    @property
    def weighs_ranks(self) -> bool:
        """Whether the gradient of each rank is weighed by its rows."""
        uneven = isinstance(self.program, RecipeProgram) and self.program.data.uneven == "weigh"
        return self.distributed and (self.parallelism.weights is not None or uneven)

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
        variables = [*self.program.env, *self.secrets]
        return "cold" if self.program.python or any(map(is_read_at_import, variables)) else "warm"

    @property
    def secrets(self) -> dict[str, str]:
        """The names of secrets by the environment variables that get their values."""
        return self.program.secrets or {}

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
        nodes = f"x{self.resources.nodes}" if self.resources.nodes > 1 else ""
        name = f"{what}-{self.parallelism.strategy}{self.resources.devices}{nodes}"
        return self.model_copy(update={"name": name[:200]})


def _stem(entrypoint: str) -> str:
    return entrypoint.rpartition("/")[2].removesuffix(".py")


#: Variables that torch or its libraries read when they are imported, which has happened already in a warm rank.
_READ_AT_IMPORT = ("OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "NUMEXPR_", "TORCH", "PYTORCH_", "ATEN_", "DNNL_")


def is_read_at_import(variable: str) -> bool:
    return variable.startswith(_READ_AT_IMPORT)
