"""One function per route of comparisons and sweeps."""

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardyard.client.endpoints import Spec, build_path, get_request, spec_body
from shardyard.client.transport import HttpCall
from shardyard.contract import groups
from shardyard.contract.errors import InvalidRequest

_JSON = {"Content-Type": "application/json"}


def compare(
    spec: Spec,
    *,
    strategies: Sequence[str],
    devices: Sequence[int],
    steps: int | None = None,
    name: str | None = None,
    key: str | None = None,
) -> HttpCall[groups.Comparison]:
    fields = {"strategies": list(strategies), "devices": list(devices), "steps": steps, "name": name}
    return _post("comparisons", groups.Comparison, spec, fields, key)


def list_comparisons(**page: Any) -> HttpCall[groups.ComparisonList]:
    """One page, newest first: limit, cursor."""
    return get_request("/v1/comparisons", groups.ComparisonList, **page)


def get_comparison(comparison: str) -> HttpCall[groups.Comparison]:
    return get_request(build_path("comparisons", comparison), groups.Comparison)


def cancel_comparison(comparison: str) -> HttpCall[groups.Comparison]:
    return _cancel("comparisons", comparison, groups.Comparison)


def get_comparison_report(comparison: str) -> HttpCall[groups.ComparisonReport]:
    return get_request(build_path("comparisons", comparison, "report"), groups.ComparisonReport)


def draw_comparison_report(comparison: str, media: str) -> HttpCall[str]:
    return _draw("comparisons", comparison, media)


def sweep(
    spec: Spec,
    *,
    grid: Mapping[str, Sequence[Any]] | None = None,
    random: Mapping[str, Any] | None = None,
    key: str | None = None,
    **options: Any,
) -> HttpCall[groups.Sweep]:
    """Options: trials, seed, search, metric, mode, max_concurrent, steps, name."""
    return _post("sweeps", groups.Sweep, spec, {"grid": grid, "random": random} | options, key)


def list_sweeps(**page: Any) -> HttpCall[groups.SweepList]:
    """One page, newest first: limit, cursor."""
    return get_request("/v1/sweeps", groups.SweepList, **page)


def get_sweep(sweep: str) -> HttpCall[groups.Sweep]:
    return get_request(build_path("sweeps", sweep), groups.Sweep)


def cancel_sweep(sweep: str) -> HttpCall[groups.Sweep]:
    return _cancel("sweeps", sweep, groups.Sweep)


def get_sweep_report(sweep: str) -> HttpCall[groups.SweepReport]:
    return get_request(build_path("sweeps", sweep, "report"), groups.SweepReport)


def draw_sweep_report(sweep: str, media: str) -> HttpCall[str]:
    return _draw("sweeps", sweep, media)


def get_study(sweep: str) -> HttpCall[bytes]:
    return get_request(build_path("sweeps", sweep, "study"), bytes)


def _post(collection: str, kind: Any, spec: Spec, fields: Mapping[str, Any], key: str | None) -> HttpCall[Any]:
    try:
        body = {"spec": json.loads(spec_body(spec))} | {
            name: value for name, value in fields.items() if value is not None
        }
        content = json.dumps(body).encode()
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"this cannot be written as JSON: {error}") from error
    headers = _JSON | {"Idempotency-Key": key or str(uuid.uuid4())}
    return HttpCall(method="POST", path=f"/v1/{collection}", kind=kind, content=content, headers=headers, repeat=True)


def _cancel(collection: str, group: str, kind: Any) -> HttpCall[Any]:
    return HttpCall(method="POST", path=build_path(collection, group, "cancel"), kind=kind, repeat=True)


def _draw(collection: str, group: str, media: str) -> HttpCall[str]:
    path = build_path(collection, group, "report")
    return HttpCall(method="GET", path=path, kind=str, headers={"Accept": media}, repeat=True)


@dataclass(frozen=True, slots=True)
class GroupEndpoints:
    """What can be called of a group of one kind, by its id; `draw` by the media type as well."""

    show: Callable[[str], HttpCall[Any]]
    cancel: Callable[[str], HttpCall[Any]]
    report: Callable[[str], HttpCall[Any]]
    draw: Callable[[str, str], HttpCall[str]]


BY_KIND: Mapping[str, GroupEndpoints] = {
    "comparison": GroupEndpoints(get_comparison, cancel_comparison, get_comparison_report, draw_comparison_report),
    "sweep": GroupEndpoints(get_sweep, cancel_sweep, get_sweep_report, draw_sweep_report),
}
