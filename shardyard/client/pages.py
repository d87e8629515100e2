"""Jobs of a list, fetched page by page as they are needed. They can be indexed, and shown as a table."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from shardyard.client.data_frames import job_rows, make_frame
from shardyard.client.job_handle import JobHandle
from shardyard.client.notebook import render_jobs

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]

J = TypeVar("J", bound=JobHandle)
#: What a notebook shows of a list.
SHOWN = 20


class BlockingPages(Iterator[J], Generic[J]):
    """Jobs, the newest first. `for` reads them from the first one on, each time anew; an index or a slice keeps what it
    has read."""

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
    def __getitem__(self, index: slice) -> list[J]: ...
    def __getitem__(self, index: int | slice) -> J | list[J]:
        self._keep(_needed(index))
        return self._kept[index]

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

    def _repr_html_(self) -> str:
        shown = self[: SHOWN + 1]
        return render_jobs([job.summary for job in shown[:SHOWN]], more=len(shown) > SHOWN)


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
    def __getitem__(self, index: slice) -> Awaitable[list[J]]: ...
    def __getitem__(self, index: int | slice) -> Awaitable[Any]:
        return self._get(index)

    async def _get(self, index: int | slice) -> Any:
        count, kept = _needed(index), []
        async for job in self._read():
            kept.append(job)
            if count is not None and len(kept) >= count:
                break
        return kept[index]

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
