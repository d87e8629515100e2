"""The file of pools that a provider keeps, TOML."""

import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from jobs.model.pool_policy import MAX_POOL_LENGTH, POOL_PATTERN

MAX_FILE_BYTES = 1 << 20
MAX_TEMPLATE_BYTES = 64 << 10
MAX_NODES = 1024
#: A signal of Slurm may come so much early, and this is how long a worker takes beside saving.
SIGNAL_SECONDS, LEAVE_SECONDS = 60, 30

#: What stands between commas on a command line, or in a file that a shell reads.
_WORD = r"^[A-Za-z0-9][A-Za-z0-9._@+-]*$"
_DEVICES = re.compile(r"auto|(?P<kind>cpu|gpu):(?:(?P<model>[A-Za-z0-9][A-Za-z0-9._-]*):)?(?P<count>[1-9]\d{0,3})")
_TIME = re.compile(r"(?:(?P<days>\d{1,3})-)?(?P<first>\d{1,5})(?::(?P<second>\d{1,2}))?(?::(?P<third>\d{1,2}))?")


def parse_time(text: str) -> int:
    """Seconds of a time as Slurm writes it: minutes, minutes:seconds, hours:minutes:seconds, days-hours and so on.

    Raises:
        ValueError: it is none, or zero.
    """
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a time of Slurm; write 08:00:00 or 2-00:00:00")
    first, second, third = (int(match[name] or 0) for name in ("first", "second", "third"))
    if match["days"] is not None:
        seconds = int(match["days"]) * 86_400 + first * 3600 + second * 60 + third
    elif match["third"] is not None:
        seconds = first * 3600 + second * 60 + third
    else:
        seconds = first * 60 + second
    if not 60 <= seconds <= 366 * 86_400:
        raise ValueError(f"{text!r}: must be between a minute and a year")
    return seconds


def _require_time(text: str) -> str:
    parse_time(text)
    return text


def _require_devices(text: str) -> str:
    match = _DEVICES.fullmatch(text)
    if match is None or (match["kind"] == "cpu" and match["model"]):
        raise ValueError(f"{text!r} names no devices; write auto, gpu:4, gpu:a100:4, or cpu:2 for virtual ones")
    return text


class NodeRange(BaseModel):
    """How many nodes of a pool there may be; `min` of them stay while nothing waits."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    min: int = Field(0, ge=0, le=MAX_NODES)
    max: int = Field(ge=0, le=MAX_NODES)

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min ({self.min}) must not be above max ({self.max})")
        return self


class SlurmPool(BaseModel):
    """A pool whose nodes come from a partition of Slurm."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    engine: Literal["slurm"]
    partition: str = Field(max_length=63, pattern=_WORD)
    nodes: NodeRange
    devices: Annotated[str, AfterValidator(_require_devices)] = Field("auto", max_length=80)
    idle_seconds: float = Field(600, ge=1, le=30 * 86_400)
    time_limit: Annotated[str, AfterValidator(_require_time)] = "08:00:00"
    grace_seconds: int | None = Field(None, ge=5, le=86_400)
    max_pending: int = Field(8, ge=1, le=MAX_NODES)
    cpus: int | None = Field(None, ge=1, le=4096)
    template: Path | None = None
    output: str = Field("/dev/null", max_length=1000, pattern=r"^/[^\s]*$")
    command: str = Field("", max_length=1000, pattern=r"^(/[^\s'\"\\$`]*)?$")

    @property
    def time_limit_seconds(self) -> int:
        return parse_time(self.time_limit)

    def grace(self, checkpoint_seconds: float) -> int:
        """Seconds before the time limit at which attempts leave: they save, and Slurm's signal may come early."""
        wanted = self.grace_seconds or int(SIGNAL_SECONDS + checkpoint_seconds + LEAVE_SECONDS)
        return min(wanted, self.time_limit_seconds // 2)

    @property
    def gres(self) -> str:
        """What sbatch asks for, "" where it asks for none, or the partition must say (`auto`)."""
        return self.devices if self.devices.startswith("gpu:") else ""

    @property
    def device_count(self) -> int | None:
        """Devices of each node; None: the partition says."""
        match = _DEVICES.fullmatch(self.devices)
        return int(match["count"]) if match is not None and match["count"] else None


PoolName = Annotated[str, Field(max_length=MAX_POOL_LENGTH, pattern=POOL_PATTERN)]


class PoolsFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    pools: dict[PoolName, SlurmPool] = Field(max_length=64)


def read_pools_file(path: Path) -> dict[str, SlurmPool]:
    """The pools of a file. Templates are found from where that is.

    Raises:
        ValueError: it cannot be read, or is not one; the message names the field.
    """
    try:
        found = PoolsFile.model_validate(tomllib.loads(_read_text(path, MAX_FILE_BYTES)))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: not TOML: {error}") from error
    except ValidationError as error:
        raise ValueError("\n".join(f"{path}: {line}" for line in _describe(error))) from error
    return {name: _find_template(path, pool) for name, pool in found.pools.items()}


def read_template(pool: SlurmPool) -> str:
    """The head of the pool's script that its site wants; "" without one. Raises ValueError."""
    return "" if pool.template is None else _read_text(pool.template, MAX_TEMPLATE_BYTES)


def _find_template(path: Path, pool: SlurmPool) -> SlurmPool:
    if pool.template is None:
        return pool
    found = pool.model_copy(update={"template": path.parent / pool.template.expanduser()})
    read_template(found)
    return found


def _read_text(path: Path, most: int) -> str:
    try:
        with path.open("rb") as file:
            body = file.read(most + 1)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from error
    if len(body) > most:
        raise ValueError(f"{path}: larger than {most:,} bytes")
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8") from error


def _describe(error: ValidationError) -> list[str]:
    def line(problem: Any) -> str:
        where = ".".join(str(part) for part in problem["loc"] if part != "[key]") or "pools"
        words: str = problem["msg"].removeprefix("Value error, ")
        return f"{where}: {words}"

    return [line(problem) for problem in error.errors()]
