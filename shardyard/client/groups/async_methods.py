"""The methods of `AsyncClient` that are about comparisons and sweeps. `methods.py` is generated from this file by
`python -m tools.generate_sync_client`."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from shardyard.client.endpoints import Spec
from shardyard.client.groups import endpoints
from shardyard.client.transport import HttpCall
from shardyard.contract import groups

T = TypeVar("T")


class AsyncGroupMethods:
    @abstractmethod
    async def call(self, call: HttpCall[T]) -> T: ...

    async def compare(
        self,
        spec: Spec,
        *,
        strategies: Sequence[str],
        devices: Sequence[int],
        steps: int | None = None,
        name: str | None = None,
        key: str | None = None,
    ) -> groups.Comparison:
        """Run a recipe under each strategy on each number of devices, with the same rows in each of its `steps`. `key`:
        the same one gives the same comparison again."""
        call = endpoints.compare(spec, strategies=strategies, devices=devices, steps=steps, name=name, key=key)
        return await self.call(call)

    async def comparisons(self, *, limit: int | None = None, cursor: str | None = None) -> groups.ComparisonList:
        """A page of your comparisons, newest first."""
        return await self.call(endpoints.list_comparisons(limit=limit, cursor=cursor))

    async def comparison(self, comparison: str) -> groups.Comparison:
        return await self.call(endpoints.get_comparison(comparison))

    async def cancel_comparison(self, comparison: str) -> groups.Comparison:
        """Cancel all of its jobs that have not ended."""
        return await self.call(endpoints.cancel_comparison(comparison))

    async def comparison_report(self, comparison: str) -> groups.ComparisonReport:
        """What it has found so far."""
        return await self.call(endpoints.get_comparison_report(comparison))

    async def sweep(
        self,
        spec: Spec,
        *,
        grid: Mapping[str, Sequence[Any]] | None = None,
        random: Mapping[str, Any] | None = None,
        key: str | None = None,
        **options: Any,
    ) -> groups.Sweep:
        """Run a spec with each combination of the values of a grid, or with values drawn at random, by the paths of
        their fields. Options: trials, seed, search, metric, mode, max_concurrent, steps, name. `search="optuna"`: the
        values of `random` are chosen from the trials that have ended."""
        return await self.call(endpoints.sweep(spec, grid=grid, random=random, key=key, **options))

    async def sweeps(self, *, limit: int | None = None, cursor: str | None = None) -> groups.SweepList:
        """A page of your sweeps, newest first."""
        return await self.call(endpoints.list_sweeps(limit=limit, cursor=cursor))

    async def get_sweep(self, sweep: str) -> groups.Sweep:
        return await self.call(endpoints.get_sweep(sweep))

    async def cancel_sweep(self, sweep: str) -> groups.Sweep:
        """Cancel all of its jobs that have not ended."""
        return await self.call(endpoints.cancel_sweep(sweep))

    async def sweep_report(self, sweep: str) -> groups.SweepReport:
        """What it has found so far."""
        return await self.call(endpoints.get_sweep_report(sweep))

    async def sweep_study(self, sweep: str) -> bytes:
        """The trials so far of a sweep with `search="optuna"`, as a journal that Optuna and its dashboard open."""
        return await self.call(endpoints.get_study(sweep))
