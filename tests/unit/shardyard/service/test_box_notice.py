"""What `up` says of the box, and when it refuses to go on."""

import pytest

from shardyard.contract.fleet import BoxRightView, BoxView, NodeView
from shardyard.service.box_notice import describe_box, has_no_box, refuse_unboxed
from shardyard.service.processes import ServiceError

RIGHTS = ("processes", "files", "ipc", "network", "account", "memory", "pids", "devices", "syscalls")


def a_box(level: str, *lacks: str) -> BoxView:
    rights = [
        BoxRightView(name=right, has=right not in lacks, why="why" if right in lacks else None) for right in RIGHTS
    ]
    return BoxView(level=level, rights=rights)


def a_node(box: BoxView) -> NodeView:
    return NodeView(id="host-a", alive=True, box=box)


NONE = a_node(a_box("none", *RIGHTS))


def test_a_full_box_is_described_by_what_a_job_has_for_itself() -> None:
    words = "own account, processes, files, network lo only, memory and processes limited"
    assert describe_box(a_box("full"), "none") == f"full: {words}"
    assert describe_box(a_box("full"), "host") == f"full: {words}".replace("network lo only", "the node's network")


def test_a_lesser_box_says_what_it_lacks() -> None:
    assert describe_box(a_box("user", "account", "memory", "pids", "devices"), "none") == (
        "user: own processes, files, network lo only; lacks: account, memory, pids, devices "
        "(`shardyard nodes --box` says why)"
    )
    assert "the node's network" in describe_box(a_box("user", "network"), "none")


def test_no_box_says_what_that_means_and_how_to_get_one() -> None:
    said = describe_box(NONE.box, "none")
    for words in (
        "none (why): jobs run as the service itself",
        "Unset SHARDYARD_BOX",
        "as root",
        "unprivileged_userns_clone",
        "--jobs-unboxed",
    ):
        assert words in said


@pytest.mark.parametrize("host", ["0.0.0.0", "10.1.2.3", "::", "gpu-1.example.org"])
def test_an_address_that_others_reach_is_refused_without_a_box(host: str) -> None:
    with pytest.raises(ServiceError) as refused:
        refuse_unboxed([a_node(a_box("full")), NONE], host)
    for words in (f"refusing to listen on {host}", "host-a (why)", "as root", "user namespaces", "--jobs-unboxed"):
        assert words in refused.value.message


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_the_own_machine_is_served_without_a_box(host: str) -> None:
    refuse_unboxed([NONE], host)


def test_any_box_and_a_node_that_says_nothing_of_one_are_served_anywhere() -> None:
    refuse_unboxed([a_node(a_box("user", "account")), a_node(BoxView())], "0.0.0.0")
    assert not has_no_box(a_node(BoxView()))
    assert "earlier version" in describe_box(BoxView(), "none")
