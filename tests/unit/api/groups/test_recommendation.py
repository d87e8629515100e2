"""Which variant of a comparison is recommended."""

from typing import Any

from api.groups.comparison_report import recommend
from shardyard.contract.groups import VariantResult


def variant(
    number: int, rate: float | None, error: float | None = 1.0, devices: int = 1, **fields: Any
) -> VariantResult:
    known: dict[str, Any] = {"strategy": "ddp", "batch_size": 8, "job": "job", "state": "succeeded", "windows": 3}
    price = 1000 * devices / rate if rate else None
    known |= {"rows_per_second": rate, "rows_per_second_error": error, "device_seconds": price}
    return VariantResult(number=number, devices=devices, **known | fields)


def test_the_fastest_is_recommended_with_its_reason_and_its_price() -> None:
    found = recommend([variant(0, 100.0), variant(1, 180.0, devices=2, devices_worth=1.8)], complete=True)
    assert (found.verdict, found.variant) == ("recommended", 1)
    assert "1.80 times those of ddp on 1" in found.reason
    assert "its 2 devices do the work of 1.80" in found.reason
    assert found.price == "11.1 device-seconds for 1,000 rows; ddp on 1 needs the least, 10"


def test_what_cannot_be_told_apart_is_not_recommended() -> None:
    results = [variant(0, 100.0, 5.0), variant(1, 103.0, 5.0), variant(2, 60.0, 1.0)]
    found = recommend(results, complete=True)
    assert (found.verdict, found.variant, sorted(found.candidates)) == ("too_noisy", None, [0, 1])
    assert "ddp on 1 and ddp on 1 cannot be told apart" in found.reason


def test_one_window_says_nothing() -> None:
    assert recommend([variant(0, 100.0, None)], complete=True).verdict == "too_noisy"


def test_only_variants_that_succeeded_are_recommended_and_only_when_all_have_ended() -> None:
    results = [variant(0, 100.0), variant(1, 300.0, state="failed"), variant(2, None, None)]
    assert recommend(results, complete=False).verdict == "waiting"
    assert recommend(results, complete=True).variant == 0
    assert recommend(results[2:], complete=True).verdict == "none"
