"""What the report predicts of a run without its straggler comes true when the straggler is taken out."""

import pytest

from tests.integration.training.what_if import WHERE, run_pair


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("where", WHERE)
def test_a_run_without_its_straggler_takes_as_long_as_was_predicted(where: str, ranks: int) -> None:
    pairs = [run_pair(where, ranks, steps=60, milliseconds=60) for _ in range(3)]

    assert sorted(abs(pair.error) for pair in pairs)[1] < 0.1
    for pair in pairs:
        assert pair.what_if.device == 1
        part = pair.what_if.input if where == "input" else pair.what_if.compute
        assert part == pytest.approx(pair.what_if.ratio - 1, rel=0.1)
