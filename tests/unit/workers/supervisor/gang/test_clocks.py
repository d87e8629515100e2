"""What is said of hosts whose clocks differ."""

from workers.supervisor.gang.clocks import describe_clocks


def test_clocks_that_agree_are_not_mentioned() -> None:
    assert describe_clocks("n1", {}) == ""
    assert describe_clocks("n1", {"n2": 0.004, "n3": -0.09}) == ""


def test_clocks_that_differ_are_named_with_their_offset_and_the_worst_comes_first() -> None:
    said = describe_clocks("n1", {"n2": 0.3, "n3": -12.04, "n4": 0.01})
    assert said.endswith("relative to n1's, n3's is 12.0 s behind, n2's is 0.3 s ahead")


def test_of_many_clocks_that_differ_only_the_worst_are_named() -> None:
    said = describe_clocks("n1", {f"n{number}": float(number) for number in range(2, 40)})
    assert "n39's is 39.0 s ahead" in said
    assert said.endswith(", and 30 more differ")
