"""The types of `shardyard.job`: a module of functions for scripts, which can be called as a decorator."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

from shardyard.functions.job_function import JobFunction, P, R
from shardyard.script import job as script_job
from shardyard.specs.builders import Strategy

if TYPE_CHECKING:
    from shardyard.client import Client


class FunctionOptions(TypedDict, total=False):
    """Fields of the job spec; those that are left out have the service's defaults."""

    devices: int
    nodes: int
    strategy: Strategy
    pool: str
    name: str
    labels: dict[str, str]
    priority: int
    env: dict[str, str]
    secrets: dict[str, str]
    python: str
    rehearse: bool
    wall_seconds: float
    max_retries: int
    client: "Client"


class JobApi:
    """What a script calls, and the decorator."""

    log = staticmethod(script_job.log)
    progress = staticmethod(script_job.progress)
    output_dir = staticmethod(script_job.output_dir)
    checkpoint = staticmethod(script_job.checkpoint)
    resume_dir = staticmethod(script_job.resume_dir)
    should_stop = staticmethod(script_job.should_stop)
    weights = staticmethod(script_job.weights)

    @overload
    def __call__(self, function: Callable[P, R], /) -> JobFunction[P, R]: ...
    @overload
    def __call__(self, **options: Unpack[FunctionOptions]) -> Callable[[Callable[P, R]], JobFunction[P, R]]: ...
    def __call__(self, *function: Any, **options: Any) -> Any:
        return make_job_function(*function, **options)


def make_job_function(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """The decorator, with or without options."""
    client = options.pop("client", None)
    unknown = sorted(options.keys() - FunctionOptions.__annotations__.keys())
    if unknown:
        raise TypeError(f"job() has no option {unknown[0]!r}; there are {', '.join(FunctionOptions.__annotations__)}")

    def decorate(function: Callable[..., Any]) -> JobFunction[Any, Any]:
        return JobFunction(function, options, client)

    return decorate if function is None else decorate(function)


if TYPE_CHECKING:
    job: JobApi
