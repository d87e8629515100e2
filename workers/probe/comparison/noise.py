"""The state of a process's random generators when its training begins: ranks may all leave out the same units.

No torch here."""

from collections.abc import Callable
from typing import Any

from jobs.protocol.packets import AnyRecord
from jobs.protocol.probe_records import Noise

DROPOUTS = frozenset({"Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout"})
#: Modules of a model that are looked at.
MAX_MODULES = 4096


class NoiseReporter:
    """Sends one `Noise`, of the first forward of a training that takes place on several ranks."""

    def __init__(self, emit: Callable[[AnyRecord], None]) -> None:
        self.is_wanted = False  # there are other ranks, and none was sent
        self._emit = emit

    def report(self, module: Any, random_state: Callable[[], int]) -> None:
        """A model begins to train."""
        self.is_wanted = False
        self._emit(Noise(random_state(), _drops_out(module)))


def _drops_out(module: Any) -> bool:
    """Whether a model has dropout: as a module, or as a setting of a recurrent or an attention layer."""
    modules = (part for part, _ in zip(module.modules(), range(MAX_MODULES), strict=False))
    return any(_drop_rate(part) > 0 for part in modules)


def _drop_rate(module: Any) -> float:
    rate = getattr(module, "p" if type(module).__name__ in DROPOUTS else "dropout", 0.0)
    return rate if isinstance(rate, float) else 0.0
