"""`@shardyard.job(devices=2, strategy="ddp")`: a function that can be run as a job.

@shardyard.job(devices=2, strategy="ddp")
def train(lr, epochs=3):
    ...
    return {"loss": loss}

train(0.1)                   # here, as before
run = train.submit(0.1)      # as a job
run.result()                 # what rank 0 has returned
"""

import atexit
import functools
import inspect
import json
import os
import pickle
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from shardyard.contract.errors import InvalidRequest, NotFound
from shardyard.functions import call_program
from shardyard.functions.notebook_module import write_module
from shardyard.specs.builders import Script

if TYPE_CHECKING:
    from shardyard.bundling.pack import FileSelection
    from shardyard.client import Client, Job
    from shardyard.client.connection import ServiceAddress

P = ParamSpec("P")
R = TypeVar("R")
PROGRAM, CALL = "shardyard_call.py", "shardyard_call.json"
#: Of a function that a notebook defines.
NOTEBOOK_MODULE = "notebook_functions"
VALUES = ("return_value.json", "return_value.pkl")


class FunctionRun(Generic[R]):
    """A job that runs a function."""

    def __init__(self, job: "Job") -> None:
        self.job = job

    def wait(self, timeout: float | None = None) -> "FunctionRun[R]":
        """Raises JobFailed, TimeoutError."""
        self.job.wait(timeout)
        return self

    def result(self, timeout: float | None = None) -> R:
        """What the function has returned in rank 0, once the job has succeeded. A value that JSON does not have is
        unpickled: ask only for that of code you trust.

        Raises:
            JobFailed: the function has raised; the message has its traceback.
            TimeoutError: it has not returned within `timeout` seconds.
        """
        self.job.wait(timeout)
        for name in VALUES:
            try:
                body = b"".join(self.job.read(name))
            except NotFound:
                continue
            value: R = json.loads(body) if name.endswith(".json") else pickle.loads(body)  # noqa: S301
            return value
        raise NotFound(f"job {self.job.id} has kept no return value")

    def __repr__(self) -> str:
        return f"<FunctionRun of {self.job!r}>"

    def _repr_html_(self) -> str:
        return self.job._repr_html_()


class JobFunction(Generic[P, R]):
    """A function that runs here when it is called, and as a job by `submit`."""

    def __init__(self, function: Callable[P, R], options: dict[str, Any], client: "Client | None") -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self._options = options
        self._client = client

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> FunctionRun[R]:
        """Run it as a job. Arguments are sent as JSON; the function's module is sent with its directory, and of a
        notebook the source of the function and of what it uses.

        Raises:
            InvalidRequest: something of that cannot be sent.
        """
        if "SHARDYARD_OUTPUT_DIR" in os.environ:
            raise InvalidRequest('this is a job already; submit below `if __name__ == "__main__":`')
        inspect.signature(self.function).bind(*args, **kwargs)
        from shardyard.bundling.pack import write_bundle
        from shardyard.client import operations, scripts

        wanted = Script(path=PROGRAM, **{"name": self.function.__name__[:200]} | self._options).to_spec()
        with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryFile() as file:
            bundle = write_bundle(self._select(Path(directory), args, kwargs), file)
            spec = scripts.complete_spec(wanted, bundle=bundle.id, entrypoint=PROGRAM)
            client = self._client or _shared_client()
            job = client.run(operations.submit_bundled(spec, file, bundle))
        return FunctionRun(client.job(job.id))

    def _select(self, made: Path, args: tuple[Any, ...], kwargs: dict[str, Any]) -> "FileSelection":
        """The files of the job; those that are made for it are in `made`."""
        from shardyard.bundling.pack import FileSelection, SourceFile, select_files

        module, directory = self._locate_module()
        call = {"module": module, "function": self.function.__qualname__, "args": args, "kwargs": kwargs}
        texts = {PROGRAM: inspect.getsource(call_program), CALL: _encode_call(call, self.function.__name__)}
        if directory is None:
            texts[f"{module}.py"] = write_module(self.function)
            chosen = FileSelection()
        else:
            from shardyard.client.connection import private_paths

            place = directory.resolve()
            if place in (Path("/"), Path.home().resolve()):
                raise InvalidRequest(f"all of {place} would be sent; move the module into a directory of its own")
            chosen = select_files(directory, private=private_paths())
        taken = {source.path for source in chosen.files} & texts.keys()
        if taken:
            raise InvalidRequest(f"{directory} has a file {min(taken)}, which is made for the job; rename it")
        for name, text in texts.items():
            (made / name).write_text(text)
            chosen.files.append(SourceFile(name, str(made / name), len(text.encode()), executable=False))
        return chosen

    def _locate_module(self) -> tuple[str, Path | None]:
        """The module of the function, and the directory that it is imported from; None: a notebook has none."""
        module = sys.modules.get(self.function.__module__ or "")
        file = getattr(module, "__file__", None)
        if "<locals>" in self.function.__qualname__:
            raise InvalidRequest(f"{self.function.__qualname__} is defined in another function; move it to the module")
        written = Path(inspect.unwrap(self.function).__code__.co_filename)
        if (
            module is None or file is None or not written.is_file() or not written.samefile(file)
        ):  # a cell has a name, and no file
            return NOTEBOOK_MODULE, None
        if module.__name__ == "__main__":
            return Path(file).stem, Path(file).parent
        depth = module.__name__.count(".") + (Path(file).name == "__init__.py")
        return module.__name__, Path(file).parents[depth]


def _shared_client() -> "Client":
    """One client for each service and token: nobody has the clients of functions to close them."""
    from shardyard.client.connection import find_service

    return _connect(find_service())


@functools.lru_cache(8)
def _connect(address: "ServiceAddress") -> "Client":
    from shardyard.client import Client

    client = Client(address.url, address.token)
    atexit.register(client.close)
    return client


def _encode_call(call: dict[str, Any], name: str) -> str:
    try:
        return json.dumps(call, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"the arguments of {name} cannot be sent as JSON: {error}") from error
