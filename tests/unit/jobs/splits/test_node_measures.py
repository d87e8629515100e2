from jobs.splits.node_measures import find_slowest_node, measure_nodes
from shardyard.contract.report import DeviceMeasures, Timing


def measured(device: int, rows: int | None, wait_ms: float | None, wall_ms: float | None = 100.0) -> DeviceMeasures:
    timing = None if wait_ms is None else Timing(wait_ms, 1.0, 1.0, 4, 0.0)
    return DeviceMeasures(
        device=device,
        rows=rows,
        share=None if rows is None else rows / 100,
        steps=4 + device,
        idle_steps=0,
        forward_ms=None,
        backward_ms=None,
        data_wait_ms=timing,
        comm_ms=None,
        ms_per_row=None,
        memory_peak_bytes=None,
        wall_ms=wall_ms,
    )


def test_rows_of_a_node_add_up_and_its_times_are_means() -> None:
    devices = [measured(0, 10, 2.0, 90.0), measured(1, 20, 4.0, 110.0), measured(2, 30, 6.0), measured(3, 40, 6.0)]
    first, second = measure_nodes(["a", "a", "b", "b"], devices, [5.0, 4.0, 1.0, 2.0])

    assert (first.node, first.devices, first.rows, first.share, first.steps) == ("a", (0, 1), 30, 0.3, 5)
    assert (first.data_wait_ms, first.wall_ms, first.slowest_device) == (3.0, 100.0, 1)
    assert (second.node, second.devices, second.rows, second.share, second.steps) == ("b", (2, 3), 70, 0.7, 7)
    assert (second.data_wait_ms, second.slowest_device) == (6.0, 2)


def test_what_one_device_lacks_its_node_lacks_too() -> None:
    devices = [measured(0, 10, 2.0), measured(1, None, None, None), measured(2, 30, 6.0)]
    first, second = measure_nodes(["a", "a", "b"], devices, None)

    assert (first.rows, first.share, first.data_wait_ms, first.wall_ms) == (None, None, None, None)
    assert (second.rows, second.share, second.data_wait_ms, second.wall_ms) == (30, 0.3, 6.0, 100.0)
    assert (first.slowest_device, second.slowest_device) == (None, None)


def test_one_node_has_no_row() -> None:
    assert measure_nodes(["a", "a"], [measured(0, 1, 1.0), measured(1, 1, 1.0)], [1.0, 2.0]) == ()
    assert find_slowest_node(["a", "a"], [1.0, 2.0]) is None


def test_the_slowest_node_is_the_one_whose_devices_wait_least_on_average() -> None:
    assert find_slowest_node(["a", "a", "b", "b"], [0.0, 9.0, 2.0, 2.0]) == "b"
