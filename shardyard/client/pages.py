"""Jobs of a list, fetched page by page as they are needed. They can be indexed, and shown as a table."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from shardyard.client.data_frames import job_rows, make_frame
from shardyard.client.job_handle import JobHandle
from shardyard.client.notebook import format_jobs, render_jobs
from shardyard.contract.errors import ShardyardError

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]

J = TypeVar("J", bound=JobHandle)
#: What a notebook or a terminal shows of a list.
SHOWN = 20


class JobSlice(list[J], Generic[J]):
    """A part of a list of jobs, which is displayed as that is."""

    def to_pandas(self) -> "pandas.DataFrame":
        """A row for each job, indexed by `id`. Raises ImportError if pandas is not installed."""
        return make_frame(job_rows([job.summary for job in self]), "id")

    def __repr__(self) -> str:
        return format_jobs([job.summary for job in self[:SHOWN]], more=len(self) > SHOWN)

    def _repr_html_(self) -> str:
        return render_jobs([job.summary for job in self[:SHOWN]], more=len(self) > SHOWN)


class BlockingPages(Iterator[J], Generic[J]):
    """Jobs, the newest first. `for` reads them from the first one on, each time anew; an index, a slice, and what a
    terminal or a notebook shows, keep what they have read."""

    def __init__(self, read: Callable[[], Iterator[J]]) -> None:
        self._read = read
        self._own: Iterator[J] | None = None
        self._rest: Iterator[J] | None = None
        self._kept: list[J] = []

    def __iter__(self) -> Iterator[J]:
        return self._read()

    def __next__(self) -> J:
        if self._own is None:
            self._own = self._read()
        return next(self._own)

    @overload
    def __getitem__(self, index: int) -> J: ...
    @overload
    def __getitem__(self, index: slice) -> JobSlice[J]: ...
    def __getitem__(self, index: int | slice) -> J | JobSlice[J]:
        self._keep(_needed(index))
        return JobSlice(self._kept[index]) if isinstance(index, slice) else self._kept[index]

    def _keep(self, count: int | None) -> None:
        if self._rest is None:
            self._rest = self._read()
        while count is None or len(self._kept) < count:
            job = next(self._rest, None)
            if job is None:
                return
            self._kept.append(job)

    def to_pandas(self) -> "pandas.DataFrame":
        """A row for each job, indexed by `id`. Raises ImportError if pandas is not installed."""
        return make_frame(job_rows([job.summary for job in self]), "id")

    def __repr__(self) -> str:
        """The first jobs. An error is part of it: a debugger asks for this, too."""
        try:
            return repr(self[: SHOWN + 1])
        except ShardyardError as error:
            return f"<{type(self).__name__}: {error}>"

    def _repr_html_(self) -> str:
        return self[: SHOWN + 1]._repr_html_()


class AwaitedPages(AsyncIterator[J], Generic[J]):
    """The same where everything is awaited: `async for job in jobs`, `await jobs[0]`, `await jobs[:20]`."""

    def __init__(self, read: Callable[[], AsyncIterator[J]]) -> None:
        self._read = read
        self._own: AsyncIterator[J] | None = None

    def __aiter__(self) -> AsyncIterator[J]:
        return self._read()

    async def __anext__(self) -> J:
        if self._own is None:
            self._own = self._read()
        return await anext(self._own)

    @overload
    def __getitem__(self, index: int) -> Awaitable[J]: ...
    @overload
    def __getitem__(self, index: slice) -> Awaitable[JobSlice[J]]: ...
    def __getitem__(self, index: int | slice) -> Awaitable[Any]:
        return self._get(index)

    async def _get(self, index: int | slice) -> Any:
        count, kept = _needed(index), []
        async for job in self._read():
            kept.append(job)
            if count is not None and len(kept) >= count:
                break
        return JobSlice(kept[index]) if isinstance(index, slice) else kept[index]

    def __repr__(self) -> str:
        """What to do with it: it asks the service only in what is awaited."""
        return f"<{type(self).__name__} of jobs: await jobs[:{SHOWN}], or async for job in jobs>"

    async def to_pandas(self) -> "pandas.DataFrame":
        """A row for each job, indexed by `id`. Raises ImportError if pandas is not installed."""
        return make_frame(job_rows([job.summary async for job in self]), "id")


def _needed(index: int | slice) -> int | None:
    """How many of the first jobs have what is asked for; None: all."""
    if isinstance(index, int):
        return index + 1 if index >= 0 else None
    ends = (index.start or 0, index.stop)
    if index.stop is None or min(ends) < 0 or (index.step or 1) < 0:
        return None
    return int(index.stop)
