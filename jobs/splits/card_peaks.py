"""The most floating-point operations per second that cards are made for, by name and arithmetic.

Dense, that is without sparsity, with tensor cores where the arithmetic has them, at boost clock, as NVIDIA's documents
have them: the data sheets of V100, T4, A10, A30, A40, A100, RTX A6000, L4, L40, L40S, H100 and H200 (where these give
numbers with sparsity, half of them), the white papers on the H100 (Hopper), GA102 and Ada architectures.
"""

from collections.abc import Mapping

_T = 1e12


def _peaks(
    float32: float, tf32: float | None, half: float, *, float64: float | None = None, float8: float | None = None
) -> dict[str, float]:
    known = {"float64": float64, "float32": float32, "tf32": tf32, "float16": half, "float8": float8}
    if tf32 is not None:  # cards from Ampere on
        known["bfloat16"] = half
    return {name: value * _T for name, value in known.items() if value is not None}


_H100_SXM = _peaks(66.9, 494.7, 989.4, float64=66.9, float8=1978.9)

#: Words that are all in a card's name, as torch has it; the first line that fits counts.
_CARDS: tuple[tuple[tuple[str, ...], Mapping[str, float]], ...] = (
    (("H200", "NVL"), _peaks(60.0, 417.5, 835.5, float64=60.0, float8=1670.5)),
    (("H200",), _H100_SXM),
    (("H100", "NVL"), _peaks(60.0, 417.5, 835.5, float64=60.0, float8=1670.5)),
    (("H100", "PCIe"), _peaks(51.2, 378.0, 756.0, float64=51.2, float8=1513.0)),
    (("H100", "HBM3"), _H100_SXM),
    (("A100",), _peaks(19.5, 156.0, 312.0, float64=19.5)),
    (("A30",), _peaks(10.3, 82.0, 165.0, float64=10.3)),
    (("A40",), _peaks(37.4, 74.8, 149.7)),
    (("RTX", "A6000"), _peaks(38.7, 77.4, 154.8)),
    (("A10",), _peaks(31.2, 62.5, 125.0)),
    (("L40S",), _peaks(91.6, 183.0, 362.05, float8=733.0)),
    (("L40",), _peaks(90.5, 90.5, 181.05, float8=362.0)),
    (("L4",), _peaks(30.3, 60.0, 121.0, float8=242.5)),
    (("V100", "SXM2"), _peaks(15.7, None, 125.0, float64=7.8)),
    (("V100", "PCIE"), _peaks(14.0, None, 112.0, float64=7.0)),
    (("T4",), _peaks(8.1, None, 65.0)),
    (("RTX", "4090"), _peaks(82.6, 82.6, 165.2)),
    (("RTX", "3090"), _peaks(35.6, 35.6, 71.0)),
)
#: A part of a card, and cards with the name of another that are not like it.
_NOT_LIKE_IT = frozenset({"MIG", "Ti", "D", "Laptop"})


def find_peaks(name: str) -> Mapping[str, float] | None:
    """The peaks of a card by the name that torch gives it; `None` where it is not in the table."""
    words = set(name.replace("-", " ").replace("_", " ").split())
    if words & _NOT_LIKE_IT:
        return None
    return next((peaks for wanted, peaks in _CARDS if words.issuperset(wanted)), None)
