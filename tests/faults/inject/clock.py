"""Wall clocks that are wrong, or jump, by libfaketime. Monotonic clocks are left alone, as by a real jump.

For programs in C: CPython's sleep fails under it when the monotonic clock is left alone.
"""

from dataclasses import dataclass
from pathlib import Path

from tests.faults.scene.machine import libfaketime


@dataclass(frozen=True)
class Clock:
    """A clock for any number of processes. `file` holds by how many seconds it is wrong."""

    file: Path

    def jump(self, seconds: float) -> None:
        """Be ahead of the true time by so many seconds (behind, if negative) from now on."""
        self.file.write_text(f"{seconds:+g}\n")

    def environment(self) -> dict[str, str]:
        """What a process that is to have this clock is started with."""
        library = libfaketime()
        assert library is not None
        return {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self.file),
            "FAKETIME_NO_CACHE": "1",  # a jump shows soon
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DONT_RESET": "1",
        }


def clock(directory: Path, seconds: float = 0) -> Clock:
    made = Clock(directory / "clock")
    made.jump(seconds)
    return made
