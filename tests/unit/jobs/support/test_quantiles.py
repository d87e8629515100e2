import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.support.quantiles import MAX_BUCKETS, RELATIVE_ERROR, QuantileSketch

times = st.floats(min_value=1e-6, max_value=1e9)


def sketch_of(values: list[float]) -> QuantileSketch:
    sketch = QuantileSketch()
    for value in values:
        sketch.add(value)
    return sketch


def nearest_rank(values: list[float], q: float) -> float:
    return float(np.sort(np.array(values))[max(0, math.ceil(q * len(values)) - 1)])


@given(st.lists(times, min_size=1, max_size=200), st.sampled_from([0.0, 0.25, 0.5, 0.95, 1.0]))
def test_a_quantile_is_within_one_percent_of_the_exact_one(values: list[float], q: float) -> None:
    assert sketch_of(values).quantile(q) == pytest.approx(nearest_rank(values, q), rel=RELATIVE_ERROR * 1.0001)


@pytest.mark.parametrize("q", [0.5, 0.95])
def test_skewed_times_are_summed_up_as_numpy_does(q: float) -> None:
    values = np.random.default_rng(7).lognormal(mean=1.0, sigma=1.5, size=20_000)
    sketch = sketch_of(values.tolist())

    assert sketch.quantile(q) == pytest.approx(np.quantile(values, q, method="inverted_cdf"), rel=0.0101)
    assert sketch.total == pytest.approx(values.sum())
    assert sketch.count == 20_000
    assert sketch.max == values.max()


@given(st.lists(times, max_size=60), st.lists(times, max_size=60))
def test_merged_sketches_equal_one_sketch_of_everything(left: list[float], right: list[float]) -> None:
    merged, whole = sketch_of(left), sketch_of(left + right)
    merged.merge(sketch_of(right))

    assert merged.count == whole.count
    assert merged.max == whole.max
    assert merged.total == pytest.approx(whole.total)
    assert [merged.quantile(q) for q in (0.0, 0.5, 1.0)] == [whole.quantile(q) for q in (0.0, 0.5, 1.0)]


@given(st.lists(times, max_size=60), st.lists(times, max_size=60))
def test_values_counted_together_count_as_one_by_one_to_the_last_bit(first: list[float], rest: list[float]) -> None:
    together = sketch_of(first)
    together.add_all(rest)

    assert together == sketch_of(first + rest)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_one_value_that_is_no_time_refuses_all(value: float) -> None:
    for values in ([1.0, value], [value, 1.0]):
        sketch = sketch_of([2.0])
        with pytest.raises(ValueError, match="finite values from 0 on"):
            sketch.add_all(values)
        assert sketch == sketch_of([2.0])


def test_an_empty_sketch_has_no_quantile() -> None:
    assert QuantileSketch().quantile(0.5) is None


def test_zeros_count_as_zeros() -> None:
    sketch = sketch_of([0.0, 0.0, 0.0, 8.0])

    assert sketch.quantile(0.5) == 0.0
    assert sketch.quantile(1.0) == pytest.approx(8.0, rel=RELATIVE_ERROR)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_a_value_that_is_no_time_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="finite values from 0 on"):
        QuantileSketch().add(value)


def test_a_share_outside_nought_to_one_is_refused() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        QuantileSketch().quantile(1.5)


def test_values_over_any_range_stay_in_bounded_memory_and_the_large_ones_stay_exact() -> None:
    values = [10.0 ** (exponent / 20) for exponent in range(-179, 6000)]
    sketch = sketch_of(values)

    assert len(sketch._buckets) == MAX_BUCKETS
    assert sketch.quantile(0.95) == pytest.approx(nearest_rank(values, 0.95), rel=RELATIVE_ERROR * 1.0001)
