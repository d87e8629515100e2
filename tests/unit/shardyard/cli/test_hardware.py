"""The command `hardware`."""

import pytest

from shardyard.cli.hardware import draw_curve


@pytest.mark.parametrize(
    ("values", "drawn"), [([0, 1, 2, 7], "▁▂▃█"), ([5.0], "▁"), ([3.0, 3.0], "▁▁"), ([-1.0, 0.0, 1.0], "▁▅█")]
)
def test_a_curve_goes_from_the_least_to_the_greatest_value(values: list[float], drawn: str) -> None:
    assert draw_curve(values) == drawn
