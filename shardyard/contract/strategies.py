"""What a spec of a recipe has under one strategy alone."""

from typing import Any, Final

#: Of a run that has a limit of steps, and no other.
ENDLESS_EPOCHS: Final = 1_000_000
#: Fields of `parallelism` that only some strategies have.
_OF_STRATEGIES: Final = {
    "dim": ("dp",),
    "output_device": ("dp",),
    "functional": ("dp",),
    "module": ("dp", "ddp"),
    "placement": ("single",),
    "backend": ("ddp", "fsdp"),
}


def set_strategy(spec: dict[str, Any], strategy: str, devices: int) -> None:
    """Have a spec run under a strategy on so many devices, without the fields that only other strategies have."""
    parallelism: dict[str, Any] = spec.setdefault("parallelism", {})
    for name, owners in _OF_STRATEGIES.items():
        if strategy not in owners:
            parallelism.pop(name, None)
    parallelism["strategy"] = strategy
    spec["resources"] = {"devices": devices}
